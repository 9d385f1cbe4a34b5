//! From the bytes of a request to the call that answers it.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use fuser::{Errno, FileHandle, INodeNo, IoctlFlags, OpenFlags, RenameFlags, WriteFlags};
use snowmelt_zpl::{SetTime, Timestamp};

use super::args::{Args, Header};
use super::reply::Reply;
use super::{
    Changes, CopyRange, Filesystem, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
};

/// `enum fuse_opcode`.
mod op {
    pub(super) const LOOKUP: u32 = 1;
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const SETATTR: u32 = 4;
    pub(super) const READLINK: u32 = 5;
    pub(super) const SYMLINK: u32 = 6;
    pub(super) const MKNOD: u32 = 8;
    pub(super) const MKDIR: u32 = 9;
    pub(super) const UNLINK: u32 = 10;
    pub(super) const RMDIR: u32 = 11;
    pub(super) const RENAME: u32 = 12;
    pub(super) const LINK: u32 = 13;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const WRITE: u32 = 16;
    pub(super) const STATFS: u32 = 17;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FSYNC: u32 = 20;
    pub(super) const SETXATTR: u32 = 21;
    pub(super) const GETXATTR: u32 = 22;
    pub(super) const LISTXATTR: u32 = 23;
    pub(super) const REMOVEXATTR: u32 = 24;
    pub(super) const OPENDIR: u32 = 27;
    pub(super) const READDIR: u32 = 28;
    pub(super) const RELEASEDIR: u32 = 29;
    pub(super) const FSYNCDIR: u32 = 30;
    pub(super) const CREATE: u32 = 35;
    pub(super) const DESTROY: u32 = 38;
    pub(super) const IOCTL: u32 = 39;
    pub(super) const BATCH_FORGET: u32 = 42;
    pub(super) const FALLOCATE: u32 = 43;
    pub(super) const READDIRPLUS: u32 = 44;
    pub(super) const RENAME2: u32 = 45;
    pub(super) const LSEEK: u32 = 46;
    pub(super) const COPY_FILE_RANGE: u32 = 47;
}

/// Which words of `struct fuse_setattr_in` count (`FATTR_*`).
mod fattr {
    pub(super) const MODE: u32 = 1;
    pub(super) const UID: u32 = 1 << 1;
    pub(super) const GID: u32 = 1 << 2;
    pub(super) const SIZE: u32 = 1 << 3;
    pub(super) const ATIME: u32 = 1 << 4;
    pub(super) const MTIME: u32 = 1 << 5;
    pub(super) const ATIME_NOW: u32 = 1 << 7;
    pub(super) const MTIME_NOW: u32 = 1 << 8;
    pub(super) const CTIME: u32 = 1 << 10;
}

/// Lets `filesystem` answer a request that was read from `device`. Unknown or invalid requests are refused.
pub(crate) fn dispatch(filesystem: &dyn Filesystem, device: &Arc<File>, request: &[u8]) {
    let Some((header, args)) = Args::of(request) else { return };
    let call = Call { filesystem, device, header };
    let understood = match header.opcode {
        op::FORGET | op::BATCH_FORGET => call.forget(args),
        op::LOOKUP | op::GETATTR | op::SETATTR | op::READLINK | op::STATFS => call.ask(args),
        op::SYMLINK | op::MKNOD | op::MKDIR | op::LINK | op::CREATE => call.make(args),
        op::UNLINK | op::RMDIR | op::RENAME | op::RENAME2 => call.change_names(args),
        op::SETXATTR | op::GETXATTR | op::LISTXATTR | op::REMOVEXATTR => call.xattrs(args),
        op::OPENDIR | op::READDIR | op::READDIRPLUS | op::RELEASEDIR | op::FSYNCDIR => call.directory(args),
        op::DESTROY => {
            ReplyEmpty(call.reply()).ok();
            Some(())
        }
        _ => call.file(args),
    };
    // An answer that was begun is given by then; the kernel does not mind a second one.
    if understood.is_none() {
        call.reply().error(Errno::EINVAL);
    }
}

struct Call<'a> {
    filesystem: &'a dyn Filesystem,
    device: &'a Arc<File>,
    header: Header,
}

