//! The mounted content: a head or a snapshot.

use std::sync::Arc;

use snowmelt_dataset::{Datasets, Head, Objset, Snapshot};
use snowmelt_zpl::{Attributes, Cursor, DirEntry, FileKind, Filesystem, FilesystemMut, Objects, ZplError};

use super::error::VfsError;
use super::live::Live;
use super::{Source, TRIES_MAX, Vfs, ino};

/// Maximum number of data blocks of one file that are counted for `st_blocks`. The rest of a larger file counts as
/// dense.
const COUNTED_MAX: usize = 64;
/// Files up to this size count as dense, because counting would take too long for its value.
const DENSE_MAX: u64 = 128 << 10;

/// A filesystem of one of the three kinds that can be mounted.
pub(super) enum View {
    /// A head.
    Head(FilesystemMut<Live>),
    /// A head of an old ZPL version, which is read-only.
    Old(Filesystem<Live>),
    Snapshot(Filesystem<Objset>),
}

/// The mounted filesystem, with the content of one epoch.
pub(super) struct Base {
    pub(super) view: View,
    /// The head's generation.
    pub(super) epoch: u64,
}

macro_rules! either {
    ($view:expr, $fs:ident => $result:expr) => {
        match $view {
            View::Head($fs) => $result,
            View::Old($fs) => $result,
            View::Snapshot($fs) => $result,
        }
    };
}

impl View {
    pub(super) fn of_snapshot(datasets: &Datasets, snapshot: &Snapshot) -> Result<Self, VfsError> {
        let objset = datasets.catalog().objset(snapshot);
        objset.require_readable()?;
        Ok(Self::Snapshot(Filesystem::open(objset)?))
    }

    pub(super) fn writable(&self) -> Option<&FilesystemMut<Live>> {
        match self {
            Self::Head(fs) => Some(fs),
            Self::Old(_) | Self::Snapshot(_) => None,
        }
    }

    fn is_current(&self) -> bool {
        match self {
            Self::Head(fs) => fs.objects().is_current(),
            Self::Old(fs) => fs.objects().is_current(),
            Self::Snapshot(_) => true,
        }
    }

    pub(super) fn root(&self) -> u64 {
        either!(self, fs => fs.root())
    }

    pub(super) fn attributes(&self, object: u64) -> Result<Attributes, ZplError> {
        either!(self, fs => fs.attributes(object))
    }

    pub(super) fn lookup(&self, directory: u64, name: &[u8]) -> Result<Option<DirEntry>, ZplError> {
        either!(self, fs => fs.lookup(directory, name))
    }

    pub(super) fn readlink(&self, object: u64) -> Result<Vec<u8>, ZplError> {
        either!(self, fs => fs.readlink(object))
    }

    pub(super) fn xattr(&self, object: u64, name: &[u8]) -> Result<Option<Vec<u8>>, ZplError> {
        either!(self, fs => fs.xattr(object, name))
    }

    pub(super) fn xattr_names(&self, object: u64) -> Result<Vec<Vec<u8>>, ZplError> {
        either!(self, fs => fs.xattrs(object)).map(|all| all.into_keys().collect())
    }

    /// Entries of a directory from an offset on (0 is the beginning), each with the offset that follows it.
    pub(super) fn read_dir(
        &self,
        directory: u64,
        offset: u64,
        count: usize,
    ) -> Result<Vec<(DirEntry, u64)>, ZplError> {
        match self {
            Self::Head(fs) => fs.read_dir_at(directory, offset, count),
            Self::Old(fs) => read_dir_of(fs, directory, offset, count),
            Self::Snapshot(fs) => read_dir_of(fs, directory, offset, count),
        }
    }

    pub(super) fn read(&self, object: u64, offset: u64, buf: &mut [u8]) -> Result<usize, ZplError> {
        match self {
            Self::Head(fs) => fs.read(object, offset, buf),
            Self::Old(fs) => fs.read(object, file_size(&fs.attributes(object)?)?, offset, buf),
            Self::Snapshot(fs) => fs.read(object, file_size(&fs.attributes(object)?)?, offset, buf),
        }
    }

