//! Walking a tree in the order of whole paths, as `sort` would put them.
//!
//! `a`, `a.txt`, `a/b`: a directory's own line comes where its name sorts, what is in it where its name with a "/"
//! sorts, with siblings in between. Only the entries of the directories on the way down are held in memory.

use crate::error::FsError;
use crate::paths::is_safe_name;
use snowmelt_zpl::{Attributes, FileKind, Filesystem, Objects};
use std::collections::HashSet;

/// A file, directory or other node on the way.
#[derive(Debug, Clone)]
pub struct Node {
    /// Relative to where the walk began, which is itself ".".
    pub path: Vec<u8>,
    /// Object number.
    pub object: u64,
    /// Its attributes.
    pub attributes: Attributes,
}

/// What a walk meets.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant)]
pub enum Event {
    /// A node, directories included: before its [`Event::Enter`], but for the start of the walk, which is told among
    /// what is in it.
    Node(Node),
    /// What follows is in this directory, until its [`Event::Leave`].
    Enter(Node),
    /// Everything below this directory has been told.
    Leave(Node),
}

/// One thing yet to be told of a directory being walked.
enum Pending {
    /// A name, which is the key, and its object.
    Entry(u64),
    Below(Node),
    Leave(Node),
    Itself(Node),
    Failed(FsError),
}

/// Walks a tree; never follows symbolic links, tells each directory once and ends whatever the tree looks like.
pub struct Walk<'f, O> {
    fs: &'f Filesystem<O>,
    /// A stack: of each directory on the way down, what is left to tell, the next one last.
    levels: Vec<Vec<(Vec<u8>, Pending)>>,
    /// Directories entered, so that one linked twice, or below itself, is not walked again.
    entered: HashSet<u64>,
}

/// Path of `name` in `directory`.
fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match directory {
        b"." => name.to_vec(),
        _ => [directory, b"/", name].concat(),
    }
}

impl<'f, O: Objects> Walk<'f, O> {
    /// A walk over all that is at and below `object`.
    ///
    /// # Errors
    /// When `object` itself cannot be read.
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

    /// Reads a directory's entries into a new level. The walk's own start is told among them, where "." sorts.
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
        // Last first, for popping; of equal names in a hostile directory, whichever.
        level.sort_unstable_by(|(a, _), (b, _)| b.cmp(a));
        level.insert(0, (Vec::new(), Pending::Leave(node.clone())));
        // Told at once, then what could be read.
        level.extend(failed.map(|error| (Vec::new(), Pending::Failed(error))));
        self.levels.push(level);
        Ok(())
    }

    /// Puts what is below a directory just told where it sorts among the siblings still to be told.
    fn put_below(&mut self, name: &[u8], node: Node) {
        let Some(level) = self.levels.last_mut() else { return };
        let key = [name, b"/"].concat();
        // The directory's own Leave, with an empty key, stays at the bottom.
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

    /// The next event. After an error the walk goes on with what else there is.
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
