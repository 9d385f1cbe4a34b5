//! The pool's key, and the user's key that wraps it.

use argon2::{Algorithm, Argon2, Params, Version};
use std::sync::Arc;
use zeroize::Zeroizing;

use crate::error::KeyError;

use super::context;
use super::locked::Locked;
use super::record::KeyRecord;
use super::suite::{Cipher, Suite};

/// Maximal length of a key location, bytes.
pub const KEY_LOCATION_MAX: usize = 400;
/// Length limits of a passphrase in bytes, as in ZFS (`MIN_PASSPHRASE_LEN`, `MAX_PASSPHRASE_LEN`).
pub const PASSPHRASE_MIN: usize = 8;
/// See [`PASSPHRASE_MIN`].
pub const PASSPHRASE_MAX: usize = 512;

const KEY_LEN: usize = 32;
const FINGERPRINT_LEN: usize = 16;

/// The form of a user's key, like `keyformat` of ZFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyFormat {
    /// 32 bytes.
    Raw,
    /// 64 hexadecimal digits.
    Hex,
    /// 8 to 512 bytes of text. Argon2id derives the key from it.
    Passphrase,
}

impl KeyFormat {
    const ALL: [KeyFormat; 3] = [KeyFormat::Raw, KeyFormat::Hex, KeyFormat::Passphrase];

    /// The user's name for it.
    pub fn name(self) -> &'static str {
        match self {
            KeyFormat::Raw => "raw",
            KeyFormat::Hex => "hex",
            KeyFormat::Passphrase => "passphrase",
        }
    }

    /// The format with this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    /// The format that key material seems to have: 32 bytes, or 64 hexadecimal digits with or without a line break.
    pub fn of_key(material: &[u8]) -> Option<Self> {
        let digits = line(material);
        match material.len() {
            KEY_LEN => Some(KeyFormat::Raw),
            _ if digits.len() == 2 * KEY_LEN && digits.iter().all(u8::is_ascii_hexdigit) => {
                Some(KeyFormat::Hex)
            }
            _ => None,
        }
    }

    pub(super) fn id(self) -> u8 {
        match self {
            KeyFormat::Raw => 1,
            KeyFormat::Hex => 2,
            KeyFormat::Passphrase => 3,
        }
    }

    pub(super) fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.id() == id)
    }
}

/// Cost of deriving a key from a passphrase (RFC 9106).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassphraseCost {
    /// Memory, KiB.
    pub memory: u32,
    /// Number of passes over the memory.
    pub passes: u32,
    /// Number of lanes.
    pub lanes: u32,
}

impl Default for PassphraseCost {
    /// The second choice of RFC 9106, section 4: 64 MiB, 3 passes, 4 lanes.
    fn default() -> Self {
        PassphraseCost { memory: 64 << 10, passes: 3, lanes: 4 }
    }
}

impl PassphraseCost {
    /// Upper limit of the cost. A record that demands more is refused: half a gigabyte, and some seconds.
    const MAX: PassphraseCost = PassphraseCost { memory: 512 << 10, passes: 16, lanes: 16 };

    pub(super) fn params(self) -> Result<Params, KeyError> {
        let Self { memory, passes, lanes } = self;
        let max = Self::MAX;
        let refused = || {
            KeyError::Record(format!(
                "Argon2id of {memory} KiB, {passes} passes and {lanes} lanes; at most {} KiB, {} and {} are computed",
                max.memory, max.passes, max.lanes
            ))
        };
        if memory > max.memory || passes > max.passes || lanes > max.lanes {
            return Err(refused());
        }
        Params::new(memory, passes, lanes, Some(KEY_LEN)).map_err(|_| refused())
    }
}

/// How to wrap the pool's key.
pub struct Wrap<'a> {
    /// Form of the user's key.
    pub format: KeyFormat,
    /// Location of the user's key, as the user wrote it; at most [`KEY_LOCATION_MAX`] bytes.
    pub location: &'a str,
    /// The user's key.
    pub material: &'a [u8],
    /// Cost for a passphrase.
    pub cost: PassphraseCost,
}

