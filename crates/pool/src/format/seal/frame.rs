//! The key frame at the beginning of every segment of an encrypted pool. With it and the user's key, a pool whose
//! uberblocks are lost can still be opened.

use snowmelt_store::{SegmentId, Store};

use super::record::{KeyRecord, RECORD_MAX};
use crate::error::Result;
use crate::format::bytes_io::Fields;
use crate::format::segment::FRAME_ALIGN;
use crate::ids::Txg;

const MAGIC: [u8; 4] = *b"SMky";
const VERSION: u8 = 1;
const SUM_LEN: usize = 32;
/// Longest key frame, bytes.
pub(crate) const KEY_FRAME_MAX: usize = (32 + RECORD_MAX + SUM_LEN).next_multiple_of(FRAME_ALIGN as usize);

/// The key frame of a segment that was created in `txg`.
pub(crate) fn encode(record: &KeyRecord, segment: SegmentId, txg: Txg) -> Vec<u8> {
    let bytes = record.encode();
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&[VERSION, 0]);
    out.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
    for word in [record.guid(), segment.0, txg] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(&bytes);
    let sum = blake3::hash(&out);
    out.extend_from_slice(sum.as_bytes());
    out.resize(out.len().next_multiple_of(FRAME_ALIGN as usize), 0);
    out
}

/// Decodes a key frame: the txg in which the segment was created, and the key record.
pub(crate) fn decode(segment: SegmentId, bytes: &[u8]) -> Result<(Txg, KeyRecord)> {
    let mut fields = Fields::new("key frame", bytes);
    if fields.array::<4>()? != MAGIC {
        return fields.fail("no key frame");
    }
    let [version, zero] = fields.array()?;
    let len = usize::from(fields.u16()?);
    if version != VERSION || zero != 0 || len > RECORD_MAX {
        return fields.fail(format!("version {version}, {len} bytes"));
    }
    let (guid, id, txg) = (fields.u64()?, fields.u64()?, fields.u64()?);
    let record = fields.take(len)?;
    let sum = fields.array::<SUM_LEN>()?;
    let is_whole = bytes.get(..32 + len).is_some_and(|covered| *blake3::hash(covered).as_bytes() == sum);
    if !is_whole || id != segment.0 {
        return fields.fail("its sum does not hold, or it is of another segment");
    }
    Ok((txg, KeyRecord::decode(guid, record)?))
}

/// The newest key record of the pool `guid` in the segments of a store.
pub(crate) fn newest(
    store: &dyn Store,
    guid: u64,
    segments: &[snowmelt_store::SegmentInfo],
) -> Option<KeyRecord> {
    let read = |info: &snowmelt_store::SegmentInfo| {
        let mut bytes = vec![0; KEY_FRAME_MAX.min(usize::try_from(info.len).unwrap_or(usize::MAX))];
        store.read(info.id, 0, &mut bytes).ok()?;
        decode(info.id, &bytes).ok().filter(|(_, record)| record.guid() == guid)
    };
    segments.iter().filter_map(read).max_by_key(|(txg, _)| *txg).map(|(_, record)| record)
}
