//! What is kept at the top of a directory by syncs of their own: the datasets below the one that the directory is a copy of.
//!
//! Their names are noted beside the record. Whatever is done to the directory, these are left alone; so the snapshot must have
//! nothing there but an empty directory, which is what a mount of the dataset hides.

use super::plan::{Listing, Plan, entries};
use super::tree::{Path, Tree, names};
use super::{MirrorError, RECORD_DIRECTORY};
use crate::error::FsError;
use rustix::fs::{Mode, OFlags};
use snowmelt_zpl::{FileKind, Filesystem, Objects};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

const FILE: &str = "nested";
const NOTING: &str = "note what is kept in it by others";
/// Larger than the names of all datasets that there can be below one.
const LEN_MAX: u64 = 16 << 20;

/// Names at the top of a directory that are kept by others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Nested {
    names: BTreeSet<Vec<u8>>,
}

impl Nested {
    pub(super) fn load(record_directory: &std::path::Path) -> Result<Self, MirrorError> {
        let path = record_directory.join(FILE);
        let local = |step| MirrorError::local(&path, step);
        let how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match rustix::fs::open(&path, how, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(rustix::io::Errno::NOENT) => return Ok(Self::default()),
            Err(error) => return Err(local("open it")(error.into())),
        };
        let mut bytes = Vec::new();
        file.take(LEN_MAX).read_to_end(&mut bytes).map_err(local("read it"))?;
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        Ok(Self { names: lines.map(<[u8]>::to_vec).collect() })
    }

    /// The names, as datasets can be called.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let names = self.names.iter().filter_map(|name| str::from_utf8(name).ok());
        names.filter(|name| !name.contains('/') && !name.starts_with('.'))
    }

    /// Takes in a name.
    pub(super) fn note(mut self, record_directory: &std::path::Path, name: &[u8]) -> Result<(), MirrorError> {
        match self.names.insert(name.to_owned()) {
            true => self.store(record_directory).map_err(MirrorError::local(record_directory, NOTING)),
            false => Ok(()),
        }
    }

    fn store(&self, record_directory: &std::path::Path) -> io::Result<()> {
        let (path, temporary) = (record_directory.join(FILE), record_directory.join("nested.new"));
        let _ = std::fs::remove_file(&temporary);
        let mut file = File::options().write(true).create_new(true).open(&temporary)?;
        for name in &self.names {
            file.write_all(&[name, &b"\n"[..]].concat())?;
        }
        file.sync_all()?;
        std::fs::rename(&temporary, &path)?;
        File::open(record_directory)?.sync_all()
    }

    /// Takes in the datasets below that have, or can have, their place; what was given up by its owner is given up.
    pub(super) fn renew(
        &mut self,
        tree: &Tree,
        record_directory: &std::path::Path,
        children: &[String],
    ) -> Result<(), MirrorError> {
        let local = |step| MirrorError::local(record_directory, step);
        let mut renewed = Self::default();
        for name in &self.names {
            if tree.stat(&[], name).map_err(local("look at what is there"))?.is_some() {
                renewed.names.insert(name.clone());
            } else {
                // Of an image that is gone, what it held is of no use.
                let _ = std::fs::remove_file(record_of_image(
                    &record_directory.with_file_name(OsStr::from_bytes(name)),
                ));
            }
        }
        for child in children {
            if is_free(tree, child.as_bytes()).map_err(local("look at what is there"))? {
                renewed.names.insert(child.as_bytes().to_vec());
            }
        }
        if renewed != *self {
            renewed.store(record_directory).map_err(local(NOTING))?;
            *self = renewed;
        }
        Ok(())
    }

    /// Whether a name at the top is no business of the snapshot: kept by another sync, or the record of one.
    pub(crate) fn reserves(&self, name: &[u8]) -> bool {
        let image = name.strip_prefix(b".").and_then(|name| name.strip_suffix(RECORD_DIRECTORY.as_bytes()));
        name == RECORD_DIRECTORY.as_bytes()
            || self.names.contains(name)
            || image.is_some_and(|image| self.names.contains(image))
    }

    /// Whether a path leads to or below such a name.
    pub(super) fn covers(&self, path: &[Vec<u8>]) -> bool {
        path.first().is_some_and(|name| self.reserves(name))
    }

    /// Whether the snapshot leaves room for these, and for `children`.
    ///
    /// # Errors
    /// [`MirrorError::Nested`] when it has more there than an empty directory.
    pub(super) fn check<O: Objects>(
        &self,
        new: &Filesystem<O>,
        children: &[String],
    ) -> Result<(), MirrorError> {
        for name in self.names.iter().map(Vec::as_slice).chain(children.iter().map(String::as_bytes)) {
            let at = |error| FsError::zpl(name)(error);
            let Some(entry) = new.lookup(new.root(), name).map_err(at)? else { continue };
            let is_directory = new.attributes(entry.object).map_err(at)?.kind() == FileKind::Directory;
            if !is_directory || !entries(new, entry.object, false)?.is_empty() {
                return Err(MirrorError::Nested { name: String::from_utf8_lossy(name).into_owned() });
            }
        }
        Ok(())
    }

    /// Takes out of a plan what is to be left alone.
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
        // What is taken away and put nowhere, or the other way round, does not move.
        plan.moved.retain(|object| !spared.contains(object));
        plan.linked.retain(|_, path| !self.covers(path));
        let is_ours = |(_, path): &(u64, Path)| !self.covers(path);
        plan.changed.retain(is_ours);
        plan.dressed.retain(is_ours);
    }
}

/// Where it is noted what an image holds: beside it.
pub fn record_of_image(image: &std::path::Path) -> std::path::PathBuf {
    let name = image.file_name().unwrap_or_default().as_bytes();
    image.with_file_name(OsStr::from_bytes(&[b".", name, RECORD_DIRECTORY.as_bytes()].concat()))
}

/// Whether a dataset below has, or can have, its place under this name: nothing is there, or nothing in it, or its own record.
fn is_free(tree: &Tree, name: &[u8]) -> io::Result<bool> {
    let Some(stat) = tree.stat(&[], name)? else { return Ok(true) };
    if stat.st_mode & 0o170_000 != FileKind::Directory.mode_bits() {
        let record = [b".", name, RECORD_DIRECTORY.as_bytes()].concat();
        return Ok(tree.stat(&[], &record)?.is_some());
    }
    let directory = tree.directory(&[name.to_vec()])?;
    let names = names(directory.as_fd())?;
    Ok(names.is_empty() || names.iter().any(|name| name == RECORD_DIRECTORY.as_bytes()))
}
