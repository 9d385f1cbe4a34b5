//! The property `deadman`: how long the pool waits for a member of a mirror before it continues without it.

use std::time::Duration;

use bytes::Bytes;
use snowmelt_store::{DEADMAN, DEADMAN_MAX, DEADMAN_MIN};

use crate::error::{PoolError, Result};
use crate::pool::Pool;

/// Name of the property: seconds, as decimal digits.
pub(crate) const DEADMAN_PROPERTY: &str = "deadman";

impl Pool {
    /// How long the pool waits for an answer of a mirror's member.
    ///
    /// # Errors
    /// When the meta tree cannot be read, or holds another value.
    pub fn deadman(&self) -> Result<Duration> {
        Ok(self.property(DEADMAN_PROPERTY)?.as_ref().map(decode).transpose()?.unwrap_or(DEADMAN))
    }

    /// Sets how long the pool waits for an answer of a mirror's member: whole seconds, from [`DEADMAN_MIN`] to
    /// [`DEADMAN_MAX`]. Must not be called with a hold.
    ///
    /// # Errors
    /// As [`set_property`](Self::set_property).
    pub fn set_deadman(&self, wait: Duration) -> Result<()> {
        let secs = wait.clamp(DEADMAN_MIN, DEADMAN_MAX).as_secs();
        let hold = self.begin()?;
        self.set_property(&hold, DEADMAN_PROPERTY, secs.to_string().as_bytes())?;
        self.store().set_deadman(Duration::from_secs(secs));
        Ok(())
    }
}

/// Decodes the value of the property.
pub(crate) fn decode(value: &Bytes) -> Result<Duration> {
    let wait = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).map(Duration::from_secs);
    wait.filter(|wait| (DEADMAN_MIN..=DEADMAN_MAX).contains(wait))
        .ok_or_else(|| PoolError::record("property deadman", format!("{value:?} is no number of seconds")))
}
