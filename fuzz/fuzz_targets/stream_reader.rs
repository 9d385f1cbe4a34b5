//! A stream of arbitrary bytes: no panic, and reading and verifying agree.
//!
//! Fuzzers do not find valid checksums. The input is therefore a list of *records*, and the target makes a stream with
//! valid checksums. It tests the input unchanged first. Then it clears every record's checksum and corrects END's.

#![no_main]

use libfuzzer_sys::fuzz_target;
use snowmelt_stream::{Fletcher4, RECORD_LEN, Reader, verify};

fn check(bytes: &[u8]) {
    let verified = verify(bytes);
    let mut reader = Reader::new(bytes);
    let mut payload = Vec::new();
    let read = loop {
        match reader.next(&mut payload) {
            Ok(Some(p)) => {
                assert_eq!(payload.len() as u64, p.record.payload_len());
                let _ = p.record.dump(&payload).to_string();
            }
            Ok(None) => break None,
            Err(e) => break Some(e.to_string()),
        }
    };
    assert_eq!(verified.err().map(|e| e.to_string()), read);
    assert!(reader.bytes_read() <= bytes.len() as u64);
}

fuzz_target!(|data: &[u8]| {
    check(data);
    // BEGIN, the input, and an END that covers everything. There are no record checksums, as in streams of old senders.
    let mut stream = vec![0; RECORD_LEN];
    stream[8..16].copy_from_slice(&0x2_f5ba_cbac_u64.to_le_bytes());
    let features = data.first().map_or(0, |b| u64::from(*b)) << 16 | 4;
    stream[16..24].copy_from_slice(&(features << 2 | 1).to_le_bytes());
    stream[32] = 2;
    stream[36] = 8;
    stream.extend_from_slice(data.get(1..).unwrap_or_default());
    let mut fletcher = Fletcher4::new();
    fletcher.update(&stream);
    let mut end = [0; RECORD_LEN];
    end[0] = 5;
    for (at, word) in fletcher.state().iter().enumerate() {
        end[8 + at * 8..16 + at * 8].copy_from_slice(&word.to_le_bytes());
    }
    stream.extend_from_slice(&end);
    check(&stream);
});
