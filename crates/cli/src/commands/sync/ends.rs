//! Reaching the pools of both sides.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;

use snowmelt_replicate::end::{End, Peer, Zfs};
use snowmelt_replicate::wire::{Connection, WireError};
use snowmelt_stream::wire::MAGIC;

use super::place::Remote;
use crate::app::App;
use crate::args::SyncArgs;
use crate::context::{Context, Surroundings};
use crate::error::{CliError, Result};
use crate::exit::Exit;

/// Both sides of a sync. They may be one.
pub(super) struct Ends {
    pub(super) source: Arc<dyn End>,
    pub(super) target: Arc<dyn End>,
    servers: Vec<Server>,
}

/// What serves a side, to be waited for.
enum Server {
    Thread(JoinHandle<Exit>),
    Process(Child),
}

/// Why a side cannot be reached.
pub(super) enum Unreached {
    /// Trying again may help.
    Lost(String),
    Failed(CliError),
}

impl Ends {
    /// Reaches both.
    pub(super) fn open(
        app: &App<'_>,
        args: &SyncArgs,
        source: &Remote,
        target: &Remote,
    ) -> Result<Self, Unreached> {
        let mut servers = Vec::new();
        let source_end = open(app, args, source, &mut servers)?;
        let is_one = !source.is_zfs
            && (&source.host, source.is_zfs, source.pool()) == (&target.host, target.is_zfs, target.pool());
        let target_end = if is_one { source_end.clone() } else { open(app, args, target, &mut servers)? };
        Ok(Self { source: source_end, target: target_end, servers })
    }

    /// Lets go of both, and waits until they are at rest.
    pub(super) fn close(self) {
        let Self { source, target, servers } = self;
        drop((source, target));
        for server in servers {
            server.wait();
        }
    }
}

impl Server {
    fn wait(self) {
        match self {
            // Whatever goes wrong now has been told by the server itself.
            Self::Thread(thread) => drop(thread.join()),
            Self::Process(mut child) => drop(child.wait()),
        }
    }
}

fn open(
    app: &App<'_>,
    args: &SyncArgs,
    place: &Remote,
    servers: &mut Vec<Server>,
) -> Result<Arc<dyn End>, Unreached> {
    let rsh: Vec<String> = args.rsh.split_whitespace().map(str::to_owned).collect();
    match (&place.host, place.is_zfs) {
        (None, true) => Ok(Arc::new(Zfs::local())),
        (Some(host), true) => Ok(Arc::new(Zfs::remote(rsh.into_iter().chain([host.clone()]).collect()))),
        (None, false) => here(app, place.pool(), servers),
        (Some(host), false) => elsewhere(args, &rsh, host, place.pool(), servers),
    }
}

/// A pool of this machine. Whoever owns it serves it, this process or another one.
fn here(app: &App<'_>, pool: &str, servers: &mut Vec<Server>) -> Result<Arc<dyn End>, Unreached> {
    let failed =
        |error: &io::Error| Unreached::Failed(CliError::failed(format!("cannot open '{pool}'"), error));
    let (ours, theirs) = UnixStream::pair().map_err(|error| failed(&error))?;
    let mut words: Vec<OsString> = ["serve", "sync", pool].map(OsString::from).to_vec();
    for path in app.pool_dirs() {
        words.extend(["--pool-dir".into(), path.clone().into()]);
    }
    let copy = |socket: &UnixStream| socket.try_clone().map(OwnedFd::from).map_err(|error| failed(&error));
    let mut context = Context::new(Surroundings {
        args: words,
        stdin: copy(&theirs)?,
        stdout: theirs.into(),
        stderr: app.context.err.as_fd().try_clone_to_owned().map_err(|error| failed(&error))?,
        cwd: app.context.cwd().to_owned(),
        env: app.context.environment().to_vec(),
        cancelled: app.context.cancelled.clone(),
    });
    let thread = std::thread::spawn(move || crate::run::run(&mut context));
    let input = ours.try_clone().map_err(|error| failed(&error))?;
    let connected = Connection::open(input, Half(ours));
    match connected {
        Ok(connection) => {
            servers.push(Server::Thread(thread));
            Ok(Arc::new(Peer::new(connection)))
        }
        // The server has said why.
        Err(WireError::Closed) => {
            drop(thread.join());
            Err(Unreached::Failed(CliError::Reported))
        }
        Err(error) => Err(Unreached::Failed(CliError::failed(format!("cannot open '{pool}'"), &error))),
    }
}

/// A pool of another machine.
fn elsewhere(
    args: &SyncArgs,
    rsh: &[String],
    host: &str,
    pool: &str,
    servers: &mut Vec<Server>,
) -> Result<Arc<dyn End>, Unreached> {
    let attempt = format!("cannot reach '{host}'");
    let Some((program, rest)) = rsh.split_first() else {
        return Err(Unreached::Failed(CliError::Usage("-e names no command".to_owned())));
    };
    let mut child = Command::new(program)
        .args(rest)
        .arg(host)
        .arg(format!("{} serve sync '{}'", args.remote_command, pool.replace('\'', "")))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| {
            Unreached::Failed(CliError::failed(format!("{attempt}: cannot run {program}"), &error))
        })?;
    let (Some(input), Some(output)) = (child.stdout.take(), child.stdin.take()) else {
        return Err(Unreached::Failed(CliError::Failed(attempt)));
    };
    match Connection::open(input, output) {
        Ok(connection) => {
            servers.push(Server::Process(child));
            Ok(Arc::new(Peer::new(connection)))
        }
        Err(WireError::Closed) => {
            let status = child.wait().ok().and_then(|status| status.code());
            Err(match status {
                // What ssh exits with if there is no connection.
                Some(255) | None => Unreached::Lost(format!("{attempt}: {program} could not connect")),
                Some(127) => Unreached::Failed(CliError::Failed(format!(
                    "{attempt}: there is no '{}' in its PATH: install it there, or say where it is with --remote-command",
                    args.remote_command
                ))),
                // The other side has said why.
                Some(_) => Unreached::Failed(CliError::Reported),
            })
        }
        Err(error) => {
            drop(child.kill());
            drop(child.wait());
            Err(Unreached::Failed(CliError::failed(attempt, &error)))
        }
    }
}

/// The writing half of a socket: when it is dropped the other side reads the end, though the reading half is still here.
struct Half(UnixStream);

impl Write for Half {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        // It fails only if the other side is gone.
        let _ = self.0.shutdown(Shutdown::Write);
    }
}

/// Whether a file begins as a stream does, in either byte order.
pub(super) fn is_stream(path: &std::path::Path) -> bool {
    let mut begin = [0; 16];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut begin));
    let [.., a, b, c, d, e, f, g, h] = begin;
    let magic = [a, b, c, d, e, f, g, h];
    read.is_ok() && (u64::from_le_bytes(magic) == MAGIC || u64::from_be_bytes(magic) == MAGIC)
}
