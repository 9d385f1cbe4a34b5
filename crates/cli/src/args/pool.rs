//! `snowmelt pool …`: the verbs of zpool(8).

use std::path::PathBuf;

use clap::{ArgAction, Args, Subcommand};

use crate::context::Context;
use crate::pools::keys::KeySource;

use super::pool_devices::{
    PoolAttachArgs, PoolDetachArgs, PoolOfflineArgs, PoolOnlineArgs, PoolReplaceArgs, PoolResilverArgs,
};

/// Create, list, import, export and destroy pools
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct PoolArgs {
    #[command(subcommand)]
    pub command: PoolCommand,
}

#[derive(Debug, Subcommand)]
pub enum PoolCommand {
    Create(PoolCreateArgs),
    List(PoolListArgs),
    Get(PoolGetArgs),
    Status(PoolStatusArgs),
    Export(PoolExportArgs),
    Import(PoolImportArgs),
    Destroy(PoolDestroyArgs),
    History(PoolHistoryArgs),
    Segments(PoolSegmentsArgs),
    Iostat(PoolIostatArgs),
    Trim(PoolTrimArgs),
    Scrub(PoolScrubArgs),
    Clear(PoolClearArgs),
    Set(PoolSetArgs),
    ChangeKey(PoolChangeKeyArgs),
    Sync(PoolSyncArgs),
    Attach(PoolAttachArgs),
    Detach(PoolDetachArgs),
    Replace(PoolReplaceArgs),
    Online(PoolOnlineArgs),
    Offline(PoolOfflineArgs),
    Resilver(PoolResilverArgs),
}

/// Create a pool
///
/// VDEV is a directory, a block device, a file, or an object store (s3://BUCKET/PREFIX, gs://BUCKET/PREFIX,
/// az://CONTAINER/PREFIX). A directory or file is created if it does not exist: a file if --size is given or the name
/// ends in .img or .pool, else a directory. Without VDEV, the pool is created in $XDG_DATA_HOME/snowmelt/POOL.
/// 'mirror' before two or more VDEVs creates a mirror: each VDEV holds all data.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(
    override_usage = "snowmelt pool create [-dfnj] [-o property=value] ... [-O property=value] ...\n    \
    [-m mountpoint] [--size SIZE] [--encrypt[=SUITE] [--key-file FILE | --key-command COMMAND]]\n    \
    <pool> [vdev | mirror vdev vdev ...]"
)]
pub struct PoolCreateArgs {
    /// Use VDEV even if it already holds data
    #[arg(short)]
    pub force: bool,
    /// Create nothing (dry run), and print what would be created
    #[arg(short = 'n')]
    pub dry_run: bool,
    /// With -n: print JSON
    #[arg(short = 'j', long, requires = "dry_run")]
    pub json: bool,
    /// Disable all features that are not named by -o feature@NAME=enabled
    #[arg(short = 'd')]
    pub no_features: bool,
    /// Set a property of the pool, such as comment or parity
    #[arg(short = 'o', value_name = "PROPERTY=VALUE", action = ArgAction::Append)]
    pub pool_properties: Vec<String>,
    /// Set a property of the pool's root filesystem
    #[arg(short = 'O', value_name = "PROPERTY=VALUE", action = ArgAction::Append)]
    pub properties: Vec<String>,
    /// Mountpoint of the root filesystem
    #[arg(short = 'm', value_name = "PATH")]
    pub mountpoint: Option<String>,
    /// Size of the file to create, such as 20G
    #[arg(long, value_name = "SIZE")]
    pub size: Option<String>,
    /// Encrypt all data, with xchacha20-poly1305 (default) or aes-256-gcm-siv. Asks for a passphrase, unless
    /// --key-file or --key-command is given. If the key is lost, all data is lost
    #[arg(long, value_name = "SUITE", num_args = 0..=1, require_equals = true, default_missing_value = "xchacha20-poly1305")]
    pub encrypt: Option<String>,
    #[command(flatten)]
    pub key: KeyArgs,
    /// Format of the key: raw (32 bytes), hex (64 digits) or passphrase
    #[arg(long, value_name = "FORMAT")]
    pub key_format: Option<String>,
    #[command(flatten)]
    pub cache: CacheArgs,
    /// Name of the pool
    pub pool: String,
    /// Directory, file, block device or address in an object store; or 'mirror' and two or more directories, files or
    /// devices
    #[arg(value_name = "VDEV")]
    pub vdevs: Vec<PathBuf>,
}

