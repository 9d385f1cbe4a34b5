//! Arbitrary bytes as a compressed block.
//!
//! Nothing panics or accesses memory out of bounds, and compressed data decompresses to the original.

#![no_main]

use libfuzzer_sys::fuzz_target;
use snowmelt_stream::compress::check_framing;
use snowmelt_stream::{Compression, compress, decompress};

fuzz_target!(|data: &[u8]| {
    let [id, level, low, high, src @ ..] = data else { return };
    let id = id % 20;
    let mut dst = vec![0; usize::from(u16::from_le_bytes([*low, *high]))];
    let framing = check_framing(id, &src[..src.len().min(8)], src.len() as u64, dst.len() as u64);
    if decompress(id, src, &mut dst).is_ok() && id != 2 {
        assert_eq!(framing, Ok(()), "what decompresses has a good framing");
    }
    let Some(algorithm) = Compression::from_id(id) else { return };
    let mut packed = Vec::new();
    if compress(algorithm, *level, src, &mut packed).is_some() {
        let mut back = vec![0; src.len()];
        decompress(algorithm.id(), &packed, &mut back).expect("own block");
        assert!(back == src);
    }
});
