//! The daemon: greets clients, checks their access to modules, and serves each connection in a thread.

mod access;
mod addresses;
mod auth;
mod bursts;
mod config;
mod confine;
mod connection;
mod current;
mod door;
mod exec;
mod identity;
mod indexes;
mod link;
mod listener;
mod lock_file;
mod log;
mod lookup;
mod peer;
mod proxy;
mod refuse;
mod serve;
mod socket_options;
pub mod trusted;

pub(crate) use auth::AuthDigest;
pub use config::{Access, AuthUser, Config, ConfigError, Id, Module};
pub use confine::{ConfineError, Confinement};
pub use link::Link;
pub use listener::Listener;
pub(crate) use log::{DELETED, Event};
pub use log::{LogFormat, TimeText};
pub use lookup::answer as answer_lookups;

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use self::addresses::{Addresses, Logins};
use self::bursts::{Bursts, Kind};
use self::current::Current;
use crate::history;
use crate::index::IndexError;
use crate::names::Names;
use crate::source::Source;
use crate::target::Target;

/// Opens paths of modules that are datasets, not directories of this machine.
pub trait OpenPath: Send + Sync {
    /// The tree at a module's path, as it is now.
    ///
    /// # Errors
    /// When there is none. The text goes to the log, not to the client.
    fn open(&self, path: &str) -> Result<Arc<dyn Source>, String>;

    /// Begins to receive into the dataset at a module's path.
    ///
    /// # Errors
    /// When that fails. The client gets the text.
    fn receive(&self, path: &str) -> Result<Box<dyn Target + '_>, String> {
        Err(format!("{path} is nothing that is received into"))
    }
}

/// The time that a client has to send its request.
const PATIENCE: Duration = Duration::from_secs(60);
/// The greeting and the name of a module must come within this fraction of that time.
const GREETING_PART: u32 = 4;

/// Called with each line to log, and with the log file for it, if there is one.
pub type Log = dyn Fn(Option<&Path>, &str) + Send + Sync;

/// The state that all connections share.
pub struct Daemon {
    current: Mutex<Current>,
    datasets: Box<dyn OpenPath>,
    names: Names,
    log: Arc<Log>,
    patience: Duration,
    time: Box<TimeText>,
    indexes: indexes::Indexes,
    /// The number of connections to each module.
    connected: Mutex<HashMap<String, usize>>,
    /// The number of connections of each address.
    addresses: Addresses,
    /// The failed logins of each address.
    logins: Logins,
    bursts: Bursts,
    /// The most bytes per second for each client. 0 is no limit.
    bandwidth: u64,
}

/// A signal, from any thread, that a server shall end.
#[derive(Debug, Clone, Default)]
pub struct Shutdown(Arc<AtomicBool>);

