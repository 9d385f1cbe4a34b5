//! Telling the medium below what is free: a device its unused blocks, a filesystem the holes in a file
//! (zpool-trim(8), and `autotrim` of zpoolprops(7)).

use bytes::Bytes;

use crate::error::{PoolError, Result};
use crate::pool::Pool;

/// Name of the property that says whether that happens at once.
pub(crate) const AUTOTRIM: &str = "autotrim";

impl Pool {
    /// Whether the medium below is told at once when a segment goes. It is, where nobody said otherwise.
    ///
    /// # Errors
    /// When the meta tree cannot be read, or holds another value.
    pub fn autotrim(&self) -> Result<Option<bool>> {
        self.property(AUTOTRIM)?.as_ref().map(decode).transpose()
    }

    /// Says whether the medium below is told at once when a segment goes, or only by [`trim`](Self::trim). Not to be called
    /// with a hold.
    ///
    /// # Errors
    /// As [`set_property`](Self::set_property).
    pub fn set_autotrim(&self, on: bool) -> Result<()> {
        let hold = self.begin()?;
        self.set_property(&hold, AUTOTRIM, if on { b"on" } else { b"off" })?;
        self.store().set_autotrim(on);
        Ok(())
    }

    /// Tells the medium below all that is free, whatever it was told before. Gives the bytes that it was told of: 0 where it
    /// does not want to know.
    ///
    /// # Errors
    /// `ReadOnly`, `Suspended`; when the store cannot be written.
    pub fn trim(&self) -> Result<u64> {
        self.io().writable()?;
        self.store().trim().map_err(PoolError::store("trimming"))
    }
}

/// What the property's value means.
pub(crate) fn decode(value: &Bytes) -> Result<bool> {
    match value.as_ref() {
        b"on" => Ok(true),
        b"off" => Ok(false),
        other => Err(PoolError::record("property autotrim", format!("{other:?} is neither on nor off"))),
    }
}
