//! Servers.

use std::path::PathBuf;

use clap::{ArgAction, Args, Subcommand, ValueEnum};

use super::PrivilegeArgs;

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
    /// Write warnings and errors only
    #[arg(short = 'q', long, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Write also when what is looked at next, and which jobs begin
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
/// snapshot of one (tank/vm1@monday) is one to be read. Without --listen and --unix, the server listens on a Unix socket
/// that only its user can connect to, and prints where that is. TCP needs TLS, and clients with certificates.
///
/// It runs until it is interrupted; then requests under way are answered and all is committed. Clients that come and go are
/// reported on standard error.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt serve nbd [-qrv] [--unix path]... <pool|volume> ...\n       \
    snowmelt serve nbd [-qrv] --listen address[:port] --tls-dir directory [--clients file] <pool|volume> ...")]
pub struct ServeNbdArgs {
    /// Everything is read-only
    #[arg(short = 'r', long)]
    pub read_only: bool,
    /// Write warnings and errors only
    #[arg(short = 'q', long, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Write of clients too that leave without choosing an export, and of each request that fails
    #[arg(short = 'v', long)]
    pub verbose: bool,
    /// TCP address to listen on; port 10809 if none is given. Needs --tls-dir, or --insecure
    #[arg(long, value_name = "ADDRESS", action = ArgAction::Append)]
    pub listen: Vec<String>,
    /// Unix socket to listen on: only its owner may connect, and TLS is not asked for there
    #[arg(long, value_name = "PATH", action = ArgAction::Append)]
    pub unix: Vec<PathBuf>,
    /// Directory with server-cert.pem, server-key.pem and ca-cert.pem, as qemu and nbdkit have them. Connections over TCP
    /// are encrypted, and only clients with a certificate from ca-cert.pem are let in
    #[arg(long, value_name = "DIRECTORY")]
    pub tls_dir: Option<PathBuf>,
    /// TOML file that says which certificate may use which exports; without it, each certificate from ca-cert.pem may use all
    /// that is served
    #[arg(long, value_name = "FILE", requires = "tls_dir", conflicts_with = "insecure")]
    pub clients: Option<PathBuf>,
    /// Let in clients over TCP without TLS, or with --tls-dir without a certificate: whoever reaches the address reads and
    /// writes all that is served
    #[arg(long)]
    pub insecure: bool,
    /// Whether connections over TCP are encrypted: with --tls-dir they are, and anything else needs --insecure
    #[arg(long, value_name = "MODE", requires_ifs = [("optional", "tls_dir"), ("required", "tls_dir")])]
    pub tls: Option<TlsMode>,
    /// Most connections at once
    #[arg(long, value_name = "COUNT", default_value_t = 256)]
    pub max_connections: usize,
    /// Most connections at once over TCP from one address (of IPv6: from one network of 64 bits)
    #[arg(long, value_name = "COUNT", default_value_t = 64)]
    pub max_connections_per_machine: usize,
    /// A pool, for all volumes in it, or the volumes, snapshots or filesystems with volumes below to be served; all of
    /// one pool. The first volume named is what clients get that name none
    #[arg(required = true)]
    pub targets: Vec<String>,
}

/// Serve directories, datasets and snapshots to rsync
///
/// What is served stands in an rsyncd.conf, as rsync's own daemon reads it, with two things more: a module's path may be a
/// dataset (tank/www), a snapshot (tank/www@monday), or the newest snapshot of a dataset at the time a client connects
/// (tank/www@), so that every client sees a tree that nobody changes meanwhile. Clients may also push into a dataset, where its
/// module says 'read only = no': each push becomes a snapshot. It runs until it is interrupted.
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
/// (command="snowmelt serve sync --append-only tank/backup/web1",restrict), it says what the key is good for: the dataset with
/// everything below it, and nothing else of the pool. The dataset need not exist: the first sync makes it.
///
/// A directory or a disk image (an absolute path) is served through its shadow, which 'snowmelt sync' brings up to date,
/// and as a source only; with --into, as what 'snowmelt sync' writes to.
#[derive(Debug, Args)]
#[command(
    override_usage = "snowmelt serve sync [--send-only | --receive-only | --append-only] [--allow-property name[,name]...] <pool|dataset>\n       \
    snowmelt serve sync <directory|image>\n       snowmelt serve sync --into <directory|image|device|file>"
)]
pub struct ServeSyncArgs {
    /// What is at this path is the target of a sync, and nothing else of this machine can be read or written
    #[arg(long, conflicts_with_all = ["send_only", "receive_only", "append_only", "allow_property"])]
    pub into: bool,
    /// The client may only be sent what is there: it takes and destroys snapshots and bookmarks of syncs, and changes nothing else
    #[arg(long, conflicts_with_all = ["receive_only", "append_only", "allow_property"])]
    pub send_only: bool,
    /// The client may only send: nothing is read, and nothing destroyed but what is in the way of a sync with --force
    #[arg(long)]
    pub receive_only: bool,
    /// The client may only send, and nothing that is there is destroyed, rolled back or renamed
    #[arg(long)]
    pub append_only: bool,
    /// Properties that the client may set besides those that are harmless, such as mountpoint or quota; 'all' for every one
    #[arg(long, value_name = "NAMES", value_delimiter = ',', action = ArgAction::Append)]
    pub allow_property: Vec<String>,
    #[command(flatten)]
    pub privileges: PrivilegeArgs,
    /// The pool, a dataset, or the absolute path of a directory or a disk image
    #[arg(value_name = "POOL")]
    pub source: PathBuf,
}
