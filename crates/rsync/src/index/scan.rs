//! Makes an index of a whole tree, with several threads that share the directories.

use std::io;
use std::path::Path;

use parking_lot::{Condvar, Mutex};

use super::IndexError;
use super::builder::{Builder, Seen};
use super::tree::Tree;

/// A directory that could not be listed. Clients learn of it, and delete nothing of theirs in it.
#[derive(Debug)]
pub struct Unread {
    /// The path below the root directory.
    pub path: Vec<u8>,
    /// The error of the system.
    pub error: io::Error,
}

/// A directory to list: its number and path.
pub(super) type Place = (u32, Vec<u8>);

/// Reads a whole tree with this number of threads. Also returns the directories that could not be listed.
///
/// # Errors
/// When the root directory does not exist, or the tree is too large.
pub fn scan(root: &Path, threads: usize) -> Result<(Builder, Vec<Unread>), IndexError> {
    let tree = Tree::open(root)?;
    let work = Work {
        builder: Mutex::new(Builder::new(tree.root()?)),
        queue: Mutex::new(Queue { left: vec![(super::ROOT, Vec::new())], busy: 0, failure: None }),
        ready: Condvar::new(),
        unread: Mutex::default(),
    };
    std::thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(|| work.run(&tree))));
        work.run(&tree);
    });
    match work.queue.into_inner().failure {
        Some(failure) => Err(failure),
        None => Ok((work.builder.into_inner(), work.unread.into_inner())),
    }
}

struct Queue {
    left: Vec<Place>,
    /// The number of threads that may still find directories.
    busy: usize,
    failure: Option<IndexError>,
}

/// The state that the threads share. A thread holds one lock at a time.
struct Work {
    builder: Mutex<Builder>,
    queue: Mutex<Queue>,
    ready: Condvar,
    unread: Mutex<Vec<Unread>>,
}

impl Work {
    fn next(&self) -> Option<Place> {
        let mut queue = self.queue.lock();
        loop {
            if queue.failure.is_some() {
                return None;
            }
            if let Some(place) = queue.left.pop() {
                queue.busy += 1;
                return Some(place);
            }
            if queue.busy == 0 {
                return None;
            }
            self.ready.wait(&mut queue);
        }
    }

    fn run(&self, tree: &Tree) {
        while let Some((number, path)) = self.next() {
            let seen = tree.list(&path);
            let mut unread = Vec::new();
            let placed = place(&mut self.builder.lock(), (number, path), seen, &mut unread);
            self.unread.lock().extend(unread);
            let mut queue = self.queue.lock();
            queue.busy -= 1;
            match placed {
                Ok(below) => queue.left.extend(below),
                Err(failure) => queue.failure = Some(failure),
            }
            self.ready.notify_all();
        }
    }
}

/// Replaces the listing of a directory with what was read. Returns the directories in it that are new or have a
/// different modification time. They must be read next.
pub(super) fn place(
    builder: &mut Builder,
    (number, path): Place,
    seen: io::Result<Vec<Seen>>,
    unread: &mut Vec<Unread>,
) -> Result<Vec<Place>, IndexError> {
    // Other records take much more memory than in the index.
    let before =
        builder.listing(number)?.map_or(Ok(Vec::new()), |listing| listing.records().directories())?;
    let seen = match seen {
        Ok(seen) => seen,
        Err(error) => {
            for gone in before.iter().filter_map(super::Record::directory) {
                builder.remove(gone)?;
            }
            let errno = error.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error());
            builder.set_failure(number, errno.cast_unsigned());
            unread.push(Unread { path, error });
            return Ok(Vec::new());
        }
    };
    let (mut records, mut next) = (Vec::with_capacity(seen.len()), Vec::new());
    let mut kept = std::collections::HashSet::new();
    for file in seen {
        if !file.record.metadata.is_dir() {
            records.push(builder.record(file, None));
            continue;
        }
        let old =
            before.binary_search_by(|old| old.name.cmp(&file.record.name)).ok().and_then(|at| before.get(at));
        let old = old.and_then(|old| old.directory().map(|number| (number, old.metadata.mtime)));
        let below = match old {
            Some((number, _)) => number,
            None => builder.allocate()?,
        };
        kept.insert(below);
        if old.is_none_or(|(_, mtime)| mtime != file.record.metadata.mtime) {
            next.push((below, super::join(&path, &file.record.name)));
        }
        records.push(builder.record(file, Some(below)));
    }
    for gone in before.iter().filter_map(super::Record::directory).filter(|number| !kept.contains(number)) {
        builder.remove(gone)?;
    }
    builder.set_listing(number, records)?;
    Ok(next)
}
