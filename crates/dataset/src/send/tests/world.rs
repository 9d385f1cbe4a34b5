//! A pool in memory with hand-made objsets.

use std::sync::Arc;

use snowmelt_pool::{BlockId, NewPool, Pool, PoolOptions, Prepared, Tree};
use snowmelt_store::MemoryStore;
use snowmelt_stream::compress::Compression;
use snowmelt_stream::features::Features;
use snowmelt_stream::nvlist::NvList;
use snowmelt_stream::reader::Reader;
use snowmelt_stream::record::Record;

use super::super::step::{Base, BaseInfo, Resume, Step, Style};
use super::super::{SendPlan, plan};
use crate::catalog::Snapshot;
use crate::datasets::Datasets;
use crate::error::SendError;
use crate::name::Name;
use crate::objset::key::{ObjsetKey, SLOTS_PER_BLOCK, object_end, object_start};
use crate::objset::value::{Block, BlockCrypt, Dnode, RawDnode};
use crate::ops::create::CreateOptions;

pub(super) const FS: &str = "tank/fs";

pub(super) struct World {
    pub(super) datasets: Arc<Datasets>,
    pub(super) pool: Arc<Pool>,
    pub(super) store: MemoryStore,
    /// Whether the objset looks encrypted.
    pub(super) raw: bool,
    /// A counter that makes the encryption parameters of every write different.
    writes: u64,
}

impl World {
    pub(super) fn new(node_bytes: usize, raw: bool) -> Self {
        let store = MemoryStore::new();
        let options = PoolOptions { node_bytes, ..PoolOptions::default() };
        let pool =
            Pool::create(Box::new(store.clone()), &NewPool { name: "tank", guid: 7 }, options).unwrap();
        let datasets = Datasets::create(pool.clone()).unwrap();
        datasets.create_filesystem(FS, &CreateOptions::default()).unwrap();
        let world = Self { datasets, pool, store, raw, writes: 0 };
        world.clear();
        world
    }

    /// Removes the content of a new filesystem: the tests create objects one by one.
    fn clear(&self) {
        let (tree, hold) = (self.head(), self.pool.begin().unwrap());
        let mut blocks = Vec::new();
        tree.remove_range(&hold, &[], &[0xff; 20], &mut |key, entry| {
            if let Ok(ObjsetKey::Block { .. } | ObjsetKey::Spill { .. }) = ObjsetKey::decode(key) {
                blocks.push(Block::decode(&entry.value).unwrap().ptr);
            }
            Ok(())
        })
        .unwrap();
        for ptr in blocks {
            tree.release(&hold, &ptr).unwrap();
        }
    }

    fn head(&self) -> Arc<Tree> {
        let dataset = self.datasets.catalog().dataset(FS).unwrap();
        self.pool.tree(dataset.record.head).unwrap()
    }

    fn crypt(&mut self) -> BlockCrypt {
        self.writes += 1;
        let mut iv = [0; 12];
        iv[..8].copy_from_slice(&self.writes.to_le_bytes());
        BlockCrypt { salt: [1; 8], iv, mac: [3; 16], flags: 0 }
    }

    /// In an encrypted dataset, the parameters of a dnode's block change with the dnode.
    fn stir(&mut self, object: u64) {
        if !self.raw {
            return;
        }
        let first = object - object % SLOTS_PER_BLOCK;
        let key = ObjsetKey::Range { object: first }.encode();
        let (tree, crypt) = (self.head(), self.crypt());
        let hold = self.pool.begin().unwrap();
        let left = tree.view().range(&object_start(first), Some(&object_start(first + SLOTS_PER_BLOCK)));
        let alive = left.map(|item| ObjsetKey::decode(&item.unwrap().0).unwrap());
        if alive.into_iter().any(|key| matches!(key, ObjsetKey::Dnode { .. })) {
            tree.insert(&hold, &key, &crypt.encode_range()).unwrap();
        } else {
            tree.remove(&hold, &key).unwrap();
        }
    }

    pub(super) fn dnode(&self, object: u64) -> Option<Dnode> {
        let entry = self.head().get(&ObjsetKey::Dnode { object }.encode()).unwrap()?;
        Some(Dnode::decode(&entry.value).unwrap())
    }

    /// Creates or replaces an object, and removes objects in its slots.
    pub(super) fn put(&mut self, object: u64, slots: u8, block_size: u32, bonus: &[u8]) {
        let stays = self.dnode(object).is_some_and(|old| old.slots == slots && old.block_size == block_size);
        for slot in object..object + u64::from(slots) {
            if slot != object || !stays {
                self.remove(slot);
            }
        }
        let raw = RawDnode { max_blkid: 0, indirect_block_shift: 17, nlevels: 1, nblkptr: 1, flags: 0 };
        let dnode = Dnode {
            object_type: 19,
            bonus_type: 44,
            checksum: 0,
            compress: 0,
            slots,
            block_size,
            bonus_len: u32::try_from(bonus.len()).unwrap(),
            raw: self.raw.then_some(raw),
            bonus: bonus.to_vec(),
        };
        self.put_dnode(object, dnode);
    }

    pub(super) fn put_dnode(&mut self, object: u64, mut dnode: Dnode) {
        let tree = self.head();
        if let Some(raw) = &mut dnode.raw {
            raw.max_blkid = crate::objset::view::last_block(&tree.view(), object).unwrap().unwrap_or(0);
        }
        let hold = self.pool.begin().unwrap();
        tree.insert(&hold, &ObjsetKey::Dnode { object }.encode(), &dnode.encode()).unwrap();
        drop(hold);
        self.stir(object);
    }

