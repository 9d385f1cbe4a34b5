//! A small dataset on a pool, with its model. Its values are block pointers, and its snapshots have deadlists as in ZFS
//! (`dsl_dataset_snapshot_sync_impl` and `dsl_destroy_snapshot_sync_impl` of OpenZFS).
#![allow(dead_code, clippy::unwrap_used)]

pub(crate) mod golden;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, OnceLock};

use snowmelt_pool::{
    BlockId, BlockPtr, Change, CheckOptions, CleanOptions, CleanReport, Deadlist, Diff, FrozenRoot, Hold,
    KeyFormat, Keys, LiveRoot, MetaScan, NewPool, PassphraseCost, Pool, PoolError, PoolOptions, Prepared,
    Result, Roots, ScrubPlan, ScrubRoots, StoredPtr, Suite, Tree, TreeId, Txg, View, Wrap,
};
use snowmelt_store::Store;
use snowmelt_stream::compress::Compression;

pub(crate) const HEAD: u8 = 0x20;
pub(crate) const SNAPSHOT: u8 = 0x21;

/// Key to birth and content.
pub(crate) type Content = BTreeMap<Vec<u8>, (Txg, Vec<u8>)>;

/// The expected content of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Model {
    pub(crate) live: Content,
    pub(crate) snapshots: BTreeMap<Txg, Content>,
}

pub(crate) struct Mini {
    pub(crate) pool: Arc<Pool>,
    pub(crate) head: Arc<Tree>,
    pub(crate) model: Model,
    /// The model as of each commit.
    pub(crate) committed: BTreeMap<Txg, Model>,
}

struct SnapshotRecord {
    root: Option<StoredPtr>,
    deadlist: TreeId,
}

impl SnapshotRecord {
    fn encode(&self) -> Vec<u8> {
        let mut out = self.deadlist.0.to_le_bytes().to_vec();
        if let Some(root) = &self.root {
            BlockPtr::Stored(root.clone()).encode(&mut out);
        }
        out
    }

    fn decode(bytes: &[u8]) -> Self {
        let (id, mut rest) = bytes.split_first_chunk::<8>().unwrap();
        let root = (!rest.is_empty()).then(|| match BlockPtr::decode(&mut rest).unwrap() {
            BlockPtr::Stored(ptr) => ptr,
            _ => panic!("a root that is not stored"),
        });
        SnapshotRecord { root, deadlist: TreeId(u64::from_le_bytes(*id)) }
    }
}

fn snapshot_key(txg: Txg) -> Vec<u8> {
    [&[SNAPSHOT][..], &txg.to_be_bytes()].concat()
}

/// Small sizes, so that a few keys make deep trees and many segments.
pub(crate) fn small() -> PoolOptions {
    PoolOptions {
        node_bytes: 256,
        segment_bytes: 64 << 10,
        buffer_bytes: 1 << 10,
        data_cache_bytes: 1 << 20,
        node_cache_bytes: 1 << 20,
        clock: || 1_700_000_000,
        keys: always_encrypted(),
        ..PoolOptions::default()
    }
}

/// If the variable is set to the name of a suite, these tests use encrypted pools.
fn always_encrypted() -> Option<Keys> {
    static KEYS: OnceLock<Option<Keys>> = OnceLock::new();
    let keys =
        || std::env::var("SNOWMELT_TEST_ENCRYPT").ok().map(|name| keys(Suite::of_name(&name).unwrap()));
    KEYS.get_or_init(keys).clone()
}

/// The user's key of [`keys`].
pub(crate) const RAW_KEY: [u8; 32] = [7; 32];

/// A key of a pool.
pub(crate) fn keys(suite: Suite) -> Keys {
    Keys::new(42, suite, &raw(&RAW_KEY)).unwrap()
}

pub(crate) fn raw(material: &[u8]) -> Wrap<'_> {
    let cost = PassphraseCost::default();
    Wrap { format: KeyFormat::Raw, location: "file:///keys/tank", material, cost }
}

