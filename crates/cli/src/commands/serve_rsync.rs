//! `serve rsync`.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use snowmelt_dataset::{Datasets, Found, Name};
use snowmelt_rsync::daemon::{Config, Daemon, Link, Listener, OpenPath, Shutdown, TimeText};
use snowmelt_rsync::source::{DatasetSource, Source};
use snowmelt_rsync::target::{DatasetTarget, Target};

use super::background;
use super::rsync_log::RsyncLog;
use crate::app::{App, pool_of};
use crate::args::ServeRsyncArgs;
use crate::error::{CliError, Result, chain};
use crate::exit::Exit;
use crate::pools::Session;

/// rsync's own port.
const PORT: u16 = 873;
/// Default of the maximum number of connections.
const MAX_CONNECTIONS: usize = 256;
/// How often it is looked at whether to end.
const TICK: Duration = Duration::from_millis(50);

/// The clients to serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Client {
    /// The one at standard input and output, which may be a pair of pipes.
    Stdio,
    /// The one at standard input, which is a socket: both directions.
    Socket,
    /// The one at standard input and output, for which a remote shell was started.
    RemoteShell,
}

/// Addresses of one kind alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

/// How a server is started.
pub struct Start {
    /// What to serve.
    pub config: PathBuf,
    /// Lines of global parameters that count more than those of the configuration.
    pub parameters: String,
    /// The address to listen on, instead of the one in the configuration.
    pub address: Option<String>,
    pub port: Option<u16>,
    pub family: Option<Family>,
    /// The only client, if it is there already.
    pub client: Option<Client>,
    /// Most connections at once.
    pub max_connections: usize,
    /// KiB a second that each client gets at most; 0 is no limit.
    pub bandwidth_kib: u64,
    /// Run as rsync's daemon: lines without a log file go to syslog.
    pub is_rsync: bool,
    /// Another process waits until this one is ready.
    pub is_background: bool,
}

impl Default for Start {
    fn default() -> Self {
        Self {
            config: PathBuf::new(),
            parameters: String::new(),
            address: None,
            port: None,
            family: None,
            client: None,
            max_connections: MAX_CONNECTIONS,
            bandwidth_kib: 0,
            is_rsync: false,
            is_background: false,
        }
    }
}

/// Serves modules until it is interrupted.
///
/// # Errors
/// When the configuration is wrong, names datasets of several pools, or an address cannot be listened on.
pub fn run(app: &mut App<'_>, args: &ServeRsyncArgs) -> Result<Exit> {
    let start = Start {
        config: args.config.clone(),
        address: args.address.clone(),
        port: args.port,
        client: args.stdio.then_some(Client::Stdio),
        max_connections: args.max_connections,
        ..Start::default()
    };
    run_with(app, &start)
}

/// The same, however it is started.
///
/// # Errors
/// As [`run`].
pub fn run_with(app: &mut App<'_>, start: &Start) -> Result<Exit> {
    let path = app.context.path(&start.config);
    let config = Config::load_with(&path, &start.parameters)
        .map_err(|error| CliError::failed("cannot serve rsync", &error))?;
    let datasets: Vec<String> = config
        .modules
        .iter()
        .filter(|module| !module.is_directory())
        // A client can choose the dataset, but only in the same pool.
        .map(|module| module.path.clone())
        .collect();
    let Some(first) = datasets.first() else {
        return serve(app, config, Box::new(NoPool), start, None);
    };
    let pool = pool_of(first);
    if let Some(other) = datasets.iter().find(|path| pool_of(path) != pool) {
        return Err(CliError::Failed(format!(
            "cannot serve rsync: '{first}' and '{other}' are in different pools: serve each pool by itself"
        )));
    }
    let missing = |pool: &str| format!("cannot open '{first}': no such pool '{pool}'");
    app.on_pool(first, missing, |app, session| {
        let is_known =
            |path: &&String| !config.modules.iter().any(|it| it.path == **path && it.has_variable_path());
        let known = datasets.iter().filter(is_known).map(|path| path.strip_suffix('@').unwrap_or(path));
        super::names::check_all(&session.datasets, known)?;
        session.serve_now();
        let paths = Box::new(PoolPaths { datasets: session.datasets.clone() });
        serve(app, config, paths, start, Some(session))
    })
}

