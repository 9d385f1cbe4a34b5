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

/// Make snapshots from a stream on standard input
///
/// A full stream makes a new dataset, an incremental one adds to the dataset that has its source as the newest snapshot.
/// The whole stream is checked; if anything is wrong with it, the target is as it was before (with -s: as it was at the
/// last record that was stored safely, and the stream can be resumed).
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
    /// Roll the target back to its newest snapshot first; with a package of streams also destroy what the sender
    /// no longer has
    #[arg(short = 'F')]
    pub force: bool,
    /// If the stream breaks off, keep what came, so that it can be resumed
    #[arg(short = 's')]
    pub resumable: bool,
    /// Abort: throw away what an interrupted 'receive -s' kept
    #[arg(short = 'A', conflicts_with_all = ["force", "resumable", "drop_first", "last_only", "dry_run", "no_mount", "json"])]
    pub abort: bool,
    /// Corrective: mend what is damaged of a snapshot that is here with a stream of the same snapshot
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
    /// Skip holds that the stream carries
    #[arg(short = 'h')]
    pub skip_holds: bool,
    /// Accepted as zfs(8) has it; what is mounted stays so
    #[arg(short = 'M')]
    pub force_unmount: bool,
    /// As zfs, when it mounts by itself: do not mount what is received
    #[arg(short = 'u')]
    pub no_mount: bool,
    /// Read the stream and say what would be received, but store nothing
    #[arg(short = 'n')]
    pub dry_run: bool,
    /// Say what is received
    #[arg(short = 'v', action = ArgAction::Count)]
    pub verbose: u8,
    /// Set a property, whatever the stream says of it
    #[arg(short = 'o', value_name = "PROPERTY=VALUE", action = ArgAction::Append)]
    pub set: Vec<String>,
    /// Do not take a property from the stream
    #[arg(short = 'x', value_name = "PROPERTY", action = ArgAction::Append)]
    pub exclude: Vec<String>,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Dataset or snapshot to make
    #[arg(value_name = "TARGET")]
    pub target: String,
}

/// Mend what is damaged of a dataset with what a copy of it has
///
/// Damaged blocks of TARGET and its snapshots, as 'pool status -v' names them, are asked of SOURCE, which has some of the same snapshots: a dataset of
/// snowmelt, here or elsewhere (host:tank/home, over ssh). Only these blocks are transferred, and only what is byte for byte what was damaged
/// is stored. Run 'pool scrub' first, so that all damage is known.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt heal [-vj] [-e command] [--remote-command command] <source> <target>")]
pub struct HealArgs {
    /// Say what was mended
    #[arg(short = 'v')]
    pub verbose: bool,
    /// The command that reaches another machine, instead of ssh; its words are separated by blanks
    #[arg(short = 'e', long = "rsh", value_name = "COMMAND", default_value = "ssh")]
    pub rsh: String,
    /// The program there
    #[arg(long, value_name = "COMMAND", default_value = "snowmelt")]
    pub remote_command: String,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// The dataset that has good blocks
    pub source: String,
    /// The dataset that is damaged
    pub target: String,
}

/// Write a snapshot as a stream to standard output
///
/// Without -i or -I the stream holds the snapshot as a whole, else what changed since the given one. OpenZFS receives
/// the stream, whatever release since 2.0.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt send [-DLPVbcehnpsvwj] [-R [-X dataset[,dataset]...]]\n           \
    [-i|-I snapshot] <snapshot>\n       \
    snowmelt send [-DnVvPLecwj] [-i snapshot|bookmark] <filesystem|volume|snapshot>\n       \
    snowmelt send [-nVvPe] -t <receive_resume_token>\n       \
    snowmelt send [-PnVvj] --saved <filesystem>")]
