//! The implementation of [`Mirror`] for [`MirrorStore`]. The methods themselves are in the modules of their subjects.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::MirrorStore;
use crate::{
    CreateOptions, Location, MemberStatus, Mirror, MirrorMember, ResilverStatus, Result, SegmentId, Store,
};

impl Mirror for MirrorStore {
    fn pool_guid(&self) -> u64 {
        self.pool_guid()
    }
    fn new_guid(&self) -> u64 {
        self.new_guid()
    }
    fn members(&self) -> Vec<MemberStatus> {
        self.members()
    }
    fn path_of(&self, guid: u64) -> Option<PathBuf> {
        self.path_of(guid)
    }
    fn copies(&self, id: SegmentId, offset: u64) -> Vec<usize> {
        self.copies(id, offset)
    }
    fn read_copy(&self, place: usize, id: SegmentId, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_copy(place, id, offset, buf)
    }
    fn note_wrong(&self, place: usize) {
        self.note_wrong(place);
    }
    fn rewrite_copy(&self, place: usize, id: SegmentId, offset: u64, data: &[u8]) -> Result<()> {
        self.rewrite_copy(place, id, offset, data)
    }
    fn name_of(&self, place: usize) -> String {
        self.name_of(place)
    }
    fn clear_errors(&self, place: Option<usize>) {
        self.clear_errors(place);
    }
    fn settle(&self) -> Result<()> {
        self.settle()
    }
    fn attach(&self, member: MirrorMember, replaces: Option<u64>) -> Result<()> {
        self.attach(member, replaces)
    }
    fn attach_at(&self, location: &Location, options: &CreateOptions, replaces: Option<u64>) -> Result<()> {
        self.attach_at(location, options, replaces)
    }
    fn detach(&self, guid: u64) -> Result<()> {
        self.detach(guid)
    }
    fn offline(&self, guid: u64) -> Result<()> {
        self.offline(guid)
    }
    fn online(&self, guid: u64, path: PathBuf, store: Box<dyn Store>) -> Result<()> {
        self.online(guid, path, store)
    }
    fn forget_unknown(&self, known: &BTreeSet<SegmentId>) -> Result<()> {
        self.forget_unknown(known)
    }
    fn online_again(&self, guid: u64) -> Result<()> {
        self.online_again(guid)
    }
    fn resilver_status(&self) -> ResilverStatus {
        self.resilver_status()
    }
    fn resilver(
        &self,
        clock: &dyn Fn() -> u64,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<ResilverStatus> {
        self.resilver(clock, go_on)
    }
}
