//! The machine under the pool: it can be switched off, and its disk can fail.

use std::sync::Arc;
use std::time::Duration;

use snowmelt_pool::{NewPool, Pool, PoolOptions};
use snowmelt_store::{FaultStore, MemoryStore};

use super::rng::Rng;
use crate::datasets::Datasets;
use crate::error::DatasetError;
use crate::random;

pub(super) struct Machine {
    pub(super) store: FaultStore,
    datasets: Option<Arc<Datasets>>,
    options: PoolOptions,
}

/// Small nodes and segments: deep trees and many segments of little data. Nothing depends on how long anything takes.
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

impl Machine {
    pub(super) fn new(rng: &mut Rng) -> Self {
        let store = FaultStore::new(rng.next());
        let options = options(rng);
        let new = NewPool { name: "tank", guid: 1 };
        let pool = Pool::create(Box::new(store.clone()), &new, options.clone()).expect("an empty store");
        let datasets = Datasets::create(pool).expect("a new pool");
        Self { store, datasets: Some(datasets), options }
    }

    /// The datasets; the machine is on.
    pub(super) fn datasets(&self) -> Arc<Datasets> {
        self.datasets.clone().expect("the machine is on")
    }

    /// How much was done to the disk so far.
    pub(super) fn position(&self) -> usize {
        self.store.position()
    }

    /// The process ends, whatever it was doing.
    pub(super) fn kill(&mut self) {
        self.datasets = None;
        self.store.clear_faults();
        self.store.restart();
    }

    /// The machine goes on with another disk, the log of which begins now.
    pub(super) fn replace_disk(&mut self, seed: u64, disk: &MemoryStore) {
        self.datasets = None;
        self.store = FaultStore::over(seed, disk);
    }

    /// A new process opens the pool.
    pub(super) fn start(&mut self) -> Result<(), DatasetError> {
        let pool = Pool::open(Box::new(self.store.clone()), self.options.clone())?;
        self.datasets = Some(Datasets::open(pool)?);
        Ok(())
    }
}
