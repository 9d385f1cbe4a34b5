//! How POSIX ACLs affect modes and modes affect POSIX ACLs: `posix_acl_create`, `posix_acl_chmod`,
//! `posix_acl_update_mode` of Linux's `fs/posix_acl.c`.

use crate::acl::{Entry, PosixAcl, Tag};
use crate::error::ZplError;

/// The bits of a mode that correspond to an ACL.
const PERMISSIONS: u32 = 0o777;

fn decode(object: u64, value: &[u8]) -> Result<PosixAcl, ZplError> {
    let invalid = |what: String| ZplError::Invalid { object, what };
    let acl = PosixAcl::decode(value).map_err(|error| invalid(error.to_string()))?;
    match is_valid(&acl) {
        true => Ok(acl),
        false => Err(invalid("a POSIX ACL with entries missing or doubled".into())),
    }
}

/// Whether the ACL is valid: one entry each for owner, group and others, a mask if users or groups are named, and no
/// duplicates (`posix_acl_valid`).
fn is_valid(acl: &PosixAcl) -> bool {
    let count = |tag: fn(&Tag) -> bool| acl.entries.iter().filter(|entry| tag(&entry.tag)).count();
    let named = count(|tag| matches!(tag, Tag::User(_) | Tag::Group(_)));
    let masks = count(|tag| matches!(tag, Tag::Mask));
    count(|tag| matches!(tag, Tag::UserObj)) == 1
        && count(|tag| matches!(tag, Tag::GroupObj)) == 1
        && count(|tag| matches!(tag, Tag::Other)) == 1
        && masks <= 1
        && (masks == 1 || named == 0)
        && acl.entries.windows(2).all(|pair| pair[0].tag != pair[1].tag)
}

fn entry_mut(acl: &mut PosixAcl, tag: Tag) -> Option<&mut Entry> {
    acl.entries.iter_mut().find(|entry| entry.tag == tag)
}

/// The entry that corresponds to the group bits of a mode: the mask, or the owning group if there is no mask.
fn group_class(acl: &mut PosixAcl) -> Option<&mut Entry> {
    let has_mask = acl.entries.iter().any(|entry| entry.tag == Tag::Mask);
    entry_mut(acl, if has_mask { Tag::Mask } else { Tag::GroupObj })
}

/// Whether the ACL contains more than a mode can express.
fn is_extended(acl: &PosixAcl) -> bool {
    acl.entries.len() > 3
}

/// The permission bits that correspond to an ACL.
fn permissions(acl: &mut PosixAcl) -> u32 {
    let group = group_class(acl).map_or(0, |entry| entry.permissions);
    let bits = |acl: &mut PosixAcl, tag| entry_mut(acl, tag).map_or(0, |entry| u32::from(entry.permissions));
    bits(acl, Tag::UserObj) << 6 | u32::from(group) << 3 | bits(acl, Tag::Other)
}

/// The permissions and access ACL that a new file inherits from its directory's default ACL.
pub(super) struct Inherited {
    pub(super) permissions: u32,
    /// The file's access ACL, if it contains more than the mode can express.
    pub(super) access: Option<Vec<u8>>,
}

/// Applies the default ACL `default` of `directory` to a file created with `wanted` permission bits.
pub(super) fn inherit(directory: u64, default: &[u8], wanted: u32) -> Result<Inherited, ZplError> {
    let mut acl = decode(directory, default)?;
    let limit = |entry: Option<&mut Entry>, bits: u32| {
        if let Some(entry) = entry {
            entry.permissions &= (bits & 7) as u8;
        }
    };
    limit(entry_mut(&mut acl, Tag::UserObj), wanted >> 6);
    limit(group_class(&mut acl), wanted >> 3);
    limit(entry_mut(&mut acl, Tag::Other), wanted);
    let permissions = wanted & !PERMISSIONS | permissions(&mut acl);
    Ok(Inherited { permissions, access: is_extended(&acl).then(|| acl.encode()) })
}

