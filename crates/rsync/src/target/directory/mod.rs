//! A directory of this machine as a target.
//!
//! Other users of the machine may change the tree while it is written to. The following must hold whatever they do:
//!
//! - **Nothing outside is reached.** Each name is used in a directory that is held open. Directories are opened below
//!   the root with `openat2` (`BENEATH`, `NO_SYMLINKS`, `NO_MAGICLINKS`). Where the kernel does not have it, they are
//!   opened component by component without following links. If the last component is a symbolic link, the link itself
//!   is used.
//! - **Nothing else is changed.** The file that was found at a path has an inode number. Before its attributes or
//!   content are changed, it is opened with a descriptor that gives no access to its content, and must still have that
//!   number. Devices and fifos are never opened.
//! - **No incomplete file is visible.** A file is written under a temporary name, `.NAME.XXXXXX`, with access for its
//!   writer only. It gets its attributes there, and is renamed when its content is correct. A link, device or fifo that
//!   replaces another is made in the same way. `--inplace` and `--append` write into the file itself, as they say.
//! - **After a crash** there are old files, new files, and at most one temporary file. With `--fsync` the content of a
//!   file is on disk before it is renamed.
//!
//! The receiving thread runs as the user of the module, so the kernel decides what it may do.

mod open;
mod temporary;

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, Dir, FallocateFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::fs::{UTIME_NOW, UTIME_OMIT, XattrFlags};
use rustix::io::Errno;
use snowmelt_zpl::acl::{DEFAULT, PosixAcl, Tag};
use snowmelt_zpl::{NewKind, SetAttributes, SetTime};

use self::open::{
    Directories, LastFile, hold, is_nameless, look, look_at, open_plain, open_same, path_of, split,
};
use super::{Found, Node, Target, TargetError, Ways};
use crate::history::Moment;
use crate::source::{Metadata, xattrs};

/// Permissions of files that only their writer may access.
const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);
/// The bits that a change of owner clears.
const LENDING: u32 = 0o6000;
const CHUNK: usize = 1 << 20;

/// A directory of this machine as a target.
pub struct DirectoryTarget {
    directories: Directories,
    ways: Ways,
    reading: LastFile,
    writing: LastFile,
    /// The temporary file in use. It is removed when this is dropped.
    temporary: Mutex<Option<Vec<u8>>>,
    /// The directory of the last request for the permissions of new files, and these permissions.
    mask: Mutex<Option<(Vec<u8>, u32)>>,
    umask: u32,
    is_privileged: bool,
    groups: HashSet<u32>,
}