pub struct SendArgs {
    /// Send what changed since this snapshot or bookmark
    #[arg(short = 'i', value_name = "SNAPSHOT", conflicts_with = "from_all", action = ArgAction::Append)]
    pub from: Vec<String>,
    /// Send what changed since this snapshot, with all snapshots in between
    #[arg(short = 'I', value_name = "SNAPSHOT", action = ArgAction::Append)]
    pub from_all: Vec<String>,
    /// Send the dataset with everything below it: all snapshots up to the given one, clones and properties
    #[arg(short = 'R', long = "replicate")]
    pub replicate: bool,
    /// With -R: leave out these datasets, and all below them
    #[arg(short = 'X', long = "exclude", value_name = "DATASETS", value_delimiter = ',', action = ArgAction::Append)]
    pub exclude: Vec<String>,
    /// With -R: skip datasets that have no such snapshot
    #[arg(short = 's', long = "skip-missing")]
    pub skip_missing: bool,
    /// Send properties too
    #[arg(short = 'p', long = "props")]
    pub properties: bool,
    /// Send received property values rather than local ones
    #[arg(short = 'b', long = "backup")]
    pub backup: bool,
    /// Send holds too
    #[arg(short = 'h', long = "holds")]
    pub holds: bool,
    /// Allow blocks of more than 128 KiB
    #[arg(short = 'L', long = "large-block")]
    pub large_blocks: bool,
    /// Allow small blocks to be embedded in their records
    #[arg(short = 'e', long = "embed")]
    pub embed: bool,
    /// Send blocks as compressed as they are stored
    #[arg(short = 'c', long = "compressed")]
    pub compressed: bool,
    /// Send encrypted blocks as they are, readable only with their key; means -L -e -c for others
    #[arg(short = 'w', long = "raw")]
    pub raw: bool,
    /// Accepted, with no effect
    #[arg(short = 'D', long = "dedup")]
    pub dedup: bool,
    /// Go on where the receiver with this token was interrupted
    #[arg(short = 't', long = "resume", value_name = "TOKEN",
        conflicts_with_all = ["from", "from_all", "replicate", "properties", "backup", "holds", "saved", "snapshot"])]
    pub resume: Option<String>,
    /// Send what an interrupted 'receive -s' has kept so far
    #[arg(short = 'S', long = "saved", conflicts_with_all =
        ["from", "from_all", "replicate", "properties", "backup", "holds", "large_blocks", "embed", "compressed", "raw"])]
    pub saved: bool,
    /// Send nothing; with -v or -P say what would be sent
    #[arg(short = 'n', long = "dryrun")]
    pub dry_run: bool,
    /// Say what is sent, and its size every second
    #[arg(short = 'v', long = "verbose", action = ArgAction::Count)]
    pub verbose: u8,
    /// Say it for programs: columns separated by tabs, exact numbers
    #[arg(short = 'P', long = "parsable")]
    pub parsable: bool,
    /// Show progress in the title of the process (accepted, with no effect but that of -v)
    #[arg(short = 'V', long = "proctitle")]
    pub process_title: bool,
    /// With -n: print JSON
    #[arg(short = 'j', long, requires = "dry_run")]
    pub json: bool,
    /// The snapshot; or a filesystem or volume, which is sent as it is now
    #[arg(required_unless_present = "resume")]
    pub snapshot: Option<String>,
}

