//! `policy`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Take, prune and replicate snapshots on a schedule
///
/// The policy is a file (docs/policy.md). 'snowmelt serve' follows it all the time. 'run-once' does once what is due,
/// and can be run from a timer. The --monitor options print one line for Nagios, and exit with 0 (OK), 1 (warning), 2
/// (critical) or 3 (unknown).
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = false)]
#[command(override_usage = "snowmelt policy check|plan|status [--config file] [-j]\n       \
    snowmelt policy run-once [-q] [--config file] [-j]\n       \
    snowmelt policy --monitor-snapshots|--monitor-health|--monitor-capacity|--monitor-replication [--config file]")]
pub struct PolicyArgs {
    #[command(subcommand)]
    pub command: Option<PolicyCommand>,
    /// Policy file: TOML, or a sanoid.conf. Default: /etc/snowmelt/policy.toml for root, and
    /// ~/.config/snowmelt/policy.toml for other users
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
    /// Report to Nagios whether the newest snapshots are recent enough
    #[arg(long)]
    pub monitor_snapshots: bool,
    /// Report to Nagios whether pools are healthy
    #[arg(long)]
    pub monitor_health: bool,
    /// Report to Nagios whether pools have free space
    #[arg(long)]
    pub monitor_capacity: bool,
    /// Report to Nagios whether copies are up to date
    #[arg(long)]
    pub monitor_replication: bool,
}

#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Check the policy, and show the settings of each dataset
    Check,
    /// Show what is due now, and why
    Plan,
    /// Do what is due
    RunOnce(PolicyRunArgs),
    /// Show the snapshots of each period, when the next one is due, and the lag of copies
    Status,
}

#[derive(Debug, Args)]
pub struct PolicyRunArgs {
    /// Print only errors
    #[arg(short = 'q', long)]
    pub quiet: bool,
}
