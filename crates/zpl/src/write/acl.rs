//! The NFSv4 ACL that is equivalent to a mode: `acl_trivial_access_masks` and `zfs_acl_chmod` of `zfs_acl.c`.

const READ_DATA: u32 = 0x1;
const WRITE_DATA: u32 = 0x2;
const APPEND_DATA: u32 = 0x4;
const READ_NAMED_ATTRS: u32 = 0x8;
const WRITE_NAMED_ATTRS: u32 = 0x10;
const EXECUTE: u32 = 0x20;
const DELETE_CHILD: u32 = 0x40;
const READ_ATTRIBUTES: u32 = 0x80;
const WRITE_ATTRIBUTES: u32 = 0x100;
const READ_ACL: u32 = 0x2_0000;
const WRITE_ACL: u32 = 0x4_0000;
const WRITE_OWNER: u32 = 0x8_0000;
const SYNCHRONIZE: u32 = 0x10_0000;

const ALLOW: u16 = 0;
const DENY: u16 = 1;
const OWNER: u16 = 0x1000;
const OWNING_GROUP: u16 = 0x2040;
const EVERYONE: u16 = 0x4000;

/// Permissions that everyone always has.
const ALWAYS: u32 = READ_ACL | READ_ATTRIBUTES | READ_NAMED_ATTRS | SYNCHRONIZE;
/// Further permissions that the owner always has.
const OWNER_ALWAYS: u32 = WRITE_ATTRIBUTES | WRITE_OWNER | WRITE_ACL | WRITE_NAMED_ATTRS;

/// The values of `ZPL_DACL_COUNT` and `ZPL_DACL_ACES` for a mode.
pub(super) fn trivial(mode: u32, is_directory: bool) -> (u64, Vec<u8>) {
    let write = WRITE_DATA | APPEND_DATA | if is_directory { DELETE_CHILD } else { 0 };
    let masks = [(4, READ_DATA), (2, write), (1, EXECUTE)];
    let [owner, group, everyone] = [mode >> 6 & 7, mode >> 3 & 7, mode & 7];
    let granted = |bits: u32| masks.iter().filter(|(bit, _)| bits & bit != 0).fold(0, |all, (_, m)| all | m);
    let aces = [
        // If the owner and others have a permission but the group does not, it is granted to the owner before it is
        // denied to the group.
        (ALLOW, OWNER, granted(owner & !group & everyone)),
        (DENY, OWNER, granted(!owner & 7 & (group | everyone))),
        (DENY, OWNING_GROUP, granted(!group & 7 & everyone)),
        (ALLOW, OWNER, granted(owner) | ALWAYS | OWNER_ALWAYS),
        (ALLOW, OWNING_GROUP, granted(group) | ALWAYS),
        (ALLOW, EVERYONE, granted(everyone) | ALWAYS),
    ];
    let mut bytes = Vec::with_capacity(48);
    let mut count = 0;
    for (kind, who, mask) in aces.into_iter().filter(|(.., mask)| *mask != 0) {
        bytes.extend_from_slice(&kind.to_le_bytes());
        bytes.extend_from_slice(&who.to_le_bytes());
        bytes.extend_from_slice(&mask.to_le_bytes());
        count += 1;
    }
    (count, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_modes_need_three_entries() {
        for mode in [0o644, 0o755, 0o600, 0o777, 0, 0o750] {
            assert_eq!(trivial(mode, false).0, 3, "{mode:o}");
            assert_eq!(trivial(mode, true).1.len(), 24);
        }
        let (_, bytes) = trivial(0o755, true);
        assert_eq!(bytes[..8], [0, 0, 0, 0x10, 0xff, 1, 0x1e, 0]);
        assert_eq!(bytes[8..16], [0, 0, 0x40, 0x20, 0xa9, 0, 0x12, 0]);
        assert_eq!(bytes[16..], [0, 0, 0, 0x40, 0xa9, 0, 0x12, 0]);
    }

    #[test]
    fn odd_modes_deny_first() {
        assert_eq!(trivial(0o704, false).0, 5);
        assert_eq!(trivial(0o077, false).0, 4);
        assert_eq!(trivial(0o007, false).0, 5);
    }
}
