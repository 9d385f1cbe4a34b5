//! Runs every decoder of the pool on arbitrary bytes, for fuzz targets. Not part of the API.

use bytes::Bytes;
use snowmelt_store::SegmentId;

use crate::damage::{Damage, DamageCounters};
use crate::deadlist::Dead;
use crate::format::ptr::BlockPtr;
use crate::format::seal::{self, KeyRecord};
use crate::format::segment::{self, FrameHeader};
use crate::format::tree_record::TreeRecord;
use crate::format::uberblock::Uberblock;
use crate::parity;
use crate::relocation;
use crate::scrub::ScrubRecord;
use crate::space::SegmentRecord;
use crate::tree::{Node, codec};

/// Decodes `data` as each kind of record. A record that decodes must encode to the same bytes and decode again.
///
/// # Panics
/// When it does not.
pub fn decoders(data: &[u8]) {
    if let Ok(ptr) = BlockPtr::decode(&mut &data[..]) {
        let mut out = Vec::new();
        ptr.encode(&mut out);
        assert!(data.starts_with(&out));
    }
    frame_header(data);
    parity_head(data);
    if let Ok(record) = KeyRecord::decode(1, data) {
        assert_eq!(record.encode(), data);
    }
    let _ = seal::decode_key_frame(SegmentId(1), data);
    if let Ok(record) = SegmentRecord::decode(data) {
        assert_eq!(record.encode(), data);
    }
    if let Ok(record) = TreeRecord::decode(data) {
        assert_eq!(record.encode(), data);
    }
    if let Ok((segment, offset)) = relocation::decode(data) {
        assert_eq!(relocation::encode(segment, offset), data);
    }
    if let Ok(damage) = Damage::decode(SegmentId(1), 8, data) {
        let again = Damage::decode(SegmentId(1), 8, &damage.encode());
        assert!(again.is_ok_and(|again| again == damage));
    }
    if let Ok(counters) = DamageCounters::decode(data) {
        assert_eq!(counters.encode(), data);
    }
    if let Ok(record) = ScrubRecord::decode(data) {
        assert_eq!(record.encode(), data);
    }
    // The checksum would refuse nearly all inputs, so a correct one is also tried.
    let _ = Uberblock::decode(data);
    let summed = [data, blake3::hash(data).as_bytes()].concat();
    if let Ok(uberblock) = Uberblock::decode(&summed) {
        assert!(Uberblock::decode(&uberblock.encode(None)).is_ok());
    }
    let (key, value) = data.split_at(data.len().min(21));
    if let Ok(dead) = Dead::decode(key, value) {
        assert_eq!((dead.encode_key(), dead.encode_value()), (key.to_vec(), value.to_vec()));
    }
    if let Ok(node) = codec::decode(&Bytes::copy_from_slice(data), u64::MAX) {
        // The key prefix in the input may be shorter than possible, so the encoded bytes may differ.
        let again = codec::encode(&node).and_then(|bytes| codec::decode(&Bytes::from(bytes), u64::MAX));
        assert!(matches!(
            (node, again),
            (Node::Leaf(_), Ok(Node::Leaf(_))) | (Node::Inner(_), Ok(Node::Inner(_)))
        ));
    }
}

/// Decodes a frame header, also with a correct checksum.
fn frame_header(data: &[u8]) {
    const PLACE: (SegmentId, u64) = (SegmentId(1), 8);
    let _ = FrameHeader::decode(data, PLACE.0, PLACE.1);
    let covered = data.get(..segment::SUM_AT).unwrap_or(data);
    let summed = [covered, &segment::checksum(covered, PLACE.0, PLACE.1)].concat();
    if let Ok(header) = FrameHeader::decode(&summed, PLACE.0, PLACE.1) {
        assert_eq!(header.encode(PLACE.0, PLACE.1), summed.as_slice());
    }
}

/// Decodes the head of a parity frame, also with a correct checksum.
fn parity_head(data: &[u8]) {
    let at = data.get(16..).and_then(|bytes| bytes.first_chunk());
    let segment = data.get(32..).and_then(|bytes| bytes.first_chunk());
    let (Some(at), Some(segment)) = (at, segment) else { return };
    let (at, segment) = (u32::from_le_bytes(*at).into(), SegmentId(u64::from_le_bytes(*segment)));
    let _ = parity::Head::decode(data, segment, at);
    let summed = parity::with_sum(data);
    if let Ok((head, copy)) = parity::Head::decode(&summed, segment, at) {
        assert!(summed.starts_with(&head.encode(copy)));
    }
}

#[cfg(test)]
mod tests {
    use super::decoders;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_bytes_make_a_decoder_panic(data in prop::collection::vec(any::<u8>(), 0..400)) {
            decoders(&data);
        }

        #[test]
        fn nearly_right_bytes_neither(
            tag in 0u8..4, level in 0u8..3, prefix in 0u8..4, count in 0u8..6,
            rest in prop::collection::vec(0u8..4, 0..300),
        ) {
            let mut data = vec![tag, level, prefix, 0, count, 0, 0, 0];
            data.extend(rest);
            decoders(&data);
            decoders(&data[1..]);
        }
    }
}
