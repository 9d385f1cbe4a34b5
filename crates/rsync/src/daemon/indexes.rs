//! The indexes of modules. Each is in memory once for all clients, and is read again when its file was replaced.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::identity::Identity;
use crate::index::{Index, IndexError};

/// An index as it was last read.
#[derive(Debug, Default)]
struct Slot {
    /// The identity of the file that was last read, or that could not be read.
    identity: Option<Identity>,
    index: Option<Arc<Index>>,
    /// That file, open. It keeps its path in the kernel's cache, so that checking whether it is still there reads
    /// nothing from a disk.
    _file: Option<File>,
}

/// The indexes of a daemon, by the paths of their files.
#[derive(Debug, Default)]
pub struct Indexes(Mutex<HashMap<PathBuf, Arc<Mutex<Slot>>>>);

impl Indexes {
    /// The present index at a path. If a new file there is invalid, the previous index is returned, and `say` is called
    /// with the error once.
    ///
    /// # Errors
    /// When there is no valid index, and was none before.
    pub fn get(&self, path: &Path, say: impl Fn(&IndexError)) -> Result<Arc<Index>, IndexError> {
        let slot = self.0.lock().entry(path.to_owned()).or_default().clone();
        // The lock is held while the file is read, so that other clients wait instead of reading it too.
        let mut slot = slot.lock();
        let found = Identity::at(path);
        if let Some(index) = &slot.index
            && found.is_some()
            && slot.identity == found
        {
            return Ok(index.clone());
        }
        let opened = Index::open(path);
        let identity = opened.as_ref().ok().and_then(|file| Some(Identity::of(&file.metadata().ok()?)));
        let loaded = opened.and_then(|file| Ok((Index::read(&file, path)?, file)));
        let is_news = slot.identity != identity;
        match (loaded, &slot.index) {
            (Ok((index, file)), _) => {
                let index = Arc::new(index);
                *slot = Slot { identity, index: Some(index.clone()), _file: Some(file) };
                Ok(index)
            }
            (Err(error), Some(before)) => {
                let before = before.clone();
                if is_news {
                    say(&error);
                }
                slot.identity = identity;
                Ok(before)
            }
            (Err(error), None) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::{Replacement, scan};
    use crate::source::Time;

    fn make(tree: &Path, file: &Path) {
        let (builder, unread) = scan(tree, 2).unwrap();
        assert!(unread.is_empty());
        Replacement::begin(file).unwrap().commit(&builder.finish(Time::default()).unwrap()).unwrap();
    }

    #[test]
    fn one_copy_is_shared_until_another_file_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, file) = (dir.path().join("tree"), dir.path().join("index"));
        std::fs::create_dir(&tree).unwrap();
        let indexes = Indexes::default();
        let said = std::cell::RefCell::new(Vec::new());
        let get = || indexes.get(&file, |error| said.borrow_mut().push(error.to_string()));
        assert!(matches!(get(), Err(IndexError::Io { .. })));
        make(&tree, &file);
        let (first, again) = (get().unwrap(), get().unwrap());
        assert!(Arc::ptr_eq(&first, &again) && first.files() == 0);
        std::fs::write(tree.join("a"), b"x").unwrap();
        make(&tree, &file);
        let second = get().unwrap();
        assert_eq!((first.files(), second.files()), (0, 1));
        // A damaged file does not replace an index, and is reported once.
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[100] ^= 1;
        Replacement::begin(&file).unwrap().commit(&bytes).unwrap();
        assert!(Arc::ptr_eq(&get().unwrap(), &second) && Arc::ptr_eq(&get().unwrap(), &second));
        std::fs::remove_file(&file).unwrap();
        assert!(Arc::ptr_eq(&get().unwrap(), &second) && Arc::ptr_eq(&get().unwrap(), &second));
        let said = said.borrow();
        assert!(
            said.len() == 2 && said[0].contains("damaged") && said[1].contains("No such file"),
            "{said:?}"
        );
    }
}
