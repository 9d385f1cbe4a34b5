//! Replies. Each is one write. A reply that is dropped without an answer is `EIO`, so that nobody waits for ever.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{IoSlice, Write};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{Errno, FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo};

/// `struct fuse_out_header` and `struct fuse_dirent`, bytes.
const HEADER: usize = 16;
const DIRENT: usize = 24;
/// Entries begin at multiples of this.
const ALIGN: usize = 8;

/// The answer to one request that is not given yet.
#[derive(Debug)]
pub(super) struct Reply {
    device: Option<Arc<File>>,
    unique: u64,
}

impl Reply {
    pub(super) fn new(device: &Arc<File>, unique: u64) -> Self {
        Self { device: Some(device.clone()), unique }
    }

    /// If the requesting process was killed, nobody needs the answer. This is not an error.
    fn send(&mut self, error: i32, body: &[u8]) {
        let Some(device) = self.device.take() else { return };
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
        header[4..8].copy_from_slice(&error.to_ne_bytes());
        header[8..].copy_from_slice(&self.unique.to_ne_bytes());
        let _ = (&*device).write_vectored(&[IoSlice::new(&header), IoSlice::new(body)]);
    }

    fn ok(mut self, body: &[u8]) {
        self.send(0, body);
    }

    pub(super) fn error(mut self, error: Errno) {
        self.send(-error.code(), &[]);
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.send(-Errno::EIO.code(), &[]);
    }
}

