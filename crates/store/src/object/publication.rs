//! A publication: an object with the uberblock, the ring before it, and the owner.
//!
//! Format and fencing argument: `docs/format/object-store.md`, "Publications". Each publication is a new object that
//! is put create-only. Two owners cannot both create the same object, so the second one learns of the other.

use std::collections::VecDeque;

use bytes::Bytes;

use super::parts::{Part, Stamp};
use crate::codec::{self, SUM_LEN};
use crate::{RawUberblock, SegmentId, UBERBLOCK_MAX, UBERBLOCK_RING};

/// Maximum number of bytes of parts in a publication. It lets a small commit be a single request.
pub(crate) const KEPT_BYTES_MAX: u64 = 128 << 10;
/// Maximum number of parts in a publication.
pub(crate) const KEPT_MAX: usize = 256;
/// The folder of all publications.
pub(crate) const FOLDER: &str = "uberblocks";
/// Maximum number of deleted segments whose objects are kept. Of more segments, the oldest ones are deleted at once.
pub(crate) const DOOMED_MAX: usize = 1024;

const MAGIC: &[u8; 8] = b"SNOWOBJU";
const VERSION: u32 = 1;
const HOST_MAX: usize = 255;

const OFF_MAGIC: usize = 0;
const OFF_VERSION: usize = 8; // u32
const OFF_SEQ: usize = 12; // u64
const OFF_EPOCH: usize = 20; // u64
const OFF_GUID: usize = 28; // u64, of the pool
const OFF_NONCE: usize = 36; // 16 bytes
const OFF_MACHINE: usize = 52; // 16 bytes
const OFF_SINCE: usize = 68; // u64
const OFF_TIME: usize = 76; // u64
const OFF_HOST_LEN: usize = 84; // u16
const OFF_RING_COUNT: usize = 86; // u16
const OFF_DOOMED_COUNT: usize = 88; // u16
const OFF_KEPT_COUNT: usize = 90; // u16
const HEADER_LEN: usize = 92;
/// Bytes of a kept part before its contents.
const KEPT_HEAD: usize = 28;
/// The maximum length of a publication.
const LEN_MAX: usize = HEADER_LEN
    + HOST_MAX
    + UBERBLOCK_RING * (12 + UBERBLOCK_MAX)
    + DOOMED_MAX * 16
    + KEPT_MAX * KEPT_HEAD
    + KEPT_BYTES_MAX as usize
    + SUM_LEN;

/// A writer: one opening of the pool by one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Writer {
    /// The id of its machine.
    pub(crate) machine: [u8; 16],
    /// The name of its machine, for messages.
    pub(crate) host: String,
    /// Random bytes.
    pub(crate) nonce: [u8; 16],
    /// When it opened the pool, in seconds since 1970 by its own clock.
    pub(crate) since: u64,
}

/// A deleted segment whose objects are kept for a while, for processes that only read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Doomed {
    pub(crate) id: SegmentId,
    /// When it was deleted, seconds since 1970.
    pub(crate) since: u64,
}

/// The contents of a publication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Publication {
    /// The number of the publication. It increases by one.
    pub(crate) seq: u64,
    /// The number of the owner. It increases with each owner.
    pub(crate) epoch: u64,
    pub(crate) guid: u64,
    pub(crate) writer: Writer,
    /// When it was made, in seconds since 1970 by the writer's clock.
    pub(crate) time: u64,
    /// The latest uberblock is last.
    pub(crate) ring: VecDeque<RawUberblock>,
    pub(crate) doomed: Vec<Doomed>,
    /// Parts that are not uploaded as objects yet.
    pub(crate) kept: Vec<(Part, Bytes)>,
}

/// The name of the object with this number.
pub(crate) fn name(seq: u64) -> String {
    format!("{FOLDER}/{seq:016x}")
}

/// The number in the name of an object.
pub(crate) fn parse_name(text: &str) -> Option<u64> {
    let seq = u64::from_str_radix(text.strip_prefix(FOLDER)?.strip_prefix('/')?, 16).ok()?;
    (name(seq) == text).then_some(seq)
}

