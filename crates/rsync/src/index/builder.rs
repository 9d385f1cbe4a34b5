//! Builds or changes an index. Listings are kept encoded as in the file, so that this needs no more memory than the
//! index.

use super::cursor::Cursor;
use super::listing::{self, Context, Listing};
use super::record::{self, Before, Record, Special};
use super::tables::{Shared, Tables, XattrSet};
use super::{DIGEST_LEN, HEADER_LEN, Header, Index, IndexError, ROOT};
use crate::source::Time;

/// The number of unused directory numbers that are no reason to renumber all directories.
const SPARE: usize = 1024;

/// A file that was read from the tree and is not in a listing yet.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    /// The record, without the numbers of its listing and attributes.
    pub record: Record,
    pub xattrs: XattrSet,
}

/// An index that is being built.
#[derive(Debug)]
pub struct Builder {
    tables: Tables,
    /// The listings, by number of the directory. `None` for an unused number, or a listing that was not read yet.
    listings: Vec<Option<Vec<u8>>>,
    root: Record,
}

impl Builder {
    pub(super) fn new(root: Seen) -> Self {
        let record = Record { special: Special::Directory(ROOT), ..root.record.clone() };
        let mut builder = Self { tables: Tables::default(), listings: vec![None], root: record };
        builder.set_root(root);
        builder
    }

    /// A builder with the content of an index.
    ///
    /// # Errors
    /// When the index is damaged.
    pub fn from_index(index: &Index) -> Result<Self, IndexError> {
        let mut sets = Vec::new();
        for at in &index.sets {
            let mut cursor = Cursor::new(&index.bytes, *at);
            super::tables::read_set(&mut cursor)?;
            sets.push(index.bytes.get(*at..cursor.at()).unwrap_or_default().to_vec());
        }
        let tables = Tables::new(&index.shared, sets);
        let mut listings = Vec::new();
        for number in 0..index.header.directories {
            listings.push(match index.listing(number)? {
                None => None,
                Some(listing) => {
                    let (from, to) = (index.slot(number)?, listing.check(|_| Ok(()))?);
                    index.bytes.get(from..to).map(<[u8]>::to_vec)
                }
            });
        }
        Ok(Self { tables, listings, root: index.root.clone() })
    }

    /// The highest number of a directory plus one.
    pub(super) fn numbers(&self) -> u32 {
        self.listings.len() as u32
    }

    /// Whether most numbers are unused, because their directories are gone.
    pub(super) fn is_sparse(&self) -> bool {
        let used = self.listings.iter().flatten().count();
        self.listings.len() > 2 * used + SPARE
    }

    pub(super) fn root(&self) -> &Record {
        &self.root
    }

    pub(super) fn set_root(&mut self, seen: Seen) {
        let xattrs = self.number_of(&seen.xattrs);
        self.root = Record { name: Vec::new(), special: Special::Directory(ROOT), xattrs, ..seen.record };
    }

    /// The number of a set of extended attributes. `None` for an empty set.
    fn number_of(&mut self, xattrs: &XattrSet) -> Option<u32> {
        (!xattrs.is_empty()).then(|| self.tables.set(xattrs))
    }

    /// The record of a file, with the number of its attribute set, and of its listing if it has one already.
    pub(super) fn record(&mut self, seen: Seen, directory: Option<u32>) -> Record {
        let xattrs = self.number_of(&seen.xattrs);
        let special = directory.map_or(seen.record.special, Special::Directory);
        Record { xattrs, special, ..seen.record }
    }

    /// A number for a new directory, higher than all others.
    pub(super) fn allocate(&mut self) -> Result<u32, IndexError> {
        let number = u32::try_from(self.listings.len()).ok().filter(|number| *number < u32::MAX);
        self.listings.push(None);
        number.ok_or(IndexError::TooMany { what: "directories" })
    }

    pub(super) fn listing(&self, number: u32) -> Result<Option<Listing<'_>>, IndexError> {
        let bytes = self.listings.get(number as usize).and_then(Option::as_ref);
        bytes.map(|bytes| Listing::open(Cursor::new(bytes, 0), self.context())).transpose()
    }

    pub(super) fn set_listing(&mut self, number: u32, mut records: Vec<Record>) -> Result<(), IndexError> {
        let listing = listing::write(&mut records, &mut self.tables)?;
        self.put(number, listing);
        Ok(())
    }

    /// Records that a directory cannot be listed, with the `errno`.
    pub(super) fn set_failure(&mut self, number: u32, errno: u32) {
        self.put(number, listing::write_failure(errno));
    }

    fn put(&mut self, number: u32, listing: Vec<u8>) {
        if let Some(slot) = self.listings.get_mut(number as usize) {
            *slot = Some(listing);
        }
    }

    /// Removes a directory and everything below it.
    pub(super) fn remove(&mut self, number: u32) -> Result<(), IndexError> {
        let mut left = vec![number];
        while let Some(number) = left.pop() {
            if let Some(listing) = self.listing(number)? {
                let mut records = listing.records();
                while let Some(fields) = records.next()? {
                    left.extend(fields.directory);
                }
            }
            if let Some(slot) = self.listings.get_mut(number as usize) {
                *slot = None;
            }
        }
        Ok(())
    }

    fn context(&self) -> Context<'_> {
        let shared: &[Shared] = self.tables.all_shared();
        Context { shared, set_count: self.tables.set_count() }
    }

    /// The number of files and directories, without the root.
    ///
    /// # Errors
    /// When the index that it began with is damaged.
    pub fn files(&self) -> Result<u64, IndexError> {
        let mut files = 0;
        for number in 0..self.listings.len() as u32 {
            files += self.listing(number)?.map_or(0, |listing| u64::from(listing.count));
        }
        Ok(files)
    }

    /// The bytes of the file. `made` is the time of creation in it.
    ///
    /// # Errors
    /// When there are too many directories.
    pub fn finish(mut self, made: Time) -> Result<Vec<u8>, IndexError> {
        let root = self.root.clone();
        let shared = self.tables.shared(root.shared());
        let directories = u32::try_from(self.listings.len());
        let directories = directories.map_err(|_| IndexError::TooMany { what: "directories" })?;
        let files = self.files()?;
        let len: usize = self.listings.iter().flatten().map(Vec::len).sum();
        let mut out = Vec::with_capacity(HEADER_LEN + len + self.listings.len() * super::SLOT_LEN);
        out.resize(HEADER_LEN, 0);
        record::write(&root, shared, &mut Before::default(), &mut out);
        let mut slots = Vec::with_capacity(self.listings.len());
        // Each listing is dropped once it was copied, so that there are never two copies of everything.
        for listing in std::mem::take(&mut self.listings) {
            slots.push(if listing.is_some() { out.len() as u64 } else { 0 });
            out.extend(listing.unwrap_or_default());
        }
        let shared = out.len() as u64;
        self.tables.write_shared(&mut out);
        let sets = out.len() as u64;
        self.tables.write_sets(&mut out);
        let table = out.len() as u64;
        slots.iter().for_each(|slot| out.extend_from_slice(&slot.to_le_bytes()));
        let len = (out.len() + DIGEST_LEN) as u64;
        let header = Header { len, made, directories, files, shared, sets, slots: table }.write();
        out[..HEADER_LEN].copy_from_slice(&header);
        out.extend_from_slice(blake3::hash(&out).as_bytes());
        Ok(out)
    }
}