/// The key of a pool, and the record from which the user's key unwraps it. Clones share the key.
#[derive(Clone)]
pub struct Keys {
    record: KeyRecord,
    key: Arc<Locked<Zeroizing<[u8; KEY_LEN]>>>,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").field("record", &self.record).finish_non_exhaustive()
    }
}

impl Keys {
    /// Creates a random key for a new pool.
    ///
    /// # Errors
    /// `Form` when the user's key is not valid; `System`.
    pub fn new(guid: u64, suite: Suite, wrap: &Wrap<'_>) -> Result<Self, KeyError> {
        let key = Arc::new(Locked::new(Zeroizing::new(random()?)));
        let record = wrapped(guid, suite, wrap, &key)?;
        Ok(Keys { record, key })
    }

    /// Unwraps the key in a record.
    ///
    /// # Errors
    /// `Incorrect`, `Form`; `Record` when the record demands too much time or memory.
    pub fn open(record: &KeyRecord, material: &[u8]) -> Result<Self, KeyError> {
        let wrapping = wrapping_key(record.format, material, &record.salt, record.cost)?;
        let mut key = Locked::new(Zeroizing::new(record.sealed));
        let opened = Cipher::new(Suite::XChaCha20Poly1305, &wrapping).open(
            &record.nonce,
            &record.authenticated(),
            key.as_mut_slice(),
            &record.tag,
        );
        if !opened {
            return Err(KeyError::Incorrect);
        }
        Ok(Keys { record: record.clone(), key: Arc::new(key) })
    }

    /// Wraps the same key with another key of the user.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn rewrap(&self, wrap: &Wrap<'_>) -> Result<Self, KeyError> {
        let record = wrapped(self.guid(), self.suite(), wrap, &self.key)?;
        Ok(Keys { record, key: self.key.clone() })
    }

    /// The key record.
    pub fn record(&self) -> &KeyRecord {
        &self.record
    }

    /// The suite that seals the pool's blocks.
    pub fn suite(&self) -> Suite {
        self.record.suite
    }

    /// The pool's guid.
    pub fn guid(&self) -> u64 {
        self.record.guid
    }

    /// Tells the pool's key from others, and reveals nothing about it. It stays the same when the user's key changes.
    pub fn fingerprint(&self) -> [u8; FINGERPRINT_LEN] {
        let derived = self.derive(context::FINGERPRINT);
        let mut fingerprint = [0; FINGERPRINT_LEN];
        fingerprint.copy_from_slice(&derived[..FINGERPRINT_LEN]);
        fingerprint
    }

    pub(super) fn derive(&self, context: &str) -> Zeroizing<[u8; KEY_LEN]> {
        Zeroizing::new(blake3::derive_key(context, self.key.as_slice()))
    }

    /// The MAC that proves that an uberblock with this hash was made by a holder of the key.
    pub(crate) fn mac(&self, hash: &[u8; 32]) -> [u8; 32] {
        *blake3::keyed_hash(&self.derive(context::UBERBLOCKS), hash).as_bytes()
    }

    /// Compares a MAC with the correct one in constant time.
    pub(crate) fn is_mac(&self, hash: &[u8; 32], mac: &[u8; 32]) -> bool {
        blake3::Hash::from(self.mac(hash)) == blake3::Hash::from(*mac)
    }
}

