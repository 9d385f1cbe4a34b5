//! Skipping directories that have not changed, for the cost of one comparison of digests.
//!
//! The digest noted for a directory shows that the dataset has exactly the entries of the source's listing. If the
//! listing is the same now, every entry is unchanged. Its objects need not be known, unless something else may claim
//! one of them: another name of the same file, or a wrong hint (inode numbers are used again). So files with several
//! names are always processed. As soon as a hint would move an object from another place, all objects of skipped
//! directories are claimed, also of those that are skipped later.

use snowmelt_zpl::{FileKind, ObjectsMut, ZplError};

use super::digest::{self, Digest};
use super::scan::{Listing, SourceEntry, join};
use super::tree::Pending;
use super::{ImportError, Importer};
use snowmelt_dataset::objset::ObjectSet;

/// The directories that were skipped.
#[derive(Debug, Default)]
pub(super) struct Skipped {
    /// Their objects, as long as the objects of their entries are not claimed.
    unclaimed: Vec<u64>,
    /// Whether the objects of their entries must be claimed.
    claims: bool,
}

/// Whether an entry must be processed even if it is unchanged: a directory, or a file with several names.
fn needs_object(entry: &SourceEntry) -> bool {
    entry.stat.kind == FileKind::Directory || entry.stat.links > 1
}

impl<O: ObjectsMut> Importer<'_, O> {
    /// Skips a directory if nothing in it has changed, and adds its subdirectories to `children`.
    pub(super) fn skip(
        &mut self,
        directory: &Pending,
        listing: &Listing,
        children: &mut Vec<Pending>,
    ) -> Result<bool, ImportError> {
        if !directory.was_here || !listing.failures.is_empty() {
            return Ok(false);
        }
        let noted = self.hints.listing(directory.object).map_err(ImportError::Hints)?;
        if noted != Some(self.digest(directory, listing)) {
            return Ok(false);
        }
        if self.skipped.claims || listing.entries.iter().any(needs_object) {
            if !self.claim_entries(directory, listing, children)? {
                return Ok(false);
            }
        } else {
            self.skipped.unclaimed.push(directory.object);
        }
        let is_file = |entry: &&SourceEntry| entry.stat.kind != FileKind::Directory;
        self.summary.entries += listing.entries.iter().filter(is_file).count() as u64;
        Ok(true)
    }

    fn digest(&self, directory: &Pending, listing: &Listing) -> Digest {
        digest::of_directory(&directory.stat, &listing.digest, self.scan.root_stat().device)
    }

    /// Claims the objects of a directory's entries. `false` if one of them is already claimed by another file.
    fn claim_entries(
        &mut self,
        directory: &Pending,
        listing: &Listing,
        children: &mut Vec<Pending>,
    ) -> Result<bool, ImportError> {
        let have = self.entries(directory.object)?;
        let mut found = Vec::with_capacity(have.len());
        for entry in &listing.entries {
            let Some(&object) = have.get(&entry.name) else { return Ok(false) };
            let is_linked = entry.stat.kind != FileKind::Directory && entry.stat.links > 1;
            if is_linked {
                let first = self.links.get(&self.id(&entry.stat));
                if first.is_some_and(|(first, _)| *first != object)
                    || first.is_none() && self.claimed.contains(object)
                {
                    return Ok(false);
                }
            } else if self.claimed.contains(object) {
                return Ok(false);
            }
            found.push((entry, object));
        }
        for (entry, object) in found {
            let stat = entry.stat;
            match self.links.get(&self.id(&stat)).copied().filter(|_| stat.links > 1) {
                Some((first, left)) if stat.kind != FileKind::Directory => {
                    self.count_link(&stat, first, left)
                }
                _ => self.claim_known(&stat, object),
            }
            if stat.kind == FileKind::Directory {
                let path = join(&directory.path, &entry.name);
                let (is_new, is_strange, was_here) = (false, false, true);
                children.push(Pending { path, object, stat, is_new, is_strange, was_here });
            }
        }
        Ok(true)
    }

    /// Claims the entries of all skipped directories. To be called before objects are moved from other places.
    pub(super) fn claim_skipped(&mut self) -> Result<(), ImportError> {
        self.skipped.claims = true;
        for directory in std::mem::take(&mut self.skipped.unclaimed) {
            for object in self.entries(directory)?.into_values() {
                self.claimed.insert(object);
            }
        }
        Ok(())
    }

    /// Notes the digest of a directory after all its entries are in the dataset.
    pub(super) fn note_listing(&mut self, directory: &Pending, listing: &Listing) -> Result<(), ImportError> {
        let digest = self.is_as_listed.then(|| self.digest(directory, listing));
        self.put_listing(directory.object, digest)
    }

    /// Removes the digests of all directories below `object`, because the source could not be read there.
    pub(super) fn forget_listings(&mut self, object: u64) -> Result<(), ImportError> {
        let (mut pending, mut seen) = (vec![object], ObjectSet::default());
        while let Some(object) = pending.pop() {
            let is_directory = match self.fs.attributes(object) {
                Ok(found) => found.kind() == FileKind::Directory,
                Err(ZplError::NoObject { .. } | ZplError::Corrupt { .. }) => false,
                Err(error) => return Err(error.into()),
            };
            // In a received dataset, a directory may be contained in itself.
            if !is_directory || seen.contains(object) {
                continue;
            }
            seen.insert(object);
            self.put_listing(object, None)?;
            pending.extend(self.entries(object)?.into_values());
        }
        Ok(())
    }

    fn put_listing(&mut self, directory: u64, digest: Option<Digest>) -> Result<(), ImportError> {
        if self.options.dry_run {
            return Ok(());
        }
        self.hints.note_listing(directory, digest).map_err(ImportError::Hints)
    }
}
