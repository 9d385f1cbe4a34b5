//! `rsync`: the remote end of an rsync connection.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Args, Parser};

/// Act as the remote end of rsync, or as its daemon
///
/// rsync starts this program on the remote host with --rsync-path='snowmelt rsync'. PATH in HOST:PATH can then be a
/// dataset (tank/home), a snapshot (tank/home@monday), the newest snapshot of a dataset (tank/home@), a path in one
/// of these (tank/home@monday/docs), or a path in the filesystem of the host. Arguments and exit codes are those of
/// rsync.
///
///
/// With --daemon, it serves the modules of an rsyncd.conf, like 'snowmelt serve rsync', and has the options of
/// rsync's daemon.
#[derive(Debug, Args)]
#[command(override_usage = "rsync [option]... --rsync-path='snowmelt rsync' <host>:<path> <target>\n       \
    snowmelt rsync --daemon [--config=file] [--address=address] [--port=port] [--no-detach] [--log-file=file]")]
pub struct RsyncArgs {
    /// Arguments from rsync
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORDS")]
    pub words: Vec<OsString>,
}

/// The arguments of `rsync --daemon` (rsync(1), "DAEMON OPTIONS").
#[derive(Debug, Parser)]
#[command(
    name = "rsync --daemon",
    no_binary_name = true,
    args_override_self = true,
    disable_version_flag = true
)]
pub struct RsyncDaemonArgs {
    /// Serve the modules of the configuration
    #[arg(long, required = true)]
    pub daemon: bool,
    /// Serve one client, which is connected by a remote shell
    #[arg(long)]
    pub server: bool,
    /// Configuration file. Default: /etc/rsyncd.conf
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
    /// Run in the background (default)
    #[arg(long, overrides_with = "no_detach")]
    pub detach: bool,
    /// Stay in the foreground
    #[arg(long, overrides_with = "detach")]
    pub no_detach: bool,
    /// Log file, instead of the one in the configuration
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// Format of the log lines for files
    #[arg(long, value_name = "FORMAT")]
    pub log_file_format: Option<String>,
    /// Socket options
    #[arg(long, value_name = "OPTIONS")]
    pub sockopts: Option<String>,
    /// Limit the bandwidth of each client, in KiB per second
    #[arg(long, value_name = "RATE")]
    pub bwlimit: Option<u64>,
    /// Accepted for compatibility; has no effect, because incomplete files have no names
    #[arg(short = 'T', long, value_name = "DIRECTORY")]
    pub temp_dir: Option<PathBuf>,
    /// Accepted for compatibility; has no effect
    #[arg(short = 'v', long, action = ArgAction::Count)]
    pub verbose: u8,
    /// Accepted for compatibility; has no effect
    #[arg(long, alias = "no-v")]
    pub no_verbose: bool,
    /// The process that started this one waits until it is ready
    #[arg(long, hide = true)]
    pub is_background: bool,
    /// Arguments that a client over a remote shell adds
    #[arg(hide = true)]
    pub rest: Vec<OsString>,
}
