//! `snowmelt pool attach …`: the verbs of zpool(8) for the members of a mirror.

use std::path::PathBuf;

use clap::{ArgAction, Args};

// How a device becomes a member of a mirror. (A doc comment would become the help of the commands.)
#[derive(Debug, Args)]
pub struct NewMemberArgs {
    /// Use NEW-DEVICE even if it already holds data
    #[arg(short)]
    pub force: bool,
    /// Wait until the resilver is done
    #[arg(short)]
    pub wait: bool,
    /// Accepted for compatibility with zpool(8)
    #[arg(short, hide = true)]
    pub sequential: bool,
    /// Accepted for compatibility with zpool(8)
    #[arg(short = 'o', value_name = "PROPERTY=VALUE", action = ArgAction::Append, hide = true)]
    pub pool_properties: Vec<String>,
    /// Size of the file to create, such as 20G
    #[arg(long, value_name = "SIZE")]
    pub size: Option<String>,
}

/// Add a member to a mirror
///
/// NEW-DEVICE becomes a member of the mirror that DEVICE belongs to. If DEVICE is the only device of the pool, the
/// pool becomes a mirror. At that moment no other process may use the pool. The data is copied to NEW-DEVICE in the
/// background (resilver).
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool attach [-fw] [--size SIZE] <pool> <device> <new-device>")]
pub struct PoolAttachArgs {
    #[command(flatten)]
    pub new: NewMemberArgs,
    /// Name of the pool
    pub pool: String,
    /// Device of the pool
    pub device: PathBuf,
    /// Device to add
    pub new_device: PathBuf,
}

/// Remove a member from a mirror
///
/// Its label is erased. The last member that has all data cannot be removed.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool detach <pool> <device>")]
pub struct PoolDetachArgs {
    /// Name of the pool
    pub pool: String,
    /// Member to remove
    pub device: PathBuf,
}

/// Replace a device
///
/// The data is copied to NEW-DEVICE in the background (resilver). Then DEVICE is removed. Without NEW-DEVICE, a new
/// device at the same path is used.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool replace [-fw] [--size SIZE] <pool> <device> [new-device]")]
pub struct PoolReplaceArgs {
    #[command(flatten)]
    pub new: NewMemberArgs,
    /// Name of the pool
    pub pool: String,
    /// Member to replace
    pub device: PathBuf,
    /// New device
    pub new_device: Option<PathBuf>,
}

/// Bring members of a mirror online
///
/// Data that they missed is copied to them in the background (resilver).
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool online [-e] <pool> <device> ...")]
pub struct PoolOnlineArgs {
    /// Accepted for compatibility with zpool(8); has no effect, because members do not grow
    #[arg(short, hide = true)]
    pub expand: bool,
    /// Name of the pool
    pub pool: String,
    /// Members of the mirror
    #[arg(required = true)]
    pub devices: Vec<PathBuf>,
}

/// Take members of a mirror offline
///
/// They are not used until 'pool online', or until they are replaced.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool offline <pool> <device> ...")]
pub struct PoolOfflineArgs {
    /// Name of the pool
    pub pool: String,
    /// Members of the mirror
    #[arg(required = true)]
    pub devices: Vec<PathBuf>,
}

/// Copy missing data to members of mirrors
///
/// Runs in the background, unless -w is given. An interrupted resilver is resumed.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool resilver [-w] <pool> ...")]
pub struct PoolResilverArgs {
    /// Wait until the resilver is done
    #[arg(short)]
    pub wait: bool,
    /// Run as the background process, which reports on standard output when the resilver has begun
    #[arg(long, hide = true)]
    pub detached: bool,
    /// Names of the pools
    #[arg(required = true)]
    pub pools: Vec<String>,
}