impl Publication {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let host: String = self
            .writer
            .host
            .chars()
            .scan(0, |len, c| {
                *len += c.len_utf8();
                (*len <= HOST_MAX).then_some(c)
            })
            .collect();
        let mut out = vec![0; HEADER_LEN];
        codec::put(&mut out, OFF_MAGIC, MAGIC);
        codec::put(&mut out, OFF_VERSION, &VERSION.to_le_bytes());
        codec::put(&mut out, OFF_SEQ, &self.seq.to_le_bytes());
        codec::put(&mut out, OFF_EPOCH, &self.epoch.to_le_bytes());
        codec::put(&mut out, OFF_GUID, &self.guid.to_le_bytes());
        codec::put(&mut out, OFF_NONCE, &self.writer.nonce);
        codec::put(&mut out, OFF_MACHINE, &self.writer.machine);
        codec::put(&mut out, OFF_SINCE, &self.writer.since.to_le_bytes());
        codec::put(&mut out, OFF_TIME, &self.time.to_le_bytes());
        codec::put(&mut out, OFF_HOST_LEN, &(host.len() as u16).to_le_bytes());
        codec::put(&mut out, OFF_RING_COUNT, &(self.ring.len() as u16).to_le_bytes());
        codec::put(&mut out, OFF_DOOMED_COUNT, &(self.doomed.len() as u16).to_le_bytes());
        codec::put(&mut out, OFF_KEPT_COUNT, &(self.kept.len() as u16).to_le_bytes());
        out.extend_from_slice(host.as_bytes());
        for RawUberblock { txg, bytes } in &self.ring {
            out.extend_from_slice(&txg.to_le_bytes());
            out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            out.extend_from_slice(bytes);
        }
        for Doomed { id, since } in &self.doomed {
            out.extend_from_slice(&id.0.to_le_bytes());
            out.extend_from_slice(&since.to_le_bytes());
        }
        for (part, bytes) in &self.kept {
            out.extend_from_slice(&part.id.0.to_le_bytes());
            out.extend_from_slice(&part.offset.to_le_bytes());
            out.extend_from_slice(&part.stamp.0.to_le_bytes());
            out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            out.extend_from_slice(bytes);
        }
        let sum = codec::sum(&[&out]);
        out.extend_from_slice(&sum);
        debug_assert!(out.len() <= LEN_MAX);
        out
    }

    /// # Errors
    /// What is wrong, as a text that follows "it".
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        if bytes.len() > LEN_MAX {
            return Err("is too long");
        }
        let (body, sum) = bytes.split_last_chunk::<SUM_LEN>().ok_or("is cut short")?;
        if body.get(OFF_MAGIC..OFF_VERSION) != Some(MAGIC) {
            return Err("is no publication of a snowmelt pool");
        }
        if codec::u32_at(body, OFF_VERSION) != Some(VERSION) {
            return Err("is of another version");
        }
        if codec::sum(&[body]) != *sum {
            return Err("is damaged (checksum mismatch)");
        }
        Self::decode_fields(body).ok_or("makes no sense")
    }

    fn decode_fields(body: &[u8]) -> Option<Self> {
        let host_len = usize::from(codec::u16_at(body, OFF_HOST_LEN)?);
        let ring_count = usize::from(codec::u16_at(body, OFF_RING_COUNT)?);
        let doomed_count = usize::from(codec::u16_at(body, OFF_DOOMED_COUNT)?);
        let kept_count = usize::from(codec::u16_at(body, OFF_KEPT_COUNT)?);
        if ring_count > UBERBLOCK_RING || doomed_count > DOOMED_MAX || kept_count > KEPT_MAX {
            return None;
        }
        let mut rest = body.get(HEADER_LEN..)?;
        let mut take = |len: usize| -> Option<&[u8]> {
            let (taken, left) = rest.split_at_checked(len)?;
            rest = left;
            Some(taken)
        };
        let host = std::str::from_utf8(take(host_len)?).ok()?.to_owned();
        let mut ring = VecDeque::with_capacity(ring_count);
        for _ in 0..ring_count {
            let head = take(12)?;
            let (txg, len) = (codec::u64_at(head, 0)?, codec::u32_at(head, 8)? as usize);
            if len > UBERBLOCK_MAX {
                return None;
            }
            ring.push_back(RawUberblock { txg, bytes: take(len)?.to_vec() });
        }
        let mut doomed = Vec::with_capacity(doomed_count);
        for _ in 0..doomed_count {
            let entry = take(16)?;
            doomed.push(Doomed { id: SegmentId(codec::u64_at(entry, 0)?), since: codec::u64_at(entry, 8)? });
        }
        let mut kept = Vec::with_capacity(kept_count);
        for _ in 0..kept_count {
            let head = take(KEPT_HEAD)?;
            let len = codec::u32_at(head, 24)?;
            let (id, offset) = (SegmentId(codec::u64_at(head, 0)?), codec::u64_at(head, 8)?);
            offset.checked_add(len.into())?;
            let part = Part { id, offset, len: len.into(), stamp: Stamp(codec::u64_at(head, 16)?) };
            kept.push((part, Bytes::copy_from_slice(take(len as usize)?)));
        }
        let writer = Writer {
            machine: codec::bytes_at(body, OFF_MACHINE)?,
            host,
            nonce: codec::bytes_at(body, OFF_NONCE)?,
            since: codec::u64_at(body, OFF_SINCE)?,
        };
        rest.is_empty().then_some(Self {
            seq: codec::u64_at(body, OFF_SEQ)?,
            epoch: codec::u64_at(body, OFF_EPOCH)?,
            guid: codec::u64_at(body, OFF_GUID)?,
            writer,
            time: codec::u64_at(body, OFF_TIME)?,
            ring,
            doomed,
            kept,
        })
    }
}

