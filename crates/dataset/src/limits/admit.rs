//! Admission of writes and moves, by the rules of ZFS's `dsl_dir_tempreserve_impl` and similar functions.

use super::Side;
use super::table::{Node, Table};
use crate::catalog::{Dataset, DatasetId, Totals};
use crate::error::{DatasetError, Quota};

/// Why a write is refused now.
#[derive(Debug)]
pub(crate) enum Refused {
    /// Unwritten changes might reach a limit: ask again after a commit (`ERESTART`).
    Unsettled,
    /// A limit is reached (`EDQUOT`).
    Exceeded(Exceeded),
}

/// A limit that is reached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exceeded {
    pub(super) id: DatasetId,
    pub(super) quota: Quota,
    pub(super) limit: u64,
    pub(super) used: u64,
    /// Something that counts towards the limit is being changed, which may free space.
    pub(super) pending: bool,
}

impl Table {
    /// Checks whether `bytes` may be written to a dataset's head. Returns the bytes of the pool that are reserved for
    /// other datasets. As in ZFS, one transaction may exceed a limit that is not reached yet.
    pub(super) fn admit(
        &self,
        id: DatasetId,
        into: Side,
        bytes: u64,
        inflight_of: &dyn Fn(DatasetId) -> u64,
    ) -> Result<u64, Refused> {
        let Some(head) = self.nodes.get(&id) else { return Ok(0) };
        let own_inflight = inflight_of(id);
        if into == Side::Head {
            let pending = self.active().any(|active| active == id);
            refquota(id, head, own_inflight, pending)?;
        }
        // The space kept free by `refreservation` is used first.
        let mut asize = bytes;
        let mut kept = head.kept();
        if kept > 0 {
            let beyond = (head.unique + own_inflight).saturating_add(bytes);
            asize = bytes.min(beyond.saturating_sub(head.limits.refreservation));
        }
        for (at, node) in self.path(id) {
            let used = node.used().saturating_sub(kept);
            kept = 0;
            let mut active = self.active().filter(|id| self.is_within(*id, at)).peekable();
            let pending = active.peek().is_some();
            let inflight: u64 = active.map(inflight_of).sum();
            quota(at, node, used, inflight, pending)?;
            let reserved = node.limits.reservation;
            let with = used.saturating_add(inflight);
            asize = with.saturating_add(asize).max(reserved) - with.max(reserved);
            if asize == 0 {
                break;
            }
        }
        Ok(self.reserved_for_others(id))
    }

    fn is_within(&self, id: DatasetId, above: DatasetId) -> bool {
        self.path(id).any(|(at, _)| at == above)
    }

    /// Notes a snapshot of a dataset in the table. Space that only the head used and that is reserved must be kept free
    /// once more (`dsl_dataset_snapshot_reserve_space`).
    ///
    /// # Errors
    /// [`DatasetError::OutOfSpace`].
    pub(crate) fn take_snapshot(&mut self, id: DatasetId, name: &str, free: u64) -> Result<(), DatasetError> {
        let needed = self.nodes.get(&id).map_or(0, |node| node.unique.min(node.limits.refreservation));
        self.require(id, needed, name, free)?;
        self.alter(id, |node| node.unique = 0);
        Ok(())
    }

    /// Moves a dataset with all its descendants to another parent in the table.
    ///
    /// # Errors
    /// [`DatasetError::OutOfSpace`] when the new parent has no space for it (`dsl_dir_transfer_possible`).
    pub(crate) fn transfer(
        &mut self,
        dataset: &Dataset,
        totals: &Totals,
        parent: DatasetId,
        free: u64,
    ) -> Result<(), DatasetError> {
        let Some(node) = self.nodes.get(&dataset.id) else { return Ok(()) };
        // At its current place it may not be counted in full.
        let (counted, stored) = (node.charge(), node.stored());
        let needed = totals.used.max(node.limits.reservation);
        let Some(from) = node.parent.filter(|from| *from != parent) else { return Ok(()) };
        self.alter(from, |node| {
            node.children = node.children.saturating_sub(counted);
            node.stored_below = node.stored_below.saturating_sub(stored);
        });
        // The stored bytes exist already, so only their place in the limits is checked.
        self.require(parent, needed, &dataset.name, free.saturating_add(totals.stored))
    }

    /// Moves `bytes` of snapshots from one dataset to another in the table.
    ///
    /// # Errors
    /// [`DatasetError::OutOfSpace`] when the other dataset has no space for them.
    pub(crate) fn transfer_snapshots(
        &mut self,
        from: DatasetId,
        to: DatasetId,
        bytes: u64,
        name: &str,
        free: u64,
    ) -> Result<(), DatasetError> {
        self.alter(from, |node| node.own = node.own.saturating_sub(bytes));
        self.require(to, bytes, name, free.saturating_add(bytes))
    }

    /// Checks whether `bytes` more fit into a dataset.
    ///
    /// # Errors
    /// [`DatasetError::OutOfSpace`].
    pub(crate) fn require(
        &self,
        id: DatasetId,
        bytes: u64,
        name: &str,
        free: u64,
    ) -> Result<(), DatasetError> {
        let available = self.available(id, free);
        if bytes > available {
            return Err(DatasetError::OutOfSpace { name: name.to_owned(), needed: bytes, available });
        }
        Ok(())
    }
}

fn refquota(id: DatasetId, node: &Node, inflight: u64, pending: bool) -> Result<(), Refused> {
    let (limit, used) = (node.limits.refquota, node.referenced());
    within(id, Quota::Refquota, limit, used, inflight, pending)
}

fn quota(id: DatasetId, node: &Node, used: u64, inflight: u64, pending: bool) -> Result<(), Refused> {
    within(id, Quota::Quota, node.limits.quota, used, inflight, pending)
}

/// Checks a limit. Bytes in flight are a worst case: if only they would reach the limit, the caller must wait for a
/// commit.
fn within(
    id: DatasetId,
    quota: Quota,
    limit: u64,
    used: u64,
    inflight: u64,
    pending: bool,
) -> Result<(), Refused> {
    if limit == 0 {
        return Ok(());
    }
    if used >= limit {
        return Err(Refused::Exceeded(Exceeded { id, quota, limit, used, pending }));
    }
    if used.saturating_add(inflight) >= limit { Err(Refused::Unsettled) } else { Ok(()) }
}
