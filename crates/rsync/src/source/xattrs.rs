//! Reads extended attributes of files of this machine. The kernel needs paths for them. Paths below `/proc/self/fd`
//! serve for files that are open without access to their content, and for names in open directories.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::AtFlags;
use rustix::io::Errno;
use rustix::path::Arg;

/// The longest list of names and the longest value in Linux, in bytes.
const LEN_MAX: usize = 64 << 10;
/// The number of `listxattrat` (Linux 6.13), which libc does not have on all of these architectures. System calls this
/// new have the same number on all of them.
#[cfg(any(
    target_arch = "x86_64",
    target_arch = "aarch64",
    target_arch = "riscv64",
    target_arch = "powerpc64",
    target_arch = "s390x"
))]
const LISTXATTRAT: Option<libc::c_long> = Some(465);
#[cfg(not(any(
    target_arch = "x86_64",
    target_arch = "aarch64",
    target_arch = "riscv64",
    target_arch = "powerpc64",
    target_arch = "s390x"
)))]
const LISTXATTRAT: Option<libc::c_long> = None;
/// The kernel does not have the call.
static IS_MISSING: AtomicBool = AtomicBool::new(LISTXATTRAT.is_none());

/// The attributes of an open file.
///
/// # Errors
/// The errors of the kernel.
pub(crate) fn of(file: impl AsFd) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    at(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()).into_bytes(), true)
}

/// The attributes of the file with this name in a directory. A symbolic link is not followed.
///
/// # Errors
/// The errors of the kernel.
pub(crate) fn of_name(directory: impl AsFd, name: &[u8]) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let directory = directory.as_fd();
    if name.into_with_c_str(|name| Ok(has_none(directory, name))) == Ok(true) {
        return Ok(BTreeMap::new());
    }
    at([format!("/proc/self/fd/{}/", directory.as_raw_fd()).as_bytes(), name].concat(), false)
}

/// Whether the file with this name certainly has no attributes, like most files. A path through `/proc` takes twice as
/// long to find that out.
fn has_none(directory: BorrowedFd<'_>, name: &CStr) -> bool {
    let Some(call) = LISTXATTRAT.filter(|_| !IS_MISSING.load(Ordering::Relaxed)) else { return false };
    let (no_buffer, no_len) = (std::ptr::null_mut::<libc::c_char>(), 0_usize);
    // SAFETY: the name ends with a NUL, and the descriptor is open while it is borrowed. Without a buffer nothing is
    // written.
    let len = unsafe {
        libc::syscall(
            call,
            directory.as_raw_fd(),
            name.as_ptr(),
            AtFlags::SYMLINK_NOFOLLOW.bits(),
            no_buffer,
            no_len,
        )
    };
    if len < 0
        && matches!(Errno::from_io_error(&io::Error::last_os_error()), Some(Errno::NOSYS | Errno::PERM))
    {
        IS_MISSING.store(true, Ordering::Relaxed);
    }
    len == 0
}

/// All attributes of the file at a path.
fn at(path: Vec<u8>, follow: bool) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let path = CString::new(path)?;
    let mut buffer = Vec::with_capacity(LEN_MAX);
    let listed = match follow {
        true => rustix::fs::listxattr(&path, rustix::buffer::spare_capacity(&mut buffer)),
        false => rustix::fs::llistxattr(&path, rustix::buffer::spare_capacity(&mut buffer)),
    };
    match listed {
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(BTreeMap::new()),
        Ok(_) => {}
        Err(error) => return Err(error.into()),
    }
    let mut found = BTreeMap::new();
    let mut value = Vec::with_capacity(LEN_MAX);
    for name in buffer.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        value.clear();
        let spare = rustix::buffer::spare_capacity(&mut value);
        let got = match follow {
            true => rustix::fs::getxattr(&path, name, spare),
            false => rustix::fs::lgetxattr(&path, name, spare),
        };
        match got {
            Ok(_) => drop(found.insert(name.to_vec(), value.clone())),
            // The attribute was removed meanwhile.
            Err(Errno::NODATA) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_found_by_name_is_what_is_found_by_path() {
        let top = tempfile::tempdir().unwrap();
        let (with, without) = (top.path().join("with"), top.path().join("without"));
        fs::write(&with, "").unwrap();
        fs::write(&without, "").unwrap();
        std::os::unix::fs::symlink("with", top.path().join("link")).unwrap();
        rustix::fs::setxattr(&with, "user.one", b"1", rustix::fs::XattrFlags::empty()).unwrap();
        let directory = fs::File::open(top.path()).unwrap();
        let expected = BTreeMap::from([(b"user.one".to_vec(), b"1".to_vec())]);
        assert_eq!(of_name(&directory, b"with").unwrap(), expected);
        assert_eq!(of(fs::File::open(&with).unwrap()).unwrap(), expected);
        assert!(of_name(&directory, b"without").unwrap().is_empty());
        assert!(of_name(&directory, b"link").unwrap().is_empty());
        assert_eq!(of_name(&directory, b"none").unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(!has_none(directory.as_fd(), c"with") && !has_none(directory.as_fd(), c"none"));
        // If the kernel has the call, the call gives the result.
        assert_eq!(has_none(directory.as_fd(), c"without"), !IS_MISSING.load(Ordering::Relaxed));
    }
}
