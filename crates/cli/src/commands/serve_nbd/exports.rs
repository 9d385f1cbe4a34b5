//! The volumes of a pool as exports.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use snowmelt_dataset::{DatasetError, DatasetId, Datasets, Found, Kind, Name, SnapshotId};
use snowmelt_nbd::{Export, Exports, Extent, Identity, OpenError};
use snowmelt_pool::PoolError;
use snowmelt_volume::{Volume, VolumeError};
use snowmelt_zpl::SourceError;

use super::clients::{Access, Clients, is_at_or_below};
use crate::error::chain;

/// Runs of blocks in one answer.
const EXTENTS_MAX: usize = 4096;

/// An identity that does not change when a volume or its snapshot is renamed.
type VolumeId = (DatasetId, Option<SnapshotId>);

/// The volumes of a pool.
pub(super) struct Volumes {
    datasets: Arc<Datasets>,
    targets: Vec<String>,
    read_only: bool,
    /// Which client may use which; without it all clients that are let in may use all.
    clients: Option<Clients>,
    /// Those that clients have open.
    open: Mutex<HashMap<VolumeId, Weak<Volume>>>,
}

impl Volumes {
    /// Volumes that are among `targets`, below them, or snapshots of them.
    pub(super) fn new(
        datasets: Arc<Datasets>,
        targets: Vec<String>,
        read_only: bool,
        clients: Option<Clients>,
    ) -> Self {
        Self { datasets, targets, read_only, clients, open: Mutex::default() }
    }

    /// What `client` may do with the export `name`.
    fn access(&self, client: &Identity, name: &str) -> Access {
        if !self.targets.iter().any(|target| is_at_or_below(name, target)) {
            return Access::None;
        }
        let granted = self.clients.as_ref().map_or(Access::Write, |clients| clients.access(client, name));
        if self.read_only { granted.min(Access::Read) } else { granted }
    }

    /// The first target that is a volume and that `is_seen`.
    pub(super) fn first_volume(&self, is_seen: impl Fn(&str) -> bool) -> Option<String> {
        let catalog = self.datasets.catalog();
        let is_volume = |target: &&String| {
            let found = Name::parse(target).ok().and_then(|name| catalog.find(&name).ok());
            matches!(found, Some(Found::Dataset(found)) if found.record.kind == Kind::Volume)
        };
        self.targets.iter().filter(is_volume).find(|target| is_seen(target)).cloned()
    }

    /// The volume `name`, which all its clients share.
    fn volume(&self, name: &str) -> Result<Arc<Volume>, VolumeError> {
        let mut open = self.open.lock();
        loop {
            let id = self.id(name)?;
            if let Some(volume) = open.get(&id).and_then(Weak::upgrade) {
                volume.follow(&self.datasets)?;
                return Ok(volume);
            }
            let volume = Arc::new(Volume::open(&self.datasets, name)?);
            // Otherwise the name was given to another one in this moment.
            if self.id(name)? == id {
                open.retain(|_, volume| volume.strong_count() > 0);
                open.insert(id, Arc::downgrade(&volume));
                return Ok(volume);
            }
        }
    }

    /// The object that a name leads to now. A volume that clients have open can be renamed, and its name can be given
    /// to another volume.
    fn id(&self, name: &str) -> Result<VolumeId, VolumeError> {
        let name = Name::parse(name).map_err(DatasetError::from)?;
        let found = self.datasets.catalog().find(&name)?;
        match found {
            Found::Dataset(dataset) => Ok((dataset.id, None)),
            Found::Snapshot(snapshot) => Ok((snapshot.id.dataset, Some(snapshot.id))),
            Found::Bookmark(_) => Err(DatasetError::WrongType { name: name.to_string() }.into()),
        }
    }
}

impl Exports for Volumes {
    fn list(&self, client: &Identity) -> io::Result<Vec<String>> {
        let catalog = self.datasets.catalog();
        let all = || -> Result<Vec<String>, DatasetError> {
            let mut names = Vec::new();
            for dataset in catalog.descendants(catalog.root()?)? {
                if dataset.record.kind != Kind::Volume || dataset.record.inconsistent {
                    continue;
                }
                names.push(dataset.name.clone());
                for snapshot in catalog.snapshots(&dataset) {
                    names.push(snapshot?.full_name());
                }
            }
            Ok(names)
        };
        let mut names = all().map_err(io::Error::other)?;
        names.retain(|name| self.access(client, name) > Access::None);
        Ok(names)
    }

