//! `rsync --daemon`: `serve rsync` with the options of rsync's daemon (rsync(1), "DAEMON OPTIONS").

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Parser;
use clap::error::ErrorKind;
use rustix::fs::FileType;
use snowmelt_rsync::ExitCode;

use super::background;
use super::serve_rsync::{Client, Family, Start};
use crate::app::App;
use crate::args::{RSYNC, RsyncDaemonArgs};
use crate::error::{CliError, Result};
use crate::exit::Exit;

/// The configuration of root's servers.
const SYSTEM_CONFIG: &str = "/etc/rsyncd.conf";
/// That of others, in the directory where a remote shell begins.
const USER_CONFIG: &str = "rsyncd.conf";
/// A background process does not wait, and reports to the process that started it when it is ready.
const IS_BACKGROUND: &str = "--is-background";

/// Serves modules. If standard input is a socket, or with `--server`, it serves the client there. Otherwise it serves
/// all clients that connect, in the background unless `--no-detach` is given. Exit codes are those of rsync.
///
/// # Errors
/// As of `serve rsync`.
pub fn run(app: &mut App<'_>, words: &[OsString]) -> Result<Exit> {
    let args = match RsyncDaemonArgs::try_parse_from(words) {
        Ok(args) => args,
        Err(error) if error.kind() == ErrorKind::DisplayHelp => {
            std::io::Write::write_all(&mut app.context.out, error.render().to_string().as_bytes())?;
            return Ok(Exit::Ok);
        }
        Err(error) => {
            app.context.complain(format_args!("rsync: {}", error.render().to_string().trim_end()));
            return Ok(Exit::Other(ExitCode::Syntax as u8));
        }
    };
    let client = client(app, &args)?;
    if client.is_none() && !args.no_detach && !args.is_background {
        let words = [RSYNC.into()].into_iter().chain(words.iter().cloned()).chain([IS_BACKGROUND.into()]);
        return background::start(app, &words.collect::<Vec<_>>());
    }
    let start = match start(app, args, client) {
        Ok(start) => start,
        Err(text) => {
            app.context.complain(format_args!("rsync: {text}"));
            return Ok(Exit::Other(ExitCode::Syntax as u8));
        }
    };
    match super::serve_rsync::run_with(app, &start) {
        Err(CliError::Failed(message)) => {
            app.context.complain(format_args!("rsync: {message}"));
            Ok(Exit::Other(ExitCode::Syntax as u8))
        }
        other => other,
    }
}

/// The client that is there already, if there is one.
fn client(app: &App<'_>, args: &RsyncDaemonArgs) -> Result<Option<Client>> {
    if args.server {
        return Ok(Some(Client::RemoteShell));
    }
    let found = rustix::fs::fstat(&app.context.stdin);
    let found = found.map_err(|error| CliError::failed("cannot look at standard input", &error))?;
    let is_socket = FileType::from_raw_mode(found.st_mode) == FileType::Socket;
    Ok(is_socket.then_some(Client::Socket))
}

fn start(app: &App<'_>, args: RsyncDaemonArgs, client: Option<Client>) -> std::result::Result<Start, String> {
    let config = args.config.unwrap_or_else(|| {
        let is_users = matches!(client, Some(Client::RemoteShell)) && !rustix::process::geteuid().is_root();
        PathBuf::from(if is_users { USER_CONFIG } else { SYSTEM_CONFIG })
    });
    let mut parameters = String::new();
    let mut add = |text: &str| match text.contains('\n') {
        true => Err(format!("'{}' is more than one line", text.escape_debug())),
        false => writeln!(parameters, "{text}").map_err(|error| error.to_string()),
    };
    for parameter in &args.dparam {
        if !parameter.contains('=') {
            return Err(format!("--dparam value is missing an '=': {parameter}"));
        }
        add(parameter)?;
    }
    if let Some(file) = &args.log_file {
        add(&format!("log file = {}", app.context.path(file).display()))?;
    }
    if let Some(format) = &args.log_file_format {
        add(&format!("log format = {format}"))?;
    }
    if let Some(options) = &args.sockopts {
        add(&format!("socket options = {options}"))?;
    }
    Ok(Start {
        config,
        parameters,
        address: args.address,
        port: args.port,
        family: match (args.ipv4, args.ipv6) {
            (true, _) => Some(Family::V4),
            (_, true) => Some(Family::V6),
            _ => None,
        },
        client,
        bandwidth_kib: args.bwlimit.unwrap_or(0),
        is_rsync: true,
        is_background: args.is_background,
        ..Start::default()
    })
}
