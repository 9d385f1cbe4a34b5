//! The part of packed nvlists (XDR encoding) that the ZPL needs: reading extended attributes and the FUID table, and
//! writing extended attributes. Source: `nvs_xdr_*` of `module/nvpair/nvpair.c`. Values that are read borrow from the
//! input.

/// `DATA_TYPE_UINT64`.
pub(crate) const TYPE_UINT64: u32 = 8;
/// `DATA_TYPE_STRING`.
pub(crate) const TYPE_STRING: u32 = 9;
/// `DATA_TYPE_BYTE_ARRAY`.
pub(crate) const TYPE_BYTE_ARRAY: u32 = 10;
/// `DATA_TYPE_NVLIST_ARRAY`.
pub(crate) const TYPE_NVLIST_ARRAY: u32 = 20;

/// Why a packed nvlist is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadNvlist(pub(crate) &'static str);

type Result<T> = std::result::Result<T, BadNvlist>;

/// A position in XDR-encoded bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Xdr<'b> {
    rest: &'b [u8],
}

impl<'b> Xdr<'b> {
    fn u32(&mut self) -> Result<u32> {
        let (raw, rest) = self.rest.split_first_chunk().ok_or(BadNvlist("it ends too soon"))?;
        self.rest = rest;
        Ok(u32::from_be_bytes(*raw))
    }

    /// Reads `len` bytes and skips their padding to a multiple of four.
    fn opaque(&mut self, len: u32) -> Result<&'b [u8]> {
        let len = len as usize;
        let bytes = self.rest.get(..len).ok_or(BadNvlist("a length runs past its end"))?;
        self.rest = self.rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Ok(bytes)
    }

    fn string(&mut self) -> Result<&'b [u8]> {
        let len = self.u32()?;
        self.opaque(len)
    }

    /// The next pair of the list, or `None` at the terminating pair of zero sizes.
    pub(crate) fn pair(&mut self) -> Result<Option<Pair<'b>>> {
        let start = self.rest;
        let (encoded, decoded) = (self.u32()?, self.u32()?);
        if encoded == 0 && decoded == 0 {
            return Ok(None);
        }
        let body = start.get(8..encoded as usize).ok_or(BadNvlist("a pair runs past its end"))?;
        self.rest = start.get(encoded as usize..).unwrap_or(&[]);
        let mut inner = Xdr { rest: body };
        let name = inner.string()?;
        let (kind, count) = (inner.u32()?, inner.u32()?);
        Ok(Some(Pair { name, kind, count, value: inner }))
    }

    /// Skips the version and flags of an embedded list.
    pub(crate) fn embedded(&mut self) -> Result<()> {
        self.u32()?;
        self.u32()?;
        Ok(())
    }
}

/// One name-value pair.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pair<'b> {
    pub(crate) name: &'b [u8],
    /// `DATA_TYPE_*`.
    pub(crate) kind: u32,
    /// Number of elements in an array.
    pub(crate) count: u32,
    pub(crate) value: Xdr<'b>,
}

impl<'b> Pair<'b> {
    pub(crate) fn byte_array(mut self) -> Result<&'b [u8]> {
        if self.kind != TYPE_BYTE_ARRAY {
            return Err(BadNvlist("a value is no byte array"));
        }
        self.value.opaque(self.count)
    }

    pub(crate) fn uint64(mut self) -> Result<u64> {
        if self.kind != TYPE_UINT64 {
            return Err(BadNvlist("a value is no 64-bit integer"));
        }
        Ok(u64::from(self.value.u32()?) << 32 | u64::from(self.value.u32()?))
    }

    pub(crate) fn str(mut self) -> Result<&'b [u8]> {
        if self.kind != TYPE_STRING {
            return Err(BadNvlist("a value is no string"));
        }
        self.value.string()
    }
}

/// `NV_UNIQUE_NAME`.
const UNIQUE_NAME: u32 = 1;
/// `sizeof (nvpair_t)`. The size of a decoded pair includes it.
const PAIR_LEN: usize = 16;

/// Packs named byte arrays. The header declares little-endian host order (`nvlist_pack` with `NV_ENCODE_XDR`).
pub(crate) fn pack(pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    fn opaque(out: &mut Vec<u8>, bytes: &[u8]) {
        out.extend_from_slice(bytes);
        out.resize(out.len().next_multiple_of(4), 0);
    }
    let mut out = vec![1, 1, 0, 0];
    out.extend_from_slice(&0u32.to_be_bytes());
    out.extend_from_slice(&UNIQUE_NAME.to_be_bytes());
    for (name, value) in pairs {
        let decoded = (PAIR_LEN + name.len() + 1).next_multiple_of(8) + value.len().next_multiple_of(8);
        let encoded = 20 + name.len().next_multiple_of(4) + value.len().next_multiple_of(4);
        for word in [encoded, decoded, name.len()] {
            out.extend_from_slice(&(word as u32).to_be_bytes());
        }
        opaque(&mut out, name);
        out.extend_from_slice(&TYPE_BYTE_ARRAY.to_be_bytes());
        out.extend_from_slice(&(value.len() as u32).to_be_bytes());
        opaque(&mut out, value);
    }
    out.extend_from_slice(&[0; 8]);
    out
}

/// Checks the header of a packed nvlist and returns its pairs.
pub(crate) fn unpack(packed: &[u8]) -> Result<Xdr<'_>> {
    match packed.first() {
        Some(1) => {}
        Some(_) => return Err(BadNvlist("it is not XDR-encoded")),
        None => return Err(BadNvlist("it is empty")),
    }
    let mut xdr = Xdr { rest: packed.get(4..).ok_or(BadNvlist("it ends too soon"))? };
    if xdr.u32()? != 0 {
        return Err(BadNvlist("its version is unknown"));
    }
    xdr.u32()?;
    Ok(xdr)
}
