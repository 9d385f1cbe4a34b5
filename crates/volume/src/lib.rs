//! A volume as a block device: reading, writing, trimming, flushing, and finding the ranges with data.
//!
//! A [`Volume`] is the head of a dataset, which several threads may read and write, or a snapshot, which is read-only.
//! Everything written before a [`flush`](Volume::flush) is durable. A crash leaves the volume as it was at one moment,
//! which is not before the last flush.

mod import;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use snowmelt_dataset::objset::view::VOLUME_DATA;
use snowmelt_dataset::{DatasetError, Datasets, Found, Head, Kind, Name, Objset, OpenHead};
use snowmelt_zpl::{Objects, ObjectsMut, Room, SourceError};

pub use import::{ImportError, Imported, default_block_size, image_size, import_image};

/// Maximum number of blocks changed in one transaction.
const BLOCKS_PER_TX: u64 = 64;

/// Why an operation on a volume failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeError {
    /// The range extends past the end of the volume.
    #[error("{length} bytes at offset {offset} go past the end of the volume, at {size}")]
    Range {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
        /// Size of the volume in bytes.
        size: u64,
    },
    /// A snapshot cannot be written.
    #[error("the volume is read-only")]
    ReadOnly,
    /// Reading or writing objects failed.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// An operation on the dataset failed.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
}

/// A run of blocks of the same kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub length: u64,
    /// Whether data is stored. A range without data is read as zeros.
    pub data: bool,
}

enum Source {
    Head(OpenHead),
    /// The snapshot, and the number of bytes it refers to.
    Snapshot(Objset, u64),
}

/// A volume that is open as a block device.
pub struct Volume {
    source: Source,
    block_size: u32,
    /// The property `readonly`.
    is_set_read_only: AtomicBool,
    /// The [`Datasets::change_count`] at which the properties were read last.
    followed: AtomicU64,
}

impl Volume {
    /// Opens a volume or a snapshot of one by its full name.
    ///
    /// # Errors
    /// If there is no such dataset, it is not a volume, or its key is not loaded.
    pub fn open(datasets: &Datasets, name: &str) -> Result<Self, VolumeError> {
        let name = Name::parse(name).map_err(DatasetError::from)?;
        let catalog = datasets.catalog();
        let wrong = || DatasetError::WrongType { name: name.to_string() };
        let (source, block_size) = match catalog.find(&name)? {
            Found::Dataset(dataset) if dataset.record.kind == Kind::Volume => {
                let head = datasets.open_head(&dataset)?;
                let block_size = head.volume_block_size()?;
                (Source::Head(head), block_size)
            }
            Found::Snapshot(snapshot) if snapshot.kind == Kind::Volume => {
                let objset = catalog.objset(&snapshot);
                let block_size = objset.volume_block_size()?;
                let stored = snapshot.record.stats.physical;
                (Source::Snapshot(objset, stored), u32::try_from(block_size).map_err(|_| wrong())?)
            }
            _ => return Err(wrong().into()),
        };
        let (is_set_read_only, followed) = (AtomicBool::new(false), AtomicU64::new(u64::MAX));
        let volume = Self { source, block_size, is_set_read_only, followed };
        volume.follow(datasets)?;
        Ok(volume)
    }

    /// Applies changed properties of the dataset. To be called before writing. If nothing in the pool has changed, it
    /// reads nothing.
    ///
    /// # Errors
    /// If the pool cannot be read.
    pub fn follow(&self, datasets: &Datasets) -> Result<(), VolumeError> {
        let Source::Head(head) = &self.source else { return Ok(()) };
        let changes = datasets.change_count();
        if self.followed.load(Ordering::Acquire) == changes {
            return Ok(());
        }
        let catalog = datasets.catalog();
        let dataset = catalog.dataset_by_id(head.id())?;
        head.reload_properties(&catalog)?;
        let read_only = catalog.inherited_property(&dataset, "readonly")?;
        let is_on = read_only.is_some_and(|(value, ..)| value == "on");
        self.is_set_read_only.store(is_on, Ordering::Release);
        self.followed.store(changes, Ordering::Release);
        Ok(())
    }

    /// Size in bytes. It may change while the volume is open.
    ///
    /// # Errors
    /// If the size cannot be read.
    pub fn size(&self) -> Result<u64, VolumeError> {
        Ok(match &self.source {
            Source::Head(head) => head.volume_size()?,
            Source::Snapshot(objset, _) => objset.volume_size()?,
        })
    }

    /// Size of a block in bytes. Writes of whole blocks are cheapest.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Number of bytes in the pool that the volume refers to, including the nodes of its tree.
    pub fn stored(&self) -> u64 {
        match &self.source {
            Source::Head(head) => head.referenced(),
            Source::Snapshot(_, stored) => *stored,
        }
    }

    /// Whether the volume is a snapshot, has `readonly=on`, or is in a pool that is open read-only.
    pub fn is_read_only(&self) -> bool {
        match &self.source {
            Source::Head(head) => head.pool().is_read_only() || self.is_set_read_only.load(Ordering::Acquire),
            Source::Snapshot(..) => true,
        }
    }

