//! The index of a directory, whose digest is taken to be right, and lines of rsync's logs: what passes can be read.

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
