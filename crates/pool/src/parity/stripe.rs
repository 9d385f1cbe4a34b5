//! A stripe: a parity frame and the bytes that it covers. Verifies and repairs them piece by piece.

use snowmelt_store::SegmentId;

use super::cover::{encode, pieces_of};
use super::head::{Head, piece_sum};
use super::medium::Medium;

/// Correct bytes, and their offset in the segment.
pub(crate) type Repair = (u64, Vec<u8>);

/// The covered bytes of a parity frame, its parity pieces, and which of them are bad.
pub(crate) struct Stripe<'a> {
    head: &'a Head,
    /// The data pieces as read; `parity` the parity pieces as read.
    data: Vec<u8>,
    parity: Vec<u8>,
    /// Numbers of the bad data pieces; `bad_parity` those of the bad parity pieces.
    pub(crate) bad_data: Vec<u32>,
    pub(crate) bad_parity: Vec<u32>,
    /// Copies of the head that are wrong.
    pub(crate) bad_heads: Vec<u8>,
}

impl<'a> Stripe<'a> {
    pub(crate) fn read(medium: Medium<'_>, head: &'a Head) -> Self {
        let segment = head.segment;
        let mut data = vec![0; head.len as usize];
        medium.read_lossy(segment, head.start.into(), &mut data);
        let mut parity = vec![0; (head.parity * head.piece()) as usize];
        medium.read_lossy(segment, head.parity_at().into(), &mut parity);
        let bad_heads = (0..2).filter(|&copy| {
            let mut bytes = vec![0; head.head_len() as usize];
            medium.read_lossy(segment, head.copy_at(copy).into(), &mut bytes);
            bytes != head.encode(copy)
        });
        let bad_heads = bad_heads.collect();
        let piece = head.piece() as usize;
        let mut last = Vec::new();
        let (data_sums, parity_sums) = head.sums.split_at(head.data() as usize);
        let bad_data = bad(pieces_of(&data, piece, &mut last), data_sums);
        let bad_parity = bad(parity.chunks_exact(piece), parity_sums);
        Stripe { head, data, parity, bad_data, bad_parity, bad_heads }
    }

    /// The segment that contains it.
    pub(crate) fn segment(&self) -> SegmentId {
        self.head.segment
    }

    pub(crate) fn is_sound(&self) -> bool {
        self.bad_data.is_empty() && self.bad_parity.is_empty() && self.bad_heads.is_empty()
    }

    /// Whether the parity is enough for a repair. A head that is nowhere on this medium is not of this medium.
    pub(crate) fn can_mend(&self) -> bool {
        self.bad_heads.len() < 2 && self.bad_data.len() + self.bad_parity.len() <= self.head.parity as usize
    }

    /// The correct bytes of all bad parts. `None` when there is too little parity, or the result does not match the
    /// checksums.
    pub(crate) fn mend(&mut self) -> Option<Vec<Repair>> {
        if !self.can_mend() {
            return None;
        }
        let (head, piece) = (self.head, self.head.piece() as usize);
        let mut repairs = Vec::new();
        if !self.bad_data.is_empty() {
            let mut last = Vec::new();
            let data = pieces_of(&self.data, piece, &mut last).enumerate();
            let data = data.filter(|(number, _)| !has(&self.bad_data, *number));
            let parity = self.parity.chunks_exact(piece).enumerate();
            let parity = parity.filter(|(number, _)| !has(&self.bad_parity, *number));
            let counts = (head.data() as usize, head.parity as usize);
            let restored = reed_solomon_simd::decode(counts.0, counts.1, data, parity).ok()?;
            for &number in &self.bad_data {
                let right = restored.get(&(number as usize))?;
                if Some(&piece_sum(right)) != head.sums.get(number as usize) {
                    return None;
                }
                let at = number as usize * piece;
                let end = (at + piece).min(self.data.len());
                self.data.get_mut(at..end)?.copy_from_slice(right.get(..end - at)?);
                repairs.push((u64::from(head.start) + at as u64, right.get(..end - at)?.to_vec()));
            }
        }
        if !self.bad_parity.is_empty() {
            let right = encode(&self.data, piece, head.parity)?;
            for &number in &self.bad_parity {
                let right = right.get(number as usize)?;
                if Some(&piece_sum(right)) != head.sums.get((head.data() + number) as usize) {
                    return None;
                }
                let at = u64::from(head.parity_at()) + u64::from(number) * piece as u64;
                repairs.push((at, right.clone()));
            }
        }
        for &copy in &self.bad_heads {
            repairs.push((head.copy_at(copy).into(), head.encode(copy)));
        }
        Some(repairs)
    }
}

fn has(bad: &[u32], number: usize) -> bool {
    u32::try_from(number).is_ok_and(|number| bad.binary_search(&number).is_ok())
}

/// Numbers of the pieces that do not match their checksums.
fn bad<'a>(pieces: impl Iterator<Item = &'a [u8]>, sums: &[[u8; 8]]) -> Vec<u32> {
    let pieces = (0u32..).zip(pieces).zip(sums);
    pieces.filter(|((_, piece), sum)| piece_sum(piece) != **sum).map(|((number, _), _)| number).collect()
}
