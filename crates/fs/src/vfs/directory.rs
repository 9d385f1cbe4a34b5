//! Looking up names and listing directories.

use snowmelt_zpl::{FileKind, ZplError};

use super::control::CONTROL_NAME;
use super::error::VfsError;
use super::ino::Place;
use super::view::View;
use super::{Stat, Vfs, ino};

/// Offsets in listings: of "..", of `.zfs`, and of the first stored entry.
const DOT_DOT: u64 = 1;
const CONTROL: u64 = 2;
const STORED: u64 = 3;
/// The offset at the end. The directory's own end cursor is not a valid file offset.
const END: u64 = i64::MAX as u64;

/// An entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: Vec<u8>,
    /// Inode number. For snapshots in `.zfs/snapshot`, it differs from the number after they are opened.
    pub ino: u64,
    /// The file type, if the directory knows it.
    pub kind: FileKind,
    /// The offset after this entry. It stays valid if entries are added or removed meanwhile, and is positive as a
    /// signed number.
    pub next: u64,
}

/// Longest name (`MAXNAMELEN - 1`).
const NAME_MAX: usize = 255;

/// Whether a name would mislead readers of the listing.
fn is_misleading(name: &[u8]) -> bool {
    matches!(name, b"" | b"." | b"..") || name.iter().any(|byte| matches!(byte, b'/' | 0))
}

impl Vfs {
    /// Inode number of the root directory, which is its object number.
    ///
    /// # Errors
    /// If the content was replaced and cannot be read.
    pub fn root(&self) -> Result<u64, VfsError> {
        self.root_object()
    }

    pub(super) fn root_object(&self) -> Result<u64, VfsError> {
        Ok(self.base()?.view.root())
    }

    /// Looks up a name in a directory. Adds a reference to the inode, which [`Vfs::forget`] drops.
    ///
    /// # Errors
    /// [`VfsError::NotFound`], or if the name is too long or the directory cannot be read.
    pub fn lookup(&self, parent: u64, name: &[u8]) -> Result<Stat, VfsError> {
        if name.len() > NAME_MAX {
            return Err(ZplError::NameTooLong { len: name.len() }.into());
        }
        match Place::of(parent) {
            Place::Control if name == b".." => self.stat_referred(self.root_object()?),
            Place::SnapshotDir if name == b".." => self.stat_referred(ino::CONTROL),
            Place::Control | Place::SnapshotDir if name == b"." => self.stat_referred(parent),
            Place::Control => self.lookup_in_control(name),
            Place::SnapshotDir => self.lookup_snapshot(name),
            Place::Here(object)
                if name == CONTROL_NAME && self.has_control() && object == self.root_object()? =>
            {
                self.stat_control()
            }
            Place::Here(_) | Place::In(..) => {
                let found = self.on_inode(parent, |view, object| match name {
                    b"." => Ok(Some(object)),
                    b".." => {
                        Ok(Some(if object == view.root() { 0 } else { view.attributes(object)?.parent }))
                    }
                    _ => Ok(view.lookup(object, name)?.map(|entry| entry.object)),
                })?;
                let object = found.ok_or_else(|| VfsError::NotFound { parent, name: name.to_vec() })?;
                if object == 0 && name == b".." {
                    return self.stat_referred(self.above_root(parent));
                }
                self.check_entry(parent, name, object)?;
                self.stat_referred(ino::of(ino::slot(parent), object))
            }
        }
    }

    /// The inode number and generation of a name in a directory, without adding a reference. `None` if the name does
    /// not exist. Names in `.zfs` are not looked up.
    ///
    /// # Errors
    /// If the directory is stale or cannot be read.
    pub fn leads_to(&self, parent: u64, name: &[u8]) -> Result<Option<(u64, u64)>, VfsError> {
        if matches!(Place::of(parent), Place::Control | Place::SnapshotDir) {
            return Ok(None);
        }
        self.on_inode(parent, |view, object| {
            let Some(entry) = view.lookup(object, name)? else { return Ok(None) };
            let attributes = view.attributes(entry.object)?;
            Ok(Some((ino::of(ino::slot(parent), entry.object), attributes.generation)))
        })
    }

    /// The parent of a root directory: `.zfs/snapshot` for a snapshot below `.zfs`, otherwise the root itself.
    fn above_root(&self, root: u64) -> u64 {
        if ino::slot(root) == 0 { root } else { ino::SNAPSHOT_DIR }
    }

    /// Checks that an entry refers to a file, and not back to the root.
    fn check_entry(&self, parent: u64, name: &[u8], object: u64) -> Result<(), VfsError> {
        let is_root = match Place::of(parent) {
            Place::In(slot, _) => object == self.snapshot_of(slot, parent)?.view.root(),
            _ => object == self.root_object()?,
        };
        if object == 0 || object >= ino::RESERVED || is_root && !matches!(name, b"." | b"..") {
            return Err(VfsError::BadEntry { parent, name: name.to_vec(), object });
        }
        Ok(())
    }