    /// The next extent of data at or after `offset` in a file of `size` bytes.
    pub(super) fn next_extent(
        &self,
        object: u64,
        size: u64,
        offset: u64,
    ) -> Result<Option<(u64, u64)>, ZplError> {
        match self {
            Self::Head(fs) => fs.next_extent(object, offset),
            Self::Old(fs) => fs.next_extent(object, size, offset),
            Self::Snapshot(fs) => fs.next_extent(object, size, offset),
        }
    }

    /// Bytes of a file's blocks.
    pub(super) fn block_size(&self, object: u64) -> Result<u32, ZplError> {
        either!(self, fs => block_size(fs.objects(), object))
    }

    /// Number of 512-byte units that a file uses.
    pub(super) fn blocks(&self, attributes: &Attributes) -> Result<u64, ZplError> {
        let size = match attributes.kind() {
            FileKind::File => attributes.size,
            FileKind::Directory => return Ok(1),
            _ => return Ok(0),
        };
        if size <= DENSE_MAX {
            return Ok(size.div_ceil(512));
        }
        either!(self, fs => data_bytes(fs.objects(), attributes.object, size))
            .map(|bytes| bytes.div_ceil(512))
    }
}

fn file_size(attributes: &Attributes) -> Result<u64, ZplError> {
    match attributes.kind() {
        FileKind::File => Ok(attributes.size),
        FileKind::Directory => Err(ZplError::IsADirectory { object: attributes.object }),
        _ => Err(ZplError::NotAFile { object: attributes.object }),
    }
}

fn read_dir_of<O: Objects>(
    fs: &Filesystem<O>,
    directory: u64,
    offset: u64,
    count: usize,
) -> Result<Vec<(DirEntry, u64)>, ZplError> {
    let entries = fs.read_dir(directory)?;
    let bits = entries.hash_bits();
    let numbered = entries.from(Cursor::deserialize(offset, bits)).take(count).map(|entry| {
        let entry = entry?;
        let next = entry.next.serialize(bits);
        Ok((entry, next))
    });
    numbered.collect()
}

fn block_size<O: Objects>(objects: &O, object: u64) -> Result<u32, ZplError> {
    match objects.dnode(object).map_err(|source| ZplError::Source { object, source })? {
        Some(dnode) => Ok(dnode.block_size.max(512)),
        None => Err(ZplError::NoObject { object }),
    }
}

/// Number of bytes of a file in data blocks, counted or estimated.
fn data_bytes<O: Objects>(objects: &O, object: u64, size: u64) -> Result<u64, ZplError> {
    let failed = |source| ZplError::Source { object, source };
    let block_size = u64::from(block_size(objects, object)?);
    let (mut at, mut bytes) = (0, 0);
    for _ in 0..COUNTED_MAX {
        match objects.next_data(object, at).map_err(failed)?.filter(|begin| *begin < size) {
            Some(begin) => {
                let end = begin.saturating_add(block_size).min(size);
                bytes += end - begin;
                at = end;
            }
            None => return Ok(bytes),
        }
    }
    Ok(bytes + (size - at))
}

impl Base {
    pub(super) fn of_head(datasets: &Datasets, head: &Arc<Head>) -> Result<Self, VfsError> {
        let catalog = datasets.catalog();
        let dataset = catalog.dataset_by_id(head.id())?;
        let options = snowmelt_dataset::write_options(&catalog, &dataset)?;
        let live = Live::new(head.clone());
        let epoch = live.generation();
        let view = match FilesystemMut::open(live, options, seed()) {
            Ok(fs) => View::Head(fs),
            Err(ZplError::Unsupported { .. }) => View::Old(Filesystem::open(Live::new(head.clone()))?),
            Err(other) => return Err(other.into()),
        };
        Ok(Self { view, epoch })
    }

    pub(super) fn of_snapshot(datasets: &Datasets, snapshot: &Snapshot) -> Result<Self, VfsError> {
        Ok(Self { view: View::of_snapshot(datasets, snapshot)?, epoch: 0 })
    }
}

