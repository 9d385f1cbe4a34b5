//! The grammar of the command line. Parsing, usage texts, man pages and completions are all made from it.
//!
//! Verbs of `zfs` keep its flags and their meanings (zfs(8)). Short options can be joined, also with a value at the
//! end (`-Hpd 1`, `-ovalue`). They can be given twice, and can stand between or after the operands. `-h` belongs to
//! the verbs (`send -h` sends holds), so below the first level only `--help` asks for help.
//!
//! The groups are separate types, because the programs `zfs` and `zpool` have subsets of the same verbs.

mod dataset;
mod files;
mod index;
mod mount;
pub mod mount_helper;
mod parse;
mod personality;
mod policy;
mod pool;
mod pool_devices;
pub mod posix;
mod property_table;
mod replication;
mod rsync;
mod serve;
mod shadow;
mod spelling;
mod tools;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Args, CommandFactory, Parser, Subcommand};

pub use dataset::{
    BookmarkArgs, CloneArgs, CreateArgs, DatasetCommand, DestroyArgs, GetArgs, HoldArgs, HoldsArgs,
    InheritArgs, ListArgs, PromoteArgs, ReleaseArgs, RenameArgs, RollbackArgs, SetArgs, SnapshotArgs,
};
pub use files::{
    CatArgs, DiffArgs, FilesCommand, FindArgs, ImportArgs, LsArgs, ManifestArgs, PrivilegeArgs, RestoreArgs,
};
pub use index::IndexArgs;
pub use mount::{MountArgs, MountCommand, UnmountArgs};
pub use parse::{ParseFailure, parse, usage};
pub use personality::{UpgradeArgs, VersionArgs};
pub use policy::{PolicyArgs, PolicyCommand};
pub use pool::{
    CacheArgs, PoolArgs, PoolChangeKeyArgs, PoolClearArgs, PoolCommand, PoolCreateArgs, PoolDestroyArgs,
    PoolExportArgs, PoolGetArgs, PoolHistoryArgs, PoolImportArgs, PoolIostatArgs, PoolListArgs,
    PoolScrubArgs, PoolSegmentsArgs, PoolSetArgs, PoolStatusArgs, PoolSyncArgs, PoolTrimArgs,
};
pub use pool_devices::{
    PoolAttachArgs, PoolDetachArgs, PoolOfflineArgs, PoolOnlineArgs, PoolReplaceArgs, PoolResilverArgs,
};
pub use replication::{HealArgs, ReceiveArgs, ReplicationCommand, SendArgs, SyncArgs};
pub use rsync::{RsyncArgs, RsyncDaemonArgs};
pub use serve::{
    ServeArgs, ServeCommand, ServeNbdArgs, ServeRsyncArgs, ServeSyncArgs, ServeZvolArgs, TlsMode,
};
pub use shadow::{ShadowArgs, ShadowCommand, ShadowDestroyArgs, ShadowListArgs};
pub use snowmelt_host::program::{Program, RSYNC, ZSTREAMDUMP};
pub use tools::{
    CheckArgs, CompletionsArgs, ManArgs, SalvageArgs, ShimsArgs, StreamArgs, StreamCommand,
    StreamDecompressArgs, StreamDropRecordArgs, StreamDumpArgs, StreamRecompressArgs, StreamRedupArgs,
    StreamTokenArgs, StreamVerifyArgs, ToolsCommand,
};

