//! A file with a stream.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use snowmelt_fs::beneath::Directory;
use snowmelt_stream::reader::Reader;
use snowmelt_stream::record::{RECORD_LEN, Record};

use super::Watcher;
use crate::end::Source;
use crate::error::{Failure, FailureKind};
use crate::request::Holding;

/// Bytes copied at once.
const COPY_BUFFER: usize = 256 * 1024;
/// This number of records identifies the stream of a snapshot.
const LOOKED_AT: usize = 3;
/// `DRR_END` of `include/sys/zfs_ioctl.h`.
const END: u32 = 5;
/// Maximum number of bytes of a file's name in the name of its replacement: a longer name could exceed the limit.
const BASE_MAX: usize = 200;

/// Replaces a file atomically by one with this stream, and returns the number of bytes. The directory is opened
/// first. All later operations use this descriptor, not the path.
pub(super) fn replace(
    path: &Path,
    source: Box<dyn Source>,
    watcher: &mut dyn Watcher,
) -> Result<u64, Failure> {
    let local = |error: io::Error| Failure::other(format!("{}: {error}", path.display()));
    let place = Directory::around(path).map_err(local)?;
    let (directory, base) = (&place.directory, place.name.as_slice());
    let base = base.get(..BASE_MAX).unwrap_or(base);
    let temporary = [b".", base, format!(".snowmelt-new-{}", std::process::id()).as_bytes()].concat();
    let nameless = nameless(directory);
    let is_nameless = nameless.is_some();
    let named = || new_file(directory, &temporary);
    let mut out = nameless.map_or_else(named, Ok).map_err(local)?;
    let done = copy(source, &mut out, watcher).and_then(|written| {
        out.sync_all().map_err(local)?;
        if is_nameless {
            name(&out, directory, &temporary).map_err(local)?;
        }
        directory.rename(&temporary, &place.name).map_err(local)?;
        directory.sync().map_err(local)?;
        Ok(written)
    });
    if done.is_err() {
        // No other process knows it.
        let _ = directory.unlink(&temporary);
    }
    done
}

/// A file without a name, which is removed when the process ends in any way. `None` if the filesystem does not
/// support such files.
fn nameless(directory: &Directory) -> Option<File> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    rustix::fs::openat(directory, ".", flags, Mode::from_raw_mode(0o666)).ok().map(File::from)
}

/// A file that was not there.
fn new_file(directory: &Directory, name: &[u8]) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(0o666))?.into())
}

/// Gives a file without a name one.
fn name(file: &File, directory: &Directory, name: &[u8]) -> io::Result<()> {
    let opened = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    Ok(rustix::fs::linkat(CWD, opened, directory, name, AtFlags::SYMLINK_FOLLOW)?)
}

/// Copies a stream as a whole; gives its bytes.
///
/// # Errors
/// When the stream is cut off or `out` cannot be written.
pub fn copy(
    mut source: Box<dyn Source>,
    out: &mut dyn Write,
    watcher: &mut dyn Watcher,
) -> Result<u64, Failure> {
    let mut buf = vec![0; COPY_BUFFER];
    let mut written = 0;
    let broken = loop {
        if watcher.is_cancelled() {
            return Err(Failure::new(FailureKind::Interrupted, "interrupted"));
        }
        let len = match source.read(&mut buf) {
            Ok(0) => break None,
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => break Some(error),
        };
        watcher.pass(len);
        out.write_all(buf.get(..len).unwrap_or_default())
            .map_err(|error| Failure::other(format!("cannot write the stream: {error}")))?;
        written += len as u64;
        watcher.at(written);
    };
    source.finish()?;
    match broken {
        None => Ok(written),
        Some(error) => Err(Failure::lost(error.to_string())),
    }
}

/// The snapshot of the stream in a file, by its first and last records.
pub(super) fn held(path: &Path) -> Option<Holding> {
    let file = File::open(path).ok()?;
    let len = file.metadata().ok()?.len();
    let mut last = [0; 4];
    let end = len.checked_sub(RECORD_LEN as u64)?;
    if file.read_exact_at(&mut last, end).is_err() || u32::from_le_bytes(last) != END {
        return None;
    }
    let mut reader = Reader::new(io::BufReader::new(file));
    let mut payload = Vec::new();
    for _ in 0..LOOKED_AT {
        let found = reader.next(&mut payload).ok()??;
        if let Record::Begin(begin) = found.record
            && begin.to_guid != 0
        {
            return Some(Holding { guid: begin.to_guid, name: String::new() });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    /// A stream that records the contents of the directory while it is read.
    struct Looking {
        directory: PathBuf,
        pieces: usize,
        seen: Arc<Mutex<Vec<usize>>>,
        end: Result<(), Failure>,
    }

    impl Read for Looking {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            self.seen.lock().push(std::fs::read_dir(&self.directory)?.count());
            if self.pieces == 0 {
                return Ok(0);
            }
            self.pieces -= 1;
            buf[..4].copy_from_slice(b"data");
            Ok(4)
        }
    }

    impl Source for Looking {
        fn finish(self: Box<Self>) -> Result<(), Failure> {
            self.end
        }
    }

    struct Silent;

    impl Watcher for Silent {
        fn failure(&mut self, what: &str) {
            panic!("{what}");
        }
        fn is_cancelled(&self) -> bool {
            false
        }
    }

    #[test]
    fn nothing_half_done_shows() {
        let dir = tempfile::tempdir().unwrap();
        // As long as names can be.
        let path = dir.path().join("s".repeat(255));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let source = |end| {
            let (directory, seen) = (dir.path().to_owned(), seen.clone());
            Box::new(Looking { directory, pieces: 3, seen, end })
        };
        let cut = replace(&path, source(Err(Failure::lost("cut"))), &mut Silent);
        assert!(cut.is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(replace(&path, source(Ok(())), &mut Silent).unwrap(), 12);
        assert_eq!(replace(&path, source(Ok(())), &mut Silent).unwrap(), 12);
        assert_eq!(std::fs::read(&path).unwrap(), b"datadatadata");
        // A killed process leaves no file behind, if the filesystem supports files without names.
        if nameless(&Directory::named(dir.path()).unwrap()).is_some() {
            assert_eq!(*seen.lock(), [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1]);
        }
    }
}
