//! Keeps an index up to date with the events of the filesystems that a tree is on (fanotify(7)). No descriptor and no
//! memory is needed for each directory.
//!
//! Events identify directories by their handles. The path of a directory is looked up when the index is updated. So a
//! directory that has moved meanwhile is found at its new place. Its move is an event too, after which it is read as a
//! whole.

mod events;
mod syscalls;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{AtFlags, Mode, OFlags};

use self::events::{Directory, NamesSeen, Pending};
use super::links::{Unsettled, unsettled};
use super::scan::{Unread, scan};
use super::update::update_changes;
use super::{Builder, IndexError};

/// The number of bytes of events that are read at once.
const BUFFER_LEN: usize = 64 << 10;
/// The longest time until the reader notices that it shall end.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
const MOUNTS: &str = "/proc/self/mountinfo";

/// A filesystem that has the tree or a part of it.
#[derive(Debug)]
struct Filesystem {
    id: u64,
    /// The path where it begins.
    path: PathBuf,
}

/// The state that the thread that reads events shares with the watch.
struct Shared {
    queue: OwnedFd,
    pending: Mutex<Pending>,
    is_over: AtomicBool,
}

/// Collects the events of a tree from its creation on.
pub struct Watch {
    root: PathBuf,
    filesystems: Vec<Filesystem>,
    /// The mounts of the tree.
    mounts: Vec<Mount>,
    shared: Arc<Shared>,
    reader: Option<JoinHandle<()>>,
    threads: usize,
    /// The paths that changed, and whether they may now be different files.
    changes: BTreeMap<Vec<u8>, bool>,
    /// There were further changes, which are unknown.
    is_lost: bool,
    /// Hard-linked files with names outside the tree, as of the last scan.
    unsettled: BTreeSet<Unsettled>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("root", &self.root).finish_non_exhaustive()
    }
}

impl Watch {
    /// Begins to watch a tree. `threads` is the number of threads for a scan.
    ///
    /// # Errors
    /// When the tree does not exist, or cannot be watched. Watching needs root, and filesystems with handles.
    pub fn begin(root: &Path, threads: usize) -> Result<Self, IndexError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| IndexError::Watch { path, source }
        };
        let root = std::fs::canonicalize(root).map_err(IndexError::io(root))?;
        let queue = syscalls::init().map_err(failed(&root))?;
        let mounts = mounts_of(&root)?;
        let mut filesystems = Vec::new();
        for path in mounts.iter().map(|mount| if root.starts_with(&mount.path) { &root } else { &mount.path })
        {
            // A mount on a file is not a directory, and has no names.
            if !std::fs::metadata(path).map_err(IndexError::io(path))?.is_dir() {
                continue;
            }
            let (directory, id) = open(path).map_err(failed(path))?;
            syscalls::mark(queue.as_fd(), directory.as_fd()).map_err(failed(path))?;
            filesystems.push(Filesystem { id, path: path.clone() });
        }
        let shared = Arc::new(Shared { queue, pending: Mutex::default(), is_over: AtomicBool::new(false) });
        let reader = std::thread::Builder::new().name("fanotify".to_owned()).spawn({
            let shared = shared.clone();
            move || shared.read()
        });
        let reader = Some(reader.map_err(failed(&root))?);
        Ok(Self {
            root,
            filesystems,
            mounts,
            shared,
            reader,
            threads,
            changes: BTreeMap::new(),
            is_lost: false,
            unsettled: BTreeSet::new(),
        })
    }

    /// Whether anything in the tree changed since the last update. Changes elsewhere on its filesystems do not count.
    ///
    /// # Errors
    /// When the mounts in the tree changed since watching began.
    pub fn has_news(&mut self) -> Result<bool, IndexError> {
        self.check_mounts()?;
        let pending = std::mem::take(&mut *self.shared.pending.lock());
        self.is_lost |= pending.is_lost;
        if !pending.directories.is_empty() {
            self.locate(pending)?;
        }
        Ok(self.is_lost || !self.changes.is_empty())
    }

    /// Simulates lost events.
    #[cfg(test)]
    pub(super) fn lose(&self) {
        self.shared.pending.lock().lose();
    }

    /// Reads the whole tree.
    ///
    /// # Errors
    /// As [`scan`]. Also when the mounts in the tree changed since watching began.
    pub fn scan(&mut self) -> Result<(Builder, Vec<Unread>), IndexError> {
        self.is_lost = false;
        let (builder, unread) = scan(&self.root, self.threads)?;
        self.unsettled = unsettled(&builder)?;
        self.check_mounts()?;
        Ok((builder, unread))
    }

    /// Updates an index that was current at the last check. It applies the changes, or reads the whole tree if changes
    /// were lost.
    ///
    /// # Errors
    /// As [`Watch::scan`]. Also when the index is damaged.
    pub fn update(&mut self, mut builder: Builder) -> Result<(Builder, Vec<Unread>), IndexError> {
        self.has_news()?;
        let changes = std::mem::take(&mut self.changes);
        if self.is_lost {
            return self.scan();
        }
        let unread = update_changes(&mut builder, &self.root, changes)?;
        // An event has one name of a file. What it means for the other names can only be read from the tree.
        let is_settled = unsettled(&builder)?.is_subset(&self.unsettled);
        if !is_settled || builder.is_sparse() {
            return self.scan();
        }
        self.check_mounts()?;
        Ok((builder, unread))
    }

    fn check_mounts(&self) -> Result<(), IndexError> {
        match mounts_of(&self.root)? == self.mounts {
            true => Ok(()),
            false => Err(IndexError::Mounts { path: self.root.clone() }),
        }
    }

    /// Adds the events to the changes, with paths in the tree.
    fn locate(&mut self, pending: Pending) -> Result<(), IndexError> {
        let mut opened = Vec::new();
        for Filesystem { id, path } in &self.filesystems {
            let (directory, found) = open(path).map_err(IndexError::io(path))?;
            if found == *id {
                opened.push((*id, directory));
            }
        }
        for (directory, names) in pending.directories {
            let mounts = opened.iter().filter(|(id, _)| *id == directory.filesystem);
            let paths: Vec<_> = mounts.filter_map(|(_, mount)| self.path_of(mount, &directory)).collect();
            paths.iter().for_each(|path| self.add_changes(path, &names));
        }
        Ok(())
    }

    fn add_changes(&mut self, directory: &[u8], names: &NamesSeen) {
        for (name, is_other) in names {
            let is_itself = name == b".";
            let path = if is_itself { directory.to_vec() } else { super::join(directory, name) };
            *self.changes.entry(path).or_default() |= *is_other && !is_itself;
        }
    }

    /// The path of a directory in the tree. `None` if it is elsewhere, or has vanished, which is an event of its
    /// parent.
    fn path_of(&self, mount: &OwnedFd, directory: &Directory) -> Option<Vec<u8>> {
        let directory = syscalls::open(mount.as_fd(), &directory.handle).ok()?;
        let proc = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&directory));
        let path =
            PathBuf::from(OsString::from_vec(rustix::fs::readlink(proc, Vec::new()).ok()?.into_bytes()));
        let below = path.strip_prefix(&self.root).ok()?;
        // The path of a directory that is not below the mount may name another directory.
        let there = rustix::fs::lstat(&path).ok()?;
        let found = rustix::fs::statat(&directory, c"", AtFlags::EMPTY_PATH).ok()?;
        let is_there = (there.st_dev, there.st_ino) == (found.st_dev, found.st_ino);
        is_there.then(|| below.as_os_str().as_bytes().to_vec())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

