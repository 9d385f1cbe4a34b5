//! The threads that answer the kernel's requests: a few, shared by all mounts of the process.
//!
//! All `/dev/fuse` files are read without blocking, and one epoll waits for them. A thread reads one request at a
//! time into its own buffer, and answers it. If all threads are busy, another one is started, up to [`THREADS_MAX`].
//! Threads that are idle for a while end, and their buffers are freed. One mount uses at most [`BUSY_MAX`] of them,
//! so that a mount whose pool hangs does not block the others.
//!
//! Locks: that of a mount's state is a leaf. Nothing is answered while one is held.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::kernel::TRANSFER_MAX;
use crate::wire::{Filesystem, dispatch};

/// Most threads, and how many of them one mount may keep busy.
const THREADS_MAX: usize = 32;
const BUSY_MAX: usize = 16;
/// Threads that stay although they have nothing to do, and how long the others wait.
const THREADS_IDLE: usize = 2;
const IDLE_MAX: Duration = Duration::from_secs(2);
/// Size of a request without the data to write (`FUSE_BUFFER_HEADER_SIZE` of libfuse).
const HEADERS_MAX: usize = 4096;
/// One thread is woken by a request, and has the next one watched for when it has read it.
const ONCE: EventFlags = EventFlags::IN.union(EventFlags::ONESHOT);

/// A mount that is served.
struct Served {
    key: u64,
    device: Arc<File>,
    filesystem: Arc<dyn Filesystem>,
    state: Mutex<State>,
}

struct State {
    /// Requests being answered.
    busy: usize,
    /// It is unmounted.
    is_over: bool,
    /// The action after the last answer.
    over: Option<Box<dyn FnOnce() + Send>>,
}

/// All that is served, and by how many threads.
struct Server {
    epoll: OwnedFd,
    mounts: Mutex<HashMap<u64, Arc<Served>>>,
    threads: Mutex<Threads>,
}

#[derive(Default)]
struct Threads {
    all: usize,
    idle: usize,
    last_key: u64,
}

fn server() -> io::Result<&'static Server> {
    static SERVER: OnceLock<Server> = OnceLock::new();
    if let Some(server) = SERVER.get() {
        return Ok(server);
    }
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    let new = Server { epoll, mounts: Mutex::default(), threads: Mutex::default() };
    Ok(SERVER.get_or_init(|| new))
}

/// Answers the requests of a mount until it is unmounted, and then calls `over`.
///
/// # Errors
/// When there are no descriptors or threads.
pub(crate) fn serve(
    device: OwnedFd,
    filesystem: Arc<dyn Filesystem>,
    over: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    rustix::io::ioctl_fionbio(&device, true)?;
    let server = server()?;
    let key = {
        let mut threads = server.threads.lock();
        threads.last_key += 1;
        threads.last_key
    };
    let state = State { busy: 0, is_over: false, over: Some(Box::new(over)) };
    let served = Served { key, device: Arc::new(device.into()), filesystem, state: Mutex::new(state) };
    let served = Arc::new(served);
    server.mounts.lock().insert(key, served.clone());
    let watched = epoll::add(&server.epoll, served.device.as_fd(), EventData::new_u64(key), ONCE);
    if let Err(error) = watched.map_err(io::Error::from).and_then(|()| server.ensure_thread()) {
        server.mounts.lock().remove(&key);
        return Err(error);
    }
    Ok(())
}

/// Calls the action, once.
fn run(over: &Mutex<Option<Box<dyn FnOnce() + Send>>>) {
    let over = over.lock().take();
    if let Some(over) = over {
        over();
    }
}

impl Server {
    /// Makes sure that a thread waits for requests.
    fn ensure_thread(&'static self) -> io::Result<()> {
        {
            let mut threads = self.threads.lock();
            if threads.idle > 0 || threads.all >= THREADS_MAX {
                return Ok(());
            }
            threads.all += 1;
        }
        let thread = std::thread::Builder::new().name("fuse".to_owned());
        thread.spawn(|| self.work()).map(drop).inspect_err(|_| self.threads.lock().all -= 1)
    }

    /// What each thread does.
    fn work(&'static self) {
        let mut buffer = vec![0; TRANSFER_MAX as usize + HEADERS_MAX];
        while let Some(key) = self.wait() {
            let served = self.mounts.lock().get(&key).cloned();
            if let Some(served) = served {
                self.take(&served, &mut buffer);
            }
        }
    }

    /// The next mount that has a request, for this thread alone; `None` when this thread is not needed any more.
    fn wait(&self) -> Option<u64> {
        self.threads.lock().idle += 1;
        let timeout = Timespec { tv_sec: IDLE_MAX.as_secs().cast_signed(), tv_nsec: 0 };
        let mut events = [MaybeUninit::<Event>::uninit(); 1];
        loop {
            let found = match epoll::wait(&self.epoll, &mut events, Some(&timeout)) {
                Ok((found, _)) => found.first().map(|event| event.data.u64()),
                Err(Errno::INTR) => continue,
                // Want of memory, which may end.
                Err(_) => {
                    std::thread::sleep(IDLE_MAX);
                    continue;
                }
            };
            let mut threads = self.threads.lock();
            if found.is_none() && threads.idle <= THREADS_IDLE {
                continue;
            }
            threads.idle -= 1;
            if found.is_none() {
                threads.all -= 1;
            }
            return found;
        }
    }

    /// Reads a request of a mount, lets another thread wait for the next one, and answers it.
    fn take(&'static self, served: &Arc<Served>, buffer: &mut [u8]) {
        let read = (&*served.device).read(buffer);
        {
            let mut state = served.state.lock();
            match &read {
                Ok(_) => state.busy += 1,
                Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => {
                    state.is_over = true
                }
                // There is no request, or the requesting process was killed.
                Err(_) => {}
            }
            if !state.is_over && state.busy < BUSY_MAX {
                self.watch(served);
            }
        }
        if let Ok(length) = read {
            // Without another thread this one does it all: slower, but done.
            let _ = self.ensure_thread();
            // A panic has been reported, and the request was refused with EIO.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                dispatch(&*served.filesystem, &served.device, &buffer[..length]);
            }));
            let mut state = served.state.lock();
            if state.busy == BUSY_MAX && !state.is_over {
                self.watch(served);
            }
            state.busy -= 1;
        }
        self.end(served);
    }

    /// Ends an unmounted filesystem after its last answer.
    fn end(&'static self, served: &Arc<Served>) {
        let over = {
            let mut state = served.state.lock();
            if state.is_over && state.busy == 0 { state.over.take() } else { None }
        };
        let Some(over) = over else { return };
        // It fails when there is nothing to be deleted.
        let _ = epoll::delete(&self.epoll, served.device.as_fd());
        self.mounts.lock().remove(&served.key);
        // It writes the remaining data, and waits for locks that are held during a mount, which can need these threads.
        let over = Arc::new(Mutex::new(Some(over)));
        let own = over.clone();
        let spawned = std::thread::Builder::new().name("unmount".to_owned()).spawn(move || run(&own));
        if spawned.is_err() {
            run(&over);
        }
    }

    /// Has one thread be woken when there is a request.
    fn watch(&self, served: &Served) {
        let key = EventData::new_u64(served.key);
        // It fails when it was deleted, which is the end.
        let _ = epoll::modify(&self.epoll, served.device.as_fd(), key, ONCE);
    }
}
