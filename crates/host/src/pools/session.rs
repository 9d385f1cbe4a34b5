//! Owning a pool, or having its owner do the work.
//!
//! The process that opens a pool for writing is its owner. If the owner's command takes longer than a moment, or will
//! (it has mounted something, or waits for input), the owner serves the control socket of the pool. From then on it
//! ends only when the commands of others have ended too. A process that finds the pool locked waits this moment, and
//! then passes its command to the owner. Most commands end within it, so they do not have to wait for commands of
//! others, which can run for hours (docs/format/host.md).

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use snowmelt_dataset::Datasets;
use snowmelt_fuse::Mounts;
use snowmelt_pool::{Keys, LostState, Pool, PoolError, PoolOptions, Rewind, Salvage};
use snowmelt_store::{Access, DEADMAN, Location, StoreError};

use super::keys::{self, KnownKeys, Stdin};
use super::pins::{self, Pin, Pins};
use super::{holder, outside, shadow, waiting};
use crate::context::{Context, PROCESS_VARIABLES, Surroundings};
use crate::control::{self, Call, ControlError, Done, Listener, Request, open_directory};
use crate::error::{CliError, Result, chain};
use crate::exit::Exit;

/// How long a process may hold the lock without serving. Opening a mirror waits this long for a member, and a moment
/// more.
const OWNER_WAIT_MAX: Duration = Duration::from_secs(DEADMAN.as_secs() + 15);
/// Pause between the first two attempts to own a pool or reach its owner; it doubles up to the longest.
const OWNER_WAIT_STEP: Duration = Duration::from_millis(1);
const OWNER_WAIT_STEP_MAX: Duration = Duration::from_millis(10);
/// Time until a command serves others, unless it [announces](Session::serve_now) that it will take long.
const SERVE_AFTER: Duration = Duration::from_millis(250);
/// How soon a command learns that its caller is gone.
const WATCH_INTERVAL: Duration = Duration::from_millis(100);

/// On an object store, a txg is committed after this time, or after this many bytes. Syncs, snapshots and the end of
/// a receive commit at once, as in all stores.
const OBJECT_TXG_INTERVAL: Duration = Duration::from_secs(30);
const OBJECT_WRITTEN_MAX_BYTES: u64 = 1 << 30;

/// The variable that turns automatic mounting on and off (docs/mount.md). It is passed on with a command.
pub const AUTOMOUNT_VARIABLE: &str = "SNOWMELT_AUTOMOUNT";

/// An open pool.
pub struct Session {
    /// Its datasets.
    pub datasets: Arc<Datasets>,
    /// The mounts of this process. While there are any, the process stays and serves others.
    pub mounts: Arc<Mounts>,
    place: PathBuf,
    /// When it was opened.
    pub opened: Instant,
    /// How others are served, if they can be.
    service: Mutex<Option<Arc<ServiceState>>>,
    /// The owner is about to end, and waits for the commands of others. Work that can continue in another process
    /// should do so.
    pub closing: AtomicBool,
    /// This process stays in the background for the mounts.
    pub hosts: AtomicBool,
}

/// An open pool and, if it is open for writing, the service for other processes.
pub struct Owner {
    session: Arc<Session>,
    service: Option<Service>,
}

/// A thread that serves others, and how to end it.
struct Service {
    state: Arc<ServiceState>,
    thread: JoinHandle<()>,
    serve: Serve,
}

/// The state that the serving thread and the owner's command share.
struct ServiceState {
    socket: PathBuf,
    phase: Mutex<Phase>,
    changed: Condvar,
}

/// Where the service is in its life. It changes under its lock, so that it cannot begin once it was ended.
enum Phase {
    /// The owner's command may end before another command has to wait.
    Waiting,
    /// Others are served.
    Serving(Arc<Listener>),
    /// The owner's command has ended, or no one can connect.
    Ended,
}