/// Bring a copy up to date
///
/// SOURCE and TARGET are each one of: a dataset (tank/home), a dataset elsewhere (host:tank/home or user@host:tank/home, over
/// ssh), a dataset of ZFS (zfs:tank/home, host:zfs:tank/home), a directory, a disk image or block device, or a file or '-'
/// with a stream; one of them is a dataset. Directories, images and files can be elsewhere (host:/srv/www). Where another machine has
/// nothing but rsync: rsync://host/module/path, or host:rsync:/srv/www over ssh. A directory or image as
/// source is imported if the target is a pool of the same machine, else only hashes of it are kept (see 'snowmelt shadow').
/// What is at the target already is not sent again: the cost is what changed.
///
/// A snapshot is taken of datasets that were written to since their newest one. Nothing at the target is destroyed
/// without --force. Interrupted, the sync goes on where it was when it is run again.
///
/// The exit status is 3 when some datasets could not be brought up to date: the others were.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(
    override_usage = "snowmelt sync [-Finprvw] [--identifier name] [--no-snapshot] [--exclude pattern]... \
    [-o property=value]... [-x property]...\n           [--bwlimit rate] [--compress[=level]] [-e command] [-j] <source> <target>"
)]
pub struct SyncArgs {
    #[command(flatten)]
    pub privileges: PrivilegeArgs,
    /// With everything below
    #[arg(short = 'r', long)]
    pub recursive: bool,
    /// Destroy what is newer at the target than the newest common snapshot; overwrite and remove what others changed in a
    /// directory or image
    #[arg(short = 'F', long)]
    pub force: bool,
    /// Only say what would be done
    #[arg(short = 'n', long = "dry-run")]
    pub dry_run: bool,
    /// Say what is done
    #[arg(short = 'v', long)]
    pub verbose: bool,
    /// Print one JSON object that says what was done
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Send the newest snapshot only, without those in between
    #[arg(short = 'i', long = "newest-only")]
    pub newest_only: bool,
    /// Take no snapshot: send those that are there
    #[arg(long)]
    pub no_snapshot: bool,
    /// Keep what this sync takes, marks and holds apart from that of others, under this name
    #[arg(long, value_name = "NAME")]
    pub identifier: Option<String>,
    /// Do not hold the newest common snapshot at the target
    #[arg(long)]
    pub no_hold: bool,
    /// Leave out datasets whose name below the source matches, and all below them (*, ?, [a-z]); of a directory, files, with
    /// the syntax of .gitignore
    #[arg(long = "exclude", value_name = "PATTERN", action = ArgAction::Append)]
    pub exclude: Vec<String>,
    /// Send properties too
    #[arg(short = 'p', long = "props")]
    pub properties: bool,
    /// Send encrypted blocks as they are, and others as they are stored; encrypted datasets are always sent so
    #[arg(short = 'w', long)]
    pub raw: bool,
    /// Set a property at the target
    #[arg(short = 'o', value_name = "PROPERTY=VALUE", action = ArgAction::Append)]
    pub set: Vec<String>,
    /// Do not take a property from the source
    #[arg(short = 'x', value_name = "PROPERTY", action = ArgAction::Append)]
    pub without: Vec<String>,
    /// Properties that the target takes from the streams of another machine besides those that are harmless (mountpoint, quota, …);
    /// 'all' for every one. What -o sets is taken in any case, where the target's 'serve sync' leaves that to the client
    #[arg(long, value_name = "NAMES", value_delimiter = ',', action = ArgAction::Append)]
    pub allow_property: Vec<String>,
    /// Bytes a second at most (10M, 500K)
    #[arg(long, value_name = "RATE")]
    pub bwlimit: Option<String>,
    /// Compress what goes over a connection to another machine, with this level of zstd (1 to 19); what is stored compressed goes
    /// as it is in any case
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = "3",
        value_parser = clap::value_parser!(u8).range(1..=19))]
    pub compress: Option<u8>,
    /// Datasets that are sent at the same time
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=32))]
    pub jobs: u16,
    /// How often a lost connection is made again
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    pub retries: u32,
    /// The command that reaches another machine, instead of ssh; its words are separated by blanks
    #[arg(short = 'e', long = "rsh", value_name = "COMMAND", default_value = "ssh")]
    pub rsh: String,
    /// The program there
    #[arg(long, value_name = "COMMAND", default_value = "snowmelt")]
    pub remote_command: String,
    /// To a server of rsync: remove what the source does not have
    #[arg(long)]
    pub delete: bool,
    /// From or to a server of rsync: a rule of what is left out, as rsync has them ('- *.iso', '+ /doc/***', 'P cache/')
    #[arg(long = "filter", value_name = "RULE", action = ArgAction::Append)]
    pub filter: Vec<String>,
    /// From or to a server of rsync: compare contents, not sizes and times
    #[arg(short = 'c', long)]
    pub checksum: bool,
    /// From or to a server of rsync: keep what came of a file when the connection breaks, in its place
    #[arg(long)]
    pub partial: bool,
    /// The file with the password for a daemon of rsync; without it, the variable RSYNC_PASSWORD
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// Seconds that a server of rsync may say nothing; 0 is for ever
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<u32>,
    /// Standard input is a connection to a server, up to its setup, that speaks this version
    #[arg(long, value_name = "VERSION", hide = true)]
    pub connected: Option<u8>,
    /// Where it comes from
    pub source: String,
    /// Where it goes
    pub target: String,
}
