//! The system call `sync_file_range(2)`, which has no safe wrapper.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;

/// Starts to write `len` dirty bytes of `file` from `offset` on to the medium; with `len` 0, all bytes to the end.
///
/// Makes no promise about durability and reports no errors: the next `fdatasync` reports them.
pub(crate) fn start_writeback(file: &File, offset: u64, len: u64) {
    let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else { return };
    // SAFETY: sync_file_range takes no pointers; the descriptor is open for as long as `file` is borrowed.
    let _ = unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE) };
}
