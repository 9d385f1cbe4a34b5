//! A directory of this machine as a source. Nothing leads out of it: as in a `chroot`, links and ".." end at its root.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno;

use super::inside::{Follow, open_inside};
use super::{Content, Metadata, Source, Time, xattrs};

/// The largest file that is read at once, in bytes.
const SHORT_MAX: usize = 64 << 10;

/// A directory as a source.
#[derive(Debug)]
pub struct DirectorySource {
    root: OwnedFd,
    /// Which links are followed where following is allowed.
    follow: Follow,
    /// The directory of the last lookup: its path, and a descriptor.
    last: Mutex<Option<(Vec<u8>, Arc<OwnedFd>)>>,
}

impl DirectorySource {
    /// Opens a directory.
    ///
    /// # Errors
    /// When the path does not exist, or is not a directory.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self::at(rustix::fs::open(path, flags, Mode::empty())?))
    }

    /// A source of an open directory.
    pub(crate) fn at(root: OwnedFd) -> Self {
        Self { root, follow: Follow::InRoot, last: Mutex::default() }
    }

    /// The same source, with links that are followed even outside.
    pub(crate) fn following_anywhere(self) -> Self {
        Self { follow: Follow::Anywhere, ..self }
    }

    fn open_at(&self, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
        Ok(open_inside(&self.root, path, flags, self.follow)?)
    }

    /// Opens a file of any kind without access to its content.
    fn handle(&self, path: &[u8], follow: bool) -> io::Result<OwnedFd> {
        let nofollow = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        self.open_at(path, OFlags::PATH | nofollow)
    }
}

/// The directory of a path and its last component. `None` if that is not the name of a file in it.
fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let (above, name) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&b""[..], path),
    };
    (!matches!(name, b"" | b"." | b"..")).then_some((above, name))
}

pub(crate) fn metadata_of(stat: &Statx) -> Metadata {
    let time = |time: rustix::fs::StatxTimestamp| Time { seconds: time.tv_sec, nanoseconds: time.tv_nsec };
    Metadata {
        mode: u32::from(stat.stx_mode),
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        size: stat.stx_size,
        mtime: time(stat.stx_mtime),
        atime: time(stat.stx_atime),
        rdev: (stat.stx_rdev_major, stat.stx_rdev_minor),
        links: u64::from(stat.stx_nlink),
        id: (u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor), stat.stx_ino),
    }
}

/// Which symbolic links in a path are followed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Links {
    /// The path has no links.
    None,
    /// Links that end in the tree.
    Inside {
        /// Whether the last component is followed too.
        last: bool,
    },
}

impl DirectorySource {
    /// Opens a regular file that still has the recorded size and time.
    ///
    /// # Errors
    /// `ESTALE` if the file at the path is different now.
    pub(super) fn open_known(
        &self,
        path: &[u8],
        known: &Metadata,
        links: Links,
    ) -> io::Result<Box<dyn Content>> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let (flags, follow) = match links {
            Links::None => (flags | OFlags::NOFOLLOW, Follow::Nothing),
            Links::Inside { last: false } => (flags | OFlags::NOFOLLOW, self.follow),
            Links::Inside { last: true } => (flags, self.follow),
        };
        let stale = io::Error::from(Errno::STALE);
        let fd = match open_inside(&self.root, path, flags, follow) {
            // A link, a socket, or a parent that is not a directory any more.
            Err(Errno::LOOP | Errno::NOTDIR | Errno::NXIO) => return Err(stale),
            opened => opened?,
        };
        let stat = rustix::fs::statx(&fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
        let found = metadata_of(&stat);
        if !found.is_file() || (found.size, found.mtime) != (known.size, known.mtime) {
            return Err(stale);
        }
        Ok(Box::new(OpenFile { size: found.size, file: File::from(fd) }))
    }
}

