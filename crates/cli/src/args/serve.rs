//! `serve` and its subcommands.

use std::path::PathBuf;

use clap::{ArgAction, Args, Subcommand, ValueEnum};

use super::PrivilegeArgs;

/// Run the policy daemon, or serve volumes, files or a pool
///
/// Without a subcommand, this is the daemon of 'snowmelt policy'. It takes, prunes and replicates snapshots when they
/// are due, until it is interrupted. On SIGHUP it reads the configuration again.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct ServeArgs {
    #[command(subcommand)]
    pub command: Option<ServeCommand>,
    /// Policy file: TOML, or a sanoid.conf. Default: /etc/snowmelt/policy.toml for root, and
    /// ~/.config/snowmelt/policy.toml for other users
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Log only warnings and errors
    #[arg(short = 'q', long, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Log also the time of the next check, and the start of jobs
    #[arg(short = 'v', long)]
    pub verbose: bool,
}

#[derive(Debug, Subcommand)]
pub enum ServeCommand {
    Nbd(ServeNbdArgs),
    Rsync(ServeRsyncArgs),
    Zvol(ServeZvolArgs),
    Sync(ServeSyncArgs),
}

/// Use of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TlsMode {
    /// No connection is encrypted
    Off,
    /// Connections are encrypted if the client asks for it
    Optional,
    /// All connections are encrypted
    Required,
}

/// Serve volumes as block devices over NBD
///
/// Every volume is an export with the name of the volume (tank/vm1). Several clients can read and write it at the
/// same time. Every snapshot of a volume (tank/vm1@monday) is a read-only export. Without --listen and --unix, the
/// server listens on a Unix socket to which only its user can connect, and prints the path of the socket. TCP needs
/// TLS and client certificates.
///
/// The server runs until it is interrupted. Then it answers the requests in progress and commits all data. It logs
/// connections of clients on standard error.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt serve nbd [-qrv] [--unix path]... <pool|volume> ...\n       \
    snowmelt serve nbd [-qrv] --listen address[:port] --tls-dir directory [--clients file] <pool|volume> ...")]
pub struct ServeNbdArgs {
    /// Serve everything read-only
    #[arg(short = 'r', long)]
    pub read_only: bool,
    /// Log only warnings and errors
    #[arg(short = 'q', long, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Log also clients that leave without choosing an export, and each failed request
    #[arg(short = 'v', long)]
    pub verbose: bool,
    /// TCP address to listen on. Default port: 10809. Needs --tls-dir or --insecure
    #[arg(long, value_name = "ADDRESS", action = ArgAction::Append)]
    pub listen: Vec<String>,
    /// Unix socket to listen on. Only its owner can connect to it, without TLS
    #[arg(long, value_name = "PATH", action = ArgAction::Append)]
    pub unix: Vec<PathBuf>,
    /// Directory with server-cert.pem, server-key.pem and ca-cert.pem, as for qemu and nbdkit. TCP connections are
    /// encrypted, and only clients with a certificate signed by ca-cert.pem are accepted
    #[arg(long, value_name = "DIRECTORY")]
    pub tls_dir: Option<PathBuf>,
    /// TOML file with the exports that each certificate may use. Without it, each certificate signed by ca-cert.pem
    /// may use all exports
    #[arg(long, value_name = "FILE", requires = "tls_dir", conflicts_with = "insecure")]
    pub clients: Option<PathBuf>,
    /// Accept TCP clients without TLS, or with --tls-dir without a certificate. Anyone who can reach the address can
    /// read and write all exports
    #[arg(long)]
    pub insecure: bool,
    /// Use of TLS for TCP connections. Default with --tls-dir: required. Other modes need --insecure
    #[arg(long, value_name = "MODE", requires_ifs = [("optional", "tls_dir"), ("required", "tls_dir")])]
    pub tls: Option<TlsMode>,
    /// Maximum number of connections
    #[arg(long, value_name = "COUNT", default_value_t = 256)]
    pub max_connections: usize,
    /// Maximum number of TCP connections from one address (for IPv6, from one /64 network)
    #[arg(long, value_name = "COUNT", default_value_t = 64)]
    pub max_connections_per_machine: usize,
    /// A pool, or volumes, snapshots of volumes or filesystems. Of a pool or filesystem, all volumes below it are
    /// served. All must be in one pool. The first volume given is the default export
    #[arg(required = true)]
    pub targets: Vec<String>,
}