impl DirectoryTarget {
    /// Opens a directory, which is written to as the user of this thread.
    ///
    /// # Errors
    /// When it cannot be opened, or is not a directory.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Self::at(rustix::fs::open(path, flags, Mode::empty())?)
    }

    /// A target of an open directory.
    ///
    /// # Errors
    /// When the system does not return the groups of this thread.
    pub fn at(root: OwnedFd) -> io::Result<Self> {
        let groups = rustix::process::getgroups()?.into_iter().chain([rustix::process::getegid()]);
        Ok(Self {
            directories: Directories::new(root),
            ways: Ways::default(),
            reading: LastFile::default(),
            writing: LastFile::default(),
            temporary: Mutex::default(),
            mask: Mutex::default(),
            umask: umask(),
            is_privileged: rustix::process::geteuid().is_root(),
            groups: groups.map(Gid::as_raw).collect(),
        })
    }

    /// The same target, with links that are followed even outside.
    ///
    /// # Errors
    /// When the system does not return the path of the directory.
    pub fn following_anywhere(mut self) -> io::Result<Self> {
        self.directories.allow_outside()?;
        Ok(self)
    }

    fn found(path: &[u8], metadata: Metadata) -> Found {
        Found { node: Node { id: metadata.id, way: Some(path.into()) }, metadata }
    }

    /// The file that was just created.
    fn made(&self, path: &[u8]) -> io::Result<Found> {
        let found = self.directories.with(path, |directory, name| look_at(directory, name))?;
        Ok(Self::found(path, found.ok_or(Errno::NOENT)?))
    }

    fn hold(&self, node: &Node) -> io::Result<(OwnedFd, Metadata)> {
        match way(node) {
            path if is_nameless(path) => {
                let root = self.directories.open(path, OFlags::PATH | OFlags::DIRECTORY)?;
                let found = look(&root)?;
                Ok((root, found))
            }
            path => self.directories.with(path, |directory, name| hold(directory, name, node.id)),
        }
    }

    fn reader(&self, node: &Node) -> io::Result<Arc<std::fs::File>> {
        if let Some(file) = self.reading.get(node.id) {
            return Ok(file);
        }
        let open = |directory: &OwnedFd, name: &[u8]| open_same(directory, name, OFlags::RDONLY, node.id);
        Ok(self.reading.keep(node.id, self.directories.with(way(node), open)?))
    }

    fn writer(&self, node: &Node) -> io::Result<Arc<std::fs::File>> {
        if let Some(file) = self.writing.get(node.id) {
            return Ok(file);
        }
        let open = |directory: &OwnedFd, name: &[u8]| open_same(directory, name, OFlags::WRONLY, node.id);
        Ok(self.writing.keep(node.id, self.directories.with(way(node), open)?))
    }

    /// Does something that must read or write the content of a file or directory of this user. If its permissions
    /// forbid that, they are changed for a moment.
    fn with_rights<T>(&self, node: &Node, mut work: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let error = match work() {
            Err(error) if error.raw_os_error() == Some(Errno::ACCESS.raw_os_error()) => error,
            done => return done,
        };
        let (held, found) = self.hold(node)?;
        if self.is_privileged || !found.is_file() && !found.is_dir() {
            return Err(error);
        }
        let set = |mode: u32| rustix::fs::chmod(path_of(&held), Mode::from_raw_mode(mode & 0o7777));
        if set(found.mode | PRIVATE.as_raw_mode()).is_err() {
            return Err(error);
        }
        let done = work();
        set(found.mode)?;
        done
    }

    /// An open file or directory, for changes where there is no `/proc` to change it through a descriptor without
    /// access.
    fn opened(&self, node: &Node) -> io::Result<Arc<std::fs::File>> {
        if let Some(file) = self.writing.get(node.id) {
            return Ok(file);
        }
        let file = match way(node) {
            path if is_nameless(path) => {
                self.directories.open(path, OFlags::RDONLY | OFlags::DIRECTORY)?.into()
            }
            path => self.directories.with(path, |directory, name| open_plain(directory, name, node.id))?,
        };
        Ok(Arc::new(file))
    }

    fn change_xattr(&self, node: &Node, name: &[u8], value: Option<&[u8]>) -> io::Result<()> {
        let (held, _) = self.hold(node)?;
        let flags = XattrFlags::empty();
        let done = match value {
            Some(value) => match rustix::fs::setxattr(path_of(&held), name, value, flags) {
                Err(Errno::NOENT) => rustix::fs::fsetxattr(&*self.opened(node)?, name, value, flags),
                done => done,
            },
            None => match rustix::fs::removexattr(path_of(&held), name) {
                Err(Errno::NOENT) => rustix::fs::fremovexattr(&*self.opened(node)?, name),
                done => done,
            },
        };
        match done {
            Err(Errno::NODATA) if value.is_none() => Ok(()),
            done => Ok(done?),
        }
    }

    /// Creates a file of any kind with a name in a directory.
    fn make(&self, directory: &OwnedFd, name: &[u8], kind: NewKind<'_>, permissions: u32) -> io::Result<()> {
        let mode = Mode::from_raw_mode(permissions & 0o7777);
        let node = |kind, device| rustix::fs::mknodat(directory, name, kind, mode, device);
        match kind {
            NewKind::File => {
                let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = rustix::fs::openat(directory, name, flags, PRIVATE | mode & Mode::RWXU)?;
                let id = look(&file)?.id;
                self.writing.keep(id, file.into());
            }
            NewKind::Directory => rustix::fs::mkdirat(directory, name, mode)?,
            NewKind::Symlink(target) => rustix::fs::symlinkat(target, directory, name)?,
            NewKind::Fifo => node(FileType::Fifo, 0)?,
            NewKind::Socket => node(FileType::Socket, 0)?,
            NewKind::CharDevice(major, minor) => {
                node(FileType::CharacterDevice, rustix::fs::makedev(major, minor))?;
            }
            NewKind::BlockDevice(major, minor) => {
                node(FileType::BlockDevice, rustix::fs::makedev(major, minor))?;
            }
        }
        Ok(())
    }

    /// Removes the temporary file.
    fn drop_temporary(&self) {
        if let Some(path) = self.temporary.lock().take() {
            let removed = self
                .directories
                .with(&path, |directory, name| Ok(rustix::fs::unlinkat(directory, name, AtFlags::empty())?));
            if let Err(error) = removed.or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            }) {
                tracing::warn!(%error, path = %String::from_utf8_lossy(&path), "a temporary file is left");
            }
        }
    }

    /// Copies a file with its attributes to a temporary name in another directory. ACLs are copied only `with_acls`.
    fn copy(&self, node: &Node, path: &[u8], with_acls: bool) -> io::Result<Found> {
        let before = self.metadata(node)?;
        let from = self.writing.get(node.id).map_or_else(|| self.reader(node), Ok)?;
        let mut all = self.xattrs(node)?;
        all.retain(|name, _| with_acls || !name.starts_with(b"system."));
        self.fill_temporary(path, |made| {
            let to = self.writer(&made.node)?;
            let (mut buffer, mut at) = (vec![0; CHUNK], 0);
            loop {
                let len = from.read_at(&mut buffer, at)?;
                if len == 0 {
                    break;
                }
                to.write_all_at(&buffer[..len], at)?;
                at += len as u64;
            }
            let time = |time: crate::source::Time| {
                let (seconds, nanoseconds) = (time.seconds, time.nanoseconds);
                Some(SetTime::To(snowmelt_zpl::Timestamp { seconds, nanoseconds }))
            };
            // Attributes that the file inherited from its directory.
            let inherited = self.xattrs(&made.node)?;
            for name in inherited.keys().filter(|name| !all.contains_key(*name)) {
                self.set_xattr(&made.node, name, None)?;
            }
            let has = self.metadata(&made.node)?;
            let set = SetAttributes {
                permissions: Some(before.mode & 0o7777),
                uid: Some(before.uid).filter(|uid| *uid != has.uid),
                gid: Some(before.gid).filter(|gid| *gid != has.gid),
                mtime: time(before.mtime),
                atime: time(before.atime),
                ..SetAttributes::default()
            };
            self.set_attributes(&made.node, &set)?;
            all.iter().try_for_each(|(name, value)| self.set_xattr(&made.node, name, Some(value)))
        })
    }

    fn fill_temporary(&self, path: &[u8], fill: impl FnOnce(&Found) -> io::Result<()>) -> io::Result<Found> {
        let made = self.create_temporary(path, None, NewKind::File, 0)?;
        match fill(&made) {
            Ok(()) => Ok(made),
            Err(error) => {
                self.drop_temporary();
                Err(error)
            }
        }
    }
}

