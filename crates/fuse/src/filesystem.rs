//! The kernel's requests, answered by a [`Vfs`].

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    Errno, FileAttr, FileHandle, FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags, OpenAccMode,
    OpenFlags, RenameFlags, WriteFlags,
};
use rustix::fs::OFlags;
use snowmelt_fs::vfs::{FileRange, OpenFor, Stat, Vfs, VfsError, Who, WriteHow};
use snowmelt_zpl::{FileKind, NewKind, NewNode, RenameMode, SetAttributes, SetXattr};

use crate::attach::Wants;
use crate::convert::{decode_device, errno, file_attr, file_type, kind_of_mode};
use crate::ioctl::ioctl;
use crate::kernel::{self, Allocate, Answer, Complain, FRAGMENT, NAME_MAX, TRANSFER_MAX, empty};
use crate::told::{NAMES_HOLD, NamesTold};
use crate::wire::{
    Changes, CopyRange, Filesystem, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
};

/// How long the kernel may cache attributes, if there is no change through it.
const ATTRIBUTES_HOLD: Duration = Duration::from_secs(10);
/// Control directories and their contents change without the kernel.
const NOT_AT_ALL: Duration = Duration::ZERO;

/// The kernel's number for the root (`FUSE_ROOT_ID`).
const ROOT: u64 = 1;
/// Background requests of the kernel: read-ahead, writes of mapped files.
const BACKGROUND_MAX: u16 = 64;
/// Directory entries fetched at once.
const ENTRIES: usize = 256;
/// Maximum number of bytes that one request copies, so that it ends in reasonable time. For more, the caller sends
/// another request.
const COPY_MAX: u64 = 64 << 20;

/// `setxattr` (`include/uapi/linux/xattr.h`).
const XATTR_CREATE: i32 = 1;
const XATTR_REPLACE: i32 = 2;

/// A [`Vfs`] as the kernel wants it.
pub(crate) struct Adapter {
    vfs: Arc<Vfs>,
    told: Arc<NamesTold>,
    complain: Complain<VfsError>,
}

