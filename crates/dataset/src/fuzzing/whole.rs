//! Forged pools with arbitrary records in their trees. All blocks and hashes are correct, as anyone who can write to a
//! pool's store can make them; only the content of decoded records is wrong.

use std::sync::Arc;

use snowmelt_zpl::Filesystem;

use crate::catalog::keys::{self, Key};
use crate::catalog::{Dataset, DatasetId, Snapshot};
use crate::datasets::{Change, Datasets};
use crate::error::DatasetError;
use crate::name::Name;
use crate::objset::Objset;
use crate::ops::clone::CloneOptions;
use crate::ops::create::CreateOptions;
use crate::ops::destroy::DestroyPlan;
use crate::ops::rename::RenameOptions;
use crate::ops::rollback::RollbackOptions;
use crate::ops::volume::NewVolume;
use crate::send::{SendFlags, SendPlan, Source};
use snowmelt_pool::{CheckOptions, Tree};

/// Numbers that may overflow, or have a special meaning.
const NUMBERS: [u64; 16] = [
    0,
    1,
    2,
    7,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    (1 << 40) - 1,
    1 << 40,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 4095,
    u64::MAX,
];
/// Maximal number of entries of a directory that are read, and of snapshots that are sent.
const LOOKED_AT: usize = 50;

/// Fills a new pool with some of everything that a pool can contain.
///
/// # Errors
/// When it cannot be written.
pub fn fill(datasets: &Arc<Datasets>) -> Result<(), DatasetError> {
    let options = CreateOptions::default();
    for name in ["tank/a", "tank/a/b"] {
        datasets.create_filesystem(name, &options)?;
    }
    let name = |text: &str| Name::parse(text).map_err(DatasetError::from);
    let volume = NewVolume { size: 1 << 20, block_size: 4096 };
    datasets.create_volume("tank/v", &volume, &options)?;
    for snapshot in ["tank/a@1", "tank/a/b@1", "tank/v@1", "tank/a@2"] {
        datasets.snapshot(&[name(snapshot)?], &[("a:b".to_owned(), "c".to_owned())])?;
    }
    datasets.bookmark(&name("tank/a@1")?, &name("tank/a#m")?)?;
    datasets.hold("tag", &[name("tank/a@1")?])?;
    datasets.clone_snapshot(&name("tank/a@2")?, "tank/c", &CloneOptions::default())?;
    let limits = [("quota".to_owned(), "100000000".to_owned()), ("compression".to_owned(), "lz4".to_owned())];
    datasets.set_properties(&name("tank/a")?, &limits)?;
    datasets.record_history("something was done")
}

/// Changes records in the meta tree and in the trees of datasets, as chosen by `data`.
///
/// # Errors
/// When the pool cannot be written.
pub fn spoil(datasets: &Arc<Datasets>, data: &[u8]) -> Result<(), DatasetError> {
    let change = datasets.change()?;
    let catalog = change.catalog();
    let mut trees = vec![change.pool().meta().clone()];
    for dataset in catalog.descendants(catalog.root()?)? {
        trees.push(change.pool().tree(dataset.record.head)?);
    }
    let mut entries = Vec::new();
    for (at, tree) in trees.iter().enumerate() {
        for item in tree.view().range(&[], None) {
            let (key, entry) = item?;
            entries.push((at, key, entry.value.to_vec()));
        }
    }
    // Most changes are in the meta tree, because everything depends on it.
    let own = entries.iter().filter(|(tree, ..)| *tree == 0).count();
    for edit in data.chunks_exact(6) {
        let [a, b, how, place, value, other] = *edit else { continue };
        let all = if a & 3 == 0 { entries.len() } else { own };
        let number = usize::from(a) << 8 | usize::from(b);
        let Some((tree, key, was)) = entries.get(number % all.max(1)) else { continue };
        let from = entries.get(usize::from(other) % all.max(1)).map(|(.., value)| value.clone());
        write(&change, &trees[*tree], key, was, (how, place, value), from.unwrap_or_default())?;
    }
    change.commit()
}

fn write(
    change: &Change<'_>,
    tree: &Tree,
    key: &[u8],
    was: &[u8],
    (how, place, value): (u8, u8, u8),
    other: Vec<u8>,
) -> Result<(), DatasetError> {
    let mut now = was.to_vec();
    let at = usize::from(place) % now.len().max(1);
    let number = NUMBERS[usize::from(value) % NUMBERS.len()];
    let mut put = |at: usize, bytes: &[u8]| {
        let end = (at + bytes.len()).min(now.len());
        now[at.min(end)..end].copy_from_slice(&bytes[..end.saturating_sub(at)]);
    };
    match how % 8 {
        0 => put(at, &[value]),
        1 => put(at, &number.to_be_bytes()),
        2 => put(at, &number.to_le_bytes()),
        3 => now = other,
        4 => now.truncate(at),
        5 => now.push(value),
        6 => {
            tree.remove(&change.hold, key)?;
            return Ok(());
        }
        _ => {
            // An entry of this kind, with another key.
            let mut key = key.to_vec();
            let at = usize::from(place) % key.len().max(1);
            if let Some(byte) = key.get_mut(at) {
                *byte = value;
            }
            tree.insert(&change.hold, &key, was)?;
            return Ok(());
        }
    }
    tree.insert(&change.hold, key, &now)?;
    Ok(())
}

