//! Access to the single copies of a mirror, for callers that can verify checksums.

use super::MirrorStore;
use super::member::{Fault, Member};
use crate::{MemberStatus, Result, SegmentId, Store, StoreError};

/// Reads within a stripe go to the same member, so that it can read ahead.
const STRIPE: u64 = 1 << 20;

impl MirrorStore {
    /// Returns the places of the members that should have a segment. The caller should ask the first one first: the
    /// order spreads reads over the members.
    #[must_use]
    pub fn copies(&self, id: SegmentId, offset: u64) -> Vec<usize> {
        let state = self.state.read();
        let of = |may_read: fn(&Member) -> Option<&dyn Store>| -> Vec<usize> {
            let members = state.members.iter().enumerate();
            let readable = members.filter(|(_, member)| may_read(member).is_some() && !member.lacks(id));
            readable.map(|(place, _)| place).collect()
        };
        let mut places = of(Member::active);
        if places.is_empty() {
            // All members failed. Those that failed last can still be read.
            places = of(Member::readable);
        }
        if !places.is_empty() {
            let turn = (id.0.wrapping_add(offset / STRIPE) % places.len() as u64) as usize;
            places.rotate_left(turn);
        }
        places
    }

    /// Reads from one copy. An error is counted.
    ///
    /// # Errors
    /// The same as [`Store::read`]; `NoSegment` when the member is missing.
    pub fn read_copy(&self, place: usize, id: SegmentId, offset: u64, buf: &mut [u8]) -> Result<()> {
        let state = self.state.read();
        let member = state.members.get(place);
        let Some((member, store)) =
            member.and_then(|member| Some((member, member.active().or_else(|| member.readable())?)))
        else {
            return Err(StoreError::NoSegment { id, path: self.socket.clone().unwrap_or_default() });
        };
        store.read(id, offset, buf).inspect_err(|error| {
            if matches!(error, StoreError::Io { .. } | StoreError::NoAnswer { .. }) {
                member.count(Fault::Read);
            }
        })
    }

    /// Counts a checksum error: the copy differs from what was stored.
    pub fn note_wrong(&self, place: usize) {
        if let Some(member) = self.state.read().members.get(place) {
            member.count(Fault::Checksum);
        }
    }

    /// Writes correct bytes over a copy that was wrong. If the member has lost more than these bytes (the segment, or
    /// its end), the segment is noted as missing, and a resilver copies it. Durable only after [`sync`](Store::sync).
    ///
    /// # Errors
    /// The same as [`Store::rewrite`]; the error is counted.
    pub fn rewrite_copy(&self, place: usize, id: SegmentId, offset: u64, data: &[u8]) -> Result<()> {
        self.gate.check()?;
        let state = self.state.read();
        let is_elsewhere =
            state.members.iter().enumerate().any(|(other, member)| other != place && member.is_whole());
        let Some(member) = state.members.get(place) else { return Ok(()) };
        let Some(store) = member.active() else { return Ok(()) };
        match store.rewrite(id, offset, data) {
            Err(StoreError::NoSegment { .. } | StoreError::OutOfRange { .. }) if is_elsewhere => {
                member.note_missing(id, 0);
                Ok(())
            }
            Err(error) => {
                member.count(Fault::Write);
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

    /// The path of a copy's member, for messages.
    #[must_use]
    pub fn name_of(&self, place: usize) -> String {
        let state = self.state.read();
        state.members.get(place).map_or_else(String::new, |member| member.path.display().to_string())
    }

    /// Clears the error counts of one member, or of all with `None`.
    pub fn clear_errors(&self, place: Option<usize>) {
        let state = self.state.read();
        for (at, member) in state.members.iter().enumerate() {
            if place.is_none_or(|place| place == at) {
                member.set_errors(Default::default());
            }
        }
    }

    /// All members and their states.
    #[must_use]
    pub fn members(&self) -> Vec<MemberStatus> {
        // A recursive lock: this is also called while another thread waits for a member, and a third waits for the
        // lock.
        self.state.read_recursive().members.iter().map(Member::status).collect()
    }

    /// Makes repairs of copies durable, and publishes the error counts.
    ///
    /// # Errors
    /// The same as [`Store::publish`].
    pub fn settle(&self) -> Result<()> {
        self.sync()?;
        self.publish_again()
    }
}
