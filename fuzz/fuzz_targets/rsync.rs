//! rsync's daemon, given any bytes: it ends, and does not panic. What is served is a small tree in memory.

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
