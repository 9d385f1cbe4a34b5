//! A cursor that reads packed bytes with bounds checks.

use super::{MAX_DEPTH, MAX_PAIRS, NvError};
use crate::byte_order::ByteOrder;

pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    order: ByteOrder,
    pairs: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], order: ByteOrder) -> Self {
        Self { bytes, at: 0, order, pairs: 0 }
    }

    /// Offset in the packed list, including its header of four bytes.
    pub(super) fn offset(&self) -> usize {
        self.at + 4
    }

    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(super) fn bad(&self, what: &'static str) -> NvError {
        NvError::Bad { offset: self.offset(), what }
    }

    pub(super) fn take(&mut self, n: usize) -> Result<&'a [u8], NvError> {
        match self.bytes[self.at..].get(..n) {
            Some(piece) => {
                self.at += n;
                Ok(piece)
            }
            None => Err(NvError::Truncated { offset: self.offset(), wanted: n as u64, left: self.left() }),
        }
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], NvError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    pub(super) fn u16(&mut self) -> Result<u16, NvError> {
        let bytes = self.array()?;
        Ok(match self.order {
            ByteOrder::Little => u16::from_le_bytes(bytes),
            ByteOrder::Big => u16::from_be_bytes(bytes),
        })
    }

    pub(super) fn u32(&mut self) -> Result<u32, NvError> {
        let bytes = self.array()?;
        Ok(match self.order {
            ByteOrder::Little => u32::from_le_bytes(bytes),
            ByteOrder::Big => u32::from_be_bytes(bytes),
        })
    }

    pub(super) fn i32(&mut self) -> Result<i32, NvError> {
        Ok(self.u32()?.cast_signed())
    }

    pub(super) fn u64(&mut self) -> Result<u64, NvError> {
        let bytes = self.array()?;
        Ok(match self.order {
            ByteOrder::Little => u64::from_le_bytes(bytes),
            ByteOrder::Big => u64::from_be_bytes(bytes),
        })
    }

    /// Reads `n` items of at least `each` bytes. Fails before it allocates anything if the bytes cannot hold them.
    pub(super) fn items<T>(
        &mut self,
        n: usize,
        each: usize,
        mut item: impl FnMut(&mut Self) -> Result<T, NvError>,
    ) -> Result<Vec<T>, NvError> {
        let wanted = (n as u64).saturating_mul(each as u64);
        if wanted > self.left() as u64 {
            return Err(NvError::Truncated { offset: self.offset(), wanted, left: self.left() });
        }
        let mut out = Vec::with_capacity(n);
        for _ in 0..n {
            out.push(item(self)?);
        }
        Ok(out)
    }

    /// Counts a pair towards the limit.
    pub(super) fn pair(&mut self) -> Result<(), NvError> {
        self.pairs += 1;
        if self.pairs > MAX_PAIRS { Err(NvError::TooMuch { what: "pairs", max: MAX_PAIRS }) } else { Ok(()) }
    }

    pub(super) fn name(&self, bytes: &[u8]) -> Result<String, NvError> {
        // `nvp_name_sz` is a signed 16-bit word and counts the NUL.
        if bytes.contains(&0) || bytes.len() >= i16::MAX as usize {
            return Err(self.bad("name"));
        }
        String::from_utf8(bytes.to_vec()).map_err(|_| self.bad("name"))
    }

    pub(super) fn boolean(&self, value: u32) -> Result<bool, NvError> {
        match value {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.bad("boolean")),
        }
    }

    pub(super) fn version(&mut self) -> Result<(), NvError> {
        let offset = self.offset();
        match self.i32()? {
            0 => Ok(()),
            version => Err(NvError::Version { offset, version }),
        }
    }
}

/// The next deeper level, if the limit allows it.
pub(super) fn deeper(depth: usize) -> Result<usize, NvError> {
    if depth >= MAX_DEPTH { Err(NvError::TooMuch { what: "levels", max: MAX_DEPTH }) } else { Ok(depth + 1) }
}
