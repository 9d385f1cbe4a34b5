//! The verbs for stream files, `check`, `salvage`, shims, completions and man pages.

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

/// Print, verify and convert streams, and print resume tokens
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

/// Print the records of a stream, like 'zstream dump'
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt stream dump [-vd] [file]")]
pub struct StreamDumpArgs {
    /// Print every record
    #[arg(short = 'v', action = ArgAction::Count)]
    pub verbose: u8,
    /// Print every record, and its data in hexadecimal
    #[arg(short = 'd')]
    pub data: bool,
    /// Accepted for compatibility with zstream(8); checksums are always verified
    #[arg(short = 'C', hide = true)]
    pub unchecked: bool,
    /// Stream file. Default: standard input, also as -
    pub file: Option<PathBuf>,
}

/// Verify a stream without a pool
///
/// Reads the whole stream, and checks everything that can be checked without a pool. With the key of a raw stream
/// ('send -w'), encrypted records are authenticated too.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(
    override_usage = "snowmelt stream verify [-qj] [--keylocation <keylocation>]... [--from <file>]... [file]"
)]
pub struct StreamVerifyArgs {
    /// Key for a raw stream: file:///path, or 'prompt' to ask for it. Can be given more than once; the key that fits
    /// is used. The stream says whether the key is raw, hexadecimal or a passphrase
    #[arg(long, value_name = "KEYLOCATION", action = ArgAction::Append)]
    pub keylocation: Vec<String>,
    /// Read this earlier stream first. It is needed to authenticate the dnodes of an incremental stream. Can be given
    /// more than once, oldest first
    #[arg(long, value_name = "FILE", action = ArgAction::Append, requires = "keylocation")]
    pub from: Vec<PathBuf>,
    /// Print only errors
    #[arg(short = 'q', long = "quiet")]
    pub quiet: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Stream file. Default: standard input, also as -
    pub file: Option<PathBuf>,
}

/// Print the contents of a resume token
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt stream token [-j] <token>")]
pub struct StreamTokenArgs {
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Resume token
    pub token: String,
}

/// Convert a deduplicated stream to a normal one, like 'zstream redup'
///
/// 'zfs send -D' made deduplicated streams before OpenZFS 2.0. The new stream is written to standard output. The file
/// is read twice.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt stream redup [-v] <file>")]
pub struct StreamRedupArgs {
    /// Print how much data was replaced
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Stream file
    pub file: PathBuf,
}

/// Recompress the data of a stream, like 'zstream recompress'
///
/// Reads standard input and writes standard output. Encrypted blocks ('send -w') and metadata do not change.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt stream recompress [-l level] <algorithm>")]
pub struct StreamRecompressArgs {
    /// Level of zstd: 1 to 19, or 103 to 123 for fast-1 to fast-1000
    #[arg(short = 'l', value_name = "LEVEL", allow_hyphen_values = true)]
    pub level: Option<i64>,
    /// Compression, as in the property: off, lz4, zstd[-level], gzip[-level], lzjb or zle
    pub algorithm: String,
}

/// Decompress given blocks of a stream, like 'zstream decompress'
///
/// For streams with a wrong compression in the records of some blocks. Reads standard input and writes standard
/// output. A block is given by its object and its offset in bytes, and is changed in all snapshots of the stream. The
/// type is lz4 by default; off only marks the block as uncompressed. Blocks that cannot be decompressed do not
/// change.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt stream decompress [-v] [<object>,<offset>[,<type>]]...")]
pub struct StreamDecompressArgs {
    /// Print what was decompressed
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Blocks, as OBJECT,OFFSET
    pub blocks: Vec<String>,
}

/// Remove given blocks from a stream, like 'zstream drop_record'
///
/// Reads standard input and writes standard output. A block is given by its object and its offset in bytes, and is
/// removed from all snapshots of the stream. The offset can be larger than any valid offset.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt stream drop-record [-v] [<object>,<offset>]...")]
pub struct StreamDropRecordArgs {
    /// Print what was removed
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Blocks, as OBJECT,OFFSET
    pub blocks: Vec<String>,
}

/// Recover a pool whose uberblocks or newest txgs are lost
///
/// For a pool that 'pool import -F' cannot recover. Searches the whole store for earlier states of the pool, and
/// rewinds it to the newest state that passes a check. Overwrites nothing.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt salvage [-nj] <pool|path>")]
pub struct SalvageArgs {
    /// Change nothing (dry run), and print which states were found
    #[arg(short = 'n')]
    pub dry_run: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Name or path of the pool
    pub pool: String,
}

/// Check a pool for damage and inconsistencies
///
/// Reads all data and verifies its checksums, and compares the space accounting with the data. The exit status is 1
/// if there is an error.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt check [-qj] [--metadata-only] <pool> ...")]
pub struct CheckArgs {
    /// Check only metadata, and read no file data
    #[arg(long)]
    pub metadata_only: bool,
    /// Print only errors
    #[arg(short = 'q', long = "quiet")]
    pub quiet: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Names of the pools
    #[arg(required = true)]
    pub pools: Vec<String>,
}

/// Create links to this program named zfs and zpool
///
/// Creates the links zfs, zpool and mount.zfs in a directory. With this directory first in PATH, tools for ZFS use
/// snowmelt pools: PATH=DIRECTORY:$PATH syncoid tank/home backup/home.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt shims [-j] [--force] [--rsync] <directory>")]
pub struct ShimsArgs {
    /// Replace existing links to other programs. Files that are not links are never replaced
    #[arg(short = 'f', long)]
    pub force: bool,
    /// Create a link named rsync too, for servers. It cannot be used as an rsync client, so keep it out of the PATH
    /// of users
    #[arg(long)]
    pub rsync: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Directory; created if it does not exist
    pub directory: PathBuf,
}

/// Print the completion script for a shell
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct CompletionsArgs {
    /// Name of the shell
    pub shell: Shell,
}

/// Write man pages to a directory
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct ManArgs {
    /// Directory; created if it does not exist
    pub directory: PathBuf,
}
