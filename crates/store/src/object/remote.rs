//! Blocking requests to an object store, with retries.
//!
//! Every request can be repeated without harm. The bytes of an object depend only on its key. An object that is put
//! create-only contains a nonce, by which its writer recognises it. So a response that is lost or late only costs
//! time.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures_util::TryStreamExt;
use object_store::path::Path as Key;
use object_store::{
    Error, GetOptions, GetRange, ObjectStore as Backend, ObjectStoreExt, PutMode, PutPayload,
};
use tokio::runtime::Runtime;

use crate::Traffic;

/// Threads that run the requests. They mostly wait.
const WORKERS: usize = 2;
/// Maximum time for an attempt, without the time for its bytes.
const ATTEMPT_BASE: Duration = Duration::from_secs(30);
/// The lowest speed at which an attempt may transfer its bytes. A slower connection is treated as dead.
const SLOWEST_BYTES_PER_SECOND: u64 = 64 << 10;
/// How often a key may neither exist nor be creatable, before the store is treated as broken.
const CONFLICTS_MAX: u32 = 20;

/// How long and how often requests are repeated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// No new attempt starts when this time has passed since the first one.
    pub(crate) total: Duration,
    /// The first pause. Each further pause is about twice as long as the previous one.
    pub(crate) first_pause: Duration,
    /// The maximum pause.
    pub(crate) longest_pause: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            total: Duration::from_secs(180),
            first_pause: Duration::from_millis(100),
            longest_pause: Duration::from_secs(15),
        }
    }
}

#[derive(Debug, Default)]
struct Counters {
    puts: AtomicU64,
    gets: AtomicU64,
    lists: AtomicU64,
    deletes: AtomicU64,
    retries: AtomicU64,
    bytes_sent: AtomicU64,
    bytes_received: AtomicU64,
}

/// The most objects of a listing: some hundred TiB in segments. Each takes about 100 bytes of memory.
const LISTED_MAX: usize = 8 << 20;
/// A listing that is slower than this, apart from [`LISTING_BASE`], is given up.
const SLOWEST_LISTED_PER_SECOND: u64 = 20;
const LISTING_BASE: Duration = Duration::from_secs(45);
/// What is read as a whole (labels, publications) is shorter.
const WHOLE_MAX: u64 = 1 << 20;

/// Keys in a page of a listing, as in S3.
const PAGE: u64 = 1000;

fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// The result of a create-only put.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Created {
    /// The object exists and is this writer's.
    Ours,
    /// Another writer has the key. Contains the bytes of its object.
    Theirs(Bytes),
}

/// An object in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    /// The key, relative to the prefix of the pool.
    pub(crate) key: String,
    /// Length in bytes.
    pub(crate) len: u64,
    /// When it was made, in seconds since 1970 by the clock of the store.
    pub(crate) made: i64,
}

/// The objects below a prefix of a bucket.
pub(crate) struct Remote {
    backend: Arc<dyn Backend>,
    prefix: Key,
    patience: Patience,
    /// `None` only after the drop.
    runtime: Option<Runtime>,
    counters: Counters,
    seed: AtomicU64,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote")
            .field("backend", &self.backend)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // Waiting for the threads is not allowed everywhere, and their remaining work is not needed.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

type Outcome<T> = Result<T, Error>;

impl Remote {
    pub(crate) fn new(backend: Arc<dyn Backend>, prefix: Key, patience: Patience) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .thread_name("snowmelt-object")
            .enable_all()
            .build()?;
        let seed = u64::from(std::process::id()) << 32 | 1;
        let counters = Counters::default();
        Ok(Self { backend, prefix, patience, runtime: Some(runtime), counters, seed: AtomicU64::new(seed) })
    }

    pub(crate) fn traffic(&self) -> Traffic {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let c = &self.counters;
        Traffic {
            puts: get(&c.puts),
            gets: get(&c.gets),
            lists: get(&c.lists),
            deletes: get(&c.deletes),
            retries: get(&c.retries),
            bytes_sent: get(&c.bytes_sent),
            bytes_received: get(&c.bytes_received),
        }
    }

    fn key(&self, name: &str) -> Key {
        self.prefix.parts().chain(Key::from(name).parts()).collect()
    }

