//! Extended attributes in file lists. Each different set is sent once. For a long value only a digest is sent, and the
//! value when the receiver asks for it.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read, Write};

use md5::{Digest, Md5};
use sha2::Sha256;

use crate::wire::{ReadWire, WriteWire};

/// The longest value that is sent in a list, in bytes (`MAX_FULL_DATUM`).
pub const VALUE_MAX: usize = 32;

/// The attributes that are sent: all outside the namespace "system". ACLs are there, and have a form of their own. The
/// number in a request for a value is the position in this order, starting at one.
pub fn wire_attributes(
    attributes: &BTreeMap<Vec<u8>, Vec<u8>>,
) -> impl Iterator<Item = (&Vec<u8>, &Vec<u8>)> {
    attributes.iter().filter(|(name, _)| !name.starts_with(b"system."))
}

/// The digest of a set without attributes, which most files have. It is not computed.
const NONE: [u8; 32] = [0; 32];

/// The sets that were sent so far, by their digest.
#[derive(Debug, Default)]
pub(super) struct XattrCache(HashMap<[u8; 32], u32>);

fn digest_of(attributes: &BTreeMap<Vec<u8>, Vec<u8>>) -> [u8; 32] {
    if wire_attributes(attributes).next().is_none() {
        return NONE;
    }
    let mut digest = Sha256::new();
    for (name, value) in wire_attributes(attributes) {
        digest.update((name.len() as u64).to_le_bytes());
        digest.update(name);
        digest.update((value.len() as u64).to_le_bytes());
        digest.update(value);
    }
    digest.finalize().into()
}

impl XattrCache {
    pub(super) fn write(
        &mut self,
        attributes: &BTreeMap<Vec<u8>, Vec<u8>>,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let next = self.0.len() as u32;
        let number = *self.0.entry(digest_of(attributes)).or_insert(next);
        if number != next {
            return out.write_varint(number + 1);
        }
        out.write_varint(0)?;
        out.write_varint(wire_attributes(attributes).count() as u32)?;
        for (name, value) in wire_attributes(attributes) {
            out.write_varint(name.len() as u32 + 1)?;
            out.write_varint(value.len() as u32)?;
            out.write_all(name)?;
            out.write_u8(0)?;
            if value.len() > VALUE_MAX {
                out.write_all(&Md5::digest(value))?;
            } else {
                out.write_all(value)?;
            }
        }
        Ok(())
    }
}

/// The most attributes of a file, and the longest name with its zero byte (`XATTR_NAME_MAX`).
const COUNT_MAX: usize = 1 << 16;
const NAME_MAX: usize = 256;
/// The longest value that may be announced, in bytes. `XATTR_SIZE_MAX` is much smaller.
const LEN_MAX: usize = 1 << 24;

/// What is known of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// The value.
    Whole(Vec<u8>),
    /// Its MD5 digest.
    Digest([u8; 16]),
    /// Its MD5 digest. The value was requested, which can be done only once.
    Asked([u8; 16]),
}

/// A received attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedXattr {
    /// The number in a request for its value, starting at one.
    pub number: u32,
    /// Its name.
    pub name: Vec<u8>,
    /// The length of its value, in bytes.
    pub len: usize,
    /// What is known of its value.
    pub value: Value,
}

impl ReceivedXattr {
    /// Whether the value of the attribute is `other`.
    pub fn is(&self, other: &[u8]) -> bool {
        other.len() == self.len
            && match &self.value {
                Value::Whole(value) => value == other,
                Value::Digest(digest) | Value::Asked(digest) => digest[..] == Md5::digest(other)[..],
            }
    }
}

/// Reads a set of attributes. Those in the namespace "system", which a sender does not send, are left out.
///
/// # Errors
/// When the set is invalid.
pub(super) fn read_set(from: &mut impl Read) -> io::Result<Vec<ReceivedXattr>> {
    let invalid = |what| io::Error::new(io::ErrorKind::InvalidData, what);
    let number = |value: i32, most: usize| {
        let value = usize::try_from(value).ok().filter(|value| *value <= most);
        value.ok_or_else(|| invalid("an attribute of impossible size"))
    };
    let count = number(from.read_varint()?, COUNT_MAX)?;
    let mut set = Vec::new();
    for at in 0..count {
        let name_len = number(from.read_varint()?, NAME_MAX)?;
        let len = number(from.read_varint()?, LEN_MAX)?;
        let mut name = from.read_bytes(name_len, NAME_MAX)?;
        if name.pop() != Some(0) || name.is_empty() || name.contains(&0) {
            return Err(invalid("an attribute without a name"));
        }
        let value = if len > VALUE_MAX {
            let mut digest = [0; 16];
            from.read_exact(&mut digest)?;
            Value::Digest(digest)
        } else {
            Value::Whole(from.read_bytes(len, VALUE_MAX)?)
        };
        if !name.starts_with(b"system.") {
            set.push(ReceivedXattr { number: at as u32 + 1, name, len, value });
        }
    }
    Ok(set)
}
