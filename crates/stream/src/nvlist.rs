//! Name-value lists: the dictionaries of ZFS (`module/nvpair/nvpair.c`, `include/sys/nvpair.h`).
//!
//! They are packed in one of two encodings. A header of four bytes states which:
//!
//! - XDR: big-endian. `libzfs` uses it in packages.
//! - native: the memory image of the machine that packed it, in either byte order. The kernel uses it in BEGIN records
//!   and resume tokens.
//!
//! Unpacking and packing again gives the same bytes.

mod cursor;
mod native;
mod print;
mod xdr;

#[cfg(test)]
mod tests;

use crate::byte_order::ByteOrder;
pub use print::Indented;

/// Maximum depth of nested lists. ZFS's own lists have four levels.
pub const MAX_DEPTH: usize = 32;
/// Maximum number of pairs in one packed list, including nested lists.
pub const MAX_PAIRS: usize = 4 << 20;
/// Maximum length of a packed list, in bytes.
pub const MAX_PACKED: usize = 64 << 20;

const ENCODING_NATIVE: u8 = 0;
const ENCODING_XDR: u8 = 1;

/// An ordered list of named values. Names may occur more than once.
#[derive(Clone, Debug, PartialEq)]
pub struct NvList {
    /// `nvl_nvflag`: [`NvList::UNIQUE_NAME`] in nearly all lists.
    pub flags: u32,
    /// The pairs, in order.
    pub pairs: Vec<(String, NvValue)>,
}

impl Default for NvList {
    fn default() -> Self {
        Self::new()
    }
}

/// A value. Strings are bytes, because ZFS never checks that property values are UTF-8.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum NvValue {
    /// A name without a value. Its presence means true.
    Boolean,
    Byte(u8),
    Int16(i16),
    Uint16(u16),
    Int32(i32),
    Uint32(u32),
    Int64(i64),
    Uint64(u64),
    String(Vec<u8>),
    ByteArray(Vec<u8>),
    Int16Array(Vec<i16>),
    Uint16Array(Vec<u16>),
    Int32Array(Vec<i32>),
    Uint32Array(Vec<u32>),
    Int64Array(Vec<i64>),
    Uint64Array(Vec<u64>),
    StringArray(Vec<Vec<u8>>),
    /// Nanoseconds.
    Hrtime(i64),
    List(NvList),
    ListArray(Vec<NvList>),
    BooleanValue(bool),
    Int8(i8),
    Uint8(u8),
    BooleanArray(Vec<bool>),
    Int8Array(Vec<i8>),
    Uint8Array(Vec<u8>),
    Double(f64),
}

/// Why bytes are not a packed list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NvError {
    /// The bytes end before the list does.
    #[error("it ends early: {wanted} bytes wanted at offset {offset}, {left} left")]
    Truncated {
        /// Where.
        offset: usize,
        /// Number of bytes that the next item needs.
        wanted: u64,
        /// Number of bytes left.
        left: usize,
    },
    /// The header names an encoding that does not exist.
    #[error("unknown encoding {encoding}, byte order {order}")]
    Encoding {
        /// First byte.
        encoding: u8,
        /// Second byte.
        order: u8,
    },
    /// Only version 0 exists.
    #[error("unknown version {version} at offset {offset}")]
    Version {
        /// Where.
        offset: usize,
        /// The version.
        version: i32,
    },
    /// A `data_type_t` that does not exist.
    #[error("unknown type {kind} at offset {offset}")]
    Type {
        /// Where.
        offset: usize,
        /// The type.
        kind: i32,
    },
    /// A pair whose lengths, counts or contents contradict one another.
    #[error("bad {what} at offset {offset}")]
    Bad {
        /// Where.
        offset: usize,
        /// What.
        what: &'static str,
    },
    /// Nested too deeply, too many pairs, or too long.
    #[error("more than {max} {what}")]
    TooMuch {
        /// Of what.
        what: &'static str,
        /// The limit.
        max: usize,
    },
}

impl NvList {
    /// `NV_UNIQUE_NAME`: no name occurs twice.
    pub const UNIQUE_NAME: u32 = 1;

    /// An empty list with unique names.
    #[must_use]
    pub const fn new() -> Self {
        Self { flags: Self::UNIQUE_NAME, pairs: Vec::new() }
    }

