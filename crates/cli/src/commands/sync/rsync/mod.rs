//! Syncs with servers of rsync: a daemon, or whatever rsync another machine has, over a remote shell.

mod address;
mod shown;
mod transfer;
mod way;

use std::ffi::OsString;
use std::io;
use std::path::Path;

use snowmelt_replicate::target::is_stream_name;
use snowmelt_rsync::client::{Direction, Wishes};

use self::address::Address;
use self::transfer::carry_out;
use self::way::{Connected, Unconnected};
use super::place::{self, Place, Remote, split_host};
use super::{PAUSE, PAUSE_MAX, pause_for, rate};
use crate::app::App;
use crate::args::SyncArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;

/// How long a server may be silent. It gives no sign of life while it reads the files to send.
const TIMEOUT_SECONDS: u32 = 300;
/// What `--remote-command` is without a word.
const OWN_PROGRAM: &str = "snowmelt";
/// How a transfer ends, from process to process, that lost its connection: as rsync has it.
const LOST: Exit = Exit::Other(12);

/// Source, target and direction.
pub(super) struct Transfer {
    address: Address,
    direction: Direction,
    /// The dataset here, or where it is the source, a snapshot or with `@` the newest one.
    tree: String,
    /// Snowmelt, which was meant, is not there.
    is_instead: bool,
}

impl Transfer {
    /// Understands a sync with a server of rsync; nothing if neither side is one.
    ///
    /// # Errors
    /// When the other side is not a dataset of this machine.
    pub(super) fn parse(app: &App<'_>, args: &SyncArgs) -> Result<Option<Self>> {
        let (address, direction, text) = match (Address::parse(&args.source)?, Address::parse(&args.target)?)
        {
            // Called by another process, which found that the host does not have snowmelt.
            (None, None) if args.connected.is_some() => return Self::instead(args),
            (None, None) => return Ok(None),
            (Some(source), None) => (source, Direction::Pull, &args.target),
            (None, Some(target)) => (target, Direction::Push, &args.source),
            (Some(_), Some(_)) => return Err(not_here(args)),
        };
        if args.connected.is_some() {
            // By another process, which may look for pools in other places than this one, their owner.
            return Ok(Some(Self { address, direction, tree: text.clone(), is_instead: false }));
        }
        // Only of a source a snapshot can be meant.
        let name = match text.split_once('@') {
            Some((name, _)) if direction == Direction::Push => name,
            _ => text,
        };
        let place = place::parse(app, name)?;
        let Place::Dataset(Remote { host: None, is_zfs: false, .. }) = &place else {
            return Err(not_here(args));
        };
        Ok(Some(Self { address, direction, tree: text.clone(), is_instead: false }))
    }

    /// The dataset here.
    fn dataset(&self) -> Remote {
        Remote::here(self.tree.split('@').next().unwrap_or_default())
    }

    /// Parses a sync between `host:/path` and a dataset of this machine as a sync through the rsync there. `None` for
    /// anything else.
    fn instead(args: &SyncArgs) -> Result<Option<Self>> {
        let ends = (Address::parse_directory(&args.source)?, Address::parse_directory(&args.target)?);
        let (address, direction, tree) = match ends {
            (Some(source), None) => (source, Direction::Pull, &args.target),
            (None, Some(target)) => (target, Direction::Push, &args.source),
            _ => return Ok(None),
        };
        let is_here = split_host(tree).0.is_none()
            && !tree.starts_with(['/', '.', '~', '-'])
            && !tree.starts_with("zfs:");
        let is_stream = direction == Direction::Push && is_stream_name(Path::new(&args.target));
        let tree = tree.clone();
        Ok((is_here && !is_stream).then_some(Self { address, direction, tree, is_instead: true }))
    }
}

/// Whether this names a server of rsync, or a directory of another machine, neither of which has snapshots.
pub(in crate::commands) fn is_without_snapshots(text: &str) -> bool {
    !matches!(Address::parse(text), Ok(None)) || matches!(Address::parse_directory(text), Ok(Some(_)))
}

