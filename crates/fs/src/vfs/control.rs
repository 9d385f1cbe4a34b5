//! The directory `.zfs` of every mounted dataset, and `.zfs/snapshot` in it.

use snowmelt_zpl::{Attributes, FileKind, Timestamp, ZfsFlags};

use super::directory::Entry;
use super::error::VfsError;
use super::options::SnapDir;
use super::{Stat, Vfs, ino};

/// Its name in the root directory.
pub(super) const CONTROL_NAME: &[u8] = b".zfs";
const SNAPSHOT_NAME: &[u8] = b"snapshot";

/// First offset in listings that is used for snapshots. Their offsets are computed from their txgs.
const FIRST_SNAPSHOT: u64 = 3;

fn attributes(object: u64, parent: u64, links: u64, entries: u64, changed: Timestamp) -> Attributes {
    Attributes {
        object,
        mode: FileKind::Directory.mode_bits() | 0o555,
        uid: 0,
        gid: 0,
        uid_fuid: 0,
        gid_fuid: 0,
        size: entries + 2,
        links,
        atime: changed,
        mtime: changed,
        ctime: changed,
        crtime: changed,
        rdev: None,
        flags: ZfsFlags::default(),
        project_id: 0,
        generation: 0,
        parent,
        xattr_object: None,
    }
}

impl Vfs {
    /// Whether the root directory has a `.zfs`.
    pub(super) fn has_control(&self) -> bool {
        !self.is_snapshot() && self.options().snapdir != SnapDir::Disabled
    }

    /// Whether it is also listed.
    pub(super) fn shows_control(&self) -> bool {
        !self.is_snapshot() && self.options().snapdir == SnapDir::Visible
    }

    pub(super) fn stat_control(&self) -> Result<Stat, VfsError> {
        let root = self.base()?.view.attributes(self.root_object()?)?;
        let attributes = attributes(ino::CONTROL, root.object, 3, 1, root.crtime);
        Ok(Stat { ino: ino::CONTROL, attributes, blocks: 0, block_size: 512 })
    }

    pub(super) fn stat_snapshot_dir(&self) -> Result<Stat, VfsError> {
        let catalog = self.datasets.catalog();
        let dataset = catalog.dataset_by_id(self.dataset_id())?;
        let newest = catalog.newest_snapshot(&dataset)?;
        let seconds = newest.map_or(dataset.record.creation, |snapshot| snapshot.record.creation);
        let changed = Timestamp { seconds: i64::try_from(seconds).unwrap_or(i64::MAX), nanoseconds: 0 };
        let attributes = attributes(ino::SNAPSHOT_DIR, ino::CONTROL, 2, 0, changed);
        Ok(Stat { ino: ino::SNAPSHOT_DIR, attributes, blocks: 0, block_size: 512 })
    }

    /// Looks up a name in `.zfs`.
    pub(super) fn lookup_in_control(&self, name: &[u8]) -> Result<Stat, VfsError> {
        match name {
            SNAPSHOT_NAME => self.stat_snapshot_dir(),
            _ => Err(VfsError::NotFound { parent: ino::CONTROL, name: name.to_vec() }),
        }
    }

    /// Looks up the root directory of a snapshot.
    pub(super) fn lookup_snapshot(&self, name: &[u8]) -> Result<Stat, VfsError> {
        let found = self.snapshot_named(name)?;
        let snapshot =
            found.ok_or_else(|| VfsError::NotFound { parent: ino::SNAPSHOT_DIR, name: name.to_vec() })?;
        let open = self.look_into(&snapshot)?;
        self.stat_known(&open.view, ino::of(open.slot, open.view.root()))
    }

    pub(super) fn list_control(&self, offset: u64) -> Vec<Entry> {
        let entry = Entry {
            name: SNAPSHOT_NAME.to_vec(),
            ino: ino::SNAPSHOT_DIR,
            kind: FileKind::Directory,
            next: FIRST_SNAPSHOT,
        };
        if offset < FIRST_SNAPSHOT { vec![entry] } else { Vec::new() }
    }

    pub(super) fn list_snapshots(&self, offset: u64, count: usize) -> Result<Vec<Entry>, VfsError> {
        let from = offset.saturating_sub(FIRST_SNAPSHOT);
        let snapshots = self.snapshots_from(from, count)?;
        let entries = snapshots.into_iter().map(|snapshot| Entry {
            name: snapshot.record.name.clone().into(),
            // Its inode number is known only after it was opened.
            ino: ino::SNAPSHOT_DIR,
            kind: FileKind::Directory,
            next: FIRST_SNAPSHOT + snapshot.id.txg + 1,
        });
        Ok(entries.collect())
    }
}
