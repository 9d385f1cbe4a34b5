//! Written filesystems have the form that real ZFS writes. The master node, registry and layouts are equal. Every node
//! of the corpus is created again and has the same attributes in the same order with the same bytes.

#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/fsck.rs"]
mod fsck;

use common::{Received, case};
use snowmelt_zpl::memory::{MemoryObjects, MemoryObjset};
use snowmelt_zpl::zap::Zap;
use snowmelt_zpl::{
    Attributes, Caller, Cursor, FileKind, Filesystem, FilesystemMut, MASTER_NODE, NewFilesystem, NewKind,
    NewNode, Objects, ObjectsMut, Room, SetAttributes, SetTime, SetXattr, WriteOptions, ZfsFlags,
    create_filesystem,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Attribute numbers in all filesystems of the corpus, from `zfs_attr_table`.
const GEN: u16 = 4;
const PARENT: u16 = 7;
const XATTR: u16 = 9;
const LINKS: u16 = 8;
const DACL_COUNT: u16 = 16;
const DACL_ACES: u16 = 19;
const DXATTR: u16 = 20;
const SIZE: u16 = 6;

fn received(name: &str, stream: &str) -> Option<Arc<MemoryObjects>> {
    let files = case(name)?;
    let mut received = Received::default();
    let guid = *received.receive(files.get(stream)?).last()?;
    Some(received.snapshots[&guid].clone())
}

fn new_filesystem(
    new: NewFilesystem,
    options: WriteOptions,
) -> (Arc<MemoryObjset>, FilesystemMut<Arc<MemoryObjset>>) {
    let objects = Arc::new(MemoryObjset::default());
    create_filesystem(&*objects, &objects.begin(Room::Free).unwrap(), &new).unwrap();
    let fs = FilesystemMut::open(objects.clone(), options, 1).unwrap();
    (objects, fs)
}

fn zap_entries(objects: &MemoryObjects, object: u64) -> BTreeMap<String, Vec<u64>> {
    let zap = Zap::open(objects, object).unwrap();
    let text = |name: &[u8]| String::from_utf8(name.to_vec()).unwrap();
    zap.entries(Cursor::START)
        .map(|entry| entry.unwrap())
        .map(|entry| (text(entry.key.as_name().unwrap()), entry.value.integers().to_vec()))
        .collect()
}

/// The registry and layouts of a filesystem.
struct Tables {
    lengths: BTreeMap<u16, u16>,
    layouts: BTreeMap<u16, Vec<u16>>,
}

impl Tables {
    fn load(objects: &MemoryObjects) -> Self {
        let sa = zap_entries(objects, MASTER_NODE)["SA_ATTRS"][0];
        let parts = zap_entries(objects, sa);
        let registry = zap_entries(objects, parts["REGISTRY"][0]);
        let layouts = zap_entries(objects, parts["LAYOUTS"][0]);
        let short = |layout: &Vec<u64>| layout.iter().map(|number| *number as u16).collect();
        Self {
            lengths: registry.values().map(|value| (value[0] as u16, (value[0] >> 24) as u16)).collect(),
            layouts: layouts.iter().map(|(name, layout)| (name.parse().unwrap(), short(layout))).collect(),
        }
    }

    /// The attributes of a buffer in their order, and the size of its header.
    fn attributes(&self, buf: &[u8]) -> (Vec<(u16, Vec<u8>)>, usize) {
        assert_eq!(buf[..4], [0x5a, 0x50, 0x2f, 0]);
        let info = u16::from_le_bytes([buf[4], buf[5]]);
        let mut at = usize::from(info >> 10) * 8;
        let (header, mut length_at) = (at, 6);
        let mut found = Vec::new();
        for number in &self.layouts[&(info & 0x3ff)] {
            let len = match self.lengths[number] {
                0 => {
                    length_at += 2;
                    u16::from_le_bytes([buf[length_at - 2], buf[length_at - 1]])
                }
                len => len,
            };
            found.push((*number, buf[at..at + usize::from(len)].to_vec()));
            at = (at + usize::from(len)).next_multiple_of(8);
        }
        (found, header)
    }
}

#[test]
fn new_filesystems_have_the_tables_of_real_ones() {
    let Some(real) = received("01-basic", "full-0.zstream") else { return };
    let (objects, fs) = new_filesystem(NewFilesystem::default(), WriteOptions::default());
    let made = objects.snapshot();
    let (real_master, made_master) = (zap_entries(&real, MASTER_NODE), zap_entries(&made, MASTER_NODE));
    assert_eq!(real_master.keys().collect::<Vec<_>>(), made_master.keys().collect::<Vec<_>>());
    for name in ["VERSION", "utf8only", "normalization", "casesensitivity"] {
        assert_eq!(real_master[name], made_master[name], "{name}");
    }
    for name in ["SA_ATTRS", "DELETE_QUEUE", "ROOT"] {
        let (old, new) = (&real.objects[&real_master[name][0]], &made.objects[&made_master[name][0]]);
        assert_eq!(
            (old.dnode.object_type, old.dnode.bonus_type),
            (new.dnode.object_type, new.dnode.bonus_type)
        );
    }
    let tables = |objects: &MemoryObjects, master: &BTreeMap<String, Vec<u64>>| {
        let parts = zap_entries(objects, master["SA_ATTRS"][0]);
        let object = |name: &str| objects.objects[&parts[name][0]].dnode.clone();
        let (registry, layouts) = (object("REGISTRY"), object("LAYOUTS"));
        assert!(!Zap::open(objects, layouts.object).unwrap().is_micro());
        (
            zap_entries(objects, registry.object),
            (registry.object_type, registry.block_size, layouts.object_type, layouts.block_size),
            zap_entries(objects, layouts.object)["2"].clone(),
        )
    };
    assert_eq!(tables(&real, &real_master), tables(&made, &made_master));
    fsck::check(&made);
    assert_eq!(fs.attributes(fs.root()).unwrap().permissions(), 0o755);
}

#[test]
fn names_that_fold_or_compose_are_stored_as_in_real_ones() {
    for (stream, case_folding) in
        [("n1-full.zstream", true), ("n3-full.zstream", false), ("n2-full.zstream", true)]
    {
        let Some(real) = received("13-quota-names", stream) else { continue };
        let policy = Filesystem::open(real.clone()).unwrap().name_policy();
        let (objects, fs) =
            new_filesystem(NewFilesystem { names: policy, ..Default::default() }, WriteOptions::default());
        let made = objects.snapshot();
        let (old, new) = (zap_entries(&real, MASTER_NODE), zap_entries(&made, MASTER_NODE));
        for name in ["utf8only", "normalization", "casesensitivity"] {
            assert_eq!(old[name], new[name], "{stream} {name}");
        }
        let norm = |objects: &MemoryObjects, root| Zap::open(objects, root).unwrap().hashing().norm;
        assert_eq!(norm(&real, old["ROOT"][0]), norm(&made, fs.root()), "{stream}");
        assert_eq!(norm(&made, fs.root()).bits() & 2 != 0, case_folding);
    }
}

/// The names in a packed nvlist, in order.
fn nvlist_names(packed: &[u8]) -> Vec<Vec<u8>> {
    let word = |at: usize| u32::from_be_bytes(packed[at..at + 4].try_into().unwrap()) as usize;
    let (mut at, mut names) = (12, Vec::new());
    while word(at) != 0 {
        names.push(packed[at + 12..at + 12 + word(at + 8)].to_vec());
        at += word(at);
    }
    names
}

fn kind_of<'t>(attributes: &Attributes, target: &'t [u8]) -> NewKind<'t> {
    let (major, minor) = attributes.rdev.unwrap_or_default();
    match attributes.kind() {
        FileKind::Directory => NewKind::Directory,
        FileKind::Symlink => NewKind::Symlink(target),
        FileKind::Fifo => NewKind::Fifo,
        FileKind::Socket => NewKind::Socket,
        FileKind::CharDevice => NewKind::CharDevice(major, minor),
        FileKind::BlockDevice => NewKind::BlockDevice(major, minor),
        FileKind::File | FileKind::Unknown => NewKind::File,
    }
}

