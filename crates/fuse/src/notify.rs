//! Notifications: messages to the kernel that something in its caches is no longer valid
//! (`include/uapi/linux/fuse.h`: `fuse_notify_code`).

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};

/// `FUSE_NOTIFY_INVAL_INODE` and `FUSE_NOTIFY_INVAL_ENTRY`.
const INVALIDATE_INODE: i32 = 2;
const INVALIDATE_ENTRY: i32 = 3;
/// `FUSE_EXPIRE_ONLY`: the name is looked up again at its next use. Mounts on it and processes in it are not
/// affected. Kernels before 6.2 drop the name.
const EXPIRE_ONLY: u32 = 1;
/// `struct fuse_out_header`, bytes.
const HEADER: u32 = 16;

/// Sends notifications about one mount to the kernel.
#[derive(Debug)]
pub(crate) struct Notifier {
    device: File,
}

impl Notifier {
    /// For the mount that this `/dev/fuse` serves.
    pub(crate) fn new(device: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self { device: device.as_fd().try_clone_to_owned()?.into() })
    }

    /// What serves the mount.
    pub(crate) fn device(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// Content and attributes of an inode are to be asked for again. The kernel may have forgotten it by itself.
    pub(crate) fn inode(&self, ino: u64) {
        // From offset 0, to the end.
        let body = [ino, 0, 0].map(u64::to_ne_bytes).concat();
        self.send(INVALIDATE_INODE, &body);
    }

    /// A name is to be looked up again.
    pub(crate) fn name(&self, parent: u64, name: &[u8]) {
        let Ok(length) = u32::try_from(name.len()) else { return };
        let mut body = parent.to_ne_bytes().to_vec();
        body.extend_from_slice(&length.to_ne_bytes());
        body.extend_from_slice(&EXPIRE_ONLY.to_ne_bytes());
        body.extend_from_slice(name);
        body.push(0);
        self.send(INVALIDATE_ENTRY, &body);
    }

    /// Each message is one write. It fails if the kernel does not know the name or inode (any more), and after the
    /// unmount.
    fn send(&self, code: i32, body: &[u8]) {
        let Ok(length) = u32::try_from(body.len()) else { return };
        let mut message = (HEADER + length).to_ne_bytes().to_vec();
        message.extend_from_slice(&code.to_ne_bytes());
        message.extend_from_slice(&0_u64.to_ne_bytes());
        message.extend_from_slice(body);
        let _ = (&self.device).write_all(&message);
    }
}
