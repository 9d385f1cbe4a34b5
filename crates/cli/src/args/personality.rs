//! The grammars of `zfs`, `zpool` and `zstream`. They consist of the verbs of `snowmelt`, under the names that ZFS
//! uses.

use std::ffi::OsString;

use clap::{ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use super::files::DiffArgs;
use super::{
    Cli, Command, DatasetCommand, FilesCommand, GlobalArgs, MountCommand, PoolArgs, PoolCommand, Program,
    ReplicationCommand, StreamArgs, StreamCommand, StreamDecompressArgs, StreamDropRecordArgs,
    StreamDumpArgs, StreamRecompressArgs, StreamRedupArgs, StreamTokenArgs, ToolsCommand,
};

#[derive(Debug, Parser)]
#[command(name = "zfs", disable_help_flag = true, disable_help_subcommand = true)]
#[command(subcommand_required = true, args_override_self = true)]
struct ZfsCli {
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    command: ZfsCommand,
}

#[derive(Debug, Subcommand)]
enum ZfsCommand {
    Version(VersionArgs),
    #[command(flatten)]
    Dataset(DatasetCommand),
    #[command(flatten)]
    Replication(ReplicationCommand),
    #[command(flatten)]
    Mount(MountCommand),
    Diff(DiffArgs),
    Upgrade(UpgradeArgs),
}

#[derive(Debug, Parser)]
#[command(name = "zpool", disable_help_flag = true, disable_help_subcommand = true)]
#[command(subcommand_required = true, args_override_self = true)]
struct ZpoolCli {
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    command: ZpoolCommand,
}

#[derive(Debug, Subcommand)]
enum ZpoolCommand {
    Version(VersionArgs),
    #[command(flatten)]
    Pool(Box<PoolCommand>),
    Upgrade(UpgradeArgs),
}

#[derive(Debug, Parser)]
#[command(name = "zstream", disable_help_flag = true, disable_help_subcommand = true)]
#[command(subcommand_required = true, args_override_self = true)]
struct ZstreamCli {
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    command: ZstreamCommand,
}

#[derive(Debug, Subcommand)]
enum ZstreamCommand {
    Version(VersionArgs),
    Dump(StreamDumpArgs),
    Decompress(StreamDecompressArgs),
    #[command(name = "drop_record")]
    DropRecord(StreamDropRecordArgs),
    Recompress(StreamRecompressArgs),
    Token(StreamTokenArgs),
    Redup(StreamRedupArgs),
}

impl ZstreamCommand {
    fn into_command(self) -> Command {
        let command = match self {
            Self::Version(args) => return Command::Version(Program::Zstream, args),
            Self::Dump(args) => StreamCommand::Dump(args),
            Self::Decompress(args) => StreamCommand::Decompress(args),
            Self::DropRecord(args) => StreamCommand::DropRecord(args),
            Self::Recompress(args) => StreamCommand::Recompress(args),
            Self::Token(args) => StreamCommand::Token(args),
            Self::Redup(args) => StreamCommand::Redup(args),
        };
        Command::Tools(ToolsCommand::Stream(StreamArgs { command }))
    }
}

/// Print the emulated version of ZFS, and the version of snowmelt
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(override_usage = "snowmelt version [-j]")]
pub struct VersionArgs {
    /// Print JSON
    #[arg(short = 'j', long, action = ArgAction::SetTrue)]
    pub json: bool,
}

/// Print the versions of pools and filesystems; there is never anything to upgrade
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(
    override_usage = "snowmelt upgrade [-v]\n       snowmelt upgrade [-r] [-V version] <-a | name ...>"
)]
pub struct UpgradeArgs {
    /// Print all versions
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Apply to all
    #[arg(short = 'a')]
    pub all: bool,
    /// Apply to descendants too
    #[arg(short = 'r')]
    pub recursive: bool,
    /// Upgrade only to this version
    #[arg(short = 'V', value_name = "VERSION")]
    pub version: Option<String>,
    /// Pools or datasets
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
}

/// The grammar of a shim.
pub fn grammar(program: Program) -> clap::Command {
    match program {
        Program::Zpool => ZpoolCli::command(),
        Program::Zstream => ZstreamCli::command(),
        Program::Snowmelt | Program::Zfs => ZfsCli::command(),
    }
}