    /// Runs an attempt on the runtime and waits for it. It may be called from threads that must not block on futures.
    fn attempt<T: Send + 'static>(
        &self,
        bytes: u64,
        attempt: impl Future<Output = Outcome<T>> + Send + 'static,
    ) -> Outcome<T> {
        let limit = ATTEMPT_BASE + Duration::from_secs(bytes / SLOWEST_BYTES_PER_SECOND);
        let (answer, answered) = std::sync::mpsc::sync_channel(1);
        let Some(runtime) = &self.runtime else { return Err(gone()) };
        runtime.spawn(async move {
            let outcome = match tokio::time::timeout(limit, attempt).await {
                Ok(outcome) => outcome,
                Err(_) => Err(Error::Generic { store: "object store", source: "no answer in time".into() }),
            };
            // The caller no longer waits, because the store was dropped.
            let _ = answer.send(outcome);
        });
        answered.recv().unwrap_or_else(|_| Err(gone()))
    }

    /// Repeats an attempt while its error may be temporary.
    fn persist<T>(&self, mut attempt: impl FnMut() -> Outcome<T>) -> Outcome<T> {
        let begun = Instant::now();
        let mut pause = self.patience.first_pause;
        loop {
            match attempt() {
                Err(error) if is_passing(&error) => {
                    let wait = self.jittered(pause);
                    if begun.elapsed() + wait > self.patience.total {
                        return Err(error);
                    }
                    std::thread::sleep(wait);
                    count(&self.counters.retries, 1);
                    pause = (pause * 2).min(self.patience.longest_pause);
                }
                other => return other,
            }
        }
    }

    /// Returns a random time between half of a pause and the whole pause. So clients that failed together do not
    /// retry together.
    fn jittered(&self, pause: Duration) -> Duration {
        let step = self.seed.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let mixed = (step ^ (step >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        pause / 2 + (pause / 2).mul_f64((mixed >> 11) as f64 / (1u64 << 53) as f64)
    }

    /// Puts an object. Its bytes must depend only on its key, or only its newest version may count.
    pub(crate) fn put(&self, name: &str, pieces: &[Bytes]) -> Outcome<()> {
        let key = self.key(name);
        let len: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        self.persist(|| {
            count(&self.counters.puts, 1);
            count(&self.counters.bytes_sent, len);
            let (backend, key) = (self.backend.clone(), key.clone());
            let payload: PutPayload = pieces.iter().cloned().collect();
            self.attempt(len, async move { backend.put(&key, payload).await.map(drop) })
        })
    }

    /// Puts an object unless its key exists. `bytes` must be unique among all that any writer puts there.
    pub(crate) fn create(&self, name: &str, bytes: &Bytes) -> Outcome<Created> {
        let key = self.key(name);
        let len = bytes.len() as u64;
        let mut conflicts = 0;
        loop {
            let put = self.persist(|| {
                count(&self.counters.puts, 1);
                count(&self.counters.bytes_sent, len);
                let (backend, key, bytes) = (self.backend.clone(), key.clone(), bytes.clone());
                self.attempt(len, async move {
                    backend.put_opts(&key, bytes.into(), PutMode::Create.into()).await.map(drop)
                })
            });
            let error = match put {
                Ok(()) => return Ok(Created::Ours),
                Err(error @ (Error::AlreadyExists { .. } | Error::Precondition { .. })) => error,
                Err(error) => return Err(error),
            };
            // It may exist because of an attempt whose response was lost.
            match self.get(name) {
                Ok(found) if found == *bytes => return Ok(Created::Ours),
                Ok(found) => return Ok(Created::Theirs(found)),
                // S3 returns this while another writer puts the object, which may still fail.
                Err(Error::NotFound { .. }) if conflicts < CONFLICTS_MAX => conflicts += 1,
                Err(Error::NotFound { .. }) => return Err(error),
                Err(error) => return Err(error),
            }
            std::thread::sleep(self.jittered(self.patience.first_pause));
        }
    }

    /// Reads a whole object.
    pub(crate) fn get(&self, name: &str) -> Outcome<Bytes> {
        self.get_with(name, None)
    }

    /// Reads a range of an object. A short answer is an error.
    pub(crate) fn get_range(&self, name: &str, start: u64, end: u64) -> Outcome<Bytes> {
        let bytes = self.get_with(name, Some(start..end))?;
        if bytes.len() as u64 != end - start {
            let more = if bytes.len() as u64 > end - start { "or more " } else { "" };
            let source = format!("{} bytes {more}came instead of {}", bytes.len(), end - start).into();
            return Err(Error::Generic { store: "object store", source });
        }
        Ok(bytes)
    }

    fn get_with(&self, name: &str, range: Option<std::ops::Range<u64>>) -> Outcome<Bytes> {
        let key = self.key(name);
        let expected = range.as_ref().map_or(WHOLE_MAX, |range| range.end - range.start);
        self.persist(|| {
            count(&self.counters.gets, 1);
            let (backend, key) = (self.backend.clone(), key.clone());
            let range = range.clone().map(GetRange::Bounded);
            let bytes = self.attempt(expected, async move {
                let options = GetOptions { range, ..GetOptions::default() };
                let mut pieces = backend.get_opts(&key, options).await?.into_stream();
                // One byte more shows that there are too many; what the server says of the length means nothing.
                let most = usize::try_from(expected).unwrap_or(usize::MAX).saturating_add(1);
                let mut bytes = BytesMut::new();
                while bytes.len() < most
                    && let Some(piece) = pieces.try_next().await?
                {
                    bytes.extend_from_slice(piece.get(..most - bytes.len()).unwrap_or(&piece));
                }
                Ok(bytes.freeze())
            })?;
            count(&self.counters.bytes_received, bytes.len() as u64);
            Ok(bytes)
        })
    }

    /// Deletes an object. It is no error if it does not exist.
    pub(crate) fn delete(&self, name: &str) -> Outcome<()> {
        let key = self.key(name);
        let deleted = self.persist(|| {
            count(&self.counters.deletes, 1);
            let (backend, key) = (self.backend.clone(), key.clone());
            self.attempt(0, async move { backend.delete(&key).await })
        });
        match deleted {
            Err(Error::NotFound { .. }) => Ok(()),
            other => other,
        }
    }

    /// Whether there is any object below the prefix.
    pub(crate) fn holds_anything(&self) -> Outcome<bool> {
        self.persist(|| {
            count(&self.counters.lists, 1);
            let (backend, prefix) = (self.backend.clone(), self.prefix.clone());
            self.attempt(0, async move { Ok(backend.list(Some(&prefix)).try_next().await?.is_some()) })
        })
    }

    /// Lists all objects below `name`, sorted by key.
    pub(crate) fn list(&self, name: &str) -> Outcome<Vec<Listed>> {
        let key = self.key(name);
        let mut listed = self.persist(|| {
            count(&self.counters.lists, 1);
            let (backend, key, prefix) = (self.backend.clone(), key.clone(), self.prefix.clone());
            // `list_all` limits the time.
            self.attempt(u64::from(u32::MAX), async move { list_all(&*backend, &key, &prefix).await })
        })?;
        count(&self.counters.lists, listed.len() as u64 / PAGE);
        listed.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(listed)
    }
}

/// Lists what is below `key`. A server may have no end of pages.
async fn list_all(backend: &dyn Backend, key: &Key, prefix: &Key) -> Outcome<Vec<Listed>> {
    let failed = |what: String| Error::Generic { store: "object store", source: what.into() };
    let mut objects = backend.list(Some(key));
    let (mut listed, begun) = (Vec::new(), Instant::now());
    loop {
        let limit = LISTING_BASE + Duration::from_secs(listed.len() as u64 / SLOWEST_LISTED_PER_SECOND);
        let left = limit.saturating_sub(begun.elapsed());
        let next = tokio::time::timeout(left, objects.try_next()).await;
        let next =
            next.map_err(|_| failed(format!("{} objects listed in {limit:?} {TOO_MUCH}", listed.len())))?;
        let Some(meta) = next? else { return Ok(listed) };
        if listed.len() >= LISTED_MAX {
            return Err(failed(format!("more than {LISTED_MAX} objects {TOO_MUCH}")));
        }
        if let Some(below) = meta.location.prefix_match(prefix) {
            let key = below.collect::<Key>().into();
            listed.push(Listed { key, len: meta.size, made: meta.last_modified.timestamp() });
        }
    }
}

fn gone() -> Error {
    Error::Generic { store: "object store", source: "the store is closed".into() }
}

/// Part of the error for an answer that may have no end. Such a request is not repeated.
pub(crate) const TOO_MUCH: &str = "(there may be no end to them)";

/// Whether the next attempt may succeed. This is so unless the store has understood and refused the request.
fn is_passing(error: &Error) -> bool {
    match error {
        Error::Generic { .. } => match status(error) {
            Some(status) => status >= 500 || matches!(status, 408 | 429),
            // An invalid request, which cannot be sent, an answer without an end, or one that no object store gives.
            None => !["builder error", TOO_MUCH, "Header missing from response"]
                .iter()
                .any(|text| says(error, text)),
        },
        Error::JoinError { .. } => true,
        _ => false,
    }
}

fn says(error: &Error, what: &str) -> bool {
    let mut source: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = source {
        if error.to_string().contains(what) {
            return true;
        }
        source = error.source();
    }
    false
}

/// The HTTP status of an error. The client provides it only in its error text.
pub(crate) fn status(error: &Error) -> Option<u16> {
    let mut source: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = source {
        let text = error.to_string();
        if let Some((_, rest)) = text.split_once("status code: ") {
            return rest.get(..3)?.parse().ok();
        }
        source = error.source();
    }
    None
}
