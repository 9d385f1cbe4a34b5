//! `destroy`: destroys snapshots and datasets, alone or in groups.

use std::collections::BTreeSet;

use crate::catalog::{Catalog, Dataset, Found, Snapshot, SnapshotId, keys};
use crate::datasets::{Change, Datasets};
use crate::error::DatasetError;
use crate::name::Name;
use crate::ops::free::{free_dead, free_tree, merge};

/// What a destroy will remove, in order. It is made from a [`Catalog`], so `-n` changes nothing.
#[derive(Debug, Clone, Default)]
pub struct DestroyPlan {
    /// Snapshots, each before everything it depends on.
    pub snapshots: Vec<Snapshot>,
    /// Filesystems and volumes, children before parents, clones before origins. Their snapshots are in
    /// [`DestroyPlan::snapshots`], or are destroyed with them.
    pub datasets: Vec<Dataset>,
    /// Bytes that will be freed.
    pub reclaim: u64,
}

impl DestroyPlan {
    /// Plans the destruction of a filesystem or volume. The root of a pool is kept; with `recursive` everything else in
    /// the pool is destroyed.
    ///
    /// # Errors
    /// [`DatasetError::Refused`] for the root of a pool without `recursive`, and when the root is a clone that would be
    /// destroyed; [`DatasetError::HasChildren`] without `recursive`, [`DatasetError::HasClones`] without `clones`,
    /// [`DatasetError::Held`], [`DatasetError::Busy`].
    pub fn dataset(
        catalog: &Catalog,
        dataset: &Dataset,
        recursive: bool,
        clones: bool,
    ) -> Result<Self, DatasetError> {
        if dataset.id == crate::catalog::ROOT {
            return Self::everything(catalog, dataset, recursive || clones);
        }
        let children = catalog.children(dataset)?;
        let has_snapshots = catalog.newest_snapshot(dataset)?.is_some();
        if !(recursive || clones) && (has_snapshots || !children.is_empty()) {
            let mut names = Vec::new();
            for below in catalog.descendants(dataset.clone())? {
                for snapshot in catalog.snapshots(&below) {
                    names.push(snapshot?.full_name());
                }
                if below.id != dataset.id {
                    names.push(below.name);
                }
            }
            return Err(DatasetError::HasChildren { name: dataset.name.clone(), children: names });
        }
        let mut plan = Self::default();
        let mut seen = Seen::default();
        plan.add_dataset(catalog, dataset, clones, &mut seen)?;
        Ok(plan)
    }

    /// All datasets and snapshots of a pool except its root.
    fn everything(catalog: &Catalog, root: &Dataset, recursive: bool) -> Result<Self, DatasetError> {
        if !recursive {
            let name = &root.name;
            let why = format!(
                "operation does not apply to pools\nuse 'zfs destroy -r {name}' to destroy all datasets in the pool\n\
                 use 'zpool destroy {name}' to destroy the pool itself"
            );
            return Err(DatasetError::refused(name.clone(), why));
        }
        let mut plan = Self::default();
        let mut seen = Seen::default();
        for child in catalog.children(root)? {
            // Clones are destroyed wherever they are in the pool.
            plan.add_dataset(catalog, &child, true, &mut seen)?;
        }
        let own = catalog.snapshots(root).collect::<Result<Vec<_>, _>>()?;
        for snapshot in &own {
            if !catalog.holds(snapshot.id)?.is_empty() {
                return Err(DatasetError::Held { name: snapshot.full_name() });
            }
        }
        plan.reclaim = plan.reclaim.saturating_add(catalog.dataset_space(root)?.used_by_snapshots);
        plan.snapshots.extend(own);
        Ok(plan)
    }

