//! The verbs of zfs(8) that look after datasets, snapshots and their properties.

use clap::{ArgAction, Args, Subcommand};

#[derive(Debug, Subcommand)]
pub enum DatasetCommand {
    List(ListArgs),
    Get(GetArgs),
    Set(SetArgs),
    Inherit(InheritArgs),
    Create(CreateArgs),
    Destroy(DestroyArgs),
    Rename(RenameArgs),
    #[command(visible_alias = "snap")]
    Snapshot(SnapshotArgs),
    Rollback(RollbackArgs),
    Clone(CloneArgs),
    Promote(PromoteArgs),
    Bookmark(BookmarkArgs),
    Hold(HoldArgs),
    Holds(HoldsArgs),
    Release(ReleaseArgs),
}

/// List datasets, snapshots and bookmarks
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(
    override_usage = "snowmelt list [-Hpj] [-r|-d max] [-o property[,...]] [-s property]...\n           \
    [-S property]... [-t type[,...]] [filesystem|volume|snapshot] ..."
)]
pub struct ListArgs {
    /// No header, one tab between columns
    #[arg(short = 'H')]
    pub scripted: bool,
    /// Exact numbers
    #[arg(short = 'p')]
    pub parsable: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Numbers in JSON as numbers
    #[arg(long, requires = "json")]
    pub json_int: bool,
    /// Also list what is below the given datasets
    #[arg(short = 'r')]
    pub recursive: bool,
    /// As -r, but only so many levels below
    #[arg(short = 'd', value_name = "DEPTH")]
    pub depth: Option<String>,
    /// Columns, separated by commas: properties, or 'space'
    #[arg(short = 'o', value_name = "PROPERTIES")]
    pub columns: Option<String>,
    /// Sort by this property; may be given more than once
    #[arg(short = 's', value_name = "PROPERTY", action = ArgAction::Append)]
    pub sort: Vec<String>,
    /// As -s, the greatest first
    #[arg(short = 'S', value_name = "PROPERTY", action = ArgAction::Append)]
    pub sort_descending: Vec<String>,
    /// Types, separated by commas: filesystem, volume, snapshot, bookmark, all
    #[arg(short = 't', value_name = "TYPES")]
    pub types: Option<String>,
    /// Only these
    #[arg(value_name = "DATASET")]
    pub datasets: Vec<String>,
}

/// Show properties
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(
    override_usage = "snowmelt get [-rHpj] [-d max] [-o \"all\" | field[,...]] [-t type[,...]]\n           \
    [-s source[,...]] <\"all\" | property[,...]> [filesystem|volume|snapshot|bookmark] ..."
)]
pub struct GetArgs {
    /// No header, one tab between columns
    #[arg(short = 'H')]
    pub scripted: bool,
    /// Exact numbers
    #[arg(short = 'p')]
    pub parsable: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Numbers in JSON as numbers
    #[arg(long, requires = "json")]
    pub json_int: bool,
    /// Also of what is below the given datasets
    #[arg(short = 'r')]
    pub recursive: bool,
    /// As -r, but only so many levels below
    #[arg(short = 'd', value_name = "DEPTH")]
    pub depth: Option<String>,
    /// Columns, separated by commas: name, property, value, received, source, all
    #[arg(short = 'o', value_name = "FIELDS")]
    pub columns: Option<String>,
    /// Only values from these sources: local, default, inherited, received, temporary, none
    #[arg(short = 's', value_name = "SOURCES")]
    pub sources: Option<String>,
    /// Types, separated by commas: filesystem, volume, snapshot, bookmark, all
    #[arg(short = 't', value_name = "TYPES")]
    pub types: Option<String>,
    /// Properties, separated by commas, or 'all'
    #[arg(value_name = "PROPERTY")]
    pub properties: String,
    /// Only of these
    #[arg(value_name = "DATASET")]
    pub datasets: Vec<String>,
}

/// Set properties
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt set [-u] <property=value> ... <filesystem|volume|snapshot> ...")]
pub struct SetArgs {
    /// As zfs, when it mounts by itself: leave mounted what is, and mount nothing
    #[arg(short = 'u')]
    pub no_mount: bool,
    /// First what to set, then where
    #[arg(required = true, num_args = 1.., value_name = "PROPERTY=VALUE|DATASET")]
    pub words: Vec<String>,
}

