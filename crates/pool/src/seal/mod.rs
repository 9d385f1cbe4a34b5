//! Encryption at rest: every block of the pool is sealed before it is stored, and opened after it was read and verified.
//!
//! Bytes, and why it is so: `docs/format/encryption-at-rest.md`.

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
pub use keys::{
    KEY_LOCATION_MAX, KeyError, KeyFormat, Keys, PASSPHRASE_MAX, PASSPHRASE_MIN, PassphraseCost, Wrap,
};
pub use record::KeyRecord;
pub(crate) use record::RECORD_MAX;
pub use suite::Suite;

/// What a key that is derived of the pool's is for. A change of any of these makes all that was sealed unreadable.
mod context {
    pub(super) const BLOCKS: &str = "snowmelt 2026-11 pool encryption: blocks";
    pub(super) const NONCES: &str = "snowmelt 2026-11 pool encryption: nonces of blocks";
    pub(super) const UBERBLOCKS: &str = "snowmelt 2026-11 pool encryption: uberblocks";
    pub(super) const WRAPPING: &str = "snowmelt 2026-11 pool encryption: wrapping of the pool key";
}
