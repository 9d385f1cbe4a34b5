//! LZJB compression (`module/zfs/lzjb.c`).
//!
//! A control byte precedes each group of eight items. Its bits are used from the lowest one on. A set bit is a match of
//! two bytes: 6 bits of length minus 3, and 10 bits of distance. A clear bit is a literal byte.

use super::CompressError;

const MATCH_BITS: u32 = 6;
const MATCH_MIN: usize = 3;
const MATCH_MAX: usize = (1 << MATCH_BITS) + MATCH_MIN - 1;
const OFFSET_MASK: usize = (1 << (16 - MATCH_BITS)) - 1;
const TABLE_LEN: usize = 1024;

pub(super) fn decompress(src: &[u8], dst: &mut [u8]) -> Result<(), CompressError> {
    let name = "lzjb";
    let damaged = CompressError::Damaged { name };
    let mut input = src.iter().copied();
    let mut at = 0;
    let (mut control, mut items) = (0_u8, 0_u32);
    while at < dst.len() {
        if items == 0 {
            control = input.next().ok_or(damaged.clone())?;
            items = 8;
        }
        let is_match = control & 1 != 0;
        control >>= 1;
        items -= 1;
        let first = input.next().ok_or(damaged.clone())?;
        if !is_match {
            dst[at] = first;
            at += 1;
            continue;
        }
        let second = input.next().ok_or(damaged.clone())?;
        let len = usize::from(first >> (8 - MATCH_BITS)) + MATCH_MIN;
        let distance = (usize::from(first) << 8 | usize::from(second)) & OFFSET_MASK;
        if distance == 0 || distance > at {
            return Err(damaged);
        }
        // The last match may extend past the block. Matches may overlap themselves, so bytes are copied one by one.
        let len = len.min(dst.len() - at);
        for i in at..at + len {
            dst[i] = dst[i - distance];
        }
        at += len;
    }
    Ok(())
}

pub(super) fn compress(src: &[u8], dst: &mut Vec<u8>, max: usize) -> Option<usize> {
    // The last position of each hash, plus one.
    let mut seen = [0_usize; TABLE_LEN];
    let mut at = 0;
    let mut items = 8;
    let mut control_at = 0;
    while at < src.len() {
        if items == 8 {
            // A control byte and eight matches must fit, as in the original.
            if dst.len() + 17 >= max {
                return None;
            }
            items = 0;
            control_at = dst.len();
            dst.push(0);
        }
        match find(src, at, &mut seen) {
            Some((distance, len)) => {
                dst[control_at] |= 1 << items;
                dst.push(((len - MATCH_MIN) << (8 - MATCH_BITS) | distance >> 8) as u8);
                dst.push(distance as u8);
                at += len;
            }
            None => {
                dst.push(src[at]);
                at += 1;
            }
        }
        items += 1;
    }
    (dst.len() <= max).then_some(dst.len())
}

/// Finds a match for the bytes at `at`. Returns its distance and length.
fn find(src: &[u8], at: usize, seen: &mut [usize; TABLE_LEN]) -> Option<(usize, usize)> {
    let window = src.get(at..at + MATCH_MAX)?;
    let mut hash = usize::from(window[0]) << 16 | usize::from(window[1]) << 8 | usize::from(window[2]);
    hash += hash >> 9;
    hash += hash >> 5;
    let slot = &mut seen[hash % TABLE_LEN];
    let previous = std::mem::replace(slot, at + 1).checked_sub(1)?;
    let distance = at - previous;
    if distance > OFFSET_MASK {
        return None;
    }
    let len = window.iter().zip(&src[previous..]).take_while(|(a, b)| a == b).count();
    (len >= MATCH_MIN).then_some((distance, len))
}
