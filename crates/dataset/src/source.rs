//! The objects of imported files by their inode: with them a later import recognizes renamed files.
//!
//! Entries are hints. An object is used for a file only if it still has the noted generation. So an entry of an
//! abandoned import, or from before a rollback, does no harm.

use crate::catalog::{DatasetId, keys};
use crate::codec::Fields;
use crate::datasets::Datasets;
use crate::error::DatasetError;

const VERSION: u8 = 1;

/// A file in the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceFile {
    /// Its device; 0 for the device of the imported directory, because device numbers can change at a reboot.
    pub device: u64,
    /// Its inode number.
    pub inode: u64,
}

/// The object of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceObject {
    /// Object number.
    pub object: u64,
    /// The object's generation (`ZPL_GEN`).
    pub generation: u64,
}

impl SourceObject {
    fn encode(self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend_from_slice(&self.object.to_le_bytes());
        out.extend_from_slice(&self.generation.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DatasetError> {
        let mut fields = Fields::new("source file", bytes);
        fields.version(VERSION)?;
        let found = Self { object: fields.u64()?, generation: fields.u64()? };
        fields.finish()?;
        Ok(found)
    }
}

impl Datasets {
    /// The object of a file, if an import noted it.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn source_object(
        &self,
        id: DatasetId,
        file: SourceFile,
    ) -> Result<Option<SourceObject>, DatasetError> {
        let entry = self.pool().meta().get(&keys::source(id, file.device, file.inode))?;
        entry.map(|entry| SourceObject::decode(&entry.value)).transpose()
    }

    /// Notes the objects of files, in the open txg.
    ///
    /// # Errors
    /// When the pool cannot be written.
    pub fn note_sources(
        &self,
        id: DatasetId,
        files: &[(SourceFile, SourceObject)],
    ) -> Result<(), DatasetError> {
        let hold = self.pool().begin()?;
        for (file, object) in files {
            let key = keys::source(id, file.device, file.inode);
            self.pool().meta().insert(&hold, &key, &object.encode())?;
        }
        Ok(())
    }

    /// Number of noted files, counted up to `most`.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn count_sources(&self, id: DatasetId, most: u64) -> Result<u64, DatasetError> {
        let prefix = keys::Key::new(keys::SOURCE).id(id).done();
        let catalog = self.catalog();
        let mut count = 0;
        for item in catalog.meta().range(&prefix, keys::after(&prefix).as_deref()) {
            item?;
            count += 1;
            if count >= most {
                break;
            }
        }
        Ok(count)
    }

    /// Removes the entries for which `keep` returns false, a few thousand with each hold.
    ///
    /// # Errors
    /// The error of `keep`; when the pool cannot be written.
    pub fn prune_sources<E: From<DatasetError>>(
        &self,
        id: DatasetId,
        mut keep: impl FnMut(SourceFile, SourceObject) -> Result<bool, E>,
    ) -> Result<(), E> {
        const BATCH: usize = 4096;
        let prefix = keys::Key::new(keys::SOURCE).id(id).done();
        let catalog = self.catalog();
        let mut gone = Vec::new();
        for item in catalog.meta().range(&prefix, keys::after(&prefix).as_deref()) {
            let (key, entry) = item.map_err(DatasetError::from)?;
            let file = SourceFile { device: keys::number(&key, 9)?, inode: keys::number(&key, 17)? };
            if !keep(file, SourceObject::decode(&entry.value)?)? {
                gone.push(key);
            }
            if gone.len() >= BATCH {
                self.forget_sources(&std::mem::take(&mut gone))?;
            }
        }
        Ok(self.forget_sources(&gone)?)
    }

    fn forget_sources(&self, keys: &[Vec<u8>]) -> Result<(), DatasetError> {
        let hold = self.pool().begin_free()?;
        for key in keys {
            self.pool().meta().remove(&hold, key)?;
        }
        Ok(())
    }
}
