//! The kernel's requests and how they are answered: the protocol of `/dev/fuse`, `include/uapi/linux/fuse.h`.
//!
//! The library `fuser` reads requests in its own loop. Each mount has its own threads, each with a buffer of 16 MiB.
//! Here, mounting (`attach`) and reading (`server`) are implemented differently, so that all mounts of a process
//! share a few threads. Only the types of `fuser` are used. [`Filesystem`] and the replies have the names of `fuser`.

mod args;
mod dispatch;
mod reply;

use std::ffi::OsStr;
use std::path::Path;

use fuser::{Errno, FileHandle, INodeNo, IoctlFlags, OpenFlags, RenameFlags, WriteFlags};
use snowmelt_zpl::{SetTime, Timestamp};

pub(crate) use dispatch::dispatch;
pub(crate) use reply::{
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
};

/// The caller.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// What `setattr` is to change.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Changes {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) atime: Option<SetTime>,
    pub(crate) mtime: Option<SetTime>,
    pub(crate) ctime: Option<Timestamp>,
}

/// A range that is copied within a filesystem.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CopyRange {
    pub(crate) from: (INodeNo, u64),
    pub(crate) to: (INodeNo, u64),
    pub(crate) len: u64,
}

macro_rules! refuse {
    ($reply:ident) => {
        $reply.error(Errno::ENOSYS)
    };
}

/// The handler of requests. A method without an own definition answers "not supported". Several threads call it at
/// the same time.
#[allow(unused_variables)]
pub(crate) trait Filesystem: Send + Sync {
    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        refuse!(reply);
    }
    fn forget(&self, ino: INodeNo, lookups: u64) {}
    fn getattr(&self, ino: INodeNo, reply: ReplyAttr) {
        refuse!(reply);
    }
    fn setattr(&self, request: &Request, ino: INodeNo, changes: &Changes, reply: ReplyAttr) {
        refuse!(reply);
    }
    fn readlink(&self, ino: INodeNo, reply: ReplyData) {
        refuse!(reply);
    }
    #[allow(clippy::too_many_arguments)]
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
        refuse!(reply);
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
        refuse!(reply);
    }
    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        refuse!(reply);
    }
    fn link(&self, request: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        refuse!(reply);
    }
    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        refuse!(reply);
    }
    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        refuse!(reply);
    }
    #[allow(clippy::too_many_arguments)]
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
        refuse!(reply);
    }
    fn open(&self, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        refuse!(reply);
    }
    #[allow(clippy::too_many_arguments)]
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
        refuse!(reply);
    }
    fn read(&self, ino: INodeNo, fh: FileHandle, offset: u64, size: u32, reply: ReplyData) {
        refuse!(reply);
    }
    #[allow(clippy::too_many_arguments)]
    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        reply: ReplyWrite,
    ) {
        refuse!(reply);
    }
    fn release(&self, ino: INodeNo, fh: FileHandle, reply: ReplyEmpty) {
        refuse!(reply);
    }
    fn fsync(&self, ino: INodeNo, fh: FileHandle, reply: ReplyEmpty) {
        refuse!(reply);
    }
    fn opendir(&self, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        refuse!(reply);
    }
    fn readdir(&self, ino: INodeNo, fh: FileHandle, offset: u64, reply: ReplyDirectory) {
        refuse!(reply);
    }
    fn readdirplus(&self, ino: INodeNo, fh: FileHandle, offset: u64, reply: ReplyDirectoryPlus) {
        refuse!(reply);
    }
    fn releasedir(&self, ino: INodeNo, fh: FileHandle, reply: ReplyEmpty) {
        self.release(ino, fh, reply);
    }
    fn fsyncdir(&self, ino: INodeNo, fh: FileHandle, reply: ReplyEmpty) {
        self.fsync(ino, fh, reply);
    }
    fn statfs(&self, reply: ReplyStatfs) {
        refuse!(reply);
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
        refuse!(reply);
    }
    fn getxattr(&self, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        refuse!(reply);
    }
    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        refuse!(reply);
    }
    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        refuse!(reply);
    }
    #[allow(clippy::too_many_arguments)]
    fn ioctl(
        &self,
        request: &Request,
        ino: INodeNo,
        flags: IoctlFlags,
        cmd: u32,
        data: &[u8],
        out_size: u32,
        reply: ReplyIoctl,
    ) {
        refuse!(reply);
    }
    #[allow(clippy::too_many_arguments)]
    fn fallocate(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        refuse!(reply);
    }
    fn lseek(&self, ino: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        refuse!(reply);
    }
    fn copy_file_range(&self, request: &Request, range: &CopyRange, reply: ReplyWrite) {
        refuse!(reply);
    }
}
