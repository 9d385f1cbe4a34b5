//! Reading the directories of a source: names and `stat` data, read ahead by several threads.
//!
//! The user asks for one directory after another, in any order in which parents come before children. If no thread has
//! begun with a directory, the user's thread reads it, so nothing can block forever. Threads that are too far ahead
//! pause.

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, RawDir, Statx, StatxFlags, StatxTimestamp};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::digest::{self, Digest};
use super::filter::Filter;
use crate::beneath::{self, Mounts};
use snowmelt_zpl::{FileKind, Timestamp};

/// Maximum number of entries read ahead, over all directories.
const AHEAD_MAX: usize = 200_000;

/// Threads that read ahead.
const THREADS: usize = 4;

/// Size of the buffer for reading a directory, in bytes.
const DIRECTORY_BUFFER: usize = 64 << 10;

/// Maximum length of a path in one system call, in bytes.
const PATH_PIECE: usize = 2000;

/// The `stat` data of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceStat {
    /// Type of the file.
    pub kind: FileKind,
    /// Permission bits with setuid, setgid and sticky.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Number of hard links.
    pub links: u64,
    /// Device that contains the file.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Major and minor number, if the file is a device.
    pub rdev: (u32, u32),
    /// Time of the last read.
    pub atime: Timestamp,
    /// Time of the last change of the content.
    pub mtime: Timestamp,
    /// Time of the last change of the content or attributes.
    pub ctime: Timestamp,
    /// Time of creation, if the filesystem stores it. An inode number that is used again has another time.
    pub born: Option<Timestamp>,
}

impl SourceStat {
    /// The data of an open file.
    pub(super) fn of(file: impl AsFd) -> io::Result<Self> {
        Self::at(file, c"", AtFlags::EMPTY_PATH)
    }

    /// The data of a name in a directory. Symbolic links are not followed.
    pub(super) fn at(directory: impl AsFd, name: &CStr, flags: AtFlags) -> io::Result<Self> {
        let flags = flags | AtFlags::SYMLINK_NOFOLLOW;
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        Ok(Self::new(&rustix::fs::statx(directory, name, flags, wanted)?))
    }

    fn new(stat: &Statx) -> Self {
        let time = |time: StatxTimestamp| Timestamp { seconds: time.tv_sec, nanoseconds: time.tv_nsec };
        let mode = u32::from(stat.stx_mode);
        let has_birth = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
        Self {
            kind: FileKind::from_type_bits((mode >> 12) as u8 & 0xf),
            mode: mode & 0o7777,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            size: stat.stx_size,
            links: u64::from(stat.stx_nlink),
            device: rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor),
            inode: stat.stx_ino,
            rdev: (stat.stx_rdev_major, stat.stx_rdev_minor),
            atime: time(stat.stx_atime),
            mtime: time(stat.stx_mtime),
            ctime: time(stat.stx_ctime),
            born: has_birth.then(|| time(stat.stx_btime)),
        }
    }

    /// Whether it is the same file in the same state.
    pub fn is_unchanged(&self, since: &Self) -> bool {
        (self.kind, self.size, self.mtime, self.ctime) == (since.kind, since.size, since.mtime, since.ctime)
            && (self.device, self.inode) == (since.device, since.inode)
    }
}

/// A name in a directory of the source.
#[derive(Debug, Clone)]
pub struct SourceEntry {
    /// The name.
    pub name: Vec<u8>,
    /// Data of the named file.
    pub stat: SourceStat,
}

/// The content of a directory.
#[derive(Debug, Default)]
pub struct Listing {
    /// Entries, sorted by name.
    pub entries: Vec<SourceEntry>,
    /// Names whose data could not be read, with the errors.
    pub failures: Vec<(Vec<u8>, io::Error)>,
    /// Digest of the entries, without the times of the last read.
    pub(super) digest: Digest,
}

/// A path below the source's root: names joined by slashes. Empty for the root.
pub type SourcePath = Arc<[u8]>;

#[derive(Default)]
struct State {
    /// Known directories that no thread has begun with; the newest last.
    waiting: Vec<SourcePath>,
    begun: HashSet<SourcePath>,
    done: HashMap<SourcePath, io::Result<Listing>>,
    ahead: usize,
    closed: bool,
}

/// Reads the directories of a source.
pub struct Scan {
    root: OwnedFd,
    root_stat: SourceStat,
    filter: Filter,
    one_filesystem: bool,
    state: Mutex<State>,
    changed: Condvar,
}

