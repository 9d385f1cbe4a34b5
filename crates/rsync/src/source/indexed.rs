//! A directory of this machine as its index describes it. Only the content of files is read from the directory itself.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;

use super::directory::Links;
use super::{Content, DirectorySource, Metadata, Source};
use crate::index::{Index, IndexError, Record, Special};

/// The most symbolic links that are followed in a path, as in Linux.
const LINKS_MAX: usize = 40;

/// An index, and the tree that it describes.
#[derive(Debug)]
pub struct IndexedSource {
    index: Arc<Index>,
    path: PathBuf,
    /// Opened when content is first read. Before that, the tree is not accessed.
    tree: OnceLock<DirectorySource>,
}

fn failure(error: IndexError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl IndexedSource {
    /// A source with the files of an index, and with their content in a directory.
    pub fn new(index: Arc<Index>, path: impl Into<PathBuf>) -> Self {
        Self { index, path: path.into(), tree: OnceLock::new() }
    }

    fn tree(&self) -> io::Result<&DirectorySource> {
        if let Some(tree) = self.tree.get() {
            return Ok(tree);
        }
        let opened = DirectorySource::open(&self.path)?;
        Ok(self.tree.get_or_init(|| opened))
    }

    fn child(&self, directory: &Record, name: &[u8]) -> io::Result<Record> {
        let number = directory.directory().ok_or(Errno::NOTDIR)?;
        let listing = self.index.listing(number).map_err(failure)?.ok_or(Errno::NOENT)?;
        if listing.failure != 0 {
            return Err(io::Error::from_raw_os_error(listing.failure.cast_signed()));
        }
        Ok(listing.find(name).map_err(failure)?.ok_or(Errno::NOENT)?)
    }

    /// The record at a path, and the path to it without symbolic links. As in a `chroot`, ".." and absolute targets end
    /// at the root.
    fn resolve(&self, path: &[u8], follow: bool) -> io::Result<(Record, Vec<u8>)> {
        let root = self.index.root();
        let mut way: Vec<Record> = Vec::new();
        let mut left: Vec<Vec<u8>> = path.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec).collect();
        let mut links = 0;
        while let Some(name) = left.pop() {
            match name.as_slice() {
                b"" | b"." => continue,
                b".." => {
                    way.pop();
                    continue;
                }
                _ => {}
            }
            let next = self.child(way.last().unwrap_or(root), &name)?;
            let is_on_the_way = follow || left.iter().any(|name| !name.is_empty());
            match &next.special {
                Special::Target(target) if is_on_the_way => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(Errno::LOOP.into());
                    }
                    if target.starts_with(b"/") {
                        way.clear();
                    }
                    left.extend(target.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec));
                }
                _ => way.push(next),
            }
        }
        let path = way.iter().map(|record| record.name.as_slice()).collect::<Vec<_>>().join(&b'/');
        Ok((way.pop().unwrap_or_else(|| root.clone()), path))
    }
}

impl Source for IndexedSource {
    fn metadata(&self, path: &[u8], follow: bool) -> io::Result<Metadata> {
        self.resolve(path, follow).map(|(record, _)| record.metadata)
    }

    fn read_dir(&self, path: &[u8]) -> io::Result<Vec<(Vec<u8>, io::Result<Metadata>)>> {
        let (record, _) = self.resolve(path, true)?;
        let number = record.directory().ok_or(Errno::NOTDIR)?;
        let listing = self.index.listing(number).map_err(failure)?.ok_or(Errno::NOENT)?;
        if listing.failure != 0 {
            return Err(io::Error::from_raw_os_error(listing.failure.cast_signed()));
        }
        let mut found = Vec::with_capacity(listing.count as usize);
        let mut records = listing.records();
        while let Some(fields) = records.next().map_err(failure)? {
            found.push((records.name().to_vec(), Ok(fields.metadata)));
        }
        Ok(found)
    }

    fn read_link(&self, path: &[u8]) -> io::Result<Vec<u8>> {
        match self.resolve(path, false)?.0.special {
            Special::Target(target) => Ok(target),
            _ => Err(Errno::INVAL.into()),
        }
    }

    fn open(&self, path: &[u8], follow: bool) -> io::Result<Box<dyn Content>> {
        let (record, path) = self.resolve(path, follow)?;
        if !record.metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        self.tree()?.open_known(&path, &record.metadata, Links::None)
    }

    fn xattrs(&self, path: &[u8], follow: bool) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let (record, _) = self.resolve(path, follow)?;
        record.xattrs.map_or(Ok(BTreeMap::new()), |number| self.index.xattrs(number).map_err(failure))
    }
}
