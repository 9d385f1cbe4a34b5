//! Attributes that only root can set, stored in extended attributes that the owner of a file can set (rsync(1),
//! "--fake-super"). These are owner, group, all permissions, the kind and number of a device, ACLs, and attributes
//! outside of `user.`.
//!
//! - `user.rsync.%stat` holds `MODE MAJOR,MINOR UID:GID`, with the mode in octal including its kind. A file without it
//!   has its real attributes.
//! - Symbolic links, devices, fifos and sockets are regular files. The content of one that stands for a link is its
//!   target.
//! - `user.rsync.%aacl` and `user.rsync.%dacl` hold ACLs.
//! - `user.rsync.NAME` holds the attribute NAME of another namespace.
//!
//! The owner of a file can write all of this. It is only what a client is told, and what a later restore sets.

use std::collections::BTreeMap;
use std::io;

use snowmelt_zpl::acl::{ACCESS, DEFAULT, PosixAcl};

use crate::flist::{acl_from_attribute, acl_to_attribute};
use crate::source::{Metadata, kind};

/// The prefix of the attributes in which rsync stores others.
const PREFIX: &[u8] = b"user.rsync.";
/// The prefix of rsync's own attributes.
const OWN: &[u8] = b"user.rsync.%";
/// The attribute with mode, device and owner.
pub(crate) const STAT: &[u8] = b"user.rsync.%stat";
const ACCESS_ACL: &[u8] = b"user.rsync.%aacl";
const DEFAULT_ACL: &[u8] = b"user.rsync.%dacl";
const USER: &[u8] = b"user.";
const SYSTEM: &[u8] = b"system.";

/// Extended attributes by name.
pub(crate) type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("user.rsync.%stat {what}"))
}

/// The value of this attribute for a file.
pub(crate) fn value(it: &Metadata) -> Vec<u8> {
    let (major, minor) = if it.is_device() { it.rdev } else { (0, 0) };
    format!("{:o} {major},{minor} {}:{}", it.mode, it.uid, it.gid).into_bytes()
}

/// The metadata that the attribute gives a file. Without the attribute, the real metadata.
///
/// # Errors
/// When the attribute is malformed, or makes a directory of another file, or the reverse.
pub(crate) fn shown(real: Metadata, stat: Option<&[u8]>) -> io::Result<Metadata> {
    let Some(stat) = stat.filter(|_| real.is_file() || real.is_dir()) else { return Ok(real) };
    let shown = parse(real, stat).ok_or_else(|| invalid("is malformed"))?;
    if shown.is_dir() != real.is_dir() {
        return Err(invalid("is of a file of another kind"));
    }
    Ok(shown)
}

fn parse(real: Metadata, stat: &[u8]) -> Option<Metadata> {
    let mut words = std::str::from_utf8(stat).ok()?.split_ascii_whitespace();
    let (mode, rdev, owner) = (words.next()?, words.next()?, words.next()?);
    let pair = |text: &str, between| {
        let (one, other) = text.split_once(between)?;
        Some((one.parse().ok()?, other.parse().ok()?))
    };
    let ((major, minor), (uid, gid)) = (pair(rdev, ',')?, pair(owner, ':')?);
    let mode = u32::from_str_radix(mode, 8).ok()?;
    let shown = Metadata { mode, uid, gid, rdev: (major, minor), ..real };
    let is_kind =
        shown.is_file() || shown.is_dir() || shown.is_symlink() || shown.is_device() || shown.is_special();
    (is_kind && mode & !(kind::MASK | 0o7777) == 0 && words.next().is_none()).then_some(shown)
}

/// The real permissions of a file that is to have `permissions`: without setuid, setgid and sticky bit, and with access
/// for its owner.
pub(crate) fn real_permissions(permissions: u32, is_dir: bool) -> u32 {
    permissions & 0o777 | if is_dir { 0o700 } else { 0o600 }
}

/// The attributes of a file in the form for a client. `it` is the metadata of the file for the client.
pub(crate) fn outward(found: Xattrs, it: &Metadata) -> Xattrs {
    let mut told = Xattrs::new();
    for (name, value) in found {
        let acl = |acl: Option<PosixAcl>, name: &str| acl.map(|acl| (name.as_bytes().to_vec(), acl.encode()));
        let one = match name.as_slice() {
            STAT => None,
            ACCESS_ACL => {
                let read = acl_from_attribute(&value);
                acl(read.and_then(|acl| acl.access(it.mode, |id, _| id)), ACCESS)
            }
            DEFAULT_ACL => acl(acl_from_attribute(&value).and_then(|acl| acl.default(|id, _| id)), DEFAULT),
            // Real ACLs belong to the real permissions.
            name if name.starts_with(SYSTEM) || name.starts_with(OWN) => None,
            name => match name.strip_prefix(PREFIX) {
                Some(other) => Some((other.to_vec(), value)),
                None => Some((name.to_vec(), value)),
            },
        };
        told.extend(one);
    }
    told
}

