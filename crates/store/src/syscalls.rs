//! The one system call that no safe wrapper offers.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;

/// Begins to write out the dirty pages of `file` from `offset` on, `len` bytes of them, or all to the end for 0.
///
/// Says nothing about durability and reports no errors: those come with the next `fdatasync`.
pub(crate) fn start_writeback(file: &File, offset: u64, len: u64) {
    let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else { return };
    // SAFETY: sync_file_range takes no pointers; the descriptor is open for as long as `file` is borrowed.
    let _ = unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE) };
}
