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
/// The pool is kept in VDEV: a directory (made if need be), a block device, a file, or an object store (s3://BUCKET/PREFIX,
/// gs://BUCKET/PREFIX, az://CONTAINER/PREFIX). A path that does not exist yet
/// becomes a file if --size is given or its name ends in .img or .pool, else a directory. Without VDEV the pool is made in
/// $XDG_DATA_HOME/snowmelt/POOL. With 'mirror' before them, two or more VDEVs all hold everything, so that one can fail.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(
    override_usage = "snowmelt pool create [-dfnj] [-o property=value] ... [-O property=value] ...\n    \
    [-m mountpoint] [--size SIZE] [--encrypt[=SUITE] [--key-file FILE | --key-command COMMAND]]\n    \
    <pool> [vdev | mirror vdev vdev ...]"
)]
pub struct PoolCreateArgs {
    /// Use VDEV even if it holds something
    #[arg(short)]
    pub force: bool,
    /// Only say what would be done
    #[arg(short = 'n')]
    pub dry_run: bool,
    /// With -n: print JSON
    #[arg(short = 'j', long, requires = "dry_run")]
    pub json: bool,
    /// Disable all features that are not named by -o feature@NAME=enabled
    #[arg(short = 'd')]
    pub no_features: bool,
    /// Set a property of the pool (comment, parity)
    #[arg(short = 'o', value_name = "PROPERTY=VALUE", action = ArgAction::Append)]
    pub pool_properties: Vec<String>,
    /// Set a property of the pool's root filesystem
    #[arg(short = 'O', value_name = "PROPERTY=VALUE", action = ArgAction::Append)]
    pub properties: Vec<String>,
    /// Mountpoint of the root filesystem
    #[arg(short = 'm', value_name = "PATH")]
    pub mountpoint: Option<String>,
    /// Size of the file to make, such as 20G
    #[arg(long, value_name = "SIZE")]
    pub size: Option<String>,
    /// Encrypt all that is stored, with xchacha20-poly1305 (the default) or aes-256-gcm-siv. The key is derived of a passphrase that is asked
    /// for, unless --key-file or --key-command is given. Without it everything is lost
    #[arg(long, value_name = "SUITE", num_args = 0..=1, require_equals = true, default_missing_value = "xchacha20-poly1305")]
    pub encrypt: Option<String>,
    #[command(flatten)]
    pub key: KeyArgs,
    /// Form of the key: raw (32 bytes), hex (64 digits) or passphrase
    #[arg(long, value_name = "FORMAT")]
    pub key_format: Option<String>,
    #[command(flatten)]
    pub cache: CacheArgs,
    /// Name of the pool
    pub pool: String,
    /// Directory, file, block device or address in an object store; or 'mirror' and several directories, files or devices
    #[arg(value_name = "VDEV")]
    pub vdevs: Vec<PathBuf>,
}

/// List pools with their size, space and health
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool list [-Hpvj] [-o property[,...]] [pool] ...")]
pub struct PoolListArgs {
    /// No header, one tab between columns
    #[arg(short = 'H')]
    pub scripted: bool,
    /// Exact numbers
    #[arg(short = 'p')]
    pub parsable: bool,
    /// Also list the vdev of each pool
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Print full paths of vdevs (always done)
    #[arg(short = 'P', hide = true)]
    pub paths: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Numbers in JSON as numbers
    #[arg(long, requires = "json")]
    pub json_int: bool,
    /// Columns, separated by commas
    #[arg(short = 'o', value_name = "COLUMNS")]
    pub columns: Option<String>,
    /// Only these pools
    pub pools: Vec<String>,
}

/// Show properties of pools
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(
    override_usage = "snowmelt pool get [-Hpj] [-o \"all\" | field[,...]] <\"all\" | property[,...]> [pool] ..."
)]
pub struct PoolGetArgs {
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
    /// Columns, separated by commas: name, property, value, source, all
    #[arg(short = 'o', value_name = "FIELDS")]
    pub columns: Option<String>,
    /// Properties, separated by commas, or 'all'
    #[arg(value_name = "PROPERTY")]
    pub properties: String,
    /// Only of these pools
    pub pools: Vec<String>,
}

/// Show the state of pools and their vdevs
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool status [-pvxj] [pool] ...")]
pub struct PoolStatusArgs {
    /// Exact numbers
    #[arg(short = 'p')]
    pub parsable: bool,
    /// Name what is damaged
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Only pools that are not well
    #[arg(short = 'x')]
    pub unhealthy: bool,
    /// Print full paths of vdevs (always done)
    #[arg(short = 'P', hide = true)]
    pub paths: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Only these pools
    pub pools: Vec<String>,
}

