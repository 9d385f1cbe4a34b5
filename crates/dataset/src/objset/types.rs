//! Facts about object types (`dmu_ot[]` of OpenZFS's `module/zfs/dmu.c`, `DMU_OTN_*` of `sys/dmu.h`).

/// `DMU_OT_PLAIN_FILE_CONTENTS`
pub const PLAIN_FILE_CONTENTS: u8 = 19;
/// `DMU_OT_MASTER_NODE`
pub const MASTER_NODE: u8 = 21;
/// `DMU_OT_ZVOL`
pub const ZVOL: u8 = 23;
/// `DMU_OT_SA`: the type of a spill block, and of the bonus of files since ZPL version 5.
pub const SA: u8 = 44;
/// `DMU_OT_ZNODE`: the bonus of files before ZPL version 5.
pub const ZNODE: u8 = 17;

/// Types from here on contain their properties as bits.
const NEW_TYPE: u8 = 0x80;
const NEW_TYPE_METADATA: u8 = 0x40;
const NEW_TYPE_SWAP: u8 = 0x1f;
/// Number of old types, `DMU_OT_NUMTYPES`.
const OLD_TYPES: u8 = 54;

/// How a block from a machine of the other byte order is byte-swapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Swap {
    /// Bytes, or a format that contains its own byte order.
    Bytes,
    /// 16-bit words.
    U16,
    /// 32-bit words.
    U32,
    /// 64-bit words.
    U64,
    /// A ZAP object's block.
    Zap,
    /// `znode_phys_t`
    Znode,
    /// ACL up to ZPL version 2.
    OldAcl,
    /// ACL since ZPL version 3.
    Acl,
    /// A type that no stream may contain.
    Never,
}

/// Whether objects of this type exist in a filesystem or volume.
pub fn is_valid(object_type: u8) -> bool {
    if object_type & NEW_TYPE != 0 {
        swap(object_type) != Swap::Never
    } else {
        (1..OLD_TYPES).contains(&object_type)
    }
}

/// Whether the type is metadata. Blocks of metadata are never sent compressed.
pub fn is_metadata(object_type: u8) -> bool {
    if object_type & NEW_TYPE != 0 {
        object_type & NEW_TYPE_METADATA != 0
    } else {
        !matches!(object_type, 19 | 23 | 25 | 26 | 49)
    }
}

/// How a block of this type is byte-swapped.
pub fn swap(object_type: u8) -> Swap {
    if object_type & NEW_TYPE != 0 {
        return match object_type & NEW_TYPE_SWAP {
            0 => Swap::Bytes,
            1 => Swap::U16,
            2 => Swap::U32,
            3 => Swap::U64,
            4 => Swap::Zap,
            7 => Swap::Znode,
            8 => Swap::OldAcl,
            9 => Swap::Acl,
            _ => Swap::Never,
        };
    }
    match object_type {
        2 | 4..=9 | 12 | 16 | 26 | 30 | 36 | 51 | 53 => Swap::U64,
        1 | 13..=15 | 20..=22 | 24 | 27 | 28 | 31 | 32 | 37..=43 | 45..=48 | 50 | 52 => Swap::Zap,
        10 | 11 => Swap::Never,
        17 => Swap::Znode,
        18 => Swap::OldAcl,
        33 => Swap::Acl,
        _ => Swap::Bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_and_metadata() {
        for data in [PLAIN_FILE_CONTENTS, ZVOL, 0x80 | 0x20] {
            assert!(!is_metadata(data));
        }
        for metadata in [SA, 20, 21, 1, 0xc4] {
            assert!(is_metadata(metadata));
        }
        assert_eq!(swap(20), Swap::Zap);
        assert_eq!(swap(0xc4), Swap::Zap);
        assert!(!is_valid(0) && !is_valid(54) && is_valid(53) && is_valid(SA));
    }
}
