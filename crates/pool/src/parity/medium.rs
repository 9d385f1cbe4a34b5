//! Where the bytes of a segment are read and repaired: a store, or one member of a mirror.

use snowmelt_store::{Mirror, SegmentId, Store, StoreError};

/// After a failed read, the range is read again in units of this size.
const SECTOR: usize = 4096;

/// A store that is no mirror, or one member of a mirror. Parity of one member proves nothing about the bytes of
/// another one, which may be right when this member is broken or forged.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Medium<'a> {
    /// A store that is no mirror.
    Single(&'a dyn Store),
    /// A member of a mirror, by its place.
    Member(&'a dyn Mirror, usize),
}

impl<'a> Medium<'a> {
    /// The media that should have a segment.
    pub(crate) fn all(store: &'a dyn Store, segment: SegmentId) -> Vec<Self> {
        match store.mirror() {
            Some(mirror) => {
                mirror.copies(segment, 0).into_iter().map(|place| Medium::Member(mirror, place)).collect()
            }
            None => vec![Medium::Single(store)],
        }
    }

    /// The place of the member.
    pub(crate) fn place(self) -> Option<usize> {
        match self {
            Medium::Single(_) => None,
            Medium::Member(_, place) => Some(place),
        }
    }

    fn read(self, segment: SegmentId, at: u64, bytes: &mut [u8]) -> Result<(), StoreError> {
        match self {
            Medium::Single(store) => store.read(segment, at, bytes),
            Medium::Member(mirror, place) => mirror.read_copy(place, segment, at, bytes),
        }
    }

    /// Reads the readable bytes, and fills the rest with zeros. Returns whether all bytes were readable.
    pub(crate) fn read_lossy(self, segment: SegmentId, at: u64, bytes: &mut [u8]) -> bool {
        if self.read(segment, at, bytes).is_ok() {
            return true;
        }
        let mut is_whole = true;
        for (number, sector) in bytes.chunks_mut(SECTOR).enumerate() {
            if self.read(segment, at + (number * SECTOR) as u64, sector).is_err() {
                sector.fill(0);
                is_whole = false;
            }
        }
        is_whole
    }

    /// Overwrites bytes on this medium only.
    pub(crate) fn rewrite(self, segment: SegmentId, at: u64, bytes: &[u8]) -> Result<(), StoreError> {
        match self {
            Medium::Single(store) => store.rewrite(segment, at, bytes),
            Medium::Member(mirror, place) => mirror.rewrite_copy(place, segment, at, bytes),
        }
    }
}
