//! Keeping an image file or block device equal to snapshots of a volume.
//!
//! Changed blocks are written in place. The record contains the target snapshot of an interrupted change. Then all
//! differences between the snapshot held before and that snapshot, or a later one, are written again. Without a
//! snapshot for comparison, the image is read and compared with the volume.

use super::apply::punch;
use super::nested::record_of_image;
use super::record::{Held, Phase, Progress, Record, boot};
use super::{Changes, Conflict, MirrorError, new_id};
use crate::ahead::{pieces, ranges};
use crate::beneath::{Directory, Place};
use crate::error::FsError;
use crate::read::VolumeInfo;
use rustix::fs::{FlockOperation, OFlags};
use snowmelt_zpl::{Objects, SourceError, ZplError};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Number of bytes that are read and compared at a time.
const CHUNK: u64 = 1 << 20;
/// Size in bytes of the pieces in which differences are written.
const PIECE: usize = 4096;

/// An image or block device that is kept equal to a volume.
pub struct Image {
    /// The path, for messages.
    path: PathBuf,
    /// The place of the record.
    place: Place,
    record: Record,
    file: File,
    is_device: bool,
    is_new: bool,
}

/// Which parts of the image are written.
#[derive(Clone, Copy)]
pub enum ImageChange<'a> {
    /// All parts that differ from the snapshot.
    Whole,
    /// The changes since the snapshot that the image holds.
    Since(&'a dyn Changes),
}

impl Image {
    /// Opens or creates an image that is or will be a copy of `source`, as the user names it. A block device is opened,
    /// and its record is in the directory `devices`.
    ///
    /// # Errors
    /// If the target is something else or was changed by others and `force` is not set, or if it cannot be opened.
    pub fn open(path: &Path, devices: &Path, source: &str, force: bool) -> Result<Self, MirrorError> {
        let local = |step| MirrorError::local(path, step);
        if path.as_os_str().as_encoded_bytes().ends_with(b"/") {
            return Err(local("open the image")(io::ErrorKind::IsADirectory.into()));
        }
        let around = || Directory::around(path).map_err(local("open the directory it is in"));
        let (file, is_there) = match Directory::open_named_image(path).map_err(local("open the image"))? {
            Some(file) => (file, true),
            None => {
                let place = around()?;
                (place.directory.create_file(&place.name).map_err(local("open the image"))?, false)
            }
        };
        let is_device = file.metadata().map_err(local("look at it"))?.file_type().is_block_device();
        let record = match is_device {
            true => record_of_device(path, devices)?,
            false => beside(&around()?),
        };
        Self::of(path.to_owned(), (file, is_there), record, source, force)
    }

    /// Opens or creates an image below a directory that is a copy. Block devices are never opened there.
    ///
    /// # Errors
    /// Like [`Image::open`], and if it is not a regular file. Symbolic links are not followed.
    pub fn open_at(place: &Place, source: &str, force: bool) -> Result<Self, MirrorError> {
        let path = place.path();
        let local = |step| MirrorError::local(&path, step);
        let opened = place.directory.open_file(&place.name, OFlags::RDWR).map_err(local("open the image"))?;
        let opened = match opened {
            Some(file) => (file, true),
            None => (place.directory.create_file(&place.name).map_err(local("open the image"))?, false),
        };
        let record = beside(place);
        Self::of(path, opened, record, source, force)
    }

