//! Syncs that are cut off: each goes on where it was, little is sent twice, and the result is equal.
//!
//! What may be sent twice after a cut:
//!
//! - the connection breaks, the receiver lives: what was on its way, and the record it was in the middle of. All that
//!   reached the receiver is kept.
//! - the receiver dies with it: besides, what its open txg held. That is at most [`DIRTY_MAX`] and what was being
//!   applied when that was reached.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Cut, DIRTY_MAX, How, MIB, Outcome, Random, TestPool, name, size, sync};
use snowmelt_dataset::{CloneOptions, DestroyPlan, RenameOptions};
use snowmelt_replicate::FailureKind;

/// Bytes that a pair of sockets holds, the record that is cut in two, what a request takes and a stream begins with.
const ON_ITS_WAY: u64 = MIB;
/// What a receiver may have in its memory besides its txg: a window of the channel and a batch of records.
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

/// Syncs a volume, cut off after each `step` bytes; returns the bytes that were sent to the target, and the cuts.
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
        // The last request may take more than a small step has left.
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
    // Less than a txg would be no progress for one that dies.
    let step = 4 * DIRTY_MAX;
    let (sent, cuts) = cut_every(&source, step, Side::TargetDies);
    assert!(cuts >= size / step, "{cuts} cuts");
    let twice = sent.saturating_sub(size);
    let most = DIRTY_MAX + BEING_APPLIED + ON_ITS_WAY;
    assert!(twice <= cuts * most, "{twice} bytes twice in {cuts} deaths");
}

/// A tree that changes as users' trees do.
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

    /// Something is written everywhere, and something else happens: a rename, a clone, a volume, a snapshot destroyed.
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
            // The bookmark that the last sync left is the base from here on.
            _ => self.destroy_newest(&volume),
        }
        self.snapshot_all();
        if self.random.below(2) == 0 {
            self.snapshot_all();
        }
    }

    /// The newest snapshot goes, if no clone is of it.
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

/// Syncs a changing tree, cut off at random, until there were so many cuts.
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
                // What was being received may be gone now, and has to be begun again.
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
