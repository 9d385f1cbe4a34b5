//! The system calls of fanotify(7) and of file handles, for which there is no safe wrapper.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The longest handle in Linux, in bytes (`MAX_HANDLE_SZ`).
const HANDLE_MAX: usize = 128;
/// Bytes of length and type, before the data of a handle.
const HANDLE_HEAD_LEN: usize = 8;

/// The events that are reported: everything that changes a record of an index.
const EVENTS: u64 = libc::FAN_CREATE
    | libc::FAN_DELETE
    | libc::FAN_MOVED_FROM
    | libc::FAN_MOVED_TO
    | libc::FAN_MODIFY
    | libc::FAN_CLOSE_WRITE
    | libc::FAN_ATTRIB
    | libc::FAN_ONDIR;

fn owned(descriptor: libc::c_int) -> io::Result<OwnedFd> {
    match descriptor {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the call returned a new descriptor, which nobody else owns.
        descriptor => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
    }
}

/// A queue of events that have the handle of a directory and a name in it.
pub fn init() -> io::Result<OwnedFd> {
    let flags = libc::FAN_CLASS_NOTIF | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK | libc::FAN_REPORT_DFID_NAME;
    // SAFETY: fanotify_init takes no pointers.
    owned(unsafe { libc::fanotify_init(flags, (libc::O_RDONLY | libc::O_CLOEXEC).cast_unsigned()) })
}

/// Adds all events of the filesystem of this directory to the queue.
pub fn mark(queue: BorrowedFd<'_>, directory: BorrowedFd<'_>) -> io::Result<()> {
    let (queue, directory) = (queue.as_raw_fd(), directory.as_raw_fd());
    let flags = libc::FAN_MARK_ADD | libc::FAN_MARK_FILESYSTEM;
    // SAFETY: the path is null, so the descriptor alone names what is marked. Both descriptors are open while they are
    // borrowed.
    match unsafe { libc::fanotify_mark(queue, flags, EVENTS, directory, std::ptr::null()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Opens the directory of a handle. `mount` is any directory on its filesystem. The handle begins with its length and
/// type.
pub fn open(mount: BorrowedFd<'_>, handle: &[u8]) -> io::Result<OwnedFd> {
    #[repr(C, align(4))]
    struct Aligned([u8; HANDLE_HEAD_LEN + HANDLE_MAX]);
    let told = handle.first_chunk().map_or(0, |len| u32::from_ne_bytes(*len) as usize);
    let mut aligned = Aligned([0; HANDLE_HEAD_LEN + HANDLE_MAX]);
    let room = aligned.0.get_mut(..handle.len()).filter(|_| handle.len() == HANDLE_HEAD_LEN + told);
    room.ok_or(io::ErrorKind::InvalidData)?.copy_from_slice(handle);
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the pointer is aligned like a `file_handle`. The bytes behind the header are as many as it says, which
    // was checked. The descriptor is open while it is borrowed.
    owned(unsafe { libc::open_by_handle_at(mount.as_raw_fd(), aligned.0.as_mut_ptr().cast(), flags) })
}
