//! The key record: the wrapped key of the pool, and everything but the user's key that is needed to unwrap it.

use super::keys::{KEY_LOCATION_MAX, KeyFormat, PassphraseCost};
use super::suite::{Suite, TAG_LEN};
use crate::error::{PoolError, Result};
use crate::format::bytes_io::Fields;

const VERSION: u8 = 1;
/// Length of everything except the location.
const FIXED_LEN: usize = 4 + 12 + 16 + 24 + 32 + TAG_LEN + 2;
/// Longest record, bytes.
pub(crate) const RECORD_MAX: usize = FIXED_LEN + KEY_LOCATION_MAX;

/// A wrapped key. It is not secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRecord {
    /// The pool's guid. It is not part of the encoded record.
    pub(crate) guid: u64,
    pub(super) suite: Suite,
    pub(super) format: KeyFormat,
    pub(super) cost: PassphraseCost,
    pub(super) salt: [u8; 16],
    pub(super) nonce: [u8; 24],
    pub(super) sealed: [u8; 32],
    pub(super) tag: [u8; TAG_LEN],
    pub(super) location: String,
}

impl KeyRecord {
    /// The suite that seals the pool's blocks.
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// Form of the user's key.
    pub fn format(&self) -> KeyFormat {
        self.format
    }

    /// Location of the user's key, as the user wrote it. It is not trusted until the key was unwrapped with that key:
    /// anybody who can write to the store may have changed it.
    pub fn location(&self) -> &str {
        &self.location
    }

    /// The guid of the pool.
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// The encoded fields before the nonce.
    fn head(&self) -> Vec<u8> {
        let mut out = vec![VERSION, self.suite.id(), self.format.id(), 0];
        for word in [self.cost.memory, self.cost.passes, self.cost.lanes] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&self.salt);
        out
    }

    /// The data that the wrapped key is bound to: everything else in the record.
    pub(super) fn authenticated(&self) -> Vec<u8> {
        [&self.guid.to_le_bytes(), &self.head()[..], self.location.as_bytes()].concat()
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = self.head();
        out.extend_from_slice(&self.nonce);
        out.extend_from_slice(&self.sealed);
        out.extend_from_slice(&self.tag);
        out.extend_from_slice(&(self.location.len() as u16).to_le_bytes());
        out.extend_from_slice(self.location.as_bytes());
        debug_assert!(out.len() <= RECORD_MAX);
        out
    }

    pub(crate) fn decode(guid: u64, bytes: &[u8]) -> Result<Self> {
        let mut fields = Fields::new("key record", bytes);
        let [version, suite, format, zero] = fields.array()?;
        if version != VERSION || zero != 0 {
            return fields.fail(format!("version {version} is unknown to this build"));
        }
        let (Some(suite), Some(format)) = (Suite::from_id(suite), KeyFormat::from_id(format)) else {
            return fields.fail(format!("suite {suite} or key format {format} is unknown to this build"));
        };
        let cost = PassphraseCost { memory: fields.u32()?, passes: fields.u32()?, lanes: fields.u32()? };
        let (salt, nonce, sealed, tag) = (fields.array()?, fields.array()?, fields.array()?, fields.array()?);
        let len = usize::from(fields.u16()?);
        if len == 0 || len > KEY_LOCATION_MAX {
            return fields.fail(format!("a keylocation of {len} bytes"));
        }
        let location = std::str::from_utf8(fields.take(len)?);
        let Ok(location) = location.map(str::to_owned) else {
            return Err(PoolError::record("key record", "the keylocation is no text"));
        };
        fields.end()?;
        Ok(KeyRecord { guid, suite, format, cost, salt, nonce, sealed, tag, location })
    }
}

#[cfg(test)]
impl KeyRecord {
    /// A record of fixed bytes that no key unwraps.
    pub(super) fn golden() -> Self {
        KeyRecord {
            guid: 7,
            suite: Suite::Aes256GcmSiv,
            format: KeyFormat::Passphrase,
            cost: PassphraseCost::default(),
            salt: [1; 16],
            nonce: [2; 24],
            sealed: [3; 32],
            tag: [4; TAG_LEN],
            location: "prompt".to_owned(),
        }
    }
}
