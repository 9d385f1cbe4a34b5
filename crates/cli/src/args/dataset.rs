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
    /// Print no header, and a tab between columns
    #[arg(short = 'H')]
    pub scripted: bool,
    /// Print exact numbers instead of rounded ones such as 1.5G
    #[arg(short = 'p')]
    pub parsable: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// With -j: print numbers as JSON numbers instead of strings
    #[arg(long, requires = "json")]
    pub json_int: bool,
    /// List descendants of the given datasets too
    #[arg(short = 'r')]
    pub recursive: bool,
    /// Like -r, but at most DEPTH levels deep
    #[arg(short = 'd', value_name = "DEPTH")]
    pub depth: Option<String>,
    /// Columns to print, separated by commas: names of properties, or 'space'
    #[arg(short = 'o', value_name = "PROPERTIES")]
    pub columns: Option<String>,
    /// Sort by this property, in ascending order. Can be given more than once
    #[arg(short = 's', value_name = "PROPERTY", action = ArgAction::Append)]
    pub sort: Vec<String>,
    /// Like -s, in descending order
    #[arg(short = 'S', value_name = "PROPERTY", action = ArgAction::Append)]
    pub sort_descending: Vec<String>,
    /// Types to show, separated by commas: filesystem, volume, snapshot, bookmark, all
    #[arg(short = 't', value_name = "TYPES")]
    pub types: Option<String>,
    /// Datasets to list; all by default
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
    /// Print no header, and a tab between columns
    #[arg(short = 'H')]
    pub scripted: bool,
    /// Print exact numbers instead of rounded ones such as 1.5G
    #[arg(short = 'p')]
    pub parsable: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// With -j: print numbers as JSON numbers instead of strings
    #[arg(long, requires = "json")]
    pub json_int: bool,
    /// Show properties of descendants too
    #[arg(short = 'r')]
    pub recursive: bool,
    /// Like -r, but at most DEPTH levels deep
    #[arg(short = 'd', value_name = "DEPTH")]
    pub depth: Option<String>,
    /// Columns to print, separated by commas: name, property, value, received, source, all
    #[arg(short = 'o', value_name = "FIELDS")]
    pub columns: Option<String>,
    /// Show only values from these sources, separated by commas: local, default, inherited, received, temporary, none
    #[arg(short = 's', value_name = "SOURCES")]
    pub sources: Option<String>,
    /// Types to show, separated by commas: filesystem, volume, snapshot, bookmark, all
    #[arg(short = 't', value_name = "TYPES")]
    pub types: Option<String>,
    /// Properties to show, separated by commas, or 'all'
    #[arg(value_name = "PROPERTY")]
    pub properties: String,
    /// Datasets to show; all by default
    #[arg(value_name = "DATASET")]
    pub datasets: Vec<String>,
}

/// Set properties
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt set [-u] <property=value> ... <filesystem|volume|snapshot> ...")]
pub struct SetArgs {
    /// Change no mounts. Only has an effect with automatic mounting, under the name zfs
    #[arg(short = 'u')]
    pub no_mount: bool,
    /// One or more properties with their new values, then the datasets
    #[arg(required = true, num_args = 1.., value_name = "PROPERTY=VALUE|DATASET")]
    pub words: Vec<String>,
}

/// Clear a property, so that its value is inherited again
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt inherit [-rS] <property> <filesystem|volume|snapshot> ...")]
pub struct InheritArgs {
    /// Clear the property of all descendants too
    #[arg(short = 'r')]
    pub recursive: bool,
    /// Revert to the received value, if there is one
    #[arg(short = 'S')]
    pub received: bool,
    /// Name of the property
    pub property: String,
    /// Datasets whose property is cleared
    #[arg(required = true, value_name = "DATASET")]
    pub datasets: Vec<String>,
}

/// Create a filesystem or volume
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt create [-Pnpuvj] [-o property=value] ... <filesystem>\n       \
    snowmelt create [-Pnpsvj] [-b blocksize] [-o property=value] ... -V <size> <volume>")]
