//! Tests of heads, frames and stripes. `tests/parity.rs` tests parity in a pool.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use snowmelt_store::{MemoryStore, SegmentId, Store};

use super::cover::{Cover, Target};
use super::find::layout;
use super::head::Head;
use super::medium::Medium;
use super::stripe::Stripe;

const TARGET: Target = Target { pool: 7, segment: SegmentId(3), percent: 5 };

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut out);
    out
}

/// A segment of one frame over `len` bytes.
fn segment(len: usize, percent: u8, is_wide: bool) -> (MemoryStore, Vec<u8>) {
    let mut bytes = noise(1, len);
    let mut cover = Cover::new(0, 64 << 20);
    cover.push(&bytes);
    let target = Target { percent, ..TARGET };
    for frame in if is_wide { cover.wide(target, u64::MAX) } else { cover.narrow(target, u64::MAX) } {
        bytes.extend_from_slice(&frame);
    }
    let store = MemoryStore::new();
    store.create_segment(TARGET.segment).unwrap();
    store.append(TARGET.segment, 0, &bytes).unwrap();
    (store, bytes)
}

fn found(store: &MemoryStore, len: usize) -> Vec<Head> {
    layout(Medium::Single(store), TARGET.pool, TARGET.segment, len as u64).heads
}

fn mend_all(store: &MemoryStore, len: usize) {
    for head in found(store, len) {
        for (at, right) in Stripe::read(Medium::Single(store), &head).mend().unwrap_or_default() {
            store.rewrite(TARGET.segment, at, &right).unwrap();
        }
    }
}

fn bytes_of(store: &MemoryStore, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    store.read(TARGET.segment, 0, &mut out).unwrap();
    out
}

/// A frame as version 1 writes it. Another form needs a new version.
#[test]
fn golden_frame() {
    let mut cover = Cover::new(8, 64 << 20);
    cover.push(&[1; 512]);
    cover.push(&[2; 512]);
    cover.push(&[3; 8]);
    let frames = cover.narrow(TARGET, u64::MAX);
    let [frame] = &frames[..] else { panic!("one frame") };
    let head: String = frame[..40].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(
        head,
        "534d706101000900080000000804000010040000090000000700000000000000\
         0300000000000000"
    );
    assert_eq!(frame.len(), 2 * (56 + 12 * 8) + 9 * 512);
    // This includes checksums and parity.
    assert_eq!(blake3::hash(frame).to_hex()[..16], *GOLDEN);
    let (head, copy) = Head::decode(frame, SegmentId(3), 1040).unwrap();
    assert_eq!((copy, head.data(), head.parity, head.end()), (0, 3, 9, 1040 + frame.len() as u64));
    assert_eq!(
        Head::decode(&frame[frame.len() - 152..], SegmentId(3), head.copy_at(1).into()).unwrap(),
        (head, 1)
    );
}
const GOLDEN: &str = "d2142a737d4e1c8b";

#[test]
fn every_byte_and_the_place_of_a_head_count() {
    let (_, bytes) = segment(4000, 5, false);
    let frame = &bytes[4000..];
    let (head, _) = Head::decode(frame, TARGET.segment, 4000).unwrap();
    assert!(Head::decode(frame, SegmentId(4), 4000).is_err());
    assert!(Head::decode(frame, TARGET.segment, 4008).is_err());
    for at in 0..head.head_len() as usize {
        let mut bad = frame.to_vec();
        bad[at] ^= 1;
        assert!(Head::decode(&bad, TARGET.segment, 4000).is_err(), "byte {at}");
        assert!(Head::decode(&frame[..at], TARGET.segment, 4000).is_err(), "{at} bytes");
    }
}

/// Heads that demand much memory or lead elsewhere are refused before memory is allocated.
#[test]
fn unbounded_heads_are_refused() {
    let head = Head {
        pool: 7,
        segment: TARGET.segment,
        at: 8 << 20,
        start: 0,
        len: 2 << 20,
        piece_shift: 12,
        parity: 26,
        sums: Vec::new(),
    };
    let good = head.encode(0);
    assert!(Head::peek(&good).is_ok());
    let with = |at: usize, bytes: &[u8]| {
        let mut bad = good.clone();
        bad[at..at + bytes.len()].copy_from_slice(bytes);
        Head::peek(&bad)
    };
    for (at, number) in [
        (8, 7 << 20),
        (8, u32::MAX),
        (12, 0),
        (12, (4 << 20) + 1),
        (12, u32::MAX),
        (16, 0),
        (16, u32::MAX),
        (20, 0),
        (20, 4097),
        (20, u32::MAX),
    ] {
        assert!(with(at, &number.to_le_bytes()).is_err(), "{number} at {at}");
    }
    for (at, byte) in [(4, 2), (5, 2), (6, 5), (6, 6), (6, 17), (6, 200), (7, 1)] {
        assert!(with(at, &[byte]).is_err(), "{byte} at {at}");
    }
}

