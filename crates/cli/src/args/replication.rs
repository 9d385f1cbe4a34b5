//! `receive` and `send`.

use std::path::PathBuf;

use clap::{ArgAction, Args, Subcommand};

use super::PrivilegeArgs;

#[derive(Debug, Subcommand)]
pub enum ReplicationCommand {
    #[command(visible_alias = "recv")]
    Receive(ReceiveArgs),
    Send(SendArgs),
}

/// Receive snapshots from a stream on standard input
///
/// A full stream creates a new dataset. An incremental stream adds snapshots to a dataset whose newest snapshot is
/// the base of the stream. The whole stream is checked. If it is invalid, the target does not change. With -s, what
/// was received before the error is kept, and the stream can be resumed.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(
    override_usage = "snowmelt receive [-vMnsFhuj] [-o <property>=<value>] ... [-x <property>] ...\n           \
    <filesystem|volume|snapshot>\n       \
    snowmelt receive [-vMnsFhuj] [-o <property>=<value>] ... [-x <property>] ...\n           \
    [-d | -e] <filesystem>\n       \
    snowmelt receive -c [-vj] <filesystem|volume|snapshot>\n       \
    snowmelt receive -A <filesystem|volume>"
)]
pub struct ReceiveArgs {
    /// Roll the target back to its newest snapshot first. With a package of streams, also destroy snapshots and
    /// datasets that the sender no longer has
    #[arg(short = 'F')]
    pub force: bool,
    /// If the stream is interrupted, keep what was received, so that it can be resumed
    #[arg(short = 's')]
    pub resumable: bool,
    /// Discard the partial state of an interrupted 'receive -s'
    #[arg(short = 'A', conflicts_with_all = ["force", "resumable", "drop_first", "last_only", "dry_run", "no_mount", "json"])]
    pub abort: bool,
    /// Repair damaged blocks of an existing snapshot from a stream of the same snapshot (corrective receive)
    #[arg(
        short = 'c',
        conflicts_with_all = ["abort", "force", "resumable", "drop_first", "last_only", "dry_run", "set", "exclude"]
    )]
    pub corrective: bool,
    /// Name the target after the sent snapshot, without its first element (the pool)
    #[arg(short = 'd', conflicts_with = "last_only")]
    pub drop_first: bool,
    /// Name the target after the last element of the sent snapshot
    #[arg(short = 'e')]
    pub last_only: bool,
    /// Ignore holds in the stream
    #[arg(short = 'h')]
    pub skip_holds: bool,
    /// Accepted for compatibility with zfs(8); has no effect, because mounts stay
    #[arg(short = 'M')]
    pub force_unmount: bool,
    /// Do not mount received filesystems. Only has an effect with automatic mounting, under the name zfs
    #[arg(short = 'u')]
    pub no_mount: bool,
    /// Store nothing (dry run). With -v, print what would be received
    #[arg(short = 'n')]
    pub dry_run: bool,
    /// Print what is received
    #[arg(short = 'v', action = ArgAction::Count)]
    pub verbose: u8,
    /// Set a property, instead of the value in the stream
    #[arg(short = 'o', value_name = "PROPERTY=VALUE", action = ArgAction::Append)]
    pub set: Vec<String>,
    /// Ignore a property in the stream
    #[arg(short = 'x', value_name = "PROPERTY", action = ArgAction::Append)]
    pub exclude: Vec<String>,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Dataset or snapshot to create or update
    #[arg(value_name = "TARGET")]
    pub target: String,
}

/// Repair damaged blocks of a dataset from a copy
///
/// Requests the damaged blocks of TARGET and its snapshots from SOURCE. 'pool status -v' lists the damage. Run 'pool
/// scrub' first to find all of it. SOURCE is a snowmelt dataset that has some of the same snapshots, here or on
/// another machine (host:tank/home, over ssh). Only these blocks are transferred. A block is stored only if it is
/// identical to the original.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt heal [-vj] [-e command] [--remote-command command] <source> <target>")]
pub struct HealArgs {
    /// Print what was repaired
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Remote shell, with its arguments separated by spaces
    #[arg(short = 'e', long = "rsh", value_name = "COMMAND", default_value = "ssh")]
    pub rsh: String,
    /// Path of snowmelt on the other machine
    #[arg(long, value_name = "COMMAND", default_value = "snowmelt")]
    pub remote_command: String,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Dataset with intact blocks
    pub source: String,
    /// Damaged dataset
    pub target: String,
}

