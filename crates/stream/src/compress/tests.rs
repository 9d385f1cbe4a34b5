//! Tests of compression.

use proptest::prelude::*;

use super::*;

const ALGORITHMS: [Compression; 7] = [
    Compression::Lzjb,
    Compression::Gzip(1),
    Compression::Gzip(6),
    Compression::Gzip(9),
    Compression::Zle,
    Compression::Lz4,
    Compression::Zstd,
];

/// Blocks as files have them: noise, runs, repetitions.
fn block() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..300),
        (any::<u8>(), 0..3000_usize).prop_map(|(b, n)| vec![b; n]),
        (0..3000_usize).prop_map(|n| vec![0; n]),
        (prop::collection::vec(any::<u8>(), 1..20), 0..150_usize).prop_map(|(word, n)| word.repeat(n)),
    ];
    prop::collection::vec(piece, 1..8).prop_map(|pieces| pieces.concat())
}

#[test]
fn numbers_are_those_of_zfs() {
    for id in 0..=16 {
        assert_eq!(Compression::from_id(id).unwrap().id(), id);
    }
    assert_eq!(Compression::from_id(17), None);
    assert_eq!(Compression::On.algorithm(), Compression::Lz4);
    assert_eq!(Compression::Empty.algorithm(), Compression::Off);
    assert_eq!(Compression::Gzip(9).algorithm(), Compression::Gzip(9));
    assert_eq!(Compression::from_id(10).unwrap().name(), "gzip-6");
}

#[test]
fn zstd_levels_are_those_of_zfs() {
    for (cookie, level) in [(1, 1), (19, 19), (103, -1), (112, -10), (113, -20), (122, -500), (123, -1000)] {
        assert_eq!(zstd_level(cookie), Some(level));
        assert_eq!(zstd_cookie(level), Some(cookie));
    }
    assert_eq!((zstd_level(0), zstd_level(255)), (Some(3), Some(3)));
    for cookie in [20, 100, 102, 124] {
        assert_eq!(zstd_level(cookie), None);
    }
    for level in [0, 20, -11, i32::MIN] {
        assert_eq!(zstd_cookie(level), None);
    }
}

#[test]
fn zstd_headers_of_both_byte_orders_are_read() {
    let expected = ZstdHeader { frame_len: 9, version: 10405, level: 3 };
    assert_eq!(ZstdHeader::parse(&[0, 0, 0, 9, 3, 0, 0x28, 0xa5]), Ok(expected));
    assert_eq!(ZstdHeader::parse(&[0, 0, 0, 9, 0, 0x28, 0xa5, 3]), Ok(expected));
    assert!(ZstdHeader::parse(&[0; 7]).is_err());
}

fn noise(len: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..len).map(next).collect()
}

/// Samples must not be taken for all there is: whatever saves an eighth in runs of a few KiB is found.
#[test]
fn what_is_noise_only_in_part_is_compressed() {
    let text = "All that is noise here is not noise there. ".repeat(5000);
    for len in [32 << 10, 128 << 10, 200_000] {
        let mut half = noise(len);
        for (number, piece) in half.chunks_mut(4096).enumerate() {
            if number % 2 == 1 {
                piece.copy_from_slice(&text.as_bytes()[..piece.len()]);
            }
        }
        for algorithm in [Compression::Lz4, Compression::Zstd] {
            for block in [&half, &text.as_bytes()[..len].to_vec()] {
                let mut packed = Vec::new();
                assert!(compress(algorithm, 3, block, &mut packed).is_some(), "{algorithm:?}, {len}");
                let mut plain = vec![0; len];
                decompress(algorithm.id(), &packed, &mut plain).unwrap();
                assert!(plain == *block);
            }
        }
    }
}

#[test]
fn what_does_not_shrink_by_an_eighth_is_not_compressed() {
    let mut dst = Vec::new();
    for algorithm in ALGORITHMS {
        // Of lengths that are sampled first and that are not.
        for len in [8192, 32 << 10, 200_000] {
            assert_eq!(compress(algorithm, 0, &noise(len), &mut dst), None, "{algorithm:?}, {len}");
        }
        assert_eq!(compress(algorithm, 0, &[], &mut dst), None, "{algorithm:?}");
    }
    for algorithm in [Compression::Off, Compression::On, Compression::Inherit, Compression::Empty] {
        assert_eq!(compress(algorithm, 0, &[0; 512], &mut dst), None);
    }
    assert_eq!(compress(Compression::Zstd, 99, &[0; 512], &mut dst), None, "no such level");
}

