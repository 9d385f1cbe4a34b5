//! Creating, opening and destroying a pool in an object store.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier};

use object_store::path::Path as Key;
use object_store::{Error, ObjectStore as Backend};
use parking_lot::{Condvar, Mutex};

use super::cache::Disk;
use super::fence::{self, Fence, KEEP_SECONDS, Published};
use super::local::LocalLock;
use super::publication::{self, FOLDER, Publication, Writer};
use super::remote::{Created, Listed, Patience, Remote};
use super::segments::State;
use super::windows::Windows;
use super::{DELETE_AFTER, Inner, ObjectStore, Opener, backend, parts, refusal};
use crate::error::At;
use crate::gate::Gate;
use crate::label::{Label, Layout, PoolLabel, check_name};
use crate::{Access, CacheLocation, CreateOptions, ObjectLocation, OtherOwner, Result, StoreError};

/// The default maximum size of a cache, in bytes.
pub const CACHE_BYTES: u64 = 10 << 30;
/// The name of the label.
pub(super) const LABEL: &str = "label";
/// The prefix of the objects with which a store is tested.
const PROBE: &str = "probe-";
/// Maximum number of damaged publications that are skipped.
const DAMAGED_MAX: usize = 8;
/// When a store is tested: the number of writers that compete for one object, and the number of rounds.
const RACERS: usize = 8;
const RACES: usize = 2;

impl Opener {
    /// Opens as this process, without a cache.
    pub(crate) fn this() -> Result<Self> {
        Ok(Self {
            writer: Writer::this()?,
            patience: Patience::default(),
            delete_after: DELETE_AFTER,
            recheck_after: fence::RECHECK_AFTER,
            cache: None,
            take_over: false,
            lock: true,
        })
    }

    /// Opens as this process, with the cache of the location or of the environment.
    fn at(location: &ObjectLocation) -> Result<Self> {
        let cache = match &location.cache {
            Some(cache) => Some(cache.clone()),
            None => cache_of_environment()?,
        };
        Ok(Self { cache, ..Self::this()? })
    }
}

/// The cache that SNOWMELT_CACHE and SNOWMELT_CACHE_SIZE name.
fn cache_of_environment() -> Result<Option<CacheLocation>> {
    let Some(directory) = std::env::var_os("SNOWMELT_CACHE").filter(|path| !path.is_empty()) else {
        return Ok(None);
    };
    let directory = PathBuf::from(directory);
    let max_bytes = match std::env::var("SNOWMELT_CACHE_SIZE") {
        Err(_) => CACHE_BYTES,
        Ok(text) => parse_size(&text).ok_or_else(|| StoreError::Invalid {
            path: directory.clone(),
            why: format!("SNOWMELT_CACHE_SIZE is '{text}', which is no size such as 50G"),
        })?,
    };
    // Made here, because the directory was not checked when the pool was created.
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&directory)
        .at("make the cache", &directory)?;
    Ok(Some(CacheLocation { directory, max_bytes }))
}

/// Parses a number of bytes, with or without a unit that is a power of 1024.
fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text.get(digits.len()..)? {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        "T" | "t" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

impl Writer {
    fn this() -> Result<Self> {
        let path = Path::new("/etc/machine-id");
        let host = backend::machine();
        let host = host.unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned());
        // Containers may share the machine id and have different host names.
        let id = std::fs::read(path).unwrap_or_default();
        let sum = crate::codec::sum(&[&id, b"\0", host.as_bytes()]);
        let machine = crate::codec::bytes_at(&sum, 0).unwrap_or_default();
        Ok(Self { machine, host, nonce: nonce()?, since: Inner::now() })
    }
}

/// Returns random bytes.
pub(super) fn nonce() -> Result<[u8; 16]> {
    let mut out = [0; 16];
    let filled = rustix::rand::getrandom(&mut out, rustix::rand::GetRandomFlags::empty());
    match filled.at("read random numbers from", Path::new("/dev/urandom"))? {
        16 => Ok(out),
        // Requests of up to 256 bytes are always complete (getrandom(2)).
        _ => Err(std::io::Error::other("too few came"))
            .at("read random numbers from", Path::new("/dev/urandom")),
    }
}

