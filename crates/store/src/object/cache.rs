//! A cache of windows on a local disk, which outlives the process.
//!
//! The pool does not depend on it. Each file has a checksum of its identity and its bytes. A file that cannot be
//! verified or written costs a request. The bytes of a window never change, so the cache cannot be outdated. Files:
//! `docs/format/object-store.md`, "The cache".

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use parking_lot::Mutex;
use rustix::fs::OFlags;

use super::windows::{Place, WHOLE_MAX};
use crate::codec::{self, SUM_LEN};
use crate::error::At;
use crate::{CacheLocation, CacheStatus, Result, StoreError, lock};

/// Maximum length of a file: a window of maximum length with its checksum.
const FILE_MAX: u64 = WHOLE_MAX + SUM_LEN as u64;
/// Length of a file name: a hash of the file's identity, in hexadecimal digits.
const NAME_LEN: usize = 32;

/// A cache that was requested. If it cannot be opened, the pool works without it.
#[derive(Debug)]
pub(super) struct Disk {
    location: CacheLocation,
    opened: std::result::Result<DiskCache, String>,
}

impl Disk {
    /// Opens the cache of the pool `guid`.
    pub(super) fn open(location: CacheLocation, guid: u64) -> Self {
        let opened = DiskCache::open(&location.directory, location.max_bytes, guid);
        Self { opened: opened.map_err(|error| told(&error)), location }
    }

    pub(super) fn usable(&self) -> Option<&DiskCache> {
        self.opened.as_ref().ok()
    }

    pub(super) fn status(&self) -> CacheStatus {
        let directory = self.location.directory.clone();
        match &self.opened {
            Ok(cache) => {
                let index = cache.index.lock();
                let max_bytes = if cache.lock.is_some() { index.max_bytes } else { self.location.max_bytes };
                let read_only =
                    || cache.lock.is_none().then(|| "kept by another process, only read".to_owned());
                let trouble = index.trouble.clone().or_else(read_only);
                CacheStatus { location: CacheLocation { directory, max_bytes }, bytes: index.bytes, trouble }
            }
            Err(why) => CacheStatus { location: self.location.clone(), bytes: 0, trouble: Some(why.clone()) },
        }
    }

    /// Sets the maximum size.
    pub(super) fn set_max(&self, max_bytes: u64) {
        if let Some(cache) = self.usable().filter(|cache| cache.lock.is_some()) {
            let mut index = cache.index.lock();
            index.max_bytes = max_bytes;
            index.make_room(0).iter().for_each(|name| cache.delete(name));
        }
    }
}

/// Checks whether a cache can be written at `location`, before it is configured. The pool `guid` may use the cache at
/// this moment.
///
/// # Errors
/// `Io` when the directory does not exist or is not writable.
pub fn check_cache(location: &CacheLocation, guid: u64) -> Result<()> {
    let is_new = !location.directory.join(folder(guid)).exists();
    let cache = DiskCache::open(&location.directory, location.max_bytes, guid)?;
    let path = cache.root.join("try.new");
    let tried = ours(File::options().write(true).create(true).truncate(true), &path)
        .and_then(|mut file| file.write_all(&[0; 4096]))
        .at("write", &path);
    let _ = fs::remove_file(&path);
    if is_new {
        cache.clear();
    }
    tried
}

/// The name of a pool's directory in the cache directory.
fn folder(guid: u64) -> String {
    format!("{guid:016x}")
}

/// An error and its causes, on one line.
fn told(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", told(cause)),
        None => error.to_string(),
    }
}

#[derive(Debug)]
pub(super) struct DiskCache {
    root: PathBuf,
    /// The process that holds the lock writes to the cache and limits its size. Others only read it.
    lock: Option<File>,
    index: Mutex<Index>,
}

#[derive(Debug)]
struct Index {
    max_bytes: u64,
    bytes: u64,
    /// Length and last use of each file.
    files: HashMap<String, (u64, u64)>,
    by_use: BTreeMap<u64, String>,
    clock: u64,
    /// Why the last file could not be written.
    trouble: Option<String>,
}

impl Index {
    fn touch(&mut self, name: &str) {
        self.clock += 1;
        if let Some((_, used)) = self.files.get_mut(name) {
            self.by_use.remove(used);
            *used = self.clock;
            self.by_use.insert(self.clock, name.to_owned());
        }
    }

