//! Volumes: creates and resizes them. Follows `zvol_create_cb` and `zvol_set_volsize` of OpenZFS's `module/zfs/zvol.c`.

use snowmelt_stream::features::Features;
use snowmelt_zpl::memory::{MemoryObject, MemoryObjects};
use snowmelt_zpl::{Dnode, Objects, ObjectsMut, Room};

use crate::catalog::{Catalog, Dataset, Kind, PropertyKind, keys};
use crate::datasets::Datasets;
use crate::error::DatasetError;
use crate::head::Head;
use crate::name::Name;
use crate::objset::fill::fill;
use crate::objset::types;
use crate::objset::view::{VOLUME_DATA, VOLUME_PROPERTIES};
use crate::ops::create::CreateOptions;
use crate::random;

/// Default of `volblocksize`.
pub const VOLUME_BLOCK_DEFAULT: u32 = 16 << 10;

/// `DMU_OT_ZVOL_PROP`
const ZVOL_PROP: u8 = 24;
/// `ZBT_MICRO`
const MICRO_ZAP: u64 = (1 << 63) + 3;
/// Size of a new micro ZAP; `MICRO_ENTRY` is that of each entry: `value u64, cd u32, pad u16, name [50]`.
const MICRO_ZAP_LEN: usize = 512;
const MICRO_ENTRY: usize = 64;

/// A volume to create.
#[derive(Debug, Clone)]
pub struct NewVolume {
    /// Size in bytes: a multiple of the block size, not 0.
    pub size: u64,
    /// Block size in bytes: a power of two from 512 to 16 MiB.
    pub block_size: u32,
}

impl Datasets {
    /// Creates a volume that reads as zeros.
    ///
    /// # Errors
    /// When it exists, its parent does not exist, its size is not valid, its reservation is too large
    /// ([`DatasetError::OutOfSpace`]), or the pool cannot be written.
    pub fn create_volume(
        &self,
        name: &str,
        volume: &NewVolume,
        options: &CreateOptions,
    ) -> Result<(), DatasetError> {
        let name = Name::parse_dataset(name)?;
        check_size(name.dataset(), volume.size, volume.block_size)?;
        let block_size = ("volblocksize".to_owned(), volume.block_size.to_string());
        self.catalog().require_features_of(name.dataset(), &[block_size])?;
        let change = self.change_to_create(name.dataset(), &options.properties)?;
        if let Ok(existing) = change.catalog().dataset(name.dataset()) {
            return if options.parents { Ok(()) } else { Err(DatasetError::Exists { name: existing.name }) };
        }
        if options.parents {
            change.create_parents(name.dataset())?;
        }
        let mut dataset = change.create_dataset(name.dataset(), Kind::Volume, None)?;
        fill(&change.hold, &*self.pool().tree(dataset.record.head)?, &new_volume_objects(volume))?;
        if volume.block_size > 128 << 10 {
            dataset.record.content.features |= Features::LARGE_BLOCKS;
            change.put_dataset(dataset.id, &dataset.record)?;
        }
        for (property, value) in &options.properties {
            change.put(
                &keys::property(dataset.id, 0, PropertyKind::Local.code(), property),
                value.as_bytes(),
            )?;
        }
        change.commit()
    }

    /// Resizes a volume like `set volsize=`. If the whole size was reserved before, the whole size is reserved
    /// afterwards. Data beyond a smaller size is lost.
    ///
    /// # Errors
    /// As [`resize_volume`](Self::resize_volume) and [`set_properties`](Self::set_properties).
    pub fn resize_reserved_volume(&self, name: &str, size: u64) -> Result<(), DatasetError> {
        let catalog = self.catalog();
        let dataset = catalog.dataset(name)?;
        let objset = catalog.head(&dataset)?;
        let present = objset.volume_size()?;
        check_size(name, size, u32::try_from(objset.volume_block_size()?).unwrap_or(u32::MAX))?;
        let reservation = resized_reservation(&catalog, &dataset, size)?;
        let reserve = || match reservation {
            Some(bytes) => {
                let property = ("refreservation".to_owned(), bytes.to_string());
                self.set_properties(&Name::parse_dataset(name)?, &[property])
            }
            None => Ok(()),
        };
        // Before growing, the space must be reserved. A smaller volume releases its space afterwards.
        if size > present {
            reserve()?;
            return self.resize_volume(name, size);
        }
        self.resize_volume(name, size)?;
        reserve()
    }

    /// Resizes a volume, and does not change its reservation. Data beyond a smaller size is lost.
    ///
    /// # Errors
    /// [`DatasetError::WrongType`]; when the size is not valid, or the pool cannot be written.
    pub fn resize_volume(&self, name: &str, size: u64) -> Result<(), DatasetError> {
        let dataset = self.catalog().dataset(name)?;
        let objset = self.catalog().head(&dataset)?;
        let block_size = u32::try_from(objset.volume_block_size()?).unwrap_or(u32::MAX);
        check_size(name, size, block_size)?;
        let head = self.open_head(&dataset)?;
        head.set_volume_size(size).map_err(|error| DatasetError::refused(name, error.to_string()))?;
        head.sync()
    }
}