impl Shared {
    /// Reads events as they come, so that the kernel's queue, which has a limit, stays short.
    fn read(&self) {
        let mut buffer = vec![0; BUFFER_LEN];
        while !self.is_over.load(Ordering::Acquire) {
            let mut ends = [PollFd::new(&self.queue, PollFlags::IN)];
            if !matches!(rustix::event::poll(&mut ends, Some(&TICK)), Ok(ready) if ready > 0) {
                continue;
            }
            match rustix::io::read(&self.queue, &mut buffer[..]) {
                Ok(len) => self.pending.lock().add(buffer.get(..len).unwrap_or_default()),
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                Err(_) => self.pending.lock().lose(),
            }
        }
    }
}

/// Opens a directory, and returns the number of its filesystem. The caller closes it soon, so that filesystems can be
/// unmounted.
fn open(path: &Path) -> io::Result<(OwnedFd, u64)> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(path, flags, Mode::empty())?;
    let id = rustix::fs::fstatvfs(&directory)?.f_fsid;
    Ok((directory, id))
}

/// A mount: its number and path.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    number: u64,
    path: PathBuf,
}

/// The mount that a directory is on, and those below it.
fn mounts_of(root: &Path) -> Result<Vec<Mount>, IndexError> {
    let mut text = Vec::new();
    let read = File::open(MOUNTS).and_then(|mut file| file.read_to_end(&mut text));
    read.map_err(IndexError::io(MOUNTS))?;
    let all = text.split(|byte| *byte == b'\n').filter_map(mount);
    let (above, mut below): (Vec<_>, Vec<_>) = all
        .filter(|mount| root.starts_with(&mount.path) || mount.path.starts_with(root))
        .partition(|mount| root.starts_with(&mount.path));
    // Of several mounts at the same place, the last one is on top.
    let mut longest: Option<Mount> = None;
    for mount in above {
        if longest.as_ref().is_none_or(|longest| mount.path.starts_with(&longest.path)) {
            longest = Some(mount);
        }
    }
    below.extend(longest);
    Ok(below)
}

/// Parses a line of proc_pid_mountinfo(5). The first field is the number, the fifth is the path.
fn mount(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let number = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    Some(Mount { number, path: PathBuf::from(OsString::from_vec(unescaped(fields.nth(3)?))) })
}

/// Replaces `\ooo`, an octal number, by the byte that it stands for, for example a space.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut left = text;
    while let Some((first, rest)) = left.split_first() {
        let (byte, rest) = match left {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', rest @ ..] => {
                ((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'), rest)
            }
            _ => (*first, rest),
        };
        out.push(byte);
        left = rest;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read() {
        let line = br"36 35 98:0 /mnt1 /mnt\0402/\134x rw,noatime master:1 - ext3 /dev/root rw";
        assert_eq!(mount(line), Some(Mount { number: 36, path: PathBuf::from("/mnt 2/\\x") }));
        assert_eq!(mount(b""), None);
        let found = mounts_of(Path::new("/proc")).unwrap();
        assert_eq!(found.last().map(|mount| mount.path.as_path()), Some(Path::new("/proc")));
    }
}
