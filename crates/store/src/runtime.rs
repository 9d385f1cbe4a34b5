//! The path of the owner's control socket.
//!
//! Owner and callers are different processes that share only the path of the pool, so the path of the socket depends
//! on that path. The socket is inside a pool in a directory, and next to a pool in a regular file. This is not
//! possible for a block device or for a path longer than a socket address. Then the name is a hash of the path, in a
//! directory that only the user can enter.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::codec;

/// The maximum length of a path in `sockaddr_un.sun_path` with its NUL (unix(7)).
const SOCKET_PATH_MAX: usize = 107;

/// The name of the socket in a pool's directory.
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
        _ => hashed(path.as_os_str().as_bytes()),
    }
}

/// The socket for a pool without a path. `place` identifies the pool.
pub(crate) fn of_place(place: &Path) -> Option<PathBuf> {
    hashed(place.as_os_str().as_bytes())
}

/// The socket for a mirrored pool, which has several paths.
pub(crate) fn mirror_socket(guid: u64) -> Option<PathBuf> {
    hashed(format!("mirror {guid:016x}").as_bytes())
}

fn hashed(what: &[u8]) -> Option<PathBuf> {
    let sum = codec::sum(&[what]);
    let name: String = sum.iter().take(12).map(|b| format!("{b:02x}")).collect();
    let (directory, prefix) = private_directory()?;
    Some(directory.join(format!("{prefix}{name}.sock")))
}

/// Returns a directory that only this user can enter, and the prefix of file names in it. Owner and callers must get
/// the same result, so it depends on little except the user.
fn private_directory() -> Option<(PathBuf, &'static str)> {
    let uid = rustix::process::geteuid().as_raw();
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    choose(uid, Path::new("/run"), Path::new("/tmp"), home.as_deref())
}

/// Returns the first private directory: for root a directory in `run`; for other users the one that the system makes
/// in `run` at login; a directory in `tmp`, unless another user has made it before; a directory in the home
/// directory.
fn choose(uid: u32, run: &Path, tmp: &Path, home: Option<&Path>) -> Option<(PathBuf, &'static str)> {
    let own = if uid == 0 { run.join("snowmelt") } else { run.join(format!("user/{uid}")) };
    if uid == 0 && make_private(&own, uid).is_some() {
        return Some((own, ""));
    }
    if uid != 0 && is_private(&own, uid) {
        return Some((own, "snowmelt-"));
    }
    let shared = tmp.join(format!("snowmelt-{uid}"));
    if make_private(&shared, uid).is_some() {
        return Some((shared, ""));
    }
    let home = home.filter(|home| is_safe_home(home, uid))?;
    let below = home.join(".snowmelt-run");
    make_private(&below, uid).map(|()| (below, ""))
}

/// Makes a directory that only `uid` can enter. Any user can make a directory of that name in /tmp first, so an
/// existing directory is used only if it belongs to `uid`.
fn make_private(dir: &Path, uid: u32) -> Option<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(_) => return None,
    }
    is_private(dir, uid).then_some(())
}

fn is_private(dir: &Path, uid: u32) -> bool {
    std::fs::symlink_metadata(dir).is_ok_and(|m| m.is_dir() && m.uid() == uid && m.mode() & 0o077 == 0)
}

/// Whether no other user can change names in the directory.
fn is_safe_home(home: &Path, uid: u32) -> bool {
    std::fs::metadata(home).is_ok_and(|m| m.is_dir() && m.uid() == uid && m.mode() & 0o022 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_directory_that_somebody_else_made_first_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let (run, tmp, home) = (dir.path().join("none"), dir.path().join("tmp"), dir.path().join("home"));
        std::fs::create_dir(&tmp).unwrap();
        std::fs::create_dir(&home).unwrap();
        let shared = tmp.join(format!("snowmelt-{uid}"));
        assert_eq!(choose(uid, &run, &tmp, None), Some((shared.clone(), "")));
        assert_eq!(std::fs::metadata(&shared).unwrap().mode() & 0o777, 0o700);
        // A directory that others can enter, or a symbolic link, is rejected like another user's directory.
        std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(choose(uid, &run, &tmp, None), None);
        std::fs::remove_dir(&shared).unwrap();
        std::os::unix::fs::symlink(&home, &shared).unwrap();
        assert_eq!(choose(uid, &run, &tmp, Some(&home)), Some((home.join(".snowmelt-run"), "")));
        std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(choose(uid, &run, &tmp, Some(&home)), None);
    }
}
