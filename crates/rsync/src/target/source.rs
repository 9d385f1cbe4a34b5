//! A target as a source, to read the files of filter rules in it.

use std::collections::BTreeMap;
use std::io::{self, Cursor};

use rustix::io::Errno;

use super::{Found, Target};
use crate::source::{Content, Metadata, Source};

/// The longest file of rules that is read, in bytes.
const RULES_MAX: u64 = (4 << 20) + 1;

/// A target as a source.
pub(crate) struct AsSource<'a>(pub(crate) &'a dyn Target);

impl AsSource<'_> {
    fn find(&self, path: &[u8]) -> io::Result<Found> {
        Ok(self.0.stat(path)?.ok_or(Errno::NOENT)?)
    }
}

impl Source for AsSource<'_> {
    fn metadata(&self, path: &[u8], _follow: bool) -> io::Result<Metadata> {
        Ok(self.find(path)?.metadata)
    }

    fn read_dir(&self, path: &[u8]) -> io::Result<Vec<(Vec<u8>, io::Result<Metadata>)>> {
        let found = self.0.list(&self.find(path)?.node)?.into_iter();
        Ok(found.map(|(name, it)| (name, Ok(it.metadata))).collect())
    }

    fn read_link(&self, path: &[u8]) -> io::Result<Vec<u8>> {
        self.0.read_link(&self.find(path)?.node)
    }

    fn open(&self, path: &[u8], _follow: bool) -> io::Result<Box<dyn Content>> {
        let it = self.find(path)?;
        if !it.is_file() {
            return Err(Errno::INVAL.into());
        }
        let mut text = vec![0; usize::try_from(it.metadata.size.min(RULES_MAX)).unwrap_or(0)];
        let len = self.0.read(&it.node, 0, &mut text)?;
        text.truncate(len);
        Ok(Box::new(Cursor::new(text)))
    }

    fn xattrs(&self, path: &[u8], _follow: bool) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        self.0.xattrs(&self.find(path)?.node)
    }
}
