//! Writes streams of any size to standard output, in the format of `zfs send`.
//!
//! The same arguments give the same bytes. Volumes need no other input. A filesystem is built on the system objects of
//! a real one (`--template`), because the tested programs refuse incomplete filesystems.

mod data;
mod files;
mod out;
mod volume;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

use crate::data::Kind;

#[derive(Debug, Parser)]
#[command(about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// A volume's first snapshot
    Volume(VolumeArgs),
    /// The next snapshot of the same volume, in which some blocks are new
    VolumeChanges {
        #[command(flatten)]
        volume: VolumeArgs,
        /// How many blocks
        #[arg(long)]
        changes: u64,
        /// They are spread over so many bytes at the start; 0 for all of it
        #[arg(long, value_parser = size, default_value = "0")]
        within: u64,
        /// Guid of the snapshot before
        #[arg(long)]
        from: u64,
    },
    /// A filesystem of many files in directories of 1,000
    Files(FilesArgs),
    /// The next snapshot of the same filesystem, in which some files are written anew
    FilesChanges {
        #[command(flatten)]
        files: FilesArgs,
        /// How many files
        #[arg(long)]
        changes: u64,
        /// Guid of the snapshot before
        #[arg(long)]
        from: u64,
    },
    /// An incremental in which nothing has changed
    Empty {
        #[command(flatten)]
        snapshot: SnapshotArgs,
        /// Guid of the snapshot before
        #[arg(long)]
        from: u64,
        /// Of a volume, not a filesystem
        #[arg(long)]
        volume: bool,
    },
}

/// Which snapshot the stream is of.
#[derive(Debug, Clone, Args)]
pub struct SnapshotArgs {
    /// Its name
    #[arg(long, default_value = "bench/data@a")]
    name: String,
    /// Its guid
    #[arg(long, default_value_t = 1000)]
    guid: u64,
}

/// The contents of a volume.
#[derive(Debug, Clone, Args)]
pub struct VolumeArgs {
    #[command(flatten)]
    snapshot: SnapshotArgs,
    /// Bytes, with K, M, G or T
    #[arg(long, value_parser = size)]
    size: u64,
    /// Bytes of a block
    #[arg(long, value_parser = size, default_value = "128K")]
    block: u64,
    /// Only every Nth block is written, the rest are holes
    #[arg(long, default_value_t = 1)]
    every: u64,
    /// What is in the blocks
    #[arg(long, value_enum, default_value_t = Kind::Random)]
    data: Kind,
    /// Blocks are lz4-compressed, as with `zfs send -c`
    #[arg(long)]
    compressed: bool,
}

/// The contents of a filesystem.
#[derive(Debug, Clone, Args)]
pub struct FilesArgs {
    #[command(flatten)]
    snapshot: SnapshotArgs,
    /// A stream of a real filesystem that has at least one file
    #[arg(long)]
    template: PathBuf,
    /// How many files
    #[arg(long)]
    count: u64,
    /// Bytes of each, at most one record
    #[arg(long, value_parser = size, default_value = "1K")]
    size: u64,
    /// What is in them
    #[arg(long, value_enum, default_value_t = Kind::Text)]
    data: Kind,
}

/// Parses a size such as `20G`. Returns bytes.
fn size(text: &str) -> Result<u64, String> {
    let (number, shift) = match text.find(|c: char| c.is_ascii_alphabetic()) {
        None => (text, 0),
        Some(at) => {
            let shift = match &text[at..] {
                "K" => 10,
                "M" => 20,
                "G" => 30,
                "T" => 40,
                other => return Err(format!("no such unit: {other}")),
            };
            (&text[..at], shift)
        }
    };
    let number: u64 = number.parse().map_err(|e| format!("{text}: {e}"))?;
    number.checked_shl(shift).filter(|n| n >> shift == number).ok_or_else(|| format!("{text} is too large"))
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Volume(volume) => volume::full(&volume),
        Command::VolumeChanges { volume, changes, within, from } => {
            volume::changes(&volume, changes, within, from)
        }
        Command::Files(files) => files::full(&files),
        Command::FilesChanges { files, changes, from } => files::changes(&files, changes, from),
        Command::Empty { snapshot, from, volume } => out::empty(&snapshot, from, volume),
    }
}
