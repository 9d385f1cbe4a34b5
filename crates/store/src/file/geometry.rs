//! The offsets and lengths of the parts of a file store.

/// Offset of the first copy of the label.
pub(super) const LABEL_A: u64 = 0;
/// Offset of the uberblock ring.
pub(super) const RING_BASE: u64 = 64 << 10;
/// Offset of the second copy of the label. Programs that overwrite the start of a disk usually do not reach it.
pub(super) const LABEL_B: u64 = 960 << 10;
/// Offset of the slot table.
pub(super) const TABLE_BASE: u64 = 1 << 20;
/// Bytes of a slot's entry in the table: one page for its header, one page for its seal.
pub(super) const ENTRY_LEN: u64 = 8192;

/// The alignment of slots.
const ALIGN: u64 = 1 << 20;
/// The maximum length of a slot. All pools but small ones use it.
const SLOT_LEN_MAX: u64 = 32 << 20;
/// The minimum length of a slot.
const SLOT_LEN_MIN: u64 = 4 << 20;
/// The number of slots that a pool should have at least. Small pools get shorter slots for that.
const SLOTS_WANTED: u64 = 16;
/// The maximum number of slots, enough for 2 PiB. It limits the memory that a forged label makes this process
/// allocate.
const SLOT_COUNT_MAX: u64 = 1 << 26;

/// The minimum size of a file or device with a pool, as for OpenZFS (`SPA_MINDEVSIZE`, sys/fs/zfs.h).
pub(super) const SIZE_MIN: u64 = 64 << 20;

const _: () = assert!(RING_BASE >= LABEL_A + crate::label::LABEL_LEN as u64);
const _: () = assert!(LABEL_B >= RING_BASE + crate::ring::RING_LEN);
const _: () = assert!(TABLE_BASE >= LABEL_B + crate::label::LABEL_LEN as u64);

/// The length, number and position of a store's slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) slot_len: u64,
    pub(super) slot_count: u64,
    pub(super) slot_base: u64,
}

impl Geometry {
    /// Divides a new pool of `size` bytes into slots; `None` when that is too small.
    #[cfg(test)]
    fn divide(size: u64) -> Option<Self> {
        Self::divide_by(size, Self::slot_len_for(size))
    }

    /// Returns the default slot length: the largest power of two with which there are enough slots.
    pub(super) fn slot_len_for(size: u64) -> u64 {
        1 << (size / SLOTS_WANTED).clamp(SLOT_LEN_MIN, SLOT_LEN_MAX).ilog2()
    }

    /// Divides a new pool of `size` bytes into slots of the given length; `None` when the size is too small or the
    /// length is invalid.
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

    /// Checks the values of a label against the size of the medium.
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

    /// Offset of the end of the last slot.
    pub(super) fn end(&self) -> Option<u64> {
        self.slot_base.checked_add(self.slot_len.checked_mul(self.slot_count)?)
    }

    /// Offset of a slot's bytes. This cannot overflow, because `slot` is less than `slot_count`.
    pub(super) fn slot_offset(&self, slot: u64) -> u64 {
        self.slot_base + slot * self.slot_len
    }

    /// Offset of a slot's header.
    pub(super) fn header_offset(&self, slot: u64) -> u64 {
        TABLE_BASE + slot * ENTRY_LEN
    }

    /// Offset of a slot's seal.
    pub(super) fn seal_offset(&self, slot: u64) -> u64 {
        self.header_offset(slot) + ENTRY_LEN / 2
    }

    /// Bytes of the whole slot table.
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
