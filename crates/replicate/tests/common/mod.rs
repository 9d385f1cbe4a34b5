//! Pools in memory, and syncs over connections that are cut.
#![allow(clippy::unwrap_used, clippy::panic)]
#![allow(dead_code)]

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use snowmelt_dataset::objset::{Block, ObjsetKey};
use snowmelt_dataset::{CheckOptions, CreateOptions, Datasets, Name, NewVolume};
use snowmelt_pool::{NewPool, Pool, PoolOptions};
use snowmelt_replicate::Failure;
use snowmelt_replicate::access::Access;
use snowmelt_replicate::end::Peer;
use snowmelt_replicate::plan::{Marks, Options};
use snowmelt_replicate::serve::serve_pool;
use snowmelt_replicate::sync::{Event, Report, Sync};
use snowmelt_replicate::wire::{Connection, Manners};
use snowmelt_store::MemoryStore;
use snowmelt_volume::Volume;

pub const MIB: u64 = 1 << 20;
/// Maximum number of bytes in one txg of these pools before it is committed.
pub const DIRTY_MAX: u64 = 4 * MIB;

/// A pool that can crash. Uncommitted changes are then lost.
pub struct TestPool {
    pub store: MemoryStore,
    pub datasets: Arc<Datasets>,
}

pub fn options() -> PoolOptions {
    PoolOptions {
        segment_bytes: MIB,
        node_bytes: 2 << 10,
        dirty_max_bytes: DIRTY_MAX,
        written_max_bytes: DIRTY_MAX,
        ..PoolOptions::default()
    }
}

impl TestPool {
    pub fn new(name: &str) -> Self {
        Self::on(MemoryStore::new(), name)
    }

    pub fn on(store: MemoryStore, name: &str) -> Self {
        let new = NewPool { name, guid: name.len() as u64 };
        let pool = Pool::create(Box::new(store.clone()), &new, options()).unwrap();
        Self { store, datasets: Datasets::create(pool).unwrap() }
    }

    /// The pool after a crash that left `store`.
    pub fn after_crash(store: MemoryStore) -> Self {
        Self::open(store, options())
    }

    pub fn open(store: MemoryStore, options: PoolOptions) -> Self {
        let pool = Pool::open(Box::new(store.clone()), options).unwrap();
        Self { store, datasets: Datasets::open(pool).unwrap() }
    }

    pub fn volume(&self, name: &str, size: u64) {
        let new = NewVolume { size, block_size: 64 << 10 };
        self.datasets.create_volume(name, &new, &CreateOptions::default()).unwrap();
    }

    pub fn filesystem(&self, name: &str) {
        self.datasets.create_filesystem(name, &CreateOptions::default()).unwrap();
    }

    /// Writes incompressible bytes.
    pub fn write(&self, name: &str, offset: u64, len: u64, random: &mut Random) {
        let volume = Volume::open(&self.datasets, name).unwrap();
        for at in (offset..offset + len).step_by(MIB as usize) {
            let piece = random.noise((offset + len - at).min(MIB) as usize);
            volume.write(at, &piece).unwrap();
        }
    }

    pub fn snapshot(&self, snapshot: &str) {
        self.datasets.snapshot(&[name(snapshot)], &[]).unwrap();
    }

    /// Names of all datasets below `root` and of their snapshots, relative to it, with a hash of each content.
    pub fn content(&self, root: &str) -> Vec<String> {
        let catalog = self.datasets.catalog();
        let mut lines = Vec::new();
        for dataset in catalog.descendants(catalog.dataset(root).unwrap()).unwrap() {
            let below = dataset.name.strip_prefix(root).unwrap().to_owned();
            let origin = dataset.record.origin.map(|id| catalog.snapshot_by_id(id).unwrap().record.guid);
            lines.push(format!("{below} {origin:x?}"));
            for snapshot in catalog.snapshots(&dataset) {
                let snapshot = snapshot.unwrap();
                let objset = catalog.objset(&snapshot);
                let mut hash = std::hash::DefaultHasher::new();
                for item in objset.view().range(&[], None) {
                    let (key, entry) = item.unwrap();
                    std::hash::Hash::hash(&key[..], &mut hash);
                    let stored = match ObjsetKey::decode(&key).unwrap() {
                        ObjsetKey::Block { .. } | ObjsetKey::Spill { .. } => {
                            let block = Block::decode(&entry.value).unwrap();
                            catalog.pool().read_stored(&block.ptr).unwrap().to_vec()
                        }
                        _ => entry.value.to_vec(),
                    };
                    std::hash::Hash::hash(&stored, &mut hash);
                }
                let (short, guid) = (&snapshot.record.name, snapshot.record.guid);
                lines.push(format!("{below}@{short} {guid:x} {:x}", std::hash::Hasher::finish(&hash)));
            }
        }
        lines
    }