/// Write a snapshot as a stream to standard output
///
/// Without -i or -I, the stream has the whole snapshot. With them, it has the changes since the given snapshot.
/// OpenZFS 2.0 and later can receive the stream.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt send [-DLPVbcehnpsvwj] [-R [-X dataset[,dataset]...]]\n           \
    [-i|-I snapshot] <snapshot>\n       \
    snowmelt send [-DnVvPLecwj] [-i snapshot|bookmark] <filesystem|volume|snapshot>\n       \
    snowmelt send [-nVvPe] -t <receive_resume_token>\n       \
    snowmelt send [-PnVvj] --saved <filesystem>")]
pub struct SendArgs {
    /// Send the changes since this snapshot or bookmark
    #[arg(short = 'i', value_name = "SNAPSHOT", conflicts_with = "from_all", action = ArgAction::Append)]
    pub from: Vec<String>,
    /// Send the changes since this snapshot, with all snapshots in between
    #[arg(short = 'I', value_name = "SNAPSHOT", action = ArgAction::Append)]
    pub from_all: Vec<String>,
    /// Send the dataset and all descendants, with all snapshots up to the given one, clones and properties
    #[arg(short = 'R', long = "replicate")]
    pub replicate: bool,
    /// With -R: leave out these datasets and their descendants; separated by commas
    #[arg(short = 'X', long = "exclude", value_name = "DATASETS", value_delimiter = ',', action = ArgAction::Append)]
    pub exclude: Vec<String>,
    /// With -R: skip datasets that do not have the snapshot
    #[arg(short = 's', long = "skip-missing")]
    pub skip_missing: bool,
    /// Send properties too
    #[arg(short = 'p', long = "props")]
    pub properties: bool,
    /// Send received property values instead of local ones
    #[arg(short = 'b', long = "backup")]
    pub backup: bool,
    /// Send holds too
    #[arg(short = 'h', long = "holds")]
    pub holds: bool,
    /// Allow blocks larger than 128 KiB
    #[arg(short = 'L', long = "large-block")]
    pub large_blocks: bool,
    /// Allow small blocks to be embedded in the records of the stream
    #[arg(short = 'e', long = "embed")]
    pub embed: bool,
    /// Send compressed blocks as they are stored
    #[arg(short = 'c', long = "compressed")]
    pub compressed: bool,
    /// Send encrypted blocks as they are, so that the receiver needs no key. For unencrypted datasets: same as -L -e
    /// -c
    #[arg(short = 'w', long = "raw")]
    pub raw: bool,
    /// Accepted for compatibility; has no effect
    #[arg(short = 'D', long = "dedup")]
    pub dedup: bool,
    /// Resume an interrupted stream from this receive_resume_token
    #[arg(short = 't', long = "resume", value_name = "TOKEN",
        conflicts_with_all = ["from", "from_all", "replicate", "properties", "backup", "holds", "saved", "snapshot"])]
    pub resume: Option<String>,
    /// Send the partial state of an interrupted 'receive -s'
    #[arg(short = 'S', long = "saved", conflicts_with_all =
        ["from", "from_all", "replicate", "properties", "backup", "holds", "large_blocks", "embed", "compressed", "raw"])]
    pub saved: bool,
    /// Send nothing (dry run). With -v or -P, print what would be sent
    #[arg(short = 'n', long = "dryrun")]
    pub dry_run: bool,
    /// Print what is sent, and every second how much was sent
    #[arg(short = 'v', long = "verbose", action = ArgAction::Count)]
    pub verbose: u8,
    /// Print it for programs: columns separated by tabs, and exact numbers
    #[arg(short = 'P', long = "parsable")]
    pub parsable: bool,
    /// Same as -v. (ZFS shows the progress in the process title)
    #[arg(short = 'V', long = "proctitle")]
    pub process_title: bool,
    /// With -n: print JSON
    #[arg(short = 'j', long, requires = "dry_run")]
    pub json: bool,
    /// Snapshot to send, or a filesystem or volume to send in its current state
    #[arg(required_unless_present = "resume")]
    pub snapshot: Option<String>,
}