/// Converts an error. An inode whose object no longer exists is stale.
fn gone(number: u64, object: u64, error: ZplError) -> VfsError {
    match error {
        ZplError::NoObject { object: missing } if missing == object => VfsError::Stale { ino: number },
        other => other.into(),
    }
}

/// A random number for the salts of name hashes.
fn seed() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

impl Vfs {
    /// The mounted filesystem with its current content.
    pub(super) fn base(&self) -> Result<Arc<Base>, VfsError> {
        let base = self.base.read().clone();
        if base.view.is_current() {
            return Ok(base);
        }
        let mut base = self.base.write();
        if let (false, Some(head)) = (base.view.is_current(), &self.head) {
            *base = Arc::new(Base::of_head(&self.datasets, head)?);
        }
        Ok(base.clone())
    }

    /// Reads from the mounted filesystem. If its content is replaced meanwhile, the read is repeated.
    pub(super) fn read_base<T>(
        &self,
        mut read: impl FnMut(&Base) -> Result<T, VfsError>,
    ) -> Result<T, VfsError> {
        for _ in 0..TRIES_MAX {
            let base = self.base()?;
            let result = read(&base);
            if base.view.is_current() {
                return result;
            }
        }
        Err(VfsError::Replaced { tries: TRIES_MAX })
    }

    /// Reads from the filesystem that an inode belongs to. `read` is called with it and the object number.
    pub(super) fn on_inode<T>(
        &self,
        number: u64,
        mut read: impl FnMut(&View, u64) -> Result<T, ZplError>,
    ) -> Result<T, VfsError> {
        match ino::Place::of(number) {
            ino::Place::Here(object) => self.read_base(|base| {
                self.check_inode(base, number, object)?;
                read(&base.view, object).map_err(|error| gone(number, object, error))
            }),
            ino::Place::In(slot, object) => {
                let snapshot = self.snapshot_of(slot, number)?;
                read(&snapshot.view, object).map_err(|error| gone(number, object, error))
            }
            ino::Place::Control | ino::Place::SnapshotDir => Err(VfsError::IsADirectory { ino: number }),
        }
    }

    /// Changes the mounted head. `change` is called with its filesystem.
    pub(super) fn on_head<T>(
        &self,
        numbers: &[u64],
        mut change: impl FnMut(&FilesystemMut<Live>) -> Result<T, ZplError>,
    ) -> Result<T, VfsError> {
        if self.options.read().read_only {
            return Err(VfsError::ReadOnly);
        }
        for number in numbers {
            if !matches!(ino::Place::of(*number), ino::Place::Here(_)) {
                return Err(VfsError::ReadOnly);
            }
        }
        if let Some(head) = &self.head {
            // This is done before any lock is taken, so that other threads do not wait for the commit.
            head.pool().maybe_commit().map_err(snowmelt_dataset::DatasetError::from)?;
        }
        for _ in 0..TRIES_MAX {
            let base = self.base()?;
            let fs = base.view.writable().ok_or(VfsError::ReadOnly)?;
            let checked = numbers.iter().try_for_each(|number| self.check_inode(&base, *number, *number));
            let result = checked.and_then(|()| Ok(change(fs)?));
            // A successful change was part of a transaction, so it happened before the content was replaced.
            if result.is_ok() || base.view.is_current() {
                return result;
            }
        }
        Err(VfsError::Replaced { tries: TRIES_MAX })
    }

    /// Checks that an inode from before a replacement of the content is still the same file.
    fn check_inode(&self, base: &Base, number: u64, object: u64) -> Result<(), VfsError> {
        if object >= ino::RESERVED {
            return Err(VfsError::Stale { ino: number });
        }
        if base.epoch == self.first_epoch || matches!(self.source, Source::Snapshot(_)) {
            return Ok(());
        }
        let Some(generation) = self.inodes.unchecked(number, base.epoch) else { return Ok(()) };
        match base.view.attributes(object) {
            Ok(attributes) if attributes.generation == generation => {
                self.inodes.checked(number, base.epoch);
                Ok(())
            }
            Ok(_) | Err(ZplError::NoObject { .. } | ZplError::Corrupt { .. }) => {
                Err(VfsError::Stale { ino: number })
            }
            Err(other) => Err(other.into()),
        }
    }
}