/// Takes a pool over from the machine that wrote to it last. The previous owner is stopped at its next write.
///
/// # Errors
/// The same as [`open`](crate::open).
pub fn take_over(url: &Path) -> Result<()> {
    let opener = Opener { take_over: true, ..Opener::this()? };
    ObjectStore::open_as(url, Access::ReadWrite, opener)?.inner.claim()
}

impl ObjectStore {
    /// Creates a pool at an address.
    ///
    /// # Errors
    /// See [`create`](crate::create); `Invalid` when the store does not support create-only puts.
    pub fn create(location: &ObjectLocation, options: &CreateOptions) -> Result<Self> {
        let (backend, prefix) = backend::connect(&location.url.to_string_lossy())?;
        Self::create_in(backend, prefix, &location.url, options, Opener::at(location)?)
    }

    /// Opens the pool at an address.
    ///
    /// # Errors
    /// See [`open`](crate::open); `Elsewhere` when another machine wrote to it last and `access` is `ReadWrite`.
    pub fn open(location: &ObjectLocation, access: Access) -> Result<Self> {
        Self::open_as(&location.url, access, Opener::at(location)?)
    }

    fn open_as(url: &Path, access: Access, opener: Opener) -> Result<Self> {
        let (backend, prefix) = backend::connect(&url.to_string_lossy())?;
        Self::open_in(backend, prefix, url, access, opener)
    }

    /// Reads the label of the pool at the address `url`.
    ///
    /// # Errors
    /// `NotAPool`, `Remote`.
    pub fn label(url: &Path) -> Result<PoolLabel> {
        let (backend, prefix) = backend::connect(&url.to_string_lossy())?;
        let remote = Remote::new(backend, prefix, Patience::default()).at("begin to talk to", url)?;
        read_label(&remote, url).map(|label| label.pool)
    }

    pub(crate) fn create_in(
        backend: Arc<dyn Backend>,
        prefix: Key,
        url: &Path,
        options: &CreateOptions,
        opener: Opener,
    ) -> Result<Self> {
        check_name(&options.label, url)?;
        if options.size.is_some() {
            let why = "a bucket has no size".to_owned();
            return Err(StoreError::Invalid { path: url.to_owned(), why });
        }
        let remote =
            Remote::new(backend.clone(), prefix.clone(), opener.patience).at("begin to talk to", url)?;
        clear(&remote, url, options.force)?;
        probe(&Arc::new(remote), url)?;
        let remote =
            Remote::new(backend.clone(), prefix.clone(), opener.patience).at("begin to talk to", url)?;
        let label = Label { pool: options.label.clone(), seq: 0, layout: Layout::Object, mirror: None };
        match remote.create(LABEL, &label.encode().into()) {
            Ok(Created::Ours) => Self::open_in(backend, prefix, url, Access::ReadWrite, opener),
            Ok(Created::Theirs(_)) => Err(StoreError::Foreign {
                path: url.to_owned(),
                what: "a pool that was just made".to_owned(),
            }),
            Err(error) => Err(refusal::explain("make a pool in", url, &error)),
        }
    }