    fn insert(&mut self, name: String, len: u64) {
        self.remove(&name);
        self.clock += 1;
        self.bytes += len;
        self.by_use.insert(self.clock, name.clone());
        self.files.insert(name, (len, self.clock));
    }

    fn remove(&mut self, name: &str) {
        if let Some((len, used)) = self.files.remove(name) {
            self.bytes -= len;
            self.by_use.remove(&used);
        }
    }

    /// Removes the least recently used files from the index, until `len` more bytes fit. Returns their names.
    fn make_room(&mut self, len: u64) -> Vec<String> {
        let mut gone = Vec::new();
        while self.bytes + len > self.max_bytes
            && let Some((_, name)) = self.by_use.pop_first()
        {
            if let Some((len, _)) = self.files.remove(&name) {
                self.bytes -= len;
            }
            gone.push(name);
        }
        gone
    }
}

/// Returns the name of a window's file, and the identity with which its checksum begins.
fn identity(place: &Place) -> (String, String) {
    let of = format!("{} {}", place.0.name(), place.1);
    let sum = codec::sum(&[of.as_bytes()]);
    (sum.iter().take(NAME_LEN / 2).map(|byte| format!("{byte:02x}")).collect(), of)
}

/// Opens a file of the cache. Another user may have replaced it: a symbolic link is not followed, and a FIFO does not
/// block.
fn ours(options: &mut OpenOptions, path: &Path) -> std::io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = options.mode(0o600).custom_flags(flags.bits().cast_signed()).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(std::io::Error::other("not a regular file")),
    }
}

