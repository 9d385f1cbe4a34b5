//! The keys that a user gave. They are tried on all key data.

use std::sync::Arc;

use zeroize::Zeroizing;

use crate::decrypt::Decryptor;
use crate::error::KeyError;
use crate::key_format::KeyFormat;
use crate::keydata::Keydata;
use crate::keys::{Keys, WrappingKey};

/// Maximum number of opened and derived keys that are remembered.
const REMEMBERED: usize = 64;

/// The inputs of a wrapping key.
type Source = (usize, KeyFormat, u64, u32);

/// Key material, and the keys that were opened with it. All of it is wiped from memory when dropped.
#[derive(Default)]
pub struct Keyring {
    materials: Vec<Zeroizing<Vec<u8>>>,
    /// Cached because PBKDF2 is slow, and all datasets below one encryption root have the same wrapping key.
    derived: Vec<(Source, WrappingKey)>,
    opened: Vec<(Keydata, Arc<Decryptor>)>,
}

impl Keyring {
    /// No keys.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a key: the contents of the file that `keylocation` names, or what the user typed.
    pub fn add(&mut self, material: Zeroizing<Vec<u8>>) {
        self.materials.push(material);
    }

    /// Whether there are no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.materials.is_empty()
    }

    /// Opens the keys of `keydata` with the first key that fits.
    ///
    /// # Errors
    /// No key fits: [`KeyError::Incorrect`], or the reason why none can be a key of that format.
    pub fn open(&mut self, keydata: &Keydata) -> Result<Arc<Decryptor>, KeyError> {
        let same = |other: &Keydata| {
            (other.suite, other.guid, other.master_key, other.hmac_key, other.iv, other.mac)
                == (
                    keydata.suite,
                    keydata.guid,
                    keydata.master_key,
                    keydata.hmac_key,
                    keydata.iv,
                    keydata.mac,
                )
        };
        if let Some((_, decryptor)) = self.opened.iter().find(|(of, _)| same(of)) {
            return Ok(decryptor.clone());
        }
        let mut refused = None;
        for index in 0..self.materials.len() {
            match self.try_one(index, keydata) {
                Ok(keys) => {
                    let decryptor = Arc::new(Decryptor::new(keys));
                    if self.opened.len() >= REMEMBERED {
                        self.opened.remove(0);
                    }
                    self.opened.push((keydata.clone(), decryptor.clone()));
                    return Ok(decryptor);
                }
                // The error that a key does not fit is more useful than the error that another key is too short.
                Err(KeyError::Incorrect) => refused = Some(KeyError::Incorrect),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        Err(refused.unwrap_or(KeyError::Incorrect))
    }

    fn try_one(&mut self, index: usize, keydata: &Keydata) -> Result<Keys, KeyError> {
        let source = (index, keydata.format, keydata.salt, keydata.iterations);
        if let Some((_, wrapping)) = self.derived.iter().find(|(of, _)| *of == source) {
            return Keys::unwrap(keydata, wrapping);
        }
        let material = self.materials.get(index).ok_or(KeyError::Incorrect)?;
        let wrapping = WrappingKey::from_material(keydata, material)?;
        let keys = Keys::unwrap(keydata, &wrapping);
        if self.derived.len() >= REMEMBERED {
            self.derived.remove(0);
        }
        self.derived.push((source, wrapping));
        keys
    }
}

impl std::fmt::Debug for Keyring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keyring").field("keys", &self.materials.len()).finish_non_exhaustive()
    }
}