/// A key of varying length that keeps the order of `n`.
pub(crate) fn key(n: u16) -> Vec<u8> {
    let mut out = vec![b'k', b'e', b'y'];
    out.extend_from_slice(&n.to_be_bytes());
    out.resize(5 + usize::from(n % 7) * 6, 0xa5);
    out
}

impl Mini {
    pub(crate) fn create(store: Box<dyn Store>, options: PoolOptions) -> Result<Self> {
        let pool = Pool::create(store, &NewPool { name: "tank", guid: 42 }, options)?;
        let mut mini = {
            let hold = pool.begin()?;
            let head = pool.create_tree(&hold)?;
            let deadlist = Deadlist::create(&hold)?;
            head.set_sharing(&hold, 0, Some(deadlist.id()))?;
            pool.meta().insert(&hold, &[HEAD], &head.id().0.to_le_bytes())?;
            drop(hold);
            Mini { pool, head, model: Model::default(), committed: BTreeMap::new() }
        };
        mini.commit()?;
        Ok(mini)
    }

    /// Opens the pool. The model is the one in `committed` for the opened txg.
    pub(crate) fn open(
        store: Box<dyn Store>,
        options: PoolOptions,
        committed: &BTreeMap<Txg, Model>,
    ) -> Result<Option<Self>> {
        Self::of(Pool::open(store, options)?, committed)
    }

    /// The dataset of an open pool.
    pub(crate) fn of(pool: Arc<Pool>, committed: &BTreeMap<Txg, Model>) -> Result<Option<Self>> {
        let txg = pool.open_report().txg;
        let Some(entry) = pool.meta().get(&[HEAD])? else {
            assert!(!committed.contains_key(&txg), "txg {txg} lost its head");
            return Ok(None);
        };
        let id = u64::from_le_bytes(entry.value[..].try_into().unwrap());
        let head = pool.tree(TreeId(id))?;
        let model = committed.get(&txg).unwrap_or_else(|| panic!("txg {txg} was never committed"));
        let mut committed = committed.clone();
        // The first write publishes the state again, with the txg before the open one.
        committed.insert(pool.open_txg() - 1, model.clone());
        Ok(Some(Mini { pool, head, model: model.clone(), committed }))
    }

    fn forget(&self, hold: &Hold<'_>, value: &[u8]) -> Result<()> {
        self.head.release(hold, &BlockPtr::decode(&mut &value[..])?)
    }

    pub(crate) fn put(&mut self, key: &[u8], data: &[u8]) -> Result<()> {
        let hold = self.pool.begin()?;
        let block = Prepared::compress(data, Compression::Lz4);
        let ptr = hold.write(self.head.id(), BlockId { object: 1, blkid: 2 }, block)?;
        let mut value = Vec::new();
        ptr.encode(&mut value);
        self.head.retain(&hold, &ptr)?;
        if let Some(old) = self.head.insert(&hold, key, &value)? {
            self.forget(&hold, &old.value)?;
        }
        self.model.live.insert(key.to_vec(), (hold.txg(), data.to_vec()));
        Ok(())
    }

    pub(crate) fn remove(&mut self, key: &[u8]) -> Result<()> {
        let hold = self.pool.begin()?;
        let old = self.head.remove(&hold, key)?;
        assert_eq!(old.is_some(), self.model.live.remove(key).is_some());
        if let Some(old) = old {
            self.forget(&hold, &old.value)?;
        }
        Ok(())
    }

    pub(crate) fn remove_range(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        let hold = self.pool.begin()?;
        let mut gone = Vec::new();
        self.head.remove_range(&hold, from, to, &mut |key, entry| {
            gone.push(key.to_vec());
            self.forget(&hold, &entry.value)
        })?;
        if from < to {
            let range = (Bound::Included(from.to_vec()), Bound::Excluded(to.to_vec()));
            let expected: Vec<_> = self.model.live.range(range).map(|(key, _)| key.clone()).collect();
            assert_eq!(gone, expected);
        }
        for key in gone {
            self.model.live.remove(&key);
        }
        Ok(())
    }

