//! Making, finding and wiping the fixed parts of a file store.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, FileType, OFlags};
use rustix::io::Errno;

use crate::error::At;
use crate::label::{self, LABEL_LEN, Label, Layout};
use crate::ring::RING_LEN;
use crate::trusted::Place;
use crate::{CreateOptions, Result, StoreError, lock, probe};

use super::geometry::{Geometry, LABEL_A, LABEL_B, RING_BASE, SIZE_MIN, TABLE_BASE};

/// How often a busy device is tried again, and after how long: a fifth of a second in all.
const BUSY_TRIES: u32 = 20;
const BUSY_STEP: std::time::Duration = std::time::Duration::from_millis(10);

/// Opens for writing, as the only one who does.
pub(super) fn open_owned(place: &Place) -> Result<File> {
    let path = place.path();
    // Of a block device this claims the exclusive use in the kernel, too: no mount, no RAID beside us.
    let is_device = place.kind()? == FileType::BlockDevice;
    let exclusive = if is_device { OFlags::EXCL } else { OFlags::empty() };
    let mut patience = BUSY_TRIES;
    let file = loop {
        match place.medium(true, exclusive) {
            Err(StoreError::Io { source, .. })
                if is_device && Errno::from_io_error(&source) == Some(Errno::BUSY) =>
            {
                // A program that this process is just starting holds our last descriptor until its exec.
                if patience == 0 {
                    return Err(why_busy(place));
                }
                patience -= 1;
                std::thread::sleep(BUSY_STEP);
            }
            other => break other?,
        }
    };
    place.check_owner(&file)?;
    lock::exclusive(&file, path)?;
    Ok(file)
}

/// Tells another owner of the pool from a use by the kernel.
fn why_busy(place: &Place) -> StoreError {
    let path = place.path();
    match place.medium(false, OFlags::empty()).and_then(|file| lock::exclusive(&file, path)) {
        Ok(()) => StoreError::Foreign {
            path: path.to_owned(),
            what: "something that the system is using (a mounted file system, swap, RAID or LVM)".to_owned(),
        },
        Err(error) => error,
    }
}

/// The size of a file or block device.
fn size_of(mut file: &File) -> io::Result<u64> {
    file.seek(SeekFrom::End(0))
}

/// The newest valid copy of the label, checked against the size of the medium.
pub(super) fn read_label(file: &File, path: &Path) -> Result<(Label, Geometry)> {
    let not_a_pool = |why: String| StoreError::NotAPool { path: path.to_owned(), why };
    let mut best: Option<Label> = None;
    let mut why = String::new();
    for offset in [LABEL_B, LABEL_A] {
        let mut page = vec![0; LABEL_LEN];
        match file.read_exact_at(&mut page, offset) {
            Ok(()) => match Label::decode(&page) {
                Ok(label) if best.as_ref().is_none_or(|best| label.seq > best.seq) => best = Some(label),
                Ok(_) => {}
                Err(reason) => why = reason,
            },
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => why = "it is too short".to_owned(),
            // One bad sector does not hide the other copy.
            Err(error) if best.is_some() => why = error.to_string(),
            Err(error) if offset == LABEL_B => why = error.to_string(),
            Err(error) => return Err(error).at("read the label of", path),
        }
    }
    let label = best.ok_or_else(|| not_a_pool(why))?;
    let Layout::File { slot_len, slot_count, slot_base } = label.layout else {
        return Err(not_a_pool("its label belongs to a pool in a directory".to_owned()));
    };
    let geometry = Geometry { slot_len, slot_count, slot_base };
    geometry.check(size_of(file).at("measure", path)?).map_err(not_a_pool)?;
    Ok((label, geometry))
}

/// Writes one copy after the other, so that one of them is whole at every moment.
pub(super) fn write_label(file: &File, label: &Label) -> io::Result<()> {
    let page = label.encode();
    for offset in [LABEL_A, LABEL_B] {
        file.write_all_at(&page, offset)?;
        file.sync_data()?;
    }
    Ok(())
}

/// Bytes of the label's copies that are not as they should be.
pub(super) fn differing_labels(file: &File, label: &Label) -> u64 {
    let wanted = label.encode();
    let differs = |offset: &&u64| {
        let mut page = vec![0; LABEL_LEN];
        file.read_exact_at(&mut page, **offset).is_err() || page != wanted
    };
    [LABEL_A, LABEL_B].iter().filter(differs).count() as u64 * LABEL_LEN as u64
}