/// List pools with their size, space and health
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool list [-Hpvj] [-o property[,...]] [pool] ...")]
pub struct PoolListArgs {
    /// Print no header, and a tab between columns
    #[arg(short = 'H')]
    pub scripted: bool,
    /// Print exact numbers instead of rounded ones such as 1.5G
    #[arg(short = 'p')]
    pub parsable: bool,
    /// List the vdevs of each pool too
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Print full paths of vdevs (always on)
    #[arg(short = 'P', hide = true)]
    pub paths: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// With -j: print numbers as JSON numbers instead of strings
    #[arg(long, requires = "json")]
    pub json_int: bool,
    /// Columns to print, separated by commas
    #[arg(short = 'o', value_name = "COLUMNS")]
    pub columns: Option<String>,
    /// Pools to show; all by default
    pub pools: Vec<String>,
}

/// Show properties of pools
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(
    override_usage = "snowmelt pool get [-Hpj] [-o \"all\" | field[,...]] <\"all\" | property[,...]> [pool] ..."
)]
pub struct PoolGetArgs {
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
    /// Columns to print, separated by commas: name, property, value, source, all
    #[arg(short = 'o', value_name = "FIELDS")]
    pub columns: Option<String>,
    /// Properties to show, separated by commas, or 'all'
    #[arg(value_name = "PROPERTY")]
    pub properties: String,
    /// Pools to show; all by default
    pub pools: Vec<String>,
}

/// Show the health of pools and their vdevs
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool status [-pvxj] [pool] ...")]
pub struct PoolStatusArgs {
    /// Print exact numbers instead of rounded ones such as 1.5G
    #[arg(short = 'p')]
    pub parsable: bool,
    /// List damaged files and objects
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Show only pools with problems
    #[arg(short = 'x')]
    pub unhealthy: bool,
    /// Print full paths of vdevs (always on)
    #[arg(short = 'P', hide = true)]
    pub paths: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Pools to show; all by default
    pub pools: Vec<String>,
}

/// Remove pools from the list of pools, so that they can be moved
///
/// Waits until no other process uses the pool. The data of the pool does not change. A pool that no longer exists is
/// forgotten, so that it is no longer shown as UNAVAIL.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool export [-af] [pool] ...")]
pub struct PoolExportArgs {
    /// Apply to all pools
    #[arg(short)]
    pub all: bool,
    /// Unmount filesystems even if they are in use. Only has an effect with automatic mounting, under the name zpool
    #[arg(short)]
    pub force: bool,
    /// Names of the pools
    #[arg(required_unless_present = "all")]
    pub pools: Vec<String>,
}

/// Find pools and add them to the list of pools
///
/// Without a pool, lists the pools that can be imported. A pool is given by its name, guid, path, or address in an
/// object store.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool import [-j] [-d dir|device] ...\n       \
    snowmelt pool import [-j] [-d dir|device] ... [-f] [-o readonly=on] [-F [-nX] | -T txg] <-a | pool|guid|path|url [newname]>")]