pub struct CreateArgs {
    /// Create missing parents too, and succeed if the dataset already exists
    #[arg(short = 'p', action = ArgAction::Count)]
    pub parents: u8,
    /// Set a property of the new dataset
    #[arg(short = 'o', value_name = "PROPERTY=VALUE", action = ArgAction::Append)]
    pub properties: Vec<String>,
    /// Create a volume of this size
    #[arg(short = 'V', value_name = "SIZE")]
    pub volume: Option<String>,
    /// Block size of the volume (volblocksize)
    #[arg(short = 'b', value_name = "SIZE", requires = "volume")]
    pub block_size: Option<String>,
    /// Reserve no space for the volume (sparse)
    #[arg(short = 's', requires = "volume")]
    pub sparse: bool,
    /// Do not mount the new dataset. Only has an effect with automatic mounting, under the name zfs
    #[arg(short = 'u')]
    pub no_mount: bool,
    /// Create nothing (dry run). With -v or -P, print what would be created
    #[arg(short = 'n')]
    pub dry_run: bool,
    /// Print what is created
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Like -v, in a format for programs
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
/// Snapshots can be given as a list (fs@a,b) or as a range (fs@a%c). Either end of a range can be left out.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt destroy [-fnpRrvj] <filesystem|volume>\n       \
    snowmelt destroy [-dnpRrvj] <filesystem|volume>@<snap>[%<snap>][,...]\n       \
    snowmelt destroy <filesystem|volume>#<bookmark>")]
pub struct DestroyArgs {
    /// Destroy all descendants too; for a snapshot, the snapshots of the same name of all descendants
    #[arg(short = 'r')]
    pub recursive: bool,
    /// Like -r, and destroy clones too
    #[arg(short = 'R')]
    pub with_clones: bool,
    /// Destroy a snapshot that has holds or clones later, when its last hold or clone is gone
    #[arg(short = 'd')]
    pub defer: bool,
    /// Unmount a filesystem even if it is in use. Only has an effect with automatic mounting, under the name zfs
    #[arg(short = 'f')]
    pub force: bool,
    /// Destroy nothing (dry run). With -v or -p, print what would be destroyed
    #[arg(short = 'n')]
    pub dry_run: bool,
    /// Print what is destroyed
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Like -v, in a format for programs
    #[arg(short = 'p')]
    pub parsable: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Filesystem, volume, snapshots or bookmark to destroy
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
    /// Rename the snapshots of this name of all descendants too
    #[arg(short = 'r')]
    pub recursive: bool,
    /// Keep filesystems mounted where they are. Only has an effect with automatic mounting, under the name zfs
    #[arg(short = 'u')]
    pub no_mount: bool,
    /// Unmount a filesystem even if it is in use. Only has an effect with automatic mounting, under the name zfs
    #[arg(short = 'f')]
    pub force: bool,
    /// Current name
    pub from: String,
    /// New name
    pub to: String,
}

/// Take one or more snapshots, all at the same moment
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt snapshot [-rj] [-o property=value] ... <filesystem|volume>@<snap> ...")]
pub struct SnapshotArgs {
    /// Take snapshots of all descendants too
    #[arg(short = 'r')]
    pub recursive: bool,
    /// Set a user property of the snapshots
    #[arg(short = 'o', value_name = "PROPERTY=VALUE", action = ArgAction::Append)]
    pub properties: Vec<String>,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// One or more snapshots
    #[arg(required = true, value_name = "SNAPSHOT")]
    pub snapshots: Vec<String>,
}

/// Roll a dataset back to a snapshot
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt rollback [-rRf] <snapshot>")]
pub struct RollbackArgs {
    /// Destroy newer snapshots and bookmarks
    #[arg(short = 'r')]
    pub recursive: bool,
    /// Like -r, and destroy the clones of those snapshots too
    #[arg(short = 'R')]
    pub with_clones: bool,
    /// Accepted for compatibility with zfs(8); has no effect, because mounts stay
    #[arg(short = 'f')]
    pub force: bool,
    /// Name of the snapshot
    pub snapshot: String,
}

/// Create a dataset from a snapshot
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt clone [-pu] [-o property=value] ... <snapshot> <filesystem|volume>")]
pub struct CloneArgs {
    /// Create missing parents too, and succeed if the dataset already exists
    #[arg(short = 'p', action = ArgAction::Count)]
    pub parents: u8,
    /// Do not mount the new dataset. Only has an effect with automatic mounting, under the name zfs
    #[arg(short = 'u')]
    pub no_mount: bool,
    /// Set a property of the new dataset
    #[arg(short = 'o', value_name = "PROPERTY=VALUE", action = ArgAction::Append)]
    pub properties: Vec<String>,
    /// Name of the snapshot
    pub snapshot: String,
    /// Name of the new dataset
    pub dataset: String,
}

/// Make a clone independent of its origin
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt promote <clone-filesystem>")]
pub struct PromoteArgs {
    /// Clone to promote
    pub dataset: String,
}

/// Create a bookmark of a snapshot, as a base for streams
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt bookmark <snapshot|bookmark> <newbookmark>")]
pub struct BookmarkArgs {
    /// Snapshot, or a bookmark to copy
    pub source: String,
    /// Name of the new bookmark. Its dataset can be left out (#mark)
    pub bookmark: String,
}

/// Hold snapshots, so that they cannot be destroyed
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt hold [-r] <tag> <snapshot> ...")]
pub struct HoldArgs {
    /// Hold the snapshots of the same name of all descendants too
    #[arg(short = 'r')]
    pub recursive: bool,
    /// Accepted for compatibility with zfs(8)
    #[arg(short = 't', hide = true)]
    pub temporary: bool,
    /// Name of the hold
    pub tag: String,
    /// One or more snapshots
    #[arg(required = true, value_name = "SNAPSHOT")]
    pub snapshots: Vec<String>,
}

/// List the holds of snapshots
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt holds [-rHpj] <snapshot> ...")]
pub struct HoldsArgs {
    /// List the holds of the snapshots of the same name of all descendants too
    #[arg(short = 'r')]
    pub recursive: bool,
    /// Print no header, and a tab between columns
    #[arg(short = 'H')]
    pub scripted: bool,
    /// Print times in seconds since 1970
    #[arg(short = 'p')]
    pub parsable: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// One or more snapshots
    #[arg(required = true, value_name = "SNAPSHOT")]
    pub snapshots: Vec<String>,
}

/// Remove a hold from snapshots
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt release [-r] <tag> <snapshot> ...")]
pub struct ReleaseArgs {
    /// Release the snapshots of the same name of all descendants too
    #[arg(short = 'r')]
    pub recursive: bool,
    /// Name of the hold
    pub tag: String,
    /// One or more snapshots
    #[arg(required = true, value_name = "SNAPSHOT")]
    pub snapshots: Vec<String>,
}