impl DiskCache {
    /// Opens the cache for the pool `guid` in `directory`, with at most `max_bytes`.
    ///
    /// # Errors
    /// `Io` when the pool's directory cannot be made or listed, or when `directory` does not exist. It is not made,
    /// because a file system may be missing that should be mounted there.
    pub(super) fn open(directory: &Path, max_bytes: u64, guid: u64) -> Result<Self> {
        let root = directory.join(folder(guid));
        match fs::DirBuilder::new().mode(0o700).create(&root) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            made => made.at("make the cache", &root)?,
        }
        let path = root.join("lock");
        let file = ours(File::options().write(true).create(true).truncate(false), &path).at("open", &path)?;
        let lock = match lock::exclusive(&file, &path) {
            Ok(()) => Some(file),
            Err(StoreError::Locked { .. }) => None,
            Err(error) => return Err(error),
        };
        let index = Index {
            max_bytes,
            bytes: 0,
            files: HashMap::new(),
            by_use: BTreeMap::new(),
            clock: 0,
            trouble: None,
        };
        let cache = Self { root, lock, index: Mutex::new(index) };
        cache.load()?;
        Ok(cache)
    }

    /// Lists the existing files, oldest first. Deletes incomplete files, and the oldest files beyond the maximum
    /// size.
    fn load(&self) -> Result<()> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.root).at("list", &self.root)? {
            let entry = entry.at("list", &self.root)?;
            let (Ok(name), Ok(metadata)) = (entry.file_name().into_string(), entry.metadata()) else {
                continue;
            };
            let is_name = name.len() == NAME_LEN && name.bytes().all(|byte| byte.is_ascii_hexdigit());
            let is_ours = is_name && metadata.is_file();
            match is_ours {
                true => found.push((metadata.modified().ok(), name, metadata.len())),
                false if name.ends_with(".new") && self.lock.is_some() => self.delete(&name),
                false => {}
            }
        }
        found.sort();
        let mut index = self.index.lock();
        found.into_iter().for_each(|(_, name, len)| index.insert(name, len));
        if self.lock.is_some() {
            index.make_room(0).iter().for_each(|name| self.delete(name));
        }
        Ok(())
    }

    fn delete(&self, name: &str) {
        // A file that cannot be deleted is found again when the cache is opened.
        let _ = fs::remove_file(self.root.join(name));
    }

    /// Returns a window if the cache has it and its checksum is correct.
    pub(super) fn get(&self, place: &Place) -> Option<Bytes> {
        let (name, of) = identity(place);
        if self.lock.is_some() && !self.index.lock().files.contains_key(&name) {
            return None;
        }
        let mut bytes = Vec::new();
        let read = ours(File::options().read(true), &self.root.join(&name))
            .and_then(|file| file.take(FILE_MAX + 1).read_to_end(&mut bytes));
        let whole = read.is_ok().then(|| bytes.split_first_chunk::<SUM_LEN>()).flatten();
        let (start, end) = super::windows::range(place);
        let data = whole.filter(|(sum, data)| {
            data.len() as u64 == end - start && codec::sum(&[of.as_bytes(), data]) == **sum
        });
        if data.is_none() {
            if self.lock.is_some() {
                self.index.lock().remove(&name);
                self.delete(&name);
            }
            return None;
        }
        self.index.lock().touch(&name);
        Some(Bytes::from(bytes).slice(SUM_LEN..))
    }

    /// Stores a window if that is possible.
    pub(super) fn put(&self, place: &Place, data: &[u8]) {
        let len = (data.len() + SUM_LEN) as u64;
        let (name, of) = identity(place);
        if self.lock.is_none() {
            return;
        }
        let mut index = self.index.lock();
        if len > index.max_bytes || index.files.contains_key(&name) {
            return;
        }
        index.make_room(len).iter().for_each(|name| self.delete(name));
        let new = self.root.join(format!("{name}.new"));
        let write = || {
            let mut file = ours(File::options().write(true).create(true).truncate(true), &new)?;
            file.write_all(&codec::sum(&[of.as_bytes(), data]))?;
            file.write_all(data)?;
            // Not synced: the checksum detects a file that a power failure has damaged.
            fs::rename(&new, self.root.join(&name))
        };
        match write() {
            Ok(()) => {
                index.insert(name, len);
                index.trouble = None;
            }
            Err(error) => {
                let _ = fs::remove_file(&new);
                index.trouble = Some(error.to_string());
            }
        }
    }

    /// Deletes the cache.
    pub(super) fn clear(&self) {
        if self.lock.is_some() {
            let _ = fs::remove_dir_all(&self.root);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SegmentId;
    use crate::object::parts::{Part, Stamp};

    fn place(id: u64) -> Place {
        (Part { id: SegmentId(id), offset: 0, len: 1000, stamp: Stamp::new(1, 0) }, 0)
    }

    fn files(directory: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(directory.join(format!("{:016x}", 7))).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.file_name().unwrap() != "lock").collect()
    }

    #[test]
    fn windows_survive_and_are_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let cache = DiskCache::open(directory.path(), 5 * 1032, 7).unwrap();
        for id in 0..8 {
            cache.put(&place(id), &[id as u8; 1000]);
            assert!(cache.get(&place(0)).is_some());
        }
        assert_eq!(files(directory.path()).len(), 5);
        assert_eq!(cache.get(&place(1)), None);
        // A second process reads the cache and does not change it.
        let reader = DiskCache::open(directory.path(), 1032, 7).unwrap();
        assert_eq!(reader.get(&place(7)).unwrap(), [7; 1000].as_slice());
        reader.put(&place(20), &[1; 1000]);
        assert_eq!(files(directory.path()).len(), 5);
        drop((cache, reader));
        let smaller = DiskCache::open(directory.path(), 2 * 1032, 7).unwrap();
        assert_eq!(files(directory.path()).len(), 2);
        smaller.put(&place(30), &[1; 1000]);
        assert_eq!(smaller.get(&place(30)).unwrap(), [1; 1000].as_slice());
        assert_eq!(files(directory.path()).len(), 2);
        // The cache of another pool is separate.
        assert_eq!(DiskCache::open(directory.path(), 1 << 20, 8).unwrap().get(&place(30)), None);
        smaller.clear();
        assert!(!directory.path().join(format!("{:016x}", 7)).exists());
    }

    #[test]
    fn what_is_wrong_with_it_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| CacheLocation { directory: directory.path().join(name), max_bytes: 4096 };
        let disk = Disk::open(at("gone"), 7);
        assert!(disk.usable().is_none() && !at("gone").directory.exists());
        assert!(disk.status().trouble.unwrap().contains("No such file"));
        assert!(check_cache(&at("gone"), 7).is_err());
        fs::write(at("file").directory, "x").unwrap();
        assert!(Disk::open(at("file"), 7).status().trouble.unwrap().contains("Not a directory"));

        check_cache(&at("."), 7).unwrap();
        assert!(!directory.path().join(folder(7)).exists());
        let disk = Disk::open(at("."), 7);
        let cache = disk.usable().unwrap();
        cache.put(&place(1), &[1; 1000]);
        assert_eq!(disk.status(), CacheStatus { location: at("."), bytes: 1032, trouble: None });
        // The file cannot be written for a while.
        let (name, _) = identity(&place(2));
        let obstacle = cache.root.join(format!("{name}.new"));
        fs::create_dir(&obstacle).unwrap();
        cache.put(&place(2), &[1; 1000]);
        assert!(disk.status().trouble.is_some());
        fs::remove_dir(&obstacle).unwrap();
        cache.put(&place(2), &[1; 1000]);
        assert_eq!(disk.status().trouble, None);
        disk.set_max(1500);
        assert_eq!(disk.status().bytes, 1032);
        assert!(cache.get(&place(2)).is_some() && cache.get(&place(1)).is_none());
        // Another pool has its own cache. A second process of this pool can only read.
        check_cache(&at("."), 7).unwrap();
        let (other, reader) = (Disk::open(at("."), 8), Disk::open(at("."), 7));
        assert_eq!((other.status().bytes, other.status().trouble), (0, None));
        assert!(reader.status().trouble.unwrap().contains("another process"));
        assert_eq!(files(directory.path()).len(), 1);
    }

    #[test]
    fn nothing_in_its_place_leads_elsewhere_or_hangs() {
        let directory = tempfile::tempdir().unwrap();
        let victim = directory.path().join("victim");
        fs::write(&victim, [7; 5]).unwrap();
        let cache = DiskCache::open(directory.path(), 1 << 20, 7).unwrap();
        let (name, _) = identity(&place(1));
        let (file, new) = (cache.root.join(&name), cache.root.join(format!("{name}.new")));
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let fifo = |path: &Path| rustix::fs::mkfifoat(rustix::fs::CWD, path, mode).unwrap();
        let link = |path: &Path| std::os::unix::fs::symlink(&victim, path).unwrap();
        let folder = |path: &Path| fs::create_dir(path).unwrap();
        for plant in [&fifo as &dyn Fn(&Path), &link, &folder] {
            // An obstacle at the temporary name.
            plant(&new);
            cache.put(&place(1), &[1; 1000]);
            assert_eq!(cache.get(&place(1)), None);
            fs::remove_dir(&new).or_else(|_| fs::remove_file(&new)).ok();
            // An obstacle at the final name.
            cache.put(&place(1), &[1; 1000]);
            fs::remove_file(&file).unwrap();
            plant(&file);
            assert_eq!(cache.get(&place(1)), None);
            fs::remove_dir(&file).ok();
            assert_eq!(cache.index.lock().bytes, 0);
        }
        assert_eq!(fs::read(&victim).unwrap(), [7; 5]);
        // Files that are too long, have a foreign name, or are directories.
        fs::write(&file, vec![0; FILE_MAX as usize * 2]).unwrap();
        fs::write(cache.root.join("x".repeat(200)), b"x").unwrap();
        folder(&cache.root.join("0".repeat(NAME_LEN)));
        drop(cache);
        let cache = DiskCache::open(directory.path(), FILE_MAX * 3, 7).unwrap();
        assert_eq!(cache.index.lock().bytes, FILE_MAX * 2);
        assert_eq!(cache.get(&place(1)), None);
        assert_eq!(cache.index.lock().bytes, 0);
        cache.put(&place(1), &[1; 1000]);
        assert_eq!(cache.get(&place(1)).unwrap(), [1; 1000].as_slice());
    }

    #[test]
    fn what_does_not_verify_is_not_there() {
        let directory = tempfile::tempdir().unwrap();
        let cache = DiskCache::open(directory.path(), 1 << 20, 7).unwrap();
        for damage in 0..3 {
            cache.put(&place(1), &[1; 1000]);
            let path = files(directory.path()).pop().unwrap();
            let mut bytes = fs::read(&path).unwrap();
            match damage {
                0 => bytes[500] ^= 1,
                1 => bytes.truncate(500),
                // The file of another window under this name.
                _ => {
                    cache.put(&place(2), &[2; 1000]);
                    let other = files(directory.path()).into_iter().find(|other| *other != path).unwrap();
                    bytes = fs::read(&other).unwrap();
                }
            }
            fs::write(&path, bytes).unwrap();
            assert_eq!(cache.get(&place(1)), None);
            assert!(!path.exists());
        }
    }
}
