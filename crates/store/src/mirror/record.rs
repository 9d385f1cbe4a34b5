//! The record that a mirror publishes with every uberblock: its members, and what each of them lacks.
//!
//! Format: `docs/format/store.md`, "The mirror".

use crate::codec;
use crate::label::MEMBERS_MAX;
use crate::{RawUberblock, SegmentId, UBERBLOCK_MAX};

use super::missing::{Missing, SEGMENTS_MAX};

/// The maximum length of a record, in bytes.
const RECORD_MAX: usize = 2048;
/// The maximum length of an uberblock in a mirror, in bytes. The record takes the rest of the space.
pub const MIRRORED_UBERBLOCK_MAX: usize = UBERBLOCK_MAX - RECORD_MAX;

const MAGIC: &[u8; 8] = b"SNOWMIRR";
const VERSION: u16 = 1;

const OFF_MAGIC: usize = 0;
const OFF_VERSION: usize = 8; // u16
const OFF_COUNT: usize = 10; // u16, members
const OFF_LEN: usize = 12; // u32, of the record
const OFF_SEQUENCE: usize = 16; // u64
const OFF_GENERATION: usize = 24; // u64
const OFF_STARTED: usize = 32; // u64, start of the last resilver
const OFF_ENDED: usize = 40; // u64, its end, 0 while it is unfinished
const OFF_COPIED: usize = 48; // u64, the bytes it has copied
const OFF_TOTAL: usize = 56; // u64, the bytes to copy in total
const OFF_SEGMENT_LEN: usize = 64; // u64, the maximum length of a segment
const HEAD_LEN: usize = 72;

// Fields of each member:
const MEMBER_GUID: usize = 0; // u64
const MEMBER_FLAGS: usize = 8; // u8
const MEMBER_REPLACES: usize = 9; // u8, one more than the place of the member that this one replaces
const MEMBER_SEGMENTS: usize = 10; // u16, segments that follow
const MEMBER_GENERATION: usize = 12; // u64
const MEMBER_SINCE: usize = 20; // u64, txg
const MEMBER_FIRST: usize = 28; // u64, first id of the segments that it lacks completely
const MEMBER_END: usize = 36; // u64, first id after these segments
const MEMBER_READ: usize = 44; // u32
const MEMBER_WRITE: usize = 48; // u32
const MEMBER_CHECKSUM: usize = 52; // u32
const MEMBER_SENT: usize = 56; // u64
const MEMBER_LEN: usize = 64;
/// A segment that a member has in part: id (u64), bytes that it certainly has (u64).
const SEGMENT_LEN: usize = 16;

/// Numbers that are counted up are never greater, so that they never overflow.
const NUMBER_MAX: u64 = 1 << 62;

const FLAG_WRITTEN: u8 = 1;
const FLAG_OFFLINE: u8 = 2;

const _: () = assert!(HEAD_LEN + MEMBERS_MAX * (MEMBER_LEN + SEGMENTS_MAX * SEGMENT_LEN) <= RECORD_MAX);

/// The state of a mirror as of one publication.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// Increases by one with each publication.
    pub(super) sequence: u64,
    /// Changes when a member is removed from those that are written to.
    pub(super) generation: u64,
    pub(super) scan: Scan,
    /// The maximum length of a segment. The smallest member determines it, even if that cannot be reached.
    pub(super) segment_len: u64,
    pub(super) members: Vec<MemberRecord>,
}

/// The state of the last resilver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Scan {
    pub(super) started: u64,
    pub(super) ended: u64,
    pub(super) copied: u64,
    pub(super) total: u64,
}

/// The record of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MemberRecord {
    pub(super) guid: u64,
    /// Whether the member is written to.
    pub(super) written: bool,
    /// Whether a user took it offline.
    pub(super) offline: bool,
    /// The place of the member that this one replaces.
    pub(super) replaces: Option<usize>,
    /// The generation of the last publication that it is known to have.
    pub(super) generation: u64,
    /// The generation of the last publication that was sent to it, which it may have.
    pub(super) sent: u64,
    /// The last txg before it was left out.
    pub(super) since: u64,
    pub(super) missing: Missing,
    pub(super) errors: MemberErrors,
}

/// The error counts of a member.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct MemberErrors {
    pub(super) read: u32,
    pub(super) write: u32,
    pub(super) checksum: u32,
}

