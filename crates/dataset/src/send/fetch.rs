//! Payloads are read.

use bytes::Bytes;
use snowmelt_pool::{BlockPtr, Pool, PoolError};

use super::recorder::Payload;
use crate::error::{DatasetError, SendError};

/// Reads the payloads of one dataset's records.
pub(super) struct Fetcher<'a> {
    pool: &'a Pool,
    name: &'a str,
    /// The block read last: a large one is asked for in several pieces.
    last: Option<(BlockPtr, Bytes)>,
}

impl<'a> Fetcher<'a> {
    /// `name` is the snapshot's, for messages.
    pub(super) fn new(pool: &'a Pool, name: &'a str) -> Self {
        Self { pool, name, last: None }
    }

    /// The bytes of a payload, not padded to 8.
    ///
    /// # Errors
    /// When a block cannot be read or is not what was written; the error names object and offset.
    pub(super) fn fetch(&mut self, payload: Payload) -> Result<Bytes, SendError> {
        match payload {
            Payload::None => Ok(Bytes::new()),
            Payload::Bytes(bytes) => Ok(bytes),
            Payload::Stored { ptr, object, offset, len } => {
                let bytes =
                    self.pool.read_stored(&ptr).map_err(|error| self.unreadable(object, offset, &error))?;
                Ok(fit(bytes, len))
            }
            Payload::Plain { ptr, object, offset, from, len } => {
                let bytes = self.plain(ptr, len).map_err(|error| self.unreadable(object, offset, &error))?;
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

    fn unreadable(&self, object: u64, offset: u64, error: &PoolError) -> SendError {
        let place = if offset == u64::MAX {
            format!("spill block of object {object} of {}", self.name)
        } else {
            format!("object {object}, offset {offset} of {}", self.name)
        };
        let mut why = error.to_string();
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            why.push_str(": ");
            why.push_str(&cause.to_string());
            source = cause.source();
        }
        DatasetError::corrupt(place, why).into()
    }
}

/// Exactly `len` bytes: zeros are put behind what is shorter. Longer than that nothing is: record and block pointer
/// agree.
fn fit(bytes: Bytes, len: usize) -> Bytes {
    if bytes.len() >= len {
        return bytes.slice(..len);
    }
    let mut padded = Vec::with_capacity(len);
    padded.extend_from_slice(&bytes);
    padded.resize(len, 0);
    padded.into()
}