    fn open(&self, client: &Identity, name: &str) -> Result<Arc<dyn Export>, OpenError> {
        if Name::parse(name).is_err() {
            return Err(OpenError::NotFound);
        }
        let access = self.access(client, name);
        if access == Access::None {
            return Err(OpenError::NotFound);
        }
        let volume = self.volume(name).map_err(|error| match error {
            VolumeError::Dataset(DatasetError::NotFound { .. } | DatasetError::WrongType { .. }) => {
                OpenError::NotFound
            }
            VolumeError::Dataset(error @ (DatasetError::Encrypted { .. } | DatasetError::Busy { .. })) => {
                OpenError::Denied { reason: error.to_string() }
            }
            other => OpenError::Io(failure(other)),
        })?;
        let (datasets, read_only) = (self.datasets.clone(), access < Access::Write);
        Ok(Arc::new(Device { name: name.to_owned(), read_only, volume, datasets }))
    }

    fn default_export(&self, client: &Identity) -> Option<String> {
        self.first_volume(|name| self.access(client, name) > Access::None)
    }
}

/// A volume as NBD wants it.
struct Device {
    name: String,
    read_only: bool,
    volume: Arc<Volume>,
    datasets: Arc<Datasets>,
}

impl Device {
    /// The volume, about to be written to: as its properties are now.
    fn written(&self) -> io::Result<&Volume> {
        self.volume.follow(&self.datasets).map_err(failure)?;
        Ok(&self.volume)
    }
}

/// A failure with the number that the client is to see.
fn failure(error: VolumeError) -> io::Error {
    let is_full = matches!(
        &error,
        VolumeError::Source(SourceError::NoSpace | SourceError::QuotaExceeded)
            | VolumeError::Dataset(DatasetError::Pool(PoolError::NoSpace { .. }))
    );
    let kind = match &error {
        _ if is_full => io::ErrorKind::StorageFull,
        VolumeError::Range { .. } => io::ErrorKind::InvalidInput,
        VolumeError::ReadOnly | VolumeError::Source(SourceError::ReadOnly) => io::ErrorKind::PermissionDenied,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, chain(&error))
}

impl Export for Device {
    fn size(&self) -> u64 {
        self.volume.size().unwrap_or(0)
    }

    fn block_size(&self) -> u32 {
        self.volume.block_size()
    }

    fn read_only(&self) -> bool {
        self.read_only || self.volume.is_read_only()
    }

    fn description(&self) -> Option<String> {
        Some(format!("snowmelt volume {}", self.name))
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.volume.read(offset, buf).map_err(failure)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.written()?.write(offset, data).map_err(failure)
    }

    fn write_zeroes(&self, offset: u64, length: u64, _may_trim: bool) -> io::Result<()> {
        // Copy-on-write never has space that is allocated in advance.
        self.written()?.zero(offset, length).map_err(failure)
    }

    fn zeroes_fast(&self, _offset: u64, _length: u64, _may_trim: bool) -> bool {
        true
    }

    fn trim(&self, offset: u64, length: u64) -> io::Result<()> {
        self.written()?.zero(offset, length).map_err(failure)
    }

    fn flush(&self) -> io::Result<()> {
        self.volume.flush().map_err(failure)
    }

    fn cache(&self, offset: u64, length: u64) -> io::Result<()> {
        const PIECE: usize = 1 << 20;
        const MOST: u64 = 32 << 20;
        let mut buf = vec![0; PIECE];
        let (mut at, end) = (offset, offset + length.min(MOST));
        while at < end {
            let len = (end - at).min(PIECE as u64) as usize;
            self.volume.read(at, &mut buf[..len]).map_err(failure)?;
            at += len as u64;
        }
        Ok(())
    }

    fn extents(&self, offset: u64, length: u64) -> io::Result<Vec<Extent>> {
        let found = self.volume.extents(offset, length, EXTENTS_MAX).map_err(failure)?;
        let told =
            |run: snowmelt_volume::Extent| Extent { length: run.length, hole: !run.data, zero: !run.data };
        Ok(found.into_iter().map(told).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use snowmelt_dataset::{CreateOptions, NewVolume, RenameOptions};
    use snowmelt_pool::{NewPool, Pool, PoolOptions};
    use snowmelt_store::MemoryStore;

    const BLOCK: u32 = 4096;

    fn first_byte(volumes: &Volumes, name: &str) -> u8 {
        let mut byte = [0];
        volumes.open(&Identity::Local, name).unwrap().read(0, &mut byte).unwrap();
        byte[0]
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
        let volumes = Volumes::new(datasets.clone(), vec!["tank".to_owned()], false, None);
        // It stays open while it gets another name, and another one gets its name.
        let open = volumes.open(&Identity::Local, "tank/a").unwrap();
        open.write(0, b"x").unwrap();
        let (old, new) = (Name::parse("tank/a").unwrap(), Name::parse("tank/b").unwrap());
        datasets.rename(&old, &new, RenameOptions::default()).unwrap();
        create("tank/a");
        assert_eq!((first_byte(&volumes, "tank/a"), first_byte(&volumes, "tank/b")), (0, b'x'));
    }
}
