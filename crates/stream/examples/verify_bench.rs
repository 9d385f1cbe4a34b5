//! How fast a stream file is verified: `cargo run --release -p snowmelt-stream --example verify_bench -- FILE [TIMES]`.
//!
//! Prints the throughput of verifying the file from the page cache, of verifying it from memory, of reading it without
//! verifying, and of fletcher-4 alone over a buffer that fits into the L2 cache.

#![allow(clippy::print_stdout)]

use std::fs::File;
use std::io::Read;
use std::time::Instant;

use snowmelt_stream::{Fletcher4, verify};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: verify_bench FILE [TIMES]")?;
    let times: u32 = args.next().map_or(Ok(5), |n| n.parse())?;
    let bytes = std::fs::read(&path)?;
    let gb = |len: usize, seconds: f64| len as f64 / seconds / 1e9;

    for _ in 0..times {
        let start = Instant::now();
        let summary = verify(File::open(&path)?)?;
        let from_file = gb(bytes.len(), start.elapsed().as_secs_f64());

        let start = Instant::now();
        verify(bytes.as_slice())?;
        let from_memory = gb(bytes.len(), start.elapsed().as_secs_f64());

        let start = Instant::now();
        let mut file = File::open(&path)?;
        let mut buffer = vec![0; 256 << 10];
        while file.read(&mut buffer)? > 0 {}
        let read = gb(bytes.len(), start.elapsed().as_secs_f64());

        let hot = &bytes[..bytes.len().min(256 << 10) & !3];
        let rounds = (1_usize << 30) / hot.len().max(1);
        let start = Instant::now();
        let mut fletcher = Fletcher4::new();
        for _ in 0..rounds {
            fletcher.update(hot);
        }
        let alone = gb(hot.len() * rounds, start.elapsed().as_secs_f64());
        println!(
            "{} records: file {from_file:.2} GB/s, memory {from_memory:.2} GB/s, read only {read:.2} GB/s, \
             fletcher-4 {alone:.2} GB/s ({:x})",
            summary.records(),
            fletcher.state()[3],
        );
    }
    Ok(())
}
