//! ZFS's dataset properties: names, types, values, texts.
//!
//! Everything here is pure: a table of what exists ([`table`]), the reading of what a person typed
//! ([`Property::parse`]), the check of what a stream brought ([`Property::check`]) and the texts that `zfs get` and
//! `zfs list` print ([`Property::format`]). Which value a dataset has, and where it comes from, is the business of
//! the layer above.
//!
//! As in the DSL a value is a number or a text, nothing else: index properties (`compression=lz4`) are kept and sent as
//! the number of their index. Sources: OpenZFS `module/zcommon/zfs_prop.c` (`zfs_prop_init`),
//! `lib/libzfs/libzfs_dataset.c` (`zfs_valid_proplist`, `zfs_prop_get`), `lib/libzfs/libzfs_util.c`
//! (`zprop_parse_value`), release 2.3 with what 2.4 adds.

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

/// Whether a dataset is made with this property, by its canonical name, so that what is received into it later does not change
/// it: how its content is laid out and how its names are compared.
#[must_use]
pub fn is_made_with(name: &str) -> bool {
    name == "version" || find(name).is_some_and(|known| known.attribute == Attribute::Once)
}

/// Longest value of a text property in bytes (`ZAP_MAXVALUELEN`, which counts the closing zero).
pub const VALUE_LEN_MAX: usize = 8 * 1024 - 1;
/// Longest name of a user property in bytes (`ZAP_MAXNAMELEN`, which counts the closing zero).
pub const NAME_LEN_MAX: usize = 255;
/// Largest `recordsize` and `volblocksize` in bytes (`SPA_MAXBLOCKSIZE`).
pub const BLOCK_SIZE_MAX: u64 = 16 * 1024 * 1024;
/// Smallest `recordsize` and `volblocksize` in bytes (`SPA_MINBLOCKSIZE`).
pub const BLOCK_SIZE_MIN: u64 = 512;
/// What `refreservation=auto` is until the volume's own size takes its place (as in libzfs).
pub const REFRESERVATION_AUTO: u64 = u64::MAX;

/// What a property holds, on disk and in a stream.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// A size, a count, a time in seconds since 1970, hundredths of a ratio, or the number of an index value.
    Number(u64),
    /// A text; always UTF-8 as nvlists are.
    Text(String),
}

impl Value {
    /// The number, if it is one.
    #[must_use]
    pub fn as_number(&self) -> Option<u64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(_) => None,
        }
    }

    /// The text, if it is one.
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
