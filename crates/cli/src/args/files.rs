//! The verbs that read the files of snapshots.

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

/// Import a directory or disk image into a dataset
///
/// A directory is imported into a filesystem, and a disk image or block device into a volume. A repeated import reads
/// only files that changed, and writes only blocks that changed. At the end a snapshot is taken. If the import fails,
/// the dataset does not change.
///
/// The exit status is 3 if some files could not be read. The snapshot has all others.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(
    override_usage = "snowmelt import [-Fnpvxj] [-b blocksize] [-o property=value]... [--exclude pattern]... \
    <source> <filesystem|volume>[@snapshot]"
)]
pub struct ImportArgs {
    /// Discard changes to the dataset since its newest snapshot. Also import into a received dataset, which then
    /// cannot receive more streams of its source
    #[arg(short = 'F')]
    pub force: bool,
    /// Change nothing (dry run), and print what would be done
    #[arg(short = 'n', long = "dry-run")]
    pub dry_run: bool,
    /// Create missing parents too
    #[arg(short = 'p')]
    pub parents: bool,
    /// Print the name of each file
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Stay on one filesystem. Other filesystems mounted in the source become empty directories
    #[arg(short = 'x', long = "one-file-system")]
    pub one_filesystem: bool,
    /// Block size of a new volume (volblocksize)
    #[arg(short = 'b', value_name = "SIZE")]
    pub block_size: Option<String>,
    /// Set a property of a new dataset
    #[arg(short = 'o', value_name = "PROPERTY=VALUE", action = ArgAction::Append)]
    pub properties: Vec<String>,
    /// Leave out files that match, with the syntax of .gitignore. The last pattern that matches decides
    #[arg(long = "exclude", value_name = "PATTERN", action = ArgAction::Append)]
    pub exclude: Vec<String>,
    /// Leave out files that match a pattern in FILE
    #[arg(long = "exclude-from", value_name = "FILE", action = ArgAction::Append)]
    pub exclude_from: Vec<PathBuf>,
    /// Compare files only by size and modification time, and ignore their ctime
    #[arg(long)]
    pub ignore_ctime: bool,
    /// Print one JSON object that describes what was done
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Directory, disk image or block device
    pub source: PathBuf,
    /// Dataset to import into. Without a snapshot name, the snapshot is named after the date and time
    pub target: String,
}

/// List the files that changed between two snapshots
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt diff [-FHthj] <snapshot> [snapshot|filesystem]")]
pub struct DiffArgs {
    /// Print the type of each file
    #[arg(short = 'F')]
    pub classify: bool,
    /// Print a tab between columns (always on)
    #[arg(short = 'H')]
    pub scripted: bool,
    /// Print the time of each change
    #[arg(short = 't')]
    pub times: bool,
    /// Print names without escape sequences
    #[arg(short = 'h')]
    pub unescaped: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Older snapshot
    pub from: String,
    /// Newer snapshot; its dataset can be left out (@snap). Default: the current state of the filesystem
    pub to: Option<String>,
}

/// List the files of a snapshot
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt ls [-aldRnhj] <snapshot>[:path] ...")]
pub struct LsArgs {
    /// List names that begin with a dot too
    #[arg(short = 'a')]
    pub all: bool,
    /// Print mode, links, owner, group, size and time
    #[arg(short = 'l')]
    pub long: bool,
    /// List directories themselves, not their contents
    #[arg(short = 'd')]
    pub directory: bool,
    /// List directories recursively
    #[arg(short = 'R')]
    pub recursive: bool,
    /// Same as -l (owners and groups are always numbers)
    #[arg(short = 'n')]
    pub numeric: bool,
    /// With -l: print rounded sizes such as 1.2M
    #[arg(short = 'h')]
    pub human: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Snapshot, with a colon and a path in it
    #[arg(required = true, value_name = "SNAPSHOT[:PATH]")]
    pub paths: Vec<OsString>,
}

/// Print files of a snapshot to standard output
///
/// A snapshot of a volume is printed as a disk image.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt cat <snapshot>:<path> ...\n       snowmelt cat <volume@snapshot>")]
pub struct CatArgs {
    /// Snapshot, with a colon and a path in it
    #[arg(required = true, value_name = "SNAPSHOT:PATH")]
    pub paths: Vec<OsString>,
}

/// Find files of a snapshot by name, type or size
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt find [-0j] [-name PATTERN] [-type TYPE] <snapshot>[:path] ...")]
pub struct FindArgs {
    /// Find only names that match this pattern (*, ? and [...])
    #[arg(long, value_name = "PATTERN")]
    pub name: Option<String>,
    /// Like --name, ignoring case
    #[arg(long, value_name = "PATTERN")]
    pub iname: Option<String>,
    /// Find only this type: f (file), d (directory), l (symbolic link), b or c (device), p (pipe) or s (socket)
    #[arg(long = "type", value_name = "TYPE")]
    pub kind: Option<char>,
    /// Descend at most DEPTH levels
    #[arg(long, value_name = "DEPTH")]
    pub maxdepth: Option<usize>,
    /// End each path with a zero byte instead of a newline
    #[arg(short = '0', long = "print0")]
    pub zero: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Snapshot, with a colon and a path in it
    #[arg(required = true, value_name = "SNAPSHOT[:PATH]")]
    pub paths: Vec<OsString>,
}

/// Copy files out of a snapshot
///
/// Restores a whole snapshot, a directory or a single file to TARGET, with modes, times, extended attributes, ACLs,
/// hard links and holes. Owners are restored only by root. A snapshot of a volume is written to a file or block
/// device. The exit status is 3 if some files could not be restored.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt restore [-fqvj] [--owners|--no-owners] <snapshot>[:path] <target>")]
pub struct RestoreArgs {
    /// Overwrite existing files
    #[arg(short = 'f', long = "force")]
    pub force: bool,
    /// Print no progress
    #[arg(short = 'q', long = "quiet")]
    pub quiet: bool,
    /// Print the name of each file
    #[arg(short = 'v', long = "verbose")]
    pub verbose: bool,
    /// Restore owners and groups, also if the user is not root
    #[arg(long, overrides_with = "no_owners")]
    pub owners: bool,
    /// Restore no owners and groups: all files belong to the current user
    #[arg(long, action = ArgAction::SetTrue)]
    pub no_owners: bool,
    #[command(flatten)]
    pub privileges: PrivilegeArgs,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Snapshot, with a colon and a path in it
    #[arg(value_name = "SNAPSHOT[:PATH]")]
    pub source: OsString,
    /// Directory, file or block device to restore to
    #[arg(value_name = "TARGET")]
    pub target: PathBuf,
}

// No doc comment here: it would become the help of the command.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct PrivilegeArgs {
    /// Keep setuid and setgid bits and file capabilities. Use only for trusted data
    #[arg(long)]
    pub setuid: bool,
    /// Create device nodes. Use only for trusted data
    #[arg(long)]
    pub devices: bool,
}

impl PrivilegeArgs {
    /// The same as [`Privileges`].
    pub fn of(self) -> Privileges {
        Privileges { setuid: self.setuid, devices: self.devices }
    }
}

/// Print a line of JSON for each path in a snapshot
///
/// Two snapshots with equal manifests have the same content, all attributes included.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt manifest <snapshot>")]
pub struct ManifestArgs {
    /// Name of the snapshot
    pub snapshot: String,
}
