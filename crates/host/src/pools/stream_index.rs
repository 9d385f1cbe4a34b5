//! Indexes of stream files: small pools that refer to the blocks in a file instead of holding them.
//!
//! An index is a directory `stream-KEY` in the cache directory. KEY is computed from the file's device, inode, size,
//! modification time, and first and last record (which have its checksums). Beside it is `stream-KEY.file`. This file
//! describes the stream file, is locked while the index is made, and has the time of the last use as its modification
//! time. An index is made under another name, so an existing index is always complete.

use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};
use snowmelt_dataset::receive::{Observer, ReceiveEvent, ReceiveOptions};
use snowmelt_dataset::{DatasetError, Datasets, Name, ReceiveError};
use snowmelt_store::{Access, Location, Store};
use snowmelt_stream::reader::Reader;
use snowmelt_stream::{Features, HeaderType, RECORD_LEN, Record};

use super::outside;
use super::private::create_private;
use crate::context::Context;
use crate::error::{CliError, Result, chain};
use crate::progress::Progress;

/// An index that was not used for this long is removed.
const UNUSED_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

const PREFIX: &str = "stream-";
const KEY_LEN: usize = 16;
/// The dataset, where the stream's own name cannot be one.
const NAMELESS: &str = "stream";

/// A stream file, and what its index is called.
#[derive(Debug)]
pub struct StreamFile {
    /// Absolute, as far as links go.
    pub path: PathBuf,
    /// Name of the pool that is its index.
    pub pool: String,
    /// Its length, bytes.
    pub len: u64,
    stamp: Stamp,
}

/// Identifies the state of a file.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    len: u64,
    modified: (i64, i64),
}

/// Whether a pool of this name is an index.
pub fn is_name(pool: &str) -> bool {
    let key = pool.strip_prefix(PREFIX);
    key.is_some_and(|key| key.len() == KEY_LEN && key.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        Self { device: metadata.dev(), inode: metadata.ino(), len: metadata.len(), modified }
    }

    fn line(&self) -> String {
        let Self { device, inode, len, modified: (seconds, nanoseconds) } = self;
        format!("{device} {inode} {len} {seconds} {nanoseconds}\n")
    }
}

