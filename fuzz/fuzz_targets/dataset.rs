//! Arbitrary bytes as every kind of record of datasets and objsets: refused, or the same when written again.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| snowmelt_dataset::fuzzing::decoders(data));