    /// An encrypted dnode changes with its data.
    fn changed(&mut self, object: u64) {
        if self.raw
            && let Some(dnode) = self.dnode(object)
        {
            self.put_dnode(object, dnode);
        }
    }

    fn block(&mut self, object: u64, blkid: u64, data: &[u8]) -> Vec<u8> {
        let crypt = self.raw.then(|| self.crypt());
        let prepared = if self.raw {
            Prepared::stored(data.to_vec(), u32::try_from(data.len()).unwrap(), Compression::Off.id())
        } else {
            Prepared::compress(data, Compression::Lz4)
        };
        let (tree, hold) = (self.head(), self.pool.begin().unwrap());
        let ptr = hold.write(tree.id(), BlockId { object, blkid }, prepared).unwrap();
        tree.retain(&hold, &ptr).unwrap();
        Block { ptr, crypt }.encode()
    }

    pub(super) fn write(&mut self, object: u64, blkid: u64, data: &[u8]) {
        let value = self.block(object, blkid, data);
        let hold = self.pool.begin().unwrap();
        self.head().insert(&hold, &ObjsetKey::Block { object, blkid }.encode(), &value).unwrap();
        drop(hold);
        self.changed(object);
    }

    pub(super) fn spill(&mut self, object: u64, data: Option<&[u8]>) {
        let value = data.map(|data| self.block(object, u64::MAX, data));
        let (key, hold) = (ObjsetKey::Spill { object }.encode(), self.pool.begin().unwrap());
        match value {
            Some(value) => drop(self.head().insert(&hold, &key, &value).unwrap()),
            None => drop(self.head().remove(&hold, &key).unwrap()),
        }
        drop(hold);
        self.changed(object);
    }

    /// Makes blocks `[from, to)` a hole.
    pub(super) fn punch(&mut self, object: u64, from: u64, to: u64) {
        let range = |blkid| ObjsetKey::Block { object, blkid }.encode();
        let hold = self.pool.begin().unwrap();
        self.head().remove_range(&hold, &range(from), &range(to), &mut |_, _| Ok(())).unwrap();
        drop(hold);
        self.changed(object);
    }

    pub(super) fn remove(&mut self, object: u64) {
        if self.dnode(object).is_none() {
            return;
        }
        let from = ObjsetKey::Dnode { object }.encode();
        let hold = self.pool.begin().unwrap();
        self.head().remove_range(&hold, &from, &object_end(object), &mut |_, _| Ok(())).unwrap();
        drop(hold);
        self.stir(object);
    }

    pub(super) fn snapshot(&self, name: &str) -> Snapshot {
        let full = Name::parse(&format!("{FS}@{name}")).unwrap();
        self.datasets.snapshot(std::slice::from_ref(&full), &[]).unwrap();
        self.datasets.catalog().snapshot(&full).unwrap()
    }

    /// A step whose content is announced with `features`.
    pub(super) fn step(&self, to: &Snapshot, base: Base, features: Features, style: Style) -> Step {
        let mut target = plan::target(&self.datasets.catalog(), to).unwrap();
        target.content.features = features;
        if self.raw {
            let mut key_data = NvList::new();
            key_data.insert("DSL_CRYPTO_GUID", 1u64);
            key_data.insert("to_ivset_guid", 2u64);
            key_data.insert("from_ivset_guid", 3u64);
            target.content.features |= Features::RAW;
            target.key_data = Some(key_data.pack_xdr());
        }
        let style = Style { raw: style.raw || self.raw, ..style };
        Step { target, base, style, resume: None, saved: false }
    }

    pub(super) fn tree_base(&self, from: &Snapshot) -> Base {
        plan::snapshot_base(&self.datasets.catalog(), from, from, from.id.dataset).unwrap()
    }

    /// A base as if the snapshot were gone and only a bookmark were left.
    pub(super) fn txg_base(&self, from: &Snapshot) -> Base {
        let info = BaseInfo {
            name: "bookmark".to_owned(),
            guid: from.record.guid,
            is_origin: false,
            ivset_guid: 0,
            redact_snaps: None,
        };
        Base::Txg { txg: from.id.txg, from: info }
    }
}

/// A record with its payload, without padding.
pub(super) type Parsed = (Record, Vec<u8>);

pub(super) fn run(plan: &SendPlan) -> Result<Vec<u8>, SendError> {
    let mut out = Vec::new();
    plan.run(&mut out, &|_| {})?;
    Ok(out)
}

/// Sends one step, and parses the stream with all checks of a reader.
pub(super) fn send(step: Step) -> Vec<Parsed> {
    let plan = SendPlan::of(vec![step], None);
    let stream = run(&plan).unwrap();
    let size: u64 = plan.estimate().unwrap().iter().map(|step| step.size).sum();
    assert_eq!(size, stream.len() as u64, "the estimate is not exact");
    parse(&stream)
}

pub(super) fn resumed(step: &Step, object: u64, offset: u64) -> Step {
    Step { resume: Some(Resume { object, offset }), ..step.clone() }
}

pub(super) fn parse(stream: &[u8]) -> Vec<Parsed> {
    let mut reader = Reader::new(stream);
    let (mut records, mut payload) = (Vec::new(), Vec::new());
    while let Some(positioned) = reader.next(&mut payload).unwrap() {
        let len = usize::try_from(positioned.record.content_len()).unwrap();
        records.push((positioned.record, payload[..len].to_vec()));
    }
    records
}