impl Drop for DirectoryTarget {
    fn drop(&mut self) {
        self.drop_temporary();
    }
}

fn way(node: &Node) -> &[u8] {
    node.way.as_deref().unwrap_or_default()
}

/// The umask of this process. No system call returns it without changing it.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let text = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    text.and_then(|text| u32::from_str_radix(text.trim(), 8).ok()).unwrap_or(0o022)
}

fn timespec(time: Option<SetTime>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(SetTime::To(time)) => Timespec { tv_sec: time.seconds, tv_nsec: i64::from(time.nanoseconds) },
        Some(_) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
    }
}

impl Target for DirectoryTarget {
    fn is_staged(&self) -> bool {
        false
    }

    fn finish(self: Box<Self>, _moment: Moment, _keep: Option<usize>) -> Result<bool, TargetError> {
        Ok(true)
    }

    fn ways(&self) -> &Ways {
        &self.ways
    }

    fn depth_for_links(&self) -> Option<usize> {
        self.directories.depth()
    }

    fn stat(&self, path: &[u8]) -> io::Result<Option<Found>> {
        if is_nameless(path) {
            let root = self.directories.open(path, OFlags::PATH | OFlags::DIRECTORY)?;
            return Ok(Some(Self::found(path, look(root)?)));
        }
        let found = self.directories.with(path, |directory, name| look_at(directory, name));
        match found {
            Ok(found) => Ok(found.map(|metadata| Self::found(path, metadata))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            // A symbolic link in the path counts as something that is not a directory.
            Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
                Err(Errno::NOTDIR.into())
            }
            Err(error) => Err(error),
        }
    }

    fn metadata(&self, node: &Node) -> io::Result<Metadata> {
        match self.writing.get(node.id) {
            Some(file) => look(&*file),
            None => Ok(self.hold(node)?.1),
        }
    }