impl Shutdown {
    /// A signal that was not given yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives the signal: the server accepts no more connections.
    pub fn trigger(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether the signal was given.
    pub fn is_triggered(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Daemon {
    /// A daemon with this configuration, which follows later changes of its files.
    pub fn new(config: Config, datasets: Box<dyn OpenPath>, log: Box<Log>) -> Self {
        let names = Names::of_this_machine();
        let indexes = indexes::Indexes::default();
        let (patience, time) = (PATIENCE, Box::new(history::log_time));
        let current = Mutex::new(Current::new(config));
        Self {
            current,
            datasets,
            names,
            log: log.into(),
            patience,
            time,
            indexes,
            connected: Mutex::default(),
            addresses: Addresses::default(),
            logins: Logins::default(),
            bursts: Bursts::default(),
            bandwidth: 0,
        }
    }

    /// Sets the most bytes per second for each client. 0 is no limit.
    #[must_use]
    pub fn with_bandwidth(self, bandwidth: u64) -> Self {
        Self { bandwidth, ..self }
    }

    /// Logs the start of the server, and warnings about its configuration.
    pub fn say_start(&self, version: &str, port: u16) {
        let config = self.last_config();
        for warning in &config.warnings {
            self.say(warning);
        }
        if config.proxy_protocol && config.proxy_protocol_hosts.is_none() {
            self.say(
                "warning: \"proxy protocol\" is on and \"proxy protocol hosts\" is unset: every connection will be rejected \
                 until it has the addresses of the proxies",
            );
        }
        self.say(format!("rsyncd version snowmelt-{version} starting, listening on port {port}"));
    }

    /// Sets how times in the log are written. The default is UTC.
    #[must_use]
    pub fn with_times(self, time: Box<TimeText>) -> Self {
        Self { time, ..self }
    }

    /// Sets the time that a client has to send its request. The default is a minute.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Confines this process for good, as the configuration says. The configuration is not read again, because its
    /// files are out of reach then. `lookups` starts a process that calls [`answer_lookups`] with its standard input.
    /// That process looks up names of clients if this one cannot do it any more.
    ///
    /// # Errors
    /// When it fails. The process must exit then.
    pub fn confine(&self, mut lookups: Command) -> Result<(), ConfineError> {
        let config = self.last_config();
        if !config.confinement.is_none() {
            if config.confinement.has_root() {
                let started = lookup::ask_from_now_on(&mut lookups);
                started.map_err(|source| ConfineError::System {
                    what: "starting a process that looks up names",
                    source,
                })?;
            }
            config.confinement.enter(&self.names)?;
            self.current.lock().keep();
        }
        Ok(())
    }

    fn greeting_patience(&self) -> Duration {
        self.patience / GREETING_PART
    }

    /// The configuration as it was read last.
    fn last_config(&self) -> Arc<Config> {
        self.current.lock().last().clone()
    }

    /// The configuration as its files are now.
    fn renewed(&self) -> Arc<Config> {
        let mut current = self.current.lock();
        let told = current.renew();
        let config = current.last().clone();
        drop(current);
        if let Some(told) = told {
            self.say(told);
            for warning in &config.warnings {
                self.say(warning);
            }
        }
        config
    }

    /// Reads the indexes of all modules, so that no client has to wait for that.
    ///
    /// # Errors
    /// When an index is invalid: the name of its module, and the reason.
    pub fn load_indexes(&self) -> Result<(), (String, IndexError)> {
        let config = self.current.lock().last().clone();
        for module in &config.modules {
            if let Some(path) = module.index.as_ref().filter(|_| !module.has_variable_index()) {
                let loaded = self.indexes.get(path, |_| {});
                loaded.map_err(|error| (module.name.clone(), error))?;
            }
        }
        Ok(())
    }

    fn say(&self, text: impl AsRef<str>) {
        let config = self.current.lock().last().clone();
        (self.log)(config.log_file.as_deref(), text.as_ref());
    }

    /// Logs an event that strangers can cause again and again, but only once in a while.
    fn say_once(&self, kind: Kind, text: impl FnOnce() -> String) {
        if let Some(line) = self.bursts.line(kind, text, Instant::now()) {
            self.say(line);
        }
    }

    /// Logs a line about a module.
    fn say_of(&self, module: &Module, text: impl AsRef<str>) {
        (self.log)(module.log_file.as_deref(), text.as_ref());
    }

    /// Counts a connection to a module for as long as the returned value lives. `None` when there are too many.
    ///
    /// # Errors
    /// When the lock file, in which other servers count too, cannot be used.
    fn enter(&self, module: &Module) -> std::io::Result<Option<Counted<'_>>> {
        let lock = match &module.lock_file {
            Some(file) if module.max_connections > 0 => {
                match lock_file::take_place(file, module.max_connections)? {
                    Some(place) => Some(place),
                    None => return Ok(None),
                }
            }
            _ => None,
        };
        let mut connected = self.connected.lock();
        let count = connected.entry(module.name.clone()).or_default();
        if module.is_disabled || module.max_connections > 0 && *count >= module.max_connections {
            return Ok(None);
        }
        *count += 1;
        Ok(Some(Counted { daemon: self, module: module.name.clone(), _lock: lock }))
    }
}

/// A connection that counts for its module.
struct Counted<'d> {
    daemon: &'d Daemon,
    module: String,
    /// Its place among the clients of all servers.
    _lock: Option<std::fs::File>,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        if let Some(count) = self.daemon.connected.lock().get_mut(&self.module) {
            *count = count.saturating_sub(1);
        }
    }
}
