//! The simulated machine: it can be switched off, and its disk, or one of its two disks, can fail or be unplugged.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use snowmelt_pool::{NewPool, Pool, PoolError, PoolOptions};
use snowmelt_store::{
    Access, FaultKind, FaultStore, MemberState, MemberStatus, MemoryStore, MirrorMember, MirrorStore, Store,
    StoreError,
};

use super::disk::Disks;
use super::rng::Rng;
use crate::datasets::Datasets;
use crate::error::DatasetError;
use crate::random;

pub(super) struct Machine {
    disks: Disks,
    datasets: Option<Arc<Datasets>>,
    options: PoolOptions,
    /// Disks of a mirror that got all writes since the machine was switched on.
    sound: Vec<bool>,
    /// The unplugged disk of a mirror.
    unplugged: Option<usize>,
}

/// Small nodes and segments, for deep trees and many segments with little data. Nothing depends on the duration of
/// anything.
fn options(rng: &mut Rng) -> PoolOptions {
    PoolOptions {
        node_bytes: 1 << 10,
        segment_bytes: 64 << 10,
        buffer_bytes: 4 << 10,
        data_cache_bytes: 256 << 10,
        node_cache_bytes: 256 << 10,
        dirty_max_bytes: 16 << (10 + rng.below(6)),
        txg_interval: Duration::from_secs(1 << 32),
        clock: random::now,
        ..PoolOptions::default()
    }
}

/// The guid of a member is its number, counted from 1.
fn guid(disk: usize) -> u64 {
    disk as u64 + 1
}

fn path(disk: usize) -> PathBuf {
    PathBuf::from(format!("/disk{disk}"))
}

impl Machine {
    /// A machine with a new pool on this number of disks.
    pub(super) fn new(rng: &mut Rng, disks: usize) -> Self {
        let images: Vec<_> = (0..disks).map(|_| (rng.next(), MemoryStore::new())).collect();
        let mut machine = Self {
            disks: Disks::over(&images),
            datasets: None,
            options: options(rng),
            sound: vec![true; disks],
            unplugged: None,
        };
        let new = NewPool { name: "tank", guid: 1 };
        let store = machine.store().expect("empty disks");
        let pool = Pool::create(store, &new, machine.options.clone()).expect("an empty store");
        machine.datasets = Some(Datasets::create(pool).expect("a new pool"));
        machine
    }

    pub(super) fn is_mirror(&self) -> bool {
        self.disks.count() > 1
    }

    /// Whether a disk is unplugged.
    pub(super) fn is_unplugged(&self) -> bool {
        self.unplugged.is_some()
    }

    /// The datasets. The machine must be on.
    pub(super) fn datasets(&self) -> Arc<Datasets> {
        self.datasets.clone().expect("the machine is on")
    }

    /// Number of operations on the disks so far.
    pub(super) fn position(&self) -> usize {
        self.disks.position()
    }

    /// Makes a disk fail after this many more operations. Returns which one.
    pub(super) fn fail_after(&self, rng: &mut Rng, after: u64, kind: FaultKind) -> usize {
        let disk = if self.is_mirror() { rng.below(self.disks.count() as u64) as usize } else { 0 };
        self.disks.fail_after(disk, after, kind);
        disk
    }

    /// Disks that have not answered.
    pub(super) fn late(&self) -> Vec<usize> {
        (0..self.disks.count()).filter(|disk| self.disks.get(*disk).is_late()).collect()
    }

    /// Whether no disk has a fault, and none is planned.
    pub(super) fn is_sound(&self) -> bool {
        self.late().is_empty() && self.disks.all().all(|disk| !disk.fault_pending() && !disk.fault_happened())
    }

    /// Makes a disk that did not answer finish its operation.
    pub(super) fn answer(&self, disk: usize) {
        self.disks.answer(disk);
    }

    /// Whether a disk has failed since the faults were last cleared.
    pub(super) fn fault_happened(&self) -> bool {
        self.disks.all().any(|disk| disk.fault_happened())
    }

    pub(super) fn clear_faults(&self) {
        self.disks.all().for_each(|disk| disk.clear_faults());
    }

    /// Clears faults that the mirror survived by continuing without a disk, so that later errors need other reasons.
    pub(super) fn forget_survived_faults(&self) {
        let datasets = self.datasets();
        let Some(mirror) = datasets.pool().store().mirror() else { return };
        let members = mirror.members();
        let is_in_use = |(disk, member): (&FaultStore, &MemberStatus)| {
            disk.fault_pending() || (disk.fault_happened() && member.state == MemberState::Online)
        };
        let goes_on = members.iter().any(|member| member.state == MemberState::Online);
        if goes_on && !self.disks.all().zip(&members).any(is_in_use) {
            self.clear_faults();
        }
    }

