//! `receive` and `send`.

use clap::{ArgAction, Args, Subcommand};

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
    override_usage = "snowmelt receive [-vMnsFhu] [-o <property>=<value>] ... [-x <property>] ...\n           \
    <filesystem|volume|snapshot>\n       \
    snowmelt receive [-vMnsFhu] [-o <property>=<value>] ... [-x <property>] ...\n           \
    [-d | -e] <filesystem>\n       \
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
    #[arg(short = 'A', conflicts_with_all = ["force", "resumable", "drop_first", "last_only", "dry_run", "no_mount"])]
    pub abort: bool,
    /// Name the target after the sent snapshot, without its first element (the pool)
    #[arg(short = 'd', conflicts_with = "last_only")]
    pub drop_first: bool,
    /// Name the target after the last element of the sent snapshot
    #[arg(short = 'e')]
    pub last_only: bool,
    /// Skip holds that the stream carries
    #[arg(short = 'h')]
    pub skip_holds: bool,
    /// Accepted as zfs(8) has it; nothing is mounted
    #[arg(short = 'M')]
    pub force_unmount: bool,
    /// Accepted as zfs(8) has it; nothing is mounted
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
    /// Dataset or snapshot to make
    #[arg(value_name = "TARGET")]
    pub target: String,
}

/// Write a snapshot as a stream to standard output
///
/// Without -i or -I the stream holds the snapshot as a whole, else what changed since the given one. OpenZFS receives
/// the stream, whatever release since 2.0.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt send [-DLPVbcehnpsvw] [-R [-X dataset[,dataset]...]]\n           \
    [-i|-I snapshot] <snapshot>\n       \
    snowmelt send [-DnVvPLecw] [-i snapshot|bookmark] <filesystem|volume|snapshot>\n       \
    snowmelt send [-nVvPe] -t <receive_resume_token>\n       \
    snowmelt send [-PnVv] --saved <filesystem>")]
pub struct SendArgs {
    /// Send what changed since this snapshot or bookmark
    #[arg(short = 'i', value_name = "SNAPSHOT", conflicts_with = "from_all")]
    pub from: Option<String>,
    /// Send what changed since this snapshot, with all snapshots in between
    #[arg(short = 'I', value_name = "SNAPSHOT")]
    pub from_all: Option<String>,
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
    /// The snapshot
    #[arg(required_unless_present = "resume")]
    pub snapshot: Option<String>,
}
