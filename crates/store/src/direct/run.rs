//! A run of whole sectors in aligned memory, and the direct write of it to a file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::fs::{AtFlags, FallocateFlags, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::SegmentId;

/// The alignment of a run, in the file and in memory. No medium needs more.
pub(super) const ALIGN: usize = 4096;

/// A file, with a second descriptor for direct writes if the file supports them.
#[derive(Debug)]
pub(crate) struct Way {
    file: Arc<File>,
    /// The same file, opened for direct writes on first use.
    direct: OnceLock<Option<File>>,
    is_refused: AtomicBool,
}

/// Whether a run has space on the disk.
pub(super) enum Room {
    /// The space is reserved: the write cannot fail for lack of space.
    Made,
    /// Unknown until the run is written.
    Unknown,
}

impl Way {
    /// The direct writes of `file`.
    pub(crate) fn of(file: &Arc<File>) -> Arc<Self> {
        Arc::new(Self { file: file.clone(), direct: OnceLock::new(), is_refused: AtomicBool::new(false) })
    }

    /// Whether direct writes are possible.
    pub(super) fn is_open(&self) -> bool {
        !self.is_refused.load(Ordering::Relaxed) && self.direct.get_or_init(|| reopen(&self.file)).is_some()
    }

    /// Reserves space on the disk for a run.
    ///
    /// # Errors
    /// When there is no space (`fallocate(2)`).
    pub(super) fn make_room(&self, offset: u64, len: u64) -> io::Result<Room> {
        if self.file.metadata()?.file_type().is_block_device() {
            return Ok(Room::Made);
        }
        loop {
            match rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, offset, len) {
                Ok(()) => return Ok(Room::Made),
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(Room::Unknown),
                Err(error) => return Err(error.into()),
            }
        }
    }

    #[cfg(test)]
    pub(super) fn through(file: &Arc<File>, direct: File) -> Arc<Self> {
        let way = Self::of(file);
        way.direct.set(Some(direct)).unwrap();
        way
    }
}

/// Opens the same file for direct writes; `None` where the system does not report that it supports them.
fn reopen(file: &File) -> Option<File> {
    let stat = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    let is_told = stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    let is_possible =
        |align: u32| usize::try_from(align).is_ok_and(|align| align > 0 && ALIGN.is_multiple_of(align));
    if !is_told || !is_possible(stat.stx_dio_mem_align) || !is_possible(stat.stx_dio_offset_align) {
        return None;
    }
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(OFlags::DIRECT.bits().cast_signed());
    options.open(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

/// A run that is to be written.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) segment: SegmentId,
    way: Arc<Way>,
    /// Offset in the file.
    offset: u64,
    /// Holds the bytes of the run, starting at `begin`.
    memory: Vec<u8>,
    begin: usize,
    len: usize,
}

impl Run {
    /// A run of `len` bytes that the caller fills in. `memory` is reused.
    pub(super) fn new(
        segment: SegmentId,
        way: Arc<Way>,
        offset: u64,
        mut memory: Vec<u8>,
        len: usize,
    ) -> Self {
        if memory.len() < len + ALIGN {
            memory.resize(len + ALIGN, 0);
        }
        let begin = memory.as_ptr().align_offset(ALIGN);
        Self { segment, way, offset, memory, begin, len }
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.begin..self.begin + self.len]
    }

    /// Writes the run, and returns the memory for reuse.
    pub(super) fn write(self) -> (Vec<u8>, io::Result<()>) {
        let bytes = &self.memory[self.begin..self.begin + self.len];
        let direct = self.way.direct.get().and_then(Option::as_ref);
        let done = match direct {
            Some(direct) => write_all_at(direct, bytes, self.offset),
            None => Err(Errno::INVAL.into()),
        };
        let done = match done {
            // The system reported support for direct writes, but refuses them.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => {
                self.way.is_refused.store(true, Ordering::Relaxed);
                self.way.file.write_all_at(bytes, self.offset)
            }
            done => done,
        };
        (self.memory, done)
    }
}

fn write_all_at(direct: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(direct, bytes, offset) {
            Ok(len) => {
                // The rest must start at a sector boundary again.
                let len = len / ALIGN * ALIGN;
                if len == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                bytes = &bytes[len..];
                offset += len as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
