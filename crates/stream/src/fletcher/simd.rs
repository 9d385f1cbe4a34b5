//! Fletcher-4 in SIMD lanes: AVX-512 and AVX2 on x86-64, chosen at run time. Other architectures have none.
#![allow(unsafe_code)]

use super::Fletcher4;
use crate::byte_order::ByteOrder;

/// The sums from zero of a prefix of `bytes`, and the length of that prefix. `None` if no SIMD is available.
#[cfg(target_arch = "x86_64")]
pub(super) fn sums(order: ByteOrder, bytes: &[u8]) -> Option<(Fletcher4, usize)> {
    let swap = order == ByteOrder::Big;
    if std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("avx512bw")
        && std::arch::is_x86_feature_detected!("avx2")
    {
        let blocks = bytes.as_chunks::<32>().0;
        // SAFETY: the CPU has the features that the function is compiled for.
        let lanes = unsafe { if swap { avx512::<true>(blocks) } else { avx512::<false>(blocks) } };
        return Some((Fletcher4::from_lanes(&lanes), blocks.len() * 32));
    }
    if std::arch::is_x86_feature_detected!("avx2") {
        let blocks = bytes.as_chunks::<16>().0;
        // SAFETY: the CPU has the features that the function is compiled for.
        let lanes = unsafe { if swap { avx2::<true>(blocks) } else { avx2::<false>(blocks) } };
        return Some((Fletcher4::from_lanes(&lanes), blocks.len() * 16));
    }
    None
}

/// No SIMD on this architecture.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn sums(_order: ByteOrder, _bytes: &[u8]) -> Option<(Fletcher4, usize)> {
    None
}

/// The sums `[a, b, c, d]` of each of the four lanes of 64 bits.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
pub(super) fn avx2<const SWAP: bool>(blocks: &[[u8; 16]]) -> [[u64; 4]; 4] {
    use std::arch::x86_64::{
        __m256i, _mm_loadu_si128, _mm_set_epi8, _mm_shuffle_epi8, _mm256_add_epi64, _mm256_cvtepu32_epi64,
        _mm256_setzero_si256, _mm256_storeu_si256,
    };
    let reverse = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
    let zero = _mm256_setzero_si256();
    let (mut a, mut b, mut c, mut d) = (zero, zero, zero, zero);
    for block in blocks {
        // SAFETY: an unaligned load of the 16 bytes of `block`.
        let mut raw = unsafe { _mm_loadu_si128(block.as_ptr().cast()) };
        if SWAP {
            raw = _mm_shuffle_epi8(raw, reverse);
        }
        a = _mm256_add_epi64(a, _mm256_cvtepu32_epi64(raw));
        b = _mm256_add_epi64(b, a);
        c = _mm256_add_epi64(c, b);
        d = _mm256_add_epi64(d, c);
    }
    let out = [a, b, c, d].map(|v: __m256i| {
        let mut lanes = [0_u64; 4];
        // SAFETY: an unaligned store into the 32 bytes of `lanes`.
        unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), v) };
        lanes
    });
    std::array::from_fn(|lane| out.map(|sum| sum[lane]))
}

/// The sums `[a, b, c, d]` of each of the eight lanes of 64 bits.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,avx512f,avx512bw")]
pub(super) fn avx512<const SWAP: bool>(blocks: &[[u8; 32]]) -> [[u64; 4]; 8] {
    use std::arch::x86_64::{
        __m512i, _mm256_loadu_si256, _mm256_set_epi8, _mm256_shuffle_epi8, _mm512_add_epi64,
        _mm512_cvtepu32_epi64, _mm512_setzero_si512, _mm512_storeu_si512,
    };
    // The shuffle works within each 128-bit half, so both halves take the same pattern.
    let reverse = _mm256_set_epi8(
        12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1,
        2, 3,
    );
    let zero = _mm512_setzero_si512();
    let (mut a, mut b, mut c, mut d) = (zero, zero, zero, zero);
    for block in blocks {
        // SAFETY: an unaligned load of the 32 bytes of `block`.
        let mut raw = unsafe { _mm256_loadu_si256(block.as_ptr().cast()) };
        if SWAP {
            raw = _mm256_shuffle_epi8(raw, reverse);
        }
        a = _mm512_add_epi64(a, _mm512_cvtepu32_epi64(raw));
        b = _mm512_add_epi64(b, a);
        c = _mm512_add_epi64(c, b);
        d = _mm512_add_epi64(d, c);
    }
    let out = [a, b, c, d].map(|v: __m512i| {
        let mut lanes = [0_u64; 8];
        // SAFETY: an unaligned store into the 64 bytes of `lanes`.
        unsafe { _mm512_storeu_si512(lanes.as_mut_ptr().cast(), v) };
        lanes
    });
    std::array::from_fn(|lane| out.map(|sum| sum[lane]))
}