/// Serve directories, datasets and snapshots to rsync
///
/// The configuration is an rsyncd.conf of rsync's daemon. In addition, the path of a module can be a dataset
/// (tank/www), a snapshot (tank/www@monday), or the newest snapshot of a dataset when a client connects (tank/www@).
/// A client of a snapshot reads a tree that does not change during the transfer. With 'read only = no' in its module,
/// clients can push into a dataset; each push becomes a snapshot. The server runs until it is interrupted.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt serve rsync [--config file] [--address address] [--port port] \
    [--max-connections count]\n       snowmelt serve rsync [--config file] --stdio")]
pub struct ServeRsyncArgs {
    /// Configuration file
    #[arg(long, value_name = "FILE", default_value = "/etc/rsyncd.conf")]
    pub config: PathBuf,
    /// Address or host name to listen on. Default: the address in the configuration, else all addresses of this
    /// machine
    #[arg(long, value_name = "ADDRESS", conflicts_with = "stdio")]
    pub address: Option<String>,
    /// TCP port to listen on. Default: the port in the configuration, else 873
    #[arg(long, value_name = "PORT", conflicts_with = "stdio")]
    pub port: Option<u16>,
    /// Serve one client on standard input and output, for inetd and systemd
    #[arg(long)]
    pub stdio: bool,
    /// Maximum number of connections
    #[arg(long, value_name = "COUNT", default_value_t = 256)]
    pub max_connections: usize,
}

/// Show volumes as files in a directory, like /dev/zvol
///
/// With the directory /vol, the volume tank/vm1 is the file /vol/tank/vm1, for a loop device, qemu or other programs.
/// Its snapshot is the read-only file /vol/tank/vm1@monday. Holes can be punched (fallocate, discard of a loop
/// device) and found. truncate(1) resizes the volume. After fsync, data is durable. The server runs until the
/// directory is unmounted or it is interrupted. Open files can be used until they are closed.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt serve zvol [-r] <directory> <pool|volume> ...")]
pub struct ServeZvolArgs {
    /// Serve everything read-only
    #[arg(short = 'r', long)]
    pub read_only: bool,
    /// Directory to mount on
    pub directory: PathBuf,
    /// A pool, or volumes, snapshots of volumes or filesystems. Of a pool or filesystem, all volumes below it are
    /// shown. All must be in one pool
    #[arg(required = true)]
    pub targets: Vec<String>,
}

/// Serve a pool to 'snowmelt sync' on standard input and output
///
/// 'snowmelt sync' runs this command on the other machine over ssh. It can be the command of a key in authorized_keys
/// (command="snowmelt serve sync --append-only tank/backup/web1",restrict). Then the key gives access to this dataset
/// and its descendants, and to nothing else in the pool. If the dataset does not exist, the first sync creates it.
///
/// A directory or disk image, as an absolute path, is served as a source, through its shadow. With --into, it is
/// served as a target.
#[derive(Debug, Args)]
#[command(
    override_usage = "snowmelt serve sync [--send-only | --receive-only | --append-only] [--allow-property name[,name]...] <pool|dataset>\n       \
    snowmelt serve sync <directory|image>\n       snowmelt serve sync --into <directory|image|device|file>"
)]
pub struct ServeSyncArgs {
    /// Serve this path as the target of a sync. The client can read and write nothing else on this machine
    #[arg(long, conflicts_with_all = ["send_only", "receive_only", "append_only", "allow_property"])]
    pub into: bool,
    /// Allow the client only to read. It can also create and destroy the snapshots and bookmarks of syncs
    #[arg(long, conflicts_with_all = ["receive_only", "append_only", "allow_property"])]
    pub send_only: bool,
    /// Allow the client only to send. It can destroy only what 'snowmelt sync --force' has to
    #[arg(long)]
    pub receive_only: bool,
    /// Allow the client only to send. It can destroy, roll back or rename nothing
    #[arg(long)]
    pub append_only: bool,
    /// Properties that the client may set, besides harmless ones: mountpoint, quota and so on, or 'all'
    #[arg(long, value_name = "NAMES", value_delimiter = ',', action = ArgAction::Append)]
    pub allow_property: Vec<String>,
    #[command(flatten)]
    pub privileges: PrivilegeArgs,
    /// Pool, dataset, or absolute path of a directory or disk image
    #[arg(value_name = "POOL")]
    pub source: PathBuf,
}
