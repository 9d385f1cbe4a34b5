//! Syncs that are cut off: each continues, little is sent twice, and the result is equal.
//!
//! These bytes may be sent twice after a cut:
//!
//! - The connection breaks and the receiver lives: the bytes in flight, and the record that was cut. Everything that
//!   reached the receiver is kept.
//! - The receiver dies too: additionally, the contents of its open txg. That is at most [`DIRTY_MAX`] plus the data
//!   that was being applied when that limit was reached.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Cut, DIRTY_MAX, How, MIB, Outcome, Random, TestPool, name, size, sync};
use snowmelt_dataset::{CloneOptions, DestroyPlan, RenameOptions};
use snowmelt_replicate::FailureKind;

/// Bytes in a pair of sockets, in the record that is cut, in a request, and in the beginning of a stream.
const ON_ITS_WAY: u64 = MIB;
/// Bytes that a receiver may have in memory besides its txg: a window of the channel and a batch of records.
const BEING_APPLIED: u64 = 6 * MIB;

/// Which side is cut off.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Side {
    Source,
    Target,
    TargetDies,
}

fn source_of(size: u64) -> TestPool {
    let source = TestPool::new("tank");
    source.volume("tank/vol", size);
    source.write("tank/vol", 0, size, &mut Random(1));
    source.snapshot("tank/vol@1");
    source
}

/// Syncs a volume, and cuts the connection after each `step` bytes. Returns the bytes that were sent to the target, and
/// the number of cuts.
fn cut_every(source: &TestPool, step: u64, side: Side) -> (u64, u64) {
    let mut target = TestPool::new("back");
    let never = Cut::never();
    let (mut sent, mut cuts, mut step) = (0, 0, step);
    loop {
        let cut = match side {
            Side::TargetDies => Cut::death_after(step, &target),
            Side::Source | Side::Target => Cut::after(step),
        };
        let (from, to) = if side == Side::Source { (&cut, &never) } else { (&never, &cut) };
        let outcome = sync((source, "tank/vol", from), (&target, "back/vol", to), &How::default());
        sent += outcome.sent;
        if outcome.is_done() && !cut.has_happened() {
            break;
        }
        cuts += 1;
        assert!(cuts < 1000, "no progress");
        only_lost(&outcome);
        if let Some(remains) = cut.remains() {
            drop(target);
            target = TestPool::after_crash(remains);
        }
        // The last request may need more bytes than a small step allows.
        step += 1;
    }
    assert_eq!(source.content("tank/vol"), target.content("back/vol"));
    target.check("a sync that was cut off");
    (sent, cuts)
}

fn only_lost(outcome: &Outcome) {
    for failure in outcome.failures() {
        assert_eq!(failure.kind, FailureKind::Lost, "{failure}");
    }
}

fn cut_every_mebibyte(size: u64) {
    let source = source_of(size);
    for side in [Side::Target, Side::Source] {
        let (sent, cuts) = cut_every(&source, MIB, side);
        assert!(cuts >= size / MIB, "{side:?}: {cuts} cuts");
        let twice = sent.saturating_sub(size);
        assert!(twice <= cuts * ON_ITS_WAY, "{side:?}: {twice} bytes twice in {cuts} cuts");
    }
    // A receiver that dies makes progress only if more than a txg was received.
    let step = 4 * DIRTY_MAX;
    let (sent, cuts) = cut_every(&source, step, Side::TargetDies);
    assert!(cuts >= size / step, "{cuts} cuts");
    let twice = sent.saturating_sub(size);
    let most = DIRTY_MAX + BEING_APPLIED + ON_ITS_WAY;
    assert!(twice <= cuts * most, "{twice} bytes twice in {cuts} deaths");
}

/// A tree with changes like those of users' trees.
struct Tree {
    pool: TestPool,
    random: Random,
    volumes: Vec<String>,
    made: u64,
}

impl Tree {
    fn new(seed: u64) -> Self {
        let pool = TestPool::new("tank");
        pool.filesystem("tank/a");
        pool.filesystem("tank/a/below");
        let mut tree = Self { pool, random: Random(seed), volumes: Vec::new(), made: 0 };
        tree.add_volume();
        tree.add_volume();
        tree.snapshot_all();
        tree
    }

    fn new_name(&mut self) -> String {
        self.made += 1;
        let place = ["tank/a", "tank/a/below"][self.random.below(2) as usize];
        format!("{place}/n{}", self.made)
    }

    fn add_volume(&mut self) {
        let name = self.new_name();
        self.pool.volume(&name, 4 * MIB);
        self.pool.write(&name, 0, 3 * MIB, &mut self.random);
        self.volumes.push(name);
    }

    fn any(&mut self) -> usize {
        self.random.below(self.volumes.len() as u64) as usize
    }

    fn snapshot_all(&mut self) {
        self.made += 1;
        let all: Vec<_> = ["tank/a", "tank/a/below"]
            .into_iter()
            .chain(self.volumes.iter().map(String::as_str))
            .map(|dataset| name(&format!("{dataset}@s{}", self.made)))
            .collect();
        self.pool.datasets.snapshot(&all, &[]).unwrap();
    }

