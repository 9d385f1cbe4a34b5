//! `snowmelt pool attach …`: the verbs of zpool(8) for the members of a mirror.

use std::path::PathBuf;

use clap::{ArgAction, Args};

// How a device becomes a member of a mirror. (Were this documentation, it would be that of the commands.)
#[derive(Debug, Args)]
pub struct NewMemberArgs {
    /// Use NEW-DEVICE even if it holds something
    #[arg(short)]
    pub force: bool,
    /// Wait until everything is copied
    #[arg(short)]
    pub wait: bool,
    /// Accepted as zpool(8) has it
    #[arg(short, hide = true)]
    pub sequential: bool,
    /// Accepted as zpool(8) has it
    #[arg(short = 'o', value_name = "PROPERTY=VALUE", action = ArgAction::Append, hide = true)]
    pub pool_properties: Vec<String>,
    /// Size of the file to make, such as 20G
    #[arg(long, value_name = "SIZE")]
    pub size: Option<String>,
}

/// Give a pool one more copy of everything
///
/// NEW-DEVICE becomes a member of the mirror that DEVICE is a member of. If the pool is on DEVICE alone, it becomes a mirror; nobody may be
/// using it at that moment. What the pool holds is copied in the background (a resilver).
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool attach [-fw] [--size SIZE] <pool> <device> <new-device>")]
pub struct PoolAttachArgs {
    #[command(flatten)]
    pub new: NewMemberArgs,
    /// The pool
    pub pool: String,
    /// A device of it
    pub device: PathBuf,
    /// The one to add
    pub new_device: PathBuf,
}

/// Take a member away from a mirror
///
/// Its label is wiped. The last one that has everything cannot be taken away.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool detach <pool> <device>")]
pub struct PoolDetachArgs {
    /// The pool
    pub pool: String,
    /// The member
    pub device: PathBuf,
}

/// Put another device in the place of one
///
/// What the pool holds is copied to NEW-DEVICE in the background; then DEVICE is taken away. Without NEW-DEVICE, what is now where DEVICE was is
/// taken for a new one.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool replace [-fw] [--size SIZE] <pool> <device> [new-device]")]
pub struct PoolReplaceArgs {
    #[command(flatten)]
    pub new: NewMemberArgs,
    /// The pool
    pub pool: String,
    /// The member that goes
    pub device: PathBuf,
    /// The one that comes
    pub new_device: Option<PathBuf>,
}

/// Bring members of a mirror back
///
/// What they missed is copied to them in the background.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool online [-e] <pool> <device> ...")]
pub struct PoolOnlineArgs {
    /// Accepted as zpool(8) has it; members do not grow
    #[arg(short, hide = true)]
    pub expand: bool,
    /// The pool
    pub pool: String,
    /// The members
    #[arg(required = true)]
    pub devices: Vec<PathBuf>,
}

/// Write no more to members of a mirror
///
/// They stay offline until 'pool online', or until they are replaced.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool offline <pool> <device> ...")]
pub struct PoolOfflineArgs {
    /// The pool
    pub pool: String,
    /// The members
    #[arg(required = true)]
    pub devices: Vec<PathBuf>,
}

/// Copy to members of mirrors what they lack
///
/// Without -w in the background. It goes on where it was if it was interrupted.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt pool resilver [-w] <pool> ...")]
pub struct PoolResilverArgs {
    /// Stay until it is done
    #[arg(short)]
    pub wait: bool,
    /// This is the process that stays in the background; its standard output says when it has begun
    #[arg(long, hide = true)]
    pub detached: bool,
    /// The pools
    #[arg(required = true)]
    pub pools: Vec<String>,
}
