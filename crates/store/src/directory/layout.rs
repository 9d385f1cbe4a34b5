//! The file names in a pool's directory, and the steps that create and remove a pool.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use crate::error::At;
use crate::label::{self, Label, Layout};
use crate::ring::RING_LEN;
use crate::trusted::{Directory, Place};
use crate::{CreateOptions, Result, SegmentId, SegmentInfo, StoreError, lock as owner};

const LABEL: &str = "label";
const LABEL_NEW: &str = "label.new";
/// A member of a mirror has a second copy of its label, so that a damaged label does not make the member unusable.
const LABEL_COPY: &str = "label.copy";
const LOCK: &str = "lock";
const RING: &str = "uberblocks";
const SEGMENTS: &str = "segments";
const SEGMENT_SUFFIX: &str = ".seg";

pub(super) fn ring_name() -> &'static Path {
    Path::new(RING)
}

pub(super) fn segments_name() -> &'static Path {
    Path::new(SEGMENTS)
}

/// Returns the relative path of a segment's file. Consecutive ids share a directory, so that a sync has few
/// directories to make durable.
pub(super) fn segment_name(id: SegmentId) -> PathBuf {
    PathBuf::from(format!("{SEGMENTS}/{:02x}/{id}{SEGMENT_SUFFIX}", (id.0 >> 8) & 0xff))
}

fn not_a_pool(root: &Directory, why: &str) -> StoreError {
    StoreError::NotAPool { path: root.path().to_owned(), why: why.to_owned() }
}

/// Takes the owner's lock of the pool in `root`.
pub(super) fn lock(root: &Directory) -> Result<File> {
    let path = root.path().join(LOCK);
    loop {
        let file = match root.write(Path::new(LOCK)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(not_a_pool(root, "it has no lock file"));
            }
            Err(error) => return Err(error).at("open", &path),
        };
        owner::exclusive(&file, root.path())?;
        // The pool may have been destroyed and created anew between the open and the lock.
        let ours = file.metadata().at("look at", &path)?;
        let named = root.stat(Path::new(LOCK));
        if named.is_ok_and(|named| (named.st_dev, named.st_ino) == (ours.dev(), ours.ino())) {
            return Ok(file);
        }
    }
}

/// Opens the directory `path`, which holds a pool or will hold one.
pub(super) fn open_root(path: &Path) -> Result<Directory> {
    let place = Place::find(path)?;
    if place.kind()? != FileType::Directory {
        let why = "it is not a directory".to_owned();
        return Err(StoreError::NotAPool { path: path.to_owned(), why });
    }
    place.directory()
}

/// Reads at most one byte more than the length of a label, so that a longer file is noticed.
fn read_page(root: &Directory, name: &str) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    root.read(Path::new(name))?.take(label::LABEL_LEN as u64 + 1).read_to_end(&mut page)?;
    Ok(page)
}

pub(super) fn read_label(root: &Directory) -> Result<Label> {
    #[cfg(test)]
    stalled::wait(root.path());
    let page = match read_page(root, LABEL) {
        Ok(page) => page,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(not_a_pool(root, "it has no label"));
        }
        Err(error) => return Err(error).at("read", &root.path().join(LABEL)),
    };
    let label =
        Label::decode(&page).or_else(|why| copied_label(root).ok_or_else(|| not_a_pool(root, &why)))?;
    match label.layout {
        Layout::Directory { .. } => Ok(label),
        Layout::File { .. } => Err(not_a_pool(root, "its label belongs to a pool in a file")),
        Layout::Object => Err(not_a_pool(root, "its label belongs to a pool in an object store")),
    }
}

/// Returns the second copy of the label, if it exists and is valid.
fn copied_label(root: &Directory) -> Option<Label> {
    Label::decode(&read_page(root, LABEL_COPY).ok()?).ok()
}

/// Replaces the label atomically and durably. For a member of a mirror, it replaces the copy too.
pub(super) fn write_label(root: &Directory, label: &Label) -> Result<()> {
    if label.mirror.is_none() {
        remove_if_there(root, Path::new(LABEL_COPY))?;
    }
    let names = if label.mirror.is_some() { &[LABEL, LABEL_COPY][..] } else { &[LABEL] };
    for name in names {
        write_file(root, LABEL_NEW, &label.encode())?;
        root.rename(LABEL_NEW, name).at("rename", &root.path().join(LABEL_NEW))?;
        root.sync(Path::new("")).at("sync", root.path())?;
    }
    Ok(())
}

/// Returns how many bytes of the label and its copy are wrong. A page that differs counts with all its bytes.
pub(super) fn differing_labels(root: &Directory, label: &Label) -> u64 {
    let wanted = label.encode();
    let names = if label.mirror.is_some() { &[LABEL, LABEL_COPY][..] } else { &[LABEL] };
    let differs = |name: &&&str| read_page(root, name).map_or(true, |page| page != wanted);
    names.iter().filter(differs).count() as u64 * label::LABEL_LEN as u64
}

/// Writes a new file. An existing file of that name is removed first.
fn write_file(root: &Directory, name: &str, contents: &[u8]) -> Result<()> {
    let path = root.path().join(name);
    remove_if_there(root, Path::new(name))?;
    let mut file = root.make(Path::new(name)).at("create", &path)?;
    file.write_all(contents).at("write", &path)?;
    file.sync_all().at("sync", &path)
}