/// Whether a client can set an attribute.
pub(crate) fn is_taken(name: &[u8]) -> bool {
    !name.starts_with(OWN) && (!name.starts_with(SYSTEM) || is_acl(name))
}

fn is_acl(name: &[u8]) -> bool {
    name == ACCESS.as_bytes() || name == DEFAULT.as_bytes()
}

/// The attribute and the value in which a client's attribute is stored. `it` is the metadata of the file for the
/// client.
pub(crate) fn inward(
    name: &[u8],
    value: Option<&[u8]>,
    it: &Metadata,
) -> io::Result<(Vec<u8>, Option<Vec<u8>>)> {
    let acl = |mode: Option<u32>| match value.map(PosixAcl::decode) {
        None => Ok(None),
        Some(Ok(acl)) => Ok(Some(acl_to_attribute(&acl, mode))),
        Some(Err(error)) => Err(io::Error::new(io::ErrorKind::InvalidData, error)),
    };
    if name == ACCESS.as_bytes() {
        return Ok((ACCESS_ACL.to_vec(), acl(Some(it.mode))?));
    }
    if name == DEFAULT.as_bytes() {
        return Ok((DEFAULT_ACL.to_vec(), acl(None)?));
    }
    if !is_taken(name) {
        return Err(rustix::io::Errno::OPNOTSUPP.into());
    }
    let place = if name.starts_with(USER) { name.to_vec() } else { [PREFIX, name].concat() };
    Ok((place, value.map(<[u8]>::to_vec)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> Metadata {
        Metadata { mode: kind::FILE | 0o600, uid: 7, gid: 8, size: 3, ..Metadata::default() }
    }

    #[test]
    fn what_is_kept_is_found_again() {
        let device = Metadata { mode: kind::CHAR_DEVICE | 0o4640, uid: 1, gid: 2, rdev: (5, 300), ..file() };
        assert_eq!(value(&device), b"24640 5,300 1:2");
        assert_eq!(shown(file(), Some(&value(&device))).unwrap(), device);
        let plain = Metadata { rdev: (0, 0), mode: kind::FILE | 0o755, ..device };
        assert_eq!(value(&plain), b"100755 0,0 1:2");
        assert_eq!(shown(file(), None).unwrap(), file());
        let directory = Metadata { mode: kind::DIRECTORY | 0o700, ..file() };
        for bad in [
            "",
            "100644",
            "100644 0,0 1",
            "100644 0,0 1:-1",
            "100644 0,0 1:2 x",
            "0 0,0 1:2",
            "7100644 0,0 1:2",
        ] {
            assert!(shown(file(), Some(bad.as_bytes())).is_err(), "{bad}");
        }
        // A file cannot stand for a directory.
        assert!(shown(file(), Some(&value(&directory))).is_err());
        assert!(shown(directory, Some(&value(&device))).is_err());
    }

    #[test]
    fn attributes_have_places() {
        let it = Metadata { mode: kind::FILE | 0o640, ..file() };
        let acl = PosixAcl::from_mode(0o640);
        let named = snowmelt_zpl::acl::Entry { tag: snowmelt_zpl::acl::Tag::User(9), permissions: 6 };
        let mask = snowmelt_zpl::acl::Entry { tag: snowmelt_zpl::acl::Tag::Mask, permissions: 4 };
        let mut acl = PosixAcl { entries: [&acl.entries[..], &[named, mask]].concat() };
        acl.entries.sort();
        let mut kept = Xattrs::new();
        for (name, value) in [
            (&b"user.a"[..], b"1".to_vec()),
            (b"security.b", b"2".to_vec()),
            (ACCESS.as_bytes(), acl.encode()),
            (DEFAULT.as_bytes(), acl.encode()),
        ] {
            let (place, value) = inward(name, Some(&value), &it).unwrap();
            kept.insert(place, value.unwrap());
        }
        kept.insert(STAT.to_vec(), value(&it));
        kept.insert(b"system.posix_acl_access".to_vec(), b"real".to_vec());
        let names: Vec<_> = kept.keys().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        assert_eq!(
            names.join(" "),
            "system.posix_acl_access user.a user.rsync.%aacl user.rsync.%dacl user.rsync.%stat user.rsync.security.b"
        );
        let told = outward(kept, &it);
        assert_eq!(told.get(&b"security.b"[..]).map(Vec::as_slice), Some(&b"2"[..]));
        assert_eq!((told.get(ACCESS.as_bytes()), told.len()), (Some(&acl.encode()), 4));
        assert_eq!(told.get(DEFAULT.as_bytes()), Some(&acl.encode()));
        for own in [STAT, ACCESS_ACL, b"user.rsync.%other", b"system.other"] {
            assert!(!is_taken(own) && inward(own, Some(b"x"), &it).is_err());
        }
    }
}