/// Keep ZFS datasets and their snapshots on any machine.
///
/// snowmelt keeps copy-on-write pools in a directory, a disk image or a block device. It receives and sends OpenZFS
/// streams: `zfs send | snowmelt receive` and `snowmelt send | zfs receive` both work. It gives access to the files
/// of any snapshot. Its commands and flags are those of zfs(8) and zpool(8).
#[derive(Debug, Parser)]
#[command(name = "snowmelt", version, disable_help_flag = true, disable_help_subcommand = true)]
#[command(subcommand_required = true, args_override_self = true, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    pub global: GlobalArgs,
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Debug, Clone, Default, Args)]
pub struct GlobalArgs {
    /// Look for pools at PATH first: a pool, or a directory of pools. Can be given more than once. Default: the paths
    /// in SNOWMELT_POOLS, separated by colons
    #[arg(long = "pool-dir", value_name = "PATH", global = true, action = ArgAction::Append, display_order = 900)]
    pub pool_dirs: Vec<PathBuf>,
    /// Limit the memory for caches, unwritten changes and requests in progress. Default: SNOWMELT_MEMORY, else 512M
    /// or a quarter of the machine's memory, whichever is less
    #[arg(long, value_name = "SIZE", global = true, display_order = 900)]
    pub memory: Option<String>,
    /// Print help
    #[arg(long, global = true, action = ArgAction::Help, display_order = 901)]
    help: Option<bool>,
}

/// A verb with its arguments.
#[derive(Debug, Subcommand)]
pub enum Command {
    Pool(PoolArgs),
    Sync(SyncArgs),
    Heal(HealArgs),
    Shadow(ShadowArgs),
    Policy(PolicyArgs),
    #[command(flatten)]
    Replication(ReplicationCommand),
    #[command(flatten)]
    Dataset(DatasetCommand),
    #[command(flatten)]
    Files(FilesCommand),
    #[command(flatten)]
    Mount(MountCommand),
    Serve(ServeArgs),
    Rsync(RsyncArgs),
    Index(IndexArgs),
    #[command(flatten)]
    Tools(ToolsCommand),
    /// Prints rows of a listing for another process, which merges them with the rows of its own pools. Not for users.
    #[command(skip)]
    Rows(RowsArgs),
    /// Candidates for a word, for the completions of a shell.
    #[command(skip)]
    Complete(CompleteArgs),
    /// `zfs version` and `zpool version`.
    #[command(skip)]
    Version(Program, VersionArgs),
    /// `zfs upgrade` and `zpool upgrade`.
    #[command(skip)]
    Upgrade(Program, UpgradeArgs),
}

/// The arguments of `rows`. Internal to snowmelt: both ends have the same version.
#[derive(Debug)]
pub struct RowsArgs {
    /// The pool.
    pub pool: String,
    /// The request as JSON.
    pub request: String,
}

/// The arguments of `complete`.
#[derive(Debug)]
pub struct CompleteArgs {
    /// Index of the word that is being typed.
    pub index: usize,
    /// The words of the command line, the program's name first.
    pub words: Vec<OsString>,
}

/// The verbs in the order and under the headings of `snowmelt --help`.
const GROUPS: [(&str, &[&str]); 7] = [
    ("Pools", &["pool", "check", "salvage"]),
    ("Replication", &["sync", "heal", "shadow", "policy", "receive", "send", "stream"]),
    ("Datasets", &["list", "create", "clone", "promote", "rename", "destroy", "get", "set", "inherit"]),
    ("Snapshots", &["snapshot", "rollback", "bookmark", "hold", "holds", "release", "diff"]),
    ("Files", &["mount", "unmount", "import", "ls", "cat", "find", "restore", "manifest"]),
    ("Servers", &["serve", "rsync", "index"]),
    ("This program", &["shims", "completions", "man"]),
];

/// The whole grammar, with the verbs of the overview in groups.
pub fn command() -> clap::Command {
    let command = Cli::command();
    let mut verbs = String::new();
    for (heading, names) in GROUPS {
        verbs.push_str(&format!("{heading}:\n"));
        for name in names {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about);
            verbs.push_str(&format!("  {name:<12}{}\n", about.map(ToString::to_string).unwrap_or_default()));
        }
        verbs.push('\n');
    }
    let template = format!(
        "{{about}}\n\nUsage: snowmelt COMMAND [ARGUMENTS]\n\n{verbs}Options:\n{{options}}\n\n\
         Run 'snowmelt COMMAND --help' for the help of a command.\n"
    );
    command
        .help_template(template)
        .arg(clap::Arg::new("short-help").short('h').action(ArgAction::HelpShort).hide(true))
}

#[cfg(test)]
mod tests;
