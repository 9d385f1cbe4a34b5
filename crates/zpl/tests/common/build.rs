//! Builds filesystems of ZPL version 3 by hand, with a `znode_phys_t` in every bonus buffer and micro ZAPs, in either
//! byte order.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, missing_docs)]

use snowmelt_zpl::memory::{MemoryObject, MemoryObjects};
use snowmelt_zpl::{Dnode, Endian};

pub const ROOT: u64 = 3;

pub struct Builder {
    pub objects: MemoryObjects,
    pub endian: Endian,
}

pub fn bytes64(endian: Endian, value: u64) -> [u8; 8] {
    match endian {
        Endian::Little => value.to_le_bytes(),
        Endian::Big => value.to_be_bytes(),
    }
}

pub fn bytes32(endian: Endian, value: u32) -> [u8; 4] {
    match endian {
        Endian::Little => value.to_le_bytes(),
        Endian::Big => value.to_be_bytes(),
    }
}

/// A micro ZAP with these names and values. All differentiators are 0.
pub fn micro_zap(endian: Endian, entries: &[(&[u8], u64)]) -> Vec<u8> {
    let mut block = Vec::new();
    block.extend(bytes64(endian, (1 << 63) + 3));
    block.extend(bytes64(endian, 0x1234_5679));
    block.resize(64, 0);
    for (name, value) in entries {
        let mut slot = Vec::new();
        slot.extend(bytes64(endian, *value));
        slot.extend(bytes32(endian, 0));
        slot.extend([0; 2]);
        slot.extend(*name);
        assert!(slot.len() < 64);
        slot.resize(64, 0);
        block.extend(slot);
    }
    block.resize(block.len().next_multiple_of(512), 0);
    block
}

/// The fields of a node that tests choose. The other fields are fixed.
#[derive(Clone, Copy)]
pub struct Znode {
    pub mode: u32,
    pub size: u64,
    pub parent: u64,
    pub links: u64,
    pub generation: u64,
    pub ctime: u64,
}

impl Default for Znode {
    fn default() -> Self {
        Self { mode: 0o100_644, size: 0, parent: ROOT, links: 1, generation: 5, ctime: 1000 }
    }
}

impl Builder {
    /// A filesystem with an empty root directory.
    pub fn new(endian: Endian) -> Self {
        let mut builder = Self { objects: MemoryObjects::default(), endian };
        let names: [(&[u8], u64); 3] = [(b"ROOT", ROOT), (b"VERSION", 3), (b"DELETE_QUEUE", 2)];
        builder.put(1, 21, 0, Vec::new(), &micro_zap(endian, &names));
        builder.put(2, 22, 0, Vec::new(), &micro_zap(endian, &[]));
        builder.directory(ROOT, ROOT, &[]);
        builder
    }

    pub fn put(&mut self, object: u64, object_type: u8, bonus_type: u8, bonus: Vec<u8>, data: &[u8]) {
        let block_size = data.len().next_multiple_of(512).max(512) as u32;
        let dnode =
            Dnode { object, object_type, bonus_type, block_size, slots: 1, bonus, ..Dnode::default() };
        let mut put = MemoryObject { dnode, ..Default::default() };
        put.write(0, data);
        self.objects.objects.insert(object, put);
    }

    pub fn znode(&self, znode: Znode) -> Vec<u8> {
        let mut words = [0u64; 33];
        (words[0], words[2], words[4], words[6]) = (900, 950, znode.ctime, 800);
        words[8] = znode.generation;
        words[9] = znode.mode.into();
        words[10] = znode.size;
        words[11] = znode.parent;
        words[12] = znode.links;
        (words[16], words[17]) = (1000, 1001);
        words.iter().flat_map(|word| bytes64(self.endian, *word)).collect()
    }

    /// A directory with these (name, object) entries. The entries have no type, as in old filesystems.
    pub fn directory(&mut self, object: u64, parent: u64, entries: &[(&[u8], u64)]) {
        let znode =
            Znode { mode: 0o040_755, size: entries.len() as u64 + 2, parent, links: 2, ..Znode::default() };
        let zap = micro_zap(self.endian, entries);
        self.put(object, 20, 17, self.znode(znode), &zap);
    }

    pub fn file(&mut self, object: u64, znode: Znode, data: &[u8]) {
        let bonus = self.znode(Znode { size: data.len() as u64, ..znode });
        self.put(object, 19, 17, bonus, data);
    }

    /// A symbolic link whose target follows the znode.
    pub fn symlink(&mut self, object: u64, target: &[u8]) {
        let mut bonus = self.znode(Znode { mode: 0o120_777, size: target.len() as u64, ..Znode::default() });
        bonus.extend(target);
        self.put(object, 19, 17, bonus, &[]);
    }
}
