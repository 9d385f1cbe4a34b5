//! Creating a new filesystem: `zfs_create_fs`.

use super::create::{Make, NewKind, Surroundings, attributes, directory_norm, put_node};
use super::{Caller, Salts, WriteOptions};
use crate::attributes::Timestamp;
use crate::error::ZplError;
use crate::filesystem::MASTER_NODE;
use crate::names::{CaseSensitivity, NamePolicy};
use crate::sa::edit::number_of;
use crate::sa::tables::DMU_OT_SA_MASTER_NODE;
use crate::sa::{Attr, SaTable};
use crate::source::{DMU_OT_MASTER_NODE, DMU_OT_SA, DMU_OT_UNLINKED_SET, ObjectsMut};
use crate::zap::{NewZap, Value, ZapEdit};
use parking_lot::RwLock;

/// ZPL version of new filesystems.
const VERSION: u64 = 5;

/// The parameters of a new filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewFilesystem {
    /// `casesensitivity`, `normalization` and `utf8only`. Normalisation implies `utf8only`.
    pub names: NamePolicy,
    /// Owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
    /// Permission bits of the root directory. ZFS's default is 0o755.
    pub permissions: u32,
    /// Time of creation.
    pub now: Timestamp,
    /// `dnodesize`: 512-byte slots of the root's dnode. `legacy` means 1, `auto` means 2.
    pub dnode_slots: u8,
    /// Whether the root has a project ID (the pool feature `project_quota`).
    pub project_ids: bool,
    /// A random number from which the salts of the name hashes are computed.
    pub seed: u64,
}

impl Default for NewFilesystem {
    fn default() -> Self {
        Self {
            names: NamePolicy::default(),
            uid: 0,
            gid: 0,
            permissions: 0o755,
            now: Timestamp::default(),
            dnode_slots: 1,
            project_ids: true,
            seed: 0,
        }
    }
}

impl NewFilesystem {
    /// Upper bound of the bytes that [`create_filesystem`] writes. A transaction for it needs this room.
    pub const ROOM: u64 = 256 << 10;
}

/// Creates a filesystem in an empty objset: master node, SA tables, unlinked set and root directory.
///
/// # Errors
/// [`ZplError::Invalid`] for invalid sizes, or if the layer below fails.
pub fn create_filesystem<O: ObjectsMut>(
    objects: &O,
    tx: &O::Tx<'_>,
    new: &NewFilesystem,
) -> Result<(), ZplError> {
    let salts = Salts::new(new.seed);
    if !(1..=32).contains(&new.dnode_slots) {
        let what = format!("dnodes of {} slots", new.dnode_slots);
        return Err(ZplError::Invalid { object: MASTER_NODE, what });
    }
    NewZap::plain(DMU_OT_MASTER_NODE, salts.next()).create_at(objects, tx, MASTER_NODE)?;
    let mut master = ZapEdit::open(objects, MASTER_NODE)?;
    let utf8_only = new.names.utf8_only || !new.names.normalization.is_none();
    let case = match new.names.case {
        CaseSensitivity::Sensitive => 0,
        CaseSensitivity::Insensitive => 1,
        CaseSensitivity::Mixed => 2,
    };
    for (name, value) in [
        ("utf8only", u64::from(utf8_only)),
        ("normalization", new.names.normalization.bits().into()),
        ("casesensitivity", case),
        ("VERSION", VERSION),
    ] {
        master.add(name.as_bytes(), &Value::One(value))?;
    }
    let sa_master = NewZap::plain(DMU_OT_SA_MASTER_NODE, salts.next()).create(objects, tx)?;
    master.add(b"SA_ATTRS", &Value::One(sa_master))?;
    let queue = NewZap::plain(DMU_OT_UNLINKED_SET, salts.next()).create(objects, tx)?;
    master.add(b"DELETE_QUEUE", &Value::One(queue))?;

    let mut table = SaTable::load(objects, sa_master)?;
    table.prepare_writing();
    let numbers = table.numbers();
    let options = WriteOptions { dnode_slots: new.dnode_slots, ..WriteOptions::default() };
    let make = Make {
        kind: NewKind::Directory,
        mode: 0o040_000 | new.permissions & 0o7777,
        uid: new.uid.into(),
        gid: new.gid.into(),
        links: 2,
        flags: 0,
        project: new.project_ids.then_some(0),
        caller: Caller { uid: new.uid, gid: new.gid, umask: 0, now: new.now },
        size: 0,
        atime: new.now,
        mtime: new.now,
        xattrs: Vec::new(),
        options,
    };
    let attributes = attributes(&table, &numbers, &make, 0)?;
    let table = RwLock::new(table);
    let around =
        Surroundings { table: &table, numbers: &numbers, norm: directory_norm(new.names), salts: &salts };
    let root = put_node(objects, tx, &make, attributes, &around)?;
    set_own_parent(objects, tx, &table, root, number_of(&numbers, Attr::Parent))?;
    master.add(b"ROOT", &Value::One(root))?;
    master.write(tx)
}

/// Sets the parent of the root to the root itself. Its number is known only after its creation.
fn set_own_parent<O: ObjectsMut>(
    objects: &O,
    tx: &O::Tx<'_>,
    table: &RwLock<SaTable>,
    root: u64,
    parent: Option<u16>,
) -> Result<(), ZplError> {
    let dnode = objects.dnode(root).map_err(ZplError::source(root))?;
    let dnode = dnode.ok_or(ZplError::NoObject { object: root })?;
    debug_assert_eq!(dnode.bonus_type, DMU_OT_SA);
    let mut edit = crate::sa::edit::SaEdit::read(&table.read(), dnode, None)?;
    if let Some(parent) = parent {
        edit.set(&table.read(), parent, Some(&root.to_le_bytes()))?;
    }
    edit.write(objects, tx, table, || 0)
}
