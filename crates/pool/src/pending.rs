//! Buffered bytes of a segment: large payloads are shared, small pieces are copied together.

use std::io::IoSlice;

use bytes::Bytes;

/// Payloads of at least this length are not copied: another slice in a system call costs less.
const SHARE_MIN: usize = 32 << 10;

/// A sequence of bytes in pieces.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// The offset and the bytes of each piece.
    pieces: Vec<(u64, Bytes)>,
    /// The bytes after the pieces.
    gathered: Vec<u8>,
    /// The offset of `gathered`.
    gathered_at: u64,
}

impl Pending {
    /// Number of bytes.
    pub(crate) fn len(&self) -> u64 {
        self.gathered_at + self.gathered.len() as u64
    }

    /// Appends a copy of some bytes.
    pub(crate) fn copy(&mut self, bytes: &[u8]) {
        self.gathered.extend_from_slice(bytes);
    }

    /// Appends a payload.
    pub(crate) fn push(&mut self, payload: &Bytes) {
        if payload.len() < SHARE_MIN {
            return self.copy(payload);
        }
        if !self.gathered.is_empty() {
            // The buffer may be large, so its content is copied and the buffer is used again.
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

    /// Appends zeros up to a total of `len` bytes.
    pub(crate) fn pad_to(&mut self, len: u64) {
        if let Ok(more) = usize::try_from(len.saturating_sub(self.len())) {
            self.gathered.resize(self.gathered.len() + more, 0);
        }
    }

    /// The first `len` bytes in order.
    pub(crate) fn first(&self, len: u64) -> Vec<IoSlice<'_>> {
        let mut left = usize::try_from(len).unwrap_or(usize::MAX);
        let mut slices = Vec::with_capacity(self.pieces.len() + 1);
        for piece in self.pieces.iter().map(|(_, piece)| &**piece).chain([&*self.gathered]) {
            let now = piece.len().min(left);
            left -= now;
            if now > 0 {
                slices.push(IoSlice::new(&piece[..now]));
            }
        }
        slices
    }

    /// Removes the first `len` bytes. The buffer for copied bytes keeps at most `keep` bytes of memory.
    pub(crate) fn advance(&mut self, len: u64, keep: usize) {
        let gone = self.pieces.partition_point(|(begins, piece)| begins + piece.len() as u64 <= len);
        self.pieces.drain(..gone);
        for (begins, piece) in &mut self.pieces {
            if *begins < len {
                // This is less than the length of a piece.
                *piece = piece.slice((len - *begins) as usize..);
            }
            *begins = begins.saturating_sub(len);
        }
        let of_gathered = len.saturating_sub(self.gathered_at).min(self.gathered.len() as u64);
        self.gathered.drain(..of_gathered as usize);
        self.gathered.shrink_to(keep);
        self.gathered_at = self.gathered_at.saturating_sub(len);
    }

    /// Fills `buf` with the bytes from `start`, if all of them are there.
    pub(crate) fn read(&self, start: u64, buf: &mut [u8]) -> bool {
        let end = start.saturating_add(buf.len() as u64);
        if end > self.len() {
            return false;
        }
        let past = self.pieces.partition_point(|(begins, _)| *begins <= start);
        let shared = self.pieces[past.saturating_sub(1)..].iter().map(|(begins, piece)| (*begins, &**piece));
        for (begins, piece) in shared.chain([(self.gathered_at, &*self.gathered)]) {
            let (from, to) = (start.max(begins), end.min(begins + piece.len() as u64));
            if from < to {
                let [to_start, to_end, from, to] =
                    [from - start, to - start, from - begins, to - begins].map(|at| at as usize);
                buf[to_start..to_end].copy_from_slice(&piece[from..to]);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// It returns the bytes in order, and every appended part can be read.
        #[test]
        fn is_a_run_of_bytes(lens in proptest::collection::vec(
            prop_oneof![0..200usize, SHARE_MIN - 2..SHARE_MIN + 2], 1..20),
            cut: proptest::sample::Index) {
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
            let flat = |pending: &Pending, len: usize| -> Vec<u8> {
                pending.first(len as u64).iter().flat_map(|slice| slice.to_vec()).collect()
            };
            prop_assert_eq!(&flat(&pending, model.len()), &model);
            let cut = cut.index(model.len() + 1);
            prop_assert_eq!(&flat(&pending, cut), &model[..cut]);
            for gone in [0, cut] {
                pending.advance(gone as u64, 100);
                prop_assert_eq!(pending.len(), (model.len() - gone) as u64);
                prop_assert_eq!(&flat(&pending, model.len()), &model[gone..]);
                for (at, len) in &parts {
                    // For a part that was cut, the rest.
                    let (at, end) = ((*at).max(gone), at + len);
                    let mut buf = vec![0; end.saturating_sub(at)];
                    prop_assert!(buf.is_empty() || pending.read((at - gone) as u64, &mut buf));
                    prop_assert!(buf.is_empty() || buf == model[at..end]);
                }
                prop_assert!(!pending.read((model.len() - gone) as u64, &mut [0]));
                let mut all = vec![0; model.len() - gone];
                prop_assert!(pending.read(0, &mut all) && all == model[gone..]);
            }
            pending.advance(pending.len(), 100);
            prop_assert_eq!(pending.len(), 0);
            prop_assert!(!pending.read(0, &mut [0]) && pending.first(1).is_empty());
        }
    }
}
