//! ZFS's dataset properties: names, types, values and texts.
//!
//! This module does no I/O. It contains the table of properties (`table`), the parser for values typed by users
//! ([`Property::parse`]), the check of values from streams ([`Property::check`]), and the texts that `zfs get` and `zfs
//! list` print ([`Property::format`]). The layer above decides which value a dataset has, and where it comes from.
//!
//! As in the DSL, a value is a number or a text. Index properties (`compression=lz4`) are stored and sent as the number
//! of their index. Sources: OpenZFS `module/zcommon/zfs_prop.c` (`zfs_prop_init`), `lib/libzfs/libzfs_dataset.c`
//! (`zfs_valid_proplist`, `zfs_prop_get`), `lib/libzfs/libzfs_util.c` (`zprop_parse_value`), release 2.3 with the
//! additions of 2.4.

mod error;
mod format;
mod index;
mod name;
mod number;
mod parse;
mod peer;
mod source;
mod stored;
mod table;

#[cfg(test)]
mod tests;

pub use error::PropertyError;
pub use format::{TextStyle, format_bytes, format_number, format_ratio, format_time, format_time_seconds};
pub use index::IndexValue;
pub use name::{PropertyName, is_user_property};
pub use number::parse_size;
pub use parse::{Assignment, Target, validate, validate_stored};
pub use peer::PeerProperties;
pub use source::Source;
pub use table::{Attribute, DefaultValue, Kind, Property, TextRule, Types, all, find};

/// Whether a property, given by its canonical name, is fixed when a dataset is created, so that later streams do not
/// change it. Such properties decide how content is laid out and how names are compared.
#[must_use]
pub fn is_made_with(name: &str) -> bool {
    name == "version" || find(name).is_some_and(|known| known.attribute == Attribute::Once)
}

/// Maximal length of a text property in bytes (`ZAP_MAXVALUELEN` without the terminating zero).
pub const VALUE_LEN_MAX: usize = 8 * 1024 - 1;
/// Maximal length of a user property's name in bytes (`ZAP_MAXNAMELEN` without the terminating zero).
pub const NAME_LEN_MAX: usize = 255;
/// Largest `recordsize` and `volblocksize` in bytes (`SPA_MAXBLOCKSIZE`).
pub const BLOCK_SIZE_MAX: u64 = 16 * 1024 * 1024;
/// Smallest `recordsize` and `volblocksize` in bytes (`SPA_MINBLOCKSIZE`).
pub const BLOCK_SIZE_MIN: u64 = 512;
/// The value of `refreservation=auto` until it is replaced by the volume's size (as in libzfs).
pub const REFRESERVATION_AUTO: u64 = u64::MAX;

/// The value of a property on disk and in a stream.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// A size, a count, a time in seconds since 1970, a ratio in hundredths, or the number of an index value.
    Number(u64),
    /// A text. It is always UTF-8, like nvlists.
    Text(String),
}

impl Value {
    /// The number, if it is a number.
    #[must_use]
    pub fn as_number(&self) -> Option<u64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(_) => None,
        }
    }

    /// The text, if it is a text.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Number(_) => None,
            Self::Text(text) => Some(text),
        }
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}
