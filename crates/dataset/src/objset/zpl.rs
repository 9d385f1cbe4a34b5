//! An objset as the source of the ZPL codec.

use snowmelt_zpl::{Dnode as ZplDnode, Objects, SourceError};

use super::view::Objset;
use super::{Dnode, ObjsetKey};
use crate::error::DatasetError;

impl Objects for Objset {
    fn dnode(&self, object: u64) -> Result<Option<ZplDnode>, SourceError> {
        let Some(dnode) = Objset::dnode(self, object).map_err(at(object, 0))? else { return Ok(None) };
        let has_spill = dnode.bonus_type != 0
            && self
                .view()
                .get(&ObjsetKey::Spill { object }.encode())
                .map_err(DatasetError::from)
                .map_err(at(object, 0))?
                .is_some();
        let Dnode { object_type, bonus_type, checksum, compress, slots, block_size, ref bonus, .. } = *dnode;
        Ok(Some(ZplDnode {
            object,
            object_type,
            bonus_type,
            block_size,
            slots,
            has_spill,
            checksum,
            compress,
            bonus: bonus.clone(),
        }))
    }

    fn read(&self, object: u64, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        Objset::read(self, object, offset, buf).map_err(at(object, offset))
    }

    fn spill(&self, object: u64) -> Result<Option<Vec<u8>>, SourceError> {
        Ok(Objset::spill(self, object).map_err(at(object, 0))?.map(|bytes| bytes.to_vec()))
    }

    fn next_data(&self, object: u64, offset: u64) -> Result<Option<u64>, SourceError> {
        Objset::next_data(self, object, offset).map_err(at(object, offset))
    }

    fn next_hole(&self, object: u64, offset: u64) -> Result<Option<u64>, SourceError> {
        Objset::next_hole(self, object, offset).map_err(at(object, offset))
    }
}

/// Classifies errors by what the filesystem can do about them.
fn at(object: u64, offset: u64) -> impl Fn(DatasetError) -> SourceError {
    move |error| match error {
        DatasetError::Encrypted { root, .. } => SourceError::Encrypted { encryption_root: root },
        DatasetError::Pool(ref pool) if pool.is_corruption() => {
            SourceError::Unreadable { object, offset, source: Box::new(error) }
        }
        other => SourceError::Other(Box::new(other)),
    }
}
