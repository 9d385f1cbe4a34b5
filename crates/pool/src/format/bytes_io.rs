//! Reads little-endian fields from a byte slice and checks every length.

use crate::error::{PoolError, Result};

/// A cursor over the bytes of one record. Every read is checked, and errors name the record.
pub(crate) struct Fields<'a> {
    record: &'static str,
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn new(record: &'static str, bytes: &'a [u8]) -> Self {
        Fields { record, rest: bytes }
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        match self.rest.split_at_checked(len) {
            Some((head, rest)) => {
                self.rest = rest;
                Ok(head)
            }
            None => Err(PoolError::record(
                self.record,
                format!("truncated: {len} bytes wanted, {} there", self.rest.len()),
            )),
        }
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Refuses bytes after the end of the record.
    pub(crate) fn end(self) -> Result<()> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(PoolError::record(self.record, format!("{} bytes after its end", self.rest.len())))
    }

    pub(crate) fn fail<T>(&self, why: impl Into<String>) -> Result<T> {
        Err(PoolError::record(self.record, why))
    }
}