    fn list(&self, directory: &Node) -> io::Result<Vec<(Vec<u8>, Found)>> {
        let path = way(directory);
        let opened = self.directories.open(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        if look(&opened)?.id != directory.id {
            return Err(Errno::STALE.into());
        }
        let mut all = Vec::new();
        for entry in Dir::read_from(&opened)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let below = if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() };
            // A file that vanished meanwhile is left out.
            if let Some(metadata) = look_at(&opened, name)? {
                all.push((name.to_vec(), Self::found(&below, metadata)));
            }
        }
        Ok(all)
    }

    fn read_link(&self, node: &Node) -> io::Result<Vec<u8>> {
        let (link, _) = self.hold(node)?;
        Ok(rustix::fs::readlinkat(link, c"", Vec::new())?.into_bytes())
    }

    fn xattrs(&self, node: &Node) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let mut all = match way(node) {
            path if is_nameless(path) => xattrs::of(self.hold(node)?.0)?,
            path => self.with_rights(node, || {
                self.directories.with(path, |directory, name| xattrs::of_name(directory, name))
            })?,
        };
        // Only root can set the others, as with rsync.
        all.retain(|name, _| self.takes_xattr(name));
        Ok(all)
    }

    fn read(&self, node: &Node, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.reader(node)?.read_at(buffer, offset)
    }

    /// When a file is written in place, senders use only blocks behind the position of writing.
    fn is_old(&self, _node: &Node) -> bool {
        true
    }

    fn read_old(&self, (node, _): (&Node, u64), offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.reader(node)?.read_exact_at(buffer, offset)
    }

    fn create(&self, path: &[u8], kind: NewKind<'_>, permissions: u32) -> io::Result<Found> {
        self.directories.with(path, |directory, name| self.make(directory, name, kind, permissions))?;
        self.made(path)
    }

    fn create_temporary(
        &self,
        path: &[u8],
        aside: Option<&[u8]>,
        kind: NewKind<'_>,
        permissions: u32,
    ) -> io::Result<Found> {
        let (above, name) = split(path);
        let above = aside.unwrap_or(above);
        let join = |name: &[u8]| if above.is_empty() { name.to_vec() } else { [above, b"/", name].concat() };
        let (temporary, made) = temporary::make(name, |temporary| {
            let path = join(temporary);
            self.create(&path, kind, permissions)
        })?;
        self.drop_temporary();
        *self.temporary.lock() = Some(join(&temporary));
        Ok(made)
    }

    fn publish(&self, made: &Node, path: &[u8], sync: bool) -> io::Result<Node> {
        if sync && let Some(file) = self.writing.get(made.id) {
            rustix::fs::fsync(&*file)?;
        }
        let rename = |from: (&OwnedFd, &[u8]), to: (&OwnedFd, &[u8])| {
            if look_at(from.0, from.1)?.map(|found| found.id) != Some(made.id) {
                return Err(Errno::STALE.into());
            }
            Ok(rustix::fs::renameat(from.0, from.1, to.0, to.1)?)
        };
        self.ways.forget();
        match self.directories.with_both((way(made), path), rename) {
            // The directory for temporary files is on another filesystem.
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
                let copied = self.copy(made, path, true)?;
                return self.publish(&copied.node, path, sync);
            }
            done => done?,
        }
        self.writing.close();
        if self.temporary.lock().as_deref() == Some(way(made)) {
            *self.temporary.lock() = None;
        }
        Ok(Node { id: made.id, way: Some(path.into()) })
    }

    fn write(&self, node: &Node, offset: u64, data: &[u8]) -> io::Result<()> {
        self.writer(node)?.write_all_at(data, offset)
    }

    fn truncate(&self, node: &Node, size: u64) -> io::Result<()> {
        self.writer(node)?.set_len(size)
    }

    fn copy_over(&self, node: &Node, path: &[u8]) -> io::Result<Node> {
        let copied = self.copy(node, path, false)?;
        self.publish(&copied.node, path, false).inspect_err(|_| self.drop_temporary())
    }

    fn preallocate(&self, node: &Node, size: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&*self.writer(node)?, FallocateFlags::KEEP_SIZE, 0, size) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            done => Ok(done?),
        }
    }

    /// The previous content of a file is not known any more.
    fn restore(&self, _node: &Node) -> io::Result<()> {
        Ok(())
    }

    fn set_attributes(&self, node: &Node, set: &SetAttributes) -> io::Result<()> {
        let (held, before) = self.hold(node)?;
        let path = || path_of(&held);
        if set.uid.is_some() || set.gid.is_some() {
            // This number would mean "leave it unchanged", and cannot be an owner.
            let is_none = |id: Option<u32>| id == Some(u32::MAX);
            if is_none(set.uid) || is_none(set.gid) {
                return Err(Errno::INVAL.into());
            }
            let (uid, gid) = (set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw));
            rustix::fs::chownat(&held, c"", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        let lost = (set.uid.is_some() || set.gid.is_some()) && before.mode & LENDING != 0;
        let kept = lost.then_some(before.mode & 0o7777);
        if let Some(mode) = set.permissions.or(kept).filter(|_| !before.is_symlink()) {
            let mode = Mode::from_raw_mode(mode);
            match rustix::fs::chmod(path(), mode) {
                Err(Errno::NOENT) => rustix::fs::fchmod(&*self.opened(node)?, mode)?,
                done => done?,
            }
        }
        if set.mtime.is_some() || set.atime.is_some() {
            let times =
                Timestamps { last_access: timespec(set.atime), last_modification: timespec(set.mtime) };
            match rustix::fs::utimensat(&held, c"", &times, AtFlags::EMPTY_PATH) {
                // Linux before 5.8.
                Err(Errno::INVAL | Errno::NOENT) => {
                    rustix::fs::utimensat(CWD, path(), &times, AtFlags::empty())?;
                }
                done => done?,
            }
        }
        Ok(())
    }

    fn set_xattr(&self, node: &Node, name: &[u8], value: Option<&[u8]>) -> io::Result<()> {
        self.with_rights(node, || self.change_xattr(node, name, value))
    }

    fn link(&self, node: &Node, path: &[u8]) -> io::Result<()> {
        self.directories.with_both((way(node), path), |from, to| {
            Ok(rustix::fs::linkat(from.0, from.1, to.0, to.1, AtFlags::empty())?)
        })
    }

    fn link_over(&self, node: &Node, path: &[u8]) -> io::Result<()> {
        self.directories.with_both((way(node), path), |from, to| {
            let link =
                |temporary: &[u8]| Ok(rustix::fs::linkat(from.0, from.1, to.0, temporary, AtFlags::empty())?);
            let (temporary, ()) = temporary::make(to.1, link)?;
            let renamed = rustix::fs::renameat(to.0, temporary.as_slice(), to.0, to.1);
            // If both names were of the same file, the temporary name still exists.
            let _ = rustix::fs::unlinkat(to.0, temporary.as_slice(), AtFlags::empty());
            Ok(renamed?)
        })
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> io::Result<()> {
        self.ways.forget();
        self.directories.forget(from);
        self.directories
            .with_both((from, to), |from, to| Ok(rustix::fs::renameat(from.0, from.1, to.0, to.1)?))
    }

    fn remove(&self, path: &[u8], is_dir: bool) -> io::Result<()> {
        self.ways.forget();
        let flags = if is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        if is_dir {
            self.directories.forget(path);
        }
        self.directories.with(path, |directory, name| Ok(rustix::fs::unlinkat(directory, name, flags)?))?;
        if self.temporary.lock().as_deref() == Some(path) {
            *self.temporary.lock() = None;
            self.writing.close();
        }
        Ok(())
    }

    fn new_mask(&self, directory: &[u8]) -> u32 {
        if let Some((_, mask)) = self.mask.lock().as_ref().filter(|(known, _)| known == directory) {
            return *mask;
        }
        let default = self.stat(directory).ok().flatten().and_then(|found| {
            let all = self.xattrs(&found.node).ok()?;
            PosixAcl::decode(all.get(DEFAULT.as_bytes())?).ok()
        });
        let mask = default.map_or(0o777 & !self.umask, |acl| permissions_of(&acl));
        *self.mask.lock() = Some((directory.to_vec(), mask));
        mask
    }

    fn is_privileged(&self) -> bool {
        self.is_privileged
    }

    fn takes_xattr(&self, name: &[u8]) -> bool {
        self.is_privileged || name.starts_with(b"user.") || name.starts_with(b"system.")
    }

    fn can_give_to(&self, gid: u32) -> bool {
        self.is_privileged || self.groups.contains(&gid)
    }
}

/// The permissions that a default ACL gives to new files.
fn permissions_of(acl: &PosixAcl) -> u32 {
    let of =
        |tag| acl.entries.iter().find(|entry| entry.tag == tag).map(|entry| u32::from(entry.permissions));
    let group = of(Tag::Mask).or_else(|| of(Tag::GroupObj)).unwrap_or(0);
    of(Tag::UserObj).unwrap_or(0) << 6 | group << 3 | of(Tag::Other).unwrap_or(0)
}
