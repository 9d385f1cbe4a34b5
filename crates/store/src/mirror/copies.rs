//! The copies of a mirror, one by one: for whoever can tell good bytes from bad ones.

use super::MirrorStore;
use super::member::{Fault, Member};
use crate::{MemberStatus, Result, SegmentId, Store, StoreError};

/// Neighbouring reads go to the same member, so that it can read ahead.
const STRIPE: u64 = 1 << 20;

impl MirrorStore {
    /// The members that should have a segment, by their places, the one to be asked first in front: reads are spread
    /// over them.
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
            // Those whose writes failed last of all have what they had.
            places = of(Member::readable);
        }
        if !places.is_empty() {
            let turn = (id.0.wrapping_add(offset / STRIPE) % places.len() as u64) as usize;
            places.rotate_left(turn);
        }
        places
    }

    /// Reads from one copy. A failure is counted.
    ///
    /// # Errors
    /// As [`Store::read`]; `NoSegment` when the member is not there.
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

    /// Tells that a copy held other bytes than were stored there.
    pub fn note_wrong(&self, place: usize) {
        if let Some(member) = self.state.read().members.get(place) {
            member.count(Fault::Checksum);
        }
    }

    /// Writes good bytes over a copy that was wrong. Where the member has lost more than these bytes (the segment, or its
    /// end), the segment is noted as missing, for a resilver to bring. Not durable until [`sync`](Store::sync).
    ///
    /// # Errors
    /// As [`Store::rewrite`]; the failure is counted.
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

    /// Where a copy is, for messages.
    #[must_use]
    pub fn name_of(&self, place: usize) -> String {
        let state = self.state.read();
        state.members.get(place).map_or_else(String::new, |member| member.path.display().to_string())
    }

    /// Forgets the counts of errors, of one member or of all.
    pub fn clear_errors(&self, place: Option<usize>) {
        let state = self.state.read();
        for (at, member) in state.members.iter().enumerate() {
            if place.is_none_or(|place| place == at) {
                member.set_errors(Default::default());
            }
        }
    }

    /// All members, and how they are.
    #[must_use]
    pub fn members(&self) -> Vec<MemberStatus> {
        // It is asked, too, while somebody waits for a member, and somebody else for them.
        self.state.read_recursive().members.iter().map(Member::status).collect()
    }

    /// Makes durable what was written over bad copies, and publishes the counts of errors.
    ///
    /// # Errors
    /// As [`Store::publish`].
    pub fn settle(&self) -> Result<()> {
        self.sync()?;
        self.publish_again()
    }
}