/// Makes the files of an empty pool. The label is written last, because without it there is no pool.
pub(super) fn create(path: &Path, options: &CreateOptions) -> Result<()> {
    label::check_name(&options.label, path)?;
    if options.size.is_some() {
        let why = "a pool in a directory takes no size: its file system limits it".to_owned();
        return Err(StoreError::Invalid { path: path.to_owned(), why });
    }
    let place = Place::find(path)?;
    let made = match place.make_directory() {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        Err(error) => return Err(error).at("create", path),
    };
    if made {
        place.sync().at("sync the directory of", path)?;
    }
    let root = &place.directory()?;
    root.check_owner()?;
    if !made && !options.force {
        check_empty(root)?;
    }
    let lock_file = open_or_make(root, LOCK)?;
    owner::exclusive(&lock_file, root.path())?;
    if !made {
        remove_contents(root)?;
    }
    root.make_directory(segments_name()).at("create", &root.path().join(SEGMENTS))?;
    // Filled with zeros now, so that a publication does not change metadata of the file system.
    write_file(root, RING, &vec![0; RING_LEN as usize])?;
    root.sync(Path::new("")).at("sync", root.path())?;
    let layout = Layout::Directory { made };
    let label = Label { pool: options.label.clone(), seq: 0, layout, mirror: None };
    write_label(root, &label)
}

fn open_or_make(root: &Directory, name: &str) -> Result<File> {
    let opened = match root.make(Path::new(name)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => root.write(Path::new(name)),
        made => made,
    };
    opened.at("create", &root.path().join(name))
}

fn check_empty(root: &Directory) -> Result<()> {
    // A new ext file system contains this directory.
    let names = root.list(Path::new("")).at("list", root.path())?;
    let Some(name) = names.iter().find(|name| *name != "lost+found") else { return Ok(()) };
    let what = match read_label(root) {
        Ok(label) => format!("the pool '{}'", label.pool.name),
        Err(_) => format!("other files ('{}')", name.display()),
    };
    Err(StoreError::Foreign { path: root.path().to_owned(), what })
}

/// Removes the pool in `root`, starting with the label. Also removes the directory if it was made for the pool.
pub(super) fn remove(root: &Directory, label: &Label) -> Result<()> {
    remove_contents(root)?;
    remove_if_there(root, Path::new(LOCK))?;
    if label.layout == (Layout::Directory { made: true }) {
        // Ignore errors: the directory may be busy or contain other files, but the pool is gone.
        let _ = Place::find(root.path()).map(|place| place.remove_directory());
    }
    Ok(())
}

/// Removes all files of the pool except its lock, and no other files.
fn remove_contents(root: &Directory) -> Result<()> {
    for name in [LABEL_COPY, LABEL, LABEL_NEW] {
        remove_if_there(root, Path::new(name))?;
    }
    // After this sync there is no pool, even if the following steps fail.
    root.sync(Path::new("")).at("sync", root.path())?;
    for segment in list_segments(root)? {
        remove_if_there(root, &segment_name(segment.id))?;
    }
    for shard in 0..=255u8 {
        // A directory with other files stays.
        let _ = root.remove_directory(&shard_name(shard));
    }
    let _ = root.remove_directory(segments_name());
    remove_if_there(root, ring_name())
}

fn remove_if_there(root: &Directory, name: &Path) -> Result<()> {
    match root.remove(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.at("delete", &root.path().join(name)),
    }
}

fn shard_name(shard: u8) -> PathBuf {
    PathBuf::from(format!("{SEGMENTS}/{shard:02x}"))
}

/// Lists all segment files that have a valid name in the right directory, in no particular order.
pub(super) fn list_segments(root: &Directory) -> Result<Vec<SegmentInfo>> {
    let mut found = Vec::new();
    for shard in 0..=255u8 {
        let shard = shard_name(shard);
        let names = match root.list(&shard) {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).at("list", &root.path().join(&shard)),
        };
        for name in names {
            let Some(id) = name.to_str().and_then(segment_id) else { continue };
            let path = shard.join(&name);
            if segment_name(id) != path {
                continue;
            }
            match root.stat(&path) {
                Ok(stat) => found.push(SegmentInfo { id, len: u64::try_from(stat.st_size).unwrap_or(0) }),
                // The file was deleted after the directory was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error).at("look at", &root.path().join(&path)),
            }
        }
    }
    Ok(found)
}

fn segment_id(name: &str) -> Option<SegmentId> {
    let digits = name.strip_suffix(SEGMENT_SUFFIX).filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok().map(SegmentId)
}

/// Simulates a disk that hangs: tests stall a directory, and later let it go.
#[cfg(test)]
pub(crate) mod stalled {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};
    use std::sync::{Condvar, Mutex};

    static STALLED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    static LET_GO: Condvar = Condvar::new();

    /// Blocks all reads of the label of the pool at `path`, which is a canonical path.
    pub fn stall(path: PathBuf) {
        STALLED.lock().unwrap().insert(path);
    }

    /// Ends [`stall`].
    pub fn let_go(path: &Path) {
        STALLED.lock().unwrap().remove(path);
        LET_GO.notify_all();
    }

    /// Waits while the pool at `path` is stalled.
    pub fn wait(path: &Path) {
        let Ok(path) = std::fs::canonicalize(path) else { return };
        let stalled = STALLED.lock().unwrap();
        drop(LET_GO.wait_while(stalled, |stalled| stalled.contains(&path)).unwrap());
    }
}
