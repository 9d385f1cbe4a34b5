//! Compares the meaning of two streams.

use std::collections::{BTreeMap, BTreeSet};

use snowmelt_stream::compress::decompress;
use snowmelt_stream::record::{DedupKey, Free, Record, Write};

use super::world::Parsed;

/// Records without facts that do not belong to the content: deduplication keys; the compression of blocks; holes after
/// an object's last block, and the end of objects, because ZFS knows the longest length they ever had; the length of a
/// last piece.
pub(super) fn plain(records: &[Parsed]) -> Vec<Parsed> {
    let mut tails: BTreeMap<u64, u64> = BTreeMap::new();
    let mut block_sizes: BTreeMap<u64, u64> = BTreeMap::new();
    for (record, _) in records {
        if let Record::Object(o) = record {
            block_sizes.insert(o.object, o.block_size.into());
        }
        let (object, end) = match record {
            Record::Object(o) => (o.object, u64::from(o.block_size)),
            Record::Write(w) => (w.object, w.offset + w.logical_size),
            Record::WriteEmbedded(w) => (w.object, w.offset + w.length),
            Record::Redact(r) => (r.object, r.offset + r.length),
            _ => continue,
        };
        let tail = tails.entry(object).or_default();
        *tail = end.next_multiple_of(block_sizes[&object]).max(*tail);
    }
    let mut out = Vec::new();
    for (record, payload) in records {
        let mut payload = payload.clone();
        let record = match record {
            Record::Begin(_) | Record::End(_) => continue,
            Record::Free(f) if f.length == Free::TO_END => {
                Record::Free(Free { offset: tails[&f.object], ..*f })
            }
            Record::Free(f) => {
                let tail = tails[&f.object];
                if f.offset >= tail {
                    continue;
                }
                Record::Free(Free { length: f.length.min(tail - f.offset), ..*f })
            }
            Record::Write(w) => {
                let mut write = Write {
                    key: DedupKey::default(),
                    checksum_type: 0,
                    flags: w.flags & Write::RAW_BYTESWAP,
                    ..*w
                };
                if w.crypt.salt == [0; 8] {
                    if w.compression != 0 {
                        let mut data = vec![0; usize::try_from(w.logical_size).unwrap()];
                        decompress(w.compression, &payload, &mut data).unwrap();
                        payload = data;
                    }
                    (write.compression, write.compressed_size) = (0, 0);
                    // The last piece of a large block that was sent in pieces.
                    write.logical_size = w.logical_size.max(block_sizes[&w.object]);
                    payload.resize(usize::try_from(write.logical_size).unwrap(), 0);
                }
                Record::Write(write)
            }
            Record::WriteEmbedded(w) => {
                let mut data = vec![0; usize::try_from(w.length).unwrap()];
                decompress(w.compression, &payload, &mut data[..usize::try_from(w.lsize).unwrap()]).unwrap();
                payload = data;
                Record::Write(Write {
                    object: w.object,
                    offset: w.offset,
                    logical_size: w.length,
                    to_guid: w.to_guid,
                    ..Write::default()
                })
            }
            other => other.clone(),
        };
        out.push((record, payload));
    }
    // The record of an embedded block does not contain the type of its object.
    for (record, _) in &mut out {
        if let Record::Write(write) = record {
            write.object_type = 0;
        }
    }
    out
}

/// The records of an incremental stream that mean a change, without those of `ragged` objects.
pub(super) fn changes(records: &[Parsed], ragged: &BTreeSet<u64>) -> Vec<Parsed> {
    let is_change = |record: &Record| match record {
        Record::Write(w) => !ragged.contains(&w.object),
        record => matches!(record, Record::Redact(_)),
    };
    plain(records).into_iter().filter(|(record, _)| is_change(record)).collect()
}

/// Objects with large blocks that were sent in pieces and end inside a block. The FREE record after their end reaches
/// into the last block, which the receiver then writes again.
pub(super) fn ragged(records: &[Parsed]) -> BTreeSet<u64> {
    let mut size = 1;
    let ragged = records.iter().filter_map(|(record, _)| match record {
        Record::Object(o) => {
            size = u64::from(o.block_size);
            None
        }
        Record::Free(f) if f.length == Free::TO_END && f.offset % size != 0 => Some(f.object),
        _ => None,
    });
    ragged.collect()
}

pub(super) fn compare(label: &str, ours: &[Parsed], theirs: &[Parsed]) {
    for (n, (our, their)) in ours.iter().zip(theirs).enumerate() {
        assert!(
            our.0 == their.0,
            "{label}: record {n}\n ours   {:?}\n theirs {:?}\n before {:?}",
            our.0,
            their.0,
            ours.get(n.wrapping_sub(1)).map(|r| &r.0)
        );
        assert!(our.1 == their.1, "{label}: payload of record {n}: {:?}", our.0);
    }
    assert_eq!(ours.len(), theirs.len(), "{label}: number of records");
}