/// What became of an attempt to work on a pool.
pub enum Acquired {
    /// It is ours.
    Owned(Owner),
    /// Its owner has done the command, with this exit status.
    Done(u8),
}

/// Runs a command for another process.
pub type Serve = fn(&mut Context, Arc<Session>) -> Exit;

impl Session {
    /// The pool's name.
    pub fn name(&self) -> &str {
        self.datasets.pool_name()
    }

    /// Serves others from now on, because this command will take long, or may wait for one of them. When this
    /// returns, they can connect.
    pub fn serve_now(&self) {
        let service = self.service.lock().clone();
        if let Some(service) = service {
            service.begin();
        }
    }

    /// Whether others are served, or never will be.
    pub fn is_serving(&self) -> bool {
        let service = self.service.lock();
        service.as_ref().is_none_or(|service| !matches!(*service.phase.lock(), Phase::Waiting))
    }

    /// If the pool is a shadow, a warning for the reader of its files.
    pub fn caveat(&self) -> Option<String> {
        let place = shadow::is_name(self.name()).then(|| outside::of(self.datasets.pool()).ok().flatten())?;
        let (_, source) = place?;
        Some(format!(
            "'{}' is the shadow of {}: file data is read there, and reads fail where it has changed",
            self.name(),
            source.display()
        ))
    }

    /// Where the pool is, if it is a shadow.
    pub fn shadow(&self) -> Option<&Path> {
        shadow::is_name(self.name()).then_some(&self.place)
    }
}

/// A process that serves a mount has no user to inform. A background process has closed standard error.
pub fn complain(what: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "snowmelt: {what}");
}

impl Owner {
    /// Takes over a pool that was just made at `place`.
    pub fn new(datasets: Arc<Datasets>, place: &Path) -> Self {
        let mounts = Mounts::new(datasets.clone(), complain);
        let (closing, hosts) = (AtomicBool::new(false), AtomicBool::new(false));
        Self {
            session: Arc::new(Session {
                datasets,
                mounts,
                place: place.to_owned(),
                opened: Instant::now(),
                service: Mutex::default(),
                closing,
                hosts,
            }),
            service: None,
        }
    }

    /// Begins to serve others as soon as the own command has taken a moment.
    fn serving(mut self, serve: Serve) -> Self {
        let pool = self.session.datasets.pool();
        let socket = if pool.is_read_only() { None } else { pool.store().control_socket() };
        self.service = socket.map(|socket| {
            let state =
                Arc::new(ServiceState { socket, phase: Mutex::new(Phase::Waiting), changed: Condvar::new() });
            *self.session.service.lock() = Some(state.clone());
            let (session, shared) = (self.session.clone(), state.clone());
            let thread = std::thread::spawn(move || {
                if let Some(listener) = shared.wait() {
                    accept(&listener, &session, serve);
                }
            });
            Service { state, thread, serve }
        });
        self
    }

    /// The pool.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Waits until nothing is mounted, and then closes the pool. When `cancelled` becomes true, everything is
    /// unmounted.
    ///
    /// # Errors
    /// As [`Owner::close`].
    pub fn close_when_unmounted(mut self, cancelled: &AtomicBool) -> Result<()> {
        self.session.mounts.refresh();
        loop {
            if !self.session.mounts.is_empty() {
                self.session.serve_now();
            }
            self.session.mounts.wait_until_none(cancelled);
            let Some(serve) = self.end_service() else { break };
            // A command that was under way may have mounted something.
            if self.session.mounts.is_empty() {
                break;
            }
            self = self.serving(serve);
        }
        self.close()
    }

    /// Ends the service, when the commands of others have ended, commits and lets go of the pool.
    ///
    /// # Errors
    /// When the last commit fails.
    pub fn close(mut self) -> Result<()> {
        self.end_service();
        let name = self.session.name().to_owned();
        let pool = self.session.datasets.pool().clone();
        drop(self.session);
        pool.clear_outside();
        pool.close().map_err(|error| CliError::failed(format!("cannot close '{name}'"), &error))
    }

