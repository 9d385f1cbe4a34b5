//! The server: accepts connections and serves them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::Instrument;

use crate::budget::ServerBudget;
use crate::connection::{self, Shared};
use crate::error::ServeError;
use crate::event::Event;
use crate::export::Exports;
use crate::listener::{Accept, Accepted, Listener};
use crate::options::Options;
use crate::peers::Peers;
use crate::shutdown::Shutdown;
use crate::workers::Workers;

/// Pause after a failure to accept a connection, for example because there is no free file descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Number of threads for the sockets. Requests run on [`Options::workers`] other threads.
const SOCKET_THREADS: usize = 4;

/// Maximum number of threads that list and open exports.
const OPENING_THREADS: usize = 16;

/// An NBD server for a set of exports.
pub struct Server {
    exports: Arc<dyn Exports>,
    options: Options,
}

impl Server {
    /// Creates a server.
    ///
    /// # Errors
    /// [`ServeError::Option`] if an option has an invalid value.
    pub fn new(exports: Arc<dyn Exports>, options: Options) -> Result<Self, ServeError> {
        options.validate()?;
        Ok(Self { exports, options })
    }

    /// Serves on its own threads until `shutdown` is triggered. Then it answers the requests in flight and returns.
    ///
    /// # Errors
    /// [`ServeError::Runtime`], [`ServeError::Listen`], and [`ServeError::Drain`] if requests do not end. In the last
    /// case, their threads keep running.
    pub fn serve(self, listeners: Vec<Listener>, shutdown: &Shutdown) -> Result<(), ServeError> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(cpus.min(SOCKET_THREADS))
            .max_blocking_threads(OPENING_THREADS)
            .thread_name("nbd")
            .enable_all()
            .build()
            .map_err(ServeError::Runtime)?;
        let result = runtime.block_on(self.run(listeners, shutdown));
        runtime.shutdown_background();
        result
    }

    /// Like [`serve`](Self::serve), within a runtime of the caller, which must have I/O and time enabled. Requests run
    /// on the server's own threads. Exports are listed and opened on the runtime's blocking threads.
    ///
    /// # Errors
    /// Like [`serve`](Self::serve).
    pub async fn run(self, listeners: Vec<Listener>, shutdown: &Shutdown) -> Result<(), ServeError> {
        let Options { max_connections, drain_timeout, .. } = self.options;
        let budget = ServerBudget::new(&self.options);
        let workers = Workers::new(self.options.workers).map_err(ServeError::Runtime)?;
        let Self { exports, options } = self;
        let shared = Arc::new(Shared { exports, options, budget, shutdown: shutdown.clone(), workers });
        let slots = Arc::new(Semaphore::new(max_connections));
        let seats = Peers::new(shared.options.max_connections_per_machine);
        let mut accepting = JoinSet::new();
        for listener in &listeners {
            let accept = listener.accept()?;
            tracing::info!(endpoint = %listener.endpoint, "listening");
            let room = Room { slots: Arc::clone(&slots), seats: seats.clone() };
            accepting.spawn(accept_all(accept, Arc::clone(&shared), room, listener.plain));
        }
        shutdown.triggered().await;
        while accepting.join_next().await.is_some() {}
        drop(listeners);
        let all = u32::try_from(max_connections).unwrap_or(u32::MAX);
        match timeout(drain_timeout, slots.acquire_many(all)).await {
            Ok(_) => Ok(()),
            Err(_) => {
                let connections = max_connections - slots.available_permits();
                Err(ServeError::Drain { connections, waited: drain_timeout })
            }
        }
    }
}

/// Limits of connections: for all clients together, and for each machine.
struct Room {
    slots: Arc<Semaphore>,
    seats: Peers,
}

/// Accepts connections until shutdown. Each connection holds its place in `room` until it ends.
async fn accept_all(accept: Accept, shared: Arc<Shared>, room: Room, plain: bool) {
    loop {
        let accepted = tokio::select! {
            biased;
            () = shared.shutdown.triggered() => return,
            accepted = accept.next() => accepted,
        };
        let Accepted { stream, peer, source } = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "accepting a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let refuse = |limit, same_machine| {
            shared.options.log.tell(&Event::TooMany { peer: &peer, limit, same_machine });
        };
        let Some(seat) = room.seats.seat(source) else {
            refuse(shared.options.max_connections_per_machine, true);
            continue;
        };
        let Ok(slot) = Arc::clone(&room.slots).try_acquire_owned() else {
            refuse(shared.options.max_connections, false);
            continue;
        };
        let shared = Arc::clone(&shared);
        let span = tracing::info_span!("nbd", peer);
        let serve = async move {
            connection::serve(&shared, stream, peer, plain).await;
            drop((slot, seat));
        };
        tokio::spawn(serve.instrument(span));
    }
}
