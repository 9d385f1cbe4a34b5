//! Reading ZFS's own ACLs, which have NFSv4's form. Every file has one. Most of them grant the same as the mode.
//!
//! They are stored in the `ZPL_DACL_ACES` attribute, or within a `znode_phys_t`. Old filesystems store long ones in a
//! separate object. Sources: `include/sys/zfs_acl.h` and `module/os/linux/zfs/zfs_acl.c`.

use crate::bytes::Endian;
use crate::error::ZplError;
use crate::filesystem::Filesystem;
use crate::sa::{Attr, SaValues};
use crate::source::Objects;

/// `MAX_ACL_ENTRIES`.
const COUNT_MAX: usize = 1024;
/// Number of bytes for ACEs in a `zfs_acl_phys_t`.
const EMBEDDED_LEN: usize = 72;

const FLAG_OWNER: u16 = 0x1000;
const FLAG_GROUP: u16 = 0x2000;
const FLAG_EVERYONE: u16 = 0x4000;
const FLAG_IDENTIFIER_GROUP: u16 = 0x0040;
const FLAG_TYPES: u16 = FLAG_OWNER | FLAG_GROUP | FLAG_EVERYONE | FLAG_IDENTIFIER_GROUP;

/// The type of an ACE (`ACE_ACCESS_ALLOWED_ACE_TYPE` and so on).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum AceKind {
    Allow,
    Deny,
    Audit,
    Alarm,
    /// A type with object GUIDs, or an unknown type, with its number.
    Other(u16),
}

/// The subject of an ACE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// `owner@`
    Owner,
    /// `group@`
    OwningGroup,
    /// `everyone@`
    Everyone,
    /// A user, as a FUID.
    User(u64),
    /// A group, as a FUID.
    Group(u64),
}

/// One entry of an NFSv4 ACL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ace {
    /// Whether it allows, denies or audits.
    pub kind: AceKind,
    /// The subject.
    pub who: Who,
    /// Inheritance and audit flags, without the flags that encode `who`.
    pub flags: u16,
    /// `ACE_READ_DATA` and so on.
    pub access_mask: u32,
}

impl Ace {
    fn new(kind: u16, flags: u16, access_mask: u32, fuid: u64) -> Self {
        let kind = match kind {
            0 => AceKind::Allow,
            1 => AceKind::Deny,
            2 => AceKind::Audit,
            3 => AceKind::Alarm,
            other => AceKind::Other(other),
        };
        let who = match flags & FLAG_TYPES {
            FLAG_OWNER => Who::Owner,
            FLAG_EVERYONE => Who::Everyone,
            both if both == FLAG_GROUP | FLAG_IDENTIFIER_GROUP => Who::OwningGroup,
            group if group & FLAG_IDENTIFIER_GROUP != 0 => Who::Group(fuid),
            _ => Who::User(fuid),
        };
        Self { kind, who, flags: flags & !FLAG_TYPES, access_mask }
    }
}

/// Decodes ACEs of `ZFS_ACL_VERSION_FUID`: an eight-byte header, a FUID for users and groups, GUIDs for object ACEs.
fn decode(endian: Endian, bytes: &[u8], count: usize) -> Option<Vec<Ace>> {
    let mut aces = Vec::with_capacity(count.min(COUNT_MAX));
    let mut at = 0;
    for _ in 0..count {
        let (kind, flags) = (endian.u16(bytes, at)?, endian.u16(bytes, at + 2)?);
        let mask = endian.u32(bytes, at + 4)?;
        let who = flags & FLAG_TYPES;
        let bare = who == FLAG_OWNER || who == FLAG_EVERYONE || who == FLAG_GROUP | FLAG_IDENTIFIER_GROUP;
        let len = match kind {
            5..=8 => 48,
            0 | 1 if bare => 8,
            _ => 16,
        };
        let fuid = if len > 8 { endian.u64(bytes, at + 8)? } else { 0 };
        aces.push(Ace::new(kind, flags, mask, fuid));
        at += len;
        if at > bytes.len() {
            return None;
        }
    }
    Some(aces)
}