/// For a sync with an rsync server: the dataset on this machine, and its position in the arguments. `None` for
/// anything else.
///
/// # Errors
/// When it cannot be done: the other side is not a dataset of this machine, or an option is not supported by rsync.
pub(in crate::commands) fn dataset_of(app: &App<'_>, args: &SyncArgs) -> Result<Option<(Direction, Remote)>> {
    let Some(transfer) = Transfer::parse(app, args)? else {
        check_unused(args)?;
        return Ok(None);
    };
    wishes(args, transfer.direction)?;
    Ok(Some((transfer.direction, transfer.dataset())))
}

fn not_here(args: &SyncArgs) -> CliError {
    CliError::Failed(format!(
        "cannot sync '{}' to '{}': one of them is an rsync server, so the other must be a dataset of this machine",
        args.source, args.target
    ))
}

/// Refuses options that are only for rsync servers.
///
/// # Errors
/// When one of these options was given.
pub(super) fn check_unused(args: &SyncArgs) -> Result<()> {
    // For a directory there, files are always deleted, except if only its rsync is used.
    let is_directory = Address::parse_directory(&args.target)?.is_some();
    let given = [
        (args.delete && !is_directory, "--delete"),
        (!args.filter.is_empty(), "--filter"),
        (args.checksum, "--checksum"),
        (args.partial, "--partial"),
        (args.password_file.is_some(), "--password-file"),
        (args.timeout.is_some(), "--timeout"),
        (args.connected.is_some(), "--connected"),
    ];
    match given.iter().find(|(is_given, _)| *is_given) {
        None => Ok(()),
        Some((_, flag)) => Err(CliError::Usage(format!(
            "{flag} is only for rsync servers (rsync://host/module/path, host:rsync:/path)"
        ))),
    }
}

fn wishes(args: &SyncArgs, direction: Direction) -> Result<Wishes> {
    let is_push = direction == Direction::Push;
    let refused = [
        (args.recursive, "--recursive", "an rsync server has no datasets"),
        (args.force, "--force", "the earlier state is in snapshots"),
        (args.newest_only, "--newest-only", "there is only one state"),
        (args.no_snapshot, "--no-snapshot", "give the snapshot (tank/www@monday), or the newest (tank/www@)"),
        (args.identifier.is_some(), "--identifier", "nothing is kept at either end"),
        (args.no_hold, "--no-hold", "no snapshot is held"),
        (args.properties, "--props", "rsync has no properties"),
        (args.raw, "--raw", "rsync transfers files, not blocks"),
        (!args.without.is_empty(), "-x", "rsync has no properties"),
        (is_push && !args.set.is_empty(), "-o", "rsync has no properties"),
        (args.compress.is_some_and(|level| level != 3), "--compress=LEVEL", "the server chooses the level"),
    ];
    if let Some((_, flag, why)) = refused.iter().find(|(is_given, ..)| *is_given) {
        return Err(CliError::Usage(format!("{flag} is not supported for rsync servers: {why}")));
    }
    let excluded = args.exclude.iter().map(|pattern| format!("- {pattern}"));
    let wishes = Wishes {
        delete: args.delete || !is_push,
        dry_run: args.dry_run,
        checksum: args.checksum,
        partial: args.partial,
        compress: args.compress.is_some(),
        verbose: args.verbose || args.dry_run,
        bandwidth: rate(args)?.unwrap_or(0),
        timeout_seconds: args.timeout.unwrap_or(TIMEOUT_SECONDS),
        rules: args.filter.iter().cloned().chain(excluded).collect(),
    };
    wishes.check_rules().map_err(|error| CliError::Usage(error.to_string()))?;
    Ok(wishes)
}

/// Brings one side up to date, as often as it takes.
///
/// # Errors
/// When the server cannot be reached or fails, or there is no space.
pub(super) fn run(app: &mut App<'_>, args: &SyncArgs, transfer: &Transfer) -> Result<Exit> {
    let wishes = wishes(args, transfer.direction)?;
    match args.connected {
        Some(protocol) => carry_out(app, args, transfer, &wishes, protocol),
        None => {
            let dataset = transfer.dataset();
            let name = dataset.dataset.clone();
            place::check_pool(app, &Place::Dataset(dataset), &name)?;
            repeat(app, args, transfer, &wishes)
        }
    }
}

