//! Arbitrary bytes as the input of our rsync daemon, which serves a small tree in memory: it ends and does not panic.

#![no_main]

use libfuzzer_sys::fuzz_target;
use snowmelt_rsync::fuzzing::{config, connection, content, list, session};

fuzz_target!(|data: &[u8]| {
    let Some((first, rest)) = data.split_first() else { return };
    match first % 5 {
        0 => connection(rest),
        1 => session(rest),
        2 => config(rest),
        3 => list(rest),
        _ => content(rest),
    }
});