    fn of(
        path: PathBuf,
        (mut file, is_there): (File, bool),
        record: Place,
        source: &str,
        force: bool,
    ) -> Result<Self, MirrorError> {
        let local = |step| MirrorError::local(&path, step);
        let metadata = file.metadata().map_err(local("look at it"))?;
        let is_device = metadata.file_type().is_block_device();
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(MirrorError::Busy { path });
        }
        let size = file.seek(SeekFrom::End(0)).map_err(local("find its size"))?;
        let is_new = !is_there || !is_device && size == 0;
        let inode = if is_device { metadata.rdev() } else { metadata.ino() };
        let found = Record::load(&record)?.map(|(record, _)| record).filter(|record| record.inode == inode);
        let record_of = match found {
            Some(found) => {
                if found.source != source && !force {
                    let (holds, source_name) = (found.source, source.to_owned());
                    return Err(MirrorError::OtherSource { path, holds, source_name });
                }
                let is_left = found.image.is_none_or(|left| left == left_as(&metadata, size));
                if !is_device && !is_left && found.progress.is_none() {
                    if !force {
                        let what = "it was changed";
                        let path = path.as_os_str().as_encoded_bytes().to_vec();
                        return Err(MirrorError::Conflicts { some: vec![Conflict { path, what }], count: 1 });
                    }
                    // Without `held`, the whole image is compared.
                    Record { held: None, source: source.to_owned(), ..found }
                } else {
                    Record { source: source.to_owned(), ..found }
                }
            }
            None if is_new || force => Record::new(source.to_owned(), new_id(inode), inode),
            None => return Err(MirrorError::Foreign { path }),
        };
        Ok(Self { path, place: record, record: record_of, file, is_device, is_new })
    }

    /// Like [`super::Mirror::id`].
    pub fn id(&self) -> &str {
        &self.record.id
    }

    /// Like [`super::Mirror::held`].
    pub fn held(&self) -> Option<&Held> {
        self.record.held.as_ref()
    }

    /// Like [`super::Mirror::unfinished`].
    pub fn unfinished(&self) -> Option<&Held> {
        self.record.progress.as_ref().map(|progress| &progress.to)
    }

    /// Makes the image equal to the volume in `objects`, which is the snapshot `to`. Returns the number of bytes
    /// written.
    ///
    /// `progress` is called with the position in the volume, in bytes.
    ///
    /// # Errors
    /// If the volume cannot be read, the device is too small, or something cannot be written.
    pub fn write<O: Objects>(
        &mut self,
        (objects, volume): (&O, VolumeInfo),
        change: ImageChange<'_>,
        to: &Held,
        cancelled: &AtomicBool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<u64, MirrorError> {
        let path = self.path.clone();
        let local = |step| MirrorError::local(&path, step);
        if self.is_device {
            let size = self.file.seek(SeekFrom::End(0)).map_err(local("find the device's size"))?;
            if size < volume.size {
                let what = format!("it has {size} bytes, the volume {}", volume.size);
                return Err(local("write to the device")(io::Error::new(io::ErrorKind::StorageFull, what)));
            }
        }
        let phase = if matches!(change, ImageChange::Whole) { Phase::Whole } else { Phase::Attach };
        self.record.progress = Some(Progress { to: to.clone(), phase, boot: boot(), begun: 0 });
        self.record.store(&self.place)?;
        if !self.is_device {
            self.file.set_len(volume.size).map_err(local("set the image's size"))?;
        }
        let mut writer =
            Writer { image: self, objects, volume, cancelled, progress, written: 0, hole: 0, local: &local };
        match change {
            ImageChange::Whole => writer.range(0, volume.size)?,
            ImageChange::Since(changes) => {
                let mut from = 0;
                while from < volume.size {
                    let page =
                        changes.blocks(volume.object, from).map_err(|error| unreadable(volume, error))?;
                    let Some((last, len)) = page.last().copied() else { break };
                    for (offset, len) in ranges(objects, volume.object, page, CHUNK) {
                        writer.range(offset, offset.saturating_add(len).min(volume.size))?;
                    }
                    from = last.saturating_add(len);
                }
            }
        }
        let written = writer.written;
        self.file.sync_all().map_err(local("sync the image"))?;
        let metadata = self.file.metadata().map_err(local("look at it"))?;
        self.record.image = (!self.is_device).then(|| left_as(&metadata, volume.size));
        self.record.held = Some(to.clone());
        self.record.progress = None;
        self.record.store(&self.place)?;
        self.is_new = false;
        Ok(written)
    }
}

/// The place of an image's record.
fn beside(image: &Place) -> Place {
    image.directory.place(&record_of_image(&image.name))
}

/// The place of a device's record. It is in the user's state directory `devices`, under the device's path.
fn record_of_device(path: &Path, devices: &Path) -> Result<Place, MirrorError> {
    let local = |step| MirrorError::local(path, step);
    std::fs::create_dir_all(devices).map_err(local("make the directory of its record"))?;
    let whole = path.canonicalize().map_err(local("find it"))?;
    let name = whole.as_os_str().as_bytes().iter().map(|byte| if *byte == b'/' { b'-' } else { *byte });
    let name: Vec<u8> = name.skip(1).collect();
    let directory = Directory::around(&devices.join(OsStr::from_bytes(&name)));
    directory.map_err(local("open the directory of its record"))
}

