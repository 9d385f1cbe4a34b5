//! `serve nbd`.

mod clients;
mod exports;
mod listen;

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use snowmelt_nbd::{Endpoint, Event, Listener, Log, Options, Server, Shutdown, Tls};
use snowmelt_pool::Syncer;

use self::clients::Clients;
use self::exports::Volumes;
use super::names;
use crate::app::{App, pool_of};
use crate::args::ServeNbdArgs;
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::journal::{Level, ServerLog};
use crate::pools::Session;

/// How soon an interruption is seen.
const TICK: Duration = Duration::from_millis(50);
/// Interval at which a continuing failure is reported again.
const SAY_AGAIN: Duration = Duration::from_secs(60);
/// Failures reported within that time.
const FAILURES_MAX: usize = 16;

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
    let log = app.context.server_log(Level::least(args.quiet, args.verbose))?;
    let tls = listen::tls(app, args, &log)?;
    let missing = |pool: &str| format!("cannot open '{first}': no such pool '{pool}'");
    app.on_pool(first, missing, |app, session| serve(app, session, args, (tls, log)))
}

fn serve(
    app: &mut App<'_>,
    session: &Session,
    args: &ServeNbdArgs,
    (tls, log): (Tls, ServerLog),
) -> Result<Exit> {
    let attempt = "cannot serve NBD";
    let failed = |error: &(dyn std::error::Error + 'static)| CliError::failed(attempt, error);
    names::check_all(&session.datasets, args.targets.iter().map(String::as_str))?;
    let clients = match &args.clients {
        Some(path) => Some(Clients::open(app.context.path(path), log.clone()).map_err(CliError::Failed)?),
        None => None,
    };
    let exports =
        Arc::new(Volumes::new(session.datasets.clone(), args.targets.clone(), args.read_only, clients));
    let listeners = listen::listeners(app, args, pool_of(&args.targets[0]))?;
    let has_tls = matches!(tls, Tls::Required(_));
    let options = Options {
        tls,
        max_connections: args.max_connections,
        max_connections_per_machine: args.max_connections_per_machine.min(args.max_connections),
        log: events(log),
        ..Options::default()
    };
    let server = Server::new(exports.clone(), options).map_err(|error| failed(&error))?;
    let default = exports.first_volume(|_| true).unwrap_or_default();
    session.serve_now();
    announce(app.context, &listeners, &default, has_tls)?;
    let shutdown = Shutdown::new();
    // If the pool cannot be written to, each write returns the error.
    let syncer = Syncer::start(session.datasets.pool().clone(), |_| {}).map_err(|error| failed(&error))?;
    let served = serve_until_cancelled(app.context, server, listeners, &shutdown);
    drop(syncer);
    session.datasets.pool().commit().map_err(|error| failed(&error))?;
    served.map_err(|error| failed(&error))?;
    Ok(Exit::Ok)
}

/// Prints where clients connect.
fn announce(context: &mut Context, listeners: &[Listener], default: &str, has_tls: bool) -> Result<()> {
    for listener in listeners {
        let is_tcp = matches!(listener.endpoint(), Endpoint::Tcp(_));
        writeln!(context.out, "serving NBD on {}", listener.endpoint().uri(default, has_tls && is_tcp))?;
    }
    Ok(context.out.flush()?)
}

fn serve_until_cancelled(
    context: &Context,
    server: Server,
    listeners: Vec<Listener>,
    shutdown: &Shutdown,
) -> std::result::Result<(), snowmelt_nbd::ServeError> {
    std::thread::scope(|scope| {
        let done = Shutdown::new();
        let ended = done.clone();
        scope.spawn(move || {
            while !ended.is_triggered() {
                std::thread::sleep(TICK);
                if context.is_cancelled() {
                    shutdown.trigger();
                }
            }
        });
        let served = server.serve(listeners, shutdown);
        done.trigger();
        served
    })
}

/// Requests that fail in the same way are logged once a minute. The debug log has each of them.
fn events(log: ServerLog) -> Log {
    let failures: Mutex<Vec<(String, Instant)>> = Mutex::default();
    Log::new(move |event| {
        let line = event.to_string();
        let level = match event {
            Event::Left { .. } => Level::Debug,
            Event::TooMany { .. } => Level::Warning,
            Event::Failed { .. } => {
                let failures = &mut *failures.lock();
                failures.retain(|(_, at)| at.elapsed() < SAY_AGAIN);
                let is_said =
                    failures.len() >= FAILURES_MAX || failures.iter().any(|(said, _)| *said == line);
                if is_said {
                    Level::Debug
                } else {
                    failures.push((line.clone(), Instant::now()));
                    Level::Error
                }
            }
            _ => Level::Info,
        };
        log.line(level, &line);
    })
}