/// Whether the ACL of a mode needs more than the usual three entries, because a class has a permission that an earlier
/// class lacks.
fn odd(attributes: &Attributes) -> bool {
    let [owner, group, others] = [6, 3, 0].map(|shift| attributes.permissions() >> shift & 7);
    (group | others) & !owner != 0 || others & !group != 0
}

/// The known differences in the ACLs of a stream's files.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Acls {
    /// No difference.
    Same,
    /// OpenZFS before 2.3 allowed `ACE_DELETE_CHILD` to those with write permission also in the ACLs of new files, as
    /// in those of directories.
    DeleteChild,
    /// With `acltype=posix`, OpenZFS computes the ACL from the mode before the umask is applied.
    BeforeUmask,
}

/// Masks the known differences.
fn without_differences(acls: Acls, aces: &mut [u8]) {
    match acls {
        Acls::Same => {}
        Acls::DeleteChild => aces.chunks_exact_mut(8).for_each(|ace| ace[4] &= !0x40),
        Acls::BeforeUmask => aces.chunks_exact_mut(8).for_each(|ace| ace[4] &= !0x67),
    }
}

/// Creates every node of a real filesystem again and compares the attributes byte for byte.
fn remake(real: &MemoryObjects, acls: Acls) -> usize {
    let fs = Filesystem::open(real).unwrap();
    let real_tables = Tables::load(real);
    let mut compared = 0;
    for (number, object) in &real.objects {
        if object.dnode.bonus_type != 44 {
            continue;
        }
        let attributes = fs.attributes(*number).unwrap();
        // Hidden directories and their files are not created by name.
        if attributes.flags.contains(ZfsFlags::XATTR) {
            continue;
        }
        let target = match attributes.kind() {
            FileKind::Symlink => fs.readlink(*number).unwrap(),
            _ => Vec::new(),
        };
        let is_node = matches!(attributes.kind(), FileKind::File | FileKind::Directory);
        let options = WriteOptions {
            dnode_slots: object.dnode.slots,
            project_ids: is_node && attributes.flags.contains(ZfsFlags::PROJID),
            ..WriteOptions::default()
        };
        let (objects, made) = new_filesystem(NewFilesystem::default(), options);
        let caller = Caller { uid: attributes.uid, gid: attributes.gid, umask: 0, now: attributes.crtime };
        let new = NewNode { kind: kind_of(&attributes, &target), permissions: attributes.permissions() };
        let node = made.create(made.root(), b"node", new, &caller).unwrap().object;
        let (mut old, mut spilled) = (real_tables.attributes(&object.dnode.bonus), Vec::new());
        if let Some(spill) = &object.spill {
            spilled = real_tables.attributes(spill).0;
        }
        let all: BTreeMap<u16, Vec<u8>> = old.0.iter().chain(&spilled).cloned().collect();
        // The real files got their attributes in this order.
        let xattrs = fs.xattrs(*number).unwrap();
        for name in all.get(&DXATTR).map_or_else(Vec::new, |packed| nvlist_names(packed)) {
            made.set_xattr(node, &name, &xattrs[&name], SetXattr::Create, &caller).unwrap();
        }
        let set = SetAttributes {
            permissions: Some(attributes.permissions()),
            atime: Some(SetTime::To(attributes.atime)),
            mtime: Some(SetTime::To(attributes.mtime)),
            ctime: Some(attributes.ctime),
            project_id: (attributes.project_id != 0).then_some(attributes.project_id as u32),
            fs_ioc_flags: Some(attributes.flags.fs_ioc_flags()),
            ..SetAttributes::default()
        };
        made.set_attributes(node, &set, &caller).unwrap();
        let snapshot = objects.snapshot();
        let tables = Tables::load(&snapshot);
        let remade = &snapshot.objects[&node];
        let mut new = tables.attributes(&remade.dnode.bonus);
        let new_spilled = remade.spill.as_ref().map_or_else(Vec::new, |spill| tables.attributes(spill).0);
        // A hidden directory gets its number when it is first needed. The copies do not need one.
        let hidden = old.0.iter().chain(&spilled).any(|(number, _)| *number == XATTR);
        // In OpenZFS, a POSIX ACL that changes the mode does not change the NFSv4 ACL. Here it does.
        let changed_by_acl = xattrs.contains_key(&b"system.posix_acl_access"[..])
            && old.0.iter().any(|(number, bytes)| *number == DACL_COUNT && bytes[0] != 5 && odd(&attributes));
        if hidden || changed_by_acl {
            continue;
        }
        for (number, bytes) in old.0.iter_mut().chain(&mut new.0) {
            let depends = matches!(*number, GEN | PARENT | LINKS);
            if *number == DACL_ACES {
                without_differences(acls, bytes);
            }
            let is_size = *number == SIZE && attributes.kind() != FileKind::Symlink;
            if depends || is_size {
                bytes.fill(0);
            }
        }
        let name = format!("object {number}, {:?}, mode {:o}", attributes.kind(), attributes.mode);
        assert_eq!(new.0, old.0, "{name}");
        assert_eq!(new.1, old.1, "{name}: header");
        assert_eq!(new_spilled, spilled, "{name}: spill");
        assert_eq!(remade.dnode.bonus.len(), object.dnode.bonus.len(), "{name}: bonus");
        compared += 1;
    }
    compared
}

