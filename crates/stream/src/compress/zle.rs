//! ZLE compression (`module/zfs/zle.c`), with the parameter 64 that ZFS uses.
//!
//! A byte *n* below 64 is followed by *n + 1* literal bytes. A byte *n* of 64 or more stands for *n - 63* zeros.

use super::CompressError;

const LITERALS: usize = 64;
const ZEROS: usize = 256 - LITERALS;

pub(super) fn decompress(src: &[u8], dst: &mut [u8]) -> Result<(), CompressError> {
    let name = "zle";
    let (mut src, mut at) = (src, 0);
    while at < dst.len() {
        let (&control, rest) = src.split_first().ok_or(CompressError::Damaged { name })?;
        let n = usize::from(control) + 1;
        src = rest;
        if n <= LITERALS {
            let (literals, rest) = src.split_at_checked(n).ok_or(CompressError::Damaged { name })?;
            dst.get_mut(at..at + n).ok_or(CompressError::Damaged { name })?.copy_from_slice(literals);
            src = rest;
            at += n;
        } else {
            let n = n - LITERALS;
            dst.get_mut(at..at + n).ok_or(CompressError::Damaged { name })?.fill(0);
            at += n;
        }
    }
    Ok(())
}

pub(super) fn compress(src: &[u8], dst: &mut Vec<u8>, max: usize) -> Option<usize> {
    let mut rest = src;
    while let Some(&first) = rest.first() {
        let n = if first == 0 {
            let n = rest.iter().take(ZEROS).take_while(|b| **b == 0).count();
            dst.push((n - 1 + LITERALS) as u8);
            n
        } else {
            // A run of literals ends before the next two zeros. A single zero is cheaper as a literal.
            let limit = rest.len().min(LITERALS);
            let n = (1..limit)
                .find(|&i| rest[i] == 0 && rest.get(i + 1).is_none_or(|b| *b == 0))
                .unwrap_or(limit);
            dst.push((n - 1) as u8);
            dst.extend_from_slice(&rest[..n]);
            n
        };
        if dst.len() > max {
            return None;
        }
        rest = &rest[n..];
    }
    Some(dst.len())
}
