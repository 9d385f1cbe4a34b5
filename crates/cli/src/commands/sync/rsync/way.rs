//! Connections to rsync servers. They are made by the process that the user started, before the pool is opened. The
//! pool's owner can be another process, which has neither the terminal nor the keys of this one. It gets the
//! connection.

use std::fs::{self, File};
use std::io::{self, IsTerminal, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use snowmelt_rsync::client::{
    Direction, Login, PROTOCOL_MAX, SHELL_FORMS, Wishes, begin_shell, fits, greet, send_words,
};
use snowmelt_rsync::{ExitCode, RsyncError};

use super::address::{Address, Way};
use super::{OWN_PROGRAM, lost};
use crate::app::App;
use crate::args::SyncArgs;
use crate::commands::sync::ends::NO_PROGRAM;
use crate::error::{CliError, Result, chain};
use crate::secrets::Terminal;

/// How long each address of a daemon may take to answer.
const CONNECT_PATIENCE: Duration = Duration::from_secs(30);
/// The program at the other end of a remote shell, unless another one is named.
const PROGRAM: &str = "rsync";
/// The exit status for an unknown option.
const SYNTAX: i32 = ExitCode::Syntax as i32;
/// The first version that transfers all attributes of a file, and passes paths without the shell.
const FIRST_WITH_ALL: u8 = 30;
/// Longest password.
const PASSWORD_MAX: u64 = 4096;

/// A connection on which the server has its words.
pub(super) struct Connected {
    pub(super) socket: File,
    /// Version of the protocol.
    pub(super) protocol: u8,
    /// The remote shell.
    child: Option<Child>,
}

/// Why there is none.
pub(super) enum Unconnected {
    /// Trying again may help.
    Lost(String),
    /// The machine does not have this program.
    NoProgram(String),
    Failed(CliError),
}

impl From<CliError> for Unconnected {
    fn from(error: CliError) -> Self {
        Self::Failed(error)
    }
}

impl Connected {
    /// Connects to a server, and sends the arguments.
    pub(super) fn open(
        app: &mut App<'_>,
        args: &SyncArgs,
        address: &Address,
        (wishes, direction): (&Wishes, Direction),
    ) -> Result<Self, Unconnected> {
        match &address.way {
            Way::Daemon { port, module, .. } => {
                daemon(app, args, address, (*port, module), (wishes, direction))
            }
            Way::Shell { .. } => shell(app, args, address, (wishes, direction)),
        }
    }

    /// Closes it, and waits until the remote shell has ended. Returns its exit status, if it is an error.
    pub(super) fn close(self, is_well: bool) -> Option<i32> {
        use rustix::net::Shutdown::{Both, Write};
        // It may be gone already.
        let _ = rustix::net::shutdown(&self.socket, if is_well { Write } else { Both });
        drop(self.socket);
        let mut child = self.child?;
        if !is_well {
            // It may hang.
            let _ = child.kill();
        }
        let status = child.wait().ok()?;
        status.code().filter(|code| *code != 0)
    }
}

fn reached(address: &Address, error: &(dyn std::error::Error + 'static)) -> String {
    format!("cannot reach '{}': {}", address.host, chain(error))
}

/// The output of a server that fails at the start.
fn not_begun(args: &SyncArgs, address: &Address, error: &RsyncError) -> Unconnected {
    let attempt = format!("cannot sync with '{}'", address.text);
    match error {
        RsyncError::Connection(error) => Unconnected::Lost(format!("{attempt}: {}", lost(args, error))),
        _ => Unconnected::Failed(CliError::Failed(format!("{attempt}: {error}"))),
    }
}

fn daemon(
    app: &mut App<'_>,
    args: &SyncArgs,
    address: &Address,
    (port, module): (u16, &str),
    (wishes, direction): (&Wishes, Direction),
) -> Result<Connected, Unconnected> {
    let lost = |error: io::Error| Unconnected::Lost(reached(address, &error));
    let addresses = (address.host.as_str(), port).to_socket_addrs().map_err(lost)?;
    let mut failure = io::Error::from(io::ErrorKind::NotFound);
    let mut connected = None;
    for one in addresses {
        match TcpStream::connect_timeout(&one, CONNECT_PATIENCE) {
            Ok(stream) => {
                connected = Some(stream);
                break;
            }
            Err(error) => failure = error,
        }
    }
    let mut stream = connected.ok_or_else(|| lost(failure))?;
    let prepared = stream
        .set_nodelay(true)
        .and_then(|()| rustix::net::sockopt::set_socket_keepalive(&stream, true).map_err(io::Error::from));
    prepared.map_err(lost)?;
    set_timeout(&stream, args.timeout).map_err(lost)?;
    let variable = |name: &str| app.context.env(name).and_then(|value| value.to_str()).map(str::to_owned);
    let user = address.user.clone().or_else(|| variable("USER")).unwrap_or_else(|| "nobody".to_owned());
    let password = || password(app, args, &address.text);
    let motd = std::cell::RefCell::new(Vec::new());
    let login = Login {
        module,
        user: &user,
        password: &password,
        motd: &|line| motd.borrow_mut().push(line.to_owned()),
    };
    let greeted = greet(&mut stream, &login);
    if args.verbose && !args.json {
        for line in motd.into_inner() {
            writeln!(app.context.out, "{line}").map_err(CliError::from)?;
        }
    }
    let protocol = greeted.map_err(|error| not_begun(args, address, &error))?;
    let mut words = wishes.words(direction, protocol);
    words.extend([".".to_owned(), address.asked()]);
    let sent = send_words(words.iter().map(String::as_bytes), protocol, &mut stream);
    sent.map_err(|error| not_begun(args, address, &error.into()))?;
    Ok(Connected { socket: File::from(OwnedFd::from(stream)), protocol, child: None })
}

/// The password for a daemon: from a file that others cannot read, from the environment, or from the user at the
/// terminal.
fn password(app: &App<'_>, args: &SyncArgs, place: &str) -> std::result::Result<Vec<u8>, String> {
    if let Some(file) = &args.password_file {
        let path = app.context.path(file);
        return read_password(&path).map_err(|why| format!("--password-file {}: {why}", path.display()));
    }
    if let Some(password) = app.context.env("RSYNC_PASSWORD") {
        return Ok(password.as_encoded_bytes().to_vec());
    }
    // If standard input is not a terminal, there is no user to ask.
    let terminal = Some(&*app.context).filter(|context| context.stdin.is_terminal()).and_then(Terminal::of);
    let Some(terminal) = terminal else {
        return Err(format!(
            "'{place}' needs a password: give it with --password-file, or in the variable RSYNC_PASSWORD"
        ));
    };
    let typed = terminal.ask(app.context, &format!("Password for '{place}': "));
    typed.map(|typed| typed.to_vec()).map_err(|error| error.to_string())
}

fn read_password(path: &Path) -> std::result::Result<Vec<u8>, String> {
    let mode = fs::metadata(path).map_err(|error| error.to_string())?.mode();
    if mode & 0o007 != 0 {
        return Err(format!("other users can read it: chmod o-rwx {}", path.display()));
    }
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(PASSWORD_MAX).read_to_end(&mut text));
    read.map_err(|error| error.to_string())?;
    let end = text.iter().position(|byte| matches!(byte, b'\n' | b'\r' | 0)).unwrap_or(text.len());
    text.truncate(end);
    Ok(text)
}

/// A connection over a remote shell. The arguments are sent before the version of the server is known. If the server
/// ends with a syntax error, or has a version with other arguments, it is started again with older arguments.
fn shell(
    app: &mut App<'_>,
    args: &SyncArgs,
    address: &Address,
    (wishes, direction): (&Wishes, Direction),
) -> Result<Connected, Unconnected> {
    let mut forms: Vec<(u8, Vec<String>)> = Vec::new();
    for form in SHELL_FORMS {
        let words = wishes.words(direction, form);
        if forms.last().is_none_or(|(_, last)| *last != words) {
            forms.push((form, words));
        }
    }
    for (form, words) in forms {
        if let Some(connected) = begin(app, args, address, (form, words))? {
            if connected.protocol < FIRST_WITH_ALL {
                app.context.complain(format_args!(
                    "the rsync of '{}' is older than 3.0: continuing without ACLs, extended attributes and \
                     fractions of seconds",
                    address.host
                ));
            }
            return Ok(connected);
        }
    }
    Err(Unconnected::Failed(CliError::Failed(format!(
        "cannot sync with '{}': '{}' there does not support the required options: use rsync 2.6.0 or later, with \
         --remote-command if it has another path",
        address.text,
        server(args)
    ))))
}

/// The program at the other end of a remote shell.
fn server(args: &SyncArgs) -> &str {
    if args.remote_command == OWN_PROGRAM { PROGRAM } else { &args.remote_command }
}

/// Starts a server with words of one form; nothing if it does not know them.
fn begin(
    app: &App<'_>,
    args: &SyncArgs,
    address: &Address,
    (form, mut words): (u8, Vec<String>),
) -> Result<Option<Connected>, Unconnected> {
    let failed = |error: &io::Error| CliError::failed(format!("cannot reach '{}'", address.host), error);
    let rsh: Vec<&str> = args.rsh.split_whitespace().collect();
    let (program, rest) = rsh.split_first().ok_or_else(|| CliError::Usage("-e has no command".to_owned()))?;
    let place = address.user.iter().fold(address.host.clone(), |host, user| format!("{user}@{host}"));
    let asked = address.asked();
    let is_sent = form >= FIRST_WITH_ALL;
    match is_sent {
        // The path is sent to the server, past the shell.
        true => words.insert(1, "-s".to_owned()),
        false => words.extend([".".to_owned(), quoted(&asked)]),
    }
    let line = format!("{} {}", server(args), words.join(" "));
    let (mut ours, theirs) = UnixStream::pair().map_err(|error| failed(&error))?;
    let copy = theirs.try_clone().map_err(|error| failed(&error))?;
    let err = app.context.err.try_clone().map_err(|error| failed(&error))?;
    let mut child = Command::new(program)
        .args(rest)
        .arg(place)
        .arg(line)
        .stdin(OwnedFd::from(theirs))
        .stdout(OwnedFd::from(copy))
        .stderr(err)
        .spawn()
        .map_err(|error| {
            CliError::failed(format!("cannot reach '{}': cannot run {program}", address.host), &error)
        })?;
    let mut begin = || -> snowmelt_rsync::Result<u8> {
        set_timeout(&ours, args.timeout)?;
        if is_sent {
            send_words([&b"rsync"[..], b".", asked.as_bytes()], PROTOCOL_MAX, &mut ours)?;
        }
        begin_shell(&mut &ours, &mut &ours)
    };
    let begun = begin();
    if let Ok(protocol) = begun
        && fits(form, protocol)
    {
        return Ok(Some(Connected { socket: File::from(OwnedFd::from(ours)), protocol, child: Some(child) }));
    }
    let _ = ours.shutdown(Shutdown::Both);
    if !begun.as_ref().is_err_and(is_end) {
        let _ = child.kill();
    }
    let status = child.wait().ok().and_then(|status| status.code());
    let Err(error) = begun else { return Ok(None) };
    Err(match status {
        Some(SYNTAX) if is_end(&error) => return Ok(None),
        // What ssh exits with if there is no connection.
        Some(255) => {
            Unconnected::Lost(format!("cannot reach '{}': {program} could not connect", address.host))
        }
        Some(NO_PROGRAM) => Unconnected::NoProgram(server(args).to_owned()),
        _ => not_begun(args, address, &error),
    })
}

/// A path of the other machine, as its shell leaves it.
fn quoted(path: &str) -> String {
    let mark = if path.starts_with('-') { "./" } else { "" };
    format!("'{mark}{}'", path.replace('\'', "'\\''"))
}

/// Whether the other side has closed the connection, so that the remote shell reports the reason.
fn is_end(error: &RsyncError) -> bool {
    let ends = [io::ErrorKind::UnexpectedEof, io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset];
    matches!(error, RsyncError::Connection(error) if ends.contains(&error.kind()))
}

/// How long the server may say nothing.
fn set_timeout(socket: impl std::os::fd::AsFd, seconds: Option<u32>) -> io::Result<()> {
    let seconds = seconds.unwrap_or(super::TIMEOUT_SECONDS);
    let timeout = (seconds > 0).then(|| Duration::from_secs(u64::from(seconds)));
    for which in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&socket, which, timeout)?;
    }
    Ok(())
}
