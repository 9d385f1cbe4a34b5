//! Arbitrary bytes as a packed nvlist: no panic, and an unpacked list can be packed and unpacked again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use snowmelt_stream::{ByteOrder, NvList};

fuzz_target!(|data: &[u8]| {
    let Ok(list) = NvList::unpack(data) else { return };
    // Packed bytes are compared, because a NaN is not equal to itself.
    let xdr = list.pack_xdr();
    assert_eq!(NvList::unpack(&xdr).expect("own XDR").pack_xdr(), xdr);
    for order in [ByteOrder::Little, ByteOrder::Big] {
        let native = list.pack_native(order);
        assert_eq!(NvList::unpack(&native).expect("own native").pack_native(order), native);
    }
    let _ = list.to_string();
});