thread_local! {
    /// The buffer for reads, on the way to the kernel. Zeroed once, not for each request.
    static READ: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Adapter {
    pub(crate) fn new(vfs: Arc<Vfs>, told: Arc<NamesTold>, complain: Complain<VfsError>) -> Self {
        Self { vfs, told, complain }
    }

    /// The filesystem's number for the kernel's.
    fn ino(&self, ino: INodeNo) -> Answer<u64> {
        if ino.0 == ROOT { self.checked(self.vfs.root()) } else { Ok(ino.0) }
    }

    fn checked<T>(&self, result: Result<T, VfsError>) -> Answer<T> {
        kernel::told(result, errno, &self.complain)
    }

    fn lookup_entry(&self, parent: INodeNo, name: &OsStr) -> Answer<Stat> {
        self.checked(self.vfs.lookup(self.ino(parent)?, name.as_bytes()))
    }

    fn make(&self, parent: INodeNo, name: &OsStr, new: NewNode<'_>, who: Who) -> Answer<Stat> {
        self.checked(self.vfs.create(self.ino(parent)?, name.as_bytes(), new, who))
    }

    fn open_file(&self, ino: u64, flags: OpenFlags) -> Answer<FopenFlags> {
        let has = |flag: OFlags| flags.0 & flag.bits() as i32 != 0;
        let write = flags.acc_mode() != OpenAccMode::O_RDONLY || has(OFlags::TRUNC);
        self.checked(self.vfs.open_inode(ino, OpenFor { write, append: has(OFlags::APPEND) }))?;
        Ok(FopenFlags::FOPEN_KEEP_CACHE
            | FopenFlags::FOPEN_NOFLUSH
            | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES)
    }

    /// Creates a file and opens it. The kernel sends this if it knows no such name, but the name may exist by now.
    fn create_open(
        &self,
        parent: INodeNo,
        name: &OsStr,
        new: NewNode<'_>,
        who: Who,
        flags: i32,
    ) -> Answer<(Stat, FopenFlags)> {
        let stat = match self.make(parent, name, new, who) {
            Err(error) if error == Errno::EEXIST && flags & OFlags::EXCL.bits() as i32 == 0 => {
                self.lookup_entry(parent, name)
            }
            other => other,
        }?;
        match self.open_file(stat.ino, OpenFlags(flags)) {
            Ok(opened) => Ok((stat, opened)),
            Err(error) => {
                self.vfs.forget(stat.ino, 1);
                Err(error)
            }
        }
    }

    fn change(&self, ino: INodeNo, changes: &SetAttributes, who: Who) -> Answer<Stat> {
        self.checked(self.vfs.set_attributes(self.ino(ino)?, changes, who))
    }

    /// Sends the data to `reply`.
    fn read_at(&self, ino: INodeNo, offset: u64, size: u32, reply: ReplyData) {
        READ.with_borrow_mut(|buf| {
            let size = size.min(TRANSFER_MAX) as usize;
            if buf.len() < size {
                buf.resize(size, 0);
            }
            match self.ino(ino).and_then(|ino| self.checked(self.vfs.read(ino, offset, &mut buf[..size]))) {
                Ok(len) => reply.data(&buf[..len.min(size)]),
                Err(error) => reply.error(error),
            }
        });
    }

    fn fallocate_range(&self, ino: INodeNo, range: FileRange, mode: i32, who: Who) -> Answer<()> {
        let ino = self.ino(ino)?;
        self.checked(match Allocate::of(mode)? {
            Allocate::Room { keep_size } => self.vfs.allocate(ino, range, keep_size, who),
            Allocate::Hole => self.vfs.punch_hole(ino, range, who),
            Allocate::Zeros { keep_size } => self.vfs.zero_range(ino, range, keep_size, who),
        })
    }

    fn xattr_value(&self, ino: INodeNo, name: &OsStr) -> Answer<Vec<u8>> {
        self.checked(self.vfs.xattr(self.ino(ino)?, name.as_bytes()))
    }

    fn xattr_list(&self, ino: INodeNo, who: Who) -> Answer<Vec<u8>> {
        let names = self.checked(self.vfs.xattr_names(self.ino(ino)?, who))?;
        Ok(names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect())
    }

    /// Passes entries from `offset` on to `add`, which reports when the buffer is full.
    fn list(
        &self,
        ino: INodeNo,
        offset: u64,
        mut add: impl FnMut(&Self, snowmelt_fs::vfs::Entry) -> bool,
    ) -> Answer<()> {
        let ino = self.ino(ino)?;
        let mut from = offset;
        loop {
            let entries = match self.vfs.read_dir(ino, from, ENTRIES) {
                Ok(entries) => entries,
                // The entries so far are returned first. The next request returns the error.
                Err(_) if from != offset => return Ok(()),
                Err(error) => return self.checked(Err(error)),
            };
            let Some(last) = entries.last() else { return Ok(()) };
            from = last.next;
            for entry in entries {
                if add(self, entry) {
                    return Ok(());
                }
            }
        }
    }

    /// The kernel moves its cache entry of the old name to the new name.
    fn tell_moved(&self, from: (INodeNo, u64, &OsStr), to: (INodeNo, u64, &OsStr), mode: RenameMode) {
        let exchanged = if mode == RenameMode::Exchange { Some(from) } else { None };
        for (kernel, parent, name) in std::iter::once(to).chain(exchanged) {
            if let Ok(Some(inode)) = self.vfs.leads_to(parent, name.as_bytes()) {
                self.told.tell(kernel.0, name.as_bytes(), inode);
            }
        }
    }

    /// The type of an entry's object, also if the directory does not have it.
    fn entry_type(&self, entry: &snowmelt_fs::vfs::Entry) -> fuser::FileType {
        let looked_up = || self.vfs.stat(entry.ino).ok().and_then(|stat| file_type(stat.kind()));
        file_type(entry.kind).or_else(looked_up).unwrap_or(fuser::FileType::RegularFile)
    }

    fn is_control(&self, ino: u64) -> bool {
        matches!(ino, snowmelt_fs::vfs::ino::CONTROL | snowmelt_fs::vfs::ino::SNAPSHOT_DIR)
    }

    /// How long attributes of an inode hold.
    fn attributes_hold(&self, ino: u64) -> Duration {
        if self.is_control(ino) { NOT_AT_ALL } else { ATTRIBUTES_HOLD }
    }

    /// How long a name in a directory holds that leads to `stat`; it is told from now on.
    fn tell_name(&self, parent: INodeNo, name: &OsStr, stat: &Stat) -> Duration {
        // Snapshots are destroyed and renamed without the kernel's doing.
        if self.is_control(stat.ino) || self.is_control(parent.0) {
            return NOT_AT_ALL;
        }
        self.told.tell(parent.0, name.as_bytes(), (stat.ino, stat.attributes.generation));
        NAMES_HOLD
    }
}

fn who(request: &Request) -> Who {
    Who { uid: request.uid, gid: request.gid, umask: 0 }
}

fn who_with(request: &Request, umask: u32) -> Who {
    Who { umask, ..who(request) }
}

/// Answers with the object of a name in a directory.
fn entry(adapter: &Adapter, reply: ReplyEntry, (parent, name): (INodeNo, &OsStr), answer: Answer<Stat>) {
    match answer {
        Ok(stat) => {
            let names = adapter.tell_name(parent, name, &stat);
            let attributes = adapter.attributes_hold(stat.ino);
            let generation = Generation(stat.attributes.generation);
            reply.entry_with_ttls(&attributes, &names, &file_attr(&stat), generation);
        }
        Err(error) => reply.error(error),
    }
}

fn xattr(reply: ReplyXattr, size: u32, answer: Answer<Vec<u8>>) {
    match answer {
        Ok(value) if size == 0 => reply.size(u32::try_from(value.len()).unwrap_or(u32::MAX)),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(error),
    }
}

/// The settings for the kernel.
pub(crate) fn wants(posix_acl: bool) -> Wants {
    let mut flags = InitFlags::FUSE_ASYNC_DIO
        | InitFlags::FUSE_PARALLEL_DIROPS
        | InitFlags::FUSE_DO_READDIRPLUS
        | InitFlags::FUSE_READDIRPLUS_AUTO
        | InitFlags::FUSE_CACHE_SYMLINKS
        | InitFlags::FUSE_EXPLICIT_INVAL_DATA
        | InitFlags::FUSE_HANDLE_KILLPRIV_V2
        // The umask is ours to apply: a default ACL takes its place.
        | InitFlags::FUSE_DONT_MASK;
    if posix_acl {
        flags |= InitFlags::FUSE_POSIX_ACL;
    }
    Wants { flags, read_ahead: Some(TRANSFER_MAX), background: BACKGROUND_MAX }
}

impl Filesystem for Adapter {
    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        entry(self, reply, (parent, name), self.lookup_entry(parent, name));
    }

    fn forget(&self, ino: INodeNo, lookups: u64) {
        if let (false, Ok(ino)) = (ino.0 == ROOT, self.ino(ino)) {
            self.vfs.forget(ino, lookups);
        }
    }

    fn getattr(&self, ino: INodeNo, reply: ReplyAttr) {
        let stat = self.ino(ino).and_then(|ino| self.checked(self.vfs.stat(ino)));
        match stat {
            Ok(stat) => reply.attr(&self.attributes_hold(stat.ino), &file_attr(&stat)),
            Err(error) => reply.error(error),
        }
    }

    fn setattr(&self, request: &Request, ino: INodeNo, changes: &Changes, reply: ReplyAttr) {
        let changes = SetAttributes {
            permissions: changes.mode.map(|mode| mode & 0o7777),
            uid: changes.uid,
            gid: changes.gid,
            size: changes.size,
            atime: changes.atime,
            mtime: changes.mtime,
            ctime: changes.ctime,
            ..SetAttributes::default()
        };
        match self.change(ino, &changes, who(request)) {
            Ok(stat) => reply.attr(&ATTRIBUTES_HOLD, &file_attr(&stat)),
            Err(error) => reply.error(error),
        }
    }

    fn readlink(&self, ino: INodeNo, reply: ReplyData) {
        match self.ino(ino).and_then(|ino| self.checked(self.vfs.readlink(ino))) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(error),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let (major, minor) = decode_device(rdev);
        let kind = match kind_of_mode(mode) {
            FileKind::File | FileKind::Unknown => NewKind::File,
            FileKind::Fifo => NewKind::Fifo,
            FileKind::Socket => NewKind::Socket,
            FileKind::CharDevice => NewKind::CharDevice(major, minor),
            FileKind::BlockDevice => NewKind::BlockDevice(major, minor),
            FileKind::Directory | FileKind::Symlink => return reply.error(Errno::EINVAL),
        };
        let new = NewNode { kind, permissions: mode & 0o7777 };
        entry(self, reply, (parent, name), self.make(parent, name, new, who_with(request, umask)));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let new = NewNode { kind: NewKind::Directory, permissions: mode & 0o7777 };
        entry(self, reply, (parent, name), self.make(parent, name, new, who_with(request, umask)));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let kind = NewKind::Symlink(target.as_os_str().as_bytes());
        entry(
            self,
            reply,
            (parent, name),
            self.make(parent, name, NewNode { kind, permissions: 0o777 }, who(request)),
        );
    }

    fn link(&self, request: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let linked = self.ino(ino).and_then(|ino| {
            self.checked(self.vfs.link(ino, self.ino(parent)?, name.as_bytes(), who(request)))
        });
        entry(self, reply, (parent, name), linked);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self
            .ino(parent)
            .and_then(|parent| self.checked(self.vfs.unlink(parent, name.as_bytes(), who(request))));
        empty(reply, done);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self
            .ino(parent)
            .and_then(|parent| self.checked(self.vfs.rmdir(parent, name.as_bytes(), who(request))));
        empty(reply, done);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mode = match flags {
            flags if flags.is_empty() => RenameMode::Replace,
            RenameFlags::RENAME_NOREPLACE => RenameMode::NoReplace,
            RenameFlags::RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return reply.error(Errno::EINVAL),
        };
        let rename = || {
            let (from, to) = (self.ino(parent)?, self.ino(newparent)?);
            let moved =
                self.vfs.rename((from, name.as_bytes()), (to, newname.as_bytes()), mode, who(request));
            self.checked(moved)?;
            self.tell_moved((parent, from, name), (newparent, to, newname), mode);
            Ok(())
        };
        empty(reply, rename());
    }

    fn open(&self, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.ino(ino).and_then(|ino| self.open_file(ino, flags)) {
            Ok(opened) => reply.opened(FileHandle(0), opened),
            Err(error) => reply.error(error),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let new = NewNode { kind: NewKind::File, permissions: mode & 0o7777 };
        match self.create_open(parent, name, new, who_with(request, umask), flags) {
            Ok((stat, opened)) => {
                let generation = Generation(stat.attributes.generation);
                let names = self.tell_name(parent, name, &stat);
                reply.created(&names, &ATTRIBUTES_HOLD, &file_attr(&stat), generation, opened);
            }
            Err(error) => reply.error(error),
        }
    }

    fn read(&self, ino: INodeNo, _fh: FileHandle, offset: u64, size: u32, reply: ReplyData) {
        self.read_at(ino, offset, size, reply);
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        reply: ReplyWrite,
    ) {
        let how = WriteHow { clear_setid: flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) };
        let written =
            self.ino(ino).and_then(|ino| self.checked(self.vfs.write(ino, offset, data, who(request), how)));
        match written {
            Ok(len) => reply.written(u32::try_from(len).unwrap_or(u32::MAX)),
            Err(error) => reply.error(error),
        }
    }

    fn release(&self, ino: INodeNo, _fh: FileHandle, reply: ReplyEmpty) {
        reply.ok();
        if let Ok(ino) = self.ino(ino) {
            self.vfs.close_inode(ino);
        }
    }

    fn fsync(&self, _ino: INodeNo, _fh: FileHandle, reply: ReplyEmpty) {
        empty(reply, self.checked(self.vfs.sync()));
    }

    fn opendir(&self, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let opened = self.ino(ino).and_then(|ino| {
            self.checked(self.vfs.open_inode(ino, OpenFor::default()))?;
            // Content that never changes can be cached.
            let frozen = self.vfs.is_snapshot() || snowmelt_fs::vfs::ino::is_in_snapshot(ino);
            Ok(if frozen {
                FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE
            } else {
                FopenFlags::empty()
            })
        });
        match opened {
            Ok(flags) => reply.opened(FileHandle(0), flags),
            Err(error) => reply.error(error),
        }
    }

    fn readdir(&self, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let listed = self.list(ino, offset, |adapter, entry| {
            reply.add(
                INodeNo(entry.ino),
                entry.next,
                adapter.entry_type(&entry),
                OsStr::from_bytes(&entry.name),
            )
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn readdirplus(&self, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let listed = self.list(ino, offset, |adapter, entry| adapter.add_plus(&mut reply, ino, &entry));
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn statfs(&self, reply: ReplyStatfs) {
        match self.checked(self.vfs.space()) {
            Ok(space) => {
                let free = space.available / FRAGMENT;
                let total = space.referenced.saturating_add(space.available) / FRAGMENT;
                // As many files as there would be room for (`zfs_statvfs`), those that exist not counted.
                let record = self.vfs.options().record_size;
                reply.statfs(total, free, free, free, free, record, NAME_MAX, FRAGMENT as u32);
            }
            Err(error) => reply.error(error),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        reply: ReplyEmpty,
    ) {
        let how = match flags & (XATTR_CREATE | XATTR_REPLACE) {
            XATTR_CREATE => SetXattr::Create,
            XATTR_REPLACE => SetXattr::Replace,
            0 => SetXattr::Any,
            _ => return reply.error(Errno::EINVAL),
        };
        let set =
            || self.checked(self.vfs.set_xattr(self.ino(ino)?, name.as_bytes(), value, how, who(request)));
        empty(reply, set());
    }

    fn getxattr(&self, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        xattr(reply, size, self.xattr_value(ino, name));
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        xattr(reply, size, self.xattr_list(ino, who(request)));
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let remove = || self.checked(self.vfs.remove_xattr(self.ino(ino)?, name.as_bytes(), who(request)));
        empty(reply, remove());
    }

    fn ioctl(
        &self,
        request: &Request,
        ino: INodeNo,
        _flags: IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        out_size: u32,
        reply: ReplyIoctl,
    ) {
        match self.ino(ino).and_then(|ino| ioctl(&self.vfs, ino, cmd, in_data, who(request))) {
            Ok(answer) => reply.ioctl(answer.get(..out_size as usize).unwrap_or(&answer)),
            Err(error) => reply.error(error),
        }
    }

    fn fallocate(
        &self,
        request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        empty(reply, self.fallocate_range(ino, FileRange { offset, length }, mode, who(request)));
    }

    fn lseek(&self, ino: INodeNo, _fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let what = match kernel::seek(whence) {
            Ok(what) => what,
            Err(error) => return reply.error(error),
        };
        let found = u64::try_from(offset)
            .map_err(|_| Errno::ENXIO)
            .and_then(|offset| self.checked(self.vfs.seek(self.ino(ino)?, offset, what)));
        match found {
            Ok(found) => reply.offset(i64::try_from(found).unwrap_or(i64::MAX)),
            Err(error) => reply.error(error),
        }
    }

    fn copy_file_range(&self, request: &Request, range: &CopyRange, reply: ReplyWrite) {
        let copy = || {
            let (from, to) = (self.ino(range.from.0)?, self.ino(range.to.0)?);
            let (from, to) = ((from, range.from.1), (to, range.to.1));
            self.checked(self.vfs.copy(from, to, range.len.min(COPY_MAX), who(request)))
        };
        match copy() {
            Ok(len) => reply.written(u32::try_from(len).unwrap_or(u32::MAX)),
            Err(error) => reply.error(error),
        }
    }
}

impl Adapter {
    /// Adds an entry with its attributes, which counts as a lookup. Reports when the buffer is full.
    fn add_plus(
        &self,
        reply: &mut ReplyDirectoryPlus,
        parent: INodeNo,
        entry: &snowmelt_fs::vfs::Entry,
    ) -> bool {
        let name = OsStr::from_bytes(&entry.name);
        let is_dots = matches!(entry.name.as_slice(), b"." | b"..");
        let stat = match is_dots || self.is_control(entry.ino) {
            true => None,
            false => self.vfs.stat_referred(entry.ino).ok(),
        };
        let Some(stat) = stat else {
            // Without attributes: for these the name is looked up.
            let attr = FileAttr { ino: INodeNo(entry.ino), kind: self.entry_type(entry), ..NO_ATTRIBUTES };
            return reply.add(INodeNo(0), entry.next, name, (NOT_AT_ALL, NOT_AT_ALL), &attr, Generation(0));
        };
        let generation = Generation(stat.attributes.generation);
        let holds = (NAMES_HOLD, ATTRIBUTES_HOLD);
        let full = reply.add(INodeNo(stat.ino), entry.next, name, holds, &file_attr(&stat), generation);
        match full {
            true => self.vfs.forget(stat.ino, 1),
            false => drop(self.tell_name(parent, name, &stat)),
        }
        full
    }
}

const NO_ATTRIBUTES: FileAttr = FileAttr {
    ino: INodeNo(0),
    size: 0,
    blocks: 0,
    atime: SystemTime::UNIX_EPOCH,
    mtime: SystemTime::UNIX_EPOCH,
    ctime: SystemTime::UNIX_EPOCH,
    crtime: SystemTime::UNIX_EPOCH,
    kind: fuser::FileType::RegularFile,
    perm: 0,
    nlink: 0,
    uid: 0,
    gid: 0,
    rdev: 0,
    blksize: 0,
    flags: 0,
};
