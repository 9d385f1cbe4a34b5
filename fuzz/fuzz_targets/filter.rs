//! A stream of arbitrary records through every filter: no panic, and a complete output is a valid stream.
//!
//! As in `stream_reader`, the input is a list of records. The target adds a BEGIN before them and an END with a valid
//! checksum after them. The first bytes of the input choose features and the block that the filter works on.

#![no_main]

use libfuzzer_sys::fuzz_target;
use snowmelt_stream::filter::{Decompress, DropRecords, Filter, Pipe, Recompress, Redup};
use snowmelt_stream::{Compression, Fletcher4, RECORD_LEN, verify};

fn run(bytes: &[u8], filter: impl Filter) {
    let repairs = filter.repairs();
    let mut out = Vec::new();
    let mut pipe = Pipe::new(bytes, &mut out, filter);
    let done = pipe.run();
    drop(pipe);
    // Blocks that a repairing filter leaves alone may still have an invalid compression framing.
    if done.is_ok() && !repairs {
        verify(&out[..]).expect("a filtered stream is a stream");
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((choice, records)) = data.split_first_chunk::<4>() else { return };
    let [features, more, object, block] = *choice;
    let mut stream = vec![0; RECORD_LEN];
    stream[8..16].copy_from_slice(&0x2_f5ba_cbac_u64.to_le_bytes());
    let features = u64::from(features) << 16 | u64::from(more & 3) << 24 | u64::from(more >> 2 & 3) | 4;
    stream[16..24].copy_from_slice(&(features << 2 | 1).to_le_bytes());
    stream[32] = 2;
    stream[36] = 8;
    stream.extend_from_slice(records);
    let mut fletcher = Fletcher4::new();
    fletcher.update(&stream);
    let mut end = [0; RECORD_LEN];
    end[0] = 5;
    for (at, word) in fletcher.state().iter().enumerate() {
        end[8 + at * 8..16 + at * 8].copy_from_slice(&word.to_le_bytes());
    }
    stream.extend_from_slice(&end);

    let named = (u64::from(object), u64::from(block) * 512);
    run(&stream, DropRecords::new([named]));
    for algorithm in
        [Compression::Lz4, Compression::Lzjb, Compression::Gzip(1), Compression::Zle, Compression::Zstd]
    {
        run(&stream, Decompress::new([(named, algorithm)]));
    }
    run(&stream, Decompress::new([(named, Compression::Off)]));
    for algorithm in [Compression::Off, Compression::Lz4, Compression::Zle] {
        run(&stream, Recompress::new(algorithm, 0).expect("no level"));
    }
    if let Ok(redup) = Redup::plan(&stream[..], &stream[..], 1000) {
        run(&stream, redup);
    }
});
