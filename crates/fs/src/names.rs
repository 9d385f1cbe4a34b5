//! Finding the paths of objects.
//!
//! A file records its parent but not its name, so the entries of the parent are searched. The names of a searched
//! directory are kept for further files, up to a limit.

use snowmelt_zpl::{
    Attributes, FileKind, Filesystem, Objects, ZfsFlags, ZplError, zap::Cursor, zap::Matching, zap::Zap,
};
use std::collections::HashMap;
use std::ops::Deref;

/// Maximum number of names kept in memory. A name needs about 100 bytes.
const KEPT_MAX: usize = 500_000;
/// Maximum depth of a path. Real trees are less deep.
const DEPTH_MAX: usize = 65_536;

/// Finds the paths of a filesystem's objects.
pub(crate) struct Names<F> {
    pub(crate) fs: F,
    /// The names of each searched directory, by object number.
    directories: HashMap<u64, HashMap<u64, Vec<u8>>>,
    kept: usize,
}

impl<F, O> Names<F>
where
    F: Deref<Target = Filesystem<O>>,
    O: Objects,
{
    pub(crate) fn new(fs: F) -> Self {
        Self { fs, directories: HashMap::new(), kept: 0 }
    }

    /// Whether the object was removed but is still open. Then its number, in hexadecimal, is a name in the delete
    /// queue.
    pub(crate) fn is_deleted(&self, object: u64) -> Result<bool, ZplError> {
        let Some(queue) = self.fs.delete_queue() else { return Ok(false) };
        let name = format!("{object:x}");
        Ok(Zap::open(self.fs.objects(), queue)?.lookup(name.as_bytes(), Matching::Exact)?.is_some())
    }

    /// The path from the root, with a leading "/". `None` if a name or directory of the path does not exist.
    pub(crate) fn path(&mut self, attributes: &Attributes) -> Result<Option<Vec<u8>>, ZplError> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut here = attributes.clone();
        while here.parent != here.object {
            if names.len() >= DEPTH_MAX {
                let what = format!("more than {DEPTH_MAX} directories above it");
                return Err(ZplError::Corrupt { object: attributes.object, what });
            }
            let parent = match self.fs.attributes(here.parent) {
                Ok(parent) => parent,
                Err(ZplError::NoObject { .. }) => return Ok(None),
                Err(error) => return Err(error),
            };
            let xattr_directory = here.kind() == FileKind::Directory && here.flags.contains(ZfsFlags::XATTR);
            names.push(match xattr_directory {
                true => b"<xattrdir>".to_vec(),
                // After its last name in a directory was removed, a file still records that parent.
                false if parent.kind() != FileKind::Directory => return Ok(None),
                false => match self.name(parent.object, here.object)? {
                    Some(name) => name,
                    None => return Ok(None),
                },
            });
            here = parent;
        }
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        Ok(Some(path))
    }

    /// The first name of `object` in `directory`, in the directory's own order.
    fn name(&mut self, directory: u64, object: u64) -> Result<Option<Vec<u8>>, ZplError> {
        if let Some(names) = self.directories.get(&directory) {
            return Ok(names.get(&object).cloned());
        }
        let mut names = HashMap::new();
        let mut found = None;
        let mut complete = true;
        for entry in self.fs.read_dir(directory)?.from(Cursor::START) {
            let entry = entry?;
            if entry.object == object && found.is_none() {
                found = Some(entry.name.clone());
            }
            match names.len() < KEPT_MAX {
                true => _ = names.entry(entry.object).or_insert(entry.name),
                false => complete = false,
            }
            if found.is_some() && !complete {
                break;
            }
        }
        if complete {
            if self.kept + names.len() > KEPT_MAX {
                self.directories.clear();
                self.kept = 0;
            }
            self.kept += names.len();
            self.directories.insert(directory, names);
        }
        Ok(found)
    }
}
