//! Arbitrary bytes as the index of a directory, with a digest that counts as valid, and as lines of rsync's logs. An
//! accepted index can be read.

#![no_main]

use libfuzzer_sys::fuzz_target;
use snowmelt_rsync::fuzzing::{changed, index};

fuzz_target!(|data: &[u8]| {
    let Some((first, rest)) = data.split_first() else { return };
    match first % 2 {
        0 => index(rest),
        _ => changed(rest),
    }
});
