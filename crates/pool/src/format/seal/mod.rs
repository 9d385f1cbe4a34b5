//! Encryption at rest: every block of an encrypted pool is sealed before it is stored. After a read it is verified and
//! unsealed.
//!
//! `docs/format/encryption-at-rest.md` describes the bytes and the reasons.

mod block;
mod frame;
mod keys;
mod locked;
mod record;
mod suite;
#[cfg(test)]
mod tests;

pub(crate) use block::{Class, Seal, Sealer};
pub(crate) use frame::{decode as decode_key_frame, encode as encode_key_frame, newest as newest_key_record};
pub(crate) use keys::random;
pub use keys::{KEY_LOCATION_MAX, KeyFormat, Keys, PASSPHRASE_MAX, PASSPHRASE_MIN, PassphraseCost, Wrap};
pub use record::KeyRecord;
pub(crate) use record::RECORD_MAX;
pub(super) use suite::SUITE_SHIFT;
pub use suite::Suite;

/// The purposes of the keys that are derived from the pool's key. Changing one of them makes existing pools unreadable;
/// with another fingerprint, they are taken for other pools.
mod context {
    pub(super) const BLOCKS: &str = "snowmelt 2026-11 pool encryption: blocks";
    pub(super) const NONCES: &str = "snowmelt 2026-11 pool encryption: nonces of blocks";
    pub(super) const UBERBLOCKS: &str = "snowmelt 2026-11 pool encryption: uberblocks";
    pub(super) const WRAPPING: &str = "snowmelt 2026-11 pool encryption: wrapping of the pool key";
    pub(super) const FINGERPRINT: &str = "snowmelt 2026-11 pool encryption: fingerprint of the pool key";
}