/// Forget where a pool is, so that it can be moved
///
/// Waits until no other process uses the pool and leaves its data as they are. A pool that is gone for good is forgotten, so
/// that it is no longer shown as UNAVAIL.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool export [-af] [pool] ...")]
pub struct PoolExportArgs {
    /// All pools
    #[arg(short)]
    pub all: bool,
    /// As zpool, when it unmounts by itself: also what is in use
    #[arg(short)]
    pub force: bool,
    /// The pools
    #[arg(required_unless_present = "all")]
    pub pools: Vec<String>,
}

/// Find pools and remember where they are
///
/// Without a pool or path, the pools that could be imported are listed. A path to a pool, or its address in an object store,
/// imports it.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool import [-j] [-d dir|device] ...\n       \
    snowmelt pool import [-j] [-d dir|device] ... [-f] [-o readonly=on] [-F [-nX] | -T txg] <-a | pool|guid|path|url [newname]>")]
pub struct PoolImportArgs {
    /// Look here: a pool, or a directory of pools
    #[arg(short = 'd', value_name = "PATH", action = ArgAction::Append)]
    pub search: Vec<PathBuf>,
    /// All pools found
    #[arg(short)]
    pub all: bool,
    /// Take a pool in an object store from the machine that wrote to it last; whoever owns it there stops
    #[arg(short)]
    pub force: bool,
    /// readonly=on: only read the pool here; in an object store, follow what another machine writes
    #[arg(short = 'o', value_name = "PROPERTY=VALUE", action = ArgAction::Append)]
    pub properties: Vec<String>,
    /// As zpool, when it mounts by itself: mount nothing
    #[arg(short = 'N')]
    pub no_mount: bool,
    /// If the newest txg cannot be read, go back to one that can: what came after it is lost
    #[arg(short = 'F')]
    pub rewind: bool,
    /// With -F: tell whether that would do, and change nothing
    #[arg(short = 'n', requires = "rewind")]
    pub dry_run: bool,
    /// With -F: go back as far as there is anything whole
    #[arg(short = 'X', requires = "rewind")]
    pub extreme: bool,
    /// Go back to this txg, whatever can be read
    #[arg(short = 'T', value_name = "TXG", requires = "pool")]
    pub txg: Option<u64>,
    /// Take the pool that is there now, though another one is known at its place
    #[arg(long, requires = "pool")]
    pub accept_new: bool,
    #[command(flatten)]
    pub key: KeyArgs,
    #[command(flatten)]
    pub cache: CacheArgs,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Name, guid or path of the pool
    pub pool: Option<String>,
    /// Its name from now on
    pub new_name: Option<String>,
}

/// Destroy a pool and all data in it
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool destroy [-f] <pool>")]
pub struct PoolDestroyArgs {
    /// As zpool, when it unmounts by itself: also what is in use
    #[arg(short)]
    pub force: bool,
    /// The pool
    pub pool: String,
}

/// Show the commands that changed pools
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool history [-ilj] [pool] ...")]
pub struct PoolHistoryArgs {
    /// Also show internal events
    #[arg(short)]
    pub internal: bool,
    /// Also show user, host and process
    #[arg(short)]
    pub long: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Only these pools
    pub pools: Vec<String>,
}

/// Show how full the segments of pools are
///
/// A pool is written in segments, and what was deleted comes back when nothing in a segment is alive. SIZE is what the segments take, ALLOC
/// what of that is alive, DEAD the rest, which 'pool trim' can give back where at most three quarters are alive.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool segments [-Hpvj] [pool] ...")]
pub struct PoolSegmentsArgs {
    /// No header, one tab between columns
    #[arg(short = 'H')]
    pub scripted: bool,
    /// Exact numbers
    #[arg(short = 'p')]
    pub parsable: bool,
    /// A line for each segment
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Print JSON, of each segment
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Only these pools
    pub pools: Vec<String>,
}

/// Tell how much is read and written
///
/// Shows the reads and writes of the pool's store per second, and their bytes, since the owner of the pool opened it.
/// With an interval, a report follows for each interval.
#[derive(Debug, Default, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool iostat [-HpPvy] [pool ...] [interval [count]]")]
pub struct PoolIostatArgs {
    /// No header, one tab between columns
    #[arg(short = 'H')]
    pub scripted: bool,
    /// Exact numbers
    #[arg(short = 'p')]
    pub parsable: bool,
    /// Print full paths of vdevs (always done)
    #[arg(short = 'P', hide = true)]
    pub paths: bool,
    /// Also the vdevs of each pool
    #[arg(short = 'v')]
    pub verbose: bool,
    /// With an interval: leave out what was before it
    #[arg(short = 'y')]
    pub no_first: bool,
    /// Only these pools; then how many seconds lie between reports, and how many there are
    #[arg(value_name = "WORD")]
    pub words: Vec<String>,
}

