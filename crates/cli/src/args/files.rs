//! The verbs that look into snapshots and take files out of them.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Args, Subcommand};
use snowmelt_fs::restore::Privileges;

#[derive(Debug, Subcommand)]
pub enum FilesCommand {
    Import(ImportArgs),
    Diff(DiffArgs),
    Ls(LsArgs),
    Cat(CatArgs),
    Find(FindArgs),
    Restore(RestoreArgs),
    Manifest(ManifestArgs),
}

/// Take a directory or a disk image into a dataset, as a snapshot
///
/// A directory goes into a filesystem, a disk image or block device into a volume. What was imported before is compared
/// with the source: files that did not change are not read, and blocks that did not change are not written again. In the
/// end everything becomes a snapshot, or nothing does.
///
/// The exit status is 3 when some files could not be read: the snapshot then has all others.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(
    override_usage = "snowmelt import [-Fnpvxj] [-b blocksize] [-o property=value]... [--exclude pattern]... \
    <source> <filesystem|volume>[@snapshot]"
)]
pub struct ImportArgs {
    /// Give up what was written to the dataset since its newest snapshot; also into a dataset that was received, which takes
    /// no more streams of its source then
    #[arg(short = 'F')]
    pub force: bool,
    /// Only say what would be done
    #[arg(short = 'n', long = "dry-run")]
    pub dry_run: bool,
    /// Also create missing parents
    #[arg(short = 'p')]
    pub parents: bool,
    /// Say what is done, file by file
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Stay on the source's filesystem: other filesystems mounted in it become empty directories
    #[arg(short = 'x', long = "one-file-system")]
    pub one_filesystem: bool,
    /// Block size of a volume that is made
    #[arg(short = 'b', value_name = "SIZE")]
    pub block_size: Option<String>,
    /// Set a property of a dataset that is made
    #[arg(short = 'o', value_name = "PROPERTY=VALUE", action = ArgAction::Append)]
    pub properties: Vec<String>,
    /// Leave out what matches, with the syntax of .gitignore; the last pattern that matches decides
    #[arg(long = "exclude", value_name = "PATTERN", action = ArgAction::Append)]
    pub exclude: Vec<String>,
    /// Leave out what the patterns in FILE say
    #[arg(long = "exclude-from", value_name = "FILE", action = ArgAction::Append)]
    pub exclude_from: Vec<PathBuf>,
    /// Take files to be unchanged whose size and modification time are, whatever their ctime says
    #[arg(long)]
    pub ignore_ctime: bool,
    /// Print one JSON object that says what was done
    #[arg(short = 'j', long)]
    pub json: bool,
    /// A directory, disk image or block device
    pub source: PathBuf,
    /// Where it goes; without a snapshot name, one is made of the date and time
    pub target: String,
}

/// List what changed between two snapshots
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt diff [-FHthj] <snapshot> [snapshot|filesystem]")]
pub struct DiffArgs {
    /// Show the type of each file
    #[arg(short = 'F')]
    pub classify: bool,
    /// One tab between columns (always done)
    #[arg(short = 'H')]
    pub scripted: bool,
    /// Show when each file changed
    #[arg(short = 't')]
    pub times: bool,
    /// Print names as they are, without escapes
    #[arg(short = 'h')]
    pub unescaped: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// The older snapshot
    pub from: String,
    /// The newer snapshot, whose dataset may be left out (@snap); the filesystem as it is now if left out
    pub to: Option<String>,
}