impl Call<'_> {
    fn reply(&self) -> Reply {
        Reply::new(self.device, self.header.unique)
    }

    fn request(&self) -> Request {
        Request { uid: self.header.uid, gid: self.header.gid }
    }

    fn ino(&self) -> INodeNo {
        INodeNo(self.header.node)
    }

    /// These have no answer.
    fn forget(&self, mut args: Args<'_>) -> Option<()> {
        if self.header.opcode == op::FORGET {
            if let Some(lookups) = args.u64() {
                self.filesystem.forget(self.ino(), lookups);
            }
            return Some(());
        }
        let count = args.u32().unwrap_or(0);
        args.skip(4)?;
        for _ in 0..count {
            let (Some(node), Some(lookups)) = (args.u64(), args.u64()) else { break };
            self.filesystem.forget(INodeNo(node), lookups);
        }
        Some(())
    }

    fn ask(&self, mut args: Args<'_>) -> Option<()> {
        let (fs, ino) = (self.filesystem, self.ino());
        match self.header.opcode {
            op::LOOKUP => fs.lookup(&self.request(), ino, args.name()?, ReplyEntry(self.reply())),
            op::GETATTR => fs.getattr(ino, ReplyAttr(self.reply())),
            op::SETATTR => fs.setattr(&self.request(), ino, &changes(&mut args)?, ReplyAttr(self.reply())),
            op::READLINK => fs.readlink(ino, ReplyData(self.reply())),
            _ => fs.statfs(ReplyStatfs(self.reply())),
        }
        Some(())
    }

    fn make(&self, mut args: Args<'_>) -> Option<()> {
        let (fs, ino, request) = (self.filesystem, self.ino(), &self.request());
        let reply = || ReplyEntry(self.reply());
        match self.header.opcode {
            op::SYMLINK => {
                let (name, target) = (args.name()?, args.name()?);
                fs.symlink(request, ino, name, Path::new(target), reply());
            }
            op::MKNOD => {
                let (mode, rdev, umask, ()) = (args.u32()?, args.u32()?, args.u32()?, args.skip(4)?);
                fs.mknod(request, ino, args.name()?, mode, umask, rdev, reply());
            }
            op::MKDIR => {
                let (mode, umask) = (args.u32()?, args.u32()?);
                fs.mkdir(request, ino, args.name()?, mode, umask, reply());
            }
            op::LINK => {
                let old = INodeNo(args.u64()?);
                fs.link(request, old, ino, args.name()?, reply());
            }
            _ => {
                let (flags, mode, umask, ()) = (args.i32()?, args.u32()?, args.u32()?, args.skip(4)?);
                fs.create(request, ino, args.name()?, mode, umask, flags, ReplyCreate(self.reply()));
            }
        }
        Some(())
    }

    fn change_names(&self, mut args: Args<'_>) -> Option<()> {
        let (fs, ino, request) = (self.filesystem, self.ino(), &self.request());
        let reply = || ReplyEmpty(self.reply());
        match self.header.opcode {
            op::UNLINK => fs.unlink(request, ino, args.name()?, reply()),
            op::RMDIR => fs.rmdir(request, ino, args.name()?, reply()),
            code => {
                let to = INodeNo(args.u64()?);
                let flags = if code == op::RENAME2 { (args.u32()?, args.skip(4)?).0 } else { 0 };
                let (from_name, to_name) = (args.name()?, args.name()?);
                let flags = RenameFlags::from_bits_retain(flags);
                fs.rename(request, ino, from_name, to, to_name, flags, reply());
            }
        }
        Some(())
    }

    fn xattrs(&self, mut args: Args<'_>) -> Option<()> {
        let (fs, ino, request) = (self.filesystem, self.ino(), &self.request());
        match self.header.opcode {
            op::SETXATTR => {
                let (size, flags) = (args.u32()?, args.i32()?);
                let (name, value) = (args.name()?, args.bytes(size)?);
                fs.setxattr(request, ino, name, value, flags, ReplyEmpty(self.reply()));
            }
            op::GETXATTR => {
                let (size, ()) = (args.u32()?, args.skip(4)?);
                fs.getxattr(ino, args.name()?, size, ReplyXattr(self.reply()));
            }
            op::LISTXATTR => fs.listxattr(request, ino, args.u32()?, ReplyXattr(self.reply())),
            _ => fs.removexattr(request, ino, args.name()?, ReplyEmpty(self.reply())),
        }
        Some(())
    }

    fn directory(&self, mut args: Args<'_>) -> Option<()> {
        let (fs, ino) = (self.filesystem, self.ino());
        let code = self.header.opcode;
        if code == op::OPENDIR {
            fs.opendir(ino, OpenFlags(args.i32()?), ReplyOpen(self.reply()));
            return Some(());
        }
        let handle = FileHandle(args.u64()?);
        match code {
            op::RELEASEDIR => fs.releasedir(ino, handle, ReplyEmpty(self.reply())),
            op::FSYNCDIR => fs.fsyncdir(ino, handle, ReplyEmpty(self.reply())),
            _ => {
                let (offset, size) = (args.u64()?, args.u32()?);
                if code == op::READDIR {
                    fs.readdir(ino, handle, offset, ReplyDirectory::new(self.reply(), size));
                } else {
                    fs.readdirplus(ino, handle, offset, ReplyDirectoryPlus::new(self.reply(), size));
                }
            }
        }
        Some(())
    }

    fn file(&self, mut args: Args<'_>) -> Option<()> {
        let (fs, ino, request) = (self.filesystem, self.ino(), &self.request());
        match self.header.opcode {
            op::OPEN => {
                fs.open(ino, OpenFlags(args.i32()?), ReplyOpen(self.reply()));
                return Some(());
            }
            op::COPY_FILE_RANGE => return self.copy(args),
            op::READ | op::WRITE | op::RELEASE | op::FSYNC | op::IOCTL | op::FALLOCATE | op::LSEEK => {}
            // Among them FUSE_FLUSH and FUSE_INTERRUPT, which the kernel does not ask for again.
            _ => {
                self.reply().error(Errno::ENOSYS);
                return Some(());
            }
        }
        let handle = FileHandle(args.u64()?);
        match self.header.opcode {
            op::READ => {
                let (offset, size) = (args.u64()?, args.u32()?);
                fs.read(ino, handle, offset, size, ReplyData(self.reply()));
            }
            op::WRITE => {
                let (offset, size, flags, ()) = (args.u64()?, args.u32()?, args.u32()?, args.skip(16)?);
                let flags = WriteFlags::from_bits_retain(flags);
                let data = args.bytes(size)?;
                fs.write(request, ino, handle, offset, data, flags, ReplyWrite(self.reply()));
            }
            op::RELEASE => fs.release(ino, handle, ReplyEmpty(self.reply())),
            op::FSYNC => fs.fsync(ino, handle, ReplyEmpty(self.reply())),
            op::IOCTL => {
                let (flags, command, _) = (args.u32()?, args.u32()?, args.u64()?);
                let (in_size, out_size) = (args.u32()?, args.u32()?);
                let flags = IoctlFlags::from_bits_retain(flags);
                let data = args.bytes(in_size)?;
                fs.ioctl(request, ino, flags, command, data, out_size, ReplyIoctl(self.reply()));
            }
            op::FALLOCATE => {
                let (offset, length, mode) = (args.u64()?, args.u64()?, args.i32()?);
                fs.fallocate(request, ino, handle, offset, length, mode, ReplyEmpty(self.reply()));
            }
            _ => {
                let (offset, whence) = (args.i64()?, args.i32()?);
                fs.lseek(ino, handle, offset, whence, ReplyLseek(self.reply()));
            }
        }
        Some(())
    }

    fn copy(&self, mut args: Args<'_>) -> Option<()> {
        let (_, offset_in, to) = (args.u64()?, args.u64()?, INodeNo(args.u64()?));
        let (_, offset_out, len) = (args.u64()?, args.u64()?, args.u64()?);
        let range = CopyRange { from: (self.ino(), offset_in), to: (to, offset_out), len };
        self.filesystem.copy_file_range(&self.request(), &range, ReplyWrite(self.reply()));
        Some(())
    }
}

