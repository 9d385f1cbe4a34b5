//! Volumes and their snapshots as a tree of names: `tank/vm1` and beside it `tank/vm1@monday`, in directories with
//! the names of the filesystems.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use snowmelt_dataset::{DatasetError, DatasetId, Datasets, Found, Kind, Name, SnapshotId};
use snowmelt_volume::{Volume, VolumeError};

/// The kernel's number for the root (`FUSE_ROOT_ID`).
pub(super) const ROOT: u64 = 1;

/// The object of a name.
pub(super) enum Node {
    /// A filesystem, or the root above all names.
    Directory,
    /// A volume, or a snapshot of one.
    Volume(Arc<Volume>),
}

/// Which volumes to show.
pub(super) struct Tree {
    datasets: Arc<Datasets>,
    /// Names of datasets and snapshots. Their descendants are shown too.
    targets: Vec<String>,
    read_only: bool,
    numbers: Mutex<Numbers>,
    /// Volumes that are open.
    open: Mutex<HashMap<VolumeId, Weak<Volume>>>,
}

/// Inode numbers that the kernel knows. The name stays a number's own until the kernel has forgotten it.
#[derive(Default)]
struct Numbers {
    names: HashMap<u64, (String, u64)>,
    of_name: HashMap<String, u64>,
    last: u64,
}

/// An identity that does not change when a volume or its snapshot is renamed.
type VolumeId = (DatasetId, Option<SnapshotId>);

fn no_such(name: &str) -> VolumeError {
    DatasetError::NotFound { name: name.to_owned() }.into()
}

impl Tree {
    pub(super) fn new(datasets: Arc<Datasets>, targets: Vec<String>, read_only: bool) -> Self {
        let numbers = Numbers { last: ROOT, ..Numbers::default() };
        Self { datasets, targets, read_only, numbers: Mutex::new(numbers), open: Mutex::default() }
    }

    pub(super) fn datasets(&self) -> &Datasets {
        &self.datasets
    }

    /// The name of an inode: empty for the root.
    pub(super) fn name(&self, ino: u64) -> Option<String> {
        if ino == ROOT {
            return Some(String::new());
        }
        self.numbers.lock().names.get(&ino).map(|(name, _)| name.clone())
    }

    /// The number of a name, for one more reference by the kernel.
    pub(super) fn remember(&self, name: &str) -> u64 {
        let mut numbers = self.numbers.lock();
        let numbers = &mut *numbers;
        if let Some(&ino) = numbers.of_name.get(name) {
            if let Some((_, lookups)) = numbers.names.get_mut(&ino) {
                *lookups += 1;
            }
            return ino;
        }
        numbers.last += 1;
        numbers.names.insert(numbers.last, (name.to_owned(), 1));
        numbers.of_name.insert(name.to_owned(), numbers.last);
        numbers.last
    }

    /// The kernel has forgotten a number so often.
    pub(super) fn forget(&self, ino: u64, lookups: u64) {
        let mut numbers = self.numbers.lock();
        let numbers = &mut *numbers;
        let Some((name, known)) = numbers.names.get_mut(&ino) else { return };
        *known = known.saturating_sub(lookups);
        if *known == 0 {
            numbers.of_name.remove(name);
            numbers.names.remove(&ino);
        }
    }