    fn add_dataset(
        &mut self,
        catalog: &Catalog,
        dataset: &Dataset,
        clones: bool,
        seen: &mut Seen,
    ) -> Result<(), DatasetError> {
        if dataset.id == crate::catalog::ROOT {
            // After a promotion the root may be a clone.
            let why = "the root of the pool is a clone of what would be destroyed; promote it first";
            return Err(DatasetError::refused(dataset.name.clone(), why));
        }
        let all = catalog.descendants(dataset.clone())?;
        let inside: BTreeSet<_> = all.iter().map(|below| below.id).collect();
        for below in all.iter().rev() {
            if !seen.datasets.insert(below.id) {
                continue;
            }
            let snapshots = catalog.snapshots(below).collect::<Result<Vec<_>, _>>()?;
            for snapshot in &snapshots {
                if !catalog.holds(snapshot.id)?.is_empty() {
                    return Err(DatasetError::Held { name: snapshot.full_name() });
                }
                for clone in catalog.clones(snapshot.id)? {
                    if inside.contains(&clone.id) || clones {
                        seen.enter(dataset)?;
                        self.add_dataset(catalog, &clone, clones, seen)?;
                        seen.depth -= 1;
                    } else {
                        return Err(DatasetError::HasClones {
                            name: dataset.name.clone(),
                            clones: vec![clone.name],
                        });
                    }
                }
            }
            let space = catalog.dataset_space(below)?;
            let space = space.used_by_dataset.saturating_add(space.used_by_snapshots);
            self.reclaim = self.reclaim.saturating_add(space);
            self.snapshots.extend(snapshots);
            self.datasets.push(below.clone());
        }
        Ok(())
    }

    /// Plans the destruction of snapshots. With `recursive`, snapshots of the same names in all descendants are
    /// included; with `clones`, all clones of them.
    ///
    /// # Errors
    /// [`DatasetError::Held`], [`DatasetError::HasClones`].
    pub fn snapshots(
        catalog: &Catalog,
        snapshots: Vec<Snapshot>,
        clones: bool,
    ) -> Result<Self, DatasetError> {
        let mut plan = Self::default();
        let mut seen = Seen::default();
        for snapshot in &snapshots {
            if !catalog.holds(snapshot.id)?.is_empty() {
                return Err(DatasetError::Held { name: snapshot.full_name() });
            }
            let dependent = catalog.clones(snapshot.id)?;
            if !dependent.is_empty() && !clones {
                return Err(DatasetError::HasClones {
                    name: snapshot.full_name(),
                    clones: dependent.into_iter().map(|clone| clone.name).collect(),
                });
            }
            for clone in dependent {
                plan.add_dataset(catalog, &clone, clones, &mut seen)?;
            }
        }
        plan.reclaim = plan.reclaim.saturating_add(reclaimed_together(catalog, &snapshots)?);
        plan.snapshots.extend(snapshots);
        Ok(plan)
    }

    /// Plans the destruction of datasets and snapshots together. They may be clones, origins, parents and children of
    /// one another, but nothing else may depend on them.
    ///
    /// # Errors
    /// [`DatasetError::Held`]; [`DatasetError::HasChildren`] and [`DatasetError::HasClones`] when children or clones
    /// are not in the list.
    pub(crate) fn together(
        catalog: &Catalog,
        datasets: &[Dataset],
        snapshots: Vec<Snapshot>,
    ) -> Result<Self, DatasetError> {
        let mut plan = Self::default();
        let among: BTreeSet<_> = datasets.iter().map(|dataset| dataset.id).collect();
        let mut seen = Seen::default();
        for dataset in datasets {
            plan.add_among(catalog, dataset, &among, &mut seen)?;
        }
        for snapshot in &snapshots {
            check_snapshot(catalog, snapshot, &among)?;
        }
        plan.snapshots.extend(snapshots);
        Ok(plan)
    }