fn wrapped(
    guid: u64,
    suite: Suite,
    wrap: &Wrap<'_>,
    key: &Zeroizing<[u8; KEY_LEN]>,
) -> Result<KeyRecord, KeyError> {
    if wrap.location.is_empty() || wrap.location.len() > KEY_LOCATION_MAX {
        let len = wrap.location.len();
        return Err(KeyError::Form(format!(
            "a keylocation of {len} bytes: it can have 1 to {KEY_LOCATION_MAX}"
        )));
    }
    // For other formats, the record's cost is zero: a record has no unused parameters.
    let is_passphrase = wrap.format == KeyFormat::Passphrase;
    let cost = if is_passphrase { wrap.cost } else { PassphraseCost { memory: 0, passes: 0, lanes: 0 } };
    let mut record = KeyRecord {
        guid,
        suite,
        format: wrap.format,
        cost,
        salt: random()?,
        nonce: random()?,
        sealed: [0; KEY_LEN],
        tag: [0; 16],
        location: wrap.location.to_owned(),
    };
    let wrapping = wrapping_key(record.format, wrap.material, &record.salt, cost)?;
    let mut sealed = Zeroizing::new(**key);
    let cipher = Cipher::new(Suite::XChaCha20Poly1305, &wrapping);
    let tag = cipher.seal(&record.nonce, &record.authenticated(), sealed.as_mut());
    record.tag = tag.ok_or(KeyError::System("the key cannot be wrapped"))?;
    record.sealed = *sealed;
    Ok(record)
}

/// Key material without the line break that editors and `echo` append.
fn line(material: &[u8]) -> &[u8] {
    let material = material.strip_suffix(b"\n").unwrap_or(material);
    material.strip_suffix(b"\r").unwrap_or(material)
}

fn wrapping_key(
    format: KeyFormat,
    material: &[u8],
    salt: &[u8; 16],
    cost: PassphraseCost,
) -> Result<Zeroizing<[u8; KEY_LEN]>, KeyError> {
    let mut secret = Locked::new(Zeroizing::new([0; KEY_LEN]));
    match format {
        KeyFormat::Raw if material.len() == KEY_LEN => secret.copy_from_slice(material),
        KeyFormat::Raw => {
            return Err(KeyError::Form(format!("a raw key has {KEY_LEN} bytes, not {}", material.len())));
        }
        KeyFormat::Hex => {
            let digits = line(material);
            if digits.len() != 2 * KEY_LEN {
                let (wanted, len) = (2 * KEY_LEN, digits.len());
                return Err(KeyError::Form(format!("a hex key has {wanted} digits, not {len}")));
            }
            for (byte, pair) in secret.iter_mut().zip(digits.chunks(2)) {
                let digit = |at: usize| pair.get(at).and_then(|digit| char::from(*digit).to_digit(16));
                let (Some(high), Some(low)) = (digit(0), digit(1)) else {
                    return Err(KeyError::Form("a hex key has hexadecimal digits only".to_owned()));
                };
                *byte = (high << 4 | low) as u8;
            }
        }
        KeyFormat::Passphrase => {
            let passphrase = line(material);
            if !(PASSPHRASE_MIN..=PASSPHRASE_MAX).contains(&passphrase.len()) {
                return Err(KeyError::Form(format!(
                    "a passphrase has {PASSPHRASE_MIN} to {PASSPHRASE_MAX} bytes, not {}",
                    passphrase.len()
                )));
            }
            let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, cost.params()?);
            let derived = argon2.hash_password_into(passphrase, salt, secret.as_mut_slice());
            derived.map_err(|_| KeyError::System("the key cannot be derived of the passphrase"))?;
        }
    }
    Ok(Zeroizing::new(blake3::derive_key(context::WRAPPING, secret.as_slice())))
}

/// Random bytes from the system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], KeyError> {
    let mut out = [0; N];
    let mut filled = 0;
    while filled < N {
        match rustix::rand::getrandom(&mut out[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Err(KeyError::System("the system has no random numbers")),
        }
    }
    Ok(out)
}

#[cfg(test)]
impl Keys {
    pub(super) fn of_test(guid: u64, suite: Suite, key: [u8; KEY_LEN]) -> Self {
        let record = KeyRecord { guid, suite, ..KeyRecord::golden() };
        Keys { record, key: Arc::new(Locked::new(Zeroizing::new(key))) }
    }

    pub(super) fn secret_of_test(&self) -> &Zeroizing<[u8; KEY_LEN]> {
        &self.key
    }
}
