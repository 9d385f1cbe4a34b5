//! `lock file`: counts the clients of modules across all servers that share the file. Some of these servers serve one
//! client each.
//!
//! Each client of a module with `max connections` locks four bytes of the file, as with rsync's daemon, which may share
//! the file. The lock belongs to the open file, so it ends with the process in any case.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use super::trusted;

/// Bytes of the file for each client.
const PLACE_LEN: libc::off_t = 4;

/// Takes one of `most` places. `None` if all are taken. The place becomes free when the file is closed.
///
/// # Errors
/// When the file cannot be opened or locked.
pub fn take_place(path: &Path, most: usize) -> io::Result<Option<File>> {
    let file = trusted::append(path)?;
    for place in 0..most {
        if lock(&file, place)? {
            return Ok(Some(file));
        }
    }
    Ok(None)
}

#[allow(unsafe_code)]
fn lock(file: &File, place: usize) -> io::Result<bool> {
    // A lock of an open file, not of a process, because clients are threads here.
    let range = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: PLACE_LEN.saturating_mul(libc::off_t::try_from(place).unwrap_or(libc::off_t::MAX)),
        l_len: PLACE_LEN,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open, and the pointer is to a complete `flock`.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        error => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = take_place(&path, 2).unwrap().unwrap();
        let second = take_place(&path, 2).unwrap().unwrap();
        assert!(take_place(&path, 2).unwrap().is_none());
        drop(first);
        let third = take_place(&path, 2).unwrap();
        assert!(third.is_some() && take_place(&path, 2).unwrap().is_none());
        drop(second);
        assert!(take_place(dir.path(), 2).is_err());
    }
}
