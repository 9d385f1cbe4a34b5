//! Tables of values that many files share: type, permissions, owner, group and filesystem, and sets of extended
//! attributes (docs/format/index.md, "Tables").

use std::collections::{BTreeMap, HashMap};

use super::IndexError;
use super::cursor::{Cursor, put_bytes, put_varint};

/// The longest name and value of an extended attribute in Linux, in bytes.
const XATTR_NAME_MAX: usize = 255;
const XATTR_VALUE_MAX: usize = 64 << 10;
/// The most extended attributes of a file. Their names have at most 64 KiB in all.
const XATTRS_MAX: u64 = 32 << 10;

/// The extended attributes of a file.
pub type XattrSet = BTreeMap<Vec<u8>, Vec<u8>>;

/// The values that files of the same kind, owner and filesystem share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Shared {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub device: u64,
}

impl Shared {
    fn read(cursor: &mut Cursor<'_>) -> Result<Self, IndexError> {
        Ok(Self {
            mode: cursor.varint32()?,
            uid: cursor.varint32()?,
            gid: cursor.varint32()?,
            device: cursor.varint()?,
        })
    }

    fn write(&self, out: &mut Vec<u8>) {
        for number in [self.mode.into(), self.uid.into(), self.gid.into(), self.device] {
            put_varint(number, out);
        }
    }
}

/// Reads the table of shared values.
pub fn read_shared(mut cursor: Cursor<'_>, end: usize) -> Result<Vec<Shared>, IndexError> {
    let count = cursor.varint32()?;
    let mut found = Vec::new();
    for _ in 0..count {
        found.push(Shared::read(&mut cursor)?);
    }
    if cursor.at() == end { Ok(found) } else { Err(cursor.corrupt("a table of another length")) }
}

/// Reads the table of attribute sets. Returns the offset of each.
pub fn read_sets(mut cursor: Cursor<'_>, end: usize) -> Result<Vec<usize>, IndexError> {
    let count = cursor.varint32()?;
    let mut found = Vec::new();
    for _ in 0..count {
        found.push(cursor.at());
        read_set(&mut cursor)?;
    }
    if cursor.at() == end { Ok(found) } else { Err(cursor.corrupt("a table of another length")) }
}

/// Reads one set.
pub fn read_set(cursor: &mut Cursor<'_>) -> Result<XattrSet, IndexError> {
    let count = cursor.varint()?;
    if count > XATTRS_MAX {
        return Err(cursor.corrupt("too many extended attributes"));
    }
    let mut set = XattrSet::new();
    for _ in 0..count {
        let name = cursor.bytes(XATTR_NAME_MAX)?.to_vec();
        let value = cursor.bytes(XATTR_VALUE_MAX)?.to_vec();
        set.insert(name, value);
    }
    Ok(set)
}

/// Both tables of an index that is being built.
#[derive(Debug, Default)]
pub struct Tables {
    shared: Vec<Shared>,
    shared_numbers: HashMap<Shared, u32>,
    /// The encoded sets.
    sets: Vec<Vec<u8>>,
    set_numbers: HashMap<Vec<u8>, u32>,
}

fn number<K: Clone + Eq + std::hash::Hash>(table: &mut Vec<K>, numbers: &mut HashMap<K, u32>, key: K) -> u32 {
    *numbers.entry(key).or_insert_with_key(|key| {
        table.push(key.clone());
        table.len() as u32 - 1
    })
}

impl Tables {
    /// The tables of an existing index, which can grow.
    pub fn new(shared: &[Shared], sets: Vec<Vec<u8>>) -> Self {
        let numbered = |at: usize| at as u32;
        Self {
            shared_numbers: shared.iter().enumerate().map(|(at, shared)| (*shared, numbered(at))).collect(),
            set_numbers: sets.iter().enumerate().map(|(at, set)| (set.clone(), numbered(at))).collect(),
            shared: shared.to_vec(),
            sets,
        }
    }

    /// The number of shared values.
    pub fn shared(&mut self, shared: Shared) -> u32 {
        number(&mut self.shared, &mut self.shared_numbers, shared)
    }

    /// The number of a set.
    pub fn set(&mut self, set: &XattrSet) -> u32 {
        let mut encoded = Vec::new();
        put_varint(set.len() as u64, &mut encoded);
        for (name, value) in set {
            put_bytes(name, &mut encoded);
            put_bytes(value, &mut encoded);
        }
        number(&mut self.sets, &mut self.set_numbers, encoded)
    }

    /// The shared values, for reading listings that were encoded with these tables.
    pub fn all_shared(&self) -> &[Shared] {
        &self.shared
    }

    pub fn set_count(&self) -> usize {
        self.sets.len()
    }

    pub fn write_shared(&self, out: &mut Vec<u8>) {
        put_varint(self.shared.len() as u64, out);
        self.shared.iter().for_each(|shared| shared.write(out));
    }

    pub fn write_sets(&self, out: &mut Vec<u8>) {
        put_varint(self.sets.len() as u64, out);
        self.sets.iter().for_each(|set| out.extend_from_slice(set));
    }
}
