//! Inode numbers: 48 bits of an object number, and 16 bits above them for the slot.
//!
//! Slot 0 is the mounted dataset or snapshot itself. Other slots are snapshots below `.zfs/snapshot`, which get their
//! slot when they are first opened. The directories of `.zfs` have the same numbers as in ZFS (`ZFSCTL_INO_ROOT` and
//! `ZFSCTL_INO_SNAPDIR` of `include/sys/zfs_ctldir.h`).

/// Number of bits of an object number (`DN_MAX_OBJECT`).
const OBJECT_BITS: u32 = 48;
const OBJECT_MASK: u64 = (1 << OBJECT_BITS) - 1;

/// `.zfs`.
pub const CONTROL: u64 = OBJECT_MASK;
/// `.zfs/snapshot`.
pub const SNAPSHOT_DIR: u64 = OBJECT_MASK - 2;
/// First object number that is not used by files.
pub(super) const RESERVED: u64 = OBJECT_MASK - 15;

/// The meaning of an inode number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Control,
    SnapshotDir,
    /// An object of the mounted dataset or snapshot.
    Here(u64),
    /// An object of a snapshot below `.zfs`.
    In(u16, u64),
}

impl Place {
    pub(super) fn of(ino: u64) -> Self {
        match ((ino >> OBJECT_BITS) as u16, ino & OBJECT_MASK) {
            (0, CONTROL) => Self::Control,
            (0, SNAPSHOT_DIR) => Self::SnapshotDir,
            (0, object) => Self::Here(object),
            (slot, object) => Self::In(slot, object),
        }
    }
}

/// The inode number of an object in a snapshot below `.zfs`, or in the mounted filesystem for slot 0.
pub(super) fn of(slot: u16, object: u64) -> u64 {
    u64::from(slot) << OBJECT_BITS | object & OBJECT_MASK
}

/// All numbers of a snapshot below `.zfs`.
pub(super) fn all_of(slot: u16) -> std::ops::RangeInclusive<u64> {
    of(slot, 0)..=of(slot, OBJECT_MASK)
}

/// The slot of an inode number, which is 0 for the mounted filesystem.
pub(super) fn slot(ino: u64) -> u16 {
    (ino >> OBJECT_BITS) as u16
}

/// Whether it is a file of a snapshot below `.zfs`, which never changes.
pub fn is_in_snapshot(ino: u64) -> bool {
    slot(ino) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_places_agree() {
        assert_eq!(Place::of(34), Place::Here(34));
        assert_eq!(Place::of(of(7, 34)), Place::In(7, 34));
        assert_eq!(Place::of(CONTROL), Place::Control);
        assert_eq!(Place::of(SNAPSHOT_DIR), Place::SnapshotDir);
        assert_eq!(Place::of(of(u16::MAX, OBJECT_MASK)), Place::In(u16::MAX, OBJECT_MASK));
        assert_eq!((slot(of(3, 9)), slot(9)), (3, 0));
    }
}
