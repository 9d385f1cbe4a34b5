//! Reading extended attributes. They are stored as a packed nvlist in the system attributes (`xattr=sa`) or as files in
//! a hidden directory (`xattr=dir`). A file may have both kinds. Names are shown as ZFS on Linux shows them
//! (`module/os/linux/zfs/zpl_xattr.c`).

use crate::attributes::Attributes;
use crate::error::ZplError;
use crate::filesystem::Filesystem;
use crate::sa::{Attr, SaValues};
use crate::source::Objects;
use crate::xdr;
use crate::zap::{Cursor, Matching, Zap};
use std::collections::BTreeMap;

/// Largest value that is read: Linux's `XATTR_SIZE_MAX`. A hidden directory may hold larger files, which Linux does not
/// return in full either.
pub(crate) const VALUE_MAX: u64 = 64 << 10;
/// Largest number of attributes that are listed from one hidden directory.
const COUNT_MAX: usize = 1 << 16;

/// Limit on the total size of one file's values, so that sparse attribute files cannot exhaust the memory.
const TOTAL_MAX: usize = 64 << 20;

/// The name that Linux shows for a stored name, or `None` if Linux hides it.
fn linux_name(stored: &[u8]) -> Option<Vec<u8>> {
    const SHOWN: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    const EXACT: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
    if SHOWN.iter().any(|prefix| stored.starts_with(prefix)) || EXACT.contains(&stored) {
        return Some(stored.to_vec());
    }
    // FreeBSD's system namespace stays hidden. A name without a namespace was written on a platform that has none.
    (!stored.starts_with(b"freebsd:")).then(|| [b"user.", stored].concat())
}

/// The names under which an attribute that Linux calls `name` may be stored, the most likely one first.
pub(crate) fn stored_names(name: &[u8]) -> Vec<&[u8]> {
    match name.strip_prefix(b"user.") {
        Some(bare) if !bare.is_empty() && linux_name(bare).is_some_and(|shown| shown == name) => {
            vec![name, bare]
        }
        _ => vec![name],
    }
}

impl<O: Objects> Filesystem<O> {
    /// All extended attributes of `object` by name, as Linux shows them, including POSIX ACLs.
    ///
    /// # Errors
    /// If they cannot be read, or exceed Linux's limits on size or number.
    pub fn xattrs(&self, object: u64) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, ZplError> {
        let mut found = BTreeMap::new();
        let (directory, stored) = self.with_values(object, |values| {
            let mut stored = Vec::new();
            sa_xattrs(object, values, |name, value| stored.push((name.to_vec(), value.to_vec())))?;
            Ok((Attributes::new(object, values)?.xattr_object, stored))
        })?;
        if let Some(directory) = directory {
            let zap = self.directory_zap(directory)?;
            let mut total = 0;
            for entry in zap.entries(Cursor::START) {
                let entry = entry?;
                let (Some(stored), Some(value)) = (entry.key.as_name(), entry.value.as_u64()) else {
                    return Err(ZplError::corrupt(directory, "an entry is no file"));
                };
                if found.len() >= COUNT_MAX {
                    return Err(ZplError::corrupt(directory, format!("more than {COUNT_MAX} attributes")));
                }
                if let Some(name) = linux_name(stored) {
                    let value = self.xattr_file(value)?;
                    total += value.len();
                    if total > TOTAL_MAX {
                        return Err(ZplError::corrupt(
                            directory,
                            format!("more than {TOTAL_MAX} bytes of attributes"),
                        ));
                    }
                    found.insert(name, value);
                }
            }
        }
        // A value in the system attributes takes precedence over one in the directory. A name stored with its namespace
        // takes precedence over one stored without.
        let (full, bare): (Vec<_>, Vec<_>) = stored
            .into_iter()
            .filter_map(|(stored, value)| Some((linux_name(&stored)?, stored, value)))
            .partition(|(name, stored, _)| name == stored);
        found.extend(bare.into_iter().chain(full).map(|(name, _, value)| (name, value)));
        Ok(found)
    }

    /// The value of one extended attribute, by the name that Linux shows.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn xattr(&self, object: u64, name: &[u8]) -> Result<Option<Vec<u8>>, ZplError> {
        for stored_name in stored_names(name) {
            let mut found = None;
            self.with_values(object, |values| {
                sa_xattrs(object, values, |stored, value| {
                    if stored == stored_name {
                        found = Some(value.to_vec());
                    }
                })
            })?;
            if found.is_some() {
                return Ok(found);
            }
            if let Some(directory) = self.attributes(object)?.xattr_object {
                let entry = self.directory_zap(directory)?.lookup(stored_name, self.xattr_matching())?;
                if let Some(value) = entry.and_then(|entry| entry.value.as_u64()) {
                    return self.xattr_file(value).map(Some);
                }
            }
        }
        Ok(None)
    }

    fn xattr_matching(&self) -> Matching {
        self.name_policy().matching()
    }

    fn directory_zap(&self, directory: u64) -> Result<Zap<'_, O>, ZplError> {
        Zap::open(self.objects(), directory)
    }

    /// The content of a file in a hidden directory. `value` is the value of its directory entry.
    fn xattr_file(&self, value: u64) -> Result<Vec<u8>, ZplError> {
        let object = value & crate::filesystem::DIRENT_OBJECT;
        let size = self.attributes(object)?.size;
        if size > VALUE_MAX {
            return Err(ZplError::corrupt(object, format!("an extended attribute of {size} bytes")));
        }
        let mut value = vec![0; size as usize];
        self.objects().read(object, 0, &mut value).map_err(ZplError::source(object))?;
        Ok(value)
    }
}

/// Calls `each` with the names and values in the `ZPL_DXATTR` attribute of `object`.
fn sa_xattrs(object: u64, values: &SaValues<'_>, mut each: impl FnMut(&[u8], &[u8])) -> Result<(), ZplError> {
    let Some((_, packed)) = values.bytes(Attr::Dxattr).filter(|(_, packed)| !packed.is_empty()) else {
        return Ok(());
    };
    let mut read = || {
        let mut pairs = xdr::unpack(packed)?;
        while let Some(pair) = pairs.pair()? {
            each(pair.name, pair.byte_array()?);
        }
        Ok(())
    };
    read().map_err(|bad: xdr::BadNvlist| {
        ZplError::corrupt(object, format!("its nvlist of extended attributes: {}", bad.0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_linux() {
        assert_eq!(linux_name(b"user.a").unwrap(), b"user.a");
        assert_eq!(linux_name(b"a").unwrap(), b"user.a");
        assert_eq!(linux_name(b"system.posix_acl_accessory").unwrap(), b"user.system.posix_acl_accessory");
        assert_eq!(linux_name(b"system.posix_acl_access").unwrap(), b"system.posix_acl_access");
        assert_eq!(linux_name(b"freebsd:system:x"), None);
        assert_eq!(stored_names(b"user.a"), [&b"user.a"[..], b"a"]);
        assert_eq!(stored_names(b"user.security.x"), [b"user.security.x"]);
        assert_eq!(stored_names(b"trusted.a"), [b"trusted.a"]);
    }
}