/// Space of a volume that is completely written, with indirect blocks of maximal size and seven levels for its own
/// dnode (`zvol_volsize_to_reservation` of `libzfs_dataset.c`).
pub fn volume_reservation(size: u64, block_size: u64, copies: u64) -> u64 {
    const POINTERS: u64 = 1024;
    const INDIRECT: u64 = 128 << 10;
    let (mut blocks, mut indirect) = (size / block_size.max(1), 7u64);
    while blocks > 1 {
        blocks = blocks.div_ceil(POINTERS);
        indirect += blocks;
    }
    let indirect = indirect.saturating_mul((copies + 1).min(3)).saturating_mul(INDIRECT);
    size.saturating_mul(copies).saturating_add(indirect)
}

/// The new `refreservation` of a volume that gets another size; `None` if it does not change. If the whole size was
/// reserved before, the whole size is reserved afterwards (`zfs_add_synthetic_resv` of `libzfs_dataset.c`).
///
/// # Errors
/// [`DatasetError::WrongType`]; when the pool cannot be read.
pub fn resized_reservation(
    catalog: &Catalog,
    volume: &Dataset,
    size: u64,
) -> Result<Option<u64>, DatasetError> {
    let objset = catalog.head(volume)?;
    let block_size = objset.volume_block_size()?;
    let number = |value: &str| value.parse().unwrap_or(0);
    let reserved =
        catalog.own_property(volume.id, 0, "refreservation")?.map_or(0, |(value, _)| number(&value));
    let copies = catalog.inherited_property(volume, "copies")?.map_or(1, |(value, ..)| number(&value));
    let is_whole = reserved == volume_reservation(objset.volume_size()?, block_size, copies);
    Ok(is_whole.then(|| volume_reservation(size, block_size, copies)))
}

fn check_size(name: &str, size: u64, block_size: u32) -> Result<(), DatasetError> {
    let refused = |why: String| Err(DatasetError::refused(name, why));
    if !block_size.is_power_of_two() || !(512..=16 << 20).contains(&block_size) {
        return refused("'volblocksize' must be power of 2 from 512B to 16M".to_owned());
    }
    if size == 0 {
        return refused("'volsize' cannot be zero".to_owned());
    }
    if !size.is_multiple_of(u64::from(block_size)) {
        return refused(format!("'volsize' must be a multiple of volume block size ({block_size} bytes)"));
    }
    if size > i64::MAX as u64 {
        return refused("volume size exceeds limit for this system".to_owned());
    }
    Ok(())
}

/// The objects of a new volume.
pub fn new_volume_objects(volume: &NewVolume) -> MemoryObjects {
    let data = Dnode {
        object: VOLUME_DATA,
        object_type: types::ZVOL,
        block_size: volume.block_size,
        slots: 1,
        ..Dnode::default()
    };
    let properties = Dnode {
        object: VOLUME_PROPERTIES,
        object_type: ZVOL_PROP,
        block_size: MICRO_ZAP_LEN as u32,
        slots: 1,
        ..Dnode::default()
    };
    let mut block = vec![0; MICRO_ZAP_LEN];
    block[..8].copy_from_slice(&MICRO_ZAP.to_le_bytes());
    block[8..16].copy_from_slice(&(random::guid() | 1).to_le_bytes());
    let entry = &mut block[MICRO_ENTRY..2 * MICRO_ENTRY];
    entry[..8].copy_from_slice(&volume.size.to_le_bytes());
    entry[14..18].copy_from_slice(b"size");
    let object = |dnode, blocks| MemoryObject { dnode, blocks, spill: None };
    let objects = [
        (VOLUME_DATA, object(data, [].into())),
        (VOLUME_PROPERTIES, object(properties, [(0, block)].into())),
    ];
    MemoryObjects { objects: objects.into() }
}

impl Head {
    /// Changes the size of a volume. Data beyond a smaller size is lost.
    ///
    /// # Errors
    /// When its properties are damaged, or the pool cannot be written.
    pub fn set_volume_size(&self, size: u64) -> Result<(), snowmelt_zpl::SourceError> {
        let failed = |why: &str| {
            snowmelt_zpl::SourceError::Other(Box::new(DatasetError::corrupt("volume properties", why)))
        };
        let length = Objects::dnode(self, VOLUME_PROPERTIES)?.map_or(0, |dnode| dnode.block_size as usize);
        let mut block = vec![0; length.min(128 << 10)];
        self.read(VOLUME_PROPERTIES, 0, &mut block)?;
        let place = crate::objset::view::micro_zap_entry(&block, b"size").ok_or_else(|| failed("no size"))?;
        let tx = self.begin(Room::Write(2 * block.len() as u64))?;
        self.write(&tx, VOLUME_PROPERTIES, place as u64, &size.to_le_bytes())?;
        self.free(&tx, VOLUME_DATA, size, u64::MAX)
    }
}
