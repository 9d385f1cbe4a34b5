//! A tree whose permissions are changed before they are sent (`outgoing chmod`).

use std::collections::BTreeMap;
use std::io;

use super::{Content, Metadata, Source};
use crate::chmod::Chmod;

/// A tree, with the changes of its permissions.
pub struct ChmodSource<'a> {
    /// The tree.
    pub source: &'a dyn Source,
    pub(crate) chmod: &'a Chmod,
}

impl ChmodSource<'_> {
    fn changed(&self, metadata: Metadata) -> Metadata {
        match metadata.is_symlink() {
            true => metadata,
            false => Metadata { mode: self.chmod.apply(metadata.mode, metadata.is_dir()), ..metadata },
        }
    }
}

impl Source for ChmodSource<'_> {
    fn metadata(&self, path: &[u8], follow: bool) -> io::Result<Metadata> {
        Ok(self.changed(self.source.metadata(path, follow)?))
    }

    fn read_dir(&self, path: &[u8]) -> io::Result<Vec<(Vec<u8>, io::Result<Metadata>)>> {
        let found = self.source.read_dir(path)?.into_iter();
        Ok(found.map(|(name, metadata)| (name, metadata.map(|it| self.changed(it)))).collect())
    }

    fn read_link(&self, path: &[u8]) -> io::Result<Vec<u8>> {
        self.source.read_link(path)
    }

    fn open(&self, path: &[u8], follow: bool) -> io::Result<Box<dyn Content>> {
        self.source.open(path, follow)
    }

    fn xattrs(&self, path: &[u8], follow: bool) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        self.source.xattrs(path, follow)
    }

    fn open_listed(&self, path: &[u8], listed: &Metadata, follow: bool) -> io::Result<Box<dyn Content>> {
        self.source.open_listed(path, listed, follow)
    }

    fn xattrs_listed(
        &self,
        path: &[u8],
        listed: &Metadata,
        follow: bool,
    ) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        self.source.xattrs_listed(path, listed, follow)
    }
}