impl Record {
    /// Encodes the record, followed by the pool's uberblock.
    pub(super) fn encode(&self, uberblock: &[u8]) -> Vec<u8> {
        let mut out = vec![0; HEAD_LEN];
        for member in &self.members {
            member.encode(&mut out);
        }
        codec::put(&mut out, OFF_MAGIC, MAGIC);
        codec::put(&mut out, OFF_VERSION, &VERSION.to_le_bytes());
        codec::put(&mut out, OFF_COUNT, &(self.members.len() as u16).to_le_bytes());
        let len = out.len() as u32;
        codec::put(&mut out, OFF_LEN, &len.to_le_bytes());
        codec::put(&mut out, OFF_SEQUENCE, &self.sequence.to_le_bytes());
        codec::put(&mut out, OFF_GENERATION, &self.generation.to_le_bytes());
        codec::put(&mut out, OFF_STARTED, &self.scan.started.to_le_bytes());
        codec::put(&mut out, OFF_ENDED, &self.scan.ended.to_le_bytes());
        codec::put(&mut out, OFF_COPIED, &self.scan.copied.to_le_bytes());
        codec::put(&mut out, OFF_TOTAL, &self.scan.total.to_le_bytes());
        codec::put(&mut out, OFF_SEGMENT_LEN, &self.segment_len.to_le_bytes());
        out.extend_from_slice(uberblock);
        out
    }

    /// Splits a publication into its record and the pool's uberblock. Publications from before the store was mirrored
    /// have no record. `None` for invalid bytes.
    pub(super) fn decode(raw: &RawUberblock) -> Option<(Option<Self>, RawUberblock)> {
        let bytes = &raw.bytes;
        if bytes.get(OFF_MAGIC..OFF_VERSION) != Some(MAGIC) {
            return Some((None, raw.clone()));
        }
        let version = codec::bytes_at(bytes, OFF_VERSION).map(u16::from_le_bytes)?;
        let count = usize::from(codec::u16_at(bytes, OFF_COUNT)?);
        let len = usize::try_from(codec::u32_at(bytes, OFF_LEN)?).ok()?;
        if version != VERSION || count > MEMBERS_MAX || len > RECORD_MAX {
            return None;
        }
        let (record, contents) = bytes.split_at_checked(len)?;
        let mut at = HEAD_LEN;
        let mut members = Vec::new();
        for _ in 0..count {
            let (member, len) = MemberRecord::decode(record.get(at..)?)?;
            members.push(member);
            at += len;
        }
        let scan = Scan {
            started: codec::u64_at(record, OFF_STARTED)?,
            ended: codec::u64_at(record, OFF_ENDED)?,
            copied: codec::u64_at(record, OFF_COPIED)?,
            total: codec::u64_at(record, OFF_TOTAL)?,
        };
        let record = Record {
            sequence: codec::u64_at(record, OFF_SEQUENCE)?,
            generation: codec::u64_at(record, OFF_GENERATION)?,
            scan,
            segment_len: codec::u64_at(record, OFF_SEGMENT_LEN)?,
            members,
        };
        let numbers = [record.sequence, record.scan.copied, record.scan.total];
        if numbers.iter().any(|number| *number > NUMBER_MAX) {
            return None;
        }
        Some((Some(record), RawUberblock { txg: raw.txg, bytes: contents.to_vec() }))
    }
}

impl MemberRecord {
    fn encode(&self, out: &mut Vec<u8>) {
        let mut head = [0; MEMBER_LEN];
        let flags = if self.written { FLAG_WRITTEN } else { 0 } | if self.offline { FLAG_OFFLINE } else { 0 };
        let replaces = self.replaces.map_or(0, |at| at as u8 + 1);
        let segments = self.missing.segments();
        codec::put(&mut head, MEMBER_GUID, &self.guid.to_le_bytes());
        codec::put(&mut head, MEMBER_FLAGS, &[flags]);
        codec::put(&mut head, MEMBER_REPLACES, &[replaces]);
        codec::put(&mut head, MEMBER_SEGMENTS, &(segments.len() as u16).to_le_bytes());
        codec::put(&mut head, MEMBER_GENERATION, &self.generation.to_le_bytes());
        codec::put(&mut head, MEMBER_SENT, &self.sent.to_le_bytes());
        codec::put(&mut head, MEMBER_SINCE, &self.since.to_le_bytes());
        codec::put(&mut head, MEMBER_FIRST, &self.missing.whole().start.to_le_bytes());
        codec::put(&mut head, MEMBER_END, &self.missing.whole().end.to_le_bytes());
        codec::put(&mut head, MEMBER_READ, &self.errors.read.to_le_bytes());
        codec::put(&mut head, MEMBER_WRITE, &self.errors.write.to_le_bytes());
        codec::put(&mut head, MEMBER_CHECKSUM, &self.errors.checksum.to_le_bytes());
        out.extend_from_slice(&head);
        for (id, len) in segments {
            out.extend_from_slice(&id.0.to_le_bytes());
            out.extend_from_slice(&len.to_le_bytes());
        }
    }

