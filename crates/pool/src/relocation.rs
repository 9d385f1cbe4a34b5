//! Relocations: where the cleaner put a block that pointers still look for at its old place.
//!
//! Records are in the meta tree under [`prefix::RELOCATION`](crate::prefix::RELOCATION); the read path asks for them
//! when there are any. Bytes: `docs/format/pool.md`, "Relocations".

use snowmelt_store::SegmentId;

use crate::bytes_io::Fields;
use crate::error::Result;
use crate::prefix;

const VERSION: u8 = 1;

pub(crate) fn key(segment: SegmentId, offset: u32) -> Vec<u8> {
    let mut out = vec![prefix::RELOCATION];
    out.extend_from_slice(&segment.0.to_be_bytes());
    out.extend_from_slice(&offset.to_be_bytes());
    out
}

pub(crate) fn encode(segment: SegmentId, offset: u32) -> Vec<u8> {
    let mut out = vec![VERSION];
    out.extend_from_slice(&segment.0.to_le_bytes());
    out.extend_from_slice(&offset.to_le_bytes());
    out
}

pub(crate) fn decode(bytes: &[u8]) -> Result<(SegmentId, u32)> {
    let mut fields = Fields::new("relocation", bytes);
    let version = fields.u8()?;
    if version != VERSION {
        return fields.fail(format!("unknown version {version}"));
    }
    let place = (SegmentId(fields.u64()?), fields.u32()?);
    fields.end()?;
    Ok(place)
}
