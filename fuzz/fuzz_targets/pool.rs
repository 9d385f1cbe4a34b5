//! Arbitrary bytes as every kind of record of a pool: refused, or the same when written again.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| snowmelt_pool::fuzzing::decoders(data));
