//! A FUSE filesystem that only passes everything on to a directory. Mounts are compared with it.
//!
//! `passthrough DIRECTORY MOUNTPOINT` serves until it is unmounted. The kernel's caching and request sizes are the same
//! as with `snowmelt mount`.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use fuser::{
    BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, MountOption, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, Session,
    SessionACL, TimeOrNow, WriteFlags,
};

/// The same value as in `snowmelt mount`.
const TRANSFER_MAX: u32 = 1 << 20;
const NAMES_HOLD: Duration = Duration::from_secs(1);
const ATTRIBUTES_HOLD: Duration = Duration::from_secs(10);
const BACKGROUND_MAX: u16 = 64;

const ROOT: u64 = 1;

struct Passthrough {
    /// The last known path of each inode.
    paths: Mutex<HashMap<u64, PathBuf>>,
    files: Mutex<HashMap<u64, Arc<File>>>,
    next_handle: AtomicU64,
}

type Answer<T> = Result<T, Errno>;

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_i32)
}

fn told<T>(result: io::Result<T>) -> Answer<T> {
    result.map_err(|error| errno(&error))
}

fn attr(ino: u64, metadata: &Metadata) -> FileAttr {
    let kind = metadata.file_type();
    FileAttr {
        ino: INodeNo(ino),
        size: metadata.len(),
        blocks: metadata.blocks(),
        atime: metadata.accessed().unwrap_or(SystemTime::UNIX_EPOCH),
        mtime: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
        ctime: SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(metadata.ctime()).unwrap_or(0)),
        crtime: SystemTime::UNIX_EPOCH,
        kind: match () {
            () if kind.is_dir() => FileType::Directory,
            () if kind.is_symlink() => FileType::Symlink,
            () if kind.is_fifo() => FileType::NamedPipe,
            () => FileType::RegularFile,
        },
        perm: (metadata.mode() & 0o7777) as u16,
        nlink: u32::try_from(metadata.nlink()).unwrap_or(u32::MAX),
        uid: metadata.uid(),
        gid: metadata.gid(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Passthrough {
    fn path(&self, ino: INodeNo) -> Answer<PathBuf> {
        let paths = self.paths.lock().unwrap_or_else(PoisonError::into_inner);
        paths.get(&ino.0).cloned().ok_or(Errno::ESTALE)
    }

    fn child(&self, parent: INodeNo, name: &OsStr) -> Answer<PathBuf> {
        Ok(self.path(parent)?.join(name))
    }

    fn look(&self, path: PathBuf) -> Answer<FileAttr> {
        let metadata = told(std::fs::symlink_metadata(&path))?;
        let attr = attr(metadata.ino(), &metadata);
        self.paths.lock().unwrap_or_else(PoisonError::into_inner).insert(attr.ino.0, path);
        Ok(attr)
    }

    fn keep(&self, file: File) -> FileHandle {
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        self.files.lock().unwrap_or_else(PoisonError::into_inner).insert(handle, Arc::new(file));
        FileHandle(handle)
    }

    fn file(&self, handle: FileHandle) -> Answer<Arc<File>> {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.get(&handle.0).cloned().ok_or(Errno::EBADF)
    }

    fn stat(&self, ino: INodeNo) -> Answer<FileAttr> {
        let metadata = told(std::fs::symlink_metadata(self.path(ino)?))?;
        Ok(attr(ino.0, &metadata))
    }

    fn create_file(&self, path: PathBuf, mode: u32) -> Answer<(FileAttr, FileHandle)> {
        let mut options = OpenOptions::new();
        let file = told(options.read(true).write(true).create_new(true).mode(mode).open(&path))?;
        Ok((self.look(path)?, self.keep(file)))
    }

    fn list(&self, ino: INodeNo, offset: u64, reply: &mut ReplyDirectory) -> Answer<()> {
        let entries = told(std::fs::read_dir(self.path(ino)?))?;
        for (number, entry) in entries.enumerate().skip(usize::try_from(offset).unwrap_or(usize::MAX)) {
            let entry = told(entry)?;
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let kind = if is_dir { FileType::Directory } else { FileType::RegularFile };
            let number = u64::try_from(number).unwrap_or(u64::MAX) + 1;
            if reply.add(INodeNo(ino.0), number, kind, entry.file_name()) {
                break;
            }
        }
        Ok(())
    }
}

fn entry(reply: ReplyEntry, answer: Answer<FileAttr>) {
    match answer {
        Ok(attr) => reply.entry_with_ttls(&NAMES_HOLD, &ATTRIBUTES_HOLD, &attr, Generation(0)),
        Err(error) => reply.error(error),
    }
}

fn empty(reply: ReplyEmpty, answer: Answer<()>) {
    match answer {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

fn cached() -> FopenFlags {
    FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
}

impl Filesystem for Passthrough {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted =
            InitFlags::FUSE_ASYNC_DIO | InitFlags::FUSE_PARALLEL_DIROPS | InitFlags::FUSE_EXPLICIT_INVAL_DATA;
        let _ = config.add_capabilities(wanted & config.capabilities());
        let _ = config.set_max_write(TRANSFER_MAX);
        let _ = config.set_max_readahead(TRANSFER_MAX).or_else(|most| config.set_max_readahead(most));
        let _ = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        entry(reply, self.child(parent, name).and_then(|path| self.look(path)));
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.stat(ino) {
            Ok(attr) => reply.attr(&ATTRIBUTES_HOLD, &attr),
            Err(error) => reply.error(error),
        }
    }

    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let resize = |size| {
            let file = told(OpenOptions::new().write(true).open(self.path(ino)?))?;
            told(file.set_len(size))
        };
        match size.map_or(Ok(()), resize).and_then(|()| self.stat(ino)) {
            Ok(attr) => reply.attr(&ATTRIBUTES_HOLD, &attr),
            Err(error) => reply.error(error),
        }
    }

    fn mkdir(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let make = || {
            let path = self.child(parent, name)?;
            told(std::fs::DirBuilder::new().mode(mode).create(&path))?;
            self.look(path)
        };
        entry(reply, make());
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.child(parent, name).and_then(|path| told(std::fs::remove_file(path))));
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.child(parent, name).and_then(|path| told(std::fs::remove_dir(path))));
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        _flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let rename = || {
            let to = self.child(newparent, newname)?;
            told(std::fs::rename(self.child(parent, name)?, &to))?;
            self.look(to).map(drop)
        };
        empty(reply, rename());
    }

    fn create(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        match self.child(parent, name).and_then(|path| self.create_file(path, mode & 0o7777)) {
            Ok((attr, handle)) => reply.created(&NAMES_HOLD, &attr, Generation(0), handle, cached()),
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, _request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let write = flags.acc_mode() != OpenAccMode::O_RDONLY;
        let open = |path| told(OpenOptions::new().read(true).write(write).open(path));
        match self.path(ino).and_then(open) {
            Ok(file) => reply.opened(self.keep(file), cached()),
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut buf = vec![0; size.min(TRANSFER_MAX) as usize];
        match self.file(fh).and_then(|file| told(file.read_at(&mut buf, offset))) {
            Ok(len) => reply.data(&buf[..len]),
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
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.file(fh).and_then(|file| told(file.write_at(data, offset))) {
            Ok(len) => reply.written(u32::try_from(len).unwrap_or(u32::MAX)),
            Err(error) => reply.error(error),
        }
    }

    fn fsync(&self, _request: &Request, _ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        empty(reply, self.file(fh).and_then(|file| told(file.sync_all())));
    }

    fn release(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).remove(&fh.0);
        reply.ok();
    }

    fn readdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        match self.list(ino, offset, &mut reply) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }
}

fn main() -> Result<()> {
    let mut words = std::env::args_os().skip(1);
    let (Some(directory), Some(mountpoint)) = (words.next(), words.next()) else {
        anyhow::bail!("usage: passthrough DIRECTORY MOUNTPOINT");
    };
    let directory = Path::new(&directory).canonicalize().context("the directory")?;
    let served = Passthrough {
        paths: Mutex::new(HashMap::from([(ROOT, directory)])),
        files: Mutex::default(),
        next_handle: AtomicU64::new(1),
    };
    let mut config = Config::default();
    config.mount_options =
        vec![MountOption::FSName("passthrough".to_owned()), MountOption::DefaultPermissions];
    config.acl = SessionACL::All;
    config.n_threads = Some(8);
    config.clone_fd = true;
    let session = Session::new(served, Path::new(&mountpoint), &config).context("mount")?;
    session.run().context("serve")
}