/// Give back the space of what was deleted
///
/// Space of what was deleted comes back by itself where whole segments are dead, and from between what is still there when the
/// pool is full. This does the latter now: what is alive is moved out of segments that are mostly dead. Then the device, or the
/// filesystem that the pool's file is on, is told of all that is free, which it is not by itself with autotrim=off.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool trim [-vwj] <pool>")]
pub struct PoolTrimArgs {
    /// Tell what was moved and what came of it
    #[arg(short)]
    pub verbose: bool,
    /// Wait until it is done (always done)
    #[arg(short, hide = true)]
    pub wait: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// Name of the pool
    pub pool: String,
}

/// Read everything that is stored, and verify it
///
/// Every block of every dataset and snapshot is read once and verified, beside whatever else goes on. What is damaged is named by 'pool status
/// -v'. Without options the scrub is begun, or gone on with where it was, in the background; it keeps its place if it is
/// interrupted.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool scrub [-s | -p] [-w [-j]] [--rate RATE] <-a | pool ...>")]
pub struct PoolScrubArgs {
    /// Give up the scrub that is under way
    #[arg(short)]
    pub stop: bool,
    /// Pause it; it goes on where it was when it is begun again
    #[arg(short)]
    pub pause: bool,
    /// Stay until it is done
    #[arg(short)]
    pub wait: bool,
    /// All pools
    #[arg(short)]
    pub all: bool,
    /// Read no more than this in a second, such as 50M
    #[arg(long, value_name = "RATE")]
    pub rate: Option<String>,
    /// With -w: print the outcome as JSON
    #[arg(short = 'j', long, requires = "wait")]
    pub json: bool,
    /// This is the process that stays in the background; its standard output says when the scrub has begun
    #[arg(long, hide = true)]
    pub detached: bool,
    /// The pools
    pub pools: Vec<String>,
}

/// Forget which blocks were found damaged, and how often
///
/// What is still damaged is found again when it is read.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool clear <pool>")]
pub struct PoolClearArgs {
    /// The pool
    pub pool: String,
    /// Accepted as zpool(8) has it, if it is of the pool
    #[arg(hide = true)]
    pub device: Option<String>,
}

/// Set a property of a pool
///
/// That is its comment, or its parity: 'parity=5%' has whatever is written from then on covered with so much parity, from
/// which it is mended when it goes bad. Other properties that ZFS has are taken as far as they ask for nothing else than what
/// is the case.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool set <property=value> <pool>")]
pub struct PoolSetArgs {
    /// The property and its value
    #[arg(value_name = "PROPERTY=VALUE")]
    pub property: String,
    /// The pool
    pub pool: String,
}

/// Change the key of an encrypted pool
///
/// The new one is a passphrase that is asked for, unless --key-file or --key-command is given. What is stored stays as it is: it is encrypted with a key
/// of the pool's own, which is wrapped anew. Whoever has the old key and an old copy of the pool's store can still read
/// what is in both.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(
    override_usage = "snowmelt pool change-key [--key-file FILE | --key-command COMMAND] [--key-format FORMAT] <pool>"
)]
pub struct PoolChangeKeyArgs {
    #[command(flatten)]
    pub key: KeyArgs,
    /// Form of the key: raw (32 bytes), hex (64 digits) or passphrase
    #[arg(long, value_name = "FORMAT")]
    pub key_format: Option<String>,
    /// The pool
    pub pool: String,
}

// The cache of a pool in an object store.
#[derive(Debug, Args)]
pub struct CacheArgs {
    /// Keep what is read of a pool in an object store in this directory of this machine, which remembers it; 'none': nowhere
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// At most so much of it, such as 50G; 10G unless told otherwise
    #[arg(long, value_name = "SIZE", requires = "cache")]
    pub cache_size: Option<String>,
}

// Where the key of an encrypted pool comes from. (A comment that documents would become that of the verbs.)
#[derive(Debug, Args)]
pub struct KeyArgs {
    /// The key is in this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["key_command", "key_prompt"])]
    pub key_file: Option<PathBuf>,
    /// The key is what this command of the shell prints; only this machine remembers which
    #[arg(long, value_name = "COMMAND", conflicts_with = "key_prompt")]
    pub key_command: Option<String>,
    /// The key is asked for at the terminal
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

/// Put on disk what was written so far
///
/// Without a name, of all pools.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool sync [pool] ...")]
pub struct PoolSyncArgs {
    /// Pools
    pub pools: Vec<String>,
}
