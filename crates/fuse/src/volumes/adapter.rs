//! The kernel's requests about volumes.
//!
//! The kernel does not cache the content of a volume (`FOPEN_DIRECT_IO`): the pool has its own cache, and others can
//! write to the volume at the same time, roll it back or resize it.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo, InitFlags, OpenAccMode,
    OpenFlags, WriteFlags,
};
use parking_lot::Mutex;
use snowmelt_dataset::DatasetError;
use snowmelt_fs::vfs::Seek;
use snowmelt_pool::PoolError;
use snowmelt_volume::{Volume, VolumeError};
use snowmelt_zpl::SourceError;

use super::tree::{Node, Tree};
use crate::attach::Wants;
use crate::kernel::{self, Allocate, Answer, Complain, FRAGMENT, NAME_MAX, TRANSFER_MAX, empty};
use crate::wire::{
    Changes, Filesystem, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, Request,
};

/// How long a name leads where it did: volumes come and go without the kernel's doing.
const NAMES_HOLD: Duration = Duration::from_secs(1);
/// Sizes may change at any time.
const ATTRIBUTES_HOLD: Duration = Duration::ZERO;
/// Background requests of the kernel.
const BACKGROUND_MAX: u16 = 16;
/// Runs of blocks looked at a time.
const RUNS: usize = 64;

/// The files that the kernel has open.
enum Opened {
    Volume(Arc<Volume>),
    /// Names, as they were when it was opened, and whether they are volumes.
    Directory(Arc<Vec<(String, bool)>>),
}

/// A [`Tree`] as the kernel wants it.
pub(super) struct Adapter {
    tree: Arc<Tree>,
    complain: Complain<VolumeError>,
    opened: Mutex<HashMap<u64, Opened>>,
    last: AtomicU64,
    begun: SystemTime,
    owner: (u32, u32),
}

fn errno(error: &VolumeError) -> Errno {
    match error {
        VolumeError::Range { .. } => Errno::ENOSPC,
        VolumeError::ReadOnly | VolumeError::Source(SourceError::ReadOnly) => Errno::EROFS,
        VolumeError::Source(SourceError::NoSpace)
        | VolumeError::Dataset(
            DatasetError::Pool(PoolError::NoSpace { .. }) | DatasetError::BeyondSpace { .. },
        ) => Errno::ENOSPC,
        VolumeError::Source(SourceError::QuotaExceeded) => Errno::EDQUOT,
        VolumeError::Dataset(DatasetError::NotFound { .. } | DatasetError::WrongType { .. }) => Errno::ENOENT,
        VolumeError::Dataset(DatasetError::Encrypted { .. }) => Errno::EACCES,
        VolumeError::Dataset(DatasetError::Busy { .. }) => Errno::EBUSY,
        VolumeError::Dataset(DatasetError::Refused { .. }) => Errno::EINVAL,
        _ => Errno::EIO,
    }
}

impl Adapter {
    pub(super) fn new(tree: Arc<Tree>, complain: Complain<VolumeError>) -> Self {
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Self {
            tree,
            complain,
            opened: Mutex::default(),
            last: AtomicU64::new(0),
            begun: SystemTime::now(),
            owner,
        }
    }

    fn told<T>(&self, result: Result<T, VolumeError>) -> Answer<T> {
        kernel::told(result, errno, &self.complain)
    }

    fn name(&self, ino: INodeNo) -> Answer<String> {
        self.tree.name(ino.0).ok_or(Errno::ESTALE)
    }

    fn attributes(&self, ino: u64, name: &str) -> Answer<FileAttr> {
        let node = self.told(self.tree.node(name))?;
        self.attributes_of(ino, &node)
    }

    fn attributes_of(&self, ino: u64, node: &Node) -> Answer<FileAttr> {
        let (kind, perm, size, stored, block_size) = match node {
            Node::Directory => (FileType::Directory, 0o755, 0, 0, FRAGMENT as u32),
            Node::Volume(volume) => {
                let perm = if self.tree.is_read_only(volume) { 0o400 } else { 0o600 };
                let size = self.told(volume.size())?;
                (FileType::RegularFile, perm, size, volume.stored(), volume.block_size())
            }
        };
        let (uid, gid) = self.owner;
        let (time, blocks) = (self.begun, stored.div_ceil(FRAGMENT));
        Ok(FileAttr {
            ino: INodeNo(ino),
            size,
            blocks,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm,
            nlink: 1,
            uid,
            gid,
            rdev: 0,
            blksize: block_size,
            flags: 0,
        })
    }