    pub(crate) fn open_in(
        backend: Arc<dyn Backend>,
        prefix: Key,
        url: &Path,
        access: Access,
        opener: Opener,
    ) -> Result<Self> {
        let lock = match access {
            Access::ReadWrite if opener.lock => Some(LocalLock::take(url)?),
            _ => None,
        };
        let remote = Remote::new(backend, prefix, opener.patience).at("begin to talk to", url)?;
        let confirmed = fence::uptime();
        let label = read_label(&remote, url)?;
        let refused = |error| refusal::explain("list the uberblocks in", url, &error);
        let listed = remote.list(FOLDER).map_err(refused)?;
        let (newest, damaged) = newest(&remote, url, &listed, label.pool.guid)?;
        let seqs = listed.iter().filter_map(|listed| publication::parse_name(&listed.key));
        let mut published = Published {
            seq: seqs.max().unwrap_or(0),
            ring: std::collections::VecDeque::new(),
            claimed: false,
            confirmed,
            own: std::collections::VecDeque::new(),
            stale: stale(&listed),
        };
        let (mut epoch, mut state) = (1, State::default());
        if let Some(newest) = newest {
            let is_elsewhere = newest.writer.machine != opener.writer.machine;
            if access == Access::ReadWrite && is_elsewhere && !opener.take_over {
                return Err(StoreError::Elsewhere {
                    path: url.to_owned(),
                    owner: Box::new(OtherOwner {
                        host: newest.writer.host,
                        time: publication::utc(newest.time),
                    }),
                });
            }
            // Each damaged publication may have been the first one of a further owner.
            epoch = newest.epoch.saturating_add(1).saturating_add(damaged);
            state.set_published(&newest.doomed, newest.kept);
            published.ring = newest.ring;
        }
        let disk = opener.cache.map(|cache| Disk::open(cache, label.pool.guid));
        let inner = Inner {
            url: url.to_owned(),
            remote,
            gate: Gate::new(url, access),
            fence: Fence::default(),
            label: Mutex::new(label),
            writer: opener.writer,
            epoch,
            syncing: Mutex::default(),
            published: Mutex::new(published),
            state: Mutex::new(state),
            arrived: Condvar::new(),
            windows: Windows::default(),
            disk,
            delete_after: opener.delete_after,
            recheck_after: opener.recheck_after,
            _lock: lock,
        };
        Ok(Self { inner: Arc::new(inner) })
    }
}

fn read_label(remote: &Remote, url: &Path) -> Result<Label> {
    let not_a_pool = |why: String| StoreError::NotAPool { path: url.to_owned(), why };
    let page = match remote.get(LABEL) {
        Ok(page) => page,
        Err(error @ Error::NotFound { .. }) => {
            // A bucket that does not exist is a different error than a prefix without a pool.
            return match refusal::explain("open the pool in", url, &error) {
                StoreError::Remote(error) if error.why == refusal::NOT_THERE => {
                    Err(not_a_pool("nothing there has a label".to_owned()))
                }
                other => Err(other),
            };
        }
        Err(error) => return Err(refusal::explain("open the pool in", url, &error)),
    };
    let label = Label::decode(&page).map_err(not_a_pool)?;
    match label.layout {
        Layout::Object => Ok(label),
        _ => Err(not_a_pool("its label is that of another kind of store".to_owned())),
    }
}

/// Returns the newest readable publication, and the number of newer ones that are damaged.
fn newest(remote: &Remote, url: &Path, listed: &[Listed], guid: u64) -> Result<(Option<Publication>, u64)> {
    let mut damaged = 0;
    let mut seqs: Vec<u64> =
        listed.iter().filter_map(|listed| publication::parse_name(&listed.key)).collect();
    seqs.sort_unstable();
    for seq in seqs.iter().rev().take(DAMAGED_MAX) {
        let bytes = match remote.get(&publication::name(*seq)) {
            Ok(bytes) => bytes,
            // Its owner has deleted it meanwhile. So there are newer ones, which are found at the next write.
            Err(Error::NotFound { .. }) => continue,
            Err(error) => return Err(refusal::explain("read an uberblock in", url, &error)),
        };
        match Publication::decode(&bytes) {
            Ok(found) if found.guid == guid && found.seq == *seq => return Ok((Some(found), damaged)),
            _ => damaged += 1,
        }
    }
    if damaged > 0 {
        let why = format!("the last {damaged} publications there are damaged");
        return Err(StoreError::NotAPool { path: url.to_owned(), why });
    }
    Ok((None, 0))
}