    /// Unpacks a list. Its header states the encoding. Bytes after its end are ignored.
    ///
    /// # Errors
    /// The bytes are not a packed list, or it is beyond the limits of this module.
    pub fn unpack(bytes: &[u8]) -> Result<Self, NvError> {
        if bytes.len() > MAX_PACKED {
            return Err(NvError::TooMuch { what: "bytes", max: MAX_PACKED });
        }
        let (header, body) = bytes.split_first_chunk::<4>().ok_or(NvError::Truncated {
            offset: 0,
            wanted: 4,
            left: bytes.len(),
        })?;
        match *header {
            [ENCODING_XDR, ..] => xdr::unpack(body),
            [ENCODING_NATIVE, 1, ..] => native::unpack(body, ByteOrder::Little),
            [ENCODING_NATIVE, 0, ..] => native::unpack(body, ByteOrder::Big),
            [encoding, order, ..] => Err(NvError::Encoding { encoding, order }),
        }
    }

    /// Packs the list in XDR, as `libzfs` on a little-endian machine does.
    #[must_use]
    pub fn pack_xdr(&self) -> Vec<u8> {
        // The second byte is the packer's byte order, although XDR does not depend on it.
        let mut out = vec![ENCODING_XDR, 1, 0, 0];
        xdr::pack(self, &mut out);
        out
    }

    /// Packs the list in native encoding of this byte order.
    #[must_use]
    pub fn pack_native(&self, order: ByteOrder) -> Vec<u8> {
        let mut out = vec![ENCODING_NATIVE, u8::from(order == ByteOrder::Little), 0, 0];
        native::pack(self, order, &mut out);
        out
    }

    /// Packs the list in the encoding and byte order of `packed`. Native little-endian if `packed` has no valid header.
    #[must_use]
    pub fn pack_like(&self, packed: &[u8]) -> Vec<u8> {
        match packed.first_chunk() {
            Some([ENCODING_XDR, order]) => {
                let mut out = self.pack_xdr();
                out[1] = *order;
                out
            }
            Some([ENCODING_NATIVE, 0]) => self.pack_native(ByteOrder::Big),
            _ => self.pack_native(ByteOrder::Little),
        }
    }

    /// The number of pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there are no pairs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// The pairs in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &NvValue)> {
        self.pairs.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// The value of the first pair with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&NvValue> {
        self.pairs.iter().find(|(n, _)| n == name).map(|(_, value)| value)
    }

    /// Whether there is a pair with this name.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// A 64-bit number.
    #[must_use]
    pub fn get_u64(&self, name: &str) -> Option<u64> {
        match self.get(name)? {
            NvValue::Uint64(v) => Some(*v),
            _ => None,
        }
    }

    /// A string, if it is UTF-8.
    #[must_use]
    pub fn get_str(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.get_bytes(name)?).ok()
    }

    /// A string's bytes.
    #[must_use]
    pub fn get_bytes(&self, name: &str) -> Option<&[u8]> {
        match self.get(name)? {
            NvValue::String(v) => Some(v),
            _ => None,
        }
    }

    /// A nested list.
    #[must_use]
    pub fn get_list(&self, name: &str) -> Option<&NvList> {
        match self.get(name)? {
            NvValue::List(v) => Some(v),
            _ => None,
        }
    }

    /// An array of 64-bit numbers.
    #[must_use]
    pub fn get_u64_array(&self, name: &str) -> Option<&[u64]> {
        match self.get(name)? {
            NvValue::Uint64Array(v) => Some(v),
            _ => None,
        }
    }

    /// A byte or `uint8` array.
    #[must_use]
    pub fn get_u8_array(&self, name: &str) -> Option<&[u8]> {
        match self.get(name)? {
            NvValue::Uint8Array(v) | NvValue::ByteArray(v) => Some(v),
            _ => None,
        }
    }

    /// Whether a flag is set: a boolean without a value, or a boolean value that is true.
    #[must_use]
    pub fn get_flag(&self, name: &str) -> bool {
        matches!(self.get(name), Some(NvValue::Boolean | NvValue::BooleanValue(true)))
    }

    /// Adds a pair at the end. If names are unique, pairs with the same name are removed first.
    ///
    /// Names and strings are cut at their first NUL, because packed ones end there.
    pub fn insert(&mut self, name: impl Into<String>, value: impl Into<NvValue>) {
        let mut name = name.into();
        if let Some(nul) = name.find('\0') {
            name.truncate(nul);
        }
        if self.flags & Self::UNIQUE_NAME != 0 {
            self.remove(&name);
        }
        self.pairs.push((name, value.into()));
    }

    /// Removes all pairs with this name. Returns whether there were any.
    pub fn remove(&mut self, name: &str) -> bool {
        let before = self.pairs.len();
        self.pairs.retain(|(n, _)| n != name);
        self.pairs.len() != before
    }
}