    fn find(&self, parent: INodeNo, name: &OsStr) -> Answer<FileAttr> {
        let (above, name) = (self.name(parent)?, name.to_str().ok_or(Errno::ENOENT)?);
        let full = if above.is_empty() { name.to_owned() } else { format!("{above}/{name}") };
        let node = self.told(self.tree.node(&full))?;
        let ino = self.tree.remember(&full);
        self.attributes_of(ino, &node).inspect_err(|_| self.tree.forget(ino, 1))
    }

    fn keep(&self, opened: Opened) -> FileHandle {
        let handle = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.opened.lock().insert(handle, opened);
        FileHandle(handle)
    }

    fn volume(&self, handle: FileHandle) -> Answer<Arc<Volume>> {
        match self.opened.lock().get(&handle.0) {
            Some(Opened::Volume(volume)) => Ok(volume.clone()),
            _ => Err(Errno::EBADF),
        }
    }

    /// A volume that is about to be written to: as its properties are now.
    fn written(&self, handle: FileHandle) -> Answer<Arc<Volume>> {
        let volume = self.volume(handle)?;
        self.told(self.tree.follow(&volume))?;
        Ok(volume)
    }

    fn open_volume(&self, ino: INodeNo, flags: OpenFlags) -> Answer<FileHandle> {
        let Node::Volume(volume) = self.told(self.tree.node(&self.name(ino)?))? else {
            return Err(Errno::EISDIR);
        };
        if flags.acc_mode() != OpenAccMode::O_RDONLY && self.tree.is_read_only(&volume) {
            return Err(Errno::EROFS);
        }
        // `O_TRUNC` means nothing, as with any block device.
        Ok(self.keep(Opened::Volume(volume)))
    }

    fn read_at(&self, handle: FileHandle, offset: u64, size: u32) -> Answer<Vec<u8>> {
        let volume = self.written(handle)?;
        let left = self.told(volume.size())?.saturating_sub(offset);
        let mut buf = vec![0; left.min(u64::from(size.min(TRANSFER_MAX))) as usize];
        self.told(volume.read(offset, &mut buf))?;
        Ok(buf)
    }

    /// Like a block device: bytes beyond the end are not written, and a write at the end fails with "no space".
    fn write_at(&self, handle: FileHandle, offset: u64, data: &[u8]) -> Answer<u32> {
        let volume = self.volume(handle)?;
        let left = self.told(volume.size())?.saturating_sub(offset);
        let len = usize::try_from(left).map_or(data.len(), |left| left.min(data.len()));
        if len == 0 && !data.is_empty() {
            return Err(Errno::ENOSPC);
        }
        self.told(volume.write(offset, &data[..len]))?;
        Ok(u32::try_from(len).unwrap_or(u32::MAX))
    }

    fn allocate(&self, handle: FileHandle, offset: u64, length: u64, mode: i32) -> Answer<()> {
        let volume = self.written(handle)?;
        let size = self.told(volume.size())?;
        let end = offset.checked_add(length).ok_or(Errno::EFBIG)?;
        match Allocate::of(mode)? {
            // Copy-on-write never has space that is allocated in advance.
            Allocate::Room { .. } if end <= size => Ok(()),
            Allocate::Room { .. } => Err(Errno::ENOSPC),
            Allocate::Hole | Allocate::Zeros { .. } => {
                let end = end.min(size);
                self.told(volume.zero(offset.min(end), end.saturating_sub(offset)))
            }
        }
    }

    fn seek(&self, handle: FileHandle, offset: i64, whence: i32) -> Answer<i64> {
        let wanted = matches!(kernel::seek(whence)?, Seek::Data);
        let volume = self.volume(handle)?;
        let size = self.told(volume.size())?;
        let mut at = u64::try_from(offset).ok().filter(|at| *at < size).ok_or(Errno::ENXIO)?;
        while at < size {
            for run in self.told(volume.extents(at, size - at, RUNS))? {
                if run.data == wanted {
                    return i64::try_from(at).map_err(|_| Errno::EOVERFLOW);
                }
                at += run.length;
            }
        }
        if wanted { Err(Errno::ENXIO) } else { i64::try_from(size).map_err(|_| Errno::EOVERFLOW) }
    }
}

/// The settings for the kernel.
pub(super) fn wants() -> Wants {
    let flags = InitFlags::FUSE_ASYNC_DIO
        | InitFlags::FUSE_PARALLEL_DIROPS
        | InitFlags::FUSE_ATOMIC_O_TRUNC
        | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
    Wants { flags, read_ahead: None, background: BACKGROUND_MAX }
}