macro_rules! replies {
    ($($(#[$meta:meta])* $name:ident),* $(,)?) => {
        $(
            $(#[$meta])*
            #[derive(Debug)]
            pub(crate) struct $name(pub(super) Reply);

            impl $name {
                /// It failed.
                pub(crate) fn error(self, error: Errno) {
                    self.0.error(error);
                }
            }
        )*
    };
}

replies! {
    /// To requests that ask for nothing back.
    ReplyEmpty,
    ReplyEntry,
    ReplyAttr,
    ReplyData,
    ReplyOpen,
    ReplyCreate,
    ReplyWrite,
    ReplyStatfs,
    ReplyXattr,
    ReplyIoctl,
    ReplyLseek,
}

/// Words of an answer.
#[derive(Debug, Default)]
struct Out(Vec<u8>);

impl Out {
    fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    /// `struct fuse_attr`.
    fn attributes(self, attr: &FileAttr) -> Self {
        let times = [attr.atime, attr.mtime, attr.ctime].map(seconds);
        let out = self.u64(attr.ino.0).u64(attr.size).u64(attr.blocks);
        let out = times.iter().fold(out, |out, (seconds, _)| out.u64(seconds.cast_unsigned()));
        let out = times.iter().fold(out, |out, (_, nanoseconds)| out.u32(*nanoseconds));
        out.u32(type_bits(attr.kind) << 12 | u32::from(attr.perm))
            .u32(attr.nlink)
            .u32(attr.uid)
            .u32(attr.gid)
            .u32(attr.rdev)
            .u32(attr.blksize)
            .u32(0)
    }

    /// `struct fuse_entry_out`.
    fn entry(self, names: Duration, attributes: Duration, attr: &FileAttr, generation: Generation) -> Self {
        self.u64(attr.ino.0)
            .u64(generation.0)
            .u64(names.as_secs())
            .u64(attributes.as_secs())
            .u32(names.subsec_nanos())
            .u32(attributes.subsec_nanos())
            .attributes(attr)
    }

    /// `struct fuse_open_out`.
    fn opened(self, handle: FileHandle, flags: FopenFlags) -> Self {
        self.u64(handle.0).u32(flags.bits()).u32(0)
    }
}

/// Seconds since 1970, and nanoseconds that count forwards from there.
fn seconds(time: SystemTime) -> (i64, u32) {
    let whole = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => (whole(since), since.subsec_nanos()),
        Err(before) => match (before.duration(), before.duration().subsec_nanos()) {
            (before, 0) => (-whole(before), 0),
            (before, nanoseconds) => (-1 - whole(before), 1_000_000_000 - nanoseconds),
        },
    }
}

/// `S_IFMT` of a mode, and the type of an entry.
fn type_bits(kind: FileType) -> u32 {
    match kind {
        FileType::NamedPipe => 1,
        FileType::CharDevice => 2,
        FileType::Directory => 4,
        FileType::BlockDevice => 6,
        FileType::RegularFile => 8,
        FileType::Symlink => 10,
        FileType::Socket => 12,
    }
}

impl ReplyEmpty {
    pub(crate) fn ok(self) {
        self.0.ok(&[]);
    }
}

impl ReplyEntry {
    /// How long the kernel may believe the attributes, and the name.
    pub(crate) fn entry_with_ttls(
        self,
        attributes: &Duration,
        names: &Duration,
        attr: &FileAttr,
        generation: Generation,
    ) {
        self.0.ok(&Out::default().entry(*names, *attributes, attr, generation).0);
    }
}

impl ReplyAttr {
    pub(crate) fn attr(self, holds: &Duration, attr: &FileAttr) {
        let out = Out::default().u64(holds.as_secs()).u32(holds.subsec_nanos()).u32(0);
        self.0.ok(&out.attributes(attr).0);
    }
}

impl ReplyData {
    pub(crate) fn data(self, data: &[u8]) {
        self.0.ok(data);
    }
}

impl ReplyOpen {
    pub(crate) fn opened(self, handle: FileHandle, flags: FopenFlags) {
        self.0.ok(&Out::default().opened(handle, flags).0);
    }
}

impl ReplyCreate {
    pub(crate) fn created(
        self,
        names: &Duration,
        attributes: &Duration,
        attr: &FileAttr,
        generation: Generation,
        flags: FopenFlags,
    ) {
        let out = Out::default().entry(*names, *attributes, attr, generation);
        self.0.ok(&out.opened(FileHandle(0), flags).0);
    }
}

impl ReplyWrite {
    pub(crate) fn written(self, bytes: u32) {
        self.0.ok(&Out::default().u32(bytes).u32(0).0);
    }
}

impl ReplyStatfs {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn statfs(
        self,
        blocks: u64,
        free: u64,
        available: u64,
        files: u64,
        files_free: u64,
        block_size: u32,
        name_max: u32,
        fragment: u32,
    ) {
        let counts = [blocks, free, available, files, files_free];
        let out = counts.into_iter().fold(Out::default(), Out::u64);
        let mut out = out.u32(block_size).u32(name_max).u32(fragment);
        for _ in 0..7 {
            out = out.u32(0);
        }
        self.0.ok(&out.0);
    }
}

impl ReplyXattr {
    pub(crate) fn size(self, bytes: u32) {
        self.0.ok(&Out::default().u32(bytes).u32(0).0);
    }

    pub(crate) fn data(self, data: &[u8]) {
        self.0.ok(data);
    }
}

impl ReplyIoctl {
    pub(crate) fn ioctl(self, data: &[u8]) {
        let mut out = Out::default().u32(0).u32(0).u32(0).u32(0);
        out.0.extend_from_slice(data);
        self.0.ok(&out.0);
    }
}

impl ReplyLseek {
    pub(crate) fn offset(self, offset: i64) {
        self.0.ok(&Out::default().u64(offset.cast_unsigned()).0);
    }
}

/// Entries of a directory, up to a number of bytes.
#[derive(Debug)]
struct Entries {
    reply: Reply,
    out: Out,
    max: usize,
}

impl Entries {
    fn new(reply: Reply, max: u32) -> Self {
        Self { reply, out: Out::default(), max: max as usize }
    }

    /// Whether another one has no room, with so much before it.
    fn is_full(&self, name: &OsStr, before: usize) -> bool {
        self.out.0.len() + (before + DIRENT + name.len()).next_multiple_of(ALIGN) > self.max
    }

    fn push(&mut self, ino: u64, next: u64, kind: FileType, name: &OsStr) {
        let out = std::mem::take(&mut self.out);
        let mut out = out.u64(ino).u64(next).u32(name.len() as u32).u32(type_bits(kind));
        out.0.extend_from_slice(name.as_bytes());
        out.0.resize(out.0.len().next_multiple_of(ALIGN), 0);
        self.out = out;
    }

    fn ok(self) {
        self.reply.ok(&self.out.0);
    }
}

/// A part of a directory.
#[derive(Debug)]
pub(crate) struct ReplyDirectory(Entries);

impl ReplyDirectory {
    pub(super) fn new(reply: Reply, max: u32) -> Self {
        Self(Entries::new(reply, max))
    }

    /// Adds an entry, and the offset of the next one. Reports when the buffer is full.
    pub(crate) fn add(&mut self, ino: INodeNo, next: u64, kind: FileType, name: &OsStr) -> bool {
        let full = self.0.is_full(name, 0);
        if !full {
            self.0.push(ino.0, next, kind, name);
        }
        full
    }

    pub(crate) fn ok(self) {
        self.0.ok();
    }

    pub(crate) fn error(self, error: Errno) {
        self.0.reply.error(error);
    }
}

/// A part of a directory, with the attributes of its entries.
#[derive(Debug)]
pub(crate) struct ReplyDirectoryPlus(Entries);

/// `struct fuse_entry_out`, bytes.
const ENTRY: usize = 128;

impl ReplyDirectoryPlus {
    pub(super) fn new(reply: Reply, max: u32) -> Self {
        Self(Entries::new(reply, max))
    }

    /// Adds an entry, and the offset of the next one. Reports when the buffer is full. `node` is 0 for an entry that
    /// the kernel must not remember.
    pub(crate) fn add(
        &mut self,
        node: INodeNo,
        next: u64,
        name: &OsStr,
        (names, attributes): (Duration, Duration),
        attr: &FileAttr,
        generation: Generation,
    ) -> bool {
        let full = self.0.is_full(name, ENTRY);
        if !full {
            let at = self.0.out.0.len();
            let out = std::mem::take(&mut self.0.out);
            self.0.out = out.entry(names, attributes, attr, generation);
            self.0.out.0[at..at + 8].copy_from_slice(&node.0.to_ne_bytes());
            self.0.push(attr.ino.0, next, attr.kind, name);
        }
        full
    }

    pub(crate) fn ok(self) {
        self.0.ok();
    }

    pub(crate) fn error(self, error: Errno) {
        self.0.reply.error(error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_count_forwards() {
        let half = SystemTime::UNIX_EPOCH - Duration::from_millis(1500);
        assert_eq!(seconds(half), (-2, 500_000_000));
        assert_eq!(seconds(SystemTime::UNIX_EPOCH - Duration::from_secs(3)), (-3, 0));
        assert_eq!(seconds(SystemTime::UNIX_EPOCH + Duration::from_millis(1500)), (1, 500_000_000));
    }
}
