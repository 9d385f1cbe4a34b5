//! Reading the content of a file or volume as a stream of bytes.

use crate::error::FsError;
use snowmelt_zpl::zap::Zap;
use snowmelt_zpl::{FileKind, Filesystem, Objects, ZplError};
use std::io::{self, Read, Seek, SeekFrom, Write};

/// `ZVOL_OBJ`: the object that holds a volume's data.
const VOLUME_DATA: u64 = 1;
/// `ZVOL_ZAP_OBJ`: the ZAP that holds a volume's size.
const VOLUME_ZAP: u64 = 2;
/// Bytes read at once.
const CHUNK: usize = 1 << 20;

/// Reads the data of one object up to a given size. Holes are zeros.
pub struct ObjectReader<'o, O> {
    objects: &'o O,
    object: u64,
    size: u64,
    at: u64,
}

impl<'o, O: Objects> ObjectReader<'o, O> {
    /// A reader over the first `size` bytes of `object`.
    pub fn new(objects: &'o O, object: u64, size: u64) -> Self {
        Self { objects, object, size, at: 0 }
    }
}

impl<O: Objects> Read for ObjectReader<'_, O> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.size.saturating_sub(self.at);
        let len = usize::try_from(left).map_or(buf.len(), |left| left.min(buf.len()));
        self.objects.read(self.object, self.at, &mut buf[..len]).map_err(io::Error::other)?;
        self.at += len as u64;
        Ok(len)
    }
}

impl<O> Seek for ObjectReader<'_, O> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.size.checked_add_signed(by),
        };
        self.at = target.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.at)
    }
}

/// A regular file's content.
pub type FileReader<'f, O> = ObjectReader<'f, O>;

/// Writes the content of a regular file to `out`. Returns the number of bytes.
///
/// # Errors
/// If `object` is not a regular file, a block cannot be read, or `out` cannot be written.
pub fn cat<O: Objects>(
    fs: &Filesystem<O>,
    path: &[u8],
    object: u64,
    out: &mut impl Write,
) -> Result<u64, FsError> {
    let attributes = fs.attributes(object).map_err(FsError::zpl(path))?;
    if attributes.kind() != FileKind::File {
        return Err(FsError::NotAFile { path: path.to_vec() });
    }
    let mut buf = vec![0; CHUNK.min(attributes.size.max(1) as usize)];
    let mut at = 0;
    loop {
        let len = fs.read(object, attributes.size, at, &mut buf).map_err(FsError::zpl(path))?;
        if len == 0 {
            return Ok(at);
        }
        out.write_all(&buf[..len])?;
        at += len as u64;
    }
}

/// The properties of a volume that its objset contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeInfo {
    /// `volsize`, bytes.
    pub size: u64,
    /// `volblocksize`, bytes.
    pub block_size: u32,
    /// The object that holds the data.
    pub object: u64,
}

/// Reads a volume's size from its objset (`module/zfs/zvol.c`).
///
/// # Errors
/// If the objset is not that of a volume.
pub fn volume_info<O: Objects>(objects: &O) -> Result<VolumeInfo, ZplError> {
    let size = Zap::open(objects, VOLUME_ZAP)?.lookup_u64("size")?;
    let size = size.ok_or(ZplError::NoObject { object: VOLUME_ZAP })?;
    let dnode =
        objects.dnode(VOLUME_DATA).map_err(|source| ZplError::Source { object: VOLUME_DATA, source })?;
    let dnode = dnode.ok_or(ZplError::NoObject { object: VOLUME_DATA })?;
    Ok(VolumeInfo { size, block_size: dnode.block_size, object: VOLUME_DATA })
}