impl Filesystem for Adapter {
    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.find(parent, name) {
            Ok(found) => reply.entry_with_ttls(&ATTRIBUTES_HOLD, &NAMES_HOLD, &found, Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn forget(&self, ino: INodeNo, lookups: u64) {
        self.tree.forget(ino.0, lookups);
    }

    fn getattr(&self, ino: INodeNo, reply: ReplyAttr) {
        match self.name(ino).and_then(|name| self.attributes(ino.0, &name)) {
            Ok(found) => reply.attr(&ATTRIBUTES_HOLD, &found),
            Err(error) => reply.error(error),
        }
    }

    fn setattr(&self, _request: &Request, ino: INodeNo, changes: &Changes, reply: ReplyAttr) {
        let change = || {
            if changes.mode.is_some() || changes.uid.is_some() || changes.gid.is_some() {
                return Err(Errno::EPERM);
            }
            let name = self.name(ino)?;
            if let Some(size) = changes.size {
                let Node::Volume(volume) = self.told(self.tree.node(&name))? else {
                    return Err(Errno::EISDIR);
                };
                // `dd seek=` truncates its output at the offset. A block device ignores this, and so does a volume:
                // otherwise the data after the offset would be lost. `set volsize=` makes a volume smaller.
                if size > self.told(volume.size())? {
                    self.told(self.tree.resize(&name, &volume, size))?;
                }
            }
            self.attributes(ino.0, &name)
        };
        match change() {
            Ok(found) => reply.attr(&ATTRIBUTES_HOLD, &found),
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let direct = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        match self.open_volume(ino, flags) {
            Ok(handle) => reply.opened(handle, direct | FopenFlags::FOPEN_NOFLUSH),
            Err(error) => reply.error(error),
        }
    }

    fn read(&self, _ino: INodeNo, fh: FileHandle, offset: u64, size: u32, reply: ReplyData) {
        match self.read_at(fh, offset, size) {
            Ok(data) => reply.data(&data),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _flags: WriteFlags,
        reply: ReplyWrite,
    ) {
        match self.write_at(fh, offset, data) {
            Ok(written) => reply.written(written),
            Err(error) => reply.error(error),
        }
    }

    fn release(&self, _ino: INodeNo, fh: FileHandle, reply: ReplyEmpty) {
        self.opened.lock().remove(&fh.0);
        reply.ok();
    }

    fn fsync(&self, _ino: INodeNo, fh: FileHandle, reply: ReplyEmpty) {
        empty(reply, self.volume(fh).and_then(|volume| self.told(volume.flush())));
    }

    fn fallocate(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        empty(reply, self.allocate(fh, offset, length, mode));
    }

    fn lseek(&self, _ino: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        match self.seek(fh, offset, whence) {
            Ok(at) => reply.offset(at),
            Err(error) => reply.error(error),
        }
    }

    fn opendir(&self, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let opened = self.name(ino).and_then(|name| {
            let names = self.told(self.tree.list(&name))?;
            Ok(self.keep(Opened::Directory(Arc::new(names.into_iter().collect()))))
        });
        match opened {
            Ok(handle) => reply.opened(handle, FopenFlags::empty()),
            Err(error) => reply.error(error),
        }
    }

    fn readdir(&self, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let names = match self.opened.lock().get(&fh.0) {
            Some(Opened::Directory(names)) => names.clone(),
            _ => return reply.error(Errno::EBADF),
        };
        let own = [(".".to_owned(), false), ("..".to_owned(), false)];
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (at, (name, is_volume)) in own.iter().chain(names.iter()).enumerate().skip(from) {
            let kind = if *is_volume { FileType::RegularFile } else { FileType::Directory };
            // The lookup returns the number. Until then any number except 0 is correct.
            if reply.add(INodeNo(ino.0), at as u64 + 1, kind, OsStr::new(name)) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, reply: ReplyStatfs) {
        match self.told(self.tree.datasets().pool().space().map_err(|error| DatasetError::from(error).into()))
        {
            Ok(space) => {
                let (total, free) =
                    (space.allocated.saturating_add(space.free) / FRAGMENT, space.free / FRAGMENT);
                reply.statfs(total, free, free, 0, 0, FRAGMENT as u32, NAME_MAX, FRAGMENT as u32);
            }
            Err(error) => reply.error(error),
        }
    }
}
