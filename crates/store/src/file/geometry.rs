//! Where everything is in a file store.

/// The first label copy is at 0.
pub(super) const LABEL_A: u64 = 0;
/// The uberblock ring.
pub(super) const RING_BASE: u64 = 64 << 10;
/// The second label copy, far enough from the first to survive what usually overwrites the first sectors of a disk.
pub(super) const LABEL_B: u64 = 960 << 10;
/// The slot table begins here.
pub(super) const TABLE_BASE: u64 = 1 << 20;
/// Bytes of a slot's entry in the table: a page for its header, a page for its seal.
pub(super) const ENTRY_LEN: u64 = 8192;

/// Slots begin at a multiple of this.
const ALIGN: u64 = 1 << 20;
/// The largest slot, which is what all but small pools have.
const SLOT_LEN_MAX: u64 = 32 << 20;
/// The smallest slot.
const SLOT_LEN_MIN: u64 = 4 << 20;
/// A pool has about this many slots at least, if need be by making them smaller.
const SLOTS_WANTED: u64 = 16;
/// As many as 2 PiB have; bounds what a forged label can make us allocate.
const SLOT_COUNT_MAX: u64 = 1 << 26;

/// The smallest file or device that takes a pool, as for OpenZFS (`SPA_MINDEVSIZE`, sys/fs/zfs.h).
pub(super) const SIZE_MIN: u64 = 64 << 20;

const _: () = assert!(RING_BASE >= LABEL_A + crate::label::LABEL_LEN as u64);
const _: () = assert!(LABEL_B >= RING_BASE + crate::ring::RING_LEN);
const _: () = assert!(TABLE_BASE >= LABEL_B + crate::label::LABEL_LEN as u64);

/// The slots of one store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) slot_len: u64,
    pub(super) slot_count: u64,
    pub(super) slot_base: u64,
}

impl Geometry {
    /// How a new pool of `size` bytes is divided; `None` when that is too small.
    #[cfg(test)]
    fn divide(size: u64) -> Option<Self> {
        Self::divide_by(size, Self::slot_len_for(size))
    }

    /// How long slots are, if nothing else decides that: the largest power of two that gives enough of them.
    pub(super) fn slot_len_for(size: u64) -> u64 {
        1 << (size / SLOTS_WANTED).clamp(SLOT_LEN_MIN, SLOT_LEN_MAX).ilog2()
    }

    /// How a new pool of `size` bytes is divided into slots of a given length; `None` when it is too small, or there can be
    /// none of that length.
    pub(super) fn divide_by(size: u64, slot_len: u64) -> Option<Self> {
        let is_possible = slot_len.is_multiple_of(4096) && (SLOT_LEN_MIN..=SLOT_LEN_MAX).contains(&slot_len);
        if size < SIZE_MIN || !is_possible {
            return None;
        }
        let mut slot_count = ((size - TABLE_BASE) / (slot_len + ENTRY_LEN)).min(SLOT_COUNT_MAX);
        loop {
            let geometry =
                Self { slot_len, slot_count, slot_base: table_end(slot_count)?.next_multiple_of(ALIGN) };
            match geometry.end() {
                Some(end) if end <= size => return (slot_count > 0).then_some(geometry),
                _ => slot_count = slot_count.checked_sub(1)?,
            }
        }
    }

    /// Checks what a label says against the medium it was found on.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub(super) fn check(&self, size: u64) -> Result<(), String> {
        let sane = self.slot_len.is_multiple_of(4096)
            && (SLOT_LEN_MIN..=SLOT_LEN_MAX).contains(&self.slot_len)
            && (1..=SLOT_COUNT_MAX).contains(&self.slot_count)
            && table_end(self.slot_count).is_some_and(|end| self.slot_base >= end);
        match self.end() {
            Some(end) if sane && end <= size => Ok(()),
            Some(end) if sane => {
                Err(format!("it is {size} bytes long, but its pool needs {end}: it was cut short"))
            }
            _ => Err("its label describes an impossible layout".to_owned()),
        }
    }

    /// Where the last slot ends.
    pub(super) fn end(&self) -> Option<u64> {
        self.slot_base.checked_add(self.slot_len.checked_mul(self.slot_count)?)
    }

    /// Where a slot's bytes begin. `slot` is below `slot_count`, so this cannot overflow.
    pub(super) fn slot_offset(&self, slot: u64) -> u64 {
        self.slot_base + slot * self.slot_len
    }

    /// Where a slot's header is.
    pub(super) fn header_offset(&self, slot: u64) -> u64 {
        TABLE_BASE + slot * ENTRY_LEN
    }

    /// Where a slot's seal is.
    pub(super) fn seal_offset(&self, slot: u64) -> u64 {
        self.header_offset(slot) + ENTRY_LEN / 2
    }

    /// Bytes of the whole table.
    pub(super) fn table_len(&self) -> u64 {
        self.slot_count * ENTRY_LEN
    }
}

fn table_end(slot_count: u64) -> Option<u64> {
    TABLE_BASE.checked_add(slot_count.checked_mul(ENTRY_LEN)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn common_sizes() {
        let slots = |size| Geometry::divide(size).map(|g| (g.slot_len >> 20, g.slot_count));
        assert_eq!(slots((64 << 20) - 1), None);
        assert_eq!(slots(64 << 20), Some((4, 15)));
        assert_eq!(slots(512 << 20), Some((32, 15)));
        assert_eq!(slots(1 << 30), Some((32, 31)));
        assert_eq!(slots(1 << 40), Some((32, 32759)));
    }

    proptest! {
        #[test]
        fn divided_space_passes_the_check_and_is_nearly_all_used(size in SIZE_MIN..=1u64 << 50) {
            let geometry = Geometry::divide(size).expect("large enough");
            prop_assert_eq!(geometry.check(size), Ok(()));
            let used = geometry.slot_len * geometry.slot_count;
            prop_assert!(size - used <= 2 * geometry.slot_len + TABLE_BASE + geometry.table_len());
        }

        #[test]
        fn forged_geometry_never_overflows(slot_len: u64, slot_count: u64, slot_base: u64, size: u64) {
            let geometry = Geometry { slot_len, slot_count, slot_base };
            if geometry.check(size).is_ok() {
                prop_assert!(geometry.slot_offset(slot_count - 1) + slot_len <= size);
                prop_assert!(geometry.seal_offset(slot_count - 1) + ENTRY_LEN / 2 <= slot_base);
            }
        }
    }
}
