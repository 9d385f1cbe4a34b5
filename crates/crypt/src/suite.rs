//! The encryption suites (`enum zio_encrypt`, `zio_crypt_table` in `module/os/linux/zfs/zio_crypt.c`) and their
//! ciphers.
//!
//! No primitive is implemented here. AES-128-GCM and AES-256-GCM come from ring, the others from RustCrypto.

use aes::{Aes128, Aes192, Aes256};
use aes_gcm::AesGcm;
use aes_gcm::aead::consts::{U12, U16};
use aes_gcm::aead::{AeadInOut, KeyInit};
use ccm::Ccm;
use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use zeroize::Zeroize;

use crate::error::BlockError;

/// Length of an initialisation vector (`ZIO_DATA_IV_LEN`, `WRAPPING_IV_LEN`), in bytes.
pub const IV_LEN: usize = 12;
/// Length of a MAC (`ZIO_DATA_MAC_LEN`, `WRAPPING_MAC_LEN`), in bytes.
pub const MAC_LEN: usize = 16;
/// Length of the longest key, which is also that of a wrapping key (`MASTER_KEY_MAX_LEN`, `WRAPPING_KEY_LEN`).
pub const MAX_KEY_LEN: usize = 32;

/// Algorithm, mode and key length: the value of the property `encryption`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Suite {
    Aes128Ccm,
    Aes192Ccm,
    Aes256Ccm,
    Aes128Gcm,
    Aes192Gcm,
    Aes256Gcm,
}

impl Suite {
    /// All suites, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::Aes128Ccm,
        Self::Aes192Ccm,
        Self::Aes256Ccm,
        Self::Aes128Gcm,
        Self::Aes192Gcm,
        Self::Aes256Gcm,
    ];

    /// The suite with this number (`enum zio_encrypt`), if it exists. inherit, on and off are not suites.
    #[must_use]
    pub fn from_id(id: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|suite| suite.id() == id)
    }

    /// Its number (`enum zio_encrypt`).
    #[must_use]
    pub const fn id(self) -> u64 {
        match self {
            Self::Aes128Ccm => 3,
            Self::Aes192Ccm => 4,
            Self::Aes256Ccm => 5,
            Self::Aes128Gcm => 6,
            Self::Aes192Gcm => 7,
            Self::Aes256Gcm => 8,
        }
    }

    /// Its name as a property value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aes128Ccm => "aes-128-ccm",
            Self::Aes192Ccm => "aes-192-ccm",
            Self::Aes256Ccm => "aes-256-ccm",
            Self::Aes128Gcm => "aes-128-gcm",
            Self::Aes192Gcm => "aes-192-gcm",
            Self::Aes256Gcm => "aes-256-gcm",
        }
    }

    /// Length of its keys, in bytes.
    #[must_use]
    pub const fn key_len(self) -> usize {
        match self {
            Self::Aes128Ccm | Self::Aes128Gcm => 16,
            Self::Aes192Ccm | Self::Aes192Gcm => 24,
            Self::Aes256Ccm | Self::Aes256Gcm => 32,
        }
    }

    /// The suite that wraps the dataset's keys: always AES-256, in the mode of this suite (`zio_crypt_key_wrap`: the
    /// wrapping key has 32 bytes whatever the suite).
    #[must_use]
    pub const fn wrapping(self) -> Self {
        match self {
            Self::Aes128Ccm | Self::Aes192Ccm | Self::Aes256Ccm => Self::Aes256Ccm,
            Self::Aes128Gcm | Self::Aes192Gcm | Self::Aes256Gcm => Self::Aes256Gcm,
        }
    }
}

/// A suite with a key.
pub(crate) enum Cipher {
    Ring(Box<LessSafeKey>),
    Gcm192(Box<AesGcm<Aes192, U12>>),
    Ccm128(Box<Ccm<Aes128, U16, U12>>),
    Ccm192(Box<Ccm<Aes192, U16, U12>>),
    Ccm256(Box<Ccm<Aes256, U16, U12>>),
}

impl Cipher {
    /// The cipher of a suite with the first [`Suite::key_len`] bytes of `key`.
    pub(crate) fn new(suite: Suite, key: &[u8; MAX_KEY_LEN]) -> Self {
        let (k16, k24) = (first::<16>(key), first::<24>(key));
        match suite {
            Suite::Aes128Gcm => Self::Ring(Box::new(ring_key(&AES_128_GCM, k16))),
            Suite::Aes256Gcm => Self::Ring(Box::new(ring_key(&AES_256_GCM, key))),
            Suite::Aes192Gcm => Self::Gcm192(Box::new(AesGcm::new(k24.into()))),
            Suite::Aes128Ccm => Self::Ccm128(Box::new(Ccm::new(k16.into()))),
            Suite::Aes192Ccm => Self::Ccm192(Box::new(Ccm::new(k24.into()))),
            Suite::Aes256Ccm => Self::Ccm256(Box::new(Ccm::new(key.into()))),
        }
    }

