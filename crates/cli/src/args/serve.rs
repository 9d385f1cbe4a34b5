//! Servers.

use std::path::PathBuf;

use clap::{ArgAction, Args, Subcommand, ValueEnum};

/// Run the policy, or serve what a pool holds to others
///
/// Without a subcommand this is the daemon of 'snowmelt policy': it takes snapshots, prunes and replicates when that is due,
/// until it is interrupted. SIGHUP makes it read the configuration again.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct ServeArgs {
    #[command(subcommand)]
    pub command: Option<ServeCommand>,
    /// The policy: TOML, or a sanoid.conf. Without it /etc/snowmelt/policy.toml for root, and
    /// ~/.config/snowmelt/policy.toml for others
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum ServeCommand {
    Nbd(ServeNbdArgs),
    Rsync(ServeRsyncArgs),
    Zvol(ServeZvolArgs),
    Sync(ServeSyncArgs),
}

/// Whether connections are encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TlsMode {
    /// Never
    Off,
    /// If the client asks
    Optional,
    /// Always
    Required,
}

/// Serve volumes as block devices over NBD
///
/// Every volume is an export of its own name (tank/vm1), to be read and written by several clients at once; every
/// snapshot of one (tank/vm1@monday) is one to be read. Without --listen and --unix, the server listens on
/// 127.0.0.1:10809. It runs until it is interrupted; then requests under way are answered and all is committed.
/// Clients that come and go are told on standard error.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt serve nbd [-rv] [--listen address[:port]]... [--unix path]... \
    [--tls mode --tls-dir directory [--verify-clients]] <pool|volume> ...")]
pub struct ServeNbdArgs {
    /// Everything is read-only
    #[arg(short = 'r', long)]
    pub read_only: bool,
    /// Tell of clients too that leave without choosing an export, and of each request that fails
    #[arg(short = 'v', long)]
    pub verbose: bool,
    /// TCP address to listen on; port 10809 if none is given
    #[arg(long, value_name = "ADDRESS", action = ArgAction::Append)]
    pub listen: Vec<String>,
    /// Unix socket to listen on: only its owner may connect, and TLS is not asked for there
    #[arg(long, value_name = "PATH", action = ArgAction::Append)]
    pub unix: Vec<PathBuf>,
    /// Whether connections are encrypted
    #[arg(long, value_name = "MODE", default_value = "off", requires_ifs = [("optional", "tls_dir"), ("required", "tls_dir")])]
    pub tls: TlsMode,
    /// Directory with server-cert.pem, server-key.pem and ca-cert.pem, as qemu and nbdkit have them
    #[arg(long, value_name = "DIRECTORY")]
    pub tls_dir: Option<PathBuf>,
    /// Let in only clients with a certificate from ca-cert.pem
    #[arg(long, requires = "tls_dir")]
    pub verify_clients: bool,
    /// Most connections at once
    #[arg(long, value_name = "COUNT", default_value_t = 256)]
    pub max_connections: usize,
    /// A pool, for all volumes in it, or the volumes, snapshots or filesystems with volumes below to be served; all of
    /// one pool. The first volume named is what clients get that name none
    #[arg(required = true)]
    pub targets: Vec<String>,
}

/// Serve directories, datasets and snapshots to rsync
///
/// What is served stands in an rsyncd.conf, as rsync's own daemon reads it, with two things more: a module's path may be a
/// dataset (tank/www), a snapshot (tank/www@monday), or the newest snapshot of a dataset at the time a client connects
/// (tank/www@), so that every client sees a tree that nobody changes meanwhile. Nothing is received. It runs until it is
/// interrupted.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt serve rsync [--config file] [--address address] [--port port] \
    [--max-connections count]\n       snowmelt serve rsync [--config file] --stdio")]
pub struct ServeRsyncArgs {
    /// What to serve
    #[arg(long, value_name = "FILE", default_value = "/etc/rsyncd.conf")]
    pub config: PathBuf,
    /// Address or name to listen on; that of the configuration, or every address of this machine, if none is given
    #[arg(long, value_name = "ADDRESS", conflicts_with = "stdio")]
    pub address: Option<String>,
    /// TCP port to listen on; that of the configuration, or 873, if none is given
    #[arg(long, value_name = "PORT", conflicts_with = "stdio")]
    pub port: Option<u16>,
    /// Serve one client, on standard input and output, as inetd and systemd start servers
    #[arg(long)]
    pub stdio: bool,
    /// Most connections at once
    #[arg(long, value_name = "COUNT", default_value_t = 256)]
    pub max_connections: usize,
}

/// Show volumes as files of a directory, as /dev/zvol has them
///
/// With the directory /vol, tank/vm1 is the file /vol/tank/vm1, for a loop device, qemu, or whatever else wants a path;
/// its snapshot is /vol/tank/vm1@monday, to be read. Holes can be made (fallocate, discard of a loop device) and found,
/// truncate(1) resizes the volume, and what fsync follows is durable. It runs until the directory is unmounted or it is
/// interrupted; files that are in use then stay until they are closed.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt serve zvol [-r] <directory> <pool|volume> ...")]
pub struct ServeZvolArgs {
    /// Everything is read-only
    #[arg(short = 'r', long)]
    pub read_only: bool,
    /// Where to mount
    pub directory: PathBuf,
    /// A pool, for all volumes in it, or the volumes, snapshots or filesystems with volumes below to be shown; all of
    /// one pool
    #[arg(required = true)]
    pub targets: Vec<String>,
}

/// Serve a pool to 'snowmelt sync', on standard input and output
///
/// What 'snowmelt sync' runs at the other end, over ssh. As the command of a key in authorized_keys
/// (command="snowmelt serve sync tank",restrict), the key can be used for nothing else.
///
/// A directory or a disk image (an absolute path) is served through its shadow, which 'snowmelt sync' brings up to date;
/// with --into, as what 'snowmelt sync' writes to.
#[derive(Debug, Args)]
#[command(
    override_usage = "snowmelt serve sync <pool|directory|image>\n       snowmelt serve sync --into <directory|image|device|file>"
)]
pub struct ServeSyncArgs {
    /// What is at this path is the target of a sync, and nothing else of this machine can be read or written
    #[arg(long)]
    pub into: bool,
    /// The pool, or the absolute path of a directory or a disk image
    #[arg(value_name = "POOL")]
    pub source: PathBuf,
}