/// Continues through the rsync of a machine that does not have snowmelt. `why` is the error about this.
///
/// # Errors
/// As `run`; when there is nothing that rsync could do.
pub(super) fn run_instead(app: &mut App<'_>, args: &SyncArgs, why: String) -> Result<Exit> {
    // Another program that was named is no rsync.
    let transfer = match args.remote_command == OWN_PROGRAM {
        true => Transfer::instead(args)?,
        false => None,
    };
    let Some(transfer) = transfer else { return Err(CliError::NoProgram(why)) };
    let wishes = wishes(args, transfer.direction)
        .map_err(|error| CliError::Failed(format!("{why}\nits rsync failed too: {error}")))?;
    let host = &transfer.address.host;
    app.context.complain(format_args!("'{host}' has no {OWN_PROGRAM}: using its rsync"));
    repeat(app, args, &transfer, &wishes)
}

fn repeat(app: &mut App<'_>, args: &SyncArgs, transfer: &Transfer, wishes: &Wishes) -> Result<Exit> {
    let words = app.context.args.clone();
    let (mut left, mut pause, mut was_reached) = (args.retries, PAUSE, false);
    loop {
        match Connected::open(app, args, &transfer.address, (wishes, transfer.direction)) {
            Ok(connected) => {
                was_reached = true;
                let socket = connected.socket.try_clone().map_err(CliError::Output)?;
                let stdin = std::mem::replace(&mut app.context.stdin, socket);
                app.context.args = with_connection(&words, connected.protocol);
                let result = carry_out(app, args, transfer, wishes, connected.protocol);
                app.context.args.clone_from(&words);
                app.context.stdin = stdin;
                let status = connected.close(matches!(result, Ok(Exit::Ok)));
                match (result?, status) {
                    (exit, _) if exit == LOST => {}
                    // What its receiver could not do at the very end.
                    (Exit::Ok, Some(code)) if transfer.direction == Direction::Push => {
                        app.context.complain(format_args!(
                            "cannot sync '{}' to '{}': rsync there ended with code {code}",
                            args.source, args.target
                        ));
                        return Ok(Exit::Partial);
                    }
                    (exit, _) => return Ok(exit),
                }
            }
            Err(Unconnected::Failed(error)) => return Err(error),
            Err(Unconnected::NoProgram(program)) => return Err(no_program(transfer, &program)),
            Err(Unconnected::Lost(lost)) if was_reached => app.context.complain(lost),
            Err(Unconnected::Lost(lost)) => return Err(CliError::Failed(lost)),
        }
        if app.context.is_cancelled() || left == 0 {
            return Ok(Exit::Failed);
        }
        left -= 1;
        app.context.complain(format_args!("trying again in {} s", pause.as_secs()));
        pause_for(app, pause)?;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

fn no_program(transfer: &Transfer, program: &str) -> CliError {
    let host = &transfer.address.host;
    CliError::Failed(match transfer.is_instead {
        true => format!(
            "cannot reach '{host}': neither '{OWN_PROGRAM}' nor '{program}' is in its PATH: install one of them \
             there, or give the path of {OWN_PROGRAM} with --remote-command"
        ),
        false => format!(
            "cannot reach '{host}': '{program}' is not in its PATH: install it there, or give its path with \
             --remote-command"
        ),
    })
}

/// The arguments with which another process continues.
fn with_connection(words: &[OsString], protocol: u8) -> Vec<OsString> {
    let at = words.iter().position(|word| word == "sync").map_or(words.len(), |at| at + 1);
    let mut words = words.to_vec();
    words.insert(at, format!("--connected={protocol}").into());
    words
}

/// How a connection failed.
fn lost(args: &SyncArgs, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("the server sent nothing for {} s", args.timeout.unwrap_or(TIMEOUT_SECONDS))
        }
        io::ErrorKind::UnexpectedEof => "the server closed the connection".to_owned(),
        _ => format!("the connection was lost: {error}"),
    }
}
