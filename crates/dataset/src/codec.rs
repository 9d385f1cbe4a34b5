//! A bounds-checked little-endian cursor for the records of this crate.

use crate::error::DatasetError;

/// Reads fields one after another. Every read is checked.
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Fields<'a> {
    /// `what` names the record in errors.
    pub(crate) fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { rest: bytes, what }
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], DatasetError> {
        if len > self.rest.len() {
            return Err(DatasetError::corrupt(self.what, "record is cut short"));
        }
        let (head, rest) = self.rest.split_at(len);
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DatasetError> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N)?);
        Ok(out)
    }

    pub(crate) fn fixed<const N: usize>(&mut self) -> Result<[u8; N], DatasetError> {
        self.array::<N>()
    }

    pub(crate) fn u8(&mut self) -> Result<u8, DatasetError> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16, DatasetError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, DatasetError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, DatasetError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A string of at most 64 KiB, after its length.
    pub(crate) fn text(&mut self) -> Result<String, DatasetError> {
        let len = self.u16()?;
        let bytes = self.bytes(usize::from(len))?;
        String::from_utf8(bytes.to_vec()).map_err(|_| DatasetError::corrupt(self.what, "name is not UTF-8"))
    }

    /// The unread bytes, for a nested decoder. Bytes that it does not read stay unread.
    pub(crate) fn nested(&mut self) -> &mut &'a [u8] {
        &mut self.rest
    }

    /// All unread bytes.
    pub(crate) fn remaining(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Refuses unread bytes at the end: a newer format must have a new version.
    pub(crate) fn finish(self) -> Result<(), DatasetError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(DatasetError::corrupt(self.what, "record has trailing bytes"))
        }
    }

    /// Checks the version byte at the beginning of a record.
    pub(crate) fn version(&mut self, known: u8) -> Result<(), DatasetError> {
        match self.u8()? {
            found if found == known => Ok(()),
            _ => Err(DatasetError::corrupt(self.what, "record version is not known to this build")),
        }
    }
}

/// Appends a string after its length. Names are at most 255 bytes long, see [`crate::name`].
pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    let len = u16::try_from(text.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&text.as_bytes()[..usize::from(len)]);
}