impl NvValue {
    /// `data_type_t`.
    pub(crate) const fn kind(&self) -> i32 {
        match self {
            Self::Boolean => 1,
            Self::Byte(_) => 2,
            Self::Int16(_) => 3,
            Self::Uint16(_) => 4,
            Self::Int32(_) => 5,
            Self::Uint32(_) => 6,
            Self::Int64(_) => 7,
            Self::Uint64(_) => 8,
            Self::String(_) => 9,
            Self::ByteArray(_) => 10,
            Self::Int16Array(_) => 11,
            Self::Uint16Array(_) => 12,
            Self::Int32Array(_) => 13,
            Self::Uint32Array(_) => 14,
            Self::Int64Array(_) => 15,
            Self::Uint64Array(_) => 16,
            Self::StringArray(_) => 17,
            Self::Hrtime(_) => 18,
            Self::List(_) => 19,
            Self::ListArray(_) => 20,
            Self::BooleanValue(_) => 21,
            Self::Int8(_) => 22,
            Self::Uint8(_) => 23,
            Self::BooleanArray(_) => 24,
            Self::Int8Array(_) => 25,
            Self::Uint8Array(_) => 26,
            Self::Double(_) => 27,
        }
    }

    /// `nvp_value_elem`: the number of elements. 1 for single values, 0 for a boolean without a value.
    pub(crate) fn elements(&self) -> usize {
        match self {
            Self::Boolean => 0,
            Self::ByteArray(v) | Self::Uint8Array(v) => v.len(),
            Self::Int8Array(v) => v.len(),
            Self::Int16Array(v) => v.len(),
            Self::Uint16Array(v) => v.len(),
            Self::Int32Array(v) => v.len(),
            Self::Uint32Array(v) => v.len(),
            Self::Int64Array(v) => v.len(),
            Self::Uint64Array(v) => v.len(),
            Self::StringArray(v) => v.len(),
            Self::ListArray(v) => v.len(),
            Self::BooleanArray(v) => v.len(),
            _ => 1,
        }
    }

    /// Bytes that the value takes in memory (`i_get_value_size`). The `nvlist_t` of a nested list has 24.
    pub(crate) fn memory_len(&self) -> usize {
        match self {
            Self::Boolean => 0,
            Self::Byte(_) | Self::Int8(_) | Self::Uint8(_) => 1,
            Self::Int16(_) | Self::Uint16(_) => 2,
            Self::Int32(_) | Self::Uint32(_) | Self::BooleanValue(_) => 4,
            Self::Int64(_) | Self::Uint64(_) | Self::Hrtime(_) | Self::Double(_) => 8,
            Self::String(v) => string(v).len() + 1,
            Self::ByteArray(v) | Self::Uint8Array(v) => v.len(),
            Self::Int8Array(v) => v.len(),
            Self::Int16Array(v) => v.len() * 2,
            Self::Uint16Array(v) => v.len() * 2,
            Self::Int32Array(v) => v.len() * 4,
            Self::Uint32Array(v) => v.len() * 4,
            Self::BooleanArray(v) => v.len() * 4,
            Self::Int64Array(v) => v.len() * 8,
            Self::Uint64Array(v) => v.len() * 8,
            Self::StringArray(v) => v.iter().map(|s| 8 + string(s).len() + 1).sum(),
            Self::List(_) => 24,
            Self::ListArray(v) => v.len() * (8 + 24),
        }
    }
}

/// Size of a pair in memory (`NVP_SIZE_CALC`): header, name, value, each aligned to 8.
fn pair_memory_len(name: &str, value: &NvValue) -> usize {
    (16 + name.len() + 1).next_multiple_of(8) + value.memory_len().next_multiple_of(8)
}

/// The part of a string that can be packed: up to its first NUL.
fn string(bytes: &[u8]) -> &[u8] {
    bytes.split(|b| *b == 0).next().unwrap_or(bytes)
}

impl From<u64> for NvValue {
    fn from(v: u64) -> Self {
        Self::Uint64(v)
    }
}

impl From<&str> for NvValue {
    fn from(v: &str) -> Self {
        Self::String(v.as_bytes().to_vec())
    }
}

impl From<String> for NvValue {
    fn from(v: String) -> Self {
        Self::String(v.into_bytes())
    }
}

impl From<NvList> for NvValue {
    fn from(v: NvList) -> Self {
        Self::List(v)
    }
}

impl From<Vec<u64>> for NvValue {
    fn from(v: Vec<u64>) -> Self {
        Self::Uint64Array(v)
    }
}

impl FromIterator<(String, NvValue)> for NvList {
    fn from_iter<I: IntoIterator<Item = (String, NvValue)>>(pairs: I) -> Self {
        Self { flags: Self::UNIQUE_NAME, pairs: pairs.into_iter().collect() }
    }
}