    /// Decrypts in place. CCM with this IV length is limited to one byte less than 16 MiB. Longer data is not
    /// authentic.
    ///
    /// # Errors
    /// The MAC does not match. `data` is then set to zeros, so that unauthentic data cannot be used.
    pub(crate) fn open(
        &self,
        iv: &[u8; IV_LEN],
        aad: &[u8],
        data: &mut [u8],
        mac: &[u8; MAC_LEN],
    ) -> Result<(), BlockError> {
        let opened = match self {
            Self::Ring(key) => {
                let nonce = Nonce::assume_unique_for_key(*iv);
                let tag = Tag::from(*mac);
                key.open_in_place_separate_tag(nonce, Aad::from(aad), tag, data, 0..).is_ok()
            }
            Self::Gcm192(cipher) => open(&**cipher, iv, aad, data, mac),
            Self::Ccm128(cipher) => open(&**cipher, iv, aad, data, mac),
            Self::Ccm192(cipher) => open(&**cipher, iv, aad, data, mac),
            Self::Ccm256(cipher) => open(&**cipher, iv, aad, data, mac),
        };
        if opened {
            Ok(())
        } else {
            data.zeroize();
            Err(BlockError::Unauthentic)
        }
    }
}

fn open<C: AeadInOut<NonceSize = U12, TagSize = U16>>(
    cipher: &C,
    iv: &[u8; IV_LEN],
    aad: &[u8],
    data: &mut [u8],
    mac: &[u8; MAC_LEN],
) -> bool {
    cipher.decrypt_inout_detached(iv.into(), aad, data.into(), mac.into()).is_ok()
}

/// The first bytes of a key.
fn first<const N: usize>(key: &[u8; MAX_KEY_LEN]) -> &[u8; N] {
    const { assert!(N <= MAX_KEY_LEN) };
    key.first_chunk().expect("N is no more than the key's length")
}

fn ring_key(algorithm: &'static ring::aead::Algorithm, key: &[u8]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(algorithm, key).expect("the key is as long as the algorithm wants"))
}

#[cfg(test)]
pub(crate) mod tests {
    use aes_gcm::Aes256Gcm;
    use proptest::prelude::*;

    use super::*;

    /// Encrypts with the suite, for tests of decryption.
    pub(crate) fn seal(
        suite: Suite,
        key: &[u8; 32],
        iv: &[u8; 12],
        aad: &[u8],
        data: &mut [u8],
    ) -> [u8; MAC_LEN] {
        let (k16, k24) = (first::<16>(key), first::<24>(key));
        let tag = match suite {
            Suite::Aes128Gcm => {
                AesGcm::<Aes128, U12>::new(k16.into()).encrypt_inout_detached(iv.into(), aad, data.into())
            }
            Suite::Aes192Gcm => {
                AesGcm::<Aes192, U12>::new(k24.into()).encrypt_inout_detached(iv.into(), aad, data.into())
            }
            Suite::Aes256Gcm => {
                Aes256Gcm::new(key.into()).encrypt_inout_detached(iv.into(), aad, data.into())
            }
            Suite::Aes128Ccm => {
                Ccm::<Aes128, U16, U12>::new(k16.into()).encrypt_inout_detached(iv.into(), aad, data.into())
            }
            Suite::Aes192Ccm => {
                Ccm::<Aes192, U16, U12>::new(k24.into()).encrypt_inout_detached(iv.into(), aad, data.into())
            }
            Suite::Aes256Ccm => {
                Ccm::<Aes256, U16, U12>::new(key.into()).encrypt_inout_detached(iv.into(), aad, data.into())
            }
        };
        tag.unwrap().into()
    }

    proptest! {
        // The two GCM implementations check each other: RustCrypto seals, ring opens.
        #[test]
        fn what_is_sealed_opens_and_nothing_else(
            suite in prop::sample::select(Suite::ALL.to_vec()),
            key: [u8; 32], iv: [u8; 12],
            aad in prop::collection::vec(any::<u8>(), 0..100),
            plain in prop::collection::vec(any::<u8>(), 1..300),
            bit: prop::sample::Index,
        ) {
            let mut data = plain.clone();
            let mac = seal(suite, &key, &iv, &aad, &mut data);
            let cipher = Cipher::new(suite, &key);
            let mut opened = data.clone();
            cipher.open(&iv, &aad, &mut opened, &mac).unwrap();
            prop_assert_eq!(&opened, &plain);

            let bit = bit.index((data.len() + MAC_LEN + IV_LEN + aad.len()) * 8);
            let mut all = [data.as_slice(), &mac, &iv, &aad].concat();
            all[bit / 8] ^= 1 << (bit % 8);
            let (data, rest) = all.split_at_mut(plain.len());
            let (mac, rest) = rest.split_first_chunk().unwrap();
            let (iv, aad) = rest.split_first_chunk().unwrap();
            prop_assert_eq!(cipher.open(iv, aad, data, mac), Err(BlockError::Unauthentic));
        }
    }

    #[test]
    fn suites_have_the_numbers_of_openzfs() {
        for (index, suite) in Suite::ALL.into_iter().enumerate() {
            assert_eq!(suite.id(), index as u64 + 3);
            assert_eq!(Suite::from_id(suite.id()), Some(suite));
            assert!(suite.name().contains(&(suite.key_len() * 8).to_string()));
        }
        assert_eq!(Suite::from_id(2), None);
        assert_eq!(Suite::from_id(9), None);
    }
}