/// Clear a property, so that it is inherited again
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt inherit [-rS] <property> <filesystem|volume|snapshot> ...")]
pub struct InheritArgs {
    /// Also in everything below
    #[arg(short = 'r')]
    pub recursive: bool,
    /// Go back to the received value, if there is one
    #[arg(short = 'S')]
    pub received: bool,
    /// The property
    pub property: String,
    /// Where
    #[arg(required = true, value_name = "DATASET")]
    pub datasets: Vec<String>,
}

/// Create a filesystem or volume
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt create [-Pnpuvj] [-o property=value] ... <filesystem>\n       \
    snowmelt create [-Pnpsvj] [-b blocksize] [-o property=value] ... -V <size> <volume>")]
pub struct CreateArgs {
    /// Also create missing parents; no error if the dataset exists
    #[arg(short = 'p', action = ArgAction::Count)]
    pub parents: u8,
    /// Set a property
    #[arg(short = 'o', value_name = "PROPERTY=VALUE", action = ArgAction::Append)]
    pub properties: Vec<String>,
    /// Create a volume of this size
    #[arg(short = 'V', value_name = "SIZE")]
    pub volume: Option<String>,
    /// Block size of the volume
    #[arg(short = 'b', value_name = "SIZE", requires = "volume")]
    pub block_size: Option<String>,
    /// Do not reserve the volume's space
    #[arg(short = 's', requires = "volume")]
    pub sparse: bool,
    /// As zfs, when it mounts by itself: do not mount it
    #[arg(short = 'u')]
    pub no_mount: bool,
    /// Only check and, with -v, say what would be done
    #[arg(short = 'n')]
    pub dry_run: bool,
    /// Say what is done
    #[arg(short = 'v')]
    pub verbose: bool,
    /// As -v, for programs
    #[arg(short = 'P')]
    pub parsable: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Name of the dataset
    pub dataset: String,
}

/// Destroy a dataset, snapshots or a bookmark
///
/// Snapshots may be listed (fs@a,b), or given as a range of which either end may be left out (fs@a%c).
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt destroy [-fnpRrvj] <filesystem|volume>\n       \
    snowmelt destroy [-dnpRrvj] <filesystem|volume>@<snap>[%<snap>][,...]\n       \
    snowmelt destroy <filesystem|volume>#<bookmark>")]
pub struct DestroyArgs {
    /// Also everything below; of a snapshot, the snapshots of that name below
    #[arg(short = 'r')]
    pub recursive: bool,
    /// As -r, and clones too
    #[arg(short = 'R')]
    pub with_clones: bool,
    /// Destroy a snapshot that is held or cloned as soon as it no longer is
    #[arg(short = 'd')]
    pub defer: bool,
    /// As zfs, when it mounts by itself: unmount although it is in use
    #[arg(short = 'f')]
    pub force: bool,
    /// Only say what would be destroyed (with -v or -p)
    #[arg(short = 'n')]
    pub dry_run: bool,
    /// Say what is destroyed
    #[arg(short = 'v')]
    pub verbose: bool,
    /// As -v, for programs
    #[arg(short = 'p')]
    pub parsable: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// What to destroy
    #[arg(value_name = "DATASET")]
    pub target: String,
}

/// Rename a dataset or snapshot
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(
    override_usage = "snowmelt rename [-f] <filesystem|volume|snapshot> <filesystem|volume|snapshot>\n       \
    snowmelt rename -p [-f] <filesystem|volume> <filesystem|volume>\n       \
    snowmelt rename -u [-f] <filesystem> <filesystem>\n       \
    snowmelt rename -r <snapshot> <snapshot>"
)]
pub struct RenameArgs {
    /// Create missing parents
    #[arg(short = 'p', action = ArgAction::Count, conflicts_with_all = ["recursive", "no_mount"])]
    pub parents: u8,
    /// The snapshots of that name in everything below, too
    #[arg(short = 'r')]
    pub recursive: bool,
    /// As zfs, when it mounts by itself: leave mounted what is
    #[arg(short = 'u')]
    pub no_mount: bool,
    /// As zfs, when it mounts by itself: unmount although it is in use
    #[arg(short = 'f')]
    pub force: bool,
    /// The name now
    pub from: String,
    /// The name from now on
    pub to: String,
}

