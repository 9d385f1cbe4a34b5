//! Importing the current content of a disk image or block device into a volume.
//!
//! The source is read once, without its holes (`SEEK_HOLE`). Unchanged blocks are not written again, so that a later
//! send contains only the changes. They are recognised when their txg is written, by the hash of the bytes that would
//! be stored. Every block is written in full or made a hole, so its old content is never needed.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::sync::atomic::{AtomicBool, Ordering};

use snowmelt_dataset::objset::view::VOLUME_DATA;
use snowmelt_dataset::{Head, Staging, VOLUME_BLOCK_DEFAULT};
use snowmelt_zpl::{ObjectsMut, Room};

use crate::VolumeError;

/// Bytes read at a time.
const CHUNK: usize = 4 << 20;

/// The result of an import.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Imported {
    /// Size of the source in bytes.
    pub size: u64,
    /// Number of bytes read, without holes.
    pub read: u64,
}

/// Why an image was not imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The source cannot be read.
    #[error("reading at offset {offset}")]
    Read {
        /// First byte.
        offset: u64,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The source is not an image that a volume can hold.
    #[error("{0}")]
    Source(String),
    /// The source is an image in a container format, whose bytes are not those of the disk.
    #[error(
        "it is a {format} image, whose bytes are not those of the disk; convert it first: \
         qemu-img convert -f {format} -O raw IMAGE disk.raw"
    )]
    Container {
        /// The name of the format in qemu-img.
        format: &'static str,
    },
    /// The volume cannot be written.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The import was stopped.
    #[error("interrupted")]
    Interrupted,
}

/// Container formats of disk images, and the bytes that they begin with.
const CONTAINERS: [(&str, &[u8]); 6] = [
    ("qcow2", b"QFI\xfb"),
    ("qed", b"QED\0"),
    ("vmdk", b"KDMV"),
    ("vmdk", b"# Disk DescriptorFile"),
    ("vhdx", b"vhdxfile"),
    ("vpc", b"conectix"),
];

/// Offset and value of the signature in a VirtualBox image, which follows a line of text.
const VDI_SIGNATURE: (usize, &[u8]) = (64, &[0x7f, 0x10, 0xda, 0xbe]);

/// The container format of the image, as named by qemu-img. `None` if the bytes are those of the disk.
///
/// # Errors
/// If the image cannot be read.
fn container(file: &File) -> Result<Option<&'static str>, ImportError> {
    let mut head = [0; 128];
    let mut length = 0;
    while length < head.len() {
        match file.read_at(&mut head[length..], length as u64) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(ImportError::Read { offset: length as u64, source }),
        }
    }
    let head = &head[..length];
    let known = CONTAINERS.iter().find(|(_, magic)| head.starts_with(magic)).map(|(format, _)| *format);
    let (at, signature) = VDI_SIGNATURE;
    Ok(known.or_else(|| head.get(at..).is_some_and(|rest| rest.starts_with(signature)).then_some("vdi")))
}

/// Size in bytes of a regular file or block device, and the size of a volume with this block size that holds it.
///
/// # Errors
/// If the source is neither, is empty, or is an image in a container format such as qcow2.
pub fn image_size(file: &File, block_size: u32) -> Result<(u64, u64), ImportError> {
    let failed = |source| ImportError::Read { offset: 0, source };
    let metadata = file.metadata().map_err(failed)?;
    let size = if metadata.file_type().is_block_device() {
        rustix::fs::seek(file, rustix::fs::SeekFrom::End(0)).map_err(|errno| failed(errno.into()))?
    } else if metadata.is_file() {
        metadata.len()
    } else {
        return Err(ImportError::Source("neither a regular file nor a block device".to_owned()));
    };
    if size == 0 {
        return Err(ImportError::Source("it is empty".to_owned()));
    }
    if let Some(format) = container(file)? {
        return Err(ImportError::Container { format });
    }
    let whole = size.checked_next_multiple_of(u64::from(block_size));
    let whole = whole.ok_or_else(|| ImportError::Source("it is too large for a volume".to_owned()))?;
    Ok((size, whole))
}

/// Block size of a new volume for an imported image.
pub fn default_block_size() -> u32 {
    VOLUME_BLOCK_DEFAULT
}

/// Reads `file` into a staged volume and gives the volume the size of the file. `progress` is called with the number of
/// bytes done. `stop` ends the import early.
///
/// # Errors
/// [`ImportError`]. Then the staged volume must be dropped.
pub fn import_image(
    file: &File,
    staging: &Staging<'_>,
    progress: &mut dyn FnMut(u64),
    stop: &AtomicBool,
) -> Result<Imported, ImportError> {
    let head = staging.head();
    let block_size = head.volume_block_size().map_err(VolumeError::from)?;
    let (size, whole) = image_size(file, block_size)?;
    if head.volume_size().map_err(VolumeError::from)? != whole {
        head.set_volume_size(whole).map_err(VolumeError::from)?;
    }
    let mut imported = Imported { size, read: 0 };
    let (mut at, mut buf) = (0, vec![0; CHUNK.next_multiple_of(block_size as usize)]);
    while at < size {
        let (data, end) = extent(file, at, size)?;
        let data = data - data % u64::from(block_size);
        let end = end.next_multiple_of(u64::from(block_size)).min(size);
        if data > at {
            zero(head, at, data)?;
        }
        at = data;
        while at < end {
            if stop.load(Ordering::Relaxed) {
                return Err(ImportError::Interrupted);
            }
            let len = (end - at).min(buf.len() as u64) as usize;
            file.read_exact_at(&mut buf[..len], at)
                .map_err(|source| ImportError::Read { offset: at, source })?;
            let tx = head.begin(Room::Write(2 * CHUNK as u64)).map_err(VolumeError::from)?;
            // The last block may be longer than the rest of the source. Nothing follows it.
            let padded = len.next_multiple_of(block_size as usize);
            buf[len..padded].fill(0);
            head.write(&tx, VOLUME_DATA, at, &buf[..padded]).map_err(VolumeError::from)?;
            drop(tx);
            at += len as u64;
            imported.read += len as u64;
            progress(at);
        }
    }
    Ok(imported)
}

/// The next data at or after `at`, as start and end.
fn extent(file: &File, at: u64, size: u64) -> Result<(u64, u64), ImportError> {
    use rustix::fs::SeekFrom;
    use rustix::io::Errno;
    let seek = |to| match rustix::fs::seek(file, to) {
        Ok(place) => Ok(Some(place.min(size))),
        Err(Errno::NXIO) => Ok(None),
        // Block devices and some filesystems do not report holes. Then everything counts as data.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some(u64::MAX)),
        Err(errno) => Err(ImportError::Read { offset: at, source: errno.into() }),
    };
    match seek(SeekFrom::Data(at))? {
        None => Ok((size, size)),
        Some(u64::MAX) => Ok((at, size)),
        Some(data) => Ok((data, seek(SeekFrom::Hole(data))?.map_or(size, |hole| hole.min(size)))),
    }
}

fn zero(head: &Head, from: u64, to: u64) -> Result<(), ImportError> {
    let room = Room::Write(2 * u64::from(head.volume_block_size().map_err(VolumeError::from)?));
    let tx = head.begin(room).map_err(VolumeError::from)?;
    Ok(head.free(&tx, VOLUME_DATA, from, to - from).map_err(VolumeError::from)?)
}