pub struct PoolImportArgs {
    /// Search at PATH: a pool, or a directory of pools. Can be given more than once
    #[arg(short = 'd', value_name = "PATH", action = ArgAction::Append)]
    pub search: Vec<PathBuf>,
    /// Import all pools that are found
    #[arg(short)]
    pub all: bool,
    /// Import a pool in an object store that another machine wrote to last. Its owner on that machine stops
    #[arg(short)]
    pub force: bool,
    /// readonly=on imports the pool read-only. In an object store, it then follows what another machine writes
    #[arg(short = 'o', value_name = "PROPERTY=VALUE", action = ArgAction::Append)]
    pub properties: Vec<String>,
    /// Mount no filesystems. Only has an effect with automatic mounting, under the name zpool
    #[arg(short = 'N')]
    pub no_mount: bool,
    /// If the newest txg cannot be read, rewind to an older one. All later changes are lost
    #[arg(short = 'F')]
    pub rewind: bool,
    /// With -F: change nothing (dry run), and print whether the pool can be rewound
    #[arg(short = 'n', requires = "rewind")]
    pub dry_run: bool,
    /// With -F: rewind as far as necessary to find an intact txg
    #[arg(short = 'X', requires = "rewind")]
    pub extreme: bool,
    /// Rewind to this txg, even if newer ones can be read
    #[arg(short = 'T', value_name = "TXG", requires = "pool")]
    pub txg: Option<u64>,
    /// Accept the pool, even if a different pool is known at this place
    #[arg(long, requires = "pool")]
    pub accept_new: bool,
    #[command(flatten)]
    pub key: KeyArgs,
    #[command(flatten)]
    pub cache: CacheArgs,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Name, guid, path or address of the pool
    pub pool: Option<String>,
    /// New name of the pool
    pub new_name: Option<String>,
}

/// Destroy a pool and all data in it
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool destroy [-f] <pool>")]
pub struct PoolDestroyArgs {
    /// Unmount filesystems even if they are in use. Only has an effect with automatic mounting, under the name zpool
    #[arg(short)]
    pub force: bool,
    /// Name of the pool
    pub pool: String,
}

/// Show the commands that changed pools
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool history [-ilj] [pool] ...")]
pub struct PoolHistoryArgs {
    /// Show internal events too
    #[arg(short)]
    pub internal: bool,
    /// Show user, host and process too
    #[arg(short)]
    pub long: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Pools to show; all by default
    pub pools: Vec<String>,
}

/// Show how full the segments of pools are
///
/// A pool is written in segments. The space of deleted data becomes free when its whole segment is unused. SIZE is
/// the size of the segments, ALLOC the part in use, and DEAD the rest. 'pool trim' frees the DEAD part of segments of
/// which at most three quarters are in use.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool segments [-Hpvj] [pool] ...")]
pub struct PoolSegmentsArgs {
    /// Print no header, and a tab between columns
    #[arg(short = 'H')]
    pub scripted: bool,
    /// Print exact numbers instead of rounded ones such as 1.5G
    #[arg(short = 'p')]
    pub parsable: bool,
    /// Print a line for each segment
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Print JSON, with each segment
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Pools to show; all by default
    pub pools: Vec<String>,
}

/// Show the I/O statistics of pools
///
/// Shows the reads and writes of the pool's store per second, and their bytes, since the owner of the pool opened it.
/// With an interval, a report follows for each interval.
#[derive(Debug, Default, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool iostat [-HpPvy] [pool ...] [interval [count]]")]
pub struct PoolIostatArgs {
    /// Print no header, and a tab between columns
    #[arg(short = 'H')]
    pub scripted: bool,
    /// Exact numbers
    #[arg(short = 'p')]
    pub parsable: bool,
    /// Print full paths of vdevs (always on)
    #[arg(short = 'P', hide = true)]
    pub paths: bool,
    /// Show the vdevs of each pool too
    #[arg(short = 'v')]
    pub verbose: bool,
    /// With an interval: leave out the first report, since the pool was opened
    #[arg(short = 'y')]
    pub no_first: bool,
    /// Only these pools; then how many seconds lie between reports, and how many there are
    #[arg(value_name = "WORD")]
    pub words: Vec<String>,
}

/// Free the space of deleted data
///
/// The space of deleted data becomes free by itself when a whole segment is unused, and the rest of it when the pool
/// is full. This command frees it now: it moves the blocks in use out of segments that are mostly unused. Then it
/// reports all free space to the device, or to the filesystem of the pool's file. With autotrim=off nothing else
/// does.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool trim [-vwj] <pool>")]
pub struct PoolTrimArgs {
    /// Print how much was moved and how much was freed
    #[arg(short)]
    pub verbose: bool,
    /// Wait until it is done (always on)
    #[arg(short, hide = true)]
    pub wait: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Name of the pool
    pub pool: String,
}