    /// Checks the pool's invariants, including every block's hash.
    pub fn check(&self, what: &str) {
        let mut faults = Vec::new();
        let mut note = |finding: &snowmelt_dataset::Finding| {
            faults.push(format!("{}: {}", finding.place, finding.what));
        };
        self.datasets.check(CheckOptions { data: true }, &mut |finding| note(&finding)).unwrap();
        assert!(faults.is_empty(), "after {what}:\n{}", faults.join("\n"));
    }
}

pub fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

/// Numbers that are the same in every run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn noise(&mut self, len: usize) -> Vec<u8> {
        let mut data = Vec::with_capacity(len + 8);
        while data.len() < len {
            data.extend_from_slice(&self.next().to_le_bytes());
        }
        data.truncate(len);
        data
    }
}

/// Where a connection breaks: after a number of bytes in both directions together have reached or left the server.
/// Bytes in flight are lost.
pub struct Cut {
    left: AtomicU64,
    /// The server's store at the moment of the cut: the remains if the server dies too.
    dying: Option<(MemoryStore, parking_lot::Mutex<Option<MemoryStore>>)>,
}

impl Cut {
    pub fn after(bytes: u64) -> Arc<Self> {
        Arc::new(Self { left: AtomicU64::new(bytes), dying: None })
    }

    pub fn never() -> Arc<Self> {
        Self::after(u64::MAX)
    }

    pub fn death_after(bytes: u64, pool: &TestPool) -> Arc<Self> {
        let dying = Some((pool.store.clone(), parking_lot::Mutex::new(None)));
        Arc::new(Self { left: AtomicU64::new(bytes), dying })
    }

    pub fn has_happened(&self) -> bool {
        self.left.load(Ordering::SeqCst) == 0
    }

    /// The store that remains after the server died.
    pub fn remains(&self) -> Option<MemoryStore> {
        self.dying.as_ref()?.1.lock().take()
    }

    /// How many of `wanted` bytes can still pass.
    fn pass(&self, wanted: usize) -> usize {
        let take = |left: u64| Some(left.saturating_sub(wanted as u64));
        let before = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).unwrap();
        if before <= wanted as u64
            && let Some((store, remains)) = &self.dying
        {
            remains.lock().get_or_insert_with(|| store.snapshot());
        }
        (wanted as u64).min(before) as usize
    }
}

/// One side of the server's socket, until the cut.
struct Side {
    socket: UnixStream,
    cut: Arc<Cut>,
}

impl Side {
    fn broken(&self) -> io::Error {
        let _ = self.socket.shutdown(Shutdown::Both);
        io::ErrorKind::ConnectionReset.into()
    }
}

impl Read for Side {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.cut.has_happened() {
            return Err(self.broken());
        }
        let len = self.socket.read(buf)?;
        match self.cut.pass(len) {
            0 if len > 0 => Err(self.broken()),
            passed => Ok(passed),
        }
    }
}

impl Write for Side {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let passed = self.cut.pass(buf.len());
        self.socket.write_all(&buf[..passed])?;
        if self.cut.has_happened() { Err(self.broken()) } else { Ok(passed) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The client's side of the socket. Counts bytes.
struct Counted {
    socket: UnixStream,
    bytes: Arc<AtomicU64>,
}

impl Write for Counted {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let len = self.socket.write(buf)?;
        self.bytes.fetch_add(len as u64, Ordering::SeqCst);
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Write);
    }
}

/// A connection to a pool: the client's end, the bytes the client sent, the server.
pub struct Link {
    pub peer: Peer,
    pub sent: Arc<AtomicU64>,
    server: JoinHandle<()>,
}

impl Link {
    pub fn open(pool: &TestPool, cut: &Arc<Cut>) -> Result<Self, Failure> {
        Self::open_as(pool, cut, Access::default())
    }

