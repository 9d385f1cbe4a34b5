//! The lock of a pool in an object store among the processes of one machine. Without it, they would fence each other
//! off.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::error::At;
use crate::{Result, StoreError, lock};

/// The extension of lock files.
const EXTENSION: &str = "lock";
/// The number of hexadecimal digits in their names, as for control sockets.
const DIGITS: usize = 24;

/// A locked file in a directory that only this user can enter. It is removed by its owner.
#[derive(Debug)]
pub(super) struct LocalLock {
    _file: File,
    path: PathBuf,
}

impl LocalLock {
    /// Takes the lock of the pool at an address.
    ///
    /// # Errors
    /// `Locked` when another process holds it; `Invalid` where there is no safe directory for it; `Io`.
    pub(super) fn take(url: &Path) -> Result<Self> {
        let Some(socket) = super::control_socket(url) else {
            let uid = rustix::process::geteuid().as_raw();
            let why = format!(
                "there is no safe place for the lock of this pool: /tmp/snowmelt-{uid} belongs to another user or can be \
                 entered by others; remove it, or set HOME to a directory that only you can write to"
            );
            return Err(StoreError::Invalid { path: url.to_owned(), why });
        };
        let lock = Self::take_at(socket.with_extension(EXTENSION), url)?;
        lock.sweep();
        Ok(lock)
    }

    fn take_at(path: PathBuf, url: &Path) -> Result<Self> {
        loop {
            let file = open(&path, true).at("open", &path)?;
            match lock::exclusive(&file, &path) {
                Err(StoreError::Locked { .. }) => return Err(StoreError::Locked { path: url.to_owned() }),
                other => other?,
            }
            // The previous owner may have removed the file between the open and the lock.
            if is_named(&file, &path) {
                return Ok(Self { _file: file, path });
            }
        }
    }

    /// Removes the locks of processes that died.
    fn sweep(&self) {
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if path == self.path || !is_lock(&path) {
                continue;
            }
            let Ok(file) = open(&path, false) else { continue };
            if lock::exclusive(&file, &path).is_ok() && is_named(&file, &path) {
                // The lock is held, so no other process is using this file.
                let _ = std::fs::remove_file(&path);
            }
        }
    }
}

impl Drop for LocalLock {
    fn drop(&mut self) {
        // Before the lock is released, so that no other process's file is removed.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn open(path: &Path, create: bool) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = File::options();
    options.read(true).write(true).create(create).truncate(false).mode(0o600);
    options.custom_flags(flags.bits().cast_signed()).open(path)
}

/// Whether a file has the name of such a lock. Other programs have locks in the same directory.
fn is_lock(path: &Path) -> bool {
    let stem = path.file_stem().and_then(OsStr::to_str).unwrap_or_default();
    let digits = stem.strip_prefix("snowmelt-").unwrap_or(stem);
    path.extension().is_some_and(|extension| extension == EXTENSION)
        && digits.len() == DIGITS
        && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_named(file: &File, path: &Path) -> bool {
    let (Ok(ours), Ok(named)) = (file.metadata(), std::fs::symlink_metadata(path)) else { return false };
    (ours.dev(), ours.ino()) == (named.dev(), named.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_go_with_their_owner_and_those_of_the_dead_are_swept() {
        let dir = tempfile::tempdir().unwrap();
        let named =
            |digit: &str, prefix: &str| dir.path().join(format!("{prefix}{}.lock", digit.repeat(DIGITS)));
        let (mine, live, dead) = (named("a", ""), named("b", ""), named("c", "snowmelt-"));
        std::fs::write(&dead, "").unwrap();
        // Other programs may lock their files in other ways.
        let others = ["a.sock", "wayland-0.lock", "pid.lock"].map(|name| dir.path().join(name));
        others.iter().for_each(|other| std::fs::write(other, "").unwrap());
        let url = Path::new("s3://bucket/pool");
        let lock = LocalLock::take_at(mine.clone(), url).unwrap();
        let held = LocalLock::take_at(live.clone(), url).unwrap();
        let error = LocalLock::take_at(mine.clone(), url).unwrap_err();
        assert!(matches!(&error, StoreError::Locked { path } if path == url), "{error:?}");
        lock.sweep();
        assert!(!dead.exists() && mine.exists() && others.iter().all(|other| other.exists()));
        LocalLock::take_at(live, url).unwrap_err();
        drop((lock, held));
        assert!(!mine.exists());
    }
}