impl Source for DirectorySource {
    fn metadata(&self, path: &[u8], follow: bool) -> io::Result<Metadata> {
        let handle = self.handle(path, follow)?;
        let stat = rustix::fs::statx(&handle, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
        Ok(metadata_of(&stat))
    }

    fn read_dir(&self, path: &[u8]) -> io::Result<Vec<(Vec<u8>, io::Result<Metadata>)>> {
        let fd = self.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut found = Vec::new();
        for entry in Dir::read_from(&fd)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            let stat = rustix::fs::statx(&fd, name, flags, StatxFlags::BASIC_STATS);
            found.push((
                name.to_bytes().to_vec(),
                stat.map(|stat| metadata_of(&stat)).map_err(io::Error::from),
            ));
        }
        Ok(found)
    }

    fn read_link(&self, path: &[u8]) -> io::Result<Vec<u8>> {
        let handle = self.handle(path, false)?;
        Ok(rustix::fs::readlinkat(handle, c"", Vec::new())?.into_bytes())
    }

    fn open(&self, path: &[u8], follow: bool) -> io::Result<Box<dyn Content>> {
        Ok(Box::new(OpenFile::new(self.descriptor(path, follow)?)?))
    }

    fn open_listed(&self, path: &[u8], listed: &Metadata, follow: bool) -> io::Result<Box<dyn Content>> {
        let fd = self.descriptor(path, follow)?;
        match all_of_short(&fd, listed.size) {
            Some(content) => Ok(Box::new(Cursor::new(content))),
            None => Ok(Box::new(OpenFile::new(fd)?)),
        }
    }

    fn xattrs(&self, path: &[u8], follow: bool) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        match split(path).filter(|_| !follow) {
            Some((above, name)) => xattrs::of_name(&*self.directory(above)?, name),
            None => xattrs::of(self.handle(path, true)?),
        }
    }
}

impl DirectorySource {
    /// Opens a file for reading.
    fn descriptor(&self, path: &[u8], follow: bool) -> io::Result<OwnedFd> {
        // If a fifo were there by now, opening it would block.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        match split(path).filter(|_| !follow) {
            Some((above, name)) => {
                let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                Ok(rustix::fs::openat(&*self.directory(above)?, name, flags, Mode::empty())?)
            }
            None if follow => self.open_at(path, flags),
            None => self.open_at(path, flags | OFlags::NOFOLLOW),
        }
    }

    /// Opens a directory without access to its content. Its files are looked up one after the other, so the last
    /// directory is remembered.
    fn directory(&self, path: &[u8]) -> io::Result<Arc<OwnedFd>> {
        let mut last = self.last.lock();
        if let Some((_, directory)) = last.as_ref().filter(|(known, _)| known == path) {
            return Ok(directory.clone());
        }
        let directory = Arc::new(self.handle(path, true)?);
        *last = Some((path.to_vec(), directory.clone()));
        Ok(directory)
    }
}

/// The content of a short file, if its length is as listed. A further stat is not needed then. Fifos and sockets cannot
/// be read at an offset. A device with exactly this much content is as good as a file.
fn all_of_short(fd: &OwnedFd, listed: u64) -> Option<Vec<u8>> {
    let len = usize::try_from(listed).ok().filter(|len| (1..=SHORT_MAX).contains(len))?;
    // The buffer has room for one more byte, which must not exist.
    let mut content = Vec::with_capacity(len + 1);
    rustix::io::pread(fd, rustix::buffer::spare_capacity(&mut content), 0).ok()?;
    (content.len() == len).then_some(content)
}

impl Content for Cursor<Vec<u8>> {
    fn size(&self) -> u64 {
        self.get_ref().len() as u64
    }

    fn seek_to(&mut self, offset: u64) -> io::Result<()> {
        self.set_position(offset);
        Ok(())
    }
}

/// An open file of this machine.
struct OpenFile {
    file: File,
    size: u64,
}