impl StreamFile {
    /// The file at a path.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn of(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize()?;
        let mut file = File::open(&path)?;
        let stamp = Stamp::of(&file.metadata()?);
        let mut hash = blake3::Hasher::new();
        hash.update(stamp.line().as_bytes());
        let ends = [0, stamp.len.saturating_sub(RECORD_LEN as u64)];
        for at in ends {
            file.seek(SeekFrom::Start(at))?;
            let mut record = Vec::new();
            (&mut file).take(RECORD_LEN as u64).read_to_end(&mut record)?;
            hash.update(&record);
        }
        let key: String = hash.finalize().to_hex().chars().take(KEY_LEN).collect();
        Ok(Self { path, pool: format!("{PREFIX}{key}"), len: stamp.len, stamp })
    }

    /// Makes the index in `indexes`, unless it exists, and records that it is used. `attempt` is the beginning of
    /// error messages. Returns a note for the user, if there is one.
    ///
    /// # Errors
    /// When the file holds nothing that can be looked into by itself, is damaged, or the index cannot be written. Then
    /// there is no index.
    pub fn index(&self, indexes: &Path, context: &Context, attempt: &str) -> Result<Vec<String>> {
        let failed = |error: io::Error| CliError::failed(attempt, &error);
        std::fs::create_dir_all(indexes).map_err(failed)?;
        // Another process that needs the same index waits, and finds it.
        let mut note = lock_note(&note_path(indexes, &self.pool)).map_err(failed)?;
        let place = indexes.join(&self.pool);
        let mut notes = Vec::new();
        if !place.exists() {
            evict(indexes, SystemTime::now());
            let made = self.make(indexes, context, attempt).and_then(|made| {
                notes = made;
                write_note(&mut note, self).map_err(failed)
            });
            if let Err(error) = made {
                let _ = std::fs::remove_dir_all(&place);
                let _ = std::fs::remove_file(note_path(indexes, &self.pool));
                return Err(error);
            }
        }
        note.set_modified(SystemTime::now()).map_err(failed)?;
        Ok(notes)
    }

    fn make(&self, indexes: &Path, context: &Context, attempt: &str) -> Result<Vec<String>> {
        let dataset = self.look(attempt)?;
        let unfinished = unfinished(indexes, &self.pool);
        let _ = std::fs::remove_dir_all(&unfinished);
        let progress = Progress::bytes(context, Some(self.len));
        progress.message("indexing");
        let made = create_private(&unfinished, &self.pool, attempt)
            .and_then(|datasets| self.fill(&datasets, &dataset, &context.cancelled, &progress, attempt));
        progress.finish();
        let renamed = made.and_then(|notes| {
            std::fs::rename(&unfinished, indexes.join(&self.pool))
                .map_err(|error| CliError::failed(attempt, &error))?;
            Ok(notes)
        });
        if renamed.is_err() {
            let _ = std::fs::remove_dir_all(&unfinished);
        }
        renamed
    }

    /// Reads the beginning: whether there is something to look into. Gives the name of the dataset.
    fn look(&self, attempt: &str) -> Result<String> {
        let refused = |why: String| Err(CliError::Failed(format!("{attempt}: {why}")));
        let mut file = File::open(&self.path).map_err(|error| CliError::failed(attempt, &error))?;
        if let Some(how) = compressed(&mut file).map_err(|error| CliError::failed(attempt, &error))? {
            return refused(format!("it is compressed: uncompress it first, with '{how}'"));
        }
        let mut reader = Reader::new(file);
        let mut payload = Vec::new();
        let mut dataset = None;
        loop {
            let at = match reader.next(&mut payload) {
                Ok(at) => at,
                Err(error) if dataset.is_none() => {
                    return refused(format!("it is neither a dataset nor a stream: {}", chain(&error)));
                }
                Err(error) => return Err(CliError::failed(attempt, &error)),
            };
            let begin = match at.map(|at| at.record) {
                Some(Record::Begin(begin)) => begin,
                // That of a package's table of contents.
                Some(Record::End(_)) => continue,
                _ => return refused("there is no snapshot in it".to_owned()),
            };
            let sent = begin.to_name.as_str().and_then(|name| name.split('@').next()).unwrap_or_default();
            let last = sent.rsplit('/').next().unwrap_or_default();
            dataset.get_or_insert(last.to_owned());
            if begin.header_type == HeaderType::Compound {
                continue;
            }
            let name = &begin.to_name;
            if begin.features.contains(Features::RESUMING) {
                return refused(format!(
                    "it is only the rest of an interrupted stream of {name}: without the beginning, it cannot be \
                     mounted"
                ));
            }
            if begin.from_guid != 0 {
                return refused(format!(
                    "it is an incremental stream of {name}, whose base has the guid {}: receive both into a pool, \
                     and mount the dataset",
                    begin.from_guid
                ));
            }
            if begin.features.contains(Features::RAW) {
                return refused(format!(
                    "it is a raw stream of {name}, which is encrypted: only ZFS can mount it, with its key"
                ));
            }
            break;
        }
        let name = dataset.unwrap_or_default();
        let is_name =
            Name::parse(&format!("{}/{name}", self.pool)).is_ok_and(|name| name.snapshot().is_none());
        Ok(if is_name { name } else { NAMELESS.to_owned() })
    }

    fn fill(
        &self,
        datasets: &Arc<Datasets>,
        dataset: &str,
        cancelled: &AtomicBool,
        progress: &Progress,
        attempt: &str,
    ) -> Result<Vec<String>> {
        let pool = datasets.pool();
        outside::refer_to(pool, outside::Kind::Stream, &self.path)
            .and_then(|()| outside::attach(datasets, &self.path))
            .map_err(|error| CliError::failed(attempt, &error))?;
        let root = Name::parse(&self.pool).map_err(|error| CliError::failed(attempt, &error))?;
        datasets
            .set_properties(&root, &[("readonly".to_owned(), "on".to_owned())])
            .map_err(|error| CliError::failed(attempt, &error))?;
        let input = Input {
            file: File::open(&self.path).map_err(|error| CliError::failed(attempt, &error))?,
            progress,
            done: 0,
        };
        let notes = parking_lot::Mutex::new(Vec::new());
        let event = |event| {
            if let ReceiveEvent::Note(note) = event {
                notes.lock().push(note);
            }
        };
        let observer = Observer { event: &event, cancelled };
        let options = ReceiveOptions { by_reference: true, ..ReceiveOptions::default() };
        let target = format!("{}/{dataset}", self.pool);
        let received = datasets.receive(&target, input, &options, &observer);
        let received =
            received.map_err(|error| CliError::Failed(format!("{attempt}: {}", reason(&error))))?;
        let now = std::fs::metadata(&self.path).map(|metadata| Stamp::of(&metadata));
        if now.is_ok_and(|now| now != self.stamp) {
            return Err(CliError::Failed(format!("{attempt}: it changed meanwhile")));
        }
        pool.commit().map_err(|error| CliError::failed(attempt, &error))?;
        let mut notes = std::mem::take(&mut *notes.lock());
        if received.bytes < self.len {
            let more = self.len - received.bytes;
            notes.push(format!("{more} bytes after the end of the stream are ignored"));
        }
        Ok(notes)
    }
}

