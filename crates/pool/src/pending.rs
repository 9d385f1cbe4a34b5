//! Bytes on their way to a segment: large payloads as they are, small things gathered in between.

use std::io::IoSlice;

use bytes::Bytes;

/// Payloads from this length on are not copied: a slice more in a system call costs less.
const SHARE_MIN: usize = 32 << 10;

/// A run of bytes, held in pieces.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// Where each begins, and what it is.
    pieces: Vec<(u64, Bytes)>,
    /// What comes after them.
    gathered: Vec<u8>,
    /// Where that begins.
    gathered_at: u64,
}

impl Pending {
    /// How many bytes there are.
    pub(crate) fn len(&self) -> u64 {
        self.gathered_at + self.gathered.len() as u64
    }

    /// Appends a copy.
    pub(crate) fn copy(&mut self, bytes: &[u8]) {
        self.gathered.extend_from_slice(bytes);
    }

    /// Appends a payload.
    pub(crate) fn push(&mut self, payload: &Bytes) {
        if payload.len() < SHARE_MIN {
            return self.copy(payload);
        }
        if !self.gathered.is_empty() {
            // What was gathered before may have been much, and its room is better used again.
            let gathered = Bytes::copy_from_slice(&self.gathered);
            self.gathered.clear();
            self.add(gathered);
        }
        self.add(payload.clone());
    }

    fn add(&mut self, piece: Bytes) {
        let len = piece.len() as u64;
        self.pieces.push((self.gathered_at, piece));
        self.gathered_at += len;
    }

    /// Appends zeros up to `len` bytes in all.
    pub(crate) fn pad_to(&mut self, len: u64) {
        if let Ok(more) = usize::try_from(len.saturating_sub(self.len())) {
            self.gathered.resize(self.gathered.len() + more, 0);
        }
    }

    /// All of it in order.
    pub(crate) fn slices(&self) -> Vec<IoSlice<'_>> {
        let pieces = self.pieces.iter().map(|(_, piece)| &**piece);
        pieces.chain((!self.gathered.is_empty()).then_some(&*self.gathered)).map(IoSlice::new).collect()
    }

    /// Fills `buf` from what is at `start`, if it is whole and in one piece.
    pub(crate) fn read(&self, start: u64, buf: &mut [u8]) -> bool {
        let (at, piece) = match start.checked_sub(self.gathered_at) {
            Some(at) => (at, &*self.gathered),
            None => {
                let past = self.pieces.partition_point(|(begins, _)| *begins <= start);
                let Some((begins, piece)) = past.checked_sub(1).and_then(|at| self.pieces.get(at)) else {
                    return false;
                };
                (start - begins, &**piece)
            }
        };
        let Ok(at) = usize::try_from(at) else { return false };
        let Some(bytes) = at.checked_add(buf.len()).and_then(|end| piece.get(at..end)) else { return false };
        buf.copy_from_slice(bytes);
        true
    }

    /// Nothing is left; of the room for what is gathered, `keep` bytes are.
    pub(crate) fn clear(&mut self, keep: usize) {
        self.pieces.clear();
        self.gathered.clear();
        self.gathered.shrink_to(keep);
        self.gathered_at = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// It is the bytes in order, and each part that was appended can be read.
        #[test]
        fn is_a_run_of_bytes(lens in proptest::collection::vec(
            prop_oneof![0..200usize, SHARE_MIN - 2..SHARE_MIN + 2], 1..20)) {
            let (mut pending, mut model) = (Pending::default(), Vec::new());
            let mut parts = Vec::new();
            for (number, len) in lens.into_iter().enumerate() {
                let bytes = vec![number as u8 + 1; len];
                parts.push((model.len(), len));
                pending.push(&Bytes::from(bytes.clone()));
                model.extend_from_slice(&bytes);
                pending.pad_to(pending.len().next_multiple_of(8));
                model.resize(model.len().next_multiple_of(8), 0);
            }
            prop_assert_eq!(pending.len(), model.len() as u64);
            let flat: Vec<u8> = pending.slices().iter().flat_map(|slice| slice.to_vec()).collect();
            prop_assert_eq!(&flat, &model);
            for (at, len) in parts {
                let mut buf = vec![0; len];
                prop_assert!(len == 0 || pending.read(at as u64, &mut buf));
                prop_assert_eq!(&buf, &model[at..at + len]);
            }
            prop_assert!(!pending.read(model.len() as u64, &mut [0]));
            pending.clear(100);
            prop_assert_eq!(pending.len(), 0);
            prop_assert!(!pending.read(0, &mut [0]) && pending.slices().is_empty());
        }
    }
}