/// Decodes ACEs of `ZFS_ACL_VERSION_INITIAL`, which have twelve bytes each.
fn decode_old(endian: Endian, bytes: &[u8], count: usize) -> Option<Vec<Ace>> {
    let ace = |index: usize| {
        let at = index * 12;
        let (fuid, mask) = (endian.u32(bytes, at)?, endian.u32(bytes, at + 4)?);
        Some(Ace::new(endian.u16(bytes, at + 10)?, endian.u16(bytes, at + 8)?, mask, u64::from(fuid)))
    };
    (0..count).map(ace).collect()
}

impl<O: Objects> Filesystem<O> {
    /// The NFSv4 ACL of `object`, which is empty if it has none.
    ///
    /// # Errors
    /// If it cannot be read or is malformed.
    pub fn nfs4_acl(&self, object: u64) -> Result<Vec<Ace>, ZplError> {
        self.with_values(object, |values| {
            let found = match values.bytes(Attr::DaclAces) {
                Some((endian, bytes)) => {
                    let count = values.word(Attr::DaclCount, 0).unwrap_or(0);
                    let count = usize::try_from(count).ok().filter(|count| *count <= COUNT_MAX);
                    count.and_then(|count| decode(endian, bytes, count))
                }
                None => self.znode_acl(object, values)?,
            };
            found.ok_or_else(|| ZplError::corrupt(object, "its NFSv4 ACL is malformed"))
        })
    }

    /// Decodes a `zfs_acl_phys_t` of either version.
    fn znode_acl(&self, object: u64, values: &SaValues<'_>) -> Result<Option<Vec<Ace>>, ZplError> {
        let Some((endian, phys)) = values.bytes(Attr::ZnodeAcl) else { return Ok(Some(Vec::new())) };
        let (external, size) = (endian.u64(phys, 0).unwrap_or(0), endian.u32(phys, 8).unwrap_or(0));
        let (version, last) = (endian.u16(phys, 12).unwrap_or(0), endian.u16(phys, 14).unwrap_or(0));
        // In version 0, the size field holds the number of entries, and there is no other count.
        let (count, len) = match version {
            0 => (size as usize, (size as usize).saturating_mul(12)),
            _ => (usize::from(last), size as usize),
        };
        if count > COUNT_MAX || len > COUNT_MAX * 48 {
            return Ok(None);
        }
        let bytes = match external {
            0 => phys.get(16..16 + len.min(EMBEDDED_LEN)).unwrap_or_default().to_vec(),
            external => {
                let mut bytes = vec![0; len];
                self.objects().read(external, 0, &mut bytes).map_err(ZplError::source(object))?;
                bytes
            }
        };
        Ok(if version == 0 { decode_old(endian, &bytes, count) } else { decode(endian, &bytes, count) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_short_and_long_aces() {
        let mut bytes = Vec::new();
        for (kind, flags, mask, fuid) in [
            (0u16, FLAG_OWNER, 0x1f_01ffu32, None),
            (1, 0x0003, 0x2, Some(1000u64)),
            (0, FLAG_EVERYONE, 1, None),
        ] {
            bytes.extend(kind.to_be_bytes());
            bytes.extend(flags.to_be_bytes());
            bytes.extend(mask.to_be_bytes());
            bytes.extend(fuid.into_iter().flat_map(u64::to_be_bytes));
        }
        let aces = decode(Endian::Big, &bytes, 3).unwrap();
        assert_eq!(aces[0], Ace { kind: AceKind::Allow, who: Who::Owner, flags: 0, access_mask: 0x1f_01ff });
        assert_eq!(aces[1], Ace { kind: AceKind::Deny, who: Who::User(1000), flags: 3, access_mask: 2 });
        assert_eq!(aces[2].who, Who::Everyone);
        assert_eq!(decode(Endian::Big, &bytes, 4), None);
    }

    #[test]
    fn decodes_old_aces() {
        let mut bytes = Vec::new();
        bytes.extend(7u32.to_le_bytes());
        bytes.extend(0x10u32.to_le_bytes());
        bytes.extend(FLAG_IDENTIFIER_GROUP.to_le_bytes());
        bytes.extend(1u16.to_le_bytes());
        let aces = decode_old(Endian::Little, &bytes, 1).unwrap();
        assert_eq!(aces[0], Ace { kind: AceKind::Deny, who: Who::Group(7), flags: 0, access_mask: 0x10 });
        assert_eq!(decode_old(Endian::Little, &bytes, 2), None);
    }
}
