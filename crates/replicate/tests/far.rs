//! Directories at the far end of a slow link: many files cost no more round trips than few.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use common::{TestPool, name};
use snowmelt_fs::import::{
    Filter, HintError, Hints, ImportEvent, ImportObserver, ImportOptions, Scan, SourceId, Summary, import,
};
use snowmelt_replicate::access::Access;
use snowmelt_replicate::end::{End, Peer};
use snowmelt_replicate::request::{Bring, Brought, Holding, Kind, OpenTarget, ReadRequest};
use snowmelt_replicate::serve::serve_pool;
use snowmelt_replicate::target::{Here, Material, Target, Watcher};
use snowmelt_replicate::wire::{Connection, Manners};
use snowmelt_zpl::{FilesystemMut, WriteOptions};

const FILES: usize = 600;
/// After this time without a byte from the client, the client is considered to wait for answers.
const QUIET: Duration = Duration::from_millis(30);

/// A link that passes on a client's bytes only when the client waits. Each time counts as a round trip.
struct LongLink {
    peer: Peer,
    trips: Arc<AtomicUsize>,
    threads: [JoinHandle<()>; 2],
}

impl LongLink {
    fn open(pool: &TestPool) -> Self {
        let (ours, near) = UnixStream::pair().unwrap();
        let (far, theirs) = UnixStream::pair().unwrap();
        let (datasets, trips) = (pool.datasets.clone(), Arc::new(AtomicUsize::new(0)));
        let (output, counted) = (near.try_clone().unwrap(), trips.clone());
        let server = std::thread::spawn(move || {
            let _ = serve_pool(&datasets, &Access::default(), None, theirs, output, &AtomicBool::new(false));
        });
        let carrier = std::thread::spawn(move || carry(near, far, &counted));
        let connection =
            Connection::open(ours.try_clone().unwrap(), Closing(ours), Manners::default()).unwrap();
        Self { peer: Peer::new(connection), trips, threads: [server, carrier] }
    }

    /// Closes the link. Returns how often the client waited.
    fn close(self) -> usize {
        drop(self.peer);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        self.trips.load(Ordering::SeqCst)
    }
}

/// The client's output. The other side notices when it is dropped.
struct Closing(UnixStream);

impl Write for Closing {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        self.0.write(buf)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        let _ = self.0.shutdown(std::net::Shutdown::Write);
    }
}

fn carry(mut from: UnixStream, mut to: UnixStream, trips: &AtomicUsize) {
    let mut buf = vec![0; 1 << 20];
    let mut waiting = Vec::new();
    loop {
        from.set_read_timeout((!waiting.is_empty()).then_some(QUIET)).unwrap();
        match from.read(&mut buf) {
            Ok(0) => break,
            Ok(len) => waiting.extend_from_slice(&buf[..len]),
            Err(_) => {
                trips.fetch_add(1, Ordering::SeqCst);
                if to.write_all(&waiting).is_err() {
                    return;
                }
                waiting.clear();
            }
        }
    }
    let _ = to.write_all(&waiting);
    let _ = to.shutdown(std::net::Shutdown::Write);
}

struct Silent;

impl ImportObserver for Silent {
    fn event(&mut self, _path: &[u8], _event: ImportEvent<'_>) {}

    fn progress(&mut self, _summary: &Summary) {}

    fn is_cancelled(&self) -> bool {
        false
    }
}

impl Hints for Silent {
    fn object_of(&mut self, _file: SourceId) -> Result<Option<(u64, u64)>, HintError> {
        Ok(None)
    }

    fn note(&mut self, _file: SourceId, _object: u64, _generation: u64) -> Result<(), HintError> {
        Ok(())
    }

    fn listing(&mut self, _directory: u64) -> Result<Option<[u8; 32]>, HintError> {
        Ok(None)
    }

