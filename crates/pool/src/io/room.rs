//! Free space: for admitting writes, and for reports.

use std::sync::atomic::Ordering;

use super::Io;
use crate::error::{PoolError, Result};
use crate::parity::{with_parity, without_parity};
use crate::space::{Space, low_water, slop};

impl Io {
    /// Refuses a write that would use the reserve.
    pub(crate) fn admit(&self, needed: u64) -> Result<()> {
        self.admit_beside(needed, 0)
    }

    /// Refuses new work that would use the reserve or the space reserved for the cleaner.
    pub(crate) fn admit_new(&self, needed: u64) -> Result<()> {
        self.admit_beside(needed, self.set_aside.load(Ordering::Relaxed))
    }

    /// Compares the need with the free space. Asks the store again before refusing.
    fn admit_beside(&self, needed: u64, set_aside: u64) -> Result<()> {
        let set_aside = i64::try_from(set_aside).unwrap_or(i64::MAX);
        let wanted = self.with_waste(needed.saturating_add(self.dirty_nodes.load(Ordering::Relaxed)));
        let wanted = i64::try_from(with_parity(wanted, self.parity())).unwrap_or(i64::MAX);
        let room = || self.room.load(Ordering::Relaxed).saturating_sub(set_aside);
        if room() >= wanted {
            return Ok(());
        }
        self.refresh_room()?;
        let room = room();
        if room >= wanted {
            return Ok(());
        }
        Err(PoolError::NoSpace { needed, room: u64::try_from(room).unwrap_or(0) })
    }

    /// The space that `bytes` take if every segment loses the length of the largest block at its end.
    fn with_waste(&self, bytes: u64) -> u64 {
        let largest = self.largest.load(Ordering::Relaxed).min(self.segment_bytes / 2);
        let segments = bytes / (self.segment_bytes - largest).max(1) + 1;
        bytes.saturating_add(segments.saturating_mul(largest))
    }

    /// Updates the free space from the store.
    pub(crate) fn refresh_room(&self) -> Result<()> {
        let (total, free) = self.room_left()?;
        let size = total.unwrap_or_else(|| free.saturating_add(self.space.lock().occupied()));
        let low_water =
            i64::try_from(low_water(size, self.slot(total), self.segment_bytes)).unwrap_or(i64::MAX);
        self.low_water.store(low_water, Ordering::Relaxed);
        let buffered = self.data.buffered() + self.nodes.buffered();
        let room = i64::try_from(free).unwrap_or(i64::MAX);
        let buffered = i64::try_from(buffered).unwrap_or(i64::MAX);
        self.room.store(room.saturating_sub(buffered), Ordering::Relaxed);
        Ok(())
    }

    /// Whether so little space is left that segments should be cleaned in advance. Uses the last known value, which may
    /// be too low.
    pub(crate) fn looks_low(&self) -> bool {
        self.room.load(Ordering::Relaxed) < self.low_water.load(Ordering::Relaxed)
    }

    /// Whether the size of all segments changed by at least one segment since [`saw_low`](Self::saw_low).
    pub(crate) fn has_moved(&self) -> bool {
        let occupied = self.space.lock().occupied();
        occupied.abs_diff(self.low_since.load(Ordering::Relaxed)) >= self.segment_bytes
    }

    /// Notes that cleaning for low space was tried.
    pub(crate) fn saw_low(&self) {
        self.low_since.store(self.space.lock().occupied(), Ordering::Relaxed);
    }

    /// Size of the store if it is limited, and the bytes that can be written without the reserve.
    fn room_left(&self) -> Result<(Option<u64>, u64)> {
        let capacity =
            self.store.capacity().map_err(PoolError::store("asking the store for its capacity"))?;
        let table = self.space.lock();
        let occupied = table.occupied();
        // In a store with slots, the open segment can take more bytes although no slot is free.
        let open = if capacity.by_slots { table.open_room(self.segment_bytes) } else { 0 };
        let free = capacity.free.saturating_add(open);
        let size = capacity.total.unwrap_or_else(|| free.saturating_add(occupied));
        Ok((capacity.total, free.saturating_sub(slop(size, self.slot(capacity.total), self.segment_bytes))))
    }

    pub(crate) fn space(&self) -> Result<Space> {
        let (size, room) = self.room_left()?;
        let table = self.space.lock();
        let reclaimable = table.reclaimable(self.slot(size));
        let free = without_parity(room.saturating_add(reclaimable), self.parity());
        Ok(Space { size, allocated: table.allocated(), occupied: table.occupied(), free })
    }

    /// The least space that a segment takes in a store of this size. In a file or device every segment has a slot of
    /// fixed size.
    pub(crate) fn slot(&self, size: Option<u64>) -> u64 {
        size.map_or(0, |_| self.segment_bytes)
    }
}