/// The access ACL `access` after a change of the mode.
pub(super) fn changed_mode(object: u64, access: &[u8], mode: u32) -> Result<Vec<u8>, ZplError> {
    let mut acl = decode(object, access)?;
    let set = |entry: Option<&mut Entry>, bits: u32| {
        if let Some(entry) = entry {
            entry.permissions = (bits & 7) as u8;
        }
    };
    set(entry_mut(&mut acl, Tag::UserObj), mode >> 6);
    set(group_class(&mut acl), mode >> 3);
    set(entry_mut(&mut acl, Tag::Other), mode);
    Ok(acl.encode())
}

/// The result of setting an access ACL: the mode's permission bits, and the ACL if the mode cannot express it.
pub(super) fn set_access(object: u64, access: &[u8], mode: u32) -> Result<(u32, Option<Vec<u8>>), ZplError> {
    let mut acl = decode(object, access)?;
    let permissions = mode & 0o7000 | permissions(&mut acl);
    Ok((permissions, is_extended(&acl).then(|| acl.encode())))
}

/// A default ACL as it is stored, or `None` if it has no entries.
pub(super) fn set_default(object: u64, default: &[u8]) -> Result<Option<Vec<u8>>, ZplError> {
    let invalid = |what: String| ZplError::Invalid { object, what };
    let acl = PosixAcl::decode(default).map_err(|error| invalid(error.to_string()))?;
    if acl.entries.is_empty() {
        return Ok(None);
    }
    Ok(Some(decode(object, default)?.encode()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(Tag, u8)]) -> Vec<u8> {
        let entries = entries.iter().map(|(tag, permissions)| Entry { tag: *tag, permissions: *permissions });
        PosixAcl { entries: entries.collect() }.encode()
    }

    const EXTENDED: [(Tag, u8); 5] =
        [(Tag::UserObj, 7), (Tag::User(5), 6), (Tag::GroupObj, 5), (Tag::Mask, 7), (Tag::Other, 4)];

    #[test]
    fn inheritance_limits_by_the_wanted_mode() {
        let inherited = inherit(1, &acl(&EXTENDED), 0o1640).unwrap();
        assert_eq!(inherited.permissions, 0o1640);
        let expected =
            [(Tag::UserObj, 6), (Tag::User(5), 6), (Tag::GroupObj, 5), (Tag::Mask, 4), (Tag::Other, 0)];
        assert_eq!(inherited.access.unwrap(), acl(&expected));
        let plain = acl(&[(Tag::UserObj, 7), (Tag::GroupObj, 5), (Tag::Other, 0)]);
        let inherited = inherit(1, &plain, 0o666).unwrap();
        assert_eq!((inherited.permissions, inherited.access), (0o640, None));
    }

    #[test]
    fn mode_and_acl_follow_each_other() {
        let changed = changed_mode(1, &acl(&EXTENDED), 0o711).unwrap();
        assert_eq!(set_access(1, &changed, 0o4000).unwrap(), (0o4711, Some(changed.clone())));
        let plain = acl(&[(Tag::UserObj, 6), (Tag::GroupObj, 4), (Tag::Other, 0)]);
        assert_eq!(set_access(1, &plain, 0o777).unwrap(), (0o640, None));
    }

    #[test]
    fn impossible_acls_are_refused() {
        for bad in [
            &[(Tag::UserObj, 7)][..],
            &[(Tag::UserObj, 7), (Tag::User(1), 7), (Tag::GroupObj, 7), (Tag::Other, 7)],
            &[(Tag::UserObj, 7), (Tag::GroupObj, 7), (Tag::Other, 7), (Tag::Other, 7)],
        ] {
            assert!(matches!(set_access(9, &acl(bad), 0), Err(ZplError::Invalid { object: 9, .. })));
        }
        assert!(set_default(1, &acl(&[])).unwrap().is_none());
    }
}