impl OpenFile {
    fn new(fd: OwnedFd) -> io::Result<Self> {
        let stat = rustix::fs::fstat(&fd)?;
        if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::RegularFile {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(Self { size: u64::try_from(stat.st_size).unwrap_or_default(), file: File::from(fd) })
    }
}

impl Read for OpenFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.file.read(buffer)
    }
}

impl Content for OpenFile {
    fn size(&self) -> u64 {
        self.size
    }

    fn seek_to(&mut self, offset: u64) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(offset)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn tree() -> (tempfile::TempDir, DirectorySource) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("d")).unwrap();
        fs::write(dir.path().join("f"), "content").unwrap();
        symlink("../f", dir.path().join("d/l")).unwrap();
        let source = DirectorySource::open(dir.path()).unwrap();
        (dir, source)
    }

    #[test]
    fn paths_are_found_while_others_rename() {
        let (dir, source) = tree();
        let (here, there) = (dir.path().join("here"), dir.path().join("there"));
        fs::create_dir(&here).unwrap();
        let is_over = AtomicBool::new(false);
        let found = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    fs::rename(&here, &there).unwrap();
                    fs::rename(&there, &here).unwrap();
                }
            });
            let found: io::Result<Vec<_>> = (0..5000).map(|_| source.metadata(b"d/l", true)).collect();
            is_over.store(true, Ordering::Relaxed);
            found
        });
        assert!(found.unwrap().iter().all(|it| it.size == 7));
    }

    #[test]
    fn listed_files_are_read_as_they_are_by_now() {
        let (dir, source) = tree();
        let listed = |size| Metadata { size, mode: super::super::kind::FILE | 0o644, ..Metadata::default() };
        let long = vec![7; SHORT_MAX + 1];
        fs::write(dir.path().join("long"), &long).unwrap();
        fs::write(dir.path().join("empty"), "").unwrap();
        for (name, was, is) in [
            ("f", 7, &b"content"[..]),
            ("f", 6, b"content"),
            ("f", 8, b"content"),
            ("f", 0, b"content"),
            ("long", 7, &long),
            ("long", SHORT_MAX as u64 + 1, &long),
            ("empty", 0, b""),
            ("empty", 5, b""),
        ] {
            let mut content = source.open_listed(name.as_bytes(), &listed(was), false).unwrap();
            let (mut all, mut end) = (Vec::new(), Vec::new());
            assert_eq!(content.size(), is.len() as u64, "{name} was {was} long");
            content.read_to_end(&mut all).unwrap();
            content.seek_to(2).unwrap();
            content.read_to_end(&mut end).unwrap();
            assert!(all == is && end == is.get(2..).unwrap_or_default(), "{name} was {was} long");
        }
        // A file was replaced by one that would block, or that has no end.
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let _writer = rustix::fs::open(&fifo, OFlags::RDWR | OFlags::NONBLOCK, Mode::empty()).unwrap();
        for name in [&b"fifo"[..], b"d", b"d/l"] {
            assert!(source.open_listed(name, &listed(7), false).is_err());
        }
    }

    #[test]
    fn links_have_attributes_of_their_own() {
        let (dir, source) = tree();
        xattr::set(dir.path().join("f"), "user.a", b"1").unwrap();
        xattr::set(dir.path().join("d"), "user.d", b"2").unwrap();
        let names = |path: &[u8], follow: bool| {
            let found = source.xattrs(path, follow).unwrap();
            found.into_keys().filter(|name| name.starts_with(b"user.")).collect::<Vec<_>>()
        };
        let (a, d, none) = (vec![b"user.a".to_vec()], vec![b"user.d".to_vec()], vec![]);
        for (path, follow, expected) in [
            (&b"f"[..], false, &a),
            (b"f", true, &a),
            (b"d/l", false, &none),
            (b"d/l", true, &a),
            (b"d", false, &d),
            (b"", true, &none),
        ] {
            assert_eq!(names(path, follow), *expected, "{}", String::from_utf8_lossy(path));
        }
        assert!(source.xattrs(b"d/none", false).is_err() && source.xattrs(b"f/none", false).is_err());
    }
}