    /// Full names of a volume's snapshots.
    fn snapshots(&self, volume: &str) -> Vec<String> {
        let catalog = self.pool.datasets.catalog();
        let dataset = catalog.dataset(volume).unwrap();
        catalog.snapshots(&dataset).map(|snapshot| snapshot.unwrap().full_name()).collect()
    }

    /// Writes to every volume and makes one other change: a rename, a clone, a volume, or a destroyed snapshot.
    fn change(&mut self) {
        for volume in self.volumes.clone() {
            let at = self.random.below(3) * MIB;
            self.pool.write(&volume, at, MIB / 2, &mut self.random);
        }
        let at = self.any();
        let volume = self.volumes[at].clone();
        match self.random.below(4) {
            0 => {
                let to = self.new_name();
                let datasets = &self.pool.datasets;
                datasets.rename(&name(&volume), &name(&to), RenameOptions::default()).unwrap();
                self.volumes[at] = to;
            }
            1 if self.volumes.len() < 8 => {
                let (clone, of) = (self.new_name(), self.snapshots(&volume));
                let of = &of[self.random.below(of.len() as u64) as usize];
                self.pool.datasets.clone_snapshot(&name(of), &clone, &CloneOptions::default()).unwrap();
                self.pool.write(&clone, 0, MIB, &mut self.random);
                self.volumes.push(clone);
            }
            2 if self.volumes.len() < 8 => self.add_volume(),
            // From here on, the bookmark of the last sync is the base.
            _ => self.destroy_newest(&volume),
        }
        self.snapshot_all();
        if self.random.below(2) == 0 {
            self.snapshot_all();
        }
    }

    /// Destroys the newest snapshot, if it has no clone.
    fn destroy_newest(&mut self, volume: &str) {
        let datasets = &self.pool.datasets;
        let catalog = datasets.catalog();
        let Some(newest) = catalog.newest_snapshot(&catalog.dataset(volume).unwrap()).unwrap() else {
            return;
        };
        if catalog.clones(newest.id).unwrap().is_empty() {
            datasets.destroy(&DestroyPlan::snapshots(&catalog, vec![newest], false).unwrap()).unwrap();
        }
    }
}

/// Syncs a changing tree with random cuts, until there were `wanted` cuts.
fn cut_at_random(seed: u64, wanted: u64) {
    let mut tree = Tree::new(seed);
    let mut target = TestPool::new("back");
    let how = How { recursive: true, ..How::default() };
    let never = Cut::never();
    let mut cuts = 0;
    for round in 0.. {
        let whole = size((&tree.pool, "tank/a"), (&target, "back/a"), &how);
        let (mut sent, mut allowed, mut meddled) = (0, whole, false);
        loop {
            let step = tree.random.below(whole.max(MIB)) + 1;
            let side = [Side::Source, Side::Target, Side::TargetDies][tree.random.below(3) as usize];
            let cut = if cuts >= wanted {
                Cut::never()
            } else if side == Side::TargetDies {
                Cut::death_after(step, &target)
            } else {
                Cut::after(step)
            };
            let (from, to) = if side == Side::Source { (&cut, &never) } else { (&never, &cut) };
            let outcome = sync((&tree.pool, "tank/a", from), (&target, "back/a", to), &how);
            sent += outcome.sent;
            if outcome.is_done() && !cut.has_happened() {
                break;
            }
            cuts += 1;
            only_lost(&outcome);
            allowed += how.jobs as u64 * ON_ITS_WAY;
            if let Some(remains) = cut.remains() {
                drop(target);
                target = TestPool::after_crash(remains);
                allowed += DIRTY_MAX + how.jobs as u64 * BEING_APPLIED;
            }
            if tree.random.below(8) == 0 {
                // The snapshot that was being received may have been destroyed. Its receive then starts again.
                let at = tree.any();
                let volume = tree.volumes[at].clone();
                tree.destroy_newest(&volume);
                tree.snapshot_all();
                meddled = true;
            }
        }
        assert!(meddled || sent <= allowed, "round {round}: {sent} bytes sent, {allowed} allowed");
        let there = target.content("back/a");
        for line in tree.pool.content("tank/a") {
            assert!(there.contains(&line), "round {round}: {line} is not in\n{}", there.join("\n"));
        }
        target.check("a recursive sync that was cut off");
        if cuts >= wanted {
            break;
        }
        tree.change();
    }
    tree.pool.check("being a source that was cut off");
}

#[test]
fn a_cut_at_every_mebibyte_of_a_sync() {
    cut_every_mebibyte(24 * MIB);
}

#[test]
#[ignore = "ten seconds"]
fn a_cut_at_every_mebibyte_of_a_large_sync() {
    cut_every_mebibyte(200 * MIB);
}

#[test]
fn cuts_at_random_points_of_a_recursive_sync() {
    cut_at_random(7, 25);
}

#[test]
#[ignore = "a minute"]
fn many_cuts_at_random_points_of_a_recursive_sync() {
    for seed in 1..=3 {
        cut_at_random(seed, 40);
    }
}
