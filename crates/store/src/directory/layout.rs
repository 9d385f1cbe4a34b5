//! The names in a pool's directory, and the steps that make and remove it.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::At;
use crate::label::{self, Label, Layout};
use crate::ring::RING_LEN;
use crate::{CreateOptions, Result, SegmentId, SegmentInfo, StoreError, lock as owner};

const LABEL: &str = "label";
const LABEL_NEW: &str = "label.new";
/// A member of a mirror has its label twice, so that damage to it costs no member.
const LABEL_COPY: &str = "label.copy";
const LOCK: &str = "lock";
const RING: &str = "uberblocks";
const SEGMENTS: &str = "segments";
const SEGMENT_SUFFIX: &str = ".seg";

pub(super) fn ring_path(root: &Path) -> PathBuf {
    root.join(RING)
}

pub(super) fn segments_path(root: &Path) -> PathBuf {
    root.join(SEGMENTS)
}

/// Neighbouring ids share a directory, so that a sync has few directories to make durable.
pub(super) fn segment_path(root: &Path, id: SegmentId) -> PathBuf {
    root.join(format!("{SEGMENTS}/{:02x}/{id}{SEGMENT_SUFFIX}", (id.0 >> 8) & 0xff))
}

pub(super) fn make_directory(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        other => other,
    }
}

pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Takes the lock of the pool at `root`.
pub(super) fn lock(root: &Path) -> Result<File> {
    let path = root.join(LOCK);
    loop {
        let file = match File::options().read(true).write(true).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let why = "it has no lock file".to_owned();
                return Err(StoreError::NotAPool { path: root.to_owned(), why });
            }
            Err(error) => return Err(error).at("open", &path),
        };
        owner::exclusive(&file, root)?;
        // The pool may have been destroyed, and another one made, between the open and the lock.
        let ours = file.metadata().at("look at", &path)?;
        if std::fs::metadata(&path).is_ok_and(|m| (m.dev(), m.ino()) == (ours.dev(), ours.ino())) {
            return Ok(file);
        }
    }
}

pub(super) fn read_label(root: &Path) -> Result<Label> {
    let not_a_pool = |why: String| StoreError::NotAPool { path: root.to_owned(), why };
    let path = root.join(LABEL);
    let mut page = Vec::new();
    match File::open(&path) {
        Ok(file) => {
            // One byte more than a label has, so that a longer file is noticed.
            let limit = label::LABEL_LEN as u64 + 1;
            io::Read::read_to_end(&mut io::Read::take(file, limit), &mut page).at("read", &path)?;
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Err(not_a_pool("it has no label".to_owned()));
        }
        Err(error) => return Err(error).at("open", &path),
    }
    let label = Label::decode(&page).or_else(|why| copied_label(root).ok_or_else(|| not_a_pool(why)))?;
    match label.layout {
        Layout::Directory { .. } => Ok(label),
        Layout::File { .. } => Err(not_a_pool("its label belongs to a pool in a file".to_owned())),
        Layout::Object => Err(not_a_pool("its label belongs to a pool in an object store".to_owned())),
    }
}

/// The second copy of the label, if there is one and it is whole.
fn copied_label(root: &Path) -> Option<Label> {
    let mut page = Vec::new();
    let file = File::open(root.join(LABEL_COPY)).ok()?;
    io::Read::read_to_end(&mut io::Read::take(file, label::LABEL_LEN as u64 + 1), &mut page).ok()?;
    Label::decode(&page).ok()
}

/// Replaces the label atomically and durably; of a member of a mirror its copy, too.
pub(super) fn write_label(root: &Path, label: &Label) -> Result<()> {
    let copy = root.join(LABEL_COPY);
    if label.mirror.is_none() {
        remove_if_there(&copy).at("delete", &copy)?;
    }
    let names = if label.mirror.is_some() { &[LABEL, LABEL_COPY][..] } else { &[LABEL] };
    for name in names {
        let new = root.join(LABEL_NEW);
        write_file(&new, &label.encode())?;
        std::fs::rename(&new, root.join(name)).at("rename", &new)?;
        sync_directory(root).at("sync", root)?;
    }
    Ok(())
}

/// Bytes of the label and its copy that are not as they should be.
pub(super) fn differing_labels(root: &Path, label: &Label) -> u64 {
    let wanted = label.encode();
    let names = if label.mirror.is_some() { &[LABEL, LABEL_COPY][..] } else { &[LABEL] };
    let differs = |name: &&&str| std::fs::read(root.join(name)).map_or(true, |page| page != wanted);
    names.iter().filter(differs).count() as u64 * label::LABEL_LEN as u64
}

