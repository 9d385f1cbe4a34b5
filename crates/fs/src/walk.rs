//! Walking through a tree in the order of full paths, as `sort` would list them.
//!
//! For example: `a`, `a.txt`, `a/b`. A directory is at the position of its name. Its entries are at the position of its
//! name followed by "/", so siblings may be between. Only the entries of the directories on the current path are held
//! in memory.

use crate::error::FsError;
use crate::paths::is_safe_name;
use snowmelt_zpl::{Attributes, FileKind, Filesystem, Objects};
use std::collections::HashSet;

/// A file, directory or other node of a walk.
#[derive(Debug, Clone)]
pub struct Node {
    /// Path relative to the start of the walk, which is ".".
    pub path: Vec<u8>,
    /// Object number.
    pub object: u64,
    /// Its attributes.
    pub attributes: Attributes,
}

/// An event of a walk.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant)]
pub enum Event {
    /// A node, including directories. A directory comes before its [`Event::Enter`]. The start of the walk is an
    /// exception: it comes among its own entries.
    Node(Node),
    /// Begins the entries of this directory. They end with its [`Event::Leave`].
    Enter(Node),
    /// Ends the entries of this directory.
    Leave(Node),
}

/// An item of a directory that was not returned yet.
enum Pending {
    /// A name (the key) and its object.
    Entry(u64),
    Below(Node),
    Leave(Node),
    Itself(Node),
    Failed(FsError),
}

/// Walks through a tree. It never follows symbolic links and visits each directory once, so that it ends for any tree.
pub struct Walk<'f, O> {
    fs: &'f Filesystem<O>,
    /// A stack of the directories on the current path. Each level contains the remaining items, with the next one last.
    levels: Vec<Vec<(Vec<u8>, Pending)>>,
    /// Directories that were entered, so that one with two names, or below itself, is not walked again.
    entered: HashSet<u64>,
}

/// The path of `name` in `directory`.
fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match directory {
        b"." => name.to_vec(),
        _ => [directory, b"/", name].concat(),
    }
}

impl<'f, O: Objects> Walk<'f, O> {
    /// A walk through `object` and everything below it.
    ///
    /// # Errors
    /// If `object` itself cannot be read.
    pub fn new(fs: &'f Filesystem<O>, object: u64) -> Result<Self, FsError> {
        let attributes = fs.attributes(object).map_err(FsError::zpl(b"."))?;
        let start = Node { path: b".".to_vec(), object, attributes };
        let is_directory = start.attributes.kind() == FileKind::Directory;
        let mut top = Vec::new();
        if is_directory {
            fs.objects().prefetch_tree(object);
            top.push((Vec::new(), Pending::Below(start)));
        } else {
            top.push((Vec::new(), Pending::Itself(start)));
        }
        Ok(Self { fs, levels: vec![top], entered: HashSet::new() })
    }

    /// Reads a directory's entries into a new level. The start of the walk is added to its own entries, at the position
    /// of ".".
    fn enter(&mut self, node: &Node) -> Result<(), FsError> {
        if !self.entered.insert(node.object) {
            return Err(FsError::DirectoryTwice { path: node.path.clone(), object: node.object });
        }
        let directory = self.fs.read_dir(node.object).map_err(FsError::zpl(&node.path))?;
        let mut level = Vec::new();
        let mut failed = None;
        for entry in directory.all() {
            match entry {
                Ok(entry) => level.push((entry.name, Pending::Entry(entry.object))),
                Err(error) => failed = Some(FsError::zpl(&node.path)(error)),
            }
        }
        if node.path == b"." {
            level.push((b".".to_vec(), Pending::Itself(node.clone())));
        }
        // In descending order, for popping. The order of equal names in a hostile directory does not matter.
        level.sort_unstable_by(|(a, _), (b, _)| b.cmp(a));
        level.insert(0, (Vec::new(), Pending::Leave(node.clone())));
        // The failure is returned first, then the entries that could be read.
        level.extend(failed.map(|error| (Vec::new(), Pending::Failed(error))));
        self.levels.push(level);
        Ok(())
    }

    /// Inserts the content of a directory that was just returned at its position among the remaining siblings.
    fn put_below(&mut self, name: &[u8], node: Node) {
        let Some(level) = self.levels.last_mut() else { return };
        let key = [name, b"/"].concat();
        // The directory's own Leave has an empty key and stays at the bottom.
        let at =
            level.partition_point(|(other, pending)| matches!(pending, Pending::Leave(_)) || *other > key);
        level.insert(at, (key, Pending::Below(node)));
    }

    fn visit(&mut self, name: &[u8], object: u64) -> Result<Event, FsError> {
        let directory = match self.levels.last().and_then(|level| level.first()) {
            Some((_, Pending::Leave(node))) => node.path.clone(),
            _ => b".".to_vec(),
        };
        if !is_safe_name(name) {
            return Err(FsError::BadName { path: directory, name: name.to_vec() });
        }
        let path = join(&directory, name);
        let attributes = self.fs.attributes(object).map_err(FsError::zpl(&path))?;
        let node = Node { path, object, attributes };
        if node.attributes.kind() == FileKind::Directory {
            self.put_below(name, node.clone());
        }
        Ok(Event::Node(node))
    }
}

impl<O: Objects> Iterator for Walk<'_, O> {
    type Item = Result<Event, FsError>;

    /// The next event. After an error, the walk continues with the remaining items.
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Some((key, pending)) = self.levels.last_mut()?.pop() else {
                self.levels.pop();
                continue;
            };
            return Some(match pending {
                Pending::Entry(object) => self.visit(&key, object),
                Pending::Failed(error) => Err(error),
                Pending::Itself(node) => Ok(Event::Node(node)),
                Pending::Leave(node) => Ok(Event::Leave(node)),
                Pending::Below(node) => self.enter(&node).map(|()| Event::Enter(node)),
            });
        }
    }
}