    fn note_listing(&mut self, _directory: u64, _digest: Option<[u8; 32]>) -> Result<(), HintError> {
        Ok(())
    }
}

impl Watcher for Silent {
    fn failure(&mut self, what: &str) {
        panic!("{what}");
    }

    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Imports a directory into tank/home, and takes a snapshot.
fn take_in(pool: &TestPool, source: &Path, snapshot: &str) {
    let dataset = pool.datasets.catalog().dataset(name("tank/home").dataset()).unwrap();
    let head = pool.datasets.open_head(&dataset).unwrap();
    let fs = FilesystemMut::open(head.head().clone(), WriteOptions::default(), 7).unwrap();
    let scan = Scan::open(source, Filter::default(), false).unwrap();
    import(&scan, &fs, &mut Silent, &mut Silent, ImportOptions::default()).unwrap();
    drop(fs);
    pool.snapshot(snapshot);
}

/// Updates `directory` from one snapshot to another. Returns how often it waited for the link.
fn sync(pool: &TestPool, directory: &Path, since: Option<&str>, to: &str) -> (Brought, usize) {
    let link = LongLink::open(pool);
    let read = |snapshot: &str, since: Option<&str>| {
        let request = ReadRequest { snapshot: snapshot.to_owned(), since: since.map(str::to_owned) };
        link.peer.read(&request).unwrap()
    };
    let mut target = Here::new(directory.to_owned(), directory.to_owned());
    let opening = OpenTarget {
        list: false,
        source: "tank/home".to_owned(),
        kind: Kind::Filesystem,
        below: Vec::new(),
        children: Vec::new(),
        force: false,
        dry_run: false,
    };
    target.open(&opening).unwrap();
    let guid = pool.datasets.catalog().snapshot(&name(to)).unwrap().record.guid;
    let to_hold = Holding { guid, name: to.to_owned() };
    let how = Bring { to: to_hold, has_base: since.is_some(), force: false, dry_run: false };
    let material = Material::Snapshots { new: read(to, since), old: since.map(|since| read(since, None)) };
    let brought = target.bring(&how, material, &mut Silent).unwrap();
    (brought, link.close())
}

/// Ten small files in each directory, and one that is larger than a single request.
fn tree(top: &Path) {
    for number in 0..FILES {
        let directory = top.join(format!("d{}/e{}", number / 100, number / 10 % 10));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(format!("f{number}")), format!("{number}\n").repeat(1 + number % 900))
            .unwrap();
    }
    let noise: Vec<u8> = (0..3_u32 << 18).flat_map(|at| at.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
    fs::write(top.join("large"), noise).unwrap();
    std::os::unix::fs::symlink("large", top.join("link")).unwrap();
}

fn assert_same(one: &Path, other: &Path) {
    let mut command = std::process::Command::new("diff");
    command.args(["-r", "--no-dereference", "-x", ".snowmelt-sync"]).args([one, other]);
    let said = command.output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stdout));
}

#[test]
fn many_files_do_not_wait_for_the_link_one_by_one() {
    let (source, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let pool = TestPool::new("tank");
    pool.filesystem("tank/home");
    tree(source.path());
    take_in(&pool, source.path(), "tank/home@1");
    let (brought, trips) = sync(&pool, target.path(), None, "tank/home@1");
    assert!(brought.new as usize > FILES && brought.failures == 0, "{brought:?}");
    assert_same(source.path(), target.path());
    assert!(trips < FILES / 10, "{trips} round trips");

    for number in (0..FILES).step_by(3) {
        let path = source.path().join(format!("d{}/e{}/f{number}", number / 100, number / 10 % 10));
        match number % 2 {
            0 => fs::write(path, "changed").unwrap(),
            _ => fs::rename(&path, path.with_extension("moved")).unwrap(),
        }
    }
    fs::create_dir(source.path().join("new")).unwrap();
    (0..50).for_each(|number| fs::write(source.path().join(format!("new/{number}")), "new").unwrap());
    take_in(&pool, source.path(), "tank/home@2");
    let (brought, trips) = sync(&pool, target.path(), Some("tank/home@1"), "tank/home@2");
    assert!(brought.changed >= 100 && brought.new >= 150 && brought.failures == 0, "{brought:?}");
    assert_same(source.path(), target.path());
    assert!(trips < 40, "{trips} round trips");
}