fn write_file(path: &Path, contents: &[u8]) -> Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .at("create", path)?;
    file.write_all(contents).at("write", path)?;
    file.sync_all().at("sync", path)
}

/// Makes the files of an empty pool. The label comes last: without it there is no pool.
pub(super) fn create(root: &Path, options: &CreateOptions) -> Result<()> {
    label::check_name(&options.label, root)?;
    if options.size.is_some() {
        let why = "a pool in a directory takes no size: its file system limits it".to_owned();
        return Err(StoreError::Invalid { path: root.to_owned(), why });
    }
    let made = match DirBuilder::new().mode(0o700).create(root) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        Err(error) => return Err(error).at("create", root),
    };
    if !made && !options.force {
        check_empty(root)?;
    }
    let lock_path = root.join(LOCK);
    let lock_file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&lock_path)
        .at("create", &lock_path)?;
    owner::exclusive(&lock_file, root)?;
    if !made {
        remove_contents(root)?;
    }
    make_directory(&segments_path(root)).at("create", &segments_path(root))?;
    // Written out in full now, so that a publication changes no metadata of the file system.
    write_file(&ring_path(root), &vec![0; RING_LEN as usize])?;
    sync_directory(root).at("sync", root)?;
    let layout = Layout::Directory { made };
    let label = Label { pool: options.label.clone(), seq: 0, layout, mirror: None };
    write_label(root, &label)?;
    if let Some(parent) = root.parent().filter(|_| made) {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        sync_directory(parent).at("sync", parent)?;
    }
    Ok(())
}

fn check_empty(root: &Path) -> Result<()> {
    for entry in std::fs::read_dir(root).at("list", root)? {
        let name = entry.at("list", root)?.file_name();
        // Every fresh ext file system has it.
        if name == "lost+found" {
            continue;
        }
        let what = match read_label(root) {
            Ok(label) => format!("the pool '{}'", label.pool.name),
            Err(_) => format!("other files ('{}')", name.display()),
        };
        return Err(StoreError::Foreign { path: root.to_owned(), what });
    }
    Ok(())
}

/// Removes the pool at `root`, the label first, and the directory itself if it was made for the pool.
pub(super) fn remove(root: &Path, label: &Label) -> Result<()> {
    remove_contents(root)?;
    let lock = root.join(LOCK);
    remove_if_there(&lock).at("delete", &lock)?;
    if label.layout == (Layout::Directory { made: true }) {
        // Other files in it, or a busy directory, are no reason to fail: the pool is gone.
        let _ = std::fs::remove_dir(root);
    }
    Ok(())
}

/// Removes everything that is a pool's, except its lock, and nothing else.
fn remove_contents(root: &Path) -> Result<()> {
    for name in [LABEL_COPY, LABEL, LABEL_NEW] {
        remove_if_there(&root.join(name)).at("delete", &root.join(name))?;
    }
    // From here on there is no pool, whatever happens.
    sync_directory(root).at("sync", root)?;
    for segment in list_segments(root)? {
        let path = segment_path(root, segment.id);
        remove_if_there(&path).at("delete", &path)?;
    }
    let segments = segments_path(root);
    for shard in 0..=255u8 {
        // Directories with something else in them stay.
        let _ = std::fs::remove_dir(segments.join(format!("{shard:02x}")));
    }
    let _ = std::fs::remove_dir(&segments);
    remove_if_there(&ring_path(root)).at("delete", &ring_path(root))
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// All files that are segments, by name and place, in no order.
pub(super) fn list_segments(root: &Path) -> Result<Vec<SegmentInfo>> {
    let mut found = Vec::new();
    for shard in 0..=255u8 {
        let shard = segments_path(root).join(format!("{shard:02x}"));
        let entries = match std::fs::read_dir(&shard) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).at("list", &shard),
        };
        for entry in entries {
            let entry = entry.at("list", &shard)?;
            let Some(id) = entry.file_name().to_str().and_then(segment_id) else { continue };
            if segment_path(root, id) != entry.path() {
                continue;
            }
            match entry.metadata() {
                Ok(metadata) => found.push(SegmentInfo { id, len: metadata.len() }),
                // Deleted since.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error).at("look at", &entry.path()),
            }
        }
    }
    Ok(found)
}

fn segment_id(name: &str) -> Option<SegmentId> {
    let digits = name.strip_suffix(SEGMENT_SUFFIX).filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok().map(SegmentId)
}
