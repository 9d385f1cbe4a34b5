//! Names at the top of a directory that belong to other syncs: the copies of child datasets.
//!
//! The names are stored next to the record. They are left alone by all changes of the directory. So the snapshot may
//! have only an empty directory with such a name, which a mount of the dataset hides.

use super::plan::{Listing, Plan, entries};
use super::tree::{Path, Tree};
use super::{MirrorError, RECORD_DIRECTORY, is_reserved};
use crate::beneath::Directory;
use crate::error::FsError;
use crate::paths::is_safe_name;
use rustix::fs::OFlags;
use snowmelt_zpl::{FileKind, Filesystem, Objects};
use std::collections::BTreeSet;
use std::io::{self, Read, Write};

const FILE: &[u8] = b"nested";
const TEMPORARY: &[u8] = b"nested.new";
const NOTING: &str = "note what is kept in it by others";
/// Limit in bytes. The names of all possible child datasets are shorter.
const LEN_MAX: u64 = 16 << 20;

/// Names at the top of a directory that belong to other syncs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Nested {
    names: BTreeSet<Vec<u8>>,
}

impl Nested {
    /// The names stored in the record's directory `own`.
    ///
    /// # Errors
    /// If one of them cannot be the name of a dataset, if another user has written them, or if they cannot be read.
    pub(super) fn load(own: &Directory) -> Result<Self, MirrorError> {
        let path = own.path_of(FILE);
        let local = |step| MirrorError::local(&path, step);
        let opened = own.open_file(FILE, OFlags::RDONLY).map_err(local("open it"))?;
        let Some(file) = opened else { return Ok(Self::default()) };
        super::check_owner(own, &path, &file)?;
        let mut bytes = Vec::new();
        file.take(LEN_MAX).read_to_end(&mut bytes).map_err(local("read it"))?;
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let names: BTreeSet<Vec<u8>> = lines.map(<[u8]>::to_vec).collect();
        match names.iter().all(|name| is_name(name)) {
            true => Ok(Self { names }),
            false => Err(MirrorError::Record { path }),
        }
    }

    /// The names that are valid for datasets.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let names = self.names.iter().filter_map(|name| str::from_utf8(name).ok());
        names.filter(|name| !name.contains('/') && !name.starts_with('.'))
    }

    /// Adds a name.
    pub(super) fn note(mut self, own: &Directory, name: &[u8]) -> Result<(), MirrorError> {
        match self.names.insert(name.to_owned()) {
            true => self.store(own).map_err(MirrorError::local(own.path(), NOTING)),
            false => Ok(()),
        }
    }

    fn store(&self, own: &Directory) -> io::Result<()> {
        if !self.names.iter().all(|name| is_name(name)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "that is no name of a dataset"));
        }
        let _ = own.unlink(TEMPORARY);
        let mut file = own.create_file(TEMPORARY)?;
        for name in &self.names {
            file.write_all(&[name, &b"\n"[..]].concat())?;
        }
        file.sync_all()?;
        own.rename(TEMPORARY, FILE)?;
        own.sync()
    }

    /// Adds the child datasets whose names are free or already have a copy, and removes names that no longer exist.
    pub(super) fn renew(
        &mut self,
        tree: &Tree,
        own: &Directory,
        children: &[String],
    ) -> Result<(), MirrorError> {
        let local = |step| MirrorError::local(own.path(), step);
        let mut renewed = Self::default();
        for name in &self.names {
            if tree.stat(&[], name).map_err(local("look at what is there"))?.is_some() {
                renewed.names.insert(name.clone());
            } else {
                // The record of an image that no longer exists is useless.
                let _ = tree.top().unlink(&record_of_image(name));
            }
        }
        for child in children {
            if is_free(tree, child.as_bytes()).map_err(local("look at what is there"))? {
                renewed.names.insert(child.as_bytes().to_vec());
            }
        }
        if renewed != *self {
            renewed.store(own).map_err(local(NOTING))?;
            *self = renewed;
        }
        Ok(())
    }

    /// Whether a name at the top is excluded from the snapshot because it belongs to another sync or is a record.
    pub(crate) fn reserves(&self, name: &[u8]) -> bool {
        let image = name.strip_prefix(b".").and_then(|name| name.strip_suffix(RECORD_DIRECTORY.as_bytes()));
        is_reserved(name)
            || self.names.contains(name)
            || image.is_some_and(|image| self.names.contains(image))
    }

    /// Whether a path is equal to or below such a name.
    pub(super) fn covers(&self, path: &[Vec<u8>]) -> bool {
        path.first().is_some_and(|name| self.reserves(name))
    }

    /// Checks that the snapshot has nothing at these names and at `children`.
    ///
    /// # Errors
    /// [`MirrorError::Nested`] if it has more there than an empty directory.
    pub(super) fn check<O: Objects>(
        &self,
        new: &Filesystem<O>,
        children: &[String],
    ) -> Result<(), MirrorError> {
        for name in self.names.iter().map(Vec::as_slice).chain(children.iter().map(String::as_bytes)) {
            let at = |error| FsError::zpl(name)(error);
            let Some(entry) = new.lookup(new.root(), name).map_err(at)? else { continue };
            let is_directory = new.attributes(entry.object).map_err(at)?.kind() == FileKind::Directory;
            if !is_directory || !entries(new, entry.object)?.is_empty() {
                return Err(MirrorError::Nested { name: String::from_utf8_lossy(name).into_owned() });
            }
        }
        Ok(())
    }

    /// Removes these names from a plan.
    pub(super) fn spare(&self, plan: &mut Plan) {
        if self.names.is_empty() {
            return;
        }
        let mut spared = BTreeSet::new();
        for listings in [&mut plan.removed, &mut plan.added] {
            listings.retain(|listing: &Listing| !self.covers(&listing.path));
            for listing in listings.iter_mut().filter(|listing| listing.path.is_empty()) {
                listing.entries.retain(|entry| {
                    let is_spared = self.reserves(&entry.name);
                    spared.extend(is_spared.then_some(entry.object));
                    !is_spared
                });
            }
        }
        // An object that is only removed or only added does not move.
        plan.moved.retain(|object| !spared.contains(object));
        plan.linked.retain(|_, path| !self.covers(path));
        let is_ours = |(_, path): &(u64, Path)| !self.covers(path);
        plan.changed.retain(is_ours);
        plan.dressed.retain(is_ours);
    }
}

