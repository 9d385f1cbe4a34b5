//! `serve nbd`.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use snowmelt_dataset::{DatasetError, Datasets, Found, Kind, Name};
use snowmelt_nbd::{
    Event, Export, Exports, Extent, Listener, Log, OpenError, Options, Server, Shutdown, Tls, TlsConfig,
};
use snowmelt_pool::{PoolError, Syncer};
use snowmelt_volume::{Volume, VolumeError};
use snowmelt_zpl::SourceError;

use super::names;
use crate::app::{App, pool_of};
use crate::args::{ServeNbdArgs, TlsMode};
use crate::error::{CliError, Result, chain};
use crate::exit::Exit;
use crate::pools::Session;

/// NBD's own port.
const PORT: u16 = 10809;
/// How often it is looked whether to end.
const TICK: Duration = Duration::from_millis(50);
/// After so long a failure that goes on is told again.
const SAY_AGAIN: Duration = Duration::from_secs(60);
/// Failures told within that time.
const FAILURES_MAX: usize = 16;
/// Runs of blocks told in one answer.
const EXTENTS_MAX: usize = 4096;

/// Serves volumes until it is interrupted.
///
/// # Errors
/// When a target does not exist, an address cannot be listened on, or the certificates are no good.
pub fn run(app: &mut App<'_>, args: &ServeNbdArgs) -> Result<Exit> {
    let first = &args.targets[0];
    let pool = pool_of(first);
    if let Some(other) = args.targets.iter().find(|target| pool_of(target) != pool) {
        return Err(CliError::Usage(format!("'{first}' and '{other}' are in different pools")));
    }
    let missing = |pool: &str| format!("cannot open '{first}': no such pool '{pool}'");
    app.on_pool(first, missing, |app, session| serve(app, session, args))
}

