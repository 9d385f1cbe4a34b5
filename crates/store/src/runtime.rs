//! Where the owner's control socket lives.
//!
//! Owner and callers are different processes that have only the pool's path in common, so the place follows from that
//! path: inside a directory pool, beside a pool in a regular file. Where that is impossible (a block device; a path
//! longer than a socket address holds) it is a hash of the path in a directory of the user's own.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::codec;

/// The longest path that fits `sockaddr_un.sun_path` with its NUL (unix(7)).
const SOCKET_PATH_MAX: usize = 107;

/// The socket's name inside a directory pool.
const SOCKET_NAME: &str = "control.sock";

/// The socket for the pool at `path`, which must be absolute and without symbolic links.
pub(crate) fn control_socket(path: &Path) -> Option<PathBuf> {
    let metadata = std::fs::metadata(path).ok()?;
    let near = if metadata.is_dir() {
        Some(path.join(SOCKET_NAME))
    } else if metadata.file_type().is_block_device() {
        None
    } else {
        let mut name = path.as_os_str().to_owned();
        name.push(".sock");
        Some(PathBuf::from(name))
    };
    match near {
        Some(near) if near.as_os_str().len() <= SOCKET_PATH_MAX => Some(near),
        _ => hashed(path.as_os_str().as_bytes(), metadata.uid()),
    }
}

/// The same for a pool that is at no path, by what tells it from all others.
pub(crate) fn of_place(place: &Path) -> Option<PathBuf> {
    hashed(place.as_os_str().as_bytes(), rustix::process::geteuid().as_raw())
}

/// The socket for a pool that is mirrored: it has several paths, one of which is `member`.
pub(crate) fn mirror_socket(guid: u64, member: &Path) -> Option<PathBuf> {
    let owner = std::fs::metadata(member).ok()?.uid();
    hashed(format!("mirror {guid:016x}").as_bytes(), owner)
}

fn hashed(what: &[u8], owner: u32) -> Option<PathBuf> {
    let sum = codec::sum(&[what]);
    let name: String = sum.iter().take(12).map(|b| format!("{b:02x}")).collect();
    // Root looks where the user who owns the pool listens.
    let uid = match rustix::process::geteuid().as_raw() {
        0 => owner,
        uid => uid,
    };
    let run = PathBuf::from(format!("/run/user/{uid}"));
    if is_private(&run, uid) {
        return Some(run.join(format!("snowmelt-{name}.sock")));
    }
    let dir = PathBuf::from(format!("/tmp/snowmelt-{uid}"));
    make_private(&dir, uid)?;
    Some(dir.join(format!("{name}.sock")))
}

/// Makes a directory that only `uid` may enter. Anyone can make one of that name in /tmp first, so what exists is
/// used only if it is ours.
fn make_private(dir: &Path, uid: u32) -> Option<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(dir) {
        // Root made it for somebody else.
        Ok(()) if rustix::process::geteuid().as_raw() != uid => {
            std::os::unix::fs::lchown(dir, Some(uid), None).ok()?;
        }
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(_) => return None,
    }
    is_private(dir, uid).then_some(())
}

fn is_private(dir: &Path, uid: u32) -> bool {
    std::fs::symlink_metadata(dir).is_ok_and(|m| m.is_dir() && m.uid() == uid && m.mode() & 0o077 == 0)
}