    /// The `stat` data of an inode. Adds a reference like [`Vfs::lookup`].
    ///
    /// # Errors
    /// Like [`Vfs::stat`].
    pub fn stat_referred(&self, number: u64) -> Result<Stat, VfsError> {
        match Place::of(number) {
            Place::Control => self.stat_control(),
            Place::SnapshotDir => self.stat_snapshot_dir(),
            Place::Here(_) => self.read_base(|base| {
                let stat = self.stat_in(&base.view, number)?;
                self.inodes.looked_up(number, stat.attributes.generation, base.epoch);
                Ok(stat)
            }),
            Place::In(slot, _) => {
                let snapshot = self.snapshot_of(slot, number)?;
                self.stat_known(&snapshot.view, number)
            }
        }
    }

    /// The `stat` data of an inode in a snapshot below `.zfs`. Adds a reference.
    pub(super) fn stat_known(&self, view: &View, number: u64) -> Result<Stat, VfsError> {
        let stat = self.stat_in(view, number)?;
        if self.inodes.looked_up(number, stat.attributes.generation, 0) {
            self.snapshots.used(ino::slot(number));
        }
        Ok(stat)
    }

    pub(super) fn stat_in(&self, view: &View, number: u64) -> Result<Stat, VfsError> {
        let (Place::Here(object) | Place::In(_, object)) = Place::of(number) else {
            return Err(VfsError::Stale { ino: number });
        };
        let attributes = view.attributes(object)?;
        let blocks = view.blocks(&attributes)?;
        Ok(self.stat_of(number, attributes, blocks))
    }

    /// At most `count` entries of a directory from an offset on, including "." and "..". The offset is 0 or
    /// [`Entry::next`] of an entry.
    ///
    /// # Errors
    /// [`VfsError::NotADirectory`], or if the directory cannot be read.
    pub fn read_dir(&self, number: u64, offset: u64, count: usize) -> Result<Vec<Entry>, VfsError> {
        let mut entries = Vec::new();
        if offset >= END {
            return Ok(entries);
        }
        if offset < STORED {
            self.list_dots(number, offset, &mut entries)?;
        }
        entries.truncate(count.max(1));
        let left = count.saturating_sub(entries.len());
        if left == 0 {
            return Ok(entries);
        }
        match Place::of(number) {
            Place::Control => entries.extend(self.list_control(offset)),
            Place::SnapshotDir => entries.extend(self.list_snapshots(offset, left)?),
            Place::Here(_) | Place::In(..) => {
                let from = if offset < STORED { 0 } else { offset };
                self.list_stored(number, from, left, &mut entries)?;
                if offset == 0 {
                    self.note_read(number);
                }
            }
        }
        Ok(entries)
    }

    fn list_dots(&self, number: u64, offset: u64, entries: &mut Vec<Entry>) -> Result<(), VfsError> {
        let entry =
            |name: &[u8], ino, next| Entry { name: name.to_vec(), ino, kind: FileKind::Directory, next };
        if offset < DOT_DOT {
            entries.push(entry(b".", number, DOT_DOT));
        }
        if offset < CONTROL {
            let parent = match Place::of(number) {
                Place::Control => self.root_object()?,
                Place::SnapshotDir => ino::CONTROL,
                Place::Here(_) | Place::In(..) => {
                    let parent = self.on_inode(number, |view, object| {
                        Ok((object != view.root()).then_some(view.attributes(object)?.parent))
                    })?;
                    parent
                        .map_or_else(|| self.above_root(number), |parent| ino::of(ino::slot(number), parent))
                }
            };
            entries.push(entry(b"..", parent, CONTROL));
        }
        if self.shows_control() && Place::of(number) == Place::Here(self.root_object()?) {
            entries.push(entry(CONTROL_NAME, ino::CONTROL, STORED));
        }
        Ok(())
    }

    fn list_stored(
        &self,
        number: u64,
        from: u64,
        count: usize,
        entries: &mut Vec<Entry>,
    ) -> Result<(), VfsError> {
        let mut from = from;
        // If all names are misleading, the loop still ends, because each round advances.
        loop {
            let stored = self.on_inode(number, |view, object| view.read_dir(object, from, count))?;
            let Some((_, last)) = stored.last() else { return Ok(()) };
            from = *last;
            let before = entries.len();
            entries.extend(stored.into_iter().filter(|(entry, _)| !is_misleading(&entry.name)).map(
                |(entry, next)| Entry {
                    ino: ino::of(ino::slot(number), entry.object),
                    name: entry.name,
                    kind: entry.kind,
                    next: next.min(END),
                },
            ));
            if entries.len() > before || from >= END {
                return Ok(());
            }
        }
    }

    /// Drops `count` references. If the inode is not in use any more and has no name, it is removed.
    pub fn forget(&self, number: u64, count: u64) {
        let dropped = self.inodes.forgotten(number, count);
        self.dropped(number, dropped);
    }
}
