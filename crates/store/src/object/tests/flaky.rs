//! An object store in memory that loses, repeats and reorders requests. The faults depend only on the seed and the
//! order of requests.

use std::collections::VecDeque;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::stream::{BoxStream, StreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::{Condvar, Mutex};

/// The change that a request makes.
#[derive(Debug, Clone)]
enum Change {
    Put(Path, PutPayload, PutMode),
    Delete(Path),
}

#[derive(Debug)]
pub(super) struct Flaky {
    pub(super) objects: InMemory,
    state: Mutex<State>,
    changed: Condvar,
    /// Whether create-only puts replace an existing object.
    ignores_conditions: bool,
}

#[derive(Debug, Default)]
struct State {
    seed: u64,
    /// On average, one request of this number fails; 0 for none.
    one_in: u64,
    /// Lost requests that take effect later.
    late: VecDeque<(u32, Change)>,
    /// A put whose key contains this waits until it is released.
    held: Option<String>,
    /// The number of waiting puts.
    waiting: usize,
    faults: u64,
    requests: u64,
    /// A request by its number, and what happens to it.
    planned: Option<(u64, Fate)>,
}

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Well,
    LostBefore,
    LostAfter,
    LostAndLate,
    Repeated,
    Torn,
    SlowDown,
}

impl Fate {
    /// All faults.
    pub(super) const FAULTS: [Self; 6] =
        [Self::LostBefore, Self::LostAfter, Self::LostAndLate, Self::Repeated, Self::Torn, Self::SlowDown];
}

fn lost() -> Error {
    Error::Generic { store: "flaky", source: "connection reset by peer".into() }
}

impl Flaky {
    pub(super) fn new(seed: u64, one_in: u64) -> Self {
        let state = State { seed, one_in, ..State::default() };
        Self {
            objects: InMemory::new(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            ignores_conditions: false,
        }
    }

    /// A store that ignores conditions.
    pub(super) fn careless() -> Self {
        Self { ignores_conditions: true, ..Self::new(0, 0) }
    }

    /// A store on which one request fails, after `before` others.
    pub(super) fn once(before: u64, fate: Fate) -> Self {
        let flaky = Self::new(0, 0);
        flaky.state.lock().planned = Some((before, fate));
        flaky
    }

    /// The number of requests so far.
    pub(super) fn requests(&self) -> u64 {
        self.state.lock().requests
    }

    /// The number of failed requests so far.
    pub(super) fn faults(&self) -> u64 {
        self.state.lock().faults
    }

    /// Makes the next put wait whose key contains `prefix`.
    pub(super) fn hold(&self, prefix: &str) {
        self.state.lock().held = Some(prefix.to_owned());
    }

    /// Waits until a put waits.
    pub(super) fn wait_until_held(&self) {
        let mut state = self.state.lock();
        while state.waiting == 0 {
            self.changed.wait(&mut state);
        }
    }

    /// Releases the waiting puts.
    pub(super) fn release(&self) {
        self.state.lock().held = None;
        self.changed.notify_all();
    }

    fn fate(&self) -> Fate {
        let mut state = self.state.lock();
        state.requests += 1;
        if let Some((before, fate)) = state.planned
            && before + 1 == state.requests
        {
            state.faults += 1;
            return fate;
        }
        if state.one_in == 0 {
            return Fate::Well;
        }
        state.seed = state.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state.seed ^ (state.seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = mixed ^ (mixed >> 27);
        if !mixed.is_multiple_of(state.one_in) {
            return Fate::Well;
        }
        state.faults += 1;
        match mixed / state.one_in % 6 {
            0 => Fate::LostBefore,
            1 => Fate::LostAfter,
            2 => Fate::LostAndLate,
            3 => Fate::Repeated,
            4 => Fate::Torn,
            _ => Fate::SlowDown,
        }
    }

    async fn apply(&self, change: Change) -> Result<Option<PutResult>> {
        match change {
            Change::Put(path, payload, mode) => {
                let mode = if self.ignores_conditions { PutMode::Overwrite } else { mode };
                self.objects.put_opts(&path, payload, mode.into()).await.map(Some)
            }
            Change::Delete(path) => self.objects.delete(&path).await.map(|()| None),
        }
    }

    async fn settle_late(&self) {
        let due = {
            let mut state = self.state.lock();
            state.late.iter_mut().for_each(|(left, _)| *left = left.saturating_sub(1));
            let (due, late): (VecDeque<_>, _) = state.late.drain(..).partition(|(left, _)| *left == 0);
            state.late = late;
            due
        };
        for (_, change) in due {
            // The client no longer waits for the answer.
            let _ = self.apply(change).await;
        }
    }

    async fn change(&self, change: Change) -> Result<Option<PutResult>> {
        self.settle_late().await;
        let later = |left| self.state.lock().late.push_back((left, change.clone()));
        match self.fate() {
            Fate::Well => self.apply(change).await,
            Fate::LostBefore => Err(lost()),
            Fate::LostAfter => self.apply(change).await.and(Err(lost())),
            Fate::LostAndLate => {
                later(5);
                Err(lost())
            }
            Fate::Repeated => {
                later(3);
                self.apply(change).await
            }
            Fate::Torn => {
                // Some stores keep part of a broken upload. Create-only puts are complete or absent.
                if let Change::Put(path, payload, PutMode::Overwrite) = change {
                    let whole: Vec<u8> = payload.iter().flatten().copied().collect();
                    let half = whole[..whole.len() / 2].to_vec();
                    self.apply(Change::Put(path, half.into(), PutMode::Overwrite)).await?;
                }
                Err(lost())
            }
            Fate::SlowDown => Err(Error::Generic {
                store: "flaky",
                source: "status code: 503 Service Unavailable: SlowDown".into(),
            }),
        }
    }

    fn reading(&self) -> Result<()> {
        match self.fate() {
            Fate::Well | Fate::Repeated => Ok(()),
            _ => Err(lost()),
        }
    }
}

impl std::fmt::Display for Flaky {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("flaky")
    }
}

/// The backend in the form that a store needs.
#[derive(Debug, Clone)]
pub(super) struct Shared(pub(super) Arc<Flaky>);

impl std::fmt::Display for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for Shared {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let flaky = self.0.clone();
        let is_held = {
            let state = flaky.state.lock();
            let held = state.held.as_ref().filter(|_| state.waiting == 0);
            held.is_some_and(|held| location.as_ref().contains(held.as_str()))
        };
        if is_held {
            let waiting = flaky.clone();
            let wait = move || {
                let mut state = waiting.state.lock();
                state.waiting += 1;
                waiting.changed.notify_all();
                while state.held.is_some() {
                    waiting.changed.wait(&mut state);
                }
                state.waiting -= 1;
            };
            tokio::task::spawn_blocking(wait).await?;
        }
        let change = Change::Put(location.clone(), payload, options.mode);
        let done = flaky.change(change).await?;
        Ok(done.unwrap_or_else(|| unreachable!("a put gives a result")))
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        unreachable!("objects are put whole")
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.0.reading()?;
        self.0.objects.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let flaky = self.0.clone();
        locations
            .then(move |location| {
                let flaky = flaky.clone();
                async move {
                    let location = location?;
                    flaky.change(Change::Delete(location.clone())).await?;
                    Ok(location)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.0.reading() {
            Ok(()) => self.0.objects.list(prefix),
            Err(error) => futures_util::stream::once(async { Err(error) }).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        unreachable!("nothing is copied")
    }
}