    fn add_among(
        &mut self,
        catalog: &Catalog,
        dataset: &Dataset,
        among: &BTreeSet<crate::DatasetId>,
        seen: &mut Seen,
    ) -> Result<(), DatasetError> {
        if !seen.datasets.insert(dataset.id) {
            return Ok(());
        }
        seen.enter(dataset)?;
        let children = catalog.children(dataset)?;
        let other = |child: &&Dataset| !among.contains(&child.id);
        if let Some(child) = children.iter().find(other) {
            let children = vec![child.name.clone()];
            return Err(DatasetError::HasChildren { name: dataset.name.clone(), children });
        }
        for child in &children {
            self.add_among(catalog, child, among, seen)?;
        }
        let snapshots = catalog.snapshots(dataset).collect::<Result<Vec<_>, _>>()?;
        for snapshot in &snapshots {
            for clone in check_snapshot(catalog, snapshot, among)? {
                self.add_among(catalog, &clone, among, seen)?;
            }
        }
        self.snapshots.extend(snapshots);
        self.datasets.push(dataset.clone());
        seen.depth -= 1;
        Ok(())
    }

    /// The snapshots of a range `first%last`, with either end optional. The names are those of one dataset.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`] when an end does not exist, or the ends are in the wrong order.
    pub fn range(
        catalog: &Catalog,
        dataset: &Dataset,
        first: Option<&str>,
        last: Option<&str>,
    ) -> Result<Vec<Snapshot>, DatasetError> {
        let end = |name: &str| catalog.snapshot(&Name::parse(&format!("{}@{name}", dataset.name))?);
        let from = first.map(end).transpose()?.map_or(0, |snapshot| snapshot.id.txg);
        let to = last.map(end).transpose()?.map_or(u64::MAX, |snapshot| snapshot.id.txg);
        let mut found = Vec::new();
        for snapshot in catalog.snapshots_after(dataset, from.saturating_sub(1)) {
            let snapshot = snapshot?;
            if snapshot.id.txg <= to {
                found.push(snapshot);
            }
        }
        if found.is_empty() {
            return Err(DatasetError::NotFound {
                name: format!("{}@{}%{}", dataset.name, first.unwrap_or(""), last.unwrap_or("")),
            });
        }
        Ok(found)
    }
}

/// The datasets that a plan has visited.
#[derive(Default)]
struct Seen {
    datasets: BTreeSet<crate::DatasetId>,
    /// How many clones lie between the current dataset and the first one.
    depth: usize,
}

/// Maximal depth of clones of clones, because each takes stack space.
const DEPTH_MAX: usize = 1000;

impl Seen {
    fn enter(&mut self, dataset: &Dataset) -> Result<(), DatasetError> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            let why = format!(
                "it is the end of {DEPTH_MAX} clones of clones; promote or destroy some of these first"
            );
            return Err(DatasetError::refused(dataset.name.clone(), why));
        }
        Ok(())
    }
}

/// Checks that only datasets in `going` depend on a snapshot. Returns its clones.
fn check_snapshot(
    catalog: &Catalog,
    snapshot: &Snapshot,
    going: &BTreeSet<crate::DatasetId>,
) -> Result<Vec<Dataset>, DatasetError> {
    if !catalog.holds(snapshot.id)?.is_empty() {
        return Err(DatasetError::Held { name: snapshot.full_name() });
    }
    let clones = catalog.clones(snapshot.id)?;
    let staying: Vec<_> =
        clones.iter().filter(|clone| !going.contains(&clone.id)).map(|clone| clone.name.clone()).collect();
    match staying.is_empty() {
        true => Ok(clones),
        false => Err(DatasetError::HasClones { name: snapshot.full_name(), clones: staying }),
    }
}