/// Returns the publications that are no longer needed by a reader, or to stop an owner that has hung since then.
fn stale(listed: &[Listed]) -> Vec<u64> {
    let Some(newest) = listed.iter().map(|listed| listed.made).max() else { return Vec::new() };
    let seqs = listed.iter().filter_map(|listed| Some((publication::parse_name(&listed.key)?, listed.made)));
    let mut seqs: Vec<(u64, i64)> = seqs.collect();
    seqs.sort_unstable();
    // The newest ones stay regardless of their age, because some of them may be damaged.
    seqs.truncate(seqs.len().saturating_sub(DAMAGED_MAX));
    seqs.into_iter().filter(|(_, made)| newest - made > KEEP_SECONDS).map(|(seq, _)| seq).collect()
}

/// Makes sure that no objects are below the prefix.
fn clear(remote: &Remote, url: &Path, force: bool) -> Result<()> {
    let refused = |error| refusal::explain("look into", url, &error);
    let what = match read_label(remote, url) {
        Ok(label) => format!("the pool '{}'", label.pool.name),
        Err(StoreError::NotAPool { .. }) if !remote.holds_anything().map_err(refused)? => return Ok(()),
        Err(StoreError::NotAPool { .. }) => "other objects".to_owned(),
        Err(error) => return Err(error),
    };
    if !force {
        return Err(StoreError::Foreign { path: url.to_owned(), what });
    }
    wipe(remote).map_err(refused)
}

/// Deletes the objects of a pool, starting with the label. Other objects stay.
fn wipe(remote: &Remote) -> Result<(), Error> {
    remote.delete(LABEL)?;
    for listed in remote.list("")? {
        let folder = listed.key.split_once('/').map(|(folder, _)| folder);
        // A repeated put may arrive late and create a test object again.
        let is_probe = folder.is_none() && listed.key.starts_with(PROBE);
        if is_probe || folder.is_some_and(|folder| [FOLDER, parts::FOLDER].contains(&folder)) {
            remote.delete(&listed.key)?;
        }
    }
    Ok(())
}

/// Tests whether exactly one of several writers succeeds when they put one object create-only. Fencing depends on
/// this.
fn probe(remote: &Arc<Remote>, url: &Path) -> Result<()> {
    let refused = |error: Error| match error {
        Error::NotImplemented { .. } | Error::NotSupported { .. } => not_exclusive(url),
        error => refusal::explain("try out", url, &error),
    };
    for _ in 0..RACES {
        let name = format!("{PROBE}{:032x}", u128::from_le_bytes(nonce()?));
        let start = Barrier::new(RACERS);
        let outcomes: Vec<Result<Created, Error>> = std::thread::scope(|scope| {
            let racers: Vec<_> = (0..RACERS)
                .map(|racer| {
                    let (name, start) = (&name, &start);
                    scope.spawn(move || {
                        start.wait();
                        remote.create(name, &vec![racer as u8; 16].into())
                    })
                })
                .collect();
            racers.into_iter().filter_map(|racer| racer.join().ok()).collect()
        });
        let late = remote.create(&name, &vec![RACERS as u8; 16].into());
        // The object is deleted in any case.
        let deleted = remote.delete(&name);
        let mut winners = 0;
        for outcome in outcomes.into_iter().chain([late]) {
            winners += usize::from(outcome.map_err(refused)? == Created::Ours);
        }
        deleted.map_err(refused)?;
        if winners != 1 {
            return Err(not_exclusive(url));
        }
    }
    Ok(())
}

fn not_exclusive(url: &Path) -> StoreError {
    let why = "this object store takes an object that must not be there already (If-None-Match: *), though it is, or \
               does not know such requests: two machines could write to one pool, so none is made here"
        .to_owned();
    StoreError::Invalid { path: url.to_owned(), why }
}

impl Inner {
    pub(super) fn destroy(&self) -> Result<()> {
        wipe(&self.remote).map_err(|error| self.refused("destroy the pool in", error))?;
        if let Some(disk) = self.disk.as_ref().and_then(Disk::usable) {
            disk.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_write_them() {
        for (text, bytes) in [("50G", 50 << 30), ("1k", 1024), ("7", 7), (" 2T ", 2 << 40)] {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
        for text in ["", "G", "-1", "5X", "1.5G", "99999999999T", "5GG"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }
}
