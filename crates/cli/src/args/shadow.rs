//! `snowmelt shadow …`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// List and remove what 'snowmelt sync' keeps of directories
///
/// The shadow of a directory (or a disk image) that is synced to another machine has its names, attributes and the hashes of its
/// blocks, but no data. It lets the next sync send only what changed.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub struct ShadowArgs {
    #[command(subcommand)]
    pub command: ShadowCommand,
}

#[derive(Debug, Subcommand)]
pub enum ShadowCommand {
    List(ShadowListArgs),
    Destroy(ShadowDestroyArgs),
}

/// List shadows: their size, and where what they are of was sent
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt shadow list [-Hpj]")]
pub struct ShadowListArgs {
    /// No header, one tab between columns
    #[arg(short = 'H')]
    pub scripted: bool,
    /// Exact numbers
    #[arg(short = 'p')]
    pub parsable: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
}

/// Remove shadows
///
/// The next sync of the directory makes a new one, and has to send everything again, to a new target.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt shadow destroy <directory|image|name> ...")]
pub struct ShadowDestroyArgs {
    /// What they are of, or their names
    #[arg(required = true, value_name = "SHADOW")]
    pub shadows: Vec<PathBuf>,
}