    fn objects(&self) -> &dyn Objects {
        match &self.source {
            Source::Head(head) => &**head,
            Source::Snapshot(objset, _) => objset,
        }
    }

    fn head(&self) -> Result<&Head, VolumeError> {
        match &self.source {
            Source::Head(head) if !self.is_set_read_only.load(Ordering::Acquire) => Ok(head),
            _ => Err(VolumeError::ReadOnly),
        }
    }

    fn check(&self, offset: u64, length: u64) -> Result<(), VolumeError> {
        let size = self.size()?;
        match offset.checked_add(length) {
            Some(end) if end <= size => Ok(()),
            _ => Err(VolumeError::Range { offset, length, size }),
        }
    }

    /// Reads bytes.
    ///
    /// # Errors
    /// [`VolumeError::Range`], or if a block cannot be read.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), VolumeError> {
        self.check(offset, buf.len() as u64)?;
        Ok(self.objects().read(VOLUME_DATA, offset, buf)?)
    }

    /// Writes bytes. Overlapping writes must not run at the same time. Other writes may.
    ///
    /// # Errors
    /// [`VolumeError::Range`], [`VolumeError::ReadOnly`], [`SourceError::NoSpace`]. A long write that fails may have
    /// been done in part.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), VolumeError> {
        self.check(offset, data.len() as u64)?;
        let head = self.head()?;
        for (at, length) in self.pieces(offset, data.len() as u64) {
            let from = (at - offset) as usize;
            let tx = head.begin(Room::Write(self.whole_blocks(at, length)))?;
            let _locked = head.lock_blocks(at / u64::from(self.block_size), self.past(at, length));
            head.write(&tx, VOLUME_DATA, at, &data[from..from + length as usize])?;
        }
        Ok(())
    }

    /// Zeroes a range; whole blocks become holes. Used for `TRIM`, `WRITE_ZEROES`, and `fallocate` that punches a hole.
    ///
    /// # Errors
    /// Like [`Volume::write`].
    pub fn zero(&self, offset: u64, length: u64) -> Result<(), VolumeError> {
        self.check(offset, length)?;
        if length == 0 {
            return Ok(());
        }
        let head = self.head()?;
        let tx = head.begin(Room::Write(2 * u64::from(self.block_size)))?;
        let _locked = head.lock_blocks(offset / u64::from(self.block_size), self.past(offset, length));
        Ok(head.free(&tx, VOLUME_DATA, offset, length)?)
    }

    /// Makes everything that was written before durable.
    ///
    /// # Errors
    /// If the pool cannot be written.
    pub fn flush(&self) -> Result<(), VolumeError> {
        match &self.source {
            Source::Head(head) => Ok(head.sync()?),
            Source::Snapshot(..) => Ok(()),
        }
    }

    /// The runs of data and holes in `offset..offset + length`: at most `most` runs, from the beginning.
    ///
    /// # Errors
    /// [`VolumeError::Range`], or if the pool cannot be read.
    pub fn extents(&self, offset: u64, length: u64, most: usize) -> Result<Vec<Extent>, VolumeError> {
        self.check(offset, length)?;
        let (objects, end) = (self.objects(), offset + length);
        let (mut at, mut found) = (offset, Vec::new());
        while at < end && found.len() < most {
            let data = objects.next_data(VOLUME_DATA, at)?.unwrap_or(end).min(end);
            if data > at {
                found.push(Extent { length: data - at, data: false });
                at = data;
                continue;
            }
            let hole = match &self.source {
                Source::Head(head) => head.next_hole_before(VOLUME_DATA, at, end)?,
                Source::Snapshot(objset, _) => objset.next_hole_before(VOLUME_DATA, at, end)?,
            };
            let hole = hole.unwrap_or(end).min(end);
            found.push(Extent { length: hole - at, data: true });
            at = hole;
        }
        Ok(found)
    }

    /// The first block past a range.
    fn past(&self, offset: u64, length: u64) -> u64 {
        (offset + length).div_ceil(u64::from(self.block_size))
    }

    /// Total size in bytes of all blocks that a range touches.
    fn whole_blocks(&self, offset: u64, length: u64) -> u64 {
        (self.past(offset, length) - offset / u64::from(self.block_size)) * u64::from(self.block_size)
    }

    /// Divides a range at block boundaries into pieces that fit in a transaction.
    fn pieces(&self, offset: u64, length: u64) -> impl Iterator<Item = (u64, u64)> + use<> {
        let (most, end) = (u64::from(self.block_size) * BLOCKS_PER_TX, offset + length);
        let mut at = offset;
        std::iter::from_fn(move || {
            let next = ((at / most + 1) * most).min(end);
            (at < end).then(|| (std::mem::replace(&mut at, next), next))
        })
        .map(|(from, to)| (from, to - from))
    }
}
