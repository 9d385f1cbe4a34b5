//! Several trees as one source, each at its own path.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use rustix::io::Errno;

use super::{Content, Metadata, Source, Time, kind};

/// Permissions of the parent directories of a tree.
const WAY_MODE: u32 = 0o755;

/// Trees at paths like `tank/home@monday`, with their parent directories, which have nothing else in them. Links do not
/// lead from one tree to another.
#[derive(Clone, Default)]
pub struct NamedTrees {
    trees: Vec<(Vec<u8>, Arc<dyn Source>)>,
}

/// The rest of a path after a name. `None` if the path is not below the name.
fn below<'p>(name: &[u8], path: &'p [u8]) -> Option<&'p [u8]> {
    match path.strip_prefix(name)? {
        [b'/', rest @ ..] => Some(rest),
        [] => Some(&[]),
        rest if name.is_empty() => Some(rest),
        _ => None,
    }
}

impl NamedTrees {
    /// Adds a tree at a path, which must be clean and not empty.
    pub fn add(&mut self, path: impl Into<Vec<u8>>, tree: Arc<dyn Source>) {
        self.trees.push((path.into(), tree));
    }

    /// Whether there is a tree at a path.
    pub fn has(&self, path: &[u8]) -> bool {
        self.trees.iter().any(|(name, _)| name == path)
    }

    /// The innermost tree that has a path: its number, the tree, and the path in it.
    fn tree<'p>(&self, path: &'p [u8]) -> Option<(u64, &dyn Source, &'p [u8])> {
        let found = (0..)
            .zip(&self.trees)
            .filter_map(|(number, (name, tree))| below(name, path).map(|rest| (number, tree.as_ref(), rest)));
        found.min_by_key(|(_, _, rest)| rest.len())
    }

    /// The same for a path that must be in a tree.
    fn inside<'p>(&self, path: &'p [u8]) -> io::Result<(u64, &dyn Source, &'p [u8])> {
        self.tree(path).ok_or_else(|| match self.ways(path).is_empty() {
            true => Errno::NOENT.into(),
            false => Errno::ISDIR.into(),
        })
    }

    /// The names in a parent directory of trees.
    fn ways(&self, path: &[u8]) -> BTreeSet<Vec<u8>> {
        let rests = self.trees.iter().filter_map(|(name, _)| below(path, name));
        let names = rests.filter_map(|rest| rest.split(|byte| *byte == b'/').next());
        names.filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
    }
}

fn way() -> Metadata {
    let id = (u64::MAX, 0);
    Metadata { mode: kind::DIRECTORY | WAY_MODE, mtime: Time::default(), links: 1, id, ..Metadata::default() }
}

/// Makes file numbers unique, because files of several trees may have the same number.
fn numbered(number: u64, metadata: Metadata) -> Metadata {
    Metadata { id: (number, metadata.id.1), ..metadata }
}

impl Source for NamedTrees {
    fn metadata(&self, path: &[u8], follow: bool) -> io::Result<Metadata> {
        if self.tree(path).is_none() && !self.ways(path).is_empty() {
            return Ok(way());
        }
        let (number, tree, rest) = self.inside(path)?;
        Ok(numbered(number, tree.metadata(rest, follow)?))
    }

    fn read_dir(&self, path: &[u8]) -> io::Result<Vec<(Vec<u8>, io::Result<Metadata>)>> {
        let ways = self.ways(path);
        if self.tree(path).is_none() && !ways.is_empty() {
            let found = |name: Vec<u8>| {
                let path = if path.is_empty() { name.clone() } else { [path, b"/", &name].concat() };
                (name, self.metadata(&path, false))
            };
            return Ok(ways.into_iter().map(found).collect());
        }
        let (number, tree, rest) = self.inside(path)?;
        let entries = tree.read_dir(rest)?.into_iter();
        Ok(entries.map(|(name, found)| (name, found.map(|found| numbered(number, found)))).collect())
    }

    fn read_link(&self, path: &[u8]) -> io::Result<Vec<u8>> {
        let (_, tree, rest) = self.inside(path)?;
        tree.read_link(rest)
    }

    fn open(&self, path: &[u8], follow: bool) -> io::Result<Box<dyn Content>> {
        let (_, tree, rest) = self.inside(path)?;
        tree.open(rest, follow)
    }

    fn xattrs(&self, path: &[u8], follow: bool) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        match self.tree(path) {
            None if !self.ways(path).is_empty() => Ok(BTreeMap::new()),
            _ => self.inside(path).and_then(|(_, tree, rest)| tree.xattrs(rest, follow)),
        }
    }

    fn open_listed(&self, path: &[u8], listed: &Metadata, follow: bool) -> io::Result<Box<dyn Content>> {
        let (_, tree, rest) = self.inside(path)?;
        tree.open_listed(rest, listed, follow)
    }

    fn xattrs_listed(
        &self,
        path: &[u8],
        listed: &Metadata,
        follow: bool,
    ) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        match self.tree(path) {
            Some((_, tree, rest)) => tree.xattrs_listed(rest, listed, follow),
            None => self.xattrs(path, follow),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::source::DirectorySource;

    #[test]
    fn trees_are_where_their_names_say() {
        let dir = tempfile::tempdir().unwrap();
        for (at, name) in ["a", "b"].into_iter().enumerate() {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("f"), "x".repeat(at + 1)).unwrap();
        }
        let open = |name: &str| Arc::new(DirectorySource::open(&dir.path().join(name)).unwrap());
        let mut trees = NamedTrees::default();
        assert!(trees.metadata(b"", true).is_err() && trees.read_dir(b"").is_err());
        trees.add("t/h@m", open("a"));
        trees.add("t/h", open("b"));
        let names = |path: &[u8]| {
            let mut names: Vec<_> = trees.read_dir(path).unwrap().into_iter().map(|(name, _)| name).collect();
            names.sort();
            names
        };
        assert_eq!((names(b""), names(b"t")), (vec![b"t".to_vec()], vec![b"h".to_vec(), b"h@m".to_vec()]));
        assert_eq!((names(b"t/h"), names(b"t/h@m")), (vec![b"f".to_vec()], vec![b"f".to_vec()]));
        let size = |path: &[u8]| trees.metadata(path, false).map(|found| (found.size, found.id.0)).ok();
        assert_eq!((size(b"t/h@m/f"), size(b"t/h/f")), (Some((1, 0)), Some((2, 1))));
        assert!(
            trees.metadata(b"t", false).unwrap().is_dir() && trees.xattrs(b"t", false).unwrap().is_empty()
        );
        for absent in [&b"t/h@"[..], b"t/h@mm", b"x", b"t/f", b"t/h/g"] {
            assert_eq!(trees.metadata(absent, false).unwrap_err().raw_os_error(), Some(2));
        }
        assert!(trees.open(b"t", true).is_err() && trees.read_link(b"t").is_err());
    }
}