/// `struct fuse_setattr_in`.
fn changes(args: &mut Args<'_>) -> Option<Changes> {
    let (valid, (), _handle, size, _owner) =
        (args.u32()?, args.skip(4)?, args.u64()?, args.u64()?, args.u64()?);
    let [atime, mtime, ctime] = [args.i64()?, args.i64()?, args.i64()?];
    let [atime_nano, mtime_nano, ctime_nano] = [args.u32()?, args.u32()?, args.u32()?];
    let (mode, (), uid, gid) = (args.u32()?, args.skip(4)?, args.u32()?, args.u32()?);
    let has = |bit: u32| valid & bit != 0;
    let time = |is: u32, now: u32, seconds: i64, nanoseconds: u32| match (has(now), has(is)) {
        (true, _) => Some(SetTime::Now),
        (false, true) => Some(SetTime::To(Timestamp { seconds, nanoseconds })),
        (false, false) => None,
    };
    Some(Changes {
        mode: has(fattr::MODE).then_some(mode),
        uid: has(fattr::UID).then_some(uid),
        gid: has(fattr::GID).then_some(gid),
        size: has(fattr::SIZE).then_some(size),
        atime: time(fattr::ATIME, fattr::ATIME_NOW, atime, atime_nano),
        mtime: time(fattr::MTIME, fattr::MTIME_NOW, mtime, mtime_nano),
        ctime: has(fattr::CTIME).then_some(Timestamp { seconds: ctime, nanoseconds: ctime_nano }),
    })
}
