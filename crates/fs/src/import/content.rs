//! Reading the content of a source's files: data, holes, extended attributes.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, SeekFrom};
use rustix::io::Errno;

use super::scan::{Scan, SourceStat};
use crate::fsxattr::{InodeFlags, grown};
use snowmelt_zpl::FileKind;

/// Bytes read at a time.
pub(super) const CHUNK: usize = 4 << 20;

/// Extended attributes by their full names.
pub(super) type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// The destination of a file's data.
pub(super) trait Sink {
    /// The error of a failed write.
    type Error;

    /// Receives the data at `offset`.
    fn data(&mut self, offset: u64, data: &[u8]) -> Result<(), Self::Error>;

    /// Receives a range of zeros.
    fn hole(&mut self, from: u64, to: u64) -> Result<(), Self::Error>;
}

/// Why a file was not copied: the source or the sink failed.
pub(super) enum CopyError<E> {
    Source(io::Error),
    Sink(E),
}

/// Opens a regular file of the source. Its access time is not changed, if that is allowed.
pub(crate) fn open_file(scan: &Scan, path: &[u8]) -> io::Result<(OwnedFd, SourceStat)> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let file = match scan.open_at(path, flags | OFlags::NOATIME) {
        Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {
            scan.open_at(path, flags)?
        }
        other => other?,
    };
    let stat = SourceStat::of(&file)?;
    if stat.kind != FileKind::File {
        return Err(Errno::STALE.into());
    }
    Ok((file, stat))
}

/// Copies the content of a file of `size` bytes to `sink` in order. Holes are found by `SEEK_HOLE` and not read. If
/// `whole` is not 0, data begins and ends at its multiples, or at the end of the file.
///
/// Returns the number of bytes read.
pub(super) fn copy<S: Sink>(
    file: &OwnedFd,
    size: u64,
    whole: u32,
    buf: &mut Vec<u8>,
    sink: &mut S,
) -> Result<u64, CopyError<S::Error>> {
    buf.resize(CHUNK, 0);
    let (mut at, mut read) = (0, 0);
    while at < size {
        let (mut data, mut end) = extent(file, at, size).map_err(CopyError::Source)?;
        if whole != 0 && data < size {
            data = (data - data % u64::from(whole)).max(at);
            end = end.next_multiple_of(u64::from(whole)).min(size);
        }
        if data > at {
            sink.hole(at, data).map_err(CopyError::Sink)?;
        }
        at = data;
        while at < end {
            let want = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK);
            let len = read_full(file, &mut buf[..want], at).map_err(CopyError::Source)?;
            if len > 0 {
                sink.data(at, &buf[..len]).map_err(CopyError::Sink)?;
                at += len as u64;
                read += len as u64;
            }
            if len < want {
                // The file was truncated meanwhile. The rest is zeros until its size is checked again.
                sink.hole(at, size).map_err(CopyError::Sink)?;
                return Ok(read);
            }
        }
    }
    Ok(read)
}

/// The number of bytes that [`copy`] would read from a file of `size` bytes.
pub(super) fn data_len(file: &OwnedFd, size: u64) -> io::Result<u64> {
    let (mut at, mut found) = (0, 0);
    while at < size {
        let (data, end) = extent(file, at, size)?;
        found += end - data;
        at = end;
    }
    Ok(found)
}

/// Reads into `buf` from offset `at`, until `buf` is full or the file ends.
fn read_full(file: &OwnedFd, buf: &mut [u8], at: u64) -> io::Result<usize> {
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pread(file, rest, at + done as u64) {
            Ok(0) => break,
            Ok(len) => done += len,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(done)
}

/// The next data at or after `at`, as start and end.
fn extent(file: &OwnedFd, at: u64, size: u64) -> io::Result<(u64, u64)> {
    let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(data) => data.min(size),
        Err(Errno::NXIO) => return Ok((size, size)),
        // The filesystem does not report holes, so everything counts as data.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok((at, size)),
        Err(errno) => return Err(errno.into()),
    };
    match rustix::fs::seek(file, SeekFrom::Hole(data)) {
        Ok(hole) => Ok((data, hole.clamp(data, size))),
        Err(Errno::NXIO) => Ok((data, size)),
        Err(errno) => Err(errno.into()),
    }
}

/// Inode flags and project of a file or directory. `None` if they are not supported or it cannot be opened. In the
/// latter case, reading the content fails too and is reported.
pub(super) fn inode_flags(scan: &Scan, path: &[u8], kind: FileKind) -> io::Result<Option<InodeFlags>> {
    let flags = match kind {
        FileKind::File => OFlags::RDONLY | OFlags::NONBLOCK,
        FileKind::Directory => OFlags::RDONLY | OFlags::DIRECTORY,
        _ => return Ok(None),
    };
    match scan.open_at(path, flags) {
        Ok(file) => InodeFlags::of(&file),
        Err(_) => Ok(None),
    }
}

/// The target of a symbolic link.
pub(super) fn read_link(scan: &Scan, path: &[u8]) -> io::Result<Vec<u8>> {
    let (directory, name) = parent(scan, path)?;
    Ok(rustix::fs::readlinkat(&directory, name, Vec::new())?.into_bytes())
}

fn parent<'p>(scan: &Scan, path: &'p [u8]) -> io::Result<(OwnedFd, &'p OsStr)> {
    let at = path.iter().rposition(|byte| *byte == b'/');
    let (above, name) = at.map_or((&[][..], path), |at| (&path[..at], &path[at + 1..]));
    Ok((scan.open_at(above, OFlags::PATH | OFlags::DIRECTORY)?, OsStr::from_bytes(name)))
}

/// The extended attributes of the node at `path`, including POSIX ACLs. Empty if the filesystem has none.
pub(super) fn xattrs(scan: &Scan, path: &[u8]) -> io::Result<Xattrs> {
    let below = |directory: &OwnedFd, name: &OsStr| {
        PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name)
    };
    if path.is_empty() {
        return xattrs_at(&below(scan.root(), OsStr::new(".")));
    }
    let (directory, name) = parent(scan, path)?;
    xattrs_at(&below(&directory, name))
}

fn xattrs_at(place: &Path) -> io::Result<Xattrs> {
    let mut found = Xattrs::new();
    let names = match grown(|buf| rustix::fs::llistxattr(place, buf)) {
        Err(Errno::OPNOTSUPP) => return Ok(found),
        other => other?,
    };
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let c_name = CString::new(name)?;
        match grown(|buf| rustix::fs::lgetxattr(place, &c_name, buf)) {
            Ok(value) => drop(found.insert(name.to_vec(), value)),
            // The attribute was removed meanwhile, or must not be read by this user.
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(found)
}
