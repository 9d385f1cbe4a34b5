//! Names of damaged objects, in the format of zpool-status(8): `tank/home:/path`, `tank/home:<0x5>`,
//! `<metadata>:<0x0>`.

use std::collections::BTreeSet;

use snowmelt_dataset::{Catalog, Damaged, DatasetId, Kind};
use snowmelt_fs::{path_of, paths_within};
use snowmelt_zpl::Filesystem;

use crate::error::Result;
use crate::pools::Session;
use crate::report;

/// Maximum number of objects without a name that are listed separately for one damaged node.
const OBJECTS_MAX: u64 = 64;

/// Everything that is known to be damaged in a pool, in order, each once.
///
/// # Errors
/// When the pool's records cannot be read.
pub fn names(session: &Session) -> Result<Vec<String>> {
    let attempt = format!("cannot read '{}'", session.name());
    let damaged = session.datasets.damaged().map_err(report::failed(&attempt))?;
    let catalog = session.datasets.catalog();
    let mut out = BTreeSet::new();
    for damaged in damaged {
        match damaged {
            Damaged::Metadata => _ = out.insert("<metadata>:<0x0>".to_owned()),
            Damaged::Unknown(owner, object) => _ = out.insert(format!("<{owner:#x}>:<{object:#x}>")),
            Damaged::Objects { name, dataset, txg, first, last } => {
                let paths = paths(&catalog, (dataset, txg), first, last);
                if paths.is_empty() {
                    // Of very many, the first stands for all.
                    let last = if last.saturating_sub(first) < OBJECTS_MAX { last } else { first };
                    out.extend((first..=last).map(|object| format!("{name}:<{object:#x}>")));
                }
                out.extend(paths.iter().map(|path| format!("{name}:{}", String::from_utf8_lossy(path))));
            }
        }
    }
    Ok(out.into_iter().collect())
}

/// Paths of damaged objects, as far as they can be found in the rest of the filesystem.
fn paths(catalog: &Catalog, (dataset, txg): (DatasetId, u64), first: u64, last: u64) -> Vec<Vec<u8>> {
    let Ok(objset) = catalog.objset_of(dataset, txg) else { return Vec::new() };
    if objset.kind() == Kind::Volume || objset.is_encrypted() {
        return Vec::new();
    }
    let Ok(fs) = Filesystem::open(objset) else { return Vec::new() };
    match first == last {
        true => path_of(&fs, first).into_iter().collect(),
        false => paths_within(&fs, first..=last),
    }
}