fn left_as(metadata: &std::fs::Metadata, size: u64) -> (u64, i128) {
    (size, i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec()))
}

fn unreadable(volume: VolumeInfo, source: SourceError) -> MirrorError {
    let source = ZplError::Source { object: volume.object, source };
    FsError::Zpl { path: b"volume".to_vec(), source }.into()
}

struct Writer<'a, O, L> {
    image: &'a Image,
    objects: &'a O,
    volume: VolumeInfo,
    cancelled: &'a AtomicBool,
    progress: &'a mut dyn FnMut(u64),
    written: u64,
    /// The end of the current data: up to here there is no hole. It is remembered because finding the next hole can be
    /// slow in a large volume.
    hole: u64,
    local: &'a L,
}

impl<O: Objects, L, F> Writer<'_, O, L>
where
    L: Fn(&'static str) -> F,
    F: FnOnce(io::Error) -> MirrorError,
{
    /// Makes the bytes from `at` to `to` equal to those of the volume.
    fn range(&mut self, mut at: u64, to: u64) -> Result<(), MirrorError> {
        let (volume, object) = (self.volume, self.volume.object);
        let source = |source| unreadable(volume, source);
        while at < to {
            let data = match at < self.hole {
                true => at,
                false => self.objects.next_data(object, at).map_err(source)?.unwrap_or(to).clamp(at, to),
            };
            self.hole(at, data)?;
            if data < to && data >= self.hole {
                self.hole = self.objects.next_hole(object, data).map_err(source)?.unwrap_or(volume.size);
            }
            let end = if data < to { self.hole.min(to) } else { to };
            if data < to && end <= data {
                let error = io::Error::other("the volume's extents contradict themselves");
                return Err((self.local)("read the volume")(error));
            }
            self.data(data, end)?;
            at = end;
        }
        Ok(())
    }

    fn check(&mut self, at: u64) -> Result<(), MirrorError> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(MirrorError::Interrupted);
        }
        (self.progress)(at);
        Ok(())
    }

    fn data(&mut self, at: u64, end: u64) -> Result<(), MirrorError> {
        let (mut wanted, mut found) = (Vec::new(), Vec::new());
        let object = self.volume.object;
        for (at, len) in pieces(self.objects, object, (at, end), CHUNK) {
            self.check(at)?;
            let len = len as usize;
            wanted.resize(len, 0);
            self.objects.read(object, at, &mut wanted).map_err(|source| unreadable(self.volume, source))?;
            match self.image.is_new {
                true => self.put(&wanted, at)?,
                false => {
                    found.resize(len, 0);
                    self.image.file.read_exact_at(&mut found, at).map_err((self.local)("read the image"))?;
                    let pieces = wanted.chunks(PIECE).zip(found.chunks(PIECE)).enumerate();
                    for (number, (wanted, found)) in pieces {
                        if wanted != found {
                            self.put(wanted, at + (number * PIECE) as u64)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn put(&mut self, bytes: &[u8], at: u64) -> Result<(), MirrorError> {
        self.image.file.write_all_at(bytes, at).map_err((self.local)("write the image"))?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Makes a range zero.
    fn hole(&mut self, mut at: u64, end: u64) -> Result<(), MirrorError> {
        if self.image.is_new && !self.image.is_device {
            return Ok(());
        }
        let mut found = Vec::new();
        while at < end {
            self.check(at)?;
            if !self.image.is_device {
                // A hole in the image need not be read.
                match rustix::fs::seek(&self.image.file, rustix::fs::SeekFrom::Data(at)) {
                    Ok(data) => at = data.clamp(at, end),
                    Err(rustix::io::Errno::NXIO) => return Ok(()),
                    Err(_) => {}
                }
            }
            let len = (end - at).min(CHUNK);
            found.resize(len as usize, 0);
            self.image.file.read_exact_at(&mut found, at).map_err((self.local)("read the image"))?;
            if found.iter().any(|byte| *byte != 0) {
                if self.image.is_device {
                    found.fill(0);
                    self.put(&found, at)?;
                } else {
                    punch(&self.image.file, at, len).map_err((self.local)("make a hole"))?;
                }
            }
            at += len;
        }
        Ok(())
    }
}