    /// Ends the process, whatever it is doing.
    pub(super) fn kill(&mut self) {
        self.look_after_disks();
        self.datasets = None;
        self.clear_faults();
        self.disks.all().for_each(|disk| disk.restart());
    }

    /// A power failure when `point` operations were done. Each disk is left with a random one of its possible images.
    /// Returns which.
    pub(super) fn crash(&mut self, rng: &mut Rng, point: usize, of: usize) -> Option<Vec<usize>> {
        self.look_after_disks();
        let variants: Vec<_> = (0..self.disks.count()).map(|_| (rng.below(of as u64) as usize, of)).collect();
        let images = self.disks.crash(point, &variants)?;
        self.replace_disks(rng, images);
        Some(variants.into_iter().map(|(variant, _)| variant).collect())
    }

    /// Begins a new log of the disks.
    pub(super) fn begin_log(&mut self, rng: &mut Rng) {
        let images = self.disks.all().map(|disk| disk.snapshot()).collect();
        self.replace_disks(rng, images);
    }

    fn replace_disks(&mut self, rng: &mut Rng, images: Vec<MemoryStore>) {
        self.datasets = None;
        let images: Vec<_> = images.into_iter().map(|image| (rng.next(), image)).collect();
        self.disks = Disks::over(&images);
    }

    /// Sometimes unplugs a disk if all others are complete, or plugs it in again.
    pub(super) fn replug(&mut self, rng: &mut Rng) -> Option<usize> {
        self.unplugged = None;
        if self.is_mirror() && rng.one_in(5) {
            let disk = rng.below(self.disks.count() as u64) as usize;
            let is_dispensable = self.sound.iter().enumerate().any(|(other, sound)| other != disk && *sound);
            self.unplugged = Some(disk).filter(|_| is_dispensable);
        }
        self.unplugged
    }

    /// A new process opens the pool.
    pub(super) fn start(&mut self) -> Result<(), DatasetError> {
        let store = self.store().map_err(|source| PoolError::Store { what: "opening the mirror", source })?;
        let pool = Pool::open(store, self.options.clone())?;
        self.datasets = Some(Datasets::open(pool)?);
        self.sound.fill(true);
        self.look_after_disks();
        Ok(())
    }

    fn store(&self) -> Result<Box<dyn Store>, StoreError> {
        if !self.is_mirror() {
            return Ok(Box::new(self.disks.open(0)));
        }
        let member = |disk| MirrorMember {
            guid: guid(disk),
            path: path(disk),
            store: match self.unplugged == Some(disk) {
                true => Err("it is not plugged in".to_owned()),
                false => Ok(Box::new(self.disks.open(disk))),
            },
        };
        let members = (0..self.disks.count()).map(member).collect();
        Ok(Box::new(MirrorStore::assemble(members, Access::ReadWrite)?))
    }

    /// Notes which disks have missed writes.
    pub(super) fn look_after_disks(&mut self) {
        let Some(datasets) = self.datasets.clone() else { return };
        let Some(mirror) = datasets.pool().store().mirror() else { return };
        for (sound, member) in self.sound.iter_mut().zip(mirror.members()) {
            *sound &= member.state == MemberState::Online && !member.is_stale;
        }
    }

    /// Takes a disk of the mirror offline.
    pub(super) fn offline(&self, disk: usize) -> Result<(), StoreError> {
        let datasets = self.datasets();
        datasets.pool().store().mirror().map_or(Ok(()), |mirror| mirror.offline(guid(disk)))
    }

    /// Takes a disk online again that is offline, has failed, or was plugged in again.
    pub(super) fn online(&mut self, disk: usize) -> Result<(), StoreError> {
        let datasets = self.datasets();
        let Some(mirror) = datasets.pool().store().mirror() else { return Ok(()) };
        let is_away = mirror
            .members()
            .iter()
            .any(|member| member.guid == guid(disk) && member.state != MemberState::Online);
        if !is_away {
            return Ok(());
        }
        self.disks.get(disk).restart();
        if self.unplugged == Some(disk) {
            self.unplugged = None;
        }
        mirror.online(guid(disk), path(disk), Box::new(self.disks.open(disk)))
    }

    /// Resilvers the disks of the mirror, in at most this many pieces.
    pub(super) fn resilver(&self, pieces: u64) -> Result<(), StoreError> {
        let datasets = self.datasets();
        let Some(mirror) = datasets.pool().store().mirror() else { return Ok(()) };
        let mut left = pieces;
        let mut go_on = |_| {
            left = left.saturating_sub(1);
            left > 0
        };
        mirror.resilver(&random::now, &mut go_on).map(drop)
    }
}