#[test]
fn nodes_have_the_bytes_of_real_ones() {
    for (name, stream, least) in [
        ("01-basic", "full-0.zstream", 40),
        ("06-xattr", "sa-legacy-full.zstream", 20),
        ("06-xattr", "sa-auto-full.zstream", 20),
        ("07-special", "full.zstream", 10),
        ("13-quota-names", "n1-full.zstream", 5),
        ("16-newer", "long-full.zstream", 20),
        ("16-newer", "micro-L.zstream", 20),
    ] {
        let Some(real) = received(name, stream) else { continue };
        let acls = match name {
            "16-newer" => Acls::Same,
            "06-xattr" => Acls::BeforeUmask,
            _ => Acls::DeleteChild,
        };
        let compared = remake(&real, acls);
        assert!(compared >= least, "{name} {stream}: {compared}");
    }
}

/// Continues writing in filesystems from real ZFS.
#[test]
fn real_filesystems_are_written_on() {
    for (name, stream) in [
        ("01-basic", "full-3.zstream"),
        ("05-names", "full.zstream"),
        ("06-xattr", "sa-legacy-full.zstream"),
        ("06-xattr", "dir-legacy-full.zstream"),
        ("07-special", "full.zstream"),
        ("13-quota-names", "n1-full.zstream"),
        ("13-quota-names", "n3-full.zstream"),
    ] {
        let Some(real) = received(name, stream) else { continue };
        let objects = Arc::new(MemoryObjset::new((*real).clone()));
        let before = fsck::check(&objects.snapshot());
        let fs = FilesystemMut::open(objects.clone(), WriteOptions::default(), 5).unwrap();
        let caller = Caller::default();
        for (index, ((directory, name), object)) in before.names.iter().enumerate() {
            let attributes = &before.nodes[object];
            let exempt = attributes.flags.fs_ioc_flags() & 0x30 != 0;
            match index % 5 {
                _ if exempt => {}
                0 if attributes.kind() != FileKind::Directory => {
                    fs.unlink(*directory, name, &caller, |_| false).unwrap();
                }
                1 => {
                    let new = format!("renamed {index}").into_bytes();
                    fs.rename((*directory, name), (fs.root(), &new), Default::default(), &caller, |_| false)
                        .unwrap();
                }
                2 if attributes.kind() == FileKind::File => {
                    fs.write(*object, attributes.size, b"and more", &caller).unwrap();
                    fs.set_xattr(*object, b"user.new", &[7; 2000], SetXattr::Any, &caller).unwrap();
                }
                3 if attributes.kind() == FileKind::Directory => {
                    for n in 0..200 {
                        let new = NewNode { kind: NewKind::File, permissions: 0o600 };
                        fs.create(*object, format!("new {n}").as_bytes(), new, &caller).unwrap();
                    }
                }
                4 => {
                    let set = SetAttributes { permissions: Some(0o741), ..Default::default() };
                    fs.set_attributes(*object, &set, &caller).unwrap();
                }
                _ => {}
            }
        }
        assert_eq!(fs.drain_unlinked().unwrap(), before.unlinked.len() as u64);
        let after = fsck::check(&objects.snapshot());
        assert!(after.names != before.names, "{name} {stream}");
        assert!(objects.dnode(MASTER_NODE).unwrap().is_some());
    }
}
