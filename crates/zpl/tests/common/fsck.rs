//! Checks the invariants of a filesystem in memory: no object is lost, and every count is right.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, missing_docs)]

use snowmelt_zpl::memory::MemoryObjects;
use snowmelt_zpl::zap::Zap;
use snowmelt_zpl::{Attributes, Cursor, FileKind, Filesystem, MASTER_NODE};
use std::collections::{BTreeMap, BTreeSet};

/// The result of a walk through a filesystem.
#[derive(Default)]
pub struct Tree {
    /// Attributes of every object that has a name.
    pub nodes: BTreeMap<u64, Attributes>,
    /// Object number of every (directory, name).
    pub names: BTreeMap<(u64, Vec<u8>), u64>,
    /// Objects in the unlinked set.
    pub unlinked: BTreeSet<u64>,
}

/// Walks through the whole filesystem and checks it. Link counts of directories from real ZFS must be right too.
pub fn check(objects: &MemoryObjects) -> Tree {
    let fs = Filesystem::open(objects).unwrap();
    let mut tree = Tree::default();
    let mut known: BTreeSet<u64> = [MASTER_NODE].into();
    known.extend(fs.delete_queue());
    known.extend(fs.shares());
    let sa = fs.master_node("SA_ATTRS").unwrap().unwrap();
    known.insert(sa);
    let sa = Zap::open(objects, sa).unwrap();
    known.extend(["REGISTRY", "LAYOUTS"].iter().filter_map(|name| sa.lookup_u64(name).unwrap()));

    let mut links: BTreeMap<u64, u64> = BTreeMap::new();
    let mut left = vec![(fs.root(), fs.root())];
    while let Some((directory, parent)) = left.pop() {
        known.insert(directory);
        let attributes = fs.attributes(directory).unwrap();
        assert_eq!(attributes.parent, parent, "directory {directory}");
        let (mut entries, mut directories) = (0, 0);
        for entry in fs.read_dir(directory).unwrap().all() {
            let entry = entry.unwrap();
            let found = fs.lookup(directory, &entry.name).unwrap().unwrap();
            assert_eq!(found.object, entry.object);
            let node = fs.attributes(entry.object).unwrap();
            assert_eq!(node.kind(), entry.kind, "object {}", entry.object);
            if node.kind() == FileKind::Directory {
                directories += 1;
                assert!(!tree.nodes.contains_key(&entry.object), "a second name of {}", entry.object);
                left.push((entry.object, directory));
            } else {
                *links.entry(entry.object).or_default() += 1;
                known.insert(entry.object);
            }
            entries += 1;
            tree.nodes.insert(entry.object, node);
            tree.names.insert((directory, entry.name), entry.object);
        }
        assert_eq!(attributes.size, entries + 2, "size of directory {directory}");
        assert_eq!(attributes.links, directories + 2, "links of directory {directory}");
        tree.nodes.insert(directory, attributes);
    }
    for (object, links) in links {
        assert_eq!(tree.nodes[&object].links, links, "links of {object}");
    }
    let queue = Zap::open(objects, fs.delete_queue().unwrap()).unwrap();
    for entry in queue.entries(Cursor::START) {
        let entry = entry.unwrap();
        let object = entry.value.as_u64().unwrap();
        assert_eq!(entry.key.as_name().unwrap(), format!("{object:x}").as_bytes());
        assert_eq!(fs.attributes(object).unwrap().links, 0);
        assert!(!tree.nodes.contains_key(&object));
        known.insert(object);
        tree.unlinked.insert(object);
    }
    for object in tree.nodes.keys().chain(&tree.unlinked) {
        let attributes = fs.attributes(*object).unwrap();
        if attributes.kind() == FileKind::File {
            check_blocks(objects, &attributes);
        }
        if let Some(hidden) = attributes.xattr_object {
            check_hidden(&fs, hidden, *object, &mut known);
        }
        assert!(!fs.nfs4_acl(*object).unwrap().is_empty());
        fs.xattrs(*object).unwrap();
    }
    let all: BTreeSet<u64> = objects.objects.keys().copied().collect();
    assert_eq!(all.difference(&known).collect::<Vec<_>>(), Vec::<&u64>::new(), "lost objects");
    assert_eq!(known.difference(&all).collect::<Vec<_>>(), Vec::<&u64>::new(), "missing objects");
    tree
}

/// Checks that there is no data past the end of a file.
fn check_blocks(objects: &MemoryObjects, attributes: &Attributes) {
    let found = &objects.objects[&attributes.object];
    let block_size = u64::from(found.dnode.block_size);
    for (number, block) in &found.blocks {
        let start = number * block_size;
        let inside = attributes.size.saturating_sub(start).min(block.len() as u64) as usize;
        assert!(block.len() as u64 <= block_size);
        assert!(block[inside..].iter().all(|byte| *byte == 0), "data past the end of {}", attributes.object);
    }
    if found.blocks.keys().any(|number| *number > 0) {
        assert!(block_size.is_power_of_two(), "many blocks of {block_size} bytes");
    }
}

fn check_hidden(fs: &Filesystem<&MemoryObjects>, hidden: u64, owner: u64, known: &mut BTreeSet<u64>) {
    known.insert(hidden);
    let attributes = fs.attributes(hidden).unwrap();
    assert_eq!(
        (attributes.kind(), attributes.parent, attributes.flags.0 & 1),
        (FileKind::Directory, owner, 1)
    );
    let mut count = 0;
    for entry in fs.read_dir(hidden).unwrap().all() {
        let entry = entry.unwrap();
        let file = fs.attributes(entry.object).unwrap();
        assert_eq!((file.kind(), file.parent, file.links, file.flags.0 & 1), (FileKind::File, hidden, 1, 1));
        known.insert(entry.object);
        count += 1;
    }
    assert_eq!((attributes.size, attributes.links), (count + 2, 2));
}