/// Parses the words after the name of `zfs`, `zpool` or `zstream`.
///
/// # Errors
/// Those of clap.
pub fn parse(program: Program, grammar: &mut clap::Command, words: &[OsString]) -> clap::error::Result<Cli> {
    let argv = std::iter::once(OsString::from(program.name())).chain(words.iter().cloned());
    let matches = grammar.try_get_matches_from_mut(argv)?;
    Ok(match program {
        Program::Zpool => {
            let ZpoolCli { global, command } = ZpoolCli::from_arg_matches(&matches)?;
            let command = match command {
                ZpoolCommand::Version(args) => Command::Version(program, args),
                ZpoolCommand::Upgrade(args) => Command::Upgrade(program, args),
                ZpoolCommand::Pool(command) => Command::Pool(PoolArgs { command: *command }),
            };
            Cli { global, command }
        }
        Program::Zstream => {
            let ZstreamCli { global, command } = ZstreamCli::from_arg_matches(&matches)?;
            Cli { global, command: command.into_command() }
        }
        Program::Snowmelt | Program::Zfs => {
            let ZfsCli { global, command } = ZfsCli::from_arg_matches(&matches)?;
            let command = match command {
                ZfsCommand::Version(args) => Command::Version(program, args),
                ZfsCommand::Dataset(command) => Command::Dataset(command),
                ZfsCommand::Replication(command) => Command::Replication(command),
                ZfsCommand::Mount(command) => Command::Mount(command),
                ZfsCommand::Upgrade(args) => Command::Upgrade(program, args),
                ZfsCommand::Diff(args) => Command::Files(FilesCommand::Diff(args)),
            };
            Cli { global, command }
        }
    })
}

/// Verbs of zfs(8) that snowmelt does not have, with their usage in ZFS. Tools probe for some of them by their usage.
const ZFS_MISSING: [(&str, &str); 20] = [
    ("allow", "allow <filesystem|volume>"),
    (
        "change-key",
        "change-key [-l] [-o keyformat=<value>] [-o keylocation=<value>] [-o pbkdf2iters=<value>] <filesystem|volume>",
    ),
    ("groupspace", "groupspace [-Hinp] [-o field[,...]] <filesystem|snapshot|path>"),
    ("jail", "jail <jailid|jailname> <filesystem>"),
    ("load-key", "load-key [-rn] [-L <keylocation>] <-a | filesystem|volume>"),
    ("program", "program [-jn] <pool> <program file> [lua args...]"),
    ("project", "project [-d|-r] <directory|file ...>"),
    ("projectspace", "projectspace [-Hp] [-o field[,...]] <filesystem|snapshot|path>"),
    ("redact", "redact <snapshot> <bookmark> <redaction_snapshot> ..."),
    ("rewrite", "rewrite [-Prvx] [-o <offset>] [-l <length>] <directory|file ...>"),
    ("share", "share [-l] <-a [nfs|smb] | filesystem>"),
    ("unallow", "unallow [-rldug] <\"everyone\"|user|group>[,...] <filesystem|volume>"),
    ("unjail", "unjail <jailid|jailname> <filesystem>"),
    ("unload-key", "unload-key [-r] <-a | filesystem|volume>"),
    ("unshare", "unshare <-a [nfs|smb] | filesystem|mountpoint>"),
    ("unzone", "unzone <nsfile> <filesystem>"),
    ("userspace", "userspace [-Hinp] [-o field[,...]] <filesystem|snapshot|path>"),
    ("wait", "wait [-t <activity>] <filesystem>"),
    ("zone", "zone <nsfile> <filesystem>"),
    ("help", "help [<topic>]"),
];

/// The same of zpool(8).
const ZPOOL_MISSING: [(&str, &str); 13] = [
    ("add", "add [-fgLnP] [-o property=value] <pool> <vdev> ..."),
    ("checkpoint", "checkpoint [-d [-w]] <pool> ..."),
    ("ddtprune", "ddtprune -d|-p <amount> <pool>"),
    ("events", "events [-vHf [pool] | -c]"),
    ("initialize", "initialize [-c | -s | -u] [-w] <pool> [<device> ...]"),
    ("labelclear", "labelclear [-f] <vdev>"),
    ("prefetch", "prefetch -t <type> <pool>"),
    ("reguid", "reguid [-g guid] <pool>"),
    ("remove", "remove [-npsw] <pool> <device> ..."),
    ("reopen", "reopen [-n] <pool>"),
    ("split", "split [-gLnPl] [-o property=value] <pool> <newpool> [<device> ...]"),
    ("wait", "wait [-Hp] [-T d|u] [-t <activity>[,...]] <pool> [interval]"),
    ("help", "help [<topic>]"),
];

/// The same of zstream(8).
const ZSTREAM_MISSING: [(&str, &str); 2] =
    [("raw", "raw [-v] [-b <blocks>] [-g <guid>] <image|device>"), ("help", "help [<topic>]")];

/// The usage of a verb that ZFS has and snowmelt does not.
pub fn missing_verb(program: Program, verb: &str) -> Option<&'static str> {
    let table: &[_] = match program {
        Program::Snowmelt => &[],
        Program::Zfs => &ZFS_MISSING,
        Program::Zpool => &ZPOOL_MISSING,
        Program::Zstream => &ZSTREAM_MISSING,
    };
    table.iter().find(|(known, _)| *known == verb).map(|(_, usage)| *usage)
}
