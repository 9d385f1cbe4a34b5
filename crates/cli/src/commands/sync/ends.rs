//! Reaching the pools of both sides.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;

use snowmelt_dataset::property::{PeerProperties, PropertyName};
use snowmelt_replicate::end::{End, Peer, Zfs};
use snowmelt_replicate::target::{Here, Target, There};
use snowmelt_replicate::wire::{Connection, Manners, Patience, WireError};

use super::place::{Remote, split_host};
use crate::app::App;
use crate::args::{PrivilegeArgs, SyncArgs};
use crate::context::{Context, Surroundings};
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::lines::Passing;

/// The exit status of a shell that does not find a program.
pub(super) const NO_PROGRAM: i32 = 127;

/// How other machines are reached.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reach<'a> {
    /// The command that does, with its words.
    pub(super) rsh: &'a str,
    /// The program there.
    pub(super) remote_command: &'a str,
    /// The level of zstd for the compression of the connection; 0 for no compression.
    pub(super) level: u8,
    /// `property=value`, as the user wants them at the target.
    pub(super) set: &'a [String],
    /// Properties that the target is to take from streams.
    pub(super) allow: &'a [String],
    /// The source is of this machine.
    pub(super) is_from_here: bool,
}

impl<'a> From<&'a SyncArgs> for Reach<'a> {
    fn from(args: &'a SyncArgs) -> Self {
        Reach {
            rsh: &args.rsh,
            remote_command: &args.remote_command,
            level: args.compress.unwrap_or(0),
            set: &args.set,
            allow: &args.allow_property,
            is_from_here: split_host(&args.source).0.is_none(),
        }
    }
}

impl Reach<'_> {
    /// Properties that a server accepts from its client besides harmless ones. The properties that the user sets here
    /// with `-o` are accepted there. From a source on this machine to a target on this machine, all are accepted.
    fn properties(self, is_here: bool) -> Vec<String> {
        if is_here && self.is_from_here {
            return vec!["all".to_owned()];
        }
        let names = self.set.iter().filter_map(|pair| pair.split_once('=')).map(|(name, _)| name);
        let names = names.filter_map(|name| PropertyName::parse(name).ok().map(|name| name.text()));
        let harmless = PeerProperties::default();
        names.filter(|name| !harmless.takes(name)).chain(self.allow.iter().cloned()).collect()
    }
}

/// Both sides of a sync. They may be one.
pub(super) struct Both<E: ?Sized> {
    pub(super) source: Arc<E>,
    pub(super) target: Arc<E>,
    servers: Vec<Server>,
}

/// Pools of whatever kind.
pub(super) type Ends = Both<dyn End>;
/// Pools of snowmelt.
pub(super) type Peers = Both<Peer>;

/// One side, to look at it and to change small things.
pub(in crate::commands) struct OneEnd {
    end: Arc<dyn End>,
    servers: Vec<Server>,
}

impl OneEnd {
    /// Reaches it as a sync with these arguments would.
    pub(in crate::commands) fn open(app: &App<'_>, args: &SyncArgs, place: &Remote) -> Result<Self> {
        let mut servers = Vec::new();
        match open(app, Reach::from(args), place, &mut servers) {
            Ok(end) => Ok(Self { end, servers }),
            Err(Unreached::Lost(message) | Unreached::Busy(message)) => Err(CliError::Failed(message)),
            Err(Unreached::Failed(error)) => Err(error),
        }
    }

    /// The pool itself.
    pub(in crate::commands) fn end(&self) -> &dyn End {
        &*self.end
    }

    /// Releases it, and waits until it is idle.
    pub(in crate::commands) fn close(self) {
        drop(self.end);
        self.servers.into_iter().for_each(Server::wait);
    }
}

/// What serves a side, to be waited for.
enum Server {
    Thread(JoinHandle<Exit>),
    /// With its side of the connection, which can be closed although the process still runs.
    Process(Child, Arc<dyn End>),
}