/// Formats a time in UTC, for messages.
pub(crate) fn utc(seconds: u64) -> String {
    // Conversion of days to a date, after "chrono-Compatible Low-Level Date Algorithms" by H. Hinnant. The era begins
    // on 1 March.
    let (days, of_day) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, year) = if month < 10 {
        (month + 3, era * 400 + year_of_era)
    } else {
        (month - 9, era * 400 + year_of_era + 1)
    };
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn publication() -> Publication {
        Publication {
            seq: 5,
            epoch: 2,
            guid: 9,
            writer: Writer { machine: [1; 16], host: "büro".to_owned(), nonce: [2; 16], since: 3 },
            time: 4,
            ring: (0..3).map(|txg| RawUberblock { txg, bytes: vec![7; 10 + txg as usize] }).collect(),
            doomed: vec![Doomed { id: SegmentId(8), since: 1 }],
            kept: vec![kept(9, 12), kept(10, 1)],
        }
    }

    fn kept(id: u64, len: u64) -> (Part, Bytes) {
        let part = Part { id: SegmentId(id), offset: 4096, len, stamp: Stamp::new(2, 1) };
        (part, vec![id as u8; len as usize].into())
    }

    #[test]
    fn names() {
        assert_eq!(name(0x1f), "uberblocks/000000000000001f");
        assert_eq!(parse_name(&name(77)), Some(77));
        for other in ["uberblocks/1f", "uberblocks/", "label", "uberblocks/00000000000000zz"] {
            assert_eq!(parse_name(other), None);
        }
    }

    #[test]
    fn the_longest_fits() {
        let mut longest = publication();
        longest.writer.host = "ü".repeat(300);
        longest.ring = (0..UBERBLOCK_RING as u64)
            .map(|txg| RawUberblock { txg, bytes: vec![0; UBERBLOCK_MAX] })
            .collect();
        longest.doomed = vec![Doomed { id: SegmentId(8), since: 1 }; DOOMED_MAX];
        longest.kept = vec![kept(3, KEPT_BYTES_MAX / KEPT_MAX as u64); KEPT_MAX];
        let decoded = Publication::decode(&longest.encode()).unwrap();
        assert_eq!(decoded.writer.host, "ü".repeat(127));
        assert_eq!((decoded.ring, decoded.doomed), (longest.ring, longest.doomed));
        assert_eq!(decoded.kept, longest.kept);
    }

    #[test]
    fn times_are_readable() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(utc(1_795_290_000 + 3723), "2026-11-21 20:42:03 UTC");
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken(noise: Vec<u8>, at: prop::sample::Index, xor in 1u8..) {
            let _ = Publication::decode(&noise);
            let mut bytes = publication().encode();
            prop_assert_eq!(Publication::decode(&bytes).unwrap(), publication());
            let at = at.index(bytes.len());
            bytes[at] ^= xor;
            prop_assert!(Publication::decode(&bytes).is_err(), "a flipped byte went unnoticed");
        }
    }
}
