//! Key data, and the records of raw streams as if they were authentic: no panic, and no dnode block of more than a block.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&which, data)) = data.split_first() else { return };
    if which & 1 == 0 {
        snowmelt_crypt::fuzzing::keydata(data)
    } else {
        snowmelt_crypt::fuzzing::records(data)
    }
});
