//! The other end of rsync.

use std::ffi::OsString;

use clap::Args;

/// Send to an rsync, or receive from it, over a remote shell
///
/// What rsync starts at the other end with --rsync-path='snowmelt rsync'. HOST:PATH is then a dataset (tank/home), a snapshot
/// (tank/home@monday), the newest snapshot of a dataset (tank/home@), a path in one of these (tank/home@monday/docs), or a path of that machine. What is pushed goes
/// to a dataset, as a new snapshot. The words are those that rsync gives, and the exit codes those of rsync.
#[derive(Debug, Args)]
#[command(override_usage = "rsync [option]... --rsync-path='snowmelt rsync' <host>:<path> <target>")]
pub struct RsyncArgs {
    /// What rsync says
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORDS")]
    pub words: Vec<OsString>,
}
