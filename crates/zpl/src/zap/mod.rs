//! The ZFS attribute processor (ZAP): maps from names to small arrays of integers, stored in an object.
//!
//! A *micro* ZAP is a single block of fixed slots for short names and single 64-bit values (`micro`). A *fat* ZAP is
//! an extendible hash table of leaf blocks (`fat`, `leaf`). Directories, the master node, SA registries and the
//! delete queue are ZAPs. Sources: `include/sys/zap_impl.h`, `zap_leaf.h` and `module/zfs/zap*.c` of OpenZFS 2.3.
//!
//! Entries are listed in the order of (hash, collision differentiator). This order is stable. A [`Cursor`] kept from
//! one listing resumes another listing after the same entry, even if entries were added or removed meanwhile.

mod edit;
mod fat;
mod hash;
mod leaf;
mod micro;
#[cfg(test)]
mod tests;

use crate::bytes::Endian;
use crate::error::ZplError;
use crate::normalize::NormFlags;
use crate::source::Objects;

pub(crate) use edit::NAME_MAX;
pub use edit::{EditEntry, KeptZap, NewZap, ZapEdit};
pub use hash::Hashing;

/// `ZBT_LEAF`: first word of a leaf block.
pub(crate) const ZBT_LEAF: u64 = 1 << 63;
/// `ZBT_HEADER`: first word of a fat ZAP's header block.
pub(crate) const ZBT_HEADER: u64 = (1 << 63) + 1;
/// `ZBT_MICRO`: first word of a micro ZAP.
pub(crate) const ZBT_MICRO: u64 = (1 << 63) + 3;

/// Largest ZAP block that this crate accepts: `SPA_MAXBLOCKSIZE`.
const BLOCK_MAX: u32 = 16 << 20;

/// A position in the order of entries, just before the entry with this hash and collision differentiator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Cursor {
    /// Hash of the entry's name; its low bits are always zero.
    pub hash: u64,
    /// Distinguishes entries with the same hash.
    pub cd: u64,
}

impl Cursor {
    /// Before every entry.
    pub const START: Self = Self { hash: 0, cd: 0 };
    /// After every entry.
    pub const END: Self = Self { hash: u64::MAX, cd: u64::MAX };

    /// The position just after the entry at this position.
    pub(crate) fn after(self) -> Self {
        Self { hash: self.hash, cd: self.cd.saturating_add(1) }
    }

    /// Encodes the cursor as one integer like `zap_cursor_serialize`, with the differentiator above the hash. The
    /// result fits in a `d_off`.
    pub fn serialize(self, hash_bits: u32) -> u64 {
        if self == Self::END {
            return u64::MAX;
        }
        let bits = hash_bits.clamp(1, 63);
        (self.hash >> (64 - bits)) | self.cd.min((1 << (64 - bits)) - 1) << bits
    }

    /// The inverse of [`Cursor::serialize`].
    pub fn deserialize(serialized: u64, hash_bits: u32) -> Self {
        if serialized == u64::MAX {
            return Self::END;
        }
        let bits = hash_bits.clamp(1, 63);
        Self { hash: serialized << (64 - bits), cd: serialized >> bits }
    }
}

/// The name of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key {
    /// A string, without its terminating NUL.
    Name(Vec<u8>),
    /// An array of integers (`ZAP_FLAG_UINT64_KEY`).
    Words(Vec<u64>),
}

impl Key {
    /// The name's bytes, or `None` for a key of integers.
    pub fn as_name(&self) -> Option<&[u8]> {
        match self {
            Self::Name(name) => Some(name),
            Self::Words(_) => None,
        }
    }
}

/// The value of an entry: integers, all of one size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A single 64-bit integer, the usual case.
    One(u64),
    /// Any other array.
    Many {
        /// Bytes of one integer: 1, 2, 4 or 8.
        integer_size: u8,
        /// The integers, each widened to 64 bits.
        integers: Vec<u64>,
    },
}

impl Value {
    /// The value if it is exactly one 64-bit integer.
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Self::One(value) => Some(*value),
            Self::Many { .. } => None,
        }
    }

    /// The integers, of any size.
    pub fn integers(&self) -> &[u64] {
        match self {
            Self::One(value) => std::slice::from_ref(value),
            Self::Many { integers, .. } => integers,
        }
    }
}

/// One entry of a ZAP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub key: Key,
    /// The value of the entry.
    pub value: Value,
    /// Its position in the order of entries.
    pub at: Cursor,
}

/// How [`Zap::lookup`] compares names (`matchtype_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Matching {
    /// Byte for byte.
    Exact,
    /// After the normalisation and case folding of the ZAP.
    Normalized,
    /// After normalisation, but case-sensitive.
    NormalizedCaseSensitive,
}

enum Form {
    Micro(micro::Micro),
    Fat(fat::Fat),
}

/// A ZAP object opened for reading.
pub struct Zap<'o, O: Objects + ?Sized> {
    objects: &'o O,
    object: u64,
    form: Form,
}