    pub(crate) fn commit(&mut self) -> Result<Txg> {
        // Inserted before the commit, because after a crash the pool may have either state.
        let txg = self.pool.open_txg();
        self.committed.insert(txg, self.model.clone());
        self.pool.commit()
    }

    pub(crate) fn snapshot(&mut self) -> Result<Txg> {
        let txg = self.pool.open_txg();
        self.model.snapshots.insert(txg, self.model.live.clone());
        self.committed.insert(txg, self.model.clone());
        self.pool.sync_task(|hold| {
            let root = self.head.freeze(hold)?;
            let (_, deadlist) = self.head.sharing();
            let record = SnapshotRecord { root, deadlist: deadlist.unwrap() };
            self.pool.meta().insert(hold, &snapshot_key(hold.txg()), &record.encode())?;
            let fresh = Deadlist::create(hold)?;
            self.head.set_sharing(hold, hold.txg(), Some(fresh.id()))?;
            assert_eq!(hold.txg(), txg);
            Ok::<(), PoolError>(())
        })?;
        Ok(txg)
    }

    /// Destroys the `n`th snapshot (modulo their number).
    pub(crate) fn destroy_snapshot(&mut self, n: usize) -> Result<()> {
        let txgs: Vec<Txg> = self.model.snapshots.keys().copied().collect();
        if txgs.is_empty() {
            return Ok(());
        }
        let at = n % txgs.len();
        let txg = txgs[at];
        let previous = at.checked_sub(1).map_or(0, |at| txgs[at]);
        let hold = self.pool.begin_free()?;
        let meta = self.pool.meta();
        let gone = SnapshotRecord::decode(&meta.remove(&hold, &snapshot_key(txg))?.unwrap().value);
        let next = match txgs.get(at + 1) {
            Some(next) => SnapshotRecord::decode(&meta.get(&snapshot_key(*next))?.unwrap().value).deadlist,
            None => self.head.sharing().1.unwrap(),
        };
        let mine = Deadlist::open(&self.pool, gone.deadlist)?;
        let next = Deadlist::open(&self.pool, next)?;
        let expected = next.sum(previous)?;
        let mut freed = 0;
        next.take_after(&hold, previous, &mut |dead| {
            freed += dead.asize;
            self.pool.free(&hold, dead.segment, dead.offset, dead.asize)
        })?;
        assert_eq!(expected.physical, freed);
        next.merge(&hold, &mine)?;
        self.pool.destroy_tree(&hold, gone.deadlist, 0)?;
        if at + 1 == txgs.len() {
            self.head.set_sharing(&hold, previous, Some(next.id()))?;
        }
        self.model.snapshots.remove(&txg);
        Ok(())
    }

    /// Cleans in several txgs. This changes no content.
    pub(crate) fn clean(&mut self) -> Result<CleanReport> {
        const TXGS_MAX: u64 = 32;
        let first = self.pool.open_txg();
        for txg in first..first + TXGS_MAX {
            self.committed.insert(txg, self.model.clone());
        }
        let report = self.pool.clean(&self.pool.turn(), &MiniRoots, &CleanOptions::default())?;
        let last = self.pool.committed_txg();
        assert!(last < first + TXGS_MAX);
        self.committed.retain(|txg, _| *txg <= last);
        Ok(report)
    }

    pub(crate) fn snapshot_view(&self, txg: Txg) -> Result<View> {
        let record = self.pool.meta().get(&snapshot_key(txg))?.unwrap();
        Ok(self.pool.view(SnapshotRecord::decode(&record.value).root))
    }