/// Why a side cannot be reached.
pub(super) enum Unreached {
    /// Trying again may help.
    Lost(String),
    /// Another process is doing it.
    Busy(String),
    Failed(CliError),
}

impl Ends {
    /// Reaches both.
    pub(super) fn open(
        app: &App<'_>,
        reach: Reach<'_>,
        source: &Remote,
        target: &Remote,
    ) -> Result<Self, Unreached> {
        Self::with(source, target, |place, servers| open(app, reach, place, servers))
    }
}

impl Peers {
    /// Reaches both.
    pub(super) fn open(
        app: &App<'_>,
        reach: Reach<'_>,
        source: &Remote,
        target: &Remote,
    ) -> Result<Self, Unreached> {
        Self::with(source, target, |place, servers| peer(app, reach, place, servers))
    }
}

impl<E: ?Sized> Both<E> {
    fn with(
        source: &Remote,
        target: &Remote,
        reach: impl Fn(&Remote, &mut Vec<Server>) -> Result<Arc<E>, Unreached>,
    ) -> Result<Self, Unreached> {
        let mut servers = Vec::new();
        let source_end = reach(source, &mut servers)?;
        let target_end = match source.is_in_pool_of(target) {
            true => source_end.clone(),
            false => reach(target, &mut servers)?,
        };
        Ok(Self { source: source_end, target: target_end, servers })
    }

    /// Lets go of both, and waits until they are at rest.
    pub(super) fn close(self) {
        let Self { source, target, servers } = self;
        drop((source, target));
        servers.into_iter().for_each(Server::wait);
    }
}

