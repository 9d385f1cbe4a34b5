//! Helpers for tests: an export in memory, a server for such exports, and a client that sends exactly what the test
//! specifies.

#![allow(dead_code, reason = "no test file uses all of it")]

pub mod certificates;
pub mod client;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, RwLock};
use snowmelt_nbd::{
    Endpoint, Export, Exports, Extent, Identity, Listener, OpenError, Options, ServeError, Server, Shutdown,
};

/// The unit in which [`Memory`] tracks holes.
pub const BLOCK: u64 = 4096;

/// An export in memory that tracks which of its blocks are holes and counts flushes. It fails or waits if a test
/// requires it.
pub struct Memory {
    data: RwLock<Vec<u8>>,
    allocated: Mutex<Vec<bool>>,
    pub shown_size: AtomicU64,
    pub read_only: bool,
    pub description: Option<String>,
    pub flushes: AtomicU64,
    pub cached: AtomicU64,
    /// The error that all calls return, if set.
    pub fail: Mutex<Option<rustix::io::Errno>>,
    pub panics: AtomicBool,
    /// While the gate is shut, reads of the first block wait.
    pub gate: Gate,
}

/// Lets calls pass or makes them wait.
#[derive(Default)]
pub struct Gate {
    shut: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    pub fn set(&self, shut: bool) {
        *self.shut.lock() = shut;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut shut = self.shut.lock();
        while *shut {
            self.changed.wait(&mut shut);
        }
    }
}

impl Memory {
    pub fn new(size: u64) -> Self {
        Self {
            data: RwLock::new(vec![0; usize::try_from(size).unwrap()]),
            allocated: Mutex::new(vec![false; usize::try_from(size.div_ceil(BLOCK)).unwrap()]),
            shown_size: AtomicU64::new(size),
            read_only: false,
            description: None,
            flushes: AtomicU64::new(0),
            cached: AtomicU64::new(0),
            fail: Mutex::new(None),
            panics: AtomicBool::new(false),
            gate: Gate::default(),
        }
    }

    pub fn filled(size: u64) -> Self {
        let memory = Self::new(size);
        for (index, byte) in memory.data.write().iter_mut().enumerate() {
            *byte = u8::try_from(index * 7 % 251).unwrap() | 1;
        }
        memory.allocated.lock().fill(true);
        memory
    }

    pub fn read_only(self) -> Self {
        Self { read_only: true, ..self }
    }

    pub fn described(self, text: &str) -> Self {
        Self { description: Some(text.to_owned()), ..self }
    }

    pub fn content(&self) -> Vec<u8> {
        self.data.read().clone()
    }

    fn check(&self) -> io::Result<()> {
        assert!(!self.panics.load(Ordering::Relaxed), "as the test wants it");
        self.fail.lock().map_or(Ok(()), |errno| Err(errno.into()))
    }

    fn range(offset: u64, length: usize) -> std::ops::Range<usize> {
        let offset = usize::try_from(offset).unwrap();
        offset..offset + length
    }

    /// Frees whole blocks and zeroes the rest.
    fn punch(&self, offset: u64, length: u64) {
        self.data.write()[Self::range(offset, usize::try_from(length).unwrap())].fill(0);
        let (first, end) = (offset.div_ceil(BLOCK), (offset + length) / BLOCK);
        for block in first..end {
            self.allocated.lock()[usize::try_from(block).unwrap()] = false;
        }
    }
}

impl Export for Memory {
    fn size(&self) -> u64 {
        self.shown_size.load(Ordering::Relaxed)
    }

