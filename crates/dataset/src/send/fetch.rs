//! Reads the payloads of records.

use bytes::Bytes;
use snowmelt_pool::{BlockPtr, Pool, PoolError};

use super::recorder::Payload;
use crate::error::SendError;

/// The offset in [`Payload`] that means a spill block.
pub(super) const SPILL: u64 = u64::MAX;

/// Reads the payloads of one dataset's records.
pub(super) struct Fetcher<'a> {
    pool: &'a Pool,
    name: &'a str,
    /// The block that was read last: a large one is requested in several pieces.
    last: Option<(BlockPtr, Bytes)>,
}

impl<'a> Fetcher<'a> {
    /// `name` is the snapshot's name, for messages.
    pub(super) fn new(pool: &'a Pool, name: &'a str) -> Self {
        Self { pool, name, last: None }
    }

    /// The bytes of a payload, without padding to 8.
    ///
    /// # Errors
    /// [`SendError::Unreadable`] when a block cannot be read, or its hash is wrong.
    pub(super) fn fetch(&mut self, payload: Payload) -> Result<Bytes, SendError> {
        match payload {
            Payload::None => Ok(Bytes::new()),
            Payload::Bytes(bytes) => Ok(bytes),
            Payload::Stored { ptr, object, offset, len } => {
                let bytes =
                    self.pool.read_stored(&ptr).map_err(|error| self.unreadable(object, offset, error))?;
                Ok(fit(bytes, len))
            }
            Payload::Plain { ptr, object, offset, from, len } => {
                let bytes = self.plain(ptr, len).map_err(|error| self.unreadable(object, offset, error))?;
                let start = from.min(bytes.len());
                Ok(fit(bytes.slice(start..bytes.len().min(start.saturating_add(len))), len))
            }
        }
    }

    fn plain(&mut self, ptr: BlockPtr, len: usize) -> Result<Bytes, PoolError> {
        if let Some((last, bytes)) = &self.last
            && *last == ptr
        {
            return Ok(bytes.clone());
        }
        let bytes = self.pool.read(&ptr)?;
        self.last = (bytes.len() > len).then(|| (ptr, bytes.clone()));
        Ok(bytes)
    }

    fn unreadable(&self, object: u64, offset: u64, source: PoolError) -> SendError {
        let offset = (offset != SPILL).then_some(offset);
        SendError::Unreadable { name: self.name.to_owned(), object, offset, source }
    }
}

/// Exactly `len` bytes: shorter data is padded with zeros. It is never longer, because record and block pointer have
/// the same length.
fn fit(bytes: Bytes, len: usize) -> Bytes {
    if bytes.len() >= len {
        return bytes.slice(..len);
    }
    let mut padded = Vec::with_capacity(len);
    padded.extend_from_slice(&bytes);
    padded.resize(len, 0);
    padded.into()
}
