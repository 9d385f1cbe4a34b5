//! `mount` and `unmount`.

use std::path::PathBuf;

use clap::{ArgAction, Args, Subcommand};

#[derive(Debug, Subcommand)]
pub enum MountCommand {
    Mount(MountArgs),
    #[command(visible_alias = "umount")]
    Unmount(UnmountArgs),
}

/// Mount a filesystem or snapshot, or list mounts
///
/// Without a directory, a filesystem is mounted at its mountpoint property. Its snapshots are in .zfs/snapshot. A
/// process runs in the background while anything of the pool is mounted; 'unmount' or umount(8) ends it. Needs FUSE;
/// users other than root also need fusermount3.
///
/// A stream file can be mounted read-only, without a pool. The mount shows its newest snapshot, and the others in
/// .zfs/snapshot. The file is indexed at the first mount.
#[derive(Debug, Clone, Default, Args)]
#[command(args_override_self = true)]
#[command(
    override_usage = "snowmelt mount [-j]\n       snowmelt mount [-fOv] [-o options] [--foreground] -a\n       \
    snowmelt mount [-fOv] [-o options] [--foreground] <filesystem|snapshot> [directory]\n       \
    snowmelt mount [-fOv] [-o options] [--foreground] [--dataset name] <streamfile> <directory>"
)]
pub struct MountArgs {
    /// Mount every filesystem whose canmount and mountpoint properties allow it
    #[arg(short = 'a')]
    pub all: bool,
    /// Mount options for this mount, separated by commas: ro, rw, atime, noatime, relatime, dev, nodev, exec, noexec,
    /// suid, nosuid, xattr, noxattr, allow_other
    #[arg(short = 'o', value_name = "OPTIONS", action = ArgAction::Append)]
    pub options: Vec<String>,
    #[command(flatten)]
    pub privileges: MountPrivilegeArgs,
    /// Stay in the foreground until the filesystem is unmounted. An interrupt (Ctrl-C) unmounts it
    #[arg(long)]
    pub foreground: bool,
    /// Dataset or snapshot of a stream file to mount, with its name relative to the topmost dataset ('home/user',
    /// '@monday', 'home@monday')
    #[arg(long = "dataset", value_name = "NAME")]
    pub member: Option<String>,
    /// Mount on a directory that is not empty, even if the property overlay is off
    #[arg(short = 'O')]
    pub overlay: bool,
    /// Accepted for compatibility with zfs(8)
    #[arg(short = 'f')]
    pub force: bool,
    /// Print what is mounted
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Ignore unknown options
    #[arg(long, hide = true)]
    pub sloppy: bool,
    /// Mount only what mount(8) of ZFS mounts: `legacy` filesystems, and those with `-o zfsutil`
    #[arg(long, hide = true)]
    pub only_legacy: bool,
    /// Do everything except the mount itself
    #[arg(long, hide = true)]
    pub fake: bool,
    /// With -a: mount only these filesystems
    #[arg(long, hide = true, value_name = "NAME", action = ArgAction::Append)]
    pub each: Vec<String>,
    /// With -a: mount only this filesystem and its descendants
    #[arg(long, hide = true, value_name = "NAME")]
    pub below: Option<String>,
    /// Also mount in an owner that would otherwise end with its command
    #[arg(long, hide = true)]
    pub anyway: bool,
    /// Run as the background process, which reports on standard output when everything is mounted
    #[arg(long, hide = true)]
    pub detached: bool,
    /// Print the list of mounts as JSON
    #[arg(short = 'j', long, conflicts_with_all = ["all", "dataset"])]
    pub json: bool,
    /// Filesystem, snapshot or stream file to mount
    #[arg(value_name = "DATASET|FILE")]
    pub dataset: Option<String>,
    /// Directory to mount on. Default: the mountpoint property
    #[arg(value_name = "DIRECTORY")]
    pub directory: Option<PathBuf>,
}

// Like `PrivilegeArgs`, but for mounts instead of copies. (A doc comment would become the help of the command.)
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct MountPrivilegeArgs {
    /// Honor setuid and setgid bits and file capabilities, like -o suid. Use only for trusted data
    #[arg(long)]
    pub setuid: bool,
    /// Allow access to devices through device nodes, like -o dev. Use only for trusted data
    #[arg(long)]
    pub devices: bool,
}

/// Unmount a filesystem or snapshot
///
/// Returns when all data is written to the pool.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(
    override_usage = "snowmelt unmount [-f] -a [pool]\n       snowmelt unmount [-f] <filesystem|snapshot|directory>"
)]
pub struct UnmountArgs {
    /// Unmount all filesystems, or all of a pool
    #[arg(short = 'a')]
    pub all: bool,
    /// Unmount even if the filesystem is in use. It disappears at once, except for processes that already use it
    #[arg(short = 'f')]
    pub force: bool,
    /// Accepted for compatibility with zfs(8); has no effect, because no keys are loaded
    #[arg(short = 'u')]
    pub unload_key: bool,
    /// Filesystem, snapshot or directory to unmount
    #[arg(value_name = "DATASET|DIRECTORY", required_unless_present = "all")]
    pub target: Option<String>,
}