/// Whether it can be the last part of a dataset's name. It must also be valid as a file name and as a line of text.
fn is_name(name: &[u8]) -> bool {
    let is_line = str::from_utf8(name).is_ok_and(|name| !name.contains(char::is_control));
    is_line && is_safe_name(name) && !is_reserved(name)
}

/// The name of an image's record, which is next to the image.
pub(super) fn record_of_image(image: &[u8]) -> Vec<u8> {
    [b".", image, RECORD_DIRECTORY.as_bytes()].concat()
}

/// Whether the copy of a child dataset can use this name: it does not exist, is empty, or has its own record.
fn is_free(tree: &Tree, name: &[u8]) -> io::Result<bool> {
    let Some(stat) = tree.stat(&[], name)? else { return Ok(true) };
    if stat.st_mode & 0o170_000 != FileKind::Directory.mode_bits() {
        return Ok(tree.stat(&[], &record_of_image(name))?.is_some());
    }
    let names = super::enter_copy(tree.top(), name)?.names()?;
    Ok(names.is_empty() || names.iter().any(|name| name == RECORD_DIRECTORY.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_refused_when_they_are_read() {
        let scratch = tempfile::tempdir().unwrap();
        let own = Directory::named(scratch.path()).unwrap();
        let load = |text: &[u8]| {
            std::fs::write(scratch.path().join("nested"), text).unwrap();
            Nested::load(&own)
        };
        assert_eq!(load(b"a\nb c\n").unwrap().names().collect::<Vec<_>>(), ["a", "b c"]);
        for bad in [
            &b"a\n../../victim/vm.img\n"[..],
            b"..\n",
            b".\n",
            b"/etc\n",
            b"a\0b\n",
            b"a\x1b[2J\n",
            b"\xff\n",
            b".snowmelt-sync\n",
        ] {
            assert!(matches!(load(bad), Err(MirrorError::Record { .. })), "{}", bad.escape_ascii());
        }
        let noted = Nested::default().note(&own, b"one\ntwo");
        assert!(noted.is_err());
    }

    #[test]
    fn names_are_neither_read_nor_written_through_a_link() {
        let scratch = tempfile::tempdir().unwrap();
        let victim = scratch.path().join("victim");
        std::fs::write(&victim, "a\n").unwrap();
        let own = Directory::named(scratch.path()).unwrap();
        for name in ["nested", "nested.new"] {
            std::os::unix::fs::symlink(&victim, scratch.path().join(name)).unwrap();
        }
        assert!(Nested::load(&own).is_err());
        Nested::default().note(&own, b"b").unwrap();
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "a\n");
        assert_eq!(Nested::load(&own).unwrap().names().collect::<Vec<_>>(), ["b"]);
    }
}
