//! Creating, finding and wiping the labels, ring and slot table of a file store.

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

/// How often, and at which interval, the opening of a busy device is repeated: for a fifth of a second in total.
const BUSY_TRIES: u32 = 20;
const BUSY_STEP: std::time::Duration = std::time::Duration::from_millis(10);

/// Opens the file for writing, with the owner's lock.
pub(super) fn open_owned(place: &Place) -> Result<File> {
    let path = place.path();
    // For a block device, O_EXCL also claims exclusive use in the kernel, against mounts and RAID.
    let is_device = place.kind()? == FileType::BlockDevice;
    let exclusive = if is_device { OFlags::EXCL } else { OFlags::empty() };
    let mut patience = BUSY_TRIES;
    let file = loop {
        match place.medium(true, exclusive) {
            Err(StoreError::Io { source, .. })
                if is_device && Errno::from_io_error(&source) == Some(Errno::BUSY) =>
            {
                // A child process that this process has just started holds a copy of the last descriptor until its
                // exec.
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

/// Determines whether a busy device is used by another owner of the pool or by the kernel.
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

/// Returns the size of a file or block device.
fn size_of(mut file: &File) -> io::Result<u64> {
    file.seek(SeekFrom::End(0))
}

/// Returns the newest valid copy of the label, checked against the size of the medium.
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
            // A bad sector in one copy does not matter if the other copy is valid.
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

/// Writes the copies one after the other, so that at any moment one of them is valid.
pub(super) fn write_label(file: &File, label: &Label) -> io::Result<()> {
    let page = label.encode();
    for offset in [LABEL_A, LABEL_B] {
        file.write_all_at(&page, offset)?;
        file.sync_data()?;
    }
    Ok(())
}

/// Returns how many bytes of the label's copies are wrong. A copy that differs counts with all its bytes.
pub(super) fn differing_labels(file: &File, label: &Label) -> u64 {
    let wanted = label.encode();
    let differs = |offset: &&u64| {
        let mut page = vec![0; LABEL_LEN];
        file.read_exact_at(&mut page, **offset).is_err() || page != wanted
    };
    [LABEL_A, LABEL_B].iter().filter(differs).count() as u64 * LABEL_LEN as u64
}

/// Returns space to the host; afterwards it reads as zeros. Returns whether that succeeded.
pub(super) fn punch(file: &File, offset: u64, len: u64) -> bool {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    loop {
        match rustix::fs::fallocate(file, mode, offset, len) {
            Err(Errno::INTR) => {}
            other => return other.is_ok(),
        }
    }
}

/// Creates an empty pool. The labels are written last, because without them there is no pool.
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

/// Opens or makes the file, and locks it. Returns the file, and whether it was made.
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

/// Returns the slot length that a new pool at `path` would have.
pub(super) fn slot_len(path: &Path, options: &CreateOptions) -> Result<u64> {
    let size = match options.size {
        Some(size) => size,
        None => size_of(&Place::find(path)?.medium(false, OFlags::empty())?).at("measure", path)?,
    };
    Ok(Geometry::slot_len_for(size))
}

/// Sets the requested size of a regular file, and returns the actual size.
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

/// Removes a pool: first the labels, durably, then the rest.
pub(super) fn wipe(file: &File, geometry: &Geometry) -> io::Result<()> {
    for offset in [LABEL_A, LABEL_B] {
        file.write_all_at(&[0; LABEL_LEN], offset)?;
    }
    file.sync_data()?;
    zero(file, RING_BASE, RING_LEN)?;
    // Errors are ignored: the next pool ignores headers with the guid of another pool.
    punch(file, TABLE_BASE, geometry.table_len());
    punch(file, geometry.slot_base, geometry.slot_len * geometry.slot_count);
    file.sync_data()
}

/// Writes zeros instead of punching a hole. Then a publication only overwrites, without changing metadata.
fn zero(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let zeros = vec![0; usize::try_from(len).map_err(io::Error::other)?];
    file.write_all_at(&zeros, offset)
}