    /// Stops serving when the commands of others have ended. Returns how they were executed, if there were any.
    fn end_service(&mut self) -> Option<Serve> {
        let Service { state, thread, serve } = self.service.take()?;
        self.session.closing.store(true, Ordering::Relaxed);
        if let Some(listener) = state.end() {
            listener.close_when_idle();
        }
        // Only a bug lets it panic; those whom it served have been told by then.
        let _ = thread.join();
        *self.session.service.lock() = None;
        self.session.closing.store(false, Ordering::Relaxed);
        Some(serve)
    }
}

impl ServiceState {
    /// Starts to listen, unless this was done before or the owner's command has ended. Without a control socket, the
    /// pool still works.
    fn begin(&self) {
        let mut phase = self.phase.lock();
        if matches!(*phase, Phase::Waiting) {
            *phase = match Listener::bind(&self.socket) {
                Ok(listener) => Phase::Serving(Arc::new(listener)),
                Err(_) => Phase::Ended,
            };
            self.changed.notify_all();
        }
    }

    /// Waits until others have to be served: at the request of the owner's command, or when it takes longer than a
    /// moment. `None` when the command has ended.
    fn wait(&self) -> Option<Arc<Listener>> {
        let deadline = Instant::now() + SERVE_AFTER;
        let mut phase = self.phase.lock();
        while matches!(*phase, Phase::Waiting) {
            if self.changed.wait_until(&mut phase, deadline).timed_out() {
                MutexGuard::unlocked(&mut phase, || self.begin());
            }
        }
        match &*phase {
            Phase::Serving(listener) => Some(listener.clone()),
            Phase::Waiting | Phase::Ended => None,
        }
    }

    /// The owner's command is over. Gives the listener that is to be closed.
    fn end(&self) -> Option<Arc<Listener>> {
        let before = std::mem::replace(&mut *self.phase.lock(), Phase::Ended);
        self.changed.notify_all();
        match before {
            Phase::Serving(listener) => Some(listener),
            Phase::Waiting | Phase::Ended => None,
        }
    }
}

