//! Stream feature flags: the features that a receiver must understand to receive a stream.
//!
//! They are in the version word of the BEGIN record, above the two bits of the header type (`drr_versioninfo` and
//! `DMU_BACKUP_FEATURE_*` in `include/sys/zfs_ioctl.h`, OpenZFS 2.3).

use std::fmt;

/// A set of stream features from a BEGIN record, shifted right past the header type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Features(pub u64);

macro_rules! features {
    ($($(#[$doc:meta])* $name:ident = $bit:literal;)*) => {
        impl Features {
            $($(#[$doc])* pub const $name: Self = Self(1 << $bit);)*

            const NAMED: &'static [(Self, &'static str)] = &[$((Self::$name, stringify!($name)),)*];

            /// All features that this crate knows.
            pub const KNOWN: Self = Self(0 $(| 1 << $bit)*);
        }
    };
}

features! {
    /// WRITE_BYREF records occur (`zfs send -D`, removed in OpenZFS 2.0).
    DEDUP = 0;
    /// The deduplication keys came from the blocks' own strong checksums.
    DEDUPPROPS = 1;
    /// System attributes and SPILL records occur: set for every file system since ZPL version 5.
    SA_SPILL = 2;
    /// WRITE_EMBEDDED records occur (`-e`).
    EMBED_DATA = 16;
    /// Payloads may be compressed with LZ4. Set with `-e` and `-c`, whatever the algorithm in use.
    LZ4 = 17;
    /// Blocks of more than 128 KiB occur (`-L`).
    LARGE_BLOCKS = 19;
    /// This stream continues an interrupted one (`-t`). BEGIN's nvlist contains the place.
    RESUMING = 20;
    /// Parts of the dataset are left out (`--redact`).
    REDACTED = 21;
    /// WRITE payloads are compressed as they were on disk (`-c`).
    COMPRESSED = 22;
    /// Dnodes of more than 512 bytes occur.
    LARGE_DNODE = 23;
    /// The blocks of an encrypted dataset are sent as they are on disk (`-w`).
    RAW = 24;
    /// zstd-compressed blocks occur.
    ZSTD = 25;
    /// The package carries user holds (`-h`).
    HOLDS = 26;
    /// An incremental stream with LARGE_BLOCKS may follow a stream without it.
    SWITCH_TO_LARGE_BLOCKS = 27;
    /// Names of more than 255 bytes occur.
    LONGNAME = 28;
    /// Micro ZAPs of more than 128 KiB occur.
    LARGE_MICROZAP = 29;
}

impl Features {
    /// No features.
    pub const NONE: Self = Self(0);

    /// Whether all features of `other` are in this set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any feature of `other` is in this set.
    #[must_use]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The features of both sets.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// This set without the features of `other`.
    #[must_use]
    pub const fn difference(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The features that this crate does not know.
    #[must_use]
    pub const fn unknown(self) -> Self {
        self.difference(Self::KNOWN)
    }

    /// The names of the known features in this set, in bit order, without their `DMU_BACKUP_FEATURE_` prefix.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMED.iter().filter(move |(f, _)| self.contains(*f)).map(|(_, name)| *name)
    }
}

impl std::ops::BitOr for Features {
    type Output = Self;
    fn bitor(self, rhs: Self) -> Self {
        self.union(rhs)
    }
}

impl std::ops::BitOrAssign for Features {
    fn bitor_assign(&mut self, rhs: Self) {
        *self = self.union(rhs);
    }
}

impl fmt::Display for Features {
    /// Names separated by `|`, then unknown bits in hexadecimal; `-` when empty.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        let mut separate = |f: &mut fmt::Formatter<'_>| {
            let sep = if first { "" } else { "|" };
            first = false;
            f.write_str(sep)
        };
        for name in self.names() {
            separate(f)?;
            f.write_str(name)?;
        }
        if self.unknown() != Self::NONE {
            separate(f)?;
            write!(f, "{:#x}", self.unknown().0)?;
        }
        if self.0 == 0 { f.write_str("-") } else { Ok(()) }
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Features({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_unknown_bits() {
        let f = Features::SA_SPILL | Features::LZ4 | Features(1 << 40);
        assert_eq!(f.to_string(), "SA_SPILL|LZ4|0x10000000000");
        assert_eq!(f.unknown(), Features(1 << 40));
        assert_eq!(Features::NONE.to_string(), "-");
    }

    #[test]
    fn known_is_the_mask_of_openzfs_plus_dedup() {
        // DMU_BACKUP_FEATURE_MASK of OpenZFS 2.3 is 0x3ffb0004.
        assert_eq!(Features::KNOWN.0, 0x3ffb_0004 | 3);
    }
}
