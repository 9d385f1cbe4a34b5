//! Trim: tells the device or filesystem below which space is free (zpool-trim(8), and `autotrim` of zpoolprops(7)).
//! Devices get unused blocks, files get holes.

use bytes::Bytes;

use crate::error::{PoolError, Result};
use crate::pool::Pool;

/// Name of the property that turns automatic trim on or off.
pub(crate) const AUTOTRIM: &str = "autotrim";

impl Pool {
    /// Whether space is trimmed as soon as a segment is deleted. `None` if the property is not set; the default is on.
    ///
    /// # Errors
    /// When the meta tree cannot be read, or holds another value.
    pub fn autotrim(&self) -> Result<Option<bool>> {
        self.property(AUTOTRIM)?.as_ref().map(decode).transpose()
    }

    /// Sets whether space is trimmed as soon as a segment is deleted, or only by [`trim`](Self::trim). Must not be
    /// called with a hold.
    ///
    /// # Errors
    /// As [`set_property`](Self::set_property).
    pub fn set_autotrim(&self, on: bool) -> Result<()> {
        let hold = self.begin()?;
        self.set_property(&hold, AUTOTRIM, if on { b"on" } else { b"off" })?;
        self.store().set_autotrim(on);
        Ok(())
    }

    /// Trims all free space, including space that was trimmed before. Returns the number of trimmed bytes; 0 if the
    /// device or filesystem does not support it.
    ///
    /// # Errors
    /// `ReadOnly`, `Suspended`; when the store cannot be written.
    pub fn trim(&self) -> Result<u64> {
        self.io().writable()?;
        self.store().trim().map_err(PoolError::store("trimming"))
    }
}

/// Decodes the property's value.
pub(crate) fn decode(value: &Bytes) -> Result<bool> {
    match value.as_ref() {
        b"on" => Ok(true),
        b"off" => Ok(false),
        other => Err(PoolError::record("property autotrim", format!("{other:?} is neither on nor off"))),
    }
}
