//! Encryption roots: the datasets whose keys open encrypted datasets.
//!
//! Each encrypted dataset has its own keys. They are wrapped by the key of its *encryption root*, which is the dataset
//! itself or the dataset that it inherits from (`DSL_CRYPTO_KEY_ROOT_DDOBJ`, `module/zfs/dsl_crypt.c`). A stream does
//! not contain the encryption root. A package says which datasets are roots, and the receiver derives the rest.

use super::{Catalog, DatasetId, PropertyKind, keys};
use crate::codec::Fields;
use crate::datasets::Change;
use crate::error::DatasetError;
use crate::name::NESTING_MAX;

const VERSION: u8 = 1;

fn encode(root: DatasetId) -> Vec<u8> {
    let mut out = vec![VERSION];
    out.extend_from_slice(&root.0.to_le_bytes());
    out
}

pub(crate) fn decode(bytes: &[u8]) -> Result<DatasetId, DatasetError> {
    let mut fields = Fields::new("encryption root", bytes);
    fields.version(VERSION)?;
    let root = DatasetId(fields.u64()?);
    fields.finish()?;
    Ok(root)
}

impl Catalog {
    /// The dataset whose key opens an encrypted dataset: the dataset itself, unless it inherits its key. Has no meaning
    /// for datasets without encryption.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn encryption_root(&self, id: DatasetId) -> Result<DatasetId, DatasetError> {
        let mut root = id;
        // A root may later become a dataset that inherits from another one.
        for _ in 0..=NESTING_MAX {
            match self.meta.get(&keys::key_root(root))? {
                Some(entry) => root = decode(&entry.value)?,
                None => return Ok(root),
            }
        }
        Err(DatasetError::corrupt(format!("dataset {}", id.0), "its encryption roots go round in a circle"))
    }

    /// The location of an encryption root's key, from the property `keylocation`; `prompt` if it is not set.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn key_location(&self, root: DatasetId) -> Result<String, DatasetError> {
        let set = self.own_property(root, 0, "keylocation")?;
        Ok(set.map_or_else(|| "prompt".to_owned(), |(location, _)| location))
    }

    /// Name and key location of a dataset's encryption root.
    pub(super) fn key_of(&self, id: DatasetId) -> Result<(String, String), DatasetError> {
        let root = self.encryption_root(id)?;
        Ok((self.dataset_by_id(root)?.name, self.key_location(root)?))
    }
}

impl Change<'_> {
    /// Makes an encrypted dataset inherit its key from `root`. If that is the dataset itself, it becomes an encryption
    /// root.
    pub(crate) fn set_encryption_root(&self, id: DatasetId, root: DatasetId) -> Result<(), DatasetError> {
        if id == root {
            return self.delete(&keys::key_root(id));
        }
        self.put(&keys::key_root(id), &encode(root))
    }

    /// Makes everything that inherited its key from `old` inherit from `new` (`dsl_dataset_promote_crypt_sync`). `new`
    /// is a clone that replaces `old` as the root, including for `old` itself.
    pub(crate) fn move_encryption_root(&self, old: DatasetId, new: DatasetId) -> Result<(), DatasetError> {
        let catalog = self.catalog();
        let inherits = |id| Ok::<_, DatasetError>(id != old && catalog.encryption_root(id)? == old);
        if catalog.encryption_root(old)? != old || !inherits(new)? {
            return Ok(());
        }
        let prefix = [keys::KEY_ROOT];
        for item in catalog.meta().range(&prefix, keys::after(&prefix).as_deref()) {
            let (key, entry) = item?;
            let id = DatasetId(keys::number(&key, 1)?);
            if decode(&entry.value)? == old && id != new {
                self.set_encryption_root(id, new)?;
            }
        }
        self.set_encryption_root(new, new)?;
        self.set_encryption_root(old, new)?;
        self.move_key_location(old, new)
    }

    /// Moves the key location, because only roots have one.
    fn move_key_location(&self, old: DatasetId, new: DatasetId) -> Result<(), DatasetError> {
        let catalog = self.catalog();
        for kind in [PropertyKind::Local, PropertyKind::Received] {
            if let Some(location) = catalog.stored_property(old, 0, kind, "keylocation")? {
                self.delete(&keys::property(old, 0, kind.code(), "keylocation"))?;
                self.set_property(new, 0, kind, "keylocation", &location)?;
            }
        }
        Ok(())
    }
}
