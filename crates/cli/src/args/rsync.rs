//! The other end of rsync.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Args, Parser};

/// Speak to an rsync over a remote shell, or be its daemon
///
/// What rsync starts at the other end with --rsync-path='snowmelt rsync'. HOST:PATH is then a dataset (tank/home), a
/// snapshot (tank/home@monday), the newest snapshot of a dataset (tank/home@), a path in one of these
/// (tank/home@monday/docs), or a path of that machine. The words are those that rsync gives, and the exit codes those of
/// rsync. With --daemon it serves the modules of an rsyncd.conf, as 'snowmelt serve rsync' does, with the options that
/// rsync's daemon has.
#[derive(Debug, Args)]
#[command(override_usage = "rsync [option]... --rsync-path='snowmelt rsync' <host>:<path> <target>\n       \
    snowmelt rsync --daemon [--config=file] [--address=address] [--port=port] [--no-detach] [--log-file=file]")]
pub struct RsyncArgs {
    /// What rsync says
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORDS")]
    pub words: Vec<OsString>,
}

/// The words after `rsync` when one of them is `--daemon` (rsync(1), "DAEMON OPTIONS").
#[derive(Debug, Parser)]
#[command(
    name = "rsync --daemon",
    no_binary_name = true,
    args_override_self = true,
    disable_version_flag = true
)]
pub struct RsyncDaemonArgs {
    /// Serve the modules of a configuration
    #[arg(long, required = true)]
    pub daemon: bool,
    /// Serve the one client at the other end of a remote shell
    #[arg(long)]
    pub server: bool,
    /// The configuration; /etc/rsyncd.conf if none is given
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Set a global parameter of the configuration
    #[arg(short = 'M', long, value_name = "PARAMETER=VALUE")]
    pub dparam: Vec<String>,
    /// Address or name to listen on
    #[arg(long, value_name = "ADDRESS")]
    pub address: Option<String>,
    /// TCP port to listen on
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Listen on IPv4 only
    #[arg(short = '4', long, overrides_with = "ipv6")]
    pub ipv4: bool,
    /// Listen on IPv6 only
    #[arg(short = '6', long, overrides_with = "ipv4")]
    pub ipv6: bool,
    /// Leave the terminal and stay in the background, which it does unless told otherwise
    #[arg(long, overrides_with = "no_detach")]
    pub detach: bool,
    /// Stay in the foreground
    #[arg(long, overrides_with = "detach")]
    pub no_detach: bool,
    /// Log file, instead of that of the configuration
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// Format of the lines about files
    #[arg(long, value_name = "FORMAT")]
    pub log_file_format: Option<String>,
    /// Options of sockets
    #[arg(long, value_name = "OPTIONS")]
    pub sockopts: Option<String>,
    /// KiB a second that each client gets at most
    #[arg(long, value_name = "RATE")]
    pub bwlimit: Option<u64>,
    /// Accepted, and changes nothing: files that are not whole have no names
    #[arg(short = 'T', long, value_name = "DIRECTORY")]
    pub temp_dir: Option<PathBuf>,
    /// Accepted, and changes nothing
    #[arg(short = 'v', long, action = ArgAction::Count)]
    pub verbose: u8,
    /// Accepted, and changes nothing
    #[arg(long, alias = "no-v")]
    pub no_verbose: bool,
    /// The process was started by one that waits until it is ready
    #[arg(long, hide = true)]
    pub is_background: bool,
    /// What a client over a remote shell adds
    #[arg(hide = true)]
    pub rest: Vec<OsString>,
}