#[test]
fn known_bytes() {
    let mut out = [9; 8];
    decompress(14, &[1, 7, 8, 64 + 3, 0, 5, 64], &mut out).unwrap();
    assert_eq!(out, [7, 8, 0, 0, 0, 0, 5, 0]);
    // Three literals, then a match of five at distance three.
    decompress(3, &[0b1000, 1, 2, 3, 2 << 2, 3], &mut out).unwrap();
    assert_eq!(out, [1, 2, 3, 1, 2, 3, 1, 2]);
    assert!(decompress(3, &[0b1000, 1, 2, 3, 2 << 2, 4], &mut out).is_err(), "before the block's start");
    assert!(decompress(3, &[0b1000, 1, 2, 3, 2 << 2, 0], &mut out).is_err(), "distance 0");
    assert!(decompress(14, &[64 + 8, 0], &mut out).is_err(), "past the block's end");
    assert_eq!(decompress(1, &[], &mut out), Err(CompressError::NotAnAlgorithm { name: "on" }));
    assert_eq!(decompress(77, &[], &mut out), Err(CompressError::UnknownAlgorithm { id: 77 }));
    decompress(2, &[1; 9], &mut out).unwrap();
    assert!(decompress(2, &[1; 7], &mut out).is_err());
}

#[test]
fn a_damaged_block_does_not_spoil_the_next() {
    let block = b"over and over\0\0\0\0\0\0\0".repeat(300);
    let (mut good, mut out) = (Vec::new(), vec![0; block.len()]);
    for algorithm in ALGORITHMS {
        compress(algorithm, 0, &block, &mut good).unwrap();
        let mut bad = good.clone();
        let middle = bad.len() / 2;
        bad.truncate(middle);
        assert!(decompress(algorithm.id(), &bad, &mut out).is_err(), "{algorithm:?}");
        decompress(algorithm.id(), &good, &mut out).unwrap();
        assert_eq!(out, block);
    }
}

proptest! {
    #[test]
    fn what_is_compressed_decompresses_to_the_same(block in block(), padding in 0..600_usize) {
        let (mut packed, mut out) = (Vec::new(), vec![0; block.len()]);
        for algorithm in ALGORITHMS {
            let Some(len) = compress(algorithm, 0, &block, &mut packed) else { continue };
            prop_assert_eq!(len, packed.len());
            prop_assert!(len <= block.len() - block.len() / 8);
            packed.resize(len + padding, 0);
            let prefix = &packed[..packed.len().min(8)];
            prop_assert_eq!(check_framing(algorithm.id(), prefix, packed.len() as u64, block.len() as u64), Ok(()));
            prop_assert_eq!(decompress(algorithm.id(), &packed, &mut out), Ok(()), "{:?}", algorithm);
            prop_assert!(out == block, "{:?}", algorithm);
            pad_to_sector(&mut packed);
            prop_assert_eq!(packed.len() % SECTOR, 0);
        }
    }

    #[test]
    fn another_length_is_refused(block in block(), more in any::<bool>()) {
        let mut packed = Vec::new();
        // LZJB and ZLE cannot notice this, because they end when the block is full.
        for algorithm in [Compression::Lz4, Compression::Zstd, Compression::Gzip(6)] {
            if block.is_empty() || compress(algorithm, 0, &block, &mut packed).is_none() {
                continue;
            }
            let mut out = vec![0; if more { block.len() + 1 } else { block.len() - 1 }];
            prop_assert!(decompress(algorithm.id(), &packed, &mut out).is_err(), "{:?}", algorithm);
        }
    }

    #[test]
    fn nonsense_never_panics(id in 0..20_u8, src in prop::collection::vec(any::<u8>(), 0..700), len in 0..5000_usize) {
        let mut out = vec![0; len];
        let _ = decompress(id, &src, &mut out);
        let _ = check_framing(id, &src[..src.len().min(8)], src.len() as u64, len as u64);
    }
}