/// Read and verify all data of a pool
///
/// Reads and verifies every block of every dataset and snapshot once, while the pool stays in use. 'pool status -v'
/// lists the damage. Without options, a scrub is started in the background, or an interrupted or paused one is
/// resumed.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool scrub [-s | -p] [-w [-j]] [--rate RATE] <-a | pool ...>")]
pub struct PoolScrubArgs {
    /// Stop the scrub that is running
    #[arg(short)]
    pub stop: bool,
    /// Pause the scrub. The next 'pool scrub' resumes it
    #[arg(short)]
    pub pause: bool,
    /// Wait until the scrub is done
    #[arg(short)]
    pub wait: bool,
    /// Apply to all pools
    #[arg(short)]
    pub all: bool,
    /// Limit the reads, in bytes per second, such as 50M
    #[arg(long, value_name = "RATE")]
    pub rate: Option<String>,
    /// With -w: print the result as JSON
    #[arg(short = 'j', long, requires = "wait")]
    pub json: bool,
    /// Run as the background process, which reports on standard output when the scrub has begun
    #[arg(long, hide = true)]
    pub detached: bool,
    /// Names of the pools
    pub pools: Vec<String>,
}

/// Clear the error counts and the list of damaged blocks
///
/// Blocks that are still damaged are found again when they are read.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool clear <pool>")]
pub struct PoolClearArgs {
    /// Name of the pool
    pub pool: String,
    /// Accepted for compatibility with zpool(8), if the device belongs to the pool
    #[arg(hide = true)]
    pub device: Option<String>,
}

/// Set a property of a pool
///
/// The properties are comment, parity, autotrim, deadman, cachesize and feature@NAME. With 'parity=5%', all data
/// written from then on gets that much parity, from which damaged blocks are repaired. Other properties of ZFS are
/// accepted only with the value that applies anyway.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool set <property=value> <pool>")]
pub struct PoolSetArgs {
    /// Property and its new value
    #[arg(value_name = "PROPERTY=VALUE")]
    pub property: String,
    /// Name of the pool
    pub pool: String,
}

/// Change the key of an encrypted pool
///
/// Asks for a new passphrase, unless --key-file or --key-command is given. The stored data does not change: the pool
/// has a key of its own, and only this key is encrypted again. Someone with the old key and an old copy of the pool's
/// store can still read the data that is in both.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(
    override_usage = "snowmelt pool change-key [--key-file FILE | --key-command COMMAND] [--key-format FORMAT] <pool>"
)]
pub struct PoolChangeKeyArgs {
    #[command(flatten)]
    pub key: KeyArgs,
    /// Format of the key: raw (32 bytes), hex (64 digits) or passphrase
    #[arg(long, value_name = "FORMAT")]
    pub key_format: Option<String>,
    /// Name of the pool
    pub pool: String,
}

// The cache of a pool in an object store.
#[derive(Debug, Args)]
pub struct CacheArgs {
    /// Cache the data of a pool in an object store in this local directory; 'none' for no cache. The setting is
    /// remembered on this machine
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// Maximum size of the cache, such as 50G. Default: 10G
    #[arg(long, value_name = "SIZE", requires = "cache")]
    pub cache_size: Option<String>,
}

// Where the key of an encrypted pool comes from. (A doc comment would become the help of the verbs.)
#[derive(Debug, Args)]
pub struct KeyArgs {
    /// Read the key from this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["key_command", "key_prompt"])]
    pub key_file: Option<PathBuf>,
    /// Run this shell command, which prints the key. The command is remembered only on this machine
    #[arg(long, value_name = "COMMAND", conflicts_with = "key_prompt")]
    pub key_command: Option<String>,
    /// Ask for the key on the terminal
    #[arg(long)]
    pub key_prompt: bool,
}

impl KeyArgs {
    /// The source that is named, if any is.
    pub fn source(&self, context: &Context) -> Option<KeySource> {
        match (&self.key_file, &self.key_command) {
            (Some(path), _) => Some(KeySource::File(context.path(path))),
            (_, Some(command)) => Some(KeySource::Command(command.clone())),
            _ => self.key_prompt.then_some(KeySource::Prompt),
        }
    }
}

/// Write all pending changes to disk
///
/// Without a name, it does so for all pools.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool sync [pool] ...")]
pub struct PoolSyncArgs {
    /// Names of the pools; all by default
    pub pools: Vec<String>,
}
