//! Arbitrary bytes as a ZAP object: no panic, no endless listing, and every listed name of a sound ZAP is found.

#![no_main]

use libfuzzer_sys::fuzz_target;
use snowmelt_zpl::memory::{MemoryObject, MemoryObjects};
use snowmelt_zpl::zap::{Matching, Zap};
use snowmelt_zpl::{Cursor, Dnode};

const OBJECT: u64 = 7;

// The first byte is the block size: a power of two, or a multiple of 512.
fuzz_target!(|data: &[u8]| {
    let Some((size, data)) = data.split_first() else { return };
    let block_size = match size {
        0..=12 => 512 << size,
        size => 512 * u32::from(*size),
    };
    let dnode = Dnode { object: OBJECT, block_size, ..Dnode::default() };
    let mut object = MemoryObject { dnode, ..Default::default() };
    object.write(0, data);
    let objects = MemoryObjects { objects: [(OBJECT, object)].into() };
    let Ok(zap) = Zap::open(&objects, OBJECT) else { return };
    let bits = zap.hashing().hash_bits();
    for entry in zap.entries(Cursor::START).take(2000) {
        let Ok(entry) = entry else { break };
        assert_eq!(
            Cursor::deserialize(entry.at.serialize(bits), bits).serialize(bits),
            entry.at.serialize(bits)
        );
        if let Some(name) = entry.key.as_name() {
            for matching in [Matching::Exact, Matching::Normalized, Matching::NormalizedCaseSensitive] {
                let _ = zap.lookup(name, matching);
            }
        }
    }
});
