//! Arbitrary bytes as the input of the server side of `sync`.
//!
//! The server ends, holds no more than its window for a channel, and does not panic.

#![no_main]

use libfuzzer_sys::fuzz_target;
use snowmelt_replicate::wire::fuzzing::client;

fuzz_target!(|data: &[u8]| client(data));