/// List files of a snapshot
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt ls [-aldRnhj] <snapshot>[:path] ...")]
pub struct LsArgs {
    /// Also names that begin with a dot
    #[arg(short = 'a')]
    pub all: bool,
    /// Mode, links, owner, group, size and time
    #[arg(short = 'l')]
    pub long: bool,
    /// Directories themselves, not what is in them
    #[arg(short = 'd')]
    pub directory: bool,
    /// Everything below, too
    #[arg(short = 'R')]
    pub recursive: bool,
    /// As -l (owners and groups are always numbers)
    #[arg(short = 'n')]
    pub numeric: bool,
    /// With -l: sizes as people read them (1.2M)
    #[arg(short = 'h')]
    pub human: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Snapshot, and a path in it after a colon
    #[arg(required = true, value_name = "SNAPSHOT[:PATH]")]
    pub paths: Vec<OsString>,
}

/// Write files of a snapshot to standard output
///
/// A snapshot of a volume is written as the image it is.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt cat <snapshot>:<path> ...\n       snowmelt cat <volume@snapshot>")]
pub struct CatArgs {
    /// Snapshot, and a path in it after a colon
    #[arg(required = true, value_name = "SNAPSHOT:PATH")]
    pub paths: Vec<OsString>,
}

/// Find files of a snapshot by name, type or size
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt find [-0j] [-name PATTERN] [-type TYPE] <snapshot>[:path] ...")]
pub struct FindArgs {
    /// Only names that match this pattern (*, ? and [...])
    #[arg(long, value_name = "PATTERN")]
    pub name: Option<String>,
    /// As --name, without regard to case
    #[arg(long, value_name = "PATTERN")]
    pub iname: Option<String>,
    /// Only this type: f, d, l, b, c, p or s
    #[arg(long = "type", value_name = "TYPE")]
    pub kind: Option<char>,
    /// Only so many levels below
    #[arg(long, value_name = "DEPTH")]
    pub maxdepth: Option<usize>,
    /// End each path with a zero byte instead of a newline
    #[arg(short = '0', long = "print0")]
    pub zero: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Snapshot, and a path in it after a colon
    #[arg(required = true, value_name = "SNAPSHOT[:PATH]")]
    pub paths: Vec<OsString>,
}

/// Copy files out of a snapshot
///
/// Restores a whole snapshot, a directory or a single file to TARGET, with modes, times, extended attributes, ACLs, hard
/// links and holes; owners are restored if root does it. A snapshot of a volume is written to a file or block device.
/// The exit status is 3 if some files could not be restored.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt restore [-fqvj] [--owners|--no-owners] <snapshot>[:path] <target>")]
pub struct RestoreArgs {
    /// Overwrite files that exist
    #[arg(short = 'f', long = "force")]
    pub force: bool,
    /// Say nothing of progress
    #[arg(short = 'q', long = "quiet")]
    pub quiet: bool,
    /// Name each file
    #[arg(short = 'v', long = "verbose")]
    pub verbose: bool,
    /// Restore owners and groups, though not root
    #[arg(long, overrides_with = "no_owners")]
    pub owners: bool,
    /// Leave everything to the user who restores
    #[arg(long, action = ArgAction::SetTrue)]
    pub no_owners: bool,
    #[command(flatten)]
    pub privileges: PrivilegeArgs,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Snapshot, and a path in it after a colon
    #[arg(value_name = "SNAPSHOT[:PATH]")]
    pub source: OsString,
    /// Directory, file or block device
    #[arg(value_name = "TARGET")]
    pub target: PathBuf,
}

// No comment for documentation: it would become the help of the command.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct PrivilegeArgs {
    /// Keep setuid and setgid bits, and file capabilities: for data that you trust
    #[arg(long)]
    pub setuid: bool,
    /// Make device nodes: for data that you trust
    #[arg(long)]
    pub devices: bool,
}

impl PrivilegeArgs {
    /// As the restore takes them.
    pub fn of(self) -> Privileges {
        Privileges { setuid: self.setuid, devices: self.devices }
    }
}

/// Describe everything in a snapshot, a line of JSON for each path
///
/// Two snapshots with equal manifests have the same content, to the last attribute.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt manifest <snapshot>")]
pub struct ManifestArgs {
    /// The snapshot
    pub snapshot: String,
}
