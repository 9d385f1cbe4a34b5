//! A writable filesystem in memory for tests.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, missing_docs)]

use snowmelt_zpl::memory::MemoryObjset;
use snowmelt_zpl::{
    Caller, Filesystem, FilesystemMut, NewFilesystem, NewKind, NewNode, ObjectsMut, Room, Timestamp,
    WriteOptions, ZplError, create_filesystem,
};
use std::sync::Arc;

pub type Fs = FilesystemMut<Arc<MemoryObjset>>;

pub const EPERM: i32 = 1;
pub const ENOENT: i32 = 2;
pub const E2BIG: i32 = 7;
pub const EEXIST: i32 = 17;
pub const EXDEV: i32 = 18;
pub const ENOTDIR: i32 = 20;
pub const EISDIR: i32 = 21;
pub const EINVAL: i32 = 22;
pub const EFBIG: i32 = 27;
pub const ENOSPC: i32 = 28;
pub const EROFS: i32 = 30;
pub const ERANGE: i32 = 34;
pub const ENAMETOOLONG: i32 = 36;
pub const ENOTEMPTY: i32 = 39;
pub const ENODATA: i32 = 61;
pub const EOPNOTSUPP: i32 = 95;

pub fn make(new: NewFilesystem, options: WriteOptions) -> (Arc<MemoryObjset>, Fs) {
    let objects = Arc::new(MemoryObjset::default());
    create_filesystem(&*objects, &objects.begin(Room::Write(NewFilesystem::ROOM)).unwrap(), &new).unwrap();
    let fs = FilesystemMut::open(objects.clone(), options, 7).unwrap();
    (objects, fs)
}

pub fn plain() -> (Arc<MemoryObjset>, Fs) {
    make(NewFilesystem::default(), WriteOptions::default())
}

pub fn at(now: i64) -> Caller {
    Caller { uid: 1000, gid: 100, umask: 0, now: Timestamp { seconds: now, nanoseconds: 7 } }
}

pub fn create(fs: &Fs, directory: u64, name: &str, kind: NewKind<'_>) -> u64 {
    let permissions = if kind == NewKind::Directory { 0o755 } else { 0o644 };
    fs.create(directory, name.as_bytes(), NewNode { kind, permissions }, &at(10)).unwrap().object
}

pub fn file(fs: &Fs, name: &str) -> u64 {
    create(fs, fs.root(), name, NewKind::File)
}

pub fn directory(fs: &Fs, name: &str) -> u64 {
    create(fs, fs.root(), name, NewKind::Directory)
}

pub fn unused(_: u64) -> bool {
    false
}

pub fn used(_: u64) -> bool {
    true
}

pub fn errno<T: std::fmt::Debug>(result: Result<T, ZplError>) -> i32 {
    result.unwrap_err().errno()
}

pub fn exists(fs: &Fs, directory: u64, name: &str) -> bool {
    fs.lookup(directory, name.as_bytes()).unwrap().is_some()
}

/// The content of a file, read through a new reader.
pub fn content(objects: &MemoryObjset, object: u64) -> Vec<u8> {
    let snapshot = objects.snapshot();
    let fs = Filesystem::open(&snapshot).unwrap();
    let size = fs.attributes(object).unwrap().size;
    let mut buf = vec![0xee; size as usize];
    assert_eq!(fs.read(object, size, 0, &mut buf).unwrap(), buf.len());
    buf
}