/// Gives space back to the host, and makes it read as zeros. Says whether it could.
pub(super) fn punch(file: &File, offset: u64, len: u64) -> bool {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    loop {
        match rustix::fs::fallocate(file, mode, offset, len) {
            Err(Errno::INTR) => {}
            other => return other.is_ok(),
        }
    }
}

/// Makes an empty pool. The labels come last: without them there is no pool.
pub(super) fn create(path: &Path, options: &CreateOptions, slot_len: Option<u64>) -> Result<()> {
    label::check_name(&options.label, path)?;
    let place = Place::find(path)?;
    let (file, made) = open_or_make(&place)?;
    let result = create_in(&file, &place, options, (made, slot_len));
    if result.is_err() && made {
        let _ = place.remove();
    }
    result
}

fn create_in(
    file: &File,
    place: &Place,
    options: &CreateOptions,
    (made, slot_len): (bool, Option<u64>),
) -> Result<()> {
    let path = place.path();
    if !made
        && !options.force
        && let Some(what) = probe::contents(file).at("read", path)?
    {
        return Err(StoreError::Foreign { path: path.to_owned(), what });
    }
    let size = settle_size(file, path, options.size)?;
    let slot_len = slot_len.unwrap_or_else(|| Geometry::slot_len_for(size));
    let geometry = Geometry::divide_by(size, slot_len).ok_or_else(|| invalid(path, size))?;
    wipe(file, &geometry).at("wipe", path)?;
    if made {
        place.sync().at("sync the directory of", path)?;
    }
    let Geometry { slot_len, slot_count, slot_base } = geometry;
    let layout = Layout::File { slot_len, slot_count, slot_base };
    let label = Label { pool: options.label.clone(), seq: 0, layout, mirror: None };
    write_label(file, &label).at("write the label of", path)
}

fn invalid(path: &Path, size: u64) -> StoreError {
    let why = format!("a pool needs at least {} MiB, not {size} bytes", SIZE_MIN >> 20);
    StoreError::Invalid { path: path.to_owned(), why }
}

/// The locked file, and whether it was made just now.
fn open_or_make(place: &Place) -> Result<(File, bool)> {
    let path = place.path();
    match place.make() {
        Ok(file) => {
            lock::exclusive(&file, path)?;
            Ok((file, true))
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok((open_owned(place)?, false)),
        Err(error) => Err(error).at("create", path),
    }
}

/// How long the slots of a pool would be that is made here.
pub(super) fn slot_len(path: &Path, options: &CreateOptions) -> Result<u64> {
    let size = match options.size {
        Some(size) => size,
        None => size_of(&Place::find(path)?.medium(false, OFlags::empty())?).at("measure", path)?,
    };
    Ok(Geometry::slot_len_for(size))
}

/// Gives a regular file the size asked for, and tells the size there is.
fn settle_size(file: &File, path: &Path, wanted: Option<u64>) -> Result<u64> {
    let size = size_of(file).at("measure", path)?;
    let Some(wanted) = wanted else {
        if size == 0 {
            let why = "a new file needs a size".to_owned();
            return Err(StoreError::Invalid { path: path.to_owned(), why });
        }
        return Ok(size);
    };
    if wanted < SIZE_MIN {
        return Err(invalid(path, wanted));
    }
    if file.metadata().at("look at", path)?.file_type().is_block_device() {
        if wanted > size {
            let why = format!("the device has {size} bytes, fewer than the {wanted} asked for");
            return Err(StoreError::Invalid { path: path.to_owned(), why });
        }
        return Ok(wanted);
    }
    file.set_len(wanted).at("set the size of", path)?;
    Ok(wanted)
}

/// Removes a pool: the labels first and durably, then all it kept.
pub(super) fn wipe(file: &File, geometry: &Geometry) -> io::Result<()> {
    for offset in [LABEL_A, LABEL_B] {
        file.write_all_at(&[0; LABEL_LEN], offset)?;
    }
    file.sync_data()?;
    zero(file, RING_BASE, RING_LEN)?;
    // Headers of another pool carry its guid and mean nothing to the next one, so this may fail.
    punch(file, TABLE_BASE, geometry.table_len());
    punch(file, geometry.slot_base, geometry.slot_len * geometry.slot_count);
    file.sync_data()
}

/// Writes zeros rather than punching a hole: a publication is then an overwrite, which costs no metadata.
fn zero(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let zeros = vec![0; usize::try_from(len).map_err(io::Error::other)?];
    file.write_all_at(&zeros, offset)
}