    /// Verifies that everything matches the model.
    pub(crate) fn verify(&self) -> Result<()> {
        verify_view(&self.pool, &self.head.view(), &self.model.live)?;
        let snapshots = self.pool.meta().view().range(&[SNAPSHOT], Some(&[SNAPSHOT + 1]));
        let txgs = snapshots.map(|item| Ok(u64::from_be_bytes(item?.0[1..].try_into().unwrap())));
        let txgs = txgs.collect::<Result<Vec<Txg>>>()?;
        assert_eq!(txgs, self.model.snapshots.keys().copied().collect::<Vec<_>>());
        for (txg, content) in &self.model.snapshots {
            verify_view(&self.pool, &self.snapshot_view(*txg)?, content)?;
        }
        Ok(())
    }

    /// Verifies that every pair of states differs like the models, with both kinds of walks.
    pub(crate) fn verify_differences(&self, from: &[u8]) -> Result<()> {
        let mut states = Vec::new();
        for (txg, content) in &self.model.snapshots {
            states.push((*txg, self.snapshot_view(*txg)?, content));
        }
        states.push((0, self.head.view(), &self.model.live));
        for (at, (txg, old, old_content)) in states.iter().enumerate() {
            for (_, new, new_content) in &states[at..] {
                verify_diff(old, old_content, new, new_content, from)?;
                verify_diff(new, new_content, old, old_content, from)?;
                if *txg != 0 {
                    verify_changes(*txg, old_content, new, new_content, from)?;
                }
            }
        }
        Ok(())
    }

    /// Verifies that `check` finds nothing.
    pub(crate) fn check(&self) -> Result<()> {
        let mut findings = Vec::new();
        let report = self.pool.check(&MiniRoots, CheckOptions { data: true }, &mut |finding| {
            findings.push(finding);
        })?;
        assert!(report.errors == 0, "{report:?}: {findings:#?}");
        Ok(())
    }
}

pub(crate) struct MiniRoots;

impl Roots for MiniRoots {
    fn frozen(&self, meta: &View, each: &mut dyn FnMut(&str, Option<StoredPtr>) -> Result<()>) -> Result<()> {
        for item in meta.range(&[SNAPSHOT], Some(&[SNAPSHOT + 1])) {
            let (key, entry) = item?;
            each(&format!("{key:x?}"), SnapshotRecord::decode(&entry.value).root)?;
        }
        Ok(())
    }

