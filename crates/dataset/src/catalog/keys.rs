//! Keys of this layer in the pool's meta tree (docs/format/dataset.md). All numbers are big-endian. Thus keys are
//! ordered by id, and the snapshots of a dataset by txg.

use snowmelt_pool::Txg;

use super::DatasetId;
use crate::error::DatasetError;

pub(crate) const DATASET: u8 = 0x10;
pub(crate) const CHILD: u8 = 0x11;
pub(crate) const SNAPSHOT: u8 = 0x12;
pub(crate) const SNAPSHOT_NAME: u8 = 0x13;
pub(crate) const GUID: u8 = 0x14;
pub(crate) const PROPERTY: u8 = 0x15;
pub(crate) const HOLD: u8 = 0x16;
pub(crate) const BOOKMARK: u8 = 0x17;
pub(crate) const CLONE: u8 = 0x18;
pub(crate) const RECEIVE: u8 = 0x19;
pub(crate) const HISTORY: u8 = 0x1a;
pub(crate) const COUNTER: u8 = 0x1b;
pub(crate) const KEY_DATA: u8 = 0x1c;
pub(crate) const KEY_ROOT: u8 = 0x1d;
pub(crate) const SOURCE: u8 = 0x1e;
pub(crate) const LISTING: u8 = 0x1f;

/// Builds a key from its parts.
pub(crate) struct Key(Vec<u8>);

impl Key {
    pub(crate) fn new(prefix: u8) -> Self {
        Self(vec![prefix])
    }

    pub(crate) fn id(mut self, id: DatasetId) -> Self {
        self.0.extend_from_slice(&id.0.to_be_bytes());
        self
    }

    pub(crate) fn u64(mut self, number: u64) -> Self {
        self.0.extend_from_slice(&number.to_be_bytes());
        self
    }

    pub(crate) fn u8(mut self, byte: u8) -> Self {
        self.0.push(byte);
        self
    }

    pub(crate) fn text(mut self, text: &str) -> Self {
        self.0.extend_from_slice(text.as_bytes());
        self
    }

    pub(crate) fn done(self) -> Vec<u8> {
        self.0
    }
}

pub(crate) fn dataset(id: DatasetId) -> Vec<u8> {
    Key::new(DATASET).id(id).done()
}

pub(crate) fn child(parent: DatasetId, name: &str) -> Vec<u8> {
    Key::new(CHILD).id(parent).text(name).done()
}

pub(crate) fn snapshot(id: DatasetId, txg: Txg) -> Vec<u8> {
    Key::new(SNAPSHOT).id(id).u64(txg).done()
}

pub(crate) fn snapshot_name(id: DatasetId, name: &str) -> Vec<u8> {
    Key::new(SNAPSHOT_NAME).id(id).text(name).done()
}

pub(crate) fn guid(guid: u64, id: DatasetId, txg: Txg) -> Vec<u8> {
    Key::new(GUID).u64(guid).id(id).u64(txg).done()
}

/// `txg` 0 means the dataset itself, others mean its snapshots.
pub(crate) fn property(id: DatasetId, txg: Txg, kind: u8, name: &str) -> Vec<u8> {
    Key::new(PROPERTY).id(id).u64(txg).u8(kind).text(name).done()
}

pub(crate) fn hold(id: DatasetId, txg: Txg, tag: &str) -> Vec<u8> {
    Key::new(HOLD).id(id).u64(txg).text(tag).done()
}

pub(crate) fn bookmark(id: DatasetId, name: &str) -> Vec<u8> {
    Key::new(BOOKMARK).id(id).text(name).done()
}

pub(crate) fn clone(origin: DatasetId, txg: Txg, clone: DatasetId) -> Vec<u8> {
    Key::new(CLONE).id(origin).u64(txg).id(clone).done()
}

pub(crate) fn receive(id: DatasetId) -> Vec<u8> {
    Key::new(RECEIVE).id(id).done()
}

pub(crate) fn history(sequence: u64) -> Vec<u8> {
    Key::new(HISTORY).u64(sequence).done()
}

pub(crate) fn counter(name: &str) -> Vec<u8> {
    Key::new(COUNTER).text(name).done()
}

/// `txg` 0 means the dataset's head.
pub(crate) fn key_data(id: DatasetId, txg: Txg) -> Vec<u8> {
    Key::new(KEY_DATA).id(id).u64(txg).done()
}

/// Only for encrypted datasets that are not encryption roots.
pub(crate) fn key_root(id: DatasetId) -> Vec<u8> {
    Key::new(KEY_ROOT).id(id).done()
}

pub(crate) fn source(id: DatasetId, device: u64, inode: u64) -> Vec<u8> {
    Key::new(SOURCE).id(id).u64(device).u64(inode).done()
}

/// Object 0 is the record of the content that the other entries describe.
pub(crate) fn listing(id: DatasetId, directory: u64) -> Vec<u8> {
    Key::new(LISTING).id(id).u64(directory).done()
}

/// Whether the entry of a key does not describe a dataset, snapshot or property: a line of the history, or a counter.
pub(crate) fn is_bookkeeping(key: &[u8]) -> bool {
    matches!(key.first(), Some(&(HISTORY | COUNTER)))
}

/// The first key after every key that begins with `prefix`.
pub(crate) fn after(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last != u8::MAX {
            end.push(last + 1);
            return Some(end);
        }
    }
    None
}

/// Reads the big-endian number at `at` of a key.
pub(crate) fn number(key: &[u8], at: usize) -> Result<u64, DatasetError> {
    let bytes = key.get(at..at + 8).and_then(|bytes| <[u8; 8]>::try_from(bytes).ok());
    bytes.map(u64::from_be_bytes).ok_or_else(|| DatasetError::corrupt("meta tree", "a key is cut short"))
}

/// The text from `at` to the end of a key.
pub(crate) fn text(key: &[u8], at: usize) -> Result<String, DatasetError> {
    let bytes = key.get(at..).unwrap_or_default();
    String::from_utf8(bytes.to_vec())
        .map_err(|_| DatasetError::corrupt("meta tree", "a key's name is not UTF-8"))
}
