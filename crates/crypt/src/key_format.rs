//! The formats in which a user gives a wrapping key.

/// The format of a wrapping key: the property `keyformat` (`zfs_keyformat_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyFormat {
    /// 32 bytes.
    Raw,
    /// 64 hexadecimal digits.
    Hex,
    /// A line from which PBKDF2 derives the key.
    Passphrase,
}

impl KeyFormat {
    /// Its name as a property value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Hex => "hex",
            Self::Passphrase => "passphrase",
        }
    }

    pub(crate) const fn capitalized(self) -> &'static str {
        match self {
            Self::Raw => "Raw",
            Self::Hex => "Hex",
            Self::Passphrase => "Passphrase",
        }
    }
}
