//! A tree without the files that a user cannot read, according to their permissions (`ignore nonreadable`).

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use rustix::io::Errno;

use super::{Content, Metadata, Source};

/// A tree without the files that a user cannot read. Symbolic links are always there. The permissions are those in the
/// metadata, so that nothing is opened. Named entries of ACLs are ignored.
pub struct ReadableSource {
    inner: Arc<dyn Source>,
    uid: u32,
    gids: Vec<u32>,
}

impl ReadableSource {
    /// The tree for a user with these groups.
    pub fn new(inner: Arc<dyn Source>, uid: u32, gids: Vec<u32>) -> Self {
        Self { inner, uid, gids }
    }

    /// The tree for the user of this thread.
    ///
    /// # Errors
    /// When the system does not return its groups.
    pub fn of_this_thread(inner: Arc<dyn Source>) -> io::Result<Self> {
        let groups = rustix::process::getgroups()?;
        let gids = groups.into_iter().chain([rustix::process::getegid()]).map(|gid| gid.as_raw());
        Ok(Self::new(inner, rustix::process::geteuid().as_raw(), gids.collect()))
    }

    fn can_read(&self, it: &Metadata) -> bool {
        let bit = match () {
            () if self.uid == 0 || it.is_symlink() => return true,
            () if it.uid == self.uid => 0o400,
            () if self.gids.contains(&it.gid) => 0o040,
            () => 0o004,
        };
        it.mode & bit != 0
    }
}

impl Source for ReadableSource {
    fn metadata(&self, path: &[u8], follow: bool) -> io::Result<Metadata> {
        let found = self.inner.metadata(path, follow)?;
        // The root is always there. If it is not readable, that is reported when it is listed.
        if path.is_empty() || self.can_read(&found) { Ok(found) } else { Err(Errno::NOENT.into()) }
    }

    fn read_dir(&self, path: &[u8]) -> io::Result<Vec<(Vec<u8>, io::Result<Metadata>)>> {
        let mut found = self.inner.read_dir(path)?;
        found.retain(|(_, metadata)| metadata.as_ref().map_or(true, |metadata| self.can_read(metadata)));
        Ok(found)
    }

    fn read_link(&self, path: &[u8]) -> io::Result<Vec<u8>> {
        self.inner.read_link(path)
    }

    fn open(&self, path: &[u8], follow: bool) -> io::Result<Box<dyn Content>> {
        self.inner.open(path, follow)
    }

    fn xattrs(&self, path: &[u8], follow: bool) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        self.inner.xattrs(path, follow)
    }

    fn open_listed(&self, path: &[u8], listed: &Metadata, follow: bool) -> io::Result<Box<dyn Content>> {
        self.inner.open_listed(path, listed, follow)
    }

    fn xattrs_listed(
        &self,
        path: &[u8],
        listed: &Metadata,
        follow: bool,
    ) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        self.inner.xattrs_listed(path, listed, follow)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;
    use crate::source::DirectorySource;

    #[test]
    fn what_may_not_be_read_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        for (name, mode) in [("all", 0o644), ("group", 0o040), ("owner", 0o400), ("none", 0o333)] {
            fs::write(dir.path().join(name), name).unwrap();
            fs::set_permissions(dir.path().join(name), PermissionsExt::from_mode(mode)).unwrap();
        }
        symlink("none", dir.path().join("link")).unwrap();
        let it = fs::metadata(dir.path()).unwrap();
        let (uid, gid) = (it.uid(), it.gid());
        let names = |user: u32, gids: Vec<u32>| {
            let inner = Arc::new(DirectorySource::open(dir.path()).unwrap());
            let source = ReadableSource::new(inner, user, gids);
            assert!(source.metadata(b"", false).is_ok());
            assert_eq!(source.metadata(b"none", false).is_ok(), user == 0);
            let names =
                source.read_dir(b"").unwrap().into_iter().map(|(name, _)| String::from_utf8(name).unwrap());
            let mut names: Vec<_> = names.collect();
            names.sort();
            names.join(" ")
        };
        assert_eq!(names(uid + 1, vec![gid + 1]), "all link");
        assert_eq!(names(uid + 1, vec![gid + 1, gid]), "all group link");
        if uid != 0 {
            assert_eq!(names(uid, vec![gid]), "all link owner");
        }
        assert_eq!(names(0, vec![]), "all group link none owner");
    }
}