/// Take snapshots, all at the same moment
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt snapshot [-rj] [-o property=value] ... <filesystem|volume>@<snap> ...")]
pub struct SnapshotArgs {
    /// Also of everything below
    #[arg(short = 'r')]
    pub recursive: bool,
    /// Set a user property
    #[arg(short = 'o', value_name = "PROPERTY=VALUE", action = ArgAction::Append)]
    pub properties: Vec<String>,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// The snapshots
    #[arg(required = true, value_name = "SNAPSHOT")]
    pub snapshots: Vec<String>,
}

/// Take a dataset back to a snapshot
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt rollback [-rRf] <snapshot>")]
pub struct RollbackArgs {
    /// Destroy newer snapshots and bookmarks
    #[arg(short = 'r')]
    pub recursive: bool,
    /// As -r, and clones of those snapshots
    #[arg(short = 'R')]
    pub with_clones: bool,
    /// Accepted as zfs(8) has it; what is mounted stays so
    #[arg(short = 'f')]
    pub force: bool,
    /// The snapshot
    pub snapshot: String,
}

/// Make a dataset that begins as a copy of a snapshot
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt clone [-pu] [-o property=value] ... <snapshot> <filesystem|volume>")]
pub struct CloneArgs {
    /// Create missing parents; no error if the dataset exists
    #[arg(short = 'p', action = ArgAction::Count)]
    pub parents: u8,
    /// As zfs, when it mounts by itself: do not mount it
    #[arg(short = 'u')]
    pub no_mount: bool,
    /// Set a property
    #[arg(short = 'o', value_name = "PROPERTY=VALUE", action = ArgAction::Append)]
    pub properties: Vec<String>,
    /// The snapshot
    pub snapshot: String,
    /// Name of the new dataset
    pub dataset: String,
}

/// Turn a clone and its origin around
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt promote <clone-filesystem>")]
pub struct PromoteArgs {
    /// The clone
    pub dataset: String,
}

/// Remember where a snapshot was, as a source of incremental streams
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt bookmark <snapshot|bookmark> <newbookmark>")]
pub struct BookmarkArgs {
    /// Snapshot, or bookmark to copy
    pub source: String,
    /// The bookmark; its dataset may be left out (#mark)
    pub bookmark: String,
}

/// Keep snapshots from being destroyed
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt hold [-r] <tag> <snapshot> ...")]
pub struct HoldArgs {
    /// Also the snapshots of that name in everything below
    #[arg(short = 'r')]
    pub recursive: bool,
    /// Accepted as zfs(8) has it
    #[arg(short = 't', hide = true)]
    pub temporary: bool,
    /// Name of the hold
    pub tag: String,
    /// The snapshots
    #[arg(required = true, value_name = "SNAPSHOT")]
    pub snapshots: Vec<String>,
}

/// List the holds of snapshots
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt holds [-rHpj] <snapshot> ...")]
pub struct HoldsArgs {
    /// Also of the snapshots of that name in everything below
    #[arg(short = 'r')]
    pub recursive: bool,
    /// No header, one tab between columns
    #[arg(short = 'H')]
    pub scripted: bool,
    /// Times in seconds since 1970
    #[arg(short = 'p')]
    pub parsable: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// The snapshots
    #[arg(required = true, value_name = "SNAPSHOT")]
    pub snapshots: Vec<String>,
}

/// Remove a hold from snapshots
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt release [-r] <tag> <snapshot> ...")]
pub struct ReleaseArgs {
    /// Also from the snapshots of that name in everything below
    #[arg(short = 'r')]
    pub recursive: bool,
    /// Name of the hold
    pub tag: String,
    /// The snapshots
    #[arg(required = true, value_name = "SNAPSHOT")]
    pub snapshots: Vec<String>,
}
