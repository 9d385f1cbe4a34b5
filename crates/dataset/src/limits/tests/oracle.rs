//! Counts which blocks each root reaches. All space numbers of zfsprops(7) follow from that alone.

use std::collections::{BTreeMap, BTreeSet};

use snowmelt_pool::{BlockPtr, View};

use crate::catalog::{Catalog, Dataset, SpaceReader};
use crate::datasets::Datasets;
use crate::objset::{Block, ObjsetKey};

/// Identifies a block: by its place, or by its key and birth if it is embedded in its pointer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Segment(u64, u32),
    Embedded { birth: u64, key: Vec<u8> },
}

/// Physical and logical size.
type Blocks = BTreeMap<Place, (u64, u64)>;

fn blocks(view: &View) -> Blocks {
    let mut found = Blocks::new();
    let mut add = |ptr: &BlockPtr, key: &[u8]| {
        let place = match ptr {
            BlockPtr::Stored(ptr) => Place::Segment(ptr.segment.0, ptr.offset),
            BlockPtr::Embedded { .. } | BlockPtr::Outside(_) => {
                Place::Embedded { birth: ptr.birth(), key: key.to_vec() }
            }
        };
        let twice = found.insert(place, (ptr.asize(), u64::from(ptr.lsize())));
        assert_eq!(twice, None, "a root reaches a block twice");
    };
    for node in view.nodes_since(0) {
        add(&BlockPtr::Stored(node.unwrap()), &[]);
    }
    for item in view.range(&[], None) {
        let (key, entry) = item.unwrap();
        if let ObjsetKey::Block { .. } | ObjsetKey::Spill { .. } = ObjsetKey::decode(&key).unwrap() {
            add(&Block::decode(&entry.value).unwrap().ptr, &key);
        }
    }
    found
}

/// Sums of the blocks in `all` for which `keep` returns true.
fn sum(all: &Blocks, keep: impl Fn(&Place) -> bool) -> (u64, u64) {
    let kept = all.iter().filter(|(place, _)| keep(place));
    kept.fold((0, 0), |sum, (_, size)| (sum.0 + size.0, sum.1 + size.1))
}

/// A dataset's history: its origin, its snapshots, its head.
struct History {
    origin: Blocks,
    /// By txg, oldest first.
    snapshots: Vec<(u64, Blocks)>,
    head: Blocks,
}

impl History {
    fn of(catalog: &Catalog, dataset: &Dataset) -> Self {
        let root = |root| blocks(&catalog.pool().view(root));
        let origin = dataset.record.origin.map(|origin| catalog.snapshot_by_id(origin).unwrap().record.root);
        let snapshots = catalog.snapshots(dataset).map(|snapshot| {
            let snapshot = snapshot.unwrap();
            (snapshot.id.txg, root(snapshot.record.root))
        });
        let snapshots = snapshots.collect();
        let head = blocks(&catalog.pool().tree(dataset.record.head).unwrap().view());
        Self { origin: origin.map(root).unwrap_or_default(), snapshots, head }
    }

    /// Everything that only snapshots use.
    fn held(&self) -> (u64, u64) {
        let mut all = Blocks::new();
        for (_, snapshot) in &self.snapshots {
            all.extend(snapshot.clone());
        }
        sum(&all, |place| !self.head.contains_key(place) && !self.origin.contains_key(place))
    }

    fn newest(&self) -> &Blocks {
        self.snapshots.last().map_or(&self.origin, |(_, newest)| newest)
    }
}

/// Space of an interrupted receive in addition to the head. It counts as used until the receive continues or is
/// abandoned.
fn received_beside(catalog: &Catalog, dataset: &Dataset) -> u64 {
    let state = catalog.receive_state(dataset.id).unwrap();
    let Some(state) = state.filter(|state| state.tree != dataset.record.head) else { return 0 };
    let base = state.base.map(|base| {
        let base = catalog.snapshot_by_id(base).unwrap();
        blocks(&catalog.pool().view(base.record.root))
    });
    let base = base.unwrap_or_default();
    let partial = blocks(&catalog.pool().tree(state.tree).unwrap().view());
    sum(&partial, |place| !base.contains_key(place)).0
}

