//! Byteswaps arbitrary blocks as if from a big-endian machine.
//!
//! Nothing panics, data stays unchanged, and a ZAP has the same entries as before, when a reader for both orders read
//! it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use snowmelt_dataset::fuzzing::to_little_endian;
use snowmelt_zpl::memory::{MemoryObject, MemoryObjects};
use snowmelt_zpl::zap::{Entry, Zap};
use snowmelt_zpl::{Cursor, Dnode};

const OBJECT: u64 = 7;
const DIRECTORY: u8 = 20;

fn entries(blocks: &[Vec<u8>], block_size: usize) -> Option<Vec<Entry>> {
    let dnode = Dnode { object: OBJECT, block_size: block_size as u32, ..Dnode::default() };
    let mut object = MemoryObject { dnode, ..Default::default() };
    for (blkid, block) in blocks.iter().enumerate() {
        object.write((blkid * block_size) as u64, block);
    }
    let objects = MemoryObjects { objects: [(OBJECT, object)].into() };
    let zap = Zap::open(&objects, OBJECT).ok()?;
    zap.entries(Cursor::START).take(500).collect::<Result<_, _>>().ok()
}

// The first byte is the type of the object. For directories, the second byte is the block size as a power of two.
fuzz_target!(|data: &[u8]| {
    let Some((&object_type, data)) = data.split_first() else { return };
    if object_type != DIRECTORY {
        let mut turned = data.to_vec();
        let _ = to_little_endian(object_type, &mut turned);
        assert!(![19, 23, 44].contains(&object_type) || turned == data);
        return;
    }
    let Some((&shift, data)) = data.split_first() else { return };
    let block_size = 512 << (shift % 9);
    let blocks: Vec<Vec<u8>> = data
        .chunks(block_size)
        .map(|block| {
            let mut block = block.to_vec();
            block.resize(block_size, 0);
            block
        })
        .collect();
    let mut turned = blocks.clone();
    if !turned.iter_mut().all(|block| to_little_endian(DIRECTORY, block)) {
        return;
    }
    // If the table of leaves has its own blocks, a block that looks like a leaf is swapped like a leaf.
    let own_table = blocks
        .first()
        .is_some_and(|first| first[0..8] == [128, 0, 0, 0, 0, 0, 0, 1] && first[24..32] != [0; 8]);
    if own_table || data.first() != Some(&128) {
        return;
    }
    assert_eq!(entries(&blocks, block_size), entries(&turned, block_size));
});