/// Owns the pool at `location`, or has its owner do `args` with these files.
pub fn acquire(
    context: &mut Context,
    location: &Location,
    call: &Forward<'_>,
    serve: Serve,
) -> Result<Acquired> {
    let deadline = Instant::now() + OWNER_WAIT_MAX;
    let mut pause = OWNER_WAIT_STEP;
    if location.is_read_only() {
        return follow(context, location, "it was imported with readonly=on".to_owned());
    }
    loop {
        match waiting::open(context, location, Access::ReadWrite)? {
            Ok(store) => {
                return own(context, store, location, pool_options(location), Stdin::Data)
                    .map(|owner| Acquired::Owned(owner.serving(serve)));
            }
            Err(StoreError::Locked { .. }) => {}
            Err(error) if may_only_read(&error) => return follow(context, location, chain(&error)),
            Err(error) => return Err(cannot_open(location, &error)),
        }
        if let Some(socket) = snowmelt_store::control_socket(location) {
            let done = call.send(&socket, context);
            if let Some(done) = done.map_err(|error| CliError::Failed(refused(location, &error)))? {
                explain(context, done);
                return Ok(Acquired::Done(done.code));
            }
        }
        if context.is_cancelled() {
            return Err(CliError::Failed("interrupted".to_owned()));
        }
        if Instant::now() > deadline {
            let place = location.path().display();
            return Err(CliError::Failed(format!(
                "the pool at {place} is locked by a process that does not answer: it belongs to another user, or \
                 it hangs"
            )));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(OWNER_WAIT_STEP_MAX);
    }
}

/// Why the owner did not carry out a command, and what to do about it.
fn refused(location: &Location, error: &ControlError) -> String {
    let why = chain(error);
    match error {
        ControlError::Version { .. } => match holder::of(location) {
            Some((pid, words)) => format!("{why}\nprocess {pid} owns it: {words}\n{}", ending(pid)),
            None => why,
        },
        _ => why,
    }
}

/// After an upgrade, the processes of mounts go on with the version that they were started with. A command that they
/// cannot carry out fails, and its message does not say why.
fn explain(context: &mut Context, done: Done) {
    if done.code == 0 || !holder::is_other_program(done.owner) {
        return;
    }
    let pid = done.owner;
    let words = holder::words(pid).unwrap_or_default();
    context.complain(format_args!(
        "warning: process {pid} owns the pool and carried out this command. It runs another version of snowmelt: \
         {words}\n{}",
        ending(pid)
    ));
}

fn ending(pid: u32) -> String {
    format!("'kill {pid}' unmounts its filesystems and ends it; then mount them again with this version")
}

/// Opens the pool at `location` for reading, beside its owner. `because` is the reason why it is not opened for
/// writing.
fn follow(context: &Context, location: &Location, because: String) -> Result<Acquired> {
    let store = waiting::open(context, location, Access::ReadOnly)?.map_err(|e| cannot_open(location, &e))?;
    let because = Some(because.into());
    let options = PoolOptions { read_only: true, read_only_because: because, ..pool_options(location) };
    own(context, store, location, options, Stdin::Data).map(Acquired::Owned)
}

/// Becomes the owner of the pool at `location` if it has none, without waiting and without serving others.
///
/// # Errors
/// `attempt` is the beginning of the message.
pub fn acquire_alone(context: &Context, location: &Location, attempt: &str) -> Result<Owner> {
    acquire_txg(context, location, attempt, Rewind::No)
}

/// The same of a pool as it was in another txg than the newest.
///
/// # Errors
/// As [`acquire_alone`].
pub fn acquire_txg(context: &Context, location: &Location, attempt: &str, rewind: Rewind) -> Result<Owner> {
    match waiting::open(context, location, Access::ReadWrite)? {
        Ok(store) => {
            let options = PoolOptions { rewind, ..pool_options(location) };
            own(context, store, location, options, Stdin::Free)
        }
        Err(StoreError::Locked { .. }) => Err(CliError::Failed(holder::busy(attempt, location))),
        Err(error) => Err(CliError::failed(attempt, &error)),
    }
}

/// The same for reading only, beside any owner.
///
/// # Errors
/// As [`acquire_alone`].
pub fn look_at_txg(context: &Context, location: &Location, attempt: &str, rewind: Rewind) -> Result<Owner> {
    let store = waiting::open(context, location, Access::ReadOnly)?;
    let store = store.map_err(|error| CliError::failed(attempt, &error))?;
    let options = PoolOptions { read_only: true, rewind, ..pool_options(location) };
    own(context, store, location, options, Stdin::Free)
}

/// A state of a pool that was found without its uberblock; `options` are for its key, and to look at it only.
///
/// # Errors
/// As [`acquire_alone`]; when the state is not whole enough to be opened.
pub fn acquire_lost(
    location: &Location,
    attempt: &str,
    salvage: &Salvage,
    state: &LostState,
    options: PoolOptions,
) -> Result<Owner> {
    let access = if options.read_only { Access::ReadOnly } else { Access::ReadWrite };
    let store = match snowmelt_store::open(location, access) {
        Err(StoreError::Locked { .. }) => return Err(CliError::Failed(holder::busy(attempt, location))),
        opened => opened.map_err(|error| CliError::failed(attempt, &error))?,
    };
    let pool = Pool::open_lost(store, salvage, state, options);
    own_pool(pool.map_err(|error| CliError::failed(attempt, &error))?, location)
}

fn own(
    context: &Context,
    store: Box<dyn snowmelt_store::Store>,
    location: &Location,
    options: PoolOptions,
    stdin: Stdin,
) -> Result<Owner> {
    let (pins, place) = (Pins::of(context)?, pins::place(location));
    let record = keys::record(&*store, location)?;
    let is_encrypted = record.is_some();
    // Before a key is asked for, and before anything is written.
    pins.check_encryption(&place, is_encrypted)?;
    let mut name = String::new();
    if !matches!(location, Location::Object(_))
        && let Ok(label) = snowmelt_store::label(location)
    {
        name = label.name;
        let (place, name) = (place.clone(), name.clone());
        pins.verify(&Pin { place, guid: label.guid, is_encrypted, fingerprint: None, name })?;
    }
    let keys = record.map(|record| keys::of_record(context, &record, location, stdin)).transpose()?;
    let fingerprint = keys.as_ref().map(Keys::fingerprint);
    if let Some(keys) = &keys {
        // Before anything is written that a stranger with another key could read.
        pins.verify(&Pin { place: place.clone(), guid: keys.guid(), is_encrypted, fingerprint, name })?;
    }
    let pool = Pool::open(store, PoolOptions { keys, ..options });
    let owner = own_pool(pool.map_err(|error| cannot_open(location, &error))?, location)?;
    let guid = owner.session.datasets.pool().guid();
    let found = Pin { place, guid, is_encrypted, fingerprint, name: owner.session.name().to_owned() };
    pins.check(&found).map(|()| owner)
}

fn own_pool(pool: Arc<Pool>, location: &Location) -> Result<Owner> {
    let datasets = Datasets::open(pool).map_err(|error| cannot_open(location, &error))?;
    let attached = match location {
        Location::Directory(path) if snowmelt_store::is_own(path) => outside::attach(&datasets, path),
        // A stranger's pool does not have files of this user opened.
        _ => outside::refuse(&datasets),
    };
    attached.map_err(|error| cannot_open(location, &error))?;
    Ok(Owner::new(datasets, location.path()))
}

/// How pools at such a place are used.
pub fn pool_options(location: &Location) -> PoolOptions {
    match location {
        // Each commit is a few requests, which cost money and time, whatever is in it.
        Location::Object(_) => PoolOptions {
            txg_interval: OBJECT_TXG_INTERVAL,
            written_max_bytes: OBJECT_WRITTEN_MAX_BYTES,
            ..PoolOptions::default()
        },
        _ => PoolOptions::default(),
    }
}

fn cannot_open(location: &Location, error: &(dyn std::error::Error + 'static)) -> CliError {
    let path = location.path();
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if shadow::is_name(name) {
        let why = format!("cannot open the shadow at {}: {}", path.display(), chain(error));
        return CliError::Failed(shadow::damaged(name, &why));
    }
    if let Some(PoolError::NeedsRewind { to, lost, .. }) = error.downcast_ref() {
        let name = snowmelt_store::label(location).map_or_else(|_| path.display().to_string(), |it| it.name);
        return CliError::Failed(format!(
            "cannot open the pool at {}: {}\na rewind to txg {to} would discard the last {lost} seconds of \
             changes: 'snowmelt pool import -F {name}' does it, and 'snowmelt pool import -Fn {name}' is a dry run",
            path.display(),
            chain(error)
        ));
    }
    let failed = format!("cannot open the pool at {}: {}", path.display(), chain(error));
    match error.downcast_ref() {
        Some(PoolError::NoUberblock { .. } | PoolError::Unreadable { .. }) => {
            let name =
                snowmelt_store::label(location).map_or_else(|_| path.display().to_string(), |it| it.name);
            CliError::Failed(format!(
                "{failed}\n'snowmelt salvage {name}' searches it for a state that can be recovered"
            ))
        }
        _ => CliError::Failed(failed),
    }
}

fn may_only_read(error: &StoreError) -> bool {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    match error {
        StoreError::Io { source, .. } => matches!(source.kind(), PermissionDenied | ReadOnlyFilesystem),
        StoreError::Elsewhere { .. } => true,
        _ => false,
    }
}

/// A command to be handed over.
pub struct Forward<'a> {
    /// The words, without the program's name.
    pub args: &'a [OsString],
    /// Its output, if it is not the output of this process.
    pub stdout: Option<&'a File>,
}

impl Forward<'_> {
    fn send(&self, socket: &Path, context: &Context) -> control::Result<Option<Done>> {
        let program = OsString::from("snowmelt");
        let args: Vec<OsString> = std::iter::once(program).chain(self.args.iter().cloned()).collect();
        // Among them HOME and XDG_CONFIG_HOME: the owner may have been started with others.
        let is_passed = |name: &OsString| !PROCESS_VARIABLES.iter().any(|own| name == own);
        let env: Vec<_> = context.environment().iter().filter(|(name, _)| is_passed(name)).cloned().collect();
        let cwd = open_directory(context.cwd()).or_else(|_| open_directory(Path::new("/")));
        let cwd = cwd.map_err(|error| ControlError::Io {
            op: "pass the working directory to",
            path: socket.to_owned(),
            source: error.into(),
        })?;
        Call {
            args: &args,
            env: &env,
            cwd: cwd.as_fd(),
            stdin: context.stdin.as_fd(),
            stdout: self.stdout.unwrap_or(context.out.get_ref()).as_fd(),
            stderr: context.err.as_fd(),
            cancelled: &context.cancelled,
        }
        .send(socket)
    }
}

