//! Indexes of directories.

use std::path::PathBuf;

use clap::Args;

/// Write down what is in a directory, for 'serve rsync'
///
/// The index is one file, DIR.index unless FILE says otherwise; a module of 'serve rsync' names it ('index = FILE'). It is put
/// in the place of the one before at once and as a whole, also while clients are served. Make it as somebody who may read all that is
/// to be served and nothing else: names and attributes in it are shown to every client. The exit status is 3 if some directories could
/// not be read.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(
    override_usage = "snowmelt index [-q] [--json] [-j threads] [--from-rsync-log <log> | --watch [--every <s>]] <dir> [<file>]"
)]
pub struct IndexArgs {
    /// Bring the index up to date by what rsync says that it changed in the directory, and look at nothing else: its log file, or
    /// its output with --itemize-changes; standard input if it is -
    #[arg(long, value_name = "LOG")]
    pub from_rsync_log: Option<PathBuf>,
    /// Go on until interrupted, and make it anew whenever something changes. The kernel tells what (fanotify), which takes root; FILE
    /// must not be in the directory
    #[arg(long, conflicts_with = "from_rsync_log")]
    pub watch: bool,
    /// With --watch: seconds from one index to the next, at least
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub every: u32,
    /// Threads that read the directory
    #[arg(short = 'j', long, value_name = "THREADS", default_value_t = 4)]
    pub threads: u16,
    /// Say nothing unless something is wrong
    #[arg(short = 'q', long)]
    pub quiet: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "watch")]
    pub json: bool,
    /// The directory
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// The index
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
}