fn serve(
    app: &mut App<'_>,
    config: Config,
    paths: Box<dyn OpenPath>,
    start: &Start,
    session: Option<&Session>,
) -> Result<Exit> {
    let failed = |error: std::io::Error| CliError::failed("cannot serve rsync", &error);
    // Standard error of a server that SSH starts is the client's terminal: the log is not for the client.
    let is_clients = start.client == Some(Client::Stdio);
    let log = RsyncLog::open(app.context, &config, start.is_rsync || is_clients).map_err(failed)?;
    if !config.confinement.is_none() {
        log.keep_files();
    }
    let log = Box::new(move |file: Option<&Path>, line: &str| log.line(file, line));
    let times = times(app.context.time_zone());
    if let Some(client) = start.client {
        let daemon =
            Daemon::new(config, paths, log).with_times(times).with_bandwidth(start.bandwidth_kib << 10);
        return serve_one(app, &Arc::new(daemon), client);
    }
    let (listeners, pid_file) = (listeners(&config, start)?, config.pid_file.clone());
    let backlog = config.listen_backlog;
    let daemon = Daemon::new(config, paths, log).with_times(times).with_bandwidth(start.bandwidth_kib << 10);
    let daemon = Arc::new(daemon);
    let listeners: Vec<Listener> = match backlog {
        Some(count) => {
            listeners.into_iter().map(|one| one.with_backlog(count)).collect::<std::io::Result<_>>()
        }
        None => Ok(listeners),
    }
    .map_err(failed)?;
    let pid_file = pid_file.map(|file| app.context.path(file));
    if let Some(file) = &pid_file {
        std::fs::write(file, format!("{}\n", std::process::id())).map_err(failed)?;
    }
    let null = background::null().map_err(failed)?;
    // From here on names of files are those of the new root directory.
    daemon
        .confine(super::rsync::lookups())
        .map_err(|error| CliError::failed("cannot serve rsync", &error))?;
    daemon.load_indexes().map_err(|(module, error)| {
        CliError::failed(format!("cannot serve rsync: the index of module '{module}'"), &error)
    })?;
    for listener in &listeners {
        let address = listener.address().map_err(failed)?;
        daemon.say_start(env!("CARGO_PKG_VERSION"), address.port());
        if !start.is_rsync {
            writeln!(app.context.out, "serving rsync on {address}")?;
        }
    }
    app.context.out.flush()?;
    match (start.is_background, session) {
        (false, _) => {}
        (true, Some(session)) => {
            background::leave_terminal();
            background::ready(app, session, false)?;
        }
        (true, None) => {
            background::leave_terminal();
            background::ready_with(app, false, &null)?;
        }
    }
    let shutdown = Shutdown::new();
    let served = std::thread::scope(|scope| {
        let (stop, context) = (shutdown.clone(), &*app.context);
        scope.spawn(move || {
            while !stop.is_triggered() {
                std::thread::sleep(TICK);
                if context.is_cancelled() {
                    stop.trigger();
                }
            }
        });
        let served = daemon.serve(&listeners, start.max_connections, &shutdown);
        shutdown.trigger();
        served
    });
    if let Some(file) = pid_file {
        let _ = std::fs::remove_file(file);
    }
    served.map_err(failed)?;
    Ok(Exit::Ok)
}

/// Serves the client that is there already.
fn serve_one(app: &mut App<'_>, daemon: &Arc<Daemon>, client: Client) -> Result<Exit> {
    let failed = |error: std::io::Error| CliError::failed("cannot serve rsync", &error);
    daemon
        .confine(super::rsync::lookups())
        .map_err(|error| CliError::failed("cannot serve rsync", &error))?;
    let copy = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned();
    let input: OwnedFd = copy(app.context.stdin.as_fd()).map_err(failed)?;
    let output: OwnedFd = match client {
        Client::Socket => copy(app.context.stdin.as_fd()).map_err(failed)?,
        Client::Stdio | Client::RemoteShell => copy(app.context.out.get_ref().as_fd()).map_err(failed)?,
    };
    let peer = rustix::net::getpeername(&input).ok().flatten();
    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
    let peer = match (peer, client) {
        (_, Client::RemoteShell) => shell_client(app),
        (Some(peer), _) => peer.ip(),
        (None, _) => IpAddr::V4(Ipv4Addr::LOCALHOST),
    };
    // Only the index of the module that this client chooses is read.
    let link = Link::over(input, output).map_err(failed)?;
    // A separate thread: it can change its user to read a module, while this thread keeps its own.
    let served = std::thread::scope(|scope| scope.spawn(|| daemon.serve_link(link, peer)).join());
    let served = served.map_err(|_| CliError::Failed("the server stopped unexpectedly".to_owned()))?;
    match served {
        // A client that only checks whether the server is there disconnects at once.
        Err(error) if !error.is_departure() => Err(CliError::failed("cannot serve rsync", &error)),
        _ => Ok(Exit::Ok),
    }
}

