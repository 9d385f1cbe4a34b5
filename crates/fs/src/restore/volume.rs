//! Restoring a volume to an image file or a block device.

use super::{Existing, Failure};
use crate::beneath::Directory;
use crate::error::FsError;
use crate::read::VolumeInfo;
use snowmelt_zpl::{Objects, ZplError};
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Number of bytes copied at a time.
const CHUNK: u64 = 1 << 20;

/// The options for restoring a volume.
#[derive(Debug, Clone, Copy, Default)]
pub struct VolumeOptions {
    /// Whether an existing image is replaced. A block device is always overwritten.
    pub existing: Existing,
}

/// Writes a volume to `path`. On a block device, holes are written as zeros. Otherwise a sparse image file is created,
/// which gets its name when it is complete and on disk. Returns the number of bytes of data written, without holes.
///
/// `progress` is called with the position in the volume, in bytes.
///
/// # Errors
/// If the volume cannot be read, the device is too small, or something cannot be written.
pub fn restore_volume<O: Objects>(
    objects: &O,
    volume: VolumeInfo,
    path: &Path,
    options: VolumeOptions,
    progress: &mut dyn FnMut(u64),
) -> Result<u64, Failure> {
    let local = |step| {
        let path = path.as_os_str().as_bytes().to_vec();
        move |source: io::Error| Failure::Local { path, step, source }
    };
    if let Some(mut device) = Directory::open_named_device(path).map_err(local("open what is there"))? {
        let size = device.seek(SeekFrom::End(0)).map_err(local("find the device's size"))?;
        if size < volume.size {
            let what = format!("it has {size} bytes, the volume {}", volume.size);
            return Err(local("restore to the device")(io::Error::new(io::ErrorKind::StorageFull, what)));
        }
        let written = copy(objects, volume, &device, true, progress, &local)?;
        device.sync_all().map_err(local("sync the device"))?;
        return Ok(written);
    }
    // All steps are relative to the directory that is opened here, even if its path changes later.
    let place = Directory::around(path).map_err(local("open the directory"))?;
    let is_there = place.stat().map_err(local("look at what is there"))?.is_some();
    if is_there && options.existing == Existing::Keep {
        return Err(local("make the image")(io::ErrorKind::AlreadyExists.into()));
    }
    let (directory, name) = (&place.directory, place.name.as_slice());
    let temporary = beside(name);
    let image = directory.create_file(&temporary).map_err(local("make the image"))?;
    let mut finish = || {
        image.set_len(volume.size).map_err(local("set the image's size"))?;
        let written = copy(objects, volume, &image, false, progress, &local)?;
        image.sync_all().map_err(local("sync the image"))?;
        match options.existing {
            Existing::Replace => directory.rename(&temporary, name),
            // Like a rename, but it never replaces a file that was created meanwhile.
            Existing::Keep => directory.link(&temporary, name).and_then(|()| directory.unlink(&temporary)),
        }
        .map_err(local("give the image its name"))?;
        Ok(written)
    };
    let result = finish();
    if result.is_err() {
        let _ = directory.unlink(&temporary);
    }
    result
}

/// A temporary name in the same directory.
fn beside(name: &[u8]) -> Vec<u8> {
    [name, format!(".snowmelt-restore-{}", std::process::id()).as_bytes()].concat()
}

fn copy<O: Objects, F: FnOnce(io::Error) -> Failure>(
    objects: &O,
    volume: VolumeInfo,
    out: &File,
    write_holes: bool,
    progress: &mut dyn FnMut(u64),
    local: &dyn Fn(&'static str) -> F,
) -> Result<u64, Failure> {
    let source = |source| {
        let source = ZplError::Source { object: volume.object, source };
        Failure::from(FsError::Zpl { path: b"volume".to_vec(), source })
    };
    let mut buf = Vec::new();
    let (mut at, mut written) = (0, 0);
    while at < volume.size {
        let data =
            objects.next_data(volume.object, at).map_err(source)?.unwrap_or(volume.size).min(volume.size);
        let hole_end = data.max(at);
        while write_holes && at < hole_end {
            buf.clear();
            buf.resize((hole_end - at).min(CHUNK) as usize, 0);
            out.write_all_at(&buf, at).map_err(local("write"))?;
            at += buf.len() as u64;
        }
        at = hole_end;
        let end = match at < volume.size {
            true => {
                objects.next_hole(volume.object, at).map_err(source)?.unwrap_or(volume.size).min(volume.size)
            }
            false => at,
        };
        if at < volume.size && end <= at {
            let error = io::Error::other("the volume's extents contradict themselves");
            return Err(local("read the volume")(error));
        }
        while at < end {
            buf.resize((end - at).min(CHUNK) as usize, 0);
            objects.read(volume.object, at, &mut buf).map_err(source)?;
            out.write_all_at(&buf, at).map_err(local("write"))?;
            at += buf.len() as u64;
            written += buf.len() as u64;
            progress(at);
        }
    }
    progress(volume.size);
    Ok(written)
}