#[test]
fn a_long_run_is_mended_wherever_it_is_and_however_little_is_covered() {
    const RUN: usize = 64 << 10;
    for (data, percent, step) in [(8, 5, 999), (300_008, 1, 4001), (1 << 20, 2, 30_001), (2 << 20, 5, 50_001)]
    {
        let (store, good) = segment(data, percent, true);
        let len = good.len();
        for at in (0..=len - RUN).step_by(step).chain([data.saturating_sub(RUN / 2), len - RUN]) {
            store.rewrite(TARGET.segment, at as u64, &[0; RUN]).unwrap();
            mend_all(&store, len);
            assert!(bytes_of(&store, len) == good, "{data} bytes, at {at}");
        }
    }
}

/// However little a txg wrote, and also if the sector contains the beginning or end of the frame.
#[test]
fn a_lost_sector_is_mended_in_the_smallest_frame() {
    for data in [8, 4096, 8192, 100_000] {
        let (store, good) = segment(data, 1, false);
        let len = good.len();
        for at in (0..len.saturating_sub(4096)).step_by(256) {
            store.rewrite(TARGET.segment, at as u64, &[0; 4096]).unwrap();
            mend_all(&store, len);
            assert!(bytes_of(&store, len) == good, "{data} bytes, at {at}");
        }
    }
}

#[test]
fn what_is_too_much_is_left_as_it_is() {
    const LEN: usize = 2 << 20;
    let (store, good) = segment(LEN, 5, true);
    let len = good.len();
    store.rewrite(TARGET.segment, 4096, &[0; 27 * 4096]).unwrap();
    let bad = bytes_of(&store, len);
    mend_all(&store, len);
    assert!(bytes_of(&store, len) == bad);
}

#[test]
fn what_looks_like_a_head_in_a_block_is_none() {
    // The same bytes at the same place. The only difference is the block's frame around them.
    let (_, bytes) = segment(96, 5, false);
    let payload = bytes[96..].to_vec();
    let header = crate::format::segment::FrameHeader {
        kind: crate::format::segment::Kind::Data,
        compression: 2,
        lsize: payload.len() as u32,
        psize: payload.len() as u32,
        birth: 1,
        owner: crate::ids::TreeId(1),
        object: 1,
        blkid: 0,
        pool: TARGET.pool,
        hash: *blake3::hash(&payload).as_bytes(),
    };
    let store = MemoryStore::new();
    store.create_segment(TARGET.segment).unwrap();
    store.append(TARGET.segment, 0, &header.encode(TARGET.segment, 0)).unwrap();
    store.append(TARGET.segment, 96, &payload).unwrap();
    assert_eq!(found(&store, bytes.len()), []);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Bytes that were appended in any steps, with narrow and wide frames between them, are covered without a gap. Any
    /// pieces can be repaired, up to the number of parity pieces.
    #[test]
    fn any_pieces_are_mended(
        steps in prop::collection::vec((1..60_000usize, 0..4u8), 1..8),
        percent in 1..=50u8,
        flips in prop::collection::vec(any::<prop::sample::Index>(), 1..3),
    ) {
        let target = Target { percent, ..TARGET };
        let (mut cover, mut bytes) = (Cover::new(0, 64 << 20), Vec::new());
        let push = |bytes: &mut Vec<u8>, frames: Vec<bytes::Bytes>| {
            frames.iter().for_each(|frame| bytes.extend_from_slice(frame));
        };
        for (seed, (len, then)) in steps.into_iter().enumerate() {
            let more = noise(seed as u64, len.next_multiple_of(8));
            let reserve = cover.reserve(more.len() as u64, percent);
            cover.push(&more);
            bytes.extend(more);
            let before = bytes.len();
            if then == 1 || then == 3 {
                push(&mut bytes, cover.narrow(target, u64::MAX));
            }
            if then >= 2 {
                push(&mut bytes, cover.wide(target, u64::MAX));
            }
            prop_assert!((bytes.len() - before) as u64 <= reserve);
        }
        push(&mut bytes, cover.wide(target, u64::MAX));
        let store = MemoryStore::new();
        store.create_segment(TARGET.segment).unwrap();
        store.append(TARGET.segment, 0, &bytes).unwrap();
        let len = bytes.len();
        let covered = |at: usize, heads: &[Head]| {
            let at = at as u64;
            heads.iter().any(|head| head.covers(at, 1) || (u64::from(head.at) <= at && at < head.end()))
        };
        let heads = found(&store, len);
        prop_assert!((0..len).step_by(8).all(|at| covered(at, &heads)));
        let is_in = |head: &Head, copy, at: u64| {
            let begin = head.copy_at(copy);
            (u64::from(begin)..u64::from(begin + head.head_len())).contains(&at)
        };
        // If both copies of its head are wrong, a frame is lost, but the bytes that it covers are intact.
        prop_assume!(!heads.iter().any(|head| {
            (0..2).all(|copy| flips.iter().any(|flip| is_in(head, copy, flip.index(len) as u64)))
        }));
        for flip in &flips {
            store.corrupt(TARGET.segment, flip.index(len) as u64, 0x40).unwrap();
        }
        mend_all(&store, len);
        prop_assert!(bytes_of(&store, len) == bytes);
    }
}