impl Scan {
    /// Opens the source's root directory.
    ///
    /// # Errors
    /// If it is not a directory or cannot be opened.
    pub fn open(root: &std::path::Path, filter: Filter, one_filesystem: bool) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(root, flags, Mode::empty())?;
        let root_stat = SourceStat::of(&root)?;
        let (state, changed) = (Mutex::default(), Condvar::new());
        Ok(Self { root, root_stat, filter, one_filesystem, state, changed })
    }

    /// The `stat` data of the root.
    pub fn root_stat(&self) -> &SourceStat {
        &self.root_stat
    }

    /// Runs `work` while other threads read ahead.
    pub fn with_readers<T>(&self, work: impl FnOnce() -> T) -> T {
        self.state().waiting.push(Arc::default());
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| self.read_ahead());
            }
            let _close = Close(self);
            work()
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'s>(&self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn read_ahead(&self) {
        let mut state = self.state();
        while !state.closed {
            if state.ahead >= AHEAD_MAX || state.waiting.is_empty() {
                state = self.wait(state);
                continue;
            }
            let Some(path) = state.waiting.pop() else { continue };
            state.begun.insert(path.clone());
            drop(state);
            let listing = self.read(&path);
            state = self.state();
            state.begun.remove(&path);
            self.expect_children(&mut state, &path, &listing);
            state.ahead += listing.as_ref().map_or(0, |listing| listing.entries.len());
            state.done.insert(path, listing);
            self.changed.notify_all();
        }
    }

    /// Adds the subdirectories in reverse order, because the first one is needed first.
    fn expect_children(&self, state: &mut State, path: &SourcePath, listing: &io::Result<Listing>) {
        let Ok(listing) = listing else { return };
        for entry in listing.entries.iter().rev() {
            if entry.stat.kind == FileKind::Directory && self.enters(&entry.stat) {
                state.waiting.push(join(path, &entry.name));
            }
        }
    }

    /// Whether a directory's content is part of the source.
    pub fn enters(&self, stat: &SourceStat) -> bool {
        !self.one_filesystem || stat.device == self.root_stat.device
    }

    /// The content of the directory at `path`.
    ///
    /// # Errors
    /// If it cannot be read, for example because it no longer exists.
    pub fn listing(&self, path: &SourcePath) -> io::Result<Listing> {
        let mut state = self.state();
        loop {
            if let Some(listing) = state.done.remove(path) {
                state.ahead -= listing.as_ref().map_or(0, |listing| listing.entries.len());
                self.changed.notify_all();
                return listing;
            }
            if state.begun.contains(path) {
                state = self.wait(state);
                continue;
            }
            if let Some(at) = state.waiting.iter().rposition(|other| other == path) {
                state.waiting.remove(at);
            }
            drop(state);
            let listing = self.read(path);
            self.expect_children(&mut self.state(), path, &listing);
            self.changed.notify_all();
            return listing;
        }
    }

    fn read(&self, path: &SourcePath) -> io::Result<Listing> {
        let directory = self.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut names = Vec::new();
        let mut buf = Vec::with_capacity(DIRECTORY_BUFFER);
        let mut entries = RawDir::new(&directory, buf.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name();
            if !matches!(name.to_bytes(), b"." | b"..") {
                names.push((entry.ino(), name.to_owned()));
            }
        }
        // In the order of inodes, which is fast if they must be read from disk.
        names.sort_unstable_by_key(|(inode, _)| *inode);
        let mut listing = Listing { entries: Vec::with_capacity(names.len()), ..Listing::default() };
        for (_, name) in names {
            self.look(&directory, path, name, &mut listing);
        }
        listing.entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        listing.digest = digest::of_entries(&listing.entries, self.root_stat.device);
        Ok(listing)
    }

    fn look(&self, directory: &OwnedFd, path: &SourcePath, name: CString, listing: &mut Listing) {
        let stat = match SourceStat::at(directory, &name, AtFlags::empty()) {
            Ok(stat) => stat,
            // The file was removed after the directory was read. It counts as missing.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => {
                listing.failures.push((name.into_bytes(), error));
                return;
            }
        };
        let name = name.into_bytes();
        if !self.filter.excludes(path, &name, stat.kind == FileKind::Directory) {
            listing.entries.push(SourceEntry { name, stat });
        }
    }

    /// Opens `path` below the root without following symbolic links. Long paths are opened in pieces.
    ///
    /// # Errors
    /// Like `open`.
    pub fn open_at(&self, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if path.is_empty() {
            return Ok(rustix::fs::openat(&self.root, ".", flags, Mode::empty())?);
        }
        let mut at: Option<OwnedFd> = None;
        let mut rest = path;
        while rest.len() > PATH_PIECE {
            let cut = rest[..PATH_PIECE].iter().rposition(|byte| *byte == b'/');
            let cut = cut.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidFilename))?;
            let through = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            at = Some(self.open_beneath(at.as_ref(), &rest[..cut], through)?);
            rest = &rest[cut + 1..];
        }
        self.open_beneath(at.as_ref(), rest, flags)
    }

    fn open_beneath(&self, at: Option<&OwnedFd>, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
        let at = at.map_or(self.root.as_fd(), AsFd::as_fd);
        // Mounts below the root are part of the source, unless `one_filesystem` is set.
        beneath::open(at, path, flags, Mounts::Cross)
    }

    /// The descriptor of the root.
    pub fn root(&self) -> &OwnedFd {
        &self.root
    }
}

/// Stops the reading threads when it is dropped.
struct Close<'s>(&'s Scan);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        self.0.state().closed = true;
        self.0.changed.notify_all();
    }
}

/// Joins a path and a name.
pub fn join(path: &[u8], name: &[u8]) -> SourcePath {
    if path.is_empty() {
        return name.into();
    }
    [path, b"/", name].concat().into()
}
