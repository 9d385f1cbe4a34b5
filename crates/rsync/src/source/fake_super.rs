//! A directory as a source, with the attributes that `fake super` stored in extended attributes.

pub(crate) mod values;

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::Arc;

use rustix::io::Errno;

use self::values::STAT;
use super::{Content, Metadata, Source};

/// The longest target of a link, in bytes.
const TARGET_MAX: u64 = 4095;

/// A source that shows the stored attributes of files instead of their real ones.
pub struct FakeSuperSource {
    real: Arc<dyn Source>,
}

impl FakeSuperSource {
    /// A source of this directory.
    pub fn new(real: Arc<dyn Source>) -> Self {
        Self { real }
    }

    fn shown(&self, path: &[u8], real: Metadata, follow: bool) -> io::Result<Metadata> {
        if !real.is_file() && !real.is_dir() {
            return Ok(real);
        }
        let xattrs = self.real.xattrs(path, follow)?;
        values::shown(real, xattrs.get(STAT).map(Vec::as_slice))
    }
}

impl Source for FakeSuperSource {
    fn metadata(&self, path: &[u8], follow: bool) -> io::Result<Metadata> {
        let real = self.real.metadata(path, follow)?;
        let shown = self.shown(path, real, follow)?;
        // The file stands for a link, which is not followed.
        if follow && shown.is_symlink() { Err(Errno::NOENT.into()) } else { Ok(shown) }
    }

    fn read_dir(&self, path: &[u8]) -> io::Result<Vec<(Vec<u8>, io::Result<Metadata>)>> {
        let found = self.real.read_dir(path)?.into_iter();
        let shown = |name: Vec<u8>, real: io::Result<Metadata>| {
            let below = if path.is_empty() { name.clone() } else { [path, b"/", &name].concat() };
            let shown = real.and_then(|real| self.shown(&below, real, false));
            (name, shown)
        };
        Ok(found.map(|(name, real)| shown(name, real)).collect())
    }

    fn read_link(&self, path: &[u8]) -> io::Result<Vec<u8>> {
        let real = self.real.metadata(path, false)?;
        if !real.is_file() {
            return self.real.read_link(path);
        }
        if !self.shown(path, real, false)?.is_symlink() {
            return Err(Errno::INVAL.into());
        }
        let mut target = Vec::new();
        self.real.open(path, false)?.take(TARGET_MAX).read_to_end(&mut target)?;
        match target.is_empty() || target.contains(&0) {
            true => Err(Errno::INVAL.into()),
            false => Ok(target),
        }
    }

    fn open(&self, path: &[u8], follow: bool) -> io::Result<Box<dyn Content>> {
        self.real.open(path, follow)
    }

    fn xattrs(&self, path: &[u8], follow: bool) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let shown = self.metadata(path, follow)?;
        Ok(values::outward(self.real.xattrs(path, follow)?, &shown))
    }

    fn open_listed(&self, path: &[u8], listed: &Metadata, follow: bool) -> io::Result<Box<dyn Content>> {
        self.real.open_listed(path, listed, follow)
    }
}
