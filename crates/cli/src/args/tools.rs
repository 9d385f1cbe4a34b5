//! Streams by themselves, the check, and what comes with the program.

use std::path::PathBuf;

use clap::{ArgAction, Args, Subcommand};
use clap_complete::Shell;

#[derive(Debug, Subcommand)]
pub enum ToolsCommand {
    Stream(StreamArgs),
    Check(CheckArgs),
    Salvage(SalvageArgs),
    Shims(ShimsArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
}

/// Look at streams and resume tokens, and change streams on their way
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct StreamArgs {
    #[command(subcommand)]
    pub command: StreamCommand,
}

#[derive(Debug, Subcommand)]
pub enum StreamCommand {
    Dump(StreamDumpArgs),
    Verify(StreamVerifyArgs),
    Token(StreamTokenArgs),
    Redup(StreamRedupArgs),
    Recompress(StreamRecompressArgs),
    Decompress(StreamDecompressArgs),
    #[command(alias = "drop_record")]
    DropRecord(StreamDropRecordArgs),
}

/// Print the records of a stream, as 'zstream dump' does
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt stream dump [-vd] [file]")]
pub struct StreamDumpArgs {
    /// Print every record
    #[arg(short = 'v', action = ArgAction::Count)]
    pub verbose: u8,
    /// Print every record with its data in hexadecimal
    #[arg(short = 'd')]
    pub data: bool,
    /// Accepted as zstream(8) has it; checksums are always checked
    #[arg(short = 'C', hide = true)]
    pub unchecked: bool,
    /// The stream; standard input if left out or -
    pub file: Option<PathBuf>,
}

/// Read a stream and check everything that can be checked without a pool
///
/// With the key of a raw stream (made by 'send -w'), the content of encrypted records is authenticated as well.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(
    override_usage = "snowmelt stream verify [-qj] [--keylocation <keylocation>]... [--from <file>]... [file]"
)]
pub struct StreamVerifyArgs {
    /// Authenticate what is encrypted with the key at file:///path, or the one asked for by prompt; if given more than once,
    /// whichever key fits is used. Whether it is raw, hexadecimal or a passphrase is told by the stream
    #[arg(long, value_name = "KEYLOCATION", action = ArgAction::Append)]
    pub keylocation: Vec<String>,
    /// Read this stream before: an incremental stream's dnodes can be authenticated only if what it starts from is known.
    /// May be given more than once, the oldest first
    #[arg(long, value_name = "FILE", action = ArgAction::Append, requires = "keylocation")]
    pub from: Vec<PathBuf>,
    /// Say nothing unless something is wrong
    #[arg(short = 'q', long = "quiet")]
    pub quiet: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// The stream; standard input if left out or -
    pub file: Option<PathBuf>,
}

/// Print what a resume token says
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt stream token [-j] <token>")]
pub struct StreamTokenArgs {
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// The token
    pub token: String,
}

/// Write the data in full of a deduplicated stream (made by 'zfs send -D' before OpenZFS 2.0), as 'zstream redup' does
///
/// The new stream goes to standard output. The file is read twice.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt stream redup [-v] <file>")]
pub struct StreamRedupArgs {
    /// Say how much was replaced
    #[arg(short = 'v')]
    pub verbose: bool,
    /// The stream
    pub file: PathBuf,
}

/// Compress the data of a stream anew, as 'zstream recompress' does
///
/// From standard input to standard output. Encrypted streams (made by 'send -w') and metadata stay as they are.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt stream recompress [-l level] <algorithm>")]
pub struct StreamRecompressArgs {
    /// zstd's level: 1 to 19, or 103 to 123 for fast-1 to fast-1000
    #[arg(short = 'l', value_name = "LEVEL", allow_hyphen_values = true)]
    pub level: Option<i64>,
    /// A value of the property compression: off, lz4, zstd[-level], gzip[-level], lzjb, zle
    pub algorithm: String,
}

/// Decompress blocks whose records are wrong about their compression, as 'zstream decompress' does
///
/// From standard input to standard output. A block is named by its object and its offset in bytes, in all snapshots of the
/// stream; the type is lz4 if left out, and off only marks the block as not compressed. What cannot be decompressed stays as
/// it is.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt stream decompress [-v] [<object>,<offset>[,<type>]]...")]
pub struct StreamDecompressArgs {
    /// Say what was decompressed
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Blocks
    pub blocks: Vec<String>,
}

/// Leave out blocks of a stream, as 'zstream drop_record' does
///
/// From standard input to standard output. A block is named by its object and its offset in bytes, in all snapshots of the
/// stream; its offset may be one that no object can have.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt stream drop-record [-v] [<object>,<offset>]...")]
pub struct StreamDropRecordArgs {
    /// Say what was left out
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Blocks
    pub blocks: Vec<String>,
}

/// Find a pool again whose uberblocks or newest txgs are lost
///
/// Searches all that is stored for the states the pool once had, and takes it back to the newest that passes a check. Nothing
/// is overwritten. For a pool that 'pool import -F' cannot bring back.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt salvage [-nj] <pool|path>")]
pub struct SalvageArgs {
    /// Tell what there is, and change nothing
    #[arg(short = 'n')]
    pub dry_run: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Name or path of the pool
    pub pool: String,
}

/// Check every invariant of a pool
///
/// Reads everything that is stored and compares it with its checksums, and the accounts with what is there. The exit status is
/// 1 if anything is wrong.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt check [-qj] [--metadata-only] <pool> ...")]
pub struct CheckArgs {
    /// Do not read file data
    #[arg(long)]
    pub metadata_only: bool,
    /// Say nothing unless something is wrong
    #[arg(short = 'q', long = "quiet")]
    pub quiet: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// The pools
    #[arg(required = true)]
    pub pools: Vec<String>,
}

/// Install this program under the names zfs and zpool
///
/// Links to this program, called zfs, zpool and mount.zfs, are made in a directory. With that first in PATH, tools made for ZFS work on
/// pools of snowmelt: PATH=DIRECTORY:$PATH syncoid tank/home backup/home.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt shims [-j] [--force] [--rsync] <directory>")]
pub struct ShimsArgs {
    /// Replace links that lead to something else; files that are no links are never replaced
    #[arg(short = 'f', long)]
    pub force: bool,
    /// Also make a link rsync, for servers: it serves and receives, and is no client, so keep it out of the PATH of users
    #[arg(long)]
    pub rsync: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// The directory; made if need be
    pub directory: PathBuf,
}

/// Print completions for a shell
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: Shell,
}

/// Write man pages to a directory
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct ManArgs {
    /// The directory; made if need be
    pub directory: PathBuf,
}