    /// Decodes a member. Also returns the length of its record.
    fn decode(bytes: &[u8]) -> Option<(Self, usize)> {
        let [flags, replaces] = codec::bytes_at(bytes, MEMBER_FLAGS)?;
        let count = usize::from(codec::u16_at(bytes, MEMBER_SEGMENTS)?);
        if count > SEGMENTS_MAX {
            return None;
        }
        let mut segments = Vec::new();
        for at in (0..count).map(|index| MEMBER_LEN + index * SEGMENT_LEN) {
            segments.push((SegmentId(codec::u64_at(bytes, at)?), codec::u64_at(bytes, at + 8)?));
        }
        let whole = codec::u64_at(bytes, MEMBER_FIRST)?..codec::u64_at(bytes, MEMBER_END)?;
        let member = Self {
            guid: codec::u64_at(bytes, MEMBER_GUID)?,
            written: flags & FLAG_WRITTEN != 0,
            offline: flags & FLAG_OFFLINE != 0,
            replaces: usize::from(replaces).checked_sub(1),
            generation: codec::u64_at(bytes, MEMBER_GENERATION)?,
            sent: codec::u64_at(bytes, MEMBER_SENT)?,
            since: codec::u64_at(bytes, MEMBER_SINCE)?,
            missing: Missing::new(segments, whole),
            errors: MemberErrors {
                read: codec::u32_at(bytes, MEMBER_READ)?,
                write: codec::u32_at(bytes, MEMBER_WRITE)?,
                checksum: codec::u32_at(bytes, MEMBER_CHECKSUM)?,
            },
        };
        Some((member, MEMBER_LEN + count * SEGMENT_LEN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn full() -> Record {
        let segments = (0..SEGMENTS_MAX as u64).map(|id| (SegmentId(id), id * 4096));
        let member = |guid: u64| MemberRecord {
            guid,
            written: guid.is_multiple_of(2),
            offline: guid.is_multiple_of(3),
            replaces: (guid == 1).then_some(0),
            generation: guid << 40,
            sent: guid << 20,
            since: 77,
            missing: Missing::new(segments.clone(), 100..u64::MAX),
            errors: MemberErrors { read: 1, write: 2, checksum: u32::MAX },
        };
        let scan = Scan { started: 1, ended: 2, copied: 3, total: 4 };
        let members = (0..MEMBERS_MAX as u64).map(member).collect();
        Record { sequence: 5, generation: 6, scan, segment_len: 7, members }
    }

    #[test]
    fn the_largest_record_leaves_room_for_an_uberblock() {
        let uberblock = vec![7; MIRRORED_UBERBLOCK_MAX];
        let bytes = full().encode(&uberblock);
        assert!(bytes.len() <= UBERBLOCK_MAX);
        let (record, raw) = Record::decode(&RawUberblock { txg: 3, bytes }).unwrap();
        assert_eq!((record.unwrap(), raw.bytes, raw.txg), (full(), uberblock, 3));
        let plain = RawUberblock { txg: 4, bytes: b"snowmelt".to_vec() };
        assert_eq!(Record::decode(&plain), Some((None, plain.clone())));
    }

    /// They would be counted up to beyond what there is.
    #[test]
    fn numbers_at_the_end_of_their_range_are_refused() {
        for at in [OFF_SEQUENCE, OFF_COPIED, OFF_TOTAL] {
            let mut bytes = full().encode(b"uberblock");
            codec::put(&mut bytes, at, &u64::MAX.to_le_bytes());
            assert_eq!(Record::decode(&RawUberblock { txg: 1, bytes }), None, "{at}");
        }
    }

    proptest! {
        #[test]
        fn decoding_takes_any_bytes(noise: Vec<u8>, at in 8..600usize, byte: u8, cut in 0..600usize) {
            let mut bytes = full().encode(b"uberblock");
            bytes[at] = byte;
            let _ = Record::decode(&RawUberblock { txg: 1, bytes: bytes[..cut].to_vec() });
            let _ = Record::decode(&RawUberblock { txg: 1, bytes });
            let _ = Record::decode(&RawUberblock { txg: 1, bytes: [&MAGIC[..], &noise].concat() });
        }
    }
}