    /// Opens a connection with this access only.
    pub fn open_as(pool: &TestPool, cut: &Arc<Cut>, access: Access) -> Result<Self, Failure> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (datasets, sent) = (pool.datasets.clone(), Arc::new(AtomicU64::new(0)));
        let input = Side { socket: theirs.try_clone().unwrap(), cut: cut.clone() };
        let output = Side { socket: theirs, cut: cut.clone() };
        let server = std::thread::spawn(move || {
            // The server's error after a cut does not matter.
            let _ = serve_pool(&datasets, &access, None, input, output, &AtomicBool::new(false));
        });
        let counted = Counted { socket: ours.try_clone().unwrap(), bytes: sent.clone() };
        let connection = Connection::open(ours, counted, Manners::default());
        match connection {
            Ok(connection) => Ok(Self { peer: Peer::new(connection), sent, server }),
            Err(error) => {
                server.join().unwrap();
                Err(Failure::lost(error.to_string()))
            }
        }
    }

    /// Closes the connection and waits until the server has done so too. Returns the number of bytes sent to it.
    pub fn close(self) -> u64 {
        drop(self.peer);
        self.server.join().unwrap();
        self.sent.load(Ordering::SeqCst)
    }
}

/// Options of a sync in a test.
#[derive(Clone)]
pub struct How {
    pub recursive: bool,
    pub jobs: usize,
    pub options: Options,
    pub snapshot: Option<String>,
    /// Identifies the target in the names of holds and bookmarks.
    pub target: String,
    /// Called whenever bytes were transferred.
    pub on_bytes: Arc<dyn Fn() + Send + std::marker::Sync>,
}

impl Default for How {
    fn default() -> Self {
        let options = Options { large_blocks: true, ..Options::default() };
        Self {
            recursive: false,
            jobs: 4,
            options,
            snapshot: None,
            target: "target".to_owned(),
            on_bytes: Arc::new(|| {}),
        }
    }
}

/// The result of a sync: its report, and the bytes that were sent to the target's server.
pub struct Outcome {
    pub report: Result<Report, Failure>,
    pub sent: u64,
}

impl Outcome {
    /// Whether everything is up to date.
    pub fn is_done(&self) -> bool {
        self.report.as_ref().is_ok_and(|report| report.datasets.iter().all(|one| one.failure.is_none()))
    }

    /// The failures, if any.
    pub fn failures(&self) -> Vec<Failure> {
        match &self.report {
            Ok(report) => report.datasets.iter().filter_map(|one| one.failure.clone()).collect(),
            Err(failure) => vec![failure.clone()],
        }
    }
}

/// A pool, a dataset in it, and the place where the connection to it is cut.
pub type Place<'a> = (&'a TestPool, &'a str, &'a Arc<Cut>);

/// Opens both connections and calls `work` with the sync between them. Also returns the bytes that were sent to the
/// target's server.
fn with_sync<T>(
    source: Place<'_>,
    target: Place<'_>,
    how: &How,
    work: impl FnOnce(&Sync<'_>) -> Result<T, Failure>,
) -> (Result<T, Failure>, u64) {
    let from = match Link::open(source.0, source.2) {
        Ok(link) => link,
        Err(failure) => return (Err(failure), 0),
    };
    let to = match Link::open(target.0, target.2) {
        Ok(link) => link,
        Err(failure) => {
            from.close();
            return (Err(failure), 0);
        }
    };
    let observer = |event: Event<'_>| {
        if matches!(event, Event::Bytes(_)) {
            (how.on_bytes)();
        }
    };
    let result = work(&Sync {
        source: &from.peer,
        source_root: source.1,
        target: &to.peer,
        target_root: target.1,
        recursive: how.recursive,
        is_excluded: &|_| false,
        snapshot: how.snapshot.clone(),
        marks: Marks::new(None, &how.target, true),
        history: "snowmelt sync".to_owned(),
        options: how.options.clone(),
        jobs: how.jobs,
        limit: None,
        tell_sizes: false,
        observer: &observer,
        cancelled: &AtomicBool::new(false),
    });
    from.close();
    (result, to.close())
}

pub fn sync(source: Place<'_>, target: Place<'_>, how: &How) -> Outcome {
    let (report, sent) = with_sync(source, target, how, |sync| sync.run());
    Outcome { report, sent }
}

/// Bytes of all streams that a sync would send.
pub fn size(source: (&TestPool, &str), target: (&TestPool, &str), how: &How) -> u64 {
    let never = Cut::never();
    let (from, to) = ((source.0, source.1, &never), (target.0, target.1, &never));
    let preview = with_sync(from, to, how, |sync| sync.preview()).0.unwrap();
    preview.datasets.iter().flat_map(|one| &one.sends).map(|(_, bytes)| bytes).sum()
}