    fn is_deadlist(&self, meta: &View, tree: TreeId) -> Result<bool> {
        for item in meta.range(&[SNAPSHOT], Some(&[SNAPSHOT + 1])) {
            if SnapshotRecord::decode(&item?.1.value).deadlist == tree {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn pointers(
        &self,
        _: Option<TreeId>,
        _: &[u8],
        mut value: &[u8],
        each: &mut dyn FnMut(&BlockPtr),
    ) -> Result<()> {
        each(&BlockPtr::decode(&mut value)?);
        Ok(())
    }
}

impl ScrubRoots for MiniRoots {
    fn plan(&self, meta: &MetaScan<'_>, frozen_until: Txg) -> Result<ScrubPlan> {
        let mut plan = ScrubPlan::default();
        let mut head = TreeId(0);
        meta.range(&[HEAD], &[HEAD + 1], &mut |_, entry| {
            head = TreeId(u64::from_le_bytes(entry.value[..].try_into().unwrap()));
            Ok(())
        })?;
        let (mut since, mut newest) = (0, 0);
        meta.range(&[SNAPSHOT], &[SNAPSHOT + 1], &mut |key, entry| {
            let txg = u64::from_be_bytes(key[1..].try_into().unwrap());
            let root = SnapshotRecord::decode(&entry.value).root;
            plan.frozen.push(FrozenRoot { owner: 1, tree: head, txg, guid: txg, since, root });
            since = txg;
            if txg <= frozen_until {
                newest = txg;
            }
            Ok(())
        })?;
        plan.live.insert(head, LiveRoot { owner: 1, since: newest });
        Ok(plan)
    }

    fn block_id(&self, _: &[u8]) -> BlockId {
        BlockId { object: 1, blkid: 2 }
    }
}

pub(crate) fn verify_view(pool: &Pool, view: &View, content: &Content) -> Result<()> {
    let mut expected = content.iter();
    for item in view.range(&[], None) {
        let (key, entry) = item?;
        let (want, (birth, data)) = expected.next().expect("a key too many");
        assert_eq!((&key, entry.birth), (want, *birth));
        assert_eq!(pool.read(&BlockPtr::decode(&mut &entry.value[..])?)?, data[..]);
        assert_eq!(view.get(&key)?.as_ref(), Some(&entry));
    }
    assert_eq!(expected.next(), None, "a key is missing");
    for probe in [0, 3, 77, 150, u16::MAX] {
        let probe = key(probe);
        let before = content.range(..probe.clone()).next_back().map(|(key, _)| key.clone());
        assert_eq!(view.last_before(&probe)?.map(|(key, _)| key), before);
        let after: Vec<_> = content.range(probe.clone()..).take(3).map(|(key, _)| key.clone()).collect();
        let found: Result<Vec<_>> = view.range(&probe, None).take(3).map(|i| i.map(|i| i.0)).collect();
        assert_eq!(found?, after);
        assert_eq!(view.get(&probe)?.is_some(), content.contains_key(&probe));
    }
    Ok(())
}

fn verify_diff(
    old: &View,
    old_content: &Content,
    new: &View,
    new_content: &Content,
    from: &[u8],
) -> Result<()> {
    let mut keys: Vec<_> = old_content.keys().chain(new_content.keys()).cloned().collect();
    keys.sort();
    keys.dedup();
    let births = |content: &Content, key: &Vec<u8>| content.get(key).map(|(birth, _)| *birth);
    let expected: Vec<_> = keys
        .into_iter()
        .filter(|key| key.as_slice() >= from && old_content.get(key) != new_content.get(key))
        .map(|key| (births(old_content, &key), births(new_content, &key), key))
        .collect();
    let mut found = Vec::new();
    for diff in View::diff(old, new, from) {
        found.push(match diff? {
            Diff::Removed { key, old } => (Some(old.birth), None, key),
            Diff::Added { key, new } => (None, Some(new.birth), key),
            Diff::Changed { key, old, new } => (Some(old.birth), Some(new.birth), key),
        });
    }
    assert_eq!(found, expected);
    Ok(())
}

/// Applies the changes since a snapshot to it. The result must be the new state, as an incremental stream from a
/// bookmark requires.
fn verify_changes(since: Txg, old: &Content, new: &View, new_content: &Content, from: &[u8]) -> Result<()> {
    let mut patched = old.clone();
    let mut reach = from.to_vec();
    let mut at_end = false;
    for change in new.changes_since(since, from) {
        match change? {
            Change::Leaf { low, high } => {
                assert!(!at_end && low >= reach, "leaves overlap or go backwards");
                let end = high.clone().map_or(Bound::Unbounded, Bound::Excluded);
                let gone: Vec<_> =
                    patched.range((Bound::Included(low.clone()), end)).map(|(key, _)| key.clone()).collect();
                gone.iter().for_each(|key| drop(patched.remove(key)));
                at_end = high.is_none();
                reach = high.unwrap_or_default();
            }
            Change::Entry { key, entry } => {
                assert!(key.as_slice() >= from && (at_end || key < reach));
                let (birth, data) = &new_content[&key];
                assert_eq!(entry.birth, *birth);
                if *birth <= since {
                    assert_eq!(old.get(&key), Some(&(*birth, data.clone())), "an old entry is in both");
                }
                patched.insert(key, (*birth, data.clone()));
            }
        }
    }
    let tail = |content: &Content| {
        content.range(from.to_vec()..).map(|(k, v)| (k.clone(), v.clone())).collect::<Vec<_>>()
    };
    assert_eq!(tail(&patched), tail(new_content));
    Ok(())
}
