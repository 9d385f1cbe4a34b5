//! How much room there is: for whoever writes, and to be told.

use std::sync::atomic::Ordering;

use super::Io;
use crate::error::{PoolError, Result};
use crate::parity::{with_parity, without_parity};
use crate::space::{Space, low_water, slop};

impl Io {
    /// Refuses what would take the reserve.
    pub(crate) fn admit(&self, needed: u64) -> Result<()> {
        self.admit_beside(needed, 0)
    }

    /// Refuses to let somebody begin who would take the reserve, or what the cleaner is still to write.
    pub(crate) fn admit_new(&self, needed: u64) -> Result<()> {
        self.admit_beside(needed, self.set_aside.load(Ordering::Relaxed))
    }

    /// Asks the store again before it refuses.
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

    /// What `bytes` take when at the end of every segment the largest block does not fit.
    fn with_waste(&self, bytes: u64) -> u64 {
        let largest = self.largest.load(Ordering::Relaxed).min(self.segment_bytes / 2);
        let segments = bytes / (self.segment_bytes - largest).max(1) + 1;
        bytes.saturating_add(segments.saturating_mul(largest))
    }

    /// Asks the store how much room there is.
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

    /// Whether so little room is left that more should be made before it is asked for; by what is known, which may be too bad.
    pub(crate) fn looks_low(&self) -> bool {
        self.room.load(Ordering::Relaxed) < self.low_water.load(Ordering::Relaxed)
    }

    /// Whether a segment's worth was taken or given back since [`saw_low`](Self::saw_low).
    pub(crate) fn has_moved(&self) -> bool {
        let occupied = self.space.lock().occupied();
        occupied.abs_diff(self.low_since.load(Ordering::Relaxed)) >= self.segment_bytes
    }

    /// What could be done about little room was done.
    pub(crate) fn saw_low(&self) {
        self.low_since.store(self.space.lock().occupied(), Ordering::Relaxed);
    }

    /// Size of the store, if it has one, and what can be written now, without the reserve.
    fn room_left(&self) -> Result<(Option<u64>, u64)> {
        let capacity =
            self.store.capacity().map_err(PoolError::store("asking the store for its capacity"))?;
        let table = self.space.lock();
        let occupied = table.occupied();
        // Otherwise more could be written than is told: as much as fits into the segment that is open.
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

    /// What a segment takes of a store of this size at least: on a file or device it has its slot to itself, however short
    /// it is.
    pub(crate) fn slot(&self, size: Option<u64>) -> u64 {
        size.map_or(0, |_| self.segment_bytes)
    }
}
