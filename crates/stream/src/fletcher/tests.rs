//! Tests of fletcher-4.

use proptest::prelude::*;

use super::*;

fn scalar(order: ByteOrder, bytes: &[u8]) -> Fletcher4 {
    let mut f = Fletcher4::new();
    f.scalar(order, bytes);
    f
}

#[test]
fn known_value() {
    let mut f = Fletcher4::new();
    f.update(&[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]);
    assert_eq!(f.state(), [6, 10, 15, 21]);
    let mut g = Fletcher4::new();
    g.update_swapped(&[0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 9]);
    assert_eq!(f, g);
}

#[test]
fn sums_wrap_the_same_in_lanes() {
    let ones = vec![0xff; 20 << 20];
    for order in [ByteOrder::Little, ByteOrder::Big] {
        let mut f = Fletcher4::new();
        f.update_in(order, &ones);
        assert_eq!(f, scalar(order, &ones));
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
#[allow(unsafe_code)]
fn avx2_alone_agrees() {
    if !std::arch::is_x86_feature_detected!("avx2") {
        return;
    }
    let bytes: Vec<u8> = (0..4096_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    // SAFETY: the feature was just detected.
    let lanes = unsafe { simd::avx2::<false>(bytes.as_chunks::<16>().0) };
    assert_eq!(Fletcher4::from_lanes(&lanes), scalar(ByteOrder::Little, &bytes));
    // SAFETY: the feature was just detected.
    let lanes = unsafe { simd::avx2::<true>(bytes.as_chunks::<16>().0) };
    assert_eq!(Fletcher4::from_lanes(&lanes), scalar(ByteOrder::Big, &bytes));
}

proptest! {
    #[test]
    fn any_split_equals_the_scalar_sum(
        bytes in prop::collection::vec(any::<u8>(), 0..20_000),
        cuts in prop::collection::vec(0_usize..5_000, 0..6),
        swapped in any::<bool>(),
    ) {
        let order = if swapped { ByteOrder::Big } else { ByteOrder::Little };
        let mut f = Fletcher4::new();
        let mut rest = &bytes[..];
        for cut in cuts {
            let (head, tail) = rest.split_at((cut * 4).min(rest.len() & !3));
            f.update_in(order, head);
            rest = tail;
        }
        f.update_in(order, rest);
        prop_assert_eq!(f, scalar(order, &bytes));
    }
}
