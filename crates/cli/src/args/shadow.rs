//! `snowmelt shadow …`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// List and remove the shadows that 'snowmelt sync' keeps
///
/// If a directory or disk image is synced to another machine, its shadow has names, attributes and hashes of blocks,
/// but no data. With it the next sync sends only what changed.
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

/// List shadows, with their sizes and the targets of the syncs
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt shadow list [-Hpj]")]
pub struct ShadowListArgs {
    /// Print no header, and a tab between columns
    #[arg(short = 'H')]
    pub scripted: bool,
    /// Print exact numbers instead of rounded ones such as 1.5G
    #[arg(short = 'p')]
    pub parsable: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
}

/// Remove shadows
///
/// The next sync of the directory creates a new shadow. It needs a new target, and sends everything again.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt shadow destroy <directory|image|name> ...")]
pub struct ShadowDestroyArgs {
    /// Directories or images, or the names of their shadows
    #[arg(required = true, value_name = "SHADOW")]
    pub shadows: Vec<PathBuf>,
}