    /// Whether `name` is one of the targets, below one, or a snapshot of one.
    fn is_shown(&self, name: &str) -> bool {
        self.targets.iter().any(|target| {
            name.strip_prefix(target.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
        })
    }

    /// Whether `name` is above one of the targets.
    fn leads_to_shown(&self, name: &str) -> bool {
        let below = |target: &String| {
            target.strip_prefix(name).is_some_and(|rest| name.is_empty() || rest.starts_with('/'))
        };
        self.targets.iter().any(below)
    }

    /// The object of a name.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`]; when it cannot be opened.
    pub(super) fn node(&self, name: &str) -> Result<Node, VolumeError> {
        let is_shown = self.is_shown(name);
        if !is_shown {
            return if self.leads_to_shown(name) { Ok(Node::Directory) } else { Err(no_such(name)) };
        }
        let parsed = Name::parse(name).map_err(|_| no_such(name))?;
        match self.datasets.catalog().find(&parsed)? {
            Found::Dataset(dataset) if dataset.record.kind == Kind::Filesystem => Ok(Node::Directory),
            Found::Dataset(dataset) => self.volume(name, (dataset.id, None)).map(Node::Volume),
            Found::Snapshot(snapshot) if snapshot.kind == Kind::Volume => {
                self.volume(name, (snapshot.id.dataset, Some(snapshot.id))).map(Node::Volume)
            }
            _ => Err(no_such(name)),
        }
    }

    /// A volume, shared by all who have it open. In the meantime it can be renamed, and another volume can get its
    /// name.
    fn volume(&self, name: &str, id: VolumeId) -> Result<Arc<Volume>, VolumeError> {
        let mut open = self.open.lock();
        if let Some(volume) = open.get(&id).and_then(Weak::upgrade) {
            self.follow(&volume)?;
            return Ok(volume);
        }
        let volume = Arc::new(Volume::open(&self.datasets, name)?);
        open.retain(|_, volume| volume.strong_count() > 0);
        open.insert(id, Arc::downgrade(&volume));
        Ok(volume)
    }

    /// As [`Volume::follow`].
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub(super) fn follow(&self, volume: &Volume) -> Result<(), VolumeError> {
        volume.follow(&self.datasets)
    }

    pub(super) fn is_read_only(&self, volume: &Volume) -> bool {
        self.read_only || volume.is_read_only()
    }

    /// Makes a volume larger or smaller, as `set volsize` does.
    ///
    /// # Errors
    /// When it cannot have that size.
    pub(super) fn resize(&self, name: &str, volume: &Volume, size: u64) -> Result<(), VolumeError> {
        if volume.size()? == size {
            return Ok(());
        }
        if self.is_read_only(volume) {
            return Err(VolumeError::ReadOnly);
        }
        Ok(self.datasets.resize_reserved_volume(name, size)?)
    }

    /// The names in a directory, and whether they are volumes; directories without any volume are not listed.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub(super) fn list(&self, directory: &str) -> Result<BTreeMap<String, bool>, VolumeError> {
        let catalog = self.datasets.catalog();
        let mut found = BTreeMap::new();
        let mut add = |name: &str| {
            let below = match directory {
                "" => Some(name),
                _ => name.strip_prefix(directory).and_then(|rest| rest.strip_prefix('/')),
            };
            match below.filter(|_| self.is_shown(name)).map(|below| below.split_once('/')) {
                Some(Some((first, _))) => drop(found.insert(first.to_owned(), false)),
                Some(None) => drop(found.insert(below.unwrap_or_default().to_owned(), true)),
                None => {}
            }
        };
        for dataset in catalog.descendants(catalog.root()?)? {
            if dataset.record.kind != Kind::Volume || dataset.record.inconsistent {
                continue;
            }
            add(&dataset.name);
            for snapshot in catalog.snapshots(&dataset) {
                add(&snapshot?.full_name());
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use snowmelt_dataset::{CreateOptions, NewVolume, RenameOptions};
    use snowmelt_pool::{NewPool, Pool, PoolOptions};
    use snowmelt_store::MemoryStore;

    const BLOCK: u32 = 4096;

    fn volume(tree: &Tree, name: &str) -> Arc<Volume> {
        let found = match tree.node(name).unwrap() {
            Node::Volume(volume) => Some(volume),
            Node::Directory => None,
        };
        found.unwrap()
    }

    #[test]
    fn a_name_leads_to_what_has_it_now() {
        let new = NewPool { name: "tank", guid: 1 };
        let pool = Pool::create(Box::new(MemoryStore::new()), &new, PoolOptions::default()).unwrap();
        let datasets = Datasets::create(pool).unwrap();
        let create = |name: &str| {
            let volume = NewVolume { size: u64::from(BLOCK), block_size: BLOCK };
            datasets.create_volume(name, &volume, &CreateOptions::default()).unwrap();
        };
        create("tank/a");
        let tree = Tree::new(datasets.clone(), vec!["tank".to_owned()], false);
        // It stays open while it gets another name, and another one gets its name.
        let open = volume(&tree, "tank/a");
        let (from, to) = (Name::parse("tank/a").unwrap(), Name::parse("tank/b").unwrap());
        datasets.rename(&from, &to, RenameOptions::default()).unwrap();
        create("tank/a");
        assert!(!Arc::ptr_eq(&open, &volume(&tree, "tank/a")));
        assert!(Arc::ptr_eq(&open, &volume(&tree, "tank/b")));
    }
}