/// A target that is not a dataset.
#[derive(Debug, Clone, Copy)]
pub(super) enum Goal<'a> {
    /// To this path.
    Here(&'a Path),
    /// To a path of another machine.
    There(&'a Remote),
    /// To standard output.
    Standard,
}

/// A pool, and an end that is not a dataset.
pub(super) struct Ways {
    pub(super) source: Arc<dyn End>,
    /// Nothing for standard output.
    pub(super) target: Option<Box<dyn Target>>,
    servers: Vec<Server>,
}

impl Ways {
    /// Reaches both.
    pub(super) fn open(
        app: &App<'_>,
        args: &SyncArgs,
        source: &Remote,
        goal: Goal<'_>,
    ) -> Result<Self, Unreached> {
        let reach = Reach::from(args);
        let mut servers = Vec::new();
        let source = open(app, reach, source, &mut servers)?;
        let target: Option<Box<dyn Target>> = match goal {
            Goal::Here(path) => {
                let target = Here::new(path.to_owned(), devices(app));
                Some(Box::new(target.with_privileges(args.privileges.of())))
            }
            Goal::There(remote) => {
                let host = remote.host.as_deref().unwrap_or_default();
                let served = Served::Into(remote.served(), args.privileges);
                match elsewhere(app, reach, host, served, &mut servers) {
                    Ok(peer) => Some(Box::new(There::new(peer))),
                    Err(unreached) => {
                        // The caller can continue in another way, so the pool must be idle.
                        Self { source, target: None, servers }.close();
                        return Err(unreached);
                    }
                }
            }
            Goal::Standard => None,
        };
        Ok(Self { source, target, servers })
    }

    /// Whether one of them is gone.
    pub(super) fn is_lost(&self) -> bool {
        self.source.is_lost() || self.target.as_ref().is_some_and(|target| target.is_lost())
    }

    /// Lets go of both, and waits until they are at rest.
    pub(super) fn close(self) {
        let Self { source, target, servers } = self;
        drop((source, target));
        servers.into_iter().for_each(Server::wait);
    }
}

/// Where it is noted what block devices hold.
pub(in crate::commands) fn devices(app: &App<'_>) -> PathBuf {
    let state = match app.context.env("XDG_STATE_HOME") {
        Some(state) if Path::new(state).is_absolute() => PathBuf::from(state),
        _ => Path::new(app.context.env("HOME").unwrap_or(OsStr::new("/"))).join(".local/state"),
    };
    state.join("snowmelt/devices")
}

impl Server {
    fn wait(self) {
        match self {
            // From now on, the server itself reports errors.
            Self::Thread(thread) => drop(thread.join()),
            Self::Process(mut child, end) => {
                if end.is_lost() {
                    drop(child.kill());
                }
                drop(end);
                drop(child.wait());
            }
        }
    }
}

fn open(
    app: &App<'_>,
    reach: Reach<'_>,
    place: &Remote,
    servers: &mut Vec<Server>,
) -> Result<Arc<dyn End>, Unreached> {
    match (&place.host, place.is_zfs) {
        (None, true) => Ok(Arc::new(Zfs::local())),
        (Some(host), true) => {
            let words = reach.rsh.split_whitespace().map(str::to_owned);
            Ok(Arc::new(Zfs::remote(words.chain([host.clone()]).collect())))
        }
        (_, false) => Ok(peer(app, reach, place, servers)?),
    }
}

/// A pool of snowmelt.
fn peer(
    app: &App<'_>,
    reach: Reach<'_>,
    place: &Remote,
    servers: &mut Vec<Server>,
) -> Result<Arc<Peer>, Unreached> {
    match &place.host {
        // A path is a source, which takes no properties.
        None if place.path.is_some() => here(app, place.served(), &[], servers),
        None => here(app, place.served(), &reach.properties(true), servers),
        Some(host) => {
            let properties = if place.path.is_some() { Vec::new() } else { reach.properties(false) };
            elsewhere(app, reach, host, Served::From(place.served(), &properties), servers)
        }
    }
}

/// A pool of this machine. Its owner serves it: this process or another one.
fn here(
    app: &App<'_>,
    served: &OsStr,
    properties: &[String],
    servers: &mut Vec<Server>,
) -> Result<Arc<Peer>, Unreached> {
    let attempt = format!("cannot open '{}'", served.display());
    let failed = |error: &io::Error| Unreached::Failed(CliError::failed(&attempt, error));
    let (ours, theirs) = UnixStream::pair().map_err(|error| failed(&error))?;
    let mut words: Vec<OsString> = ["serve".into(), "sync".into(), served.to_owned()].to_vec();
    for name in properties {
        words.extend(["--allow-property".into(), name.into()]);
    }
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
        keys: app.context.keys.clone(),
    });
    let thread = std::thread::spawn(move || crate::run::run(&mut context));
    let input = ours.try_clone().map_err(|error| failed(&error))?;
    let connected = Connection::open(input, Half(ours), Manners::default());
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
        Err(error) => Err(Unreached::Failed(CliError::failed(&attempt, &error))),
    }
}

/// What another machine is to serve.
#[derive(Debug, Clone, Copy)]
enum Served<'a> {
    /// A pool that takes these properties, or a directory or image as a source.
    From(&'a OsStr, &'a [String]),
    /// A path as a target.
    Into(&'a OsStr, PrivilegeArgs),
}

