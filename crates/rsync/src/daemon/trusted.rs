//! Opens files and directories that the operator names in the configuration or on the command line.
//!
//! They may be in places where other users can write (`/tmp`, a home directory). A symbolic link in the path is
//! followed if it belongs to root or to the user of the server. A link of another user is an error (`ELOOP`).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

/// The most symbolic links that are followed, as in Linux.
const LINKS_MAX: usize = 40;

/// Opens a file for reading.
///
/// # Errors
/// When it cannot be opened, or another user's symbolic link is in the path.
pub fn open(path: &Path) -> io::Result<File> {
    Ok(File::from(walk(path, OFlags::RDONLY | OFlags::NOCTTY, Mode::empty())?))
}

/// Opens a file for appending, and creates it if it does not exist.
///
/// # Errors
/// As [`open`].
pub fn append(path: &Path) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NOCTTY;
    Ok(File::from(walk(path, flags, Mode::from_raw_mode(0o644))?))
}

/// Opens a directory, for access to files in it.
///
/// # Errors
/// As [`open`].
pub fn directory(path: &Path) -> io::Result<OwnedFd> {
    walk(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())
}

fn walk(path: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    let way = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = || rustix::fs::open(c"/", way, Mode::empty());
    let mut at = if path.is_absolute() { root()? } else { rustix::fs::open(c".", way, Mode::empty())? };
    let names = |path: &[u8]| -> Vec<Vec<u8>> {
        path.split(|byte| *byte == b'/').rev().filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
    };
    let mut left = names(path.as_os_str().as_bytes());
    let mut links = 0;
    while let Some(name) = left.pop() {
        let next = match rustix::fs::openat(&at, &name, way, Mode::empty()) {
            Err(Errno::NOENT) if left.is_empty() && flags.contains(OFlags::CREATE) => None,
            opened => Some(opened?),
        };
        if let Some(next) = &next
            && let Some(target) = followed(next)?
        {
            if is_process_file(&at) && left.is_empty() {
                // `/dev/fd/3` and similar links in procfs lead to an open file, not to a path.
                return Ok(rustix::fs::openat(&at, &name, flags | OFlags::CLOEXEC, mode)?);
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(Errno::LOOP.into());
            }
            if target.starts_with(b"/") {
                at = root()?;
            }
            left.extend(names(&target));
            continue;
        }
        if left.is_empty() {
            // A symbolic link that was put there meanwhile is not followed.
            return Ok(rustix::fs::openat(&at, &name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, mode)?);
        }
        at = next.ok_or(Errno::NOENT)?;
    }
    Ok(rustix::fs::openat(&at, c".", flags | OFlags::CLOEXEC, mode)?)
}

/// Whether a directory is in procfs, whose links lead to open files.
fn is_process_file(directory: &impl AsFd) -> bool {
    rustix::fs::fstatfs(directory).is_ok_and(|found| found.f_type == libc::PROC_SUPER_MAGIC)
}

/// The target of an open symbolic link, or `None` for other files. A link of another user is an error.
fn followed(link: &impl AsFd) -> io::Result<Option<Vec<u8>>> {
    let found = rustix::fs::statat(link, c"", AtFlags::EMPTY_PATH)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::Symlink {
        return Ok(None);
    }
    if found.st_uid != 0 && found.st_uid != rustix::process::geteuid().as_raw() {
        return Err(Errno::LOOP.into());
    }
    Ok(Some(rustix::fs::readlinkat(link, c"", Vec::new())?.into_bytes()))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::fs::{chown, lchown, symlink};

    use super::*;

    #[test]
    fn own_links_are_followed_and_others_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("real")).unwrap();
        std::fs::write(at("real/file"), "text").unwrap();
        symlink("real", at("link")).unwrap();
        symlink(at("link/../real/file"), at("leaf")).unwrap();
        symlink("loop", at("loop")).unwrap();
        let read = |name: &str| {
            let mut text = String::new();
            open(&at(name)).and_then(|mut file| file.read_to_string(&mut text)).map(|_| text)
        };
        for name in ["real/file", "link/file", "leaf", "real/../link/./file"] {
            assert_eq!(read(name).unwrap(), "text", "{name}");
        }
        assert_eq!(read("loop").unwrap_err().raw_os_error(), Some(libc::ELOOP));
        assert_eq!(read("none").unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(directory(&at("link")).is_ok() && directory(&at("leaf")).is_err());
        let open_file = File::open(at("real/file")).unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&open_file);
        assert!(open(Path::new(&format!("/dev/fd/{number}"))).is_ok());
        append(&at("link/new")).unwrap().write_all(b"a").unwrap();
        append(&at("link/new")).unwrap().write_all(b"b").unwrap();
        assert_eq!(read("real/new").unwrap(), "ab");
        if !rustix::process::geteuid().is_root() {
            return;
        }
        chown(at("real"), Some(65534), None).unwrap();
        assert!(read("link/file").is_ok(), "directories may be anybody's");
        for name in ["link", "leaf"] {
            lchown(at(name), Some(65534), Some(65534)).unwrap();
        }
        for name in ["link/file", "leaf"] {
            assert_eq!(read(name).unwrap_err().raw_os_error(), Some(libc::ELOOP), "{name}");
        }
        assert!(append(&at("link/other")).is_err() && directory(&at("link")).is_err());
    }
}