/// Bring a copy up to date
///
/// Transfers only what the target does not have yet. SOURCE and TARGET can each be a dataset (tank/home), a dataset
/// on another machine (host:tank/home or user@host:tank/home, over ssh), a ZFS dataset (zfs:tank/home,
/// host:zfs:tank/home), a directory, a disk image, a block device, a stream file, or '-' for a stream on standard
/// input or output. At least one of them is a dataset. Directories, images and files can be on another machine
/// (host:/srv/www).
///
///
/// For a machine that has only rsync, use rsync://host/module/path, or host:rsync:/srv/www over ssh. If the source is
/// a directory or image, and the target a pool on the same machine, it is imported. For other targets only its hashes
/// are kept (see 'snowmelt shadow').
///
/// Takes a snapshot of source datasets that changed since their newest snapshot. Destroys nothing at the target
/// without --force. After an interruption, the next run continues from the same place.
///
/// The exit status is 3 if some datasets could not be brought up to date. All others were.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(
    override_usage = "snowmelt sync [-Finprvw] [--identifier name] [--no-snapshot] [--exclude pattern]... \
    [-o property=value]... [-x property]...\n           [--bwlimit rate] [--compress[=level]] [-e command] [-j] <source> <target>"
)]
pub struct SyncArgs {
    #[command(flatten)]
    pub privileges: PrivilegeArgs,
    /// Sync all descendants too
    #[arg(short = 'r', long)]
    pub recursive: bool,
    /// Destroy everything at the target that is newer than the newest common snapshot. In a directory or image,
    /// overwrite and remove what others changed
    #[arg(short = 'F', long)]
    pub force: bool,
    /// Change nothing (dry run), and print what would be done
    #[arg(short = 'n', long = "dry-run")]
    pub dry_run: bool,
    /// Print what is done
    #[arg(short = 'v', long)]
    pub verbose: bool,
    /// Print one JSON object that describes what was done
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Send only the newest snapshot, without those in between
    #[arg(short = 'i', long = "newest-only")]
    pub newest_only: bool,
    /// Take no snapshot; send only existing ones
    #[arg(long)]
    pub no_snapshot: bool,
    /// Name of this sync. Its snapshots, bookmarks and holds are kept separate from those of other syncs
    #[arg(long, value_name = "NAME")]
    pub identifier: Option<String>,
    /// Do not hold the newest common snapshot at the target
    #[arg(long)]
    pub no_hold: bool,
    /// Leave out datasets whose name relative to the source matches (*, ?, [a-z]), and their descendants. For a
    /// directory: leave out files, with the syntax of .gitignore
    #[arg(long = "exclude", value_name = "PATTERN", action = ArgAction::Append)]
    pub exclude: Vec<String>,
    /// Send properties too
    #[arg(short = 'p', long = "props")]
    pub properties: bool,
    /// Send all blocks as they are stored. Encrypted datasets are always sent raw
    #[arg(short = 'w', long)]
    pub raw: bool,
    /// Set a property at the target
    #[arg(short = 'o', value_name = "PROPERTY=VALUE", action = ArgAction::Append)]
    pub set: Vec<String>,
    /// Leave out a property of the source
    #[arg(short = 'x', value_name = "PROPERTY", action = ArgAction::Append)]
    pub without: Vec<String>,
    /// Properties that the target accepts from another machine, besides harmless ones: mountpoint, quota and so on,
    /// or 'all'. Properties set with -o are always accepted, unless the target's 'serve sync' restricts them
    #[arg(long, value_name = "NAMES", value_delimiter = ',', action = ArgAction::Append)]
    pub allow_property: Vec<String>,
    /// Limit the bandwidth, in bytes per second (10M, 500K)
    #[arg(long, value_name = "RATE")]
    pub bwlimit: Option<String>,
    /// Compress the connection to another machine with zstd, at level 1 to 19; without LEVEL, at level 3. Blocks that
    /// are stored compressed are not compressed again
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = "3",
        value_parser = clap::value_parser!(u8).range(1..=19))]
    pub compress: Option<u8>,
    /// Number of datasets to send at the same time
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=32))]
    pub jobs: u16,
    /// Number of times to reconnect after a lost connection
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    pub retries: u32,
    /// Remote shell, with its arguments separated by spaces
    #[arg(short = 'e', long = "rsh", value_name = "COMMAND", default_value = "ssh")]
    pub rsh: String,
    /// Path of snowmelt on the other machine
    #[arg(long, value_name = "COMMAND", default_value = "snowmelt")]
    pub remote_command: String,
    /// To an rsync server: delete files that the source does not have
    #[arg(long)]
    pub delete: bool,
    /// From or to an rsync server: add a filter rule of rsync ('- *.iso', '+ /doc/***', 'P cache/')
    #[arg(long = "filter", value_name = "RULE", action = ArgAction::Append)]
    pub filter: Vec<String>,
    /// From or to an rsync server: compare files by checksum, not by size and time
    #[arg(short = 'c', long)]
    pub checksum: bool,
    /// From or to an rsync server: keep partially transferred files
    #[arg(long)]
    pub partial: bool,
    /// File with the password for an rsync daemon. Default: the variable RSYNC_PASSWORD
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// Timeout for an rsync server that sends nothing, in seconds. 0 means no timeout
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<u32>,
    /// Standard input is a connection to a server of this version whose setup is done
    #[arg(long, value_name = "VERSION", hide = true)]
    pub connected: Option<u8>,
    /// Where to copy from
    pub source: String,
    /// Where to copy to
    pub target: String,
}