/// A pool, or something else, of another machine.
fn elsewhere(
    app: &App<'_>,
    reach: Reach<'_>,
    host: &str,
    served: Served<'_>,
    servers: &mut Vec<Server>,
) -> Result<Arc<Peer>, Unreached> {
    let attempt = format!("cannot reach '{host}'");
    let rsh: Vec<&str> = reach.rsh.split_whitespace().collect();
    let Some((program, rest)) = rsh.split_first() else {
        return Err(Unreached::Failed(CliError::Usage("-e has no command".to_owned())));
    };
    let mut child = Command::new(program)
        .args(rest)
        .arg(host)
        .arg(remote_line(reach.remote_command, served))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| {
            Unreached::Failed(CliError::failed(format!("{attempt}: cannot run {program}"), &error))
        })?;
    let passing = child
        .stderr
        .take()
        .map(|stderr| app.context.pass_on_once().and_then(|pass_on| pass_on.begin(stderr)))
        .transpose()
        .map_err(|error| Unreached::Failed(CliError::failed(&attempt, &error)))?;
    let (Some(input), Some(output)) = (child.stdout.take(), child.stdin.take()) else {
        return Err(Unreached::Failed(CliError::Failed(attempt)));
    };
    // Between machines a connection can be dead though its streams are open.
    let manners = Manners { patience: Some(Patience::default()), level: reach.level };
    match Connection::open(input, output, manners) {
        Ok(connection) => {
            let end = Arc::new(Peer::new(connection));
            servers.push(Server::Process(child, end.clone()));
            Ok(end)
        }
        Err(WireError::Closed) => {
            let status = child.wait().ok().and_then(|status| status.code());
            passing.into_iter().for_each(Passing::settle);
            Err(match status {
                // What ssh exits with if there is no connection.
                Some(255) | None => Unreached::Lost(format!("{attempt}: {program} could not connect")),
                Some(NO_PROGRAM) => Unreached::Failed(CliError::NoProgram(format!(
                    "{attempt}: '{}' is not in its PATH: install it there, or give its path with --remote-command",
                    reach.remote_command
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

/// The command for the shell of another machine. The served path or dataset is quoted safely.
fn remote_line(command: &str, served: Served<'_>) -> OsString {
    let mut line = format!("{command} serve sync ").into_bytes();
    let served = match served {
        Served::From(served, properties) => {
            for name in properties {
                line.extend(b"--allow-property ");
                quote(name.as_bytes(), &mut line);
                line.push(b' ');
            }
            served
        }
        Served::Into(served, privileges) => {
            line.extend(b"--into ");
            if privileges.setuid {
                line.extend(b"--setuid ");
            }
            if privileges.devices {
                line.extend(b"--devices ");
            }
            served
        }
    };
    quote(served.as_bytes(), &mut line);
    OsString::from_vec(line)
}

/// A word in quotes that nothing in it can end.
fn quote(word: &[u8], line: &mut Vec<u8>) {
    line.push(b'\'');
    for byte in word {
        match byte {
            b'\'' => line.extend(b"'\\''"),
            _ => line.push(*byte),
        }
    }
    line.push(b'\'');
}

/// The writing half of a socket. When it is dropped, the other side reads the end, although the reading half is still
/// open.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_shell_takes_paths_as_they_are() {
        for (served, line) in [
            ("tank", "snowmelt serve sync 'tank'"),
            ("/a b;$(rm)`x`\"\\", "snowmelt serve sync '/a b;$(rm)`x`\"\\'"),
            ("/it's", "snowmelt serve sync '/it'\\''s'"),
        ] {
            assert_eq!(remote_line("snowmelt", Served::From(OsStr::new(served), &[])), line);
        }
        let properties = ["mountpoint".to_owned(), "a:b".to_owned()];
        let with = remote_line("snowmelt", Served::From(OsStr::new("tank"), &properties));
        assert_eq!(with, "snowmelt serve sync --allow-property 'mountpoint' --allow-property 'a:b' 'tank'");
        let into = remote_line("snowmelt", Served::Into(OsStr::new("/a"), PrivilegeArgs::default()));
        assert_eq!(into, "snowmelt serve sync --into '/a'");
        let all = PrivilegeArgs { setuid: true, devices: true };
        let into = remote_line("snowmelt", Served::Into(OsStr::new("/a"), all));
        assert_eq!(into, "snowmelt serve sync --into --setuid --devices '/a'");
        let into = remote_line("snowmelt", Served::Into(OsStr::new("/it's"), PrivilegeArgs::default()));
        assert_eq!(into, "snowmelt serve sync --into '/it'\\''s'");
    }
}
