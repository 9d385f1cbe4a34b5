//! The system calls of fanotify(7) and of file handles, which no safe wrapper offers.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Longest handle, as Linux has it (`MAX_HANDLE_SZ`).
const HANDLE_MAX: usize = 128;
/// Length and type, before a handle's own bytes.
const HANDLE_HEAD_LEN: usize = 8;

/// What is told: whatever changes what an index says of a file.
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
        // SAFETY: the call that returned it made it for us alone.
        descriptor => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
    }
}

/// A queue of events, which tell directories by their handles, and names in them.
pub fn init() -> io::Result<OwnedFd> {
    let flags = libc::FAN_CLASS_NOTIF | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK | libc::FAN_REPORT_DFID_NAME;
    // SAFETY: fanotify_init takes no pointers.
    owned(unsafe { libc::fanotify_init(flags, (libc::O_RDONLY | libc::O_CLOEXEC).cast_unsigned()) })
}

/// Has all events of the filesystem that this is a directory of.
pub fn mark(queue: BorrowedFd<'_>, directory: BorrowedFd<'_>) -> io::Result<()> {
    let (queue, directory) = (queue.as_raw_fd(), directory.as_raw_fd());
    let flags = libc::FAN_MARK_ADD | libc::FAN_MARK_FILESYSTEM;
    // SAFETY: without a path the descriptor alone says what is marked; both are open while they are borrowed.
    match unsafe { libc::fanotify_mark(queue, flags, EVENTS, directory, std::ptr::null()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Opens the directory that a handle stands for; `mount` is any of its filesystem. The handle begins with its length and type.
pub fn open(mount: BorrowedFd<'_>, handle: &[u8]) -> io::Result<OwnedFd> {
    #[repr(C, align(4))]
    struct Aligned([u8; HANDLE_HEAD_LEN + HANDLE_MAX]);
    let told = handle.first_chunk().map_or(0, |len| u32::from_ne_bytes(*len) as usize);
    let mut aligned = Aligned([0; HANDLE_HEAD_LEN + HANDLE_MAX]);
    let room = aligned.0.get_mut(..handle.len()).filter(|_| handle.len() == HANDLE_HEAD_LEN + told);
    room.ok_or(io::ErrorKind::InvalidData)?.copy_from_slice(handle);
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: what is pointed to is aligned as a `file_handle` is, and has as many bytes behind its head as that says, which was
    // checked; the descriptor is open while it is borrowed.
    owned(unsafe { libc::open_by_handle_at(mount.as_raw_fd(), aligned.0.as_mut_ptr().cast(), flags) })
}
