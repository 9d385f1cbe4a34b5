//! Mounting.

use std::path::PathBuf;

use clap::{ArgAction, Args, Subcommand};

#[derive(Debug, Subcommand)]
pub enum MountCommand {
    Mount(MountArgs),
    #[command(visible_alias = "umount")]
    Unmount(UnmountArgs),
}

/// Mount a filesystem or a snapshot, or list what is mounted
///
/// A process stays in the background as long as anything of the pool is mounted; unmount, or umount(8), ends it. Without a
/// directory a filesystem is mounted where its mountpoint property says. Snapshots also show below .zfs/snapshot of
/// every mounted filesystem. Needs FUSE; users other than root need fusermount3.
///
/// A file that holds a stream is mounted like the newest snapshot in it, for reading, with the others below .zfs/snapshot. It is
/// indexed once, and no pool is needed.
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
    /// Options for this time, separated by commas: ro, rw, atime, noatime, relatime, dev, nodev, exec, noexec, suid,
    /// nosuid, xattr, noxattr, allow_other
    #[arg(short = 'o', value_name = "OPTIONS", action = ArgAction::Append)]
    pub options: Vec<String>,
    #[command(flatten)]
    pub privileges: MountPrivilegeArgs,
    /// Stay in the foreground until it is unmounted; an interrupt unmounts
    #[arg(long)]
    pub foreground: bool,
    /// Of a stream file: mount this dataset of it, by its name below the topmost one, or this snapshot ('home/user',
    /// '@monday', 'home@monday')
    #[arg(long = "dataset", value_name = "NAME")]
    pub member: Option<String>,
    /// Also on a directory that is not empty, although the property overlay is off
    #[arg(short = 'O')]
    pub overlay: bool,
    /// Accepted as zfs(8) has it
    #[arg(short = 'f')]
    pub force: bool,
    /// Say what is mounted
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Pass over options that are not known
    #[arg(long, hide = true)]
    pub sloppy: bool,
    /// Only what mount(8) of ZFS mounts: `legacy` filesystems, and those with `-o zfsutil`
    #[arg(long, hide = true)]
    pub only_legacy: bool,
    /// Do all but mount
    #[arg(long, hide = true)]
    pub fake: bool,
    /// With -a: only these filesystems
    #[arg(long, hide = true, value_name = "NAME", action = ArgAction::Append)]
    pub each: Vec<String>,
    /// With -a: only this filesystem and those below it
    #[arg(long, hide = true, value_name = "NAME")]
    pub below: Option<String>,
    /// Also by an owner that would otherwise end with its command
    #[arg(long, hide = true)]
    pub anyway: bool,
    /// This is the process that stays in the background; its standard output says when everything is mounted
    #[arg(long, hide = true)]
    pub detached: bool,
    /// Print what is mounted as JSON
    #[arg(short = 'j', long, conflicts_with_all = ["all", "dataset"])]
    pub json: bool,
    /// What to mount: a dataset, or a file that holds a stream
    #[arg(value_name = "DATASET|FILE")]
    pub dataset: Option<String>,
    /// Where
    #[arg(value_name = "DIRECTORY")]
    pub directory: Option<PathBuf>,
}

// As `PrivilegeArgs`, for what is there and not copied.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct MountPrivilegeArgs {
    /// Setuid and setgid bits and file capabilities count, as with -o suid: for data that you trust
    #[arg(long)]
    pub setuid: bool,
    /// Device nodes lead to devices, as with -o dev: for data that you trust
    #[arg(long)]
    pub devices: bool,
}

/// Unmount a filesystem or a snapshot
///
/// Returns when everything that was written is in the pool.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(
    override_usage = "snowmelt unmount [-f] -a [pool]\n       snowmelt unmount [-f] <filesystem|snapshot|directory>"
)]
pub struct UnmountArgs {
    /// Unmount everything, or everything of a pool
    #[arg(short = 'a')]
    pub all: bool,
    /// Unmount although it is in use: it is gone at once for all who do not use it yet
    #[arg(short = 'f')]
    pub force: bool,
    /// Accepted as zfs(8) has it; no keys are kept
    #[arg(short = 'u')]
    pub unload_key: bool,
    /// What to unmount
    #[arg(value_name = "DATASET|DIRECTORY", required_unless_present = "all")]
    pub target: Option<String>,
}
