//! Reads the content of the pool.

use std::rc::Rc;

use snowmelt_zpl::Objects;

use super::model::{Content, File, Filesystem, Model};
use super::{FIRST_OBJECT, OBJECTS};
use crate::catalog::Catalog;
use crate::datasets::Datasets;
use crate::error::DatasetError;
use crate::objset::Objset;

/// Longer than any written object.
const LONGEST: usize = 32 << 10;

/// Everything that is visible. A partly received snapshot is not visible.
pub(super) fn observe(datasets: &Datasets) -> Result<Model, DatasetError> {
    let catalog = datasets.catalog();
    let mut model = Model::default();
    for dataset in catalog.descendants(catalog.root()?)? {
        if dataset.record.inconsistent {
            continue;
        }
        let mut filesystem = Filesystem { head: content(&catalog.head(&dataset)?)?, ..Filesystem::default() };
        for snapshot in catalog.snapshots(&dataset) {
            let snapshot = snapshot?;
            let content = content(&catalog.objset(&snapshot))?;
            filesystem.snapshots.push((snapshot.record.name.clone(), Rc::new(content)));
        }
        filesystem.origin = origin(&catalog, dataset.record.origin)?;
        model.filesystems.insert(dataset.name, filesystem);
    }
    Ok(model)
}

fn origin(catalog: &Catalog, id: Option<crate::SnapshotId>) -> Result<Option<String>, DatasetError> {
    id.map(|id| Ok(catalog.snapshot_by_id(id)?.full_name())).transpose()
}

/// The objects of an objset that the simulation created.
pub(super) fn content(objset: &Objset) -> Result<Content, DatasetError> {
    let failed = |error: snowmelt_zpl::SourceError| DatasetError::corrupt(objset.name(), error.to_string());
    let mut content = Content::new();
    for object in FIRST_OBJECT..FIRST_OBJECT + OBJECTS {
        let Some(dnode) = Objects::dnode(objset, object).map_err(failed)? else { continue };
        let mut file = File { block_size: dnode.block_size, data: vec![0; LONGEST], spill: None };
        Objects::read(objset, object, 0, &mut file.data).map_err(failed)?;
        file.trim();
        file.spill = Objects::spill(objset, object).map_err(failed)?;
        content.insert(object, Rc::new(file));
    }
    Ok(content)
}