/// The client at the other end of a remote shell, as far as ssh reports it.
fn shell_client(app: &App<'_>) -> IpAddr {
    let told = ["SSH_CONNECTION", "SSH_CLIENT"].iter().find_map(|name| app.context.env(name)?.to_str());
    let address = told.and_then(|told| told.split(' ').next()?.parse().ok());
    address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
}

/// The listening sockets.
fn listeners(config: &Config, start: &Start) -> Result<Vec<Listener>> {
    // Port 0 is no choice, as with rsync.
    let port = [start.port, config.port].into_iter().flatten().find(|port| *port > 0 || !start.is_rsync);
    let port = port.unwrap_or(PORT);
    let failed =
        |at: String| move |error: std::io::Error| CliError::failed(format!("cannot listen on {at}"), &error);
    let Some(text) = start.address.as_ref().or(config.address.as_ref()) else {
        let listener = match start.family {
            // One socket takes both kinds of addresses.
            None => Listener::any(port),
            Some(Family::V4) => Listener::tcp((Ipv4Addr::UNSPECIFIED, port).into()),
            Some(Family::V6) => Listener::tcp((Ipv6Addr::UNSPECIFIED, port).into()),
        };
        return Ok(vec![listener.map_err(failed(format!("port {port}")))?]);
    };
    let is_wanted = |address: &SocketAddr| match start.family {
        None => true,
        Some(Family::V4) => address.is_ipv4(),
        Some(Family::V6) => address.is_ipv6(),
    };
    let resolved = (text.trim_matches(['[', ']']), port).to_socket_addrs();
    let resolved = resolved.map_err(|error| CliError::Usage(format!("--address {text}: {error}")))?;
    let wanted = resolved.filter(is_wanted);
    let listeners: Vec<_> = wanted
        .map(|address| Listener::tcp(address).map_err(failed(address.to_string())))
        .collect::<Result<_>>()?;
    match listeners.is_empty() {
        true => Err(CliError::Failed(format!("cannot listen on {text}: it has no address of this kind"))),
        false => Ok(listeners),
    }
}

/// Without a pool there are no datasets.
struct NoPool;

impl OpenPath for NoPool {
    fn open(&self, path: &str) -> std::result::Result<Arc<dyn Source>, String> {
        Err(format!(
            "no pool has {path}: a server that was started without datasets needs a restart to serve one"
        ))
    }
}

/// Times in the log, as rsync has them.
fn times(zone: jiff::tz::TimeZone) -> Box<TimeText> {
    Box::new(move |seconds| {
        let time = jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::MIN);
        time.to_zoned(zone.clone()).strftime("%Y/%m/%d %H:%M:%S").to_string()
    })
}

/// The datasets of a pool.
struct PoolPaths {
    datasets: Arc<Datasets>,
}

impl OpenPath for PoolPaths {
    fn open(&self, path: &str) -> std::result::Result<Arc<dyn Source>, String> {
        open_tree(&self.datasets, path)
    }

    fn receive(&self, path: &str) -> std::result::Result<Box<dyn Target + '_>, String> {
        let target = DatasetTarget::begin(&self.datasets, path).map_err(|error| chain(&error))?;
        Ok(Box::new(target))
    }
}

/// Opens a dataset, a snapshot, or with `@` at the end the newest snapshot of a dataset.
///
/// # Errors
/// The error in it.
pub(super) fn open_tree(
    datasets: &Arc<Datasets>,
    path: &str,
) -> std::result::Result<Arc<dyn Source>, String> {
    let told = |error: &(dyn std::error::Error + 'static)| chain(error);
    let catalog = datasets.catalog();
    let name = path.strip_suffix('@').unwrap_or(path);
    let parsed = Name::parse(name).map_err(|error| told(&error))?;
    let source = match catalog.find(&parsed).map_err(|error| told(&error))? {
        Found::Dataset(dataset) if path.ends_with('@') => {
            let newest = catalog.newest_snapshot(&dataset).map_err(|error| told(&error))?;
            let newest = newest.ok_or_else(|| format!("{name} has no snapshot"))?;
            DatasetSource::snapshot(datasets, &newest)
        }
        Found::Dataset(dataset) => DatasetSource::head(datasets, &dataset),
        Found::Snapshot(snapshot) => DatasetSource::snapshot(datasets, &snapshot),
        _ => return Err(format!("{name} is neither a dataset nor a snapshot")),
    };
    Ok(Arc::new(source.map_err(|error| told(&error))?))
}
