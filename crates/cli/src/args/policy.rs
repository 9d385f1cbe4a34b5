//! `policy`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Take, prune and replicate snapshots by rules
///
/// The rules are in a file (docs/policy.md). 'snowmelt serve' follows them all the time; 'run-once' does once what is due, for
/// a timer. The --monitor options print one line for Nagios, and exit with 0 (OK), 1 (warning), 2 (critical) or 3.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = false)]
#[command(override_usage = "snowmelt policy check|plan|status [--config file] [-j]\n       \
    snowmelt policy run-once [-q] [--config file] [-j]\n       \
    snowmelt policy --monitor-snapshots|--monitor-health|--monitor-capacity|--monitor-replication [--config file]")]
pub struct PolicyArgs {
    #[command(subcommand)]
    pub command: Option<PolicyCommand>,
    /// The policy: TOML, or a sanoid.conf. Without it /etc/snowmelt/policy.toml for root, and
    /// ~/.config/snowmelt/policy.toml for others
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    /// Print one JSON object
    #[arg(short = 'j', long, global = true)]
    pub json: bool,
    #[command(flatten)]
    pub monitor: MonitorArgs,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct MonitorArgs {
    /// Tell Nagios whether the newest snapshots are new enough
    #[arg(long)]
    pub monitor_snapshots: bool,
    /// Tell Nagios whether pools are well
    #[arg(long)]
    pub monitor_health: bool,
    /// Tell Nagios whether pools have room
    #[arg(long)]
    pub monitor_capacity: bool,
    /// Tell Nagios whether copies are up to date
    #[arg(long)]
    pub monitor_replication: bool,
}

#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Read the policy, and show what holds for each dataset
    Check,
    /// Show what would be done now, and why
    Plan,
    /// Do what is due
    RunOnce(PolicyRunArgs),
    /// Show what there is of each period, when the next is due, and how far behind copies are
    Status,
}

#[derive(Debug, Args)]
pub struct PolicyRunArgs {
    /// Say only what fails
    #[arg(short = 'q', long)]
    pub quiet: bool,
}