    fn block_size(&self) -> u32 {
        16 << 10
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn description(&self) -> Option<String> {
        self.description.clone()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if offset < BLOCK {
            self.gate.pass();
        }
        self.check()?;
        buf.copy_from_slice(&self.data.read()[Self::range(offset, buf.len())]);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check()?;
        assert!(!self.read_only, "the server writes to what is read only");
        self.data.write()[Self::range(offset, data.len())].copy_from_slice(data);
        let blocks = offset / BLOCK..(offset + data.len() as u64).div_ceil(BLOCK);
        let mut allocated = self.allocated.lock();
        blocks.for_each(|block| allocated[usize::try_from(block).unwrap()] = true);
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, length: u64, may_trim: bool) -> io::Result<()> {
        self.check()?;
        if may_trim {
            self.punch(offset, length);
            return Ok(());
        }
        self.write(offset, &vec![0; usize::try_from(length).unwrap()])
    }

    fn zeroes_fast(&self, offset: u64, length: u64, may_trim: bool) -> bool {
        may_trim && offset.is_multiple_of(BLOCK) && length.is_multiple_of(BLOCK)
    }

    fn trim(&self, offset: u64, length: u64) -> io::Result<()> {
        self.check()?;
        self.punch(offset, length);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.check()?;
        self.flushes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn cache(&self, _offset: u64, length: u64) -> io::Result<()> {
        self.check()?;
        self.cached.fetch_add(length, Ordering::SeqCst);
        Ok(())
    }

    fn extents(&self, offset: u64, length: u64) -> io::Result<Vec<Extent>> {
        self.check()?;
        let allocated = self.allocated.lock();
        let mut extents: Vec<Extent> = Vec::new();
        let mut at = offset;
        while at < offset + length {
            let end = (at / BLOCK + 1) * BLOCK;
            let hole = !allocated[usize::try_from(at / BLOCK).unwrap()];
            match extents.last_mut() {
                Some(last) if last.hole == hole => last.length += end - at,
                _ => extents.push(Extent { length: end - at, hole, zero: hole }),
            }
            at = end;
        }
        Ok(extents)
    }
}

/// Exports by name. `deny` is denied, and `broken` cannot be opened. Neither is listed.
#[derive(Default)]
pub struct Shelf {
    pub exports: BTreeMap<String, Arc<Memory>>,
    pub default: Option<String>,
    /// Common names of certificates, each with the only export that its holder may see. If empty, everybody sees all
    /// exports.
    pub holders: BTreeMap<String, String>,
}

impl Shelf {
    pub fn with(mut self, name: &str, memory: Memory) -> Self {
        self.exports.insert(name.to_owned(), Arc::new(memory));
        self
    }

    fn shows(&self, client: &Identity, name: &str) -> bool {
        let held = match client {
            Identity::Certificate(found) => {
                found.common_name.as_ref().and_then(|name| self.holders.get(name))
            }
            _ => None,
        };
        self.holders.is_empty() || held.is_some_and(|held| held == name)
    }
}

impl Exports for Shelf {
    fn list(&self, client: &Identity) -> io::Result<Vec<String>> {
        Ok(self.exports.keys().filter(|name| self.shows(client, name)).cloned().collect())
    }

    fn open(&self, client: &Identity, name: &str) -> Result<Arc<dyn Export>, OpenError> {
        match name {
            "deny" => Err(OpenError::Denied { reason: "not for you".to_owned() }),
            "broken" => Err(OpenError::Io(io::Error::other("pool is suspended"))),
            _ if !self.shows(client, name) => Err(OpenError::NotFound),
            _ => match self.exports.get(name) {
                Some(export) => Ok(Arc::clone(export) as Arc<dyn Export>),
                None => Err(OpenError::NotFound),
            },
        }
    }

    fn default_export(&self, _client: &Identity) -> Option<String> {
        self.default.clone()
    }
}

/// A server on its own thread. It is stopped when dropped.
pub struct Running {
    pub shelf: Arc<Shelf>,
    pub endpoint: Endpoint,
    pub shutdown: Shutdown,
    pub thread: Option<JoinHandle<Result<(), ServeError>>>,
    pub dir: tempfile::TempDir,
}

/// Options with short time limits for tests.
pub fn quick() -> Options {
    Options {
        handshake_timeout: Duration::from_secs(10),
        stall_timeout: Duration::from_secs(10),
        drain_timeout: Duration::from_secs(10),
        ..Options::default()
    }
}

impl Running {
    /// A server on a Unix socket in its own directory.
    pub fn unix(shelf: Shelf, options: Options) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = Listener::unix(&dir.path().join("nbd.sock")).unwrap();
        Self::start(shelf, options, listener, dir)
    }

    /// A server on a free port of the loopback interface.
    pub fn tcp(shelf: Shelf, options: Options) -> Self {
        let listener = Listener::tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        Self::start(shelf, options, listener, tempfile::tempdir().unwrap())
    }

    fn start(shelf: Shelf, options: Options, listener: Listener, dir: tempfile::TempDir) -> Self {
        let endpoint = listener.endpoint().clone();
        let (shelf, shutdown) = (Arc::new(shelf), Shutdown::new());
        let server = Server::new(Arc::clone(&shelf) as Arc<dyn Exports>, options).unwrap();
        let stop = shutdown.clone();
        let thread = Some(std::thread::spawn(move || server.serve(vec![listener], &stop)));
        Self { shelf, endpoint, shutdown, thread, dir }
    }

    pub fn memory(&self, name: &str) -> &Memory {
        &self.shelf.exports[name]
    }

    pub fn socket(&self) -> PathBuf {
        match &self.endpoint {
            Endpoint::Unix(path) => path.clone(),
            other => panic!("{other}"),
        }
    }

    /// Stops the server and returns its result.
    pub fn stop(mut self) -> Result<(), ServeError> {
        self.shutdown.trigger();
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shutdown.trigger();
        if let Some(thread) = self.thread.take() {
            let result = thread.join();
            if !std::thread::panicking() {
                result.unwrap().unwrap();
            }
        }
    }
}