fn serve(app: &mut App<'_>, session: &Session, args: &ServeNbdArgs) -> Result<Exit> {
    let attempt = "cannot serve NBD";
    let failed = |error: &(dyn std::error::Error + 'static)| CliError::failed(attempt, error);
    names::check_all(&session.datasets, args.targets.iter().map(String::as_str))?;
    let mut listeners = Vec::new();
    for address in addresses(args)? {
        listeners.push(Listener::tcp(address).map_err(|error| failed(&error))?);
    }
    for path in &args.unix {
        let path = app.context.path(path);
        listeners.push(Listener::unix(&path).map_err(|error| failed(&error))?.plain());
    }
    let log = log(app.context.err.try_clone()?, args.verbose);
    let options =
        Options { tls: tls(app, args)?, max_connections: args.max_connections, log, ..Options::default() };
    for listener in &listeners {
        writeln!(app.context.out, "serving NBD on {}", listener.endpoint())?;
    }
    app.context.out.flush()?;
    let exports = Arc::new(Volumes {
        datasets: session.datasets.clone(),
        targets: args.targets.clone(),
        read_only: args.read_only,
        open: Mutex::default(),
    });
    let server = Server::new(exports, options).map_err(|error| failed(&error))?;
    let shutdown = Shutdown::new();
    // A pool that cannot be written tells so to whoever writes to it.
    let syncer = Syncer::start(session.datasets.pool().clone(), |_| {}).map_err(|error| failed(&error))?;
    let served = std::thread::scope(|scope| {
        let (stop, context) = (shutdown.clone(), &*app.context);
        let done = Shutdown::new();
        let ended = done.clone();
        scope.spawn(move || {
            while !ended.is_triggered() {
                std::thread::sleep(TICK);
                if context.is_cancelled() {
                    stop.trigger();
                }
            }
        });
        let served = server.serve(listeners, &shutdown);
        done.trigger();
        served
    });
    drop(syncer);
    session.datasets.pool().commit().map_err(|error| failed(&error))?;
    served.map_err(|error| failed(&error))?;
    Ok(Exit::Ok)
}

/// Writes lines to `err`, of everything or of what every operator wants to know: of requests that fail in one way one a minute.
fn log(err: File, verbose: bool) -> Log {
    struct Lines {
        err: File,
        failures: Vec<(String, Instant)>,
    }
    let lines = Mutex::new(Lines { err, failures: Vec::new() });
    Log::new(move |event| {
        let line = event.to_string();
        let lines = &mut *lines.lock();
        let is_said = match event {
            Event::Left { .. } => true,
            Event::Failed { .. } => {
                lines.failures.retain(|(_, at)| at.elapsed() < SAY_AGAIN);
                let is_said = lines.failures.len() >= FAILURES_MAX
                    || lines.failures.iter().any(|(said, _)| *said == line);
                if !is_said {
                    lines.failures.push((line.clone(), Instant::now()));
                }
                is_said
            }
            _ => false,
        };
        if verbose || !is_said {
            // There is nowhere to complain if that fails.
            let _ = writeln!(lines.err, "{line}");
        }
    })
}

fn addresses(args: &ServeNbdArgs) -> Result<Vec<SocketAddr>> {
    if args.listen.is_empty() && args.unix.is_empty() {
        return Ok(vec![SocketAddr::from(([127, 0, 0, 1], PORT))]);
    }
    let mut found = Vec::new();
    for text in &args.listen {
        let with_port = text.to_socket_addrs();
        let resolved = with_port.or_else(|_| (text.trim_matches(['[', ']']), PORT).to_socket_addrs());
        let resolved = resolved.map_err(|error| CliError::Usage(format!("--listen {text}: {error}")))?;
        found.extend(resolved);
    }
    Ok(found)
}

fn tls(app: &App<'_>, args: &ServeNbdArgs) -> Result<Tls> {
    let Some(directory) = args.tls_dir.as_ref().filter(|_| args.tls != TlsMode::Off) else {
        return Ok(Tls::Off);
    };
    let config = TlsConfig::from_directory(&app.context.path(directory), args.verify_clients)
        .map_err(|error| CliError::failed("cannot serve NBD", &error))?;
    Ok(if args.tls == TlsMode::Required { Tls::Required(config) } else { Tls::Optional(config) })
}

/// The volumes of a pool.
struct Volumes {
    datasets: Arc<Datasets>,
    targets: Vec<String>,
    read_only: bool,
    /// Those that clients have open.
    open: Mutex<HashMap<String, Weak<Device>>>,
}

impl Volumes {
    /// Whether `name` is one of the targets, below one, or a snapshot of one.
    fn is_served(&self, name: &str) -> bool {
        self.targets.iter().any(|target| {
            name.strip_prefix(target.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
        })
    }
}

impl Exports for Volumes {
    fn list(&self) -> io::Result<Vec<String>> {
        let catalog = self.datasets.catalog();
        let all = || -> std::result::Result<Vec<String>, DatasetError> {
            let mut names = Vec::new();
            for dataset in catalog.descendants(catalog.root()?)? {
                if dataset.record.kind != Kind::Volume || dataset.record.inconsistent {
                    continue;
                }
                names.push(dataset.name.clone());
                for snapshot in catalog.snapshots(&dataset) {
                    names.push(snapshot?.full_name());
                }
            }
            Ok(names)
        };
        let mut names = all().map_err(io::Error::other)?;
        names.retain(|name| self.is_served(name));
        Ok(names)
    }

    fn open(&self, name: &str) -> std::result::Result<Arc<dyn Export>, OpenError> {
        if Name::parse(name).is_err() || !self.is_served(name) {
            return Err(OpenError::NotFound);
        }
        let mut open = self.open.lock();
        if let Some(device) = open.get(name).and_then(Weak::upgrade) {
            return Ok(device);
        }
        let volume = Volume::open(&self.datasets, name).map_err(|error| match error {
            VolumeError::Dataset(DatasetError::NotFound { .. } | DatasetError::WrongType { .. }) => {
                OpenError::NotFound
            }
            VolumeError::Dataset(error @ (DatasetError::Encrypted { .. } | DatasetError::Busy { .. })) => {
                OpenError::Denied { reason: error.to_string() }
            }
            other => OpenError::Io(failure(other)),
        })?;
        let device = Arc::new(Device { name: name.to_owned(), read_only: self.read_only, volume });
        open.retain(|_, device| device.strong_count() > 0);
        open.insert(name.to_owned(), Arc::downgrade(&device));
        Ok(device)
    }

    fn default_export(&self) -> Option<String> {
        let catalog = self.datasets.catalog();
        let is_volume = |target: &&String| {
            let found = Name::parse(target).ok().and_then(|name| catalog.find(&name).ok());
            matches!(found, Some(Found::Dataset(found)) if found.record.kind == Kind::Volume)
        };
        self.targets.iter().find(is_volume).cloned()
    }
}

/// A volume as NBD wants it.
struct Device {
    name: String,
    read_only: bool,
    volume: Volume,
}

/// A failure with the number that the client is to see.
fn failure(error: VolumeError) -> io::Error {
    let is_full = matches!(
        &error,
        VolumeError::Source(SourceError::NoSpace | SourceError::QuotaExceeded)
            | VolumeError::Dataset(DatasetError::Pool(PoolError::NoSpace { .. }))
    );
    let kind = match &error {
        _ if is_full => io::ErrorKind::StorageFull,
        VolumeError::Range { .. } => io::ErrorKind::InvalidInput,
        VolumeError::ReadOnly | VolumeError::Source(SourceError::ReadOnly) => io::ErrorKind::PermissionDenied,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, chain(&error))
}

impl Export for Device {
    fn size(&self) -> u64 {
        self.volume.size().unwrap_or(0)
    }

    fn block_size(&self) -> u32 {
        self.volume.block_size()
    }

    fn read_only(&self) -> bool {
        self.read_only || self.volume.is_read_only()
    }

    fn description(&self) -> Option<String> {
        Some(format!("snowmelt volume {}", self.name))
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.volume.read(offset, buf).map_err(failure)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.volume.write(offset, data).map_err(failure)
    }

    fn write_zeroes(&self, offset: u64, length: u64, _may_trim: bool) -> io::Result<()> {
        // What is copied on write has no room set aside in any case.
        self.volume.zero(offset, length).map_err(failure)
    }

    fn zeroes_fast(&self, _offset: u64, _length: u64, _may_trim: bool) -> bool {
        true
    }

    fn trim(&self, offset: u64, length: u64) -> io::Result<()> {
        self.volume.zero(offset, length).map_err(failure)
    }

    fn flush(&self) -> io::Result<()> {
        self.volume.flush().map_err(failure)
    }

    fn cache(&self, offset: u64, length: u64) -> io::Result<()> {
        const PIECE: usize = 1 << 20;
        const MOST: u64 = 32 << 20;
        let mut buf = vec![0; PIECE];
        let (mut at, end) = (offset, offset + length.min(MOST));
        while at < end {
            let len = (end - at).min(PIECE as u64) as usize;
            self.volume.read(at, &mut buf[..len]).map_err(failure)?;
            at += len as u64;
        }
        Ok(())
    }

    fn extents(&self, offset: u64, length: u64) -> io::Result<Vec<Extent>> {
        let found = self.volume.extents(offset, length, EXTENTS_MAX).map_err(failure)?;
        let told =
            |run: snowmelt_volume::Extent| Extent { length: run.length, hole: !run.data, zero: !run.data };
        Ok(found.into_iter().map(told).collect())
    }
}