/// Compares all reported numbers with the counted ones.
pub(super) fn compare(datasets: &Datasets, when: &str) {
    datasets.pool().commit().unwrap();
    let catalog = datasets.catalog();
    let reader = SpaceReader::new(&catalog);
    let mut used: BTreeMap<u64, u64> = BTreeMap::new();
    let all = catalog.descendants(catalog.root().unwrap()).unwrap();
    for dataset in all.iter().rev() {
        let name = &dataset.name;
        let history = History::of(&catalog, dataset);
        let totals = reader.totals(dataset).unwrap();
        let own = totals.own;
        let referenced = sum(&history.head, |_| true);
        assert_eq!(
            (own.referenced.physical, own.referenced.logical),
            referenced,
            "referenced of {name}, {when}"
        );
        let mine = sum(&history.head, |place| !history.origin.contains_key(place));
        assert_eq!(own.used_by_dataset, mine.0, "usedbydataset of {name}, {when}");
        let held = history.held();
        assert_eq!(own.used_by_snapshots, held.0, "usedbysnapshots of {name}, {when}");
        assert_eq!(own.logical_used, mine.1 + held.1, "logicalused of {name}, {when}");
        let fresh = sum(&history.head, |place| !history.newest().contains_key(place)).0;
        assert_eq!(own.written, fresh, "written of {name}, {when}");
        compare_snapshots(&catalog, dataset, &history, when);
        let limits = catalog.limits_of(dataset.id).unwrap();
        let below: u64 = used.remove(&dataset.id.0).unwrap_or(0);
        let kept = limits.refreservation.saturating_sub(fresh);
        let total = mine.0 + held.0 + kept + below + received_beside(&catalog, dataset);
        assert_eq!(totals.used, total, "used of {name}, {when}");
        *used.entry(dataset.record.parent.0).or_default() += total.max(limits.reservation);
        compare_table(datasets, dataset, total, fresh, when);
    }
}

/// Compares the table of limits too: every dataset here is below a quota.
fn compare_table(datasets: &Datasets, dataset: &Dataset, used: u64, unique: u64, when: &str) {
    let known = datasets.pool().quiesced(|| {
        let look = |table: &mut crate::limits::Table| {
            table.nodes.get(&dataset.id).map(|node| (node.used(), node.unique))
        };
        datasets.limits.settled(look).unwrap()
    });
    assert_eq!(known, Some((used, unique)), "used and unique of {} as limits know it, {when}", dataset.name);
}

fn compare_snapshots(catalog: &Catalog, dataset: &Dataset, history: &History, when: &str) {
    let snapshots: Vec<_> = catalog.snapshots(dataset).map(Result::unwrap).collect();
    for (at, snapshot) in snapshots.iter().enumerate() {
        let name = snapshot.full_name();
        let here = &history.snapshots[at].1;
        let before = at.checked_sub(1).map_or(&history.origin, |at| &history.snapshots[at].1);
        let after = history.snapshots.get(at + 1).map_or(&history.head, |(_, after)| after);
        let space = catalog.snapshot_space(snapshot).unwrap();
        assert_eq!(
            (space.referenced.physical, space.referenced.logical),
            sum(here, |_| true),
            "referenced of {name}, {when}"
        );
        let alone = sum(here, |place| !before.contains_key(place) && !after.contains_key(place)).0;
        assert_eq!(space.used, alone, "used of {name}, {when}");
        let fresh = sum(here, |place| !before.contains_key(place)).0;
        assert_eq!(space.written, fresh, "written of {name}, {when}");
        for (later, (_, blocks)) in history.snapshots.iter().enumerate().skip(at + 1) {
            let written = catalog.written_since(dataset, snapshot, Some(&snapshots[later])).unwrap();
            let fresh = sum(blocks, |place| !here.contains_key(place)).0;
            assert_eq!(written, fresh, "written@ since {name} of {}, {when}", snapshots[later].full_name());
        }
        let written = catalog.written_since(dataset, snapshot, None).unwrap();
        let fresh = sum(&history.head, |place| !here.contains_key(place)).0;
        assert_eq!(written, fresh, "written@ since {name}, {when}");
    }
    let distinct: BTreeSet<u64> = history.snapshots.iter().map(|(txg, _)| *txg).collect();
    assert_eq!(distinct.len(), snapshots.len());
}