impl<'o, O: Objects + ?Sized> Zap<'o, O> {
    /// Reads the first block of `object` and detects the kind of ZAP.
    ///
    /// # Errors
    /// If the object does not exist, cannot be read or is no ZAP.
    pub fn open(objects: &'o O, object: u64) -> Result<Self, ZplError> {
        let dnode =
            objects.dnode(object).map_err(ZplError::source(object))?.ok_or(ZplError::NoObject { object })?;
        let size = dnode.block_size;
        if !(512..=BLOCK_MAX).contains(&size) {
            return Err(ZplError::corrupt(object, format!("a ZAP with blocks of {size} bytes")));
        }
        let mut block = vec![0; size as usize];
        objects.read(object, 0, &mut block).map_err(ZplError::source(object))?;
        let (kind, endian) = block_type(&block);
        let form = match kind {
            ZBT_MICRO => Form::Micro(micro::Micro::new(block, endian)),
            ZBT_HEADER => Form::Fat(fat::Fat::new(object, block, endian)?),
            other => {
                return Err(ZplError::corrupt(object, format!("{other:#x} is no type of a ZAP block")));
            }
        };
        Ok(Self { objects, object, form })
    }

    /// Object number.
    pub fn object(&self) -> u64 {
        self.object
    }

    /// Whether the ZAP is a micro ZAP.
    pub fn is_micro(&self) -> bool {
        matches!(self.form, Form::Micro(_))
    }

    /// How names are hashed: salt, flags and normalisation.
    pub fn hashing(&self) -> &Hashing {
        match &self.form {
            Form::Micro(micro) => &micro.hashing,
            Form::Fat(fat) => &fat.hashing,
        }
    }

    /// Number of entries. It is counted in a micro ZAP, and read from the header of a fat one.
    pub fn count(&self) -> u64 {
        match &self.form {
            Form::Micro(micro) => micro.count(),
            Form::Fat(fat) => fat.entries,
        }
    }

    /// Finds the entry called `name`.
    ///
    /// If several names are equal after normalisation, the one with the lowest differentiator is returned, as in ZFS.
    ///
    /// # Errors
    /// If blocks cannot be read or are inconsistent.
    pub fn lookup(&self, name: &[u8], matching: Matching) -> Result<Option<Entry>, ZplError> {
        let wanted = hash::Wanted::new(self.hashing(), name, matching);
        match &self.form {
            Form::Micro(micro) => Ok(micro.lookup(&wanted)),
            Form::Fat(fat) => fat.lookup(self.objects, &wanted),
        }
    }

    /// The value of `name`, which must be one 64-bit integer.
    ///
    /// # Errors
    /// Like [`Zap::lookup`], and if the value is not one 64-bit integer.
    pub fn lookup_u64(&self, name: &str) -> Result<Option<u64>, ZplError> {
        match self.lookup(name.as_bytes(), Matching::Exact)? {
            None => Ok(None),
            Some(entry) => match entry.value.as_u64() {
                Some(value) => Ok(Some(value)),
                None => Err(ZplError::corrupt(self.object, format!("{name} is not one 64-bit integer"))),
            },
        }
    }

    /// All entries from `cursor` on, in order.
    pub fn entries(&self, cursor: Cursor) -> Entries<'_, 'o, O> {
        Entries { zap: self, next: Some(cursor), batch: Vec::new().into_iter() }
    }
}

/// Iterator over the entries of a ZAP, in the order of (hash, collision differentiator). It ends after the first error.
pub struct Entries<'z, 'o, O: Objects + ?Sized> {
    zap: &'z Zap<'o, O>,
    /// Where the next batch begins, or `None` at the end.
    next: Option<Cursor>,
    batch: std::vec::IntoIter<Entry>,
}

impl<O: Objects + ?Sized> Iterator for Entries<'_, '_, O> {
    type Item = Result<Entry, ZplError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.batch.next() {
                return Some(Ok(entry));
            }
            let from = self.next.take()?;
            match &self.zap.form {
                Form::Micro(micro) => self.batch = micro.sorted_from(from).into_iter(),
                Form::Fat(fat) => match fat.leaf_from(self.zap.objects, from) {
                    Ok((batch, next)) => {
                        self.batch = batch.into_iter();
                        self.next = next;
                    }
                    Err(error) => return Some(Err(error)),
                },
            }
        }
    }
}

/// The type in the first word of a ZAP block, and the byte order in which the type is valid.
fn block_type(block: &[u8]) -> (u64, Endian) {
    let little = Endian::Little.u64(block, 0).unwrap_or(0);
    if matches!(little.swap_bytes(), ZBT_LEAF | ZBT_HEADER | ZBT_MICRO) {
        (little.swap_bytes(), Endian::Big)
    } else {
        (little, Endian::Little)
    }
}

/// The normalisation flags of a ZAP header.
fn norm_flags(raw: u64) -> NormFlags {
    NormFlags::from_bits(raw as u32)
}
