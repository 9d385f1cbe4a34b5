//! POSIX ACLs: the values of Linux's attributes `system.posix_acl_access` and `system.posix_acl_default`, and their
//! text form as `getfacl` prints it.
//!
//! ZFS stores the attribute value in Linux's exchange format (`include/uapi/linux/posix_acl_xattr.h`): a version word,
//! then eight bytes for each entry, little-endian.

use std::fmt::Write;

/// Name of the attribute that holds the access ACL.
pub const ACCESS: &str = "system.posix_acl_access";
/// Name of the attribute that holds a directory's default ACL.
pub const DEFAULT: &str = "system.posix_acl_default";

/// `POSIX_ACL_XATTR_VERSION`.
const VERSION: u32 = 2;
const ENTRY_LEN: usize = 8;

/// The subject of an entry (`ACL_USER_OBJ` and so on, in Linux's order).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tag {
    /// The owner.
    UserObj,
    /// A named user.
    User(u32),
    /// The owning group.
    GroupObj,
    /// A named group.
    Group(u32),
    /// The upper limit for everyone except the owner and others.
    Mask,
    /// Everyone else.
    Other,
}

/// One entry of an ACL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The subject of the entry.
    pub tag: Tag,
    /// Permission bits: read 4, write 2, execute 1.
    pub permissions: u8,
}

/// A POSIX ACL.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PosixAcl {
    /// Its entries, sorted.
    pub entries: Vec<Entry>,
}

/// The error for a malformed value of a POSIX ACL attribute.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a POSIX ACL value of {len} bytes is malformed: {what}")]
pub struct AclError {
    /// Length of the value in bytes.
    pub len: usize,
    /// What is wrong with it.
    pub what: &'static str,
}

impl PosixAcl {
    /// Decodes an attribute value.
    ///
    /// # Errors
    /// If the version, the length, or an entry's tag or permissions are invalid.
    pub fn decode(value: &[u8]) -> Result<Self, AclError> {
        let bad = |what| AclError { len: value.len(), what };
        let (version, rest) = value.split_first_chunk().ok_or(bad("no version"))?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(bad("unknown version"));
        }
        if rest.len() % ENTRY_LEN != 0 {
            return Err(bad("a partial entry"));
        }
        let entry = |raw: &[u8]| {
            let id = u32::from_le_bytes([raw[4], raw[5], raw[6], raw[7]]);
            let tag = match u16::from_le_bytes([raw[0], raw[1]]) {
                0x01 => Tag::UserObj,
                0x02 => Tag::User(id),
                0x04 => Tag::GroupObj,
                0x08 => Tag::Group(id),
                0x10 => Tag::Mask,
                0x20 => Tag::Other,
                _ => return Err(bad("an unknown tag")),
            };
            match u16::from_le_bytes([raw[2], raw[3]]) {
                permissions @ 0..=7 => Ok(Entry { tag, permissions: permissions as u8 }),
                _ => Err(bad("unknown permissions")),
            }
        };
        let mut entries = rest.chunks_exact(ENTRY_LEN).map(entry).collect::<Result<Vec<_>, _>>()?;
        entries.sort();
        Ok(Self { entries })
    }

    /// Encodes an attribute value.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for entry in &self.entries {
            let (tag, id): (u16, u32) = match entry.tag {
                Tag::UserObj => (0x01, u32::MAX),
                Tag::User(id) => (0x02, id),
                Tag::GroupObj => (0x04, u32::MAX),
                Tag::Group(id) => (0x08, id),
                Tag::Mask => (0x10, u32::MAX),
                Tag::Other => (0x20, u32::MAX),
            };
            value.extend(tag.to_le_bytes());
            value.extend(u16::from(entry.permissions).to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    }

    /// The ACL that is equivalent to `mode`.
    pub fn from_mode(mode: u32) -> Self {
        let entry = |tag, shift: u32| Entry { tag, permissions: (mode >> shift) as u8 & 7 };
        Self { entries: vec![entry(Tag::UserObj, 6), entry(Tag::GroupObj, 3), entry(Tag::Other, 0)] }
    }

    /// Appends the lines that `getfacl -n -E` prints, each preceded by `prefix`.
    fn lines(&self, prefix: &str, lines: &mut Vec<String>) {
        for entry in &self.entries {
            let mut line = String::from(prefix);
            let who = match entry.tag {
                Tag::UserObj => "user:".into(),
                Tag::User(id) => format!("user:{id}"),
                Tag::GroupObj => "group:".into(),
                Tag::Group(id) => format!("group:{id}"),
                Tag::Mask => "mask:".into(),
                Tag::Other => "other:".into(),
            };
            let bit = |bit, letter| if entry.permissions & bit != 0 { letter } else { '-' };
            let _ = write!(line, "{who}:{}{}{}", bit(4, 'r'), bit(2, 'w'), bit(1, 'x'));
            lines.push(line);
        }
    }
}

/// The lines of `getfacl -n -p -E -c` for a file with `mode` and these attribute values, without comments and blank
/// lines. Without an access ACL, the lines of the mode are returned.
///
/// # Errors
/// If a value is malformed.
pub fn getfacl(mode: u32, access: Option<&[u8]>, default: Option<&[u8]>) -> Result<Vec<String>, AclError> {
    let mut lines = Vec::new();
    let shown = access.map(PosixAcl::decode).transpose()?.unwrap_or_else(|| PosixAcl::from_mode(mode));
    shown.lines("", &mut lines);
    if let Some(default) = default {
        PosixAcl::decode(default)?.lines("default:", &mut lines);
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_what_it_decodes() {
        let entries =
            [(Tag::UserObj, 7), (Tag::User(5), 4), (Tag::GroupObj, 5), (Tag::Mask, 5), (Tag::Other, 0)]
                .map(|(tag, permissions)| Entry { tag, permissions });
        let acl = PosixAcl { entries: entries.to_vec() };
        assert_eq!(PosixAcl::decode(&acl.encode()).unwrap(), acl);
        assert_eq!(
            getfacl(0o750, Some(&acl.encode()), None).unwrap(),
            ["user::rwx", "user:5:r--", "group::r-x", "mask::r-x", "other::---"]
        );
    }

    #[test]
    fn a_default_acl_alone_shows_the_mode_too() {
        let default = PosixAcl::from_mode(0o700).encode();
        let lines = getfacl(0o041, None, Some(&default)).unwrap();
        assert_eq!(lines[..3], ["user::---", "group::r--", "other::--x"]);
        assert_eq!(lines[3], "default:user::rwx");
    }

    #[test]
    fn malformed_values_are_refused() {
        for bad in [&b""[..], &[1, 0, 0, 0], &[2, 0, 0, 0, 1], &[2, 0, 0, 0, 3, 0, 7, 0, 0, 0, 0, 0]] {
            assert!(PosixAcl::decode(bad).is_err(), "{bad:?}");
        }
    }
}
