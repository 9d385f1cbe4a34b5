//! Arbitrary key data, and arbitrary records of raw streams that are treated as authentic.
//!
//! Nothing panics, and no block of dnodes is larger than a block.

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