/// Bytes that are freed when these snapshots are destroyed together: neighbours also free what only they share.
fn reclaimed_together(catalog: &Catalog, snapshots: &[Snapshot]) -> Result<u64, DatasetError> {
    let going: BTreeSet<SnapshotId> = snapshots.iter().map(|snapshot| snapshot.id).collect();
    let mut datasets: Vec<_> = snapshots.iter().map(|snapshot| snapshot.id.dataset).collect();
    datasets.sort_unstable();
    datasets.dedup();
    let mut total = 0;
    for id in datasets {
        let dataset = catalog.dataset_by_id(id)?;
        // A block in the deadlist of a point is freed if it was born after the newest remaining snapshot before that
        // point.
        let mut floor = dataset.record.origin.map_or(0, |origin| origin.txg);
        let mut floor_of_point = Vec::new();
        for snapshot in catalog.snapshots(&dataset) {
            let snapshot = snapshot?;
            floor_of_point.push((snapshot.record.deadlist, floor));
            if !going.contains(&snapshot.id) {
                floor = snapshot.id.txg;
            }
        }
        floor_of_point.push((catalog.pool().tree(dataset.record.head)?.sharing().1, floor));
        for (deadlist, floor) in floor_of_point {
            if let Some(deadlist) = deadlist {
                let sum = snowmelt_pool::Deadlist::open(catalog.pool(), deadlist)?.sum(floor)?;
                total = sum.physical.saturating_add(total);
            }
        }
    }
    Ok(total)
}

impl Datasets {
    /// Executes a plan in one txg. Everything in the plan must still be as it was.
    ///
    /// # Errors
    /// When something became busy or held meanwhile; then nothing is destroyed.
    pub fn destroy(&self, plan: &DestroyPlan) -> Result<(), DatasetError> {
        let change = loop {
            self.settle()?;
            let change = self.freeing_change()?;
            if self.close_heads(&plan.datasets)? {
                break change;
            }
        };
        let catalog = change.catalog();
        let doomed: BTreeSet<_> = plan.datasets.iter().map(|dataset| dataset.id).collect();
        for snapshot in &plan.snapshots {
            let now = catalog.snapshot_by_id(snapshot.id).map_err(|error| match error {
                DatasetError::Corrupt { .. } => DatasetError::NotFound { name: snapshot.full_name() },
                other => other,
            })?;
            if !catalog.holds(now.id)?.is_empty() {
                return Err(DatasetError::Held { name: now.full_name() });
            }
            if catalog.clones(now.id)?.iter().any(|clone| !doomed.contains(&clone.id)) {
                return Err(DatasetError::Busy { name: now.full_name() });
            }
            if !doomed.contains(&now.id.dataset) && catalog.is_receive_base(now.id)? {
                return Err(DatasetError::Busy { name: now.full_name() });
            }
        }
        for dataset in &plan.datasets {
            let below = catalog.children(dataset)?;
            if below.iter().any(|child| !doomed.contains(&child.id)) {
                return Err(DatasetError::Busy { name: dataset.name.clone() });
            }
        }
        for dataset in &plan.datasets {
            change.destroy_head(dataset)?;
        }
        for snapshot in &plan.snapshots {
            if doomed.contains(&snapshot.id.dataset) {
                continue;
            }
            change.destroy_snapshot(snapshot.id)?;
        }
        for dataset in &plan.datasets {
            change.forget_dataset(dataset)?;
        }
        change.commit()
    }