/// Serves until the listener is closed, and then until the last command has ended.
fn accept(listener: &Listener, session: &Arc<Session>, serve: Serve) {
    let mut commands: Vec<JoinHandle<()>> = Vec::new();
    loop {
        match listener.accept() {
            Ok(Some(request)) => {
                commands.retain(|command| !command.is_finished());
                let session = session.clone();
                commands.push(std::thread::spawn(move || run_request(request, session, serve)));
            }
            Ok(None) => break,
            // Out of descriptors, most likely: callers wait meanwhile.
            Err(_) => std::thread::sleep(OWNER_WAIT_STEP_MAX),
        }
    }
    for command in commands {
        // A panic has reached the caller as the death of its owner.
        let _ = command.join();
    }
}

fn run_request(mut request: Request, session: Arc<Session>, serve: Serve) {
    let cancelled = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicBool::new(false));
    let watcher = request.watch().ok().map(|watch| {
        let (cancelled, done) = (cancelled.clone(), done.clone());
        std::thread::spawn(move || {
            while !done.load(Ordering::Relaxed) && !cancelled.load(Ordering::Relaxed) {
                cancelled.store(watch.cancelled(), Ordering::Relaxed);
                std::thread::park_timeout(WATCH_INTERVAL);
            }
        })
    });
    let exit = match context_of(&mut request, cancelled) {
        Ok(mut context) => serve(&mut context, session.clone()),
        Err(_) => Exit::Failed,
    };
    session.mounts.refresh();
    done.store(true, Ordering::Relaxed);
    if let Some(watcher) = watcher {
        watcher.thread().unpark();
        let _ = watcher.join();
    }
    // If the caller has disconnected, nobody needs the result.
    let _ = request.reply(exit.code());
}

fn context_of(request: &mut Request, cancelled: Arc<AtomicBool>) -> std::io::Result<Context> {
    let link = PathBuf::from(format!("/proc/self/fd/{}", request.cwd.as_raw_fd()));
    Ok(Context::new(Surroundings {
        args: request.args.iter().skip(1).cloned().collect(),
        stdin: request.stdin.try_clone()?,
        stdout: request.stdout.try_clone()?,
        stderr: request.stderr.try_clone()?,
        cwd: std::fs::read_link(&link).unwrap_or(link),
        env: request.env.clone(),
        cancelled,
        keys: KnownKeys::default(),
    }))
}
