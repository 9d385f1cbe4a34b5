//! The ciphers for sealing a pool.

use aes_gcm_siv::Aes256GcmSiv;
use chacha20poly1305::XChaCha20Poly1305;
use chacha20poly1305::aead::{AeadInOut, KeyInit};
use zeroize::{Zeroize, Zeroizing};

use super::locked::Locked;

/// Position of the suite's bits in a compression byte. The bits below are the compression. Suite 0 means not sealed.
pub(crate) const SUITE_SHIFT: u8 = 6;

/// Length of a tag, bytes.
pub(super) const TAG_LEN: usize = 16;
/// Length of the longest nonce, bytes.
const NONCE_MAX: usize = 24;

/// An authenticated cipher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Suite {
    /// XChaCha20-Poly1305 (draft-irtf-cfrg-xchacha).
    #[default]
    XChaCha20Poly1305,
    /// AES-256-GCM-SIV (RFC 8452).
    Aes256GcmSiv,
}

impl Suite {
    /// All suites.
    pub const ALL: [Suite; 2] = [Suite::XChaCha20Poly1305, Suite::Aes256GcmSiv];

    /// The user's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Suite::XChaCha20Poly1305 => "xchacha20-poly1305",
            Suite::Aes256GcmSiv => "aes-256-gcm-siv",
        }
    }

    /// The suite with this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|suite| suite.name() == name)
    }

    pub(crate) fn id(self) -> u8 {
        match self {
            Suite::XChaCha20Poly1305 => 1,
            Suite::Aes256GcmSiv => 2,
        }
    }

    pub(crate) fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|suite| suite.id() == id)
    }

    /// Its bits in the compression byte of pointers and headers.
    pub(crate) fn bits(self) -> u8 {
        self.id() << SUITE_SHIFT
    }

    pub(super) fn nonce_len(self) -> usize {
        match self {
            Suite::XChaCha20Poly1305 => NONCE_MAX,
            Suite::Aes256GcmSiv => 12,
        }
    }

    /// The maximum of [`overhead`](Self::overhead).
    pub(crate) const OVERHEAD_MAX: u32 = 24 + 16;

    /// By how many bytes a sealed block is longer than its payload.
    pub(crate) const fn overhead(self) -> u32 {
        match self {
            Suite::XChaCha20Poly1305 => 24 + 16,
            Suite::Aes256GcmSiv => 12 + 16,
        }
    }
}

/// A cipher with its key.
pub(super) enum Cipher {
    XChaCha(Locked<XChaCha20Poly1305>),
    GcmSiv(Locked<Aes256GcmSiv>),
}

impl Cipher {
    pub(super) fn new(suite: Suite, key: &Zeroizing<[u8; 32]>) -> Self {
        match suite {
            Suite::XChaCha20Poly1305 => Self::XChaCha(Locked::new(XChaCha20Poly1305::new((&**key).into()))),
            Suite::Aes256GcmSiv => Self::GcmSiv(Locked::new(Aes256GcmSiv::new((&**key).into()))),
        }
    }

    /// Encrypts in place. Returns `None` if the nonce does not have the suite's length, or the data is too long.
    pub(super) fn seal(&self, nonce: &[u8], ad: &[u8], data: &mut [u8]) -> Option<[u8; TAG_LEN]> {
        match self {
            Self::XChaCha(cipher) => {
                let nonce: &[u8; 24] = nonce.try_into().ok()?;
                cipher.encrypt_inout_detached(nonce.into(), ad, data.into()).ok().map(Into::into)
            }
            Self::GcmSiv(cipher) => {
                let nonce: &[u8; 12] = nonce.try_into().ok()?;
                cipher.encrypt_inout_detached(nonce.into(), ad, data.into()).ok().map(Into::into)
            }
        }
    }

    /// Decrypts in place, and returns whether the data is authentic. Data that is not authentic is erased.
    #[must_use]
    pub(super) fn open(&self, nonce: &[u8], ad: &[u8], data: &mut [u8], tag: &[u8; TAG_LEN]) -> bool {
        let opened = match self {
            Self::XChaCha(cipher) => <&[u8; 24]>::try_from(nonce).is_ok_and(|nonce| {
                cipher.decrypt_inout_detached(nonce.into(), ad, data.into(), tag.into()).is_ok()
            }),
            Self::GcmSiv(cipher) => <&[u8; 12]>::try_from(nonce).is_ok_and(|nonce| {
                cipher.decrypt_inout_detached(nonce.into(), ad, data.into(), tag.into()).is_ok()
            }),
        };
        if !opened {
            data.zeroize();
        }
        opened
    }
}
