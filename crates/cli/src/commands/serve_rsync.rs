//! `serve rsync`.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use snowmelt_dataset::{Datasets, Found, Name};
use snowmelt_rsync::daemon::{Config, Daemon, Link, Listener, OpenPath, Shutdown, TimeText};
use snowmelt_rsync::source::{DatasetSource, Source};
use snowmelt_rsync::target::Target;

use super::rsync_log::RsyncLog;
use crate::app::{App, pool_of};
use crate::args::ServeRsyncArgs;
use crate::error::{CliError, Result, chain};
use crate::exit::Exit;

/// rsync's own port.
const PORT: u16 = 873;
/// How often it is looked at whether to end.
const TICK: Duration = Duration::from_millis(50);

/// Serves modules until it is interrupted.
///
/// # Errors
/// When the configuration is wrong, names datasets of several pools, or an address cannot be listened on.
pub fn run(app: &mut App<'_>, args: &ServeRsyncArgs) -> Result<Exit> {
    let path = app.context.path(&args.config);
    let config = Config::load(&path).map_err(|error| CliError::failed("cannot serve rsync", &error))?;
    if config.modules.is_empty() {
        return Err(CliError::Failed(format!("cannot serve rsync: {} has no modules", path.display())));
    }
    let datasets: Vec<String> = config
        .modules
        .iter()
        .filter(|module| !module.is_directory())
        // Which dataset it is may be for a client to tell, but of the same pool.
        .map(|module| module.path.clone())
        .collect();
    let Some(first) = datasets.first() else {
        return serve(app, config, Box::new(NoPool), args);
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
        serve(app, config, Box::new(PoolPaths { datasets: session.datasets.clone() }), args)
    })
}

fn serve(app: &mut App<'_>, config: Config, paths: Box<dyn OpenPath>, args: &ServeRsyncArgs) -> Result<Exit> {
    let failed = |error: std::io::Error| CliError::failed("cannot serve rsync", &error);
    let log = RsyncLog::open(app.context, &config).map_err(failed)?;
    let log = Box::new(move |file: Option<&Path>, line: &str| log.line(file, line));
    let times = times(app.context.time_zone());
    if args.stdio {
        let copy = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned();
        let input: OwnedFd = copy(app.context.stdin.as_fd()).map_err(failed)?;
        let output: OwnedFd = copy(app.context.out.get_ref().as_fd()).map_err(failed)?;
        let peer = rustix::net::getpeername(&input).ok().flatten();
        let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
        let peer = peer.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |peer| peer.ip());
        let daemon = Arc::new(Daemon::new(config, paths, log).with_times(times));
        // Only the index of the module that this client chooses is read.
        let link = Link::over(input, output).map_err(failed)?;
        // A thread of its own: whoever it becomes to read a module, this one stays who it is.
        let served = std::thread::scope(|scope| scope.spawn(|| daemon.serve_link(link, peer)).join());
        let served = served.map_err(|_| CliError::Failed("the server broke".to_owned()))?;
        served.map_err(|error| CliError::failed("cannot serve rsync", &error))?;
        return Ok(Exit::Ok);
    }
    let (listeners, pid_file) = (listeners(&config, args)?, config.pid_file.clone());
    let backlog = config.listen_backlog;
    let daemon = Arc::new(Daemon::new(config, paths, log).with_times(times));
    daemon.load_indexes().map_err(|(module, error)| {
        CliError::failed(format!("cannot serve rsync: the index of module '{module}'"), &error)
    })?;
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
    for listener in &listeners {
        writeln!(app.context.out, "serving rsync on {}", listener.address().map_err(failed)?)?;
    }
    app.context.out.flush()?;
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
        let served = daemon.serve(&listeners, args.max_connections, &shutdown);
        shutdown.trigger();
        served
    });
    if let Some(file) = pid_file {
        let _ = std::fs::remove_file(file);
    }
    served.map_err(failed)?;
    Ok(Exit::Ok)
}

/// What is listened on.
fn listeners(config: &Config, args: &ServeRsyncArgs) -> Result<Vec<Listener>> {
    let port = args.port.or(config.port).unwrap_or(PORT);
    let failed =
        |at: String| move |error: std::io::Error| CliError::failed(format!("cannot listen on {at}"), &error);
    let Some(text) = args.address.as_ref().or(config.address.as_ref()) else {
        // One socket takes both kinds of addresses.
        return Ok(vec![Listener::any(port).map_err(failed(format!("port {port}")))?]);
    };
    let resolved = (text.trim_matches(['[', ']']), port).to_socket_addrs();
    let resolved = resolved.map_err(|error| CliError::Usage(format!("--address {text}: {error}")))?;
    resolved.map(|address| Listener::tcp(address).map_err(failed(address.to_string()))).collect()
}

/// Without a pool there are no datasets.
struct NoPool;

impl OpenPath for NoPool {
    fn open(&self, path: &str) -> std::result::Result<Arc<dyn Source>, String> {
        Err(format!(
            "no pool holds {path}: a server that begins without datasets has none until it is started again"
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

    fn receive(&self, path: &str) -> std::result::Result<Target<'_>, String> {
        Target::begin(&self.datasets, path).map_err(|error| chain(&error))
    }
}

/// Opens a dataset, a snapshot, or with `@` at the end the newest snapshot of a dataset.
///
/// # Errors
/// What is wrong with it.
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
