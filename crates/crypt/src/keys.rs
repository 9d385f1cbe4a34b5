//! Wrapping keys, and the keys they wrap.
//!
//! A wrapping key is an AES-256 key, whatever the suite of the dataset. It is the user's key, or is derived from it
//! (`derive_key` in `lib/libzfs/libzfs_crypto.c`). It decrypts the dataset's master key and its key of HMACs
//! (`zio_crypt_key_unwrap`). The keys of blocks are derived from the master key and the block's salt.

use hkdf::Hkdf;
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;
use sha2::Sha512;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::error::{BlockError, KeyError};
use crate::key_format::KeyFormat;
use crate::keydata::{HMAC_KEY_LEN, Keydata};
use crate::suite::{Cipher, MAC_LEN, MAX_KEY_LEN, Suite};

/// Length of the salt that a block's key is derived with (`ZIO_DATA_SALT_LEN`), in bytes.
pub const SALT_LEN: usize = 8;
/// Length of a wrapping key in hexadecimal.
const HEX_LEN: usize = MAX_KEY_LEN * 2;

/// The key that opens a dataset's keys. Wiped from memory when dropped.
pub struct WrappingKey(Zeroizing<[u8; MAX_KEY_LEN]>);

impl WrappingKey {
    /// The key of these bytes.
    #[must_use]
    pub fn new(key: [u8; MAX_KEY_LEN]) -> Self {
        Self(Zeroizing::new(key))
    }

    /// Derives the key from `material` (the contents of the file that `keylocation` names, or what the user typed).
    ///
    /// A raw key is all of `material`. A passphrase or a hexadecimal key is its first line. A passphrase ends at the
    /// first NUL, as in `zfs`. PBKDF2 takes about a second for a million iterations.
    ///
    /// # Errors
    /// `material` is too short or too long, or not hexadecimal.
    pub fn from_material(keydata: &Keydata, material: &[u8]) -> Result<Self, KeyError> {
        let format = keydata.format;
        let mut key = Zeroizing::new([0; MAX_KEY_LEN]);
        match format {
            KeyFormat::Raw => {
                let length = KeyError::Length { format, found: material.len(), expected: MAX_KEY_LEN };
                *key = material.try_into().map_err(|_| length)?;
            }
            KeyFormat::Hex => unhex(until(material, b'\n'), &mut key)?,
            KeyFormat::Passphrase => {
                let passphrase = until(until(material, b'\n'), 0);
                let salt = keydata.salt.to_le_bytes();
                pbkdf2::pbkdf2_hmac::<Sha1>(passphrase, &salt, keydata.iterations, key.as_mut());
            }
        }
        Ok(Self(key))
    }
}

/// The bytes before the first `end`, or all of them.
fn until(bytes: &[u8], end: u8) -> &[u8] {
    bytes.split(|byte| *byte == end).next().unwrap_or(bytes)
}

fn unhex(digits: &[u8], key: &mut [u8; MAX_KEY_LEN]) -> Result<(), KeyError> {
    if digits.len() != HEX_LEN {
        let (format, found) = (KeyFormat::Hex, digits.len());
        return Err(KeyError::Length { format, found, expected: HEX_LEN });
    }
    let digit =
        |byte: u8| char::from(byte).to_digit(16).and_then(|d| u8::try_from(d).ok()).ok_or(KeyError::Hex);
    for (byte, pair) in key.iter_mut().zip(digits.as_chunks::<2>().0) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Ok(())
}

/// A dataset's keys, unwrapped. Wiped from memory when dropped.
pub struct Keys {
    suite: Suite,
    master: Zeroizing<[u8; MAX_KEY_LEN]>,
    hmac: Zeroizing<[u8; HMAC_KEY_LEN]>,
}

impl Keys {
    /// Unwraps the keys of `keydata`.
    ///
    /// # Errors
    /// [`KeyError::Incorrect`]: it is another key, or the key data is damaged.
    pub fn unwrap(keydata: &Keydata, wrapping: &WrappingKey) -> Result<Self, KeyError> {
        let suite = keydata.suite;
        let len = suite.key_len();
        // Both keys are one message: the master key with the suite's key length, then the key of HMACs.
        let mut both = Zeroizing::new([0; MAX_KEY_LEN + HMAC_KEY_LEN]);
        let (message, _) = both.split_at_mut(len + HMAC_KEY_LEN);
        let (master, hmac) = message.split_at_mut(len);
        master.copy_from_slice(&keydata.master_key[..len]);
        hmac.copy_from_slice(&keydata.hmac_key);
        let mut aad = [0; 24];
        aad[..8].copy_from_slice(&keydata.guid.to_le_bytes());
        aad[8..16].copy_from_slice(&suite.id().to_le_bytes());
        aad[16..].copy_from_slice(&crate::keydata::VERSION.to_le_bytes());
        let cipher = Cipher::new(suite.wrapping(), &wrapping.0);
        cipher.open(&keydata.iv, &aad, message, &keydata.mac).map_err(|_| KeyError::Incorrect)?;

        let mut keys = Self { suite, master: Zeroizing::default(), hmac: Zeroizing::new([0; HMAC_KEY_LEN]) };
        let (master, hmac) = message.split_at(len);
        keys.master[..len].copy_from_slice(master);
        keys.hmac.copy_from_slice(hmac);
        Ok(keys)
    }

    /// The suite of the keys.
    #[must_use]
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// The cipher of blocks with this salt.
    pub(crate) fn cipher(&self, salt: &[u8; SALT_LEN]) -> Cipher {
        let mut key = Zeroizing::new([0; MAX_KEY_LEN]);
        let len = self.suite.key_len();
        Hkdf::<Sha512>::new(None, &self.master[..len])
            .expand(salt, &mut key[..len])
            .expect("HKDF gives far more than a key");
        Cipher::new(self.suite, &key)
    }

    /// HMAC-SHA512 of the parts, one after the other.
    pub(crate) fn hmac<'a>(&self, parts: impl IntoIterator<Item = &'a [u8]>) -> [u8; 64] {
        let mut mac = Hmac::<Sha512>::new_from_slice(self.hmac.as_ref()).expect("HMAC takes any key");
        for part in parts {
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }

    /// Checks a block that is authenticated but not encrypted.
    pub(crate) fn check_hmac(&self, data: &[u8], mac: &[u8; MAC_LEN]) -> Result<(), BlockError> {
        let found = self.hmac([data]);
        if bool::from(found[..MAC_LEN].ct_eq(mac)) { Ok(()) } else { Err(BlockError::Unauthentic) }
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").field("suite", &self.suite).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for WrappingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WrappingKey")
    }
}
