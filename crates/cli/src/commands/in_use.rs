//! Whether a process uses a snapshot below `.zfs/snapshot`.
//!
//! Such a snapshot is not a mount of its own, and the kernel remembers inodes that nobody uses. So this module looks at
//! the working directory, the root directory and the open files of each process. It does so only if the kernel knows an
//! inode of the snapshot.

use std::ops::RangeInclusive;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};
use snowmelt_dataset::Snapshot;

use super::automount;
use crate::app::App;
use crate::pools::Session;

/// Whether a process uses a snapshot of a mounted filesystem: as its directory, or through an open file. The answer is
/// `false` for commands that do not mount as ZFS does.
pub(super) fn is_used(app: &App<'_>, session: &Session, snapshot: &Snapshot) -> bool {
    if !automount::is_on(app) {
        return false;
    }
    let Some(mount) = session.mounts.head(snapshot.id.dataset) else { return false };
    let Some(inodes) = mount.vfs().inodes_of_snapshot(snapshot) else { return false };
    mount.device().is_some_and(|device| somebody_uses(device, &inodes))
}

fn somebody_uses(device: u64, inodes: &RangeInclusive<u64>) -> bool {
    let is_number = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter(|entry| entry.file_name().to_str().is_some_and(is_number)).any(|entry| {
        let process = entry.path();
        let is_there = |path: &Path| is_in(path, device, inodes);
        let mut files = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        is_there(&process.join("cwd"))
            || is_there(&process.join("root"))
            || files.any(|file| is_there(&file.path()))
    })
}

/// Whether a link in /proc leads to one of these inodes. No server is asked, because it may not answer.
fn is_in(path: &Path, device: u64, inodes: &RangeInclusive<u64>) -> bool {
    statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::INO).is_ok_and(|found| {
        makedev(found.stx_dev_major, found.stx_dev_minor) == device && inodes.contains(&found.stx_ino)
    })
}