/// Runs the operations of users on a pool. Errors do not matter, but everything must end without a panic.
pub fn exercise(datasets: &Arc<Datasets>) {
    look(datasets);
    // An opened pool is changed only if it can be read.
    if datasets.settle().is_ok() {
        alter(datasets);
    }
    look(datasets);
}

/// Every dataset with an id, whether or not it has a name.
pub fn all(datasets: &Datasets) -> Vec<Dataset> {
    let catalog = datasets.catalog();
    let mut found = catalog.root().and_then(|root| catalog.descendants(root)).unwrap_or_default();
    let prefix = Key::new(keys::DATASET).done();
    for item in catalog.meta().range(&prefix, keys::after(&prefix).as_deref()) {
        let Ok((key, _)) = item else { break };
        let Ok(id) = keys::number(&key, 1) else { continue };
        found.extend(catalog.dataset_by_id(DatasetId(id)));
    }
    found.sort_by_key(|dataset| dataset.id);
    found.dedup_by_key(|dataset| dataset.id);
    found
}

fn snapshots(datasets: &Datasets, dataset: &Dataset) -> Vec<Snapshot> {
    datasets.catalog().snapshots(dataset).take(LOOKED_AT).filter_map(Result::ok).collect()
}

fn look(datasets: &Arc<Datasets>) {
    let catalog = datasets.catalog();
    let _ = datasets.check(CheckOptions { data: true }, &mut |_| {});
    let _ = (catalog.history(), datasets.damaged(), datasets.pool().space());
    for dataset in all(datasets) {
        let _ = (catalog.bookmarks(&dataset), catalog.children(&dataset), catalog.dataset_space(&dataset));
        let _ = (catalog.encryption_root(dataset.id), catalog.receive_state(dataset.id));
        let _ = catalog.stored_properties(dataset.id, 0);
        for property in ["mountpoint", "quota", "compression", "volsize", "a:b"] {
            let _ = catalog.inherited_property(&dataset, property);
        }
        if let Ok(objset) = catalog.head(&dataset) {
            read(objset);
        }
        for snapshot in snapshots(datasets, &dataset) {
            let _ = (catalog.holds(snapshot.id), catalog.clones(snapshot.id));
            let _ = (catalog.stored_properties(snapshot.id.dataset, snapshot.id.txg), snapshot.full_name());
            let _ = catalog.snapshots_by_guid(snapshot.record.guid);
            read(catalog.objset(&snapshot));
            let flags = SendFlags { properties: true, embed: true, ..SendFlags::default() };
            if let Ok(plan) = SendPlan::single(&catalog, &snapshot, Source::None, &flags) {
                let _ = plan.estimate();
                let _ = plan.run(std::io::sink(), &|_| {});
            }
            if let Ok(plan) = SendPlan::replicate(&catalog, &snapshot, None, &flags) {
                let _ = plan.run(std::io::sink(), &|_| {});
            }
        }
    }
}

fn read(objset: Objset) {
    let _ = objset.volume_size();
    let Ok(filesystem) = Filesystem::open(objset) else { return };
    let root = filesystem.root();
    let _ = filesystem.attributes(root);
    let Ok(directory) = filesystem.read_dir(root) else { return };
    for entry in directory.all().take(LOOKED_AT).map_while(Result::ok) {
        let _ = (filesystem.attributes(entry.object), filesystem.xattrs(entry.object));
        let _ = filesystem.readlink(entry.object);
    }
}

fn alter(datasets: &Arc<Datasets>) {
    let name = |text: String| Name::parse(&text).ok();
    let _ = datasets
        .create_filesystem("tank/new/deep", &CreateOptions { parents: true, ..CreateOptions::default() });
    let _ = datasets.record_history("again");
    for dataset in all(datasets) {
        let Some(at) = name(dataset.name.clone()) else { continue };
        let _ = datasets.set_properties(&at, &[("quota".to_owned(), "0".to_owned())]);
        let _ = name(format!("{at}@new")).map(|snapshot| datasets.snapshot(&[snapshot], &[]));
        for snapshot in snapshots(datasets, &dataset) {
            let Some(full) = name(snapshot.full_name()) else { continue };
            let this = std::slice::from_ref(&full);
            let _ = (datasets.hold("x", this), datasets.release("x", this), datasets.release("tag", this));
            let _ =
                name(format!("{at}#{}", snapshot.record.name)).map(|mark| datasets.bookmark(&full, &mark));
            let _ = datasets.clone_snapshot(&full, "tank/cloned", &CloneOptions::default());
            let _ = (datasets.promote("tank/cloned"), datasets.promote(&dataset.name));
            let _ = datasets.rollback(&full, RollbackOptions::default());
            let _ = DestroyPlan::snapshots(&datasets.catalog(), vec![snapshot], false)
                .and_then(|plan| datasets.destroy(&plan));
        }
        let _ = datasets.abort_receive(&dataset.name);
        let _ = name("tank/moved".to_owned()).map(|to| datasets.rename(&at, &to, RenameOptions::default()));
        let _ = DestroyPlan::dataset(&datasets.catalog(), &dataset, true, true)
            .and_then(|plan| datasets.destroy(&plan));
    }
    // Datasets that were created or renamed meanwhile, and clones that were promoted over the root.
    let _ = datasets.catalog().root().map(|root| datasets.promote(&root.name));
    let catalog = datasets.catalog();
    let _ = catalog
        .root()
        .and_then(|root| DestroyPlan::dataset(&catalog, &root, true, true))
        .and_then(|plan| datasets.destroy(&plan));
}
