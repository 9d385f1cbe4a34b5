//! Temporary names in rsync's form: `.NAME.XXXXXX`.

use std::io;

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// The longest name in Linux's filesystems, in bytes.
const NAME_MAX: usize = 255;
const SUFFIX_LEN: usize = 6;
/// The most names that are tried.
const TRIES: usize = 100;
const LETTERS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

/// A temporary name for a file that will have this name.
fn temporary_name(name: &[u8]) -> io::Result<Vec<u8>> {
    let name = name.strip_prefix(b".").unwrap_or(name);
    let room = NAME_MAX - SUFFIX_LEN - 2;
    // A UTF-8 character is not cut, because some filesystems reject that.
    let is_begin = |at: &usize| name.get(*at).is_none_or(|byte| byte & 0xc0 != 0x80);
    let end = (0..=name.len().min(room)).rev().find(is_begin).unwrap_or(0);
    let mut random = [0; SUFFIX_LEN];
    getrandom(&mut random, GetRandomFlags::empty())?;
    let suffix = random.map(|byte| LETTERS[usize::from(byte) % LETTERS.len()]);
    Ok([b".", &name[..end], b".", &suffix].concat())
}

/// Creates something with a temporary name. `make` must fail with `AlreadyExists` if the name is taken.
///
/// # Errors
/// The other errors of `make`.
pub(super) fn make<T>(name: &[u8], mut make: impl FnMut(&[u8]) -> io::Result<T>) -> io::Result<(Vec<u8>, T)> {
    for _ in 0..TRIES {
        let temporary = temporary_name(name)?;
        match make(&temporary) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|made| (temporary, made)),
        }
    }
    Err(Errno::EXIST.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_names_are_rsyncs() {
        for (name, expected) in [("file", ".file."), (".hidden", ".hidden."), ("a.b", ".a.b.")] {
            let made = temporary_name(name.as_bytes()).unwrap();
            let (begin, suffix) = made.split_at(made.len() - SUFFIX_LEN);
            assert_eq!(begin, expected.as_bytes());
            assert!(suffix.iter().all(u8::is_ascii_alphanumeric));
        }
        let long = temporary_name("ä".repeat(127).as_bytes()).unwrap();
        assert!(long.len() <= NAME_MAX && std::str::from_utf8(&long).is_ok());
    }

    #[test]
    fn names_that_are_taken_are_not_used() {
        let mut tries = 0;
        let made = make(b"f", |_| {
            tries += 1;
            if tries < 3 { Err(io::ErrorKind::AlreadyExists.into()) } else { Ok(()) }
        });
        assert!(made.is_ok() && tries == 3);
        let taken = make(b"f", |_| Err::<(), _>(io::ErrorKind::AlreadyExists.into()));
        assert_eq!(taken.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }
}
