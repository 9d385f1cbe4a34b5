//! Which object a file of an imported directory became: how a later import knows a file that was renamed.
//!
//! Entries are hints. An object is taken for the file only if it still has the generation noted, so an entry that was
//! written by an import that came to nothing, or is older than a rollback, does no harm.

use crate::catalog::{DatasetId, keys};
use crate::codec::Fields;
use crate::datasets::Datasets;
use crate::error::DatasetError;

const VERSION: u8 = 1;

/// A file where it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceFile {
    /// Its device, 0 for that of the directory that is imported: device numbers do not outlive a reboot.
    pub device: u64,
    /// Its inode number.
    pub inode: u64,
}

/// What it became.
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
    /// What a file became, if an import noted it.
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

    /// Notes what files became, in the open txg.
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

    /// How many files are noted, as far as `most`.
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

    /// Forgets the entries that `keep` does not want, a few thousand in a txg hold.
    ///
    /// # Errors
    /// What `keep` returns; when the pool cannot be written.
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
