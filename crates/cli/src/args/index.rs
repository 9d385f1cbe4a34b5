//! Indexes of directories.

use std::path::PathBuf;

use clap::Args;

/// Save an index of a directory for 'serve rsync'
///
/// The index is one file, DIR.index by default. A module of 'serve rsync' uses it with 'index = FILE'. A new index
/// replaces the old one atomically, also while clients are served. Every client sees the names and attributes in the
/// index. So create it as a user who can read only what is to be served. The exit status is 3 if some directories
/// could not be read.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(
    override_usage = "snowmelt index [-q] [--json] [-j threads] [--from-rsync-log <log> | --watch [--every <s>]] <dir> [<file>]"
)]
pub struct IndexArgs {
    /// Update the index from what rsync reports as changed, without reading the rest of the directory. LOG is rsync's
    /// log file, or its output with --itemize-changes, or - for standard input
    #[arg(long, value_name = "LOG")]
    pub from_rsync_log: Option<PathBuf>,
    /// Keep running, and update the index whenever something changes. Needs root, because it uses fanotify. FILE must
    /// not be in the directory
    #[arg(long, conflicts_with = "from_rsync_log")]
    pub watch: bool,
    /// With --watch: minimum time between two indexes, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub every: u32,
    /// Number of threads that read the directory
    #[arg(short = 'j', long, value_name = "THREADS", default_value_t = 4)]
    pub threads: u16,
    /// Print only errors
    #[arg(short = 'q', long)]
    pub quiet: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "watch")]
    pub json: bool,
    /// Directory to index
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// File for the index. Default: DIR.index
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
}