/// An index's stream, read for the first time.
struct Input<'a> {
    file: File,
    progress: &'a Progress,
    done: u64,
}

impl Read for Input<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buf)?;
        self.done += read as u64;
        self.progress.set(self.done);
        Ok(read)
    }
}

fn reason(error: &ReceiveError) -> String {
    match error {
        ReceiveError::Dataset(DatasetError::Interrupted) => "interrupted".to_owned(),
        other => chain(other),
    }
}

/// How to uncompress the file, if it is compressed.
fn compressed(file: &mut File) -> io::Result<Option<&'static str>> {
    const MAGICS: [(&[u8], &str); 5] = [
        (&[0x28, 0xb5, 0x2f, 0xfd], "zstd -d"),
        (&[0x1f, 0x8b], "gzip -d"),
        (&[0xfd, b'7', b'z', b'X', b'Z'], "xz -d"),
        (&[0x04, 0x22, 0x4d, 0x18], "lz4 -d"),
        (b"BZh", "bzip2 -d"),
    ];
    let mut head = Vec::new();
    file.take(8).read_to_end(&mut head)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(MAGICS.iter().find(|(magic, _)| head.starts_with(magic)).map(|(_, how)| *how))
}

fn note_path(indexes: &Path, pool: &str) -> PathBuf {
    indexes.join(format!("{pool}.file"))
}

fn unfinished(indexes: &Path, pool: &str) -> PathBuf {
    indexes.join(format!("{pool}.new"))
}

fn lock_note(path: &Path) -> io::Result<File> {
    loop {
        let note = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        flock(&note, FlockOperation::LockExclusive)?;
        // It may have been removed before we had the lock.
        let is_there = |found: Metadata| Ok::<_, io::Error>(found.ino() == note.metadata()?.ino());
        if std::fs::metadata(path).and_then(is_there).unwrap_or(false) {
            return Ok(note);
        }
    }
}

fn write_note(note: &mut File, file: &StreamFile) -> io::Result<()> {
    note.set_len(0)?;
    note.seek(SeekFrom::Start(0))?;
    note.write_all(file.stamp.line().as_bytes())?;
    note.write_all(file.path.as_os_str().as_bytes())
}

/// Whether the stream file of a note still exists unchanged.
fn is_current(note: &mut File) -> bool {
    let mut bytes = Vec::new();
    if note.take(16 << 10).read_to_end(&mut bytes).is_err() {
        return false;
    }
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else { return false };
    let path = PathBuf::from(std::ffi::OsString::from_vec(bytes.split_off(end + 1)));
    std::fs::metadata(path).is_ok_and(|metadata| Stamp::of(&metadata).line().as_bytes() == bytes)
}

/// Removes the indexes of files that no longer exist or have changed, indexes that were not used for long, and the
/// remains of interrupted ones. Indexes in use are kept. Failures are ignored until the next time.
fn evict(indexes: &Path, now: SystemTime) {
    let Ok(entries) = std::fs::read_dir(indexes) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(pool) = name.to_str().and_then(|name| name.strip_suffix(".file")) else { continue };
        if is_name(pool) {
            evict_one(indexes, pool, now);
        }
    }
}

fn evict_one(indexes: &Path, pool: &str, now: SystemTime) -> Option<()> {
    let path = note_path(indexes, pool);
    let mut note = File::open(&path).ok()?;
    // Another process is making it.
    flock(&note, FlockOperation::NonBlockingLockExclusive).ok()?;
    let _ = std::fs::remove_dir_all(unfinished(indexes, pool));
    let used = note.metadata().and_then(|metadata| metadata.modified()).ok()?;
    let is_old = now.duration_since(used).is_ok_and(|unused| unused > UNUSED_MAX);
    if !is_old && is_current(&mut note) {
        return None;
    }
    let place = indexes.join(pool);
    let store: Option<Box<dyn Store>> = match place.exists() {
        // Fails if it is mounted.
        true => Some(snowmelt_store::open(&Location::Directory(place.clone()), Access::ReadWrite).ok()?),
        false => None,
    };
    let _ = std::fs::remove_dir_all(&place);
    drop(store);
    let _ = std::fs::remove_file(path);
    Some(())
}