    /// Closes the heads of datasets that will be destroyed. Returns `false` when one was written since the last commit.
    fn close_heads(&self, datasets: &[Dataset]) -> Result<bool, DatasetError> {
        for dataset in datasets {
            if self.is_receiving(dataset.id) {
                return Err(DatasetError::Busy { name: dataset.name.clone() });
            }
            if !self.close_head(dataset.id, &dataset.name)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// `destroy -d`: destroys a snapshot now, or when its last hold and clone are gone.
    ///
    /// # Errors
    /// When it does not exist.
    pub fn destroy_deferred(&self, name: &Name) -> Result<(), DatasetError> {
        let change = self.freeing_change()?;
        let mut snapshot = change.catalog().snapshot(name)?;
        snapshot.record.defer_destroy = true;
        change.put(&keys::snapshot(snapshot.id.dataset, snapshot.id.txg), &snapshot.record.encode())?;
        change.destroy_if_deferred(snapshot.id)?;
        change.commit()
    }
}

impl Change<'_> {
    /// Destroys a snapshot that nothing depends on. Blocks that only it uses are freed. Blocks that older snapshots
    /// also use move to the next point's deadlist.
    pub(crate) fn destroy_snapshot(&self, id: SnapshotId) -> Result<(), DatasetError> {
        let catalog = self.catalog();
        let snapshot = catalog.snapshot_by_id(id)?;
        let dataset = catalog.dataset_by_id(id.dataset)?;
        let previous = catalog.snapshot_before(&dataset, id.txg)?;
        let previous_txg = match previous {
            Some(previous) => previous.id.txg,
            None => dataset.record.origin.map_or(0, |origin| origin.txg),
        };
        let head = self.pool().tree(dataset.record.head)?;
        let next = catalog.snapshots_after(&dataset, id.txg).next().transpose()?;
        let next_deadlist = match &next {
            Some(next) => next.record.deadlist,
            None => head.sharing().1,
        };
        if let Some(deadlist) = next_deadlist {
            free_dead(self.pool(), &self.hold, deadlist, previous_txg)?;
        }
        let merged = merge(self.pool(), &self.hold, next_deadlist, snapshot.record.deadlist)?;
        match next {
            Some(mut next) => {
                next.record.deadlist = merged;
                self.put(&keys::snapshot(next.id.dataset, next.id.txg), &next.record.encode())?;
            }
            None => head.set_sharing(&self.hold, previous_txg, merged)?,
        }
        self.forget_snapshot(&snapshot)
    }

    /// Destroys a snapshot marked by `destroy -d` if nothing depends on it any more.
    pub(crate) fn destroy_if_deferred(&self, id: SnapshotId) -> Result<(), DatasetError> {
        let catalog = self.catalog();
        let snapshot = catalog.snapshot_by_id(id)?;
        let is_free = || -> Result<bool, DatasetError> {
            Ok(catalog.holds(id)?.is_empty()
                && catalog.clones(id)?.is_empty()
                && !catalog.is_receive_base(id)?)
        };
        if snapshot.record.defer_destroy && is_free()? {
            self.destroy_snapshot(id)?;
        }
        Ok(())
    }

    fn forget_snapshot(&self, snapshot: &Snapshot) -> Result<(), DatasetError> {
        let id = snapshot.id;
        self.delete(&keys::snapshot(id.dataset, id.txg))?;
        self.delete(&keys::snapshot_name(id.dataset, &snapshot.record.name))?;
        self.delete(&keys::guid(snapshot.record.guid, id.dataset, id.txg))?;
        self.delete(&keys::key_data(id.dataset, id.txg))?;
        self.delete_prefix(&keys::Key::new(keys::PROPERTY).id(id.dataset).u64(id.txg).done())
    }

    /// Frees everything that a dataset uses: snapshots, newest first, so that each frees only its own blocks, then the
    /// head.
    pub(crate) fn destroy_head(&self, dataset: &Dataset) -> Result<(), DatasetError> {
        self.abandon_receive(dataset)?;
        let catalog = self.catalog();
        let dataset = catalog.dataset_by_id(dataset.id)?;
        let newest = catalog.newest_snapshot(&dataset)?;
        let origin_txg = dataset.record.origin.map_or(0, |origin| origin.txg);
        free_tree(
            self.pool(),
            &self.hold,
            dataset.record.head,
            newest.as_ref().map_or(origin_txg, |s| s.id.txg),
        )?;
        let mut snapshots = catalog.snapshots(&dataset).collect::<Result<Vec<_>, _>>()?;
        while let Some(snapshot) = snapshots.pop() {
            let floor = snapshots.last().map_or(origin_txg, |older| older.id.txg);
            self.free_root(&snapshot, floor)?;
            self.forget_snapshot(&snapshot)?;
        }
        Ok(())
    }

    /// Frees the blocks of a snapshot that were born after `floor`. No newer snapshot may exist that could share them.
    fn free_root(&self, snapshot: &Snapshot, floor: u64) -> Result<(), DatasetError> {
        let pool = self.pool();
        let tree = pool.create_tree(&self.hold)?;
        tree.reset(&self.hold, snapshot.record.root.clone(), snapshot.record.stats)?;
        free_tree(pool, &self.hold, tree.id(), floor)?;
        if let Some(deadlist) = snapshot.record.deadlist {
            pool.destroy_tree(&self.hold, deadlist, 0)?;
        }
        Ok(())
    }

    /// Removes a dataset's records. Its space must be freed already.
    pub(crate) fn forget_dataset(&self, dataset: &Dataset) -> Result<(), DatasetError> {
        let record = &dataset.record;
        self.delete(&keys::dataset(dataset.id))?;
        self.delete(&keys::child(record.parent, &record.name))?;
        self.delete(&keys::key_data(dataset.id, 0))?;
        self.delete(&keys::key_root(dataset.id))?;
        self.delete(&keys::receive(dataset.id))?;
        self.delete_prefix(&keys::Key::new(keys::SOURCE).id(dataset.id).done())?;
        self.delete_prefix(&keys::Key::new(keys::LISTING).id(dataset.id).done())?;
        self.delete_prefix(&keys::Key::new(keys::PROPERTY).id(dataset.id).done())?;
        self.delete_prefix(&keys::Key::new(keys::BOOKMARK).id(dataset.id).done())?;
        if let Some(origin) = record.origin {
            self.delete(&keys::clone(origin.dataset, origin.txg, dataset.id))?;
            if !matches!(self.catalog().dataset_by_id(origin.dataset), Err(DatasetError::NotFound { .. }))
                && self.catalog().snapshot_by_id(origin).is_ok()
            {
                self.destroy_if_deferred(origin)?;
            }
        }
        Ok(())
    }
}

/// Resolves the snapshots of a destroy command: `fs@a,b,c%d`, with `recursive` also the same names in all descendants.
/// Returns them by dataset, oldest first, and the names that no dataset has.
///
/// # Errors
/// When the dataset does not exist. Names that no dataset has are an error only if nothing was found at all.
pub fn snapshots_named(
    catalog: &Catalog,
    dataset: &str,
    spec: &str,
    recursive: bool,
) -> Result<(Vec<Snapshot>, Vec<String>), DatasetError> {
    let top = catalog.dataset(dataset)?;
    let all = if recursive { catalog.descendants(top)? } else { vec![top] };
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    // As in ZFS, empty names in a list are skipped, and also words that cannot be a snapshot's name.
    for part in spec.split(',').filter(|part| !part.is_empty()) {
        let before = found.len();
        for below in &all {
            let these = match part.split_once('%') {
                Some((first, last)) => {
                    let end = |name: &'_ str| (!name.is_empty()).then(|| name.to_owned());
                    let (first, last) = (end(first), end(last));
                    DestroyPlan::range(catalog, below, first.as_deref(), last.as_deref())
                }
                None => match Name::parse(&format!("{}@{part}", below.name)) {
                    Ok(name) => match catalog.find(&name) {
                        Ok(Found::Snapshot(snapshot)) => Ok(vec![snapshot]),
                        Ok(_) => Ok(Vec::new()),
                        Err(error) => Err(error),
                    },
                    Err(_) => Ok(Vec::new()),
                },
            };
            match these {
                Ok(these) => found.extend(these),
                Err(DatasetError::NotFound { .. }) => {}
                Err(other) => return Err(other),
            }
        }
        if found.len() == before {
            missing.push(format!("{dataset}@{part}"));
        }
    }
    let mut seen = BTreeSet::new();
    found.retain(|snapshot| seen.insert(snapshot.id));
    found.sort_by(|a, b| a.dataset.cmp(&b.dataset).then(a.id.txg.cmp(&b.id.txg)));
    Ok((found, missing))
}
