//! The datasets of an open pool, and the common parts of all changes.

use std::collections::{HashMap, HashSet};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use snowmelt_pool::{Hold, Pool, PoolError, Tree, Txg};

use crate::catalog::record::DatasetRecord;
use crate::catalog::{Catalog, DatasetId, Kind, ROOT, keys};
use crate::error::DatasetError;
use crate::head::Head;
use crate::limits::{Limits, Table, begin_with_room};
use crate::objset::fill::fill;
use crate::ops::filesystem::new_filesystem_objects;
use crate::random;

/// Space that must be free when a change begins, so that it is not refused in the middle.
pub(crate) const CHANGE_BYTES: u64 = 256 << 10;
/// How often [`Datasets::read`] tries again before it returns the error.
const READS_MAX: u32 = 100;

/// The datasets of an open pool.
///
/// Lock order: the namespace lock, then a hold. A thread with a hold takes no locks except those of trees.
pub struct Datasets {
    pool: Arc<Pool>,
    pool_name: Arc<str>,
    namespace: Mutex<()>,
    receiving: Mutex<HashSet<DatasetId>>,
    changes: AtomicU64,
    pub(crate) heads: Mutex<HashMap<DatasetId, Arc<Head>>>,
    pub(crate) limits: Arc<Limits>,
}

/// One atomic change of datasets: everything done with it is in one txg.
pub(crate) struct Change<'a> {
    pub(crate) hold: TxgHold<'a>,
    pub(crate) datasets: &'a Datasets,
    _namespace: Option<MutexGuard<'a, ()>>,
}

/// The hold of a change: its own, or that of a sync task.
pub(crate) enum TxgHold<'a> {
    Own(Hold<'a>),
    Task(&'a Hold<'a>),
}

impl<'a> Deref for TxgHold<'a> {
    type Target = Hold<'a>;

    fn deref(&self) -> &Hold<'a> {
        match self {
            Self::Own(hold) => hold,
            Self::Task(hold) => hold,
        }
    }
}

impl Datasets {
    /// Creates the root dataset of a new pool.
    ///
    /// # Errors
    /// When the pool cannot be written.
    pub fn create(pool: Arc<Pool>) -> Result<Arc<Self>, DatasetError> {
        let datasets = Self::wrap(pool)?;
        let change = datasets.change()?;
        let head = datasets.pool.create_tree(&change.hold)?;
        let record = DatasetRecord {
            kind: Kind::Filesystem,
            inconsistent: false,
            guid: random::guid(),
            creation: random::now(),
            createtxg: change.hold.txg(),
            parent: ROOT,
            name: String::new(),
            head: head.id(),
            origin: None,
            content: crate::catalog::Content::default(),
        };
        change.put(&keys::dataset(ROOT), &record.encode())?;
        fill(&change.hold, &head, &new_filesystem_objects(&[])?)?;
        change.put(&keys::counter("dataset"), &(ROOT.0 + 1).to_be_bytes())?;
        change.commit()?;
        Ok(datasets)
    }

    /// Opens the datasets of a pool. If the pool is writable, receives that were interrupted by a crash and cannot be
    /// resumed are removed.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn open(pool: Arc<Pool>) -> Result<Arc<Self>, DatasetError> {
        let datasets = Self::wrap(pool)?;
        datasets.catalog().root()?;
        if !datasets.pool.is_read_only() {
            datasets.remove_abandoned_receives()?;
        }
        Ok(datasets)
    }

    fn wrap(pool: Arc<Pool>) -> Result<Arc<Self>, DatasetError> {
        let pool_name: Arc<str> = pool.name()?.into();
        let limits = Limits::new(pool.clone(), pool_name.clone());
        Ok(Arc::new(Self {
            pool,
            pool_name,
            namespace: Mutex::default(),
            receiving: Mutex::default(),
            changes: AtomicU64::new(0),
            heads: Mutex::default(),
            limits,
        }))
    }

    /// The pool.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// The pool's name.
    pub fn pool_name(&self) -> &str {
        &self.pool_name
    }

    /// A catalog of the current state.
    pub fn catalog(&self) -> Catalog {
        Catalog::new(self.pool.clone(), self.pool_name.clone())
    }

    /// Runs `work` on the catalog. If a dataset or snapshot was destroyed meanwhile, so that a tree is missing, runs it
    /// again on a newer catalog.
    ///
    /// # Errors
    /// Those of `work`.
    pub fn read<T>(&self, work: impl Fn(&Catalog) -> Result<T, DatasetError>) -> Result<T, DatasetError> {
        for _ in 1..READS_MAX {
            match work(&self.catalog()) {
                Err(DatasetError::Pool(PoolError::NoTree(_))) => {}
                done => return done,
            }
        }
        work(&self.catalog())
    }

    /// A number that increases with each change of datasets, snapshots and properties. A reader that gets the number
    /// before it reads the catalog must read again only when the number has changed. The contents of filesystems and
    /// the history do not count.
    pub fn change_count(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Begins a change. Waits for other changes to end.
    pub(crate) fn change(&self) -> Result<Change<'_>, DatasetError> {
        let namespace = self.namespace.lock();
        let hold = TxgHold::Own(begin_with_room(&self.pool, CHANGE_BYTES)?);
        Ok(Change { hold, datasets: self, _namespace: Some(namespace) })
    }

    /// Begins a change that needs almost no space, so it is possible in a full pool. `check` may refuse it from the
    /// current use of space.
    pub(crate) fn change_if(
        &self,
        check: impl FnOnce(&Catalog) -> Result<(), DatasetError>,
    ) -> Result<Change<'_>, DatasetError> {
        self.checked_change(check, |pool| Ok(pool.begin_free()?))
    }

    /// Begins a change if `check` allows it.
    pub(crate) fn checked_change<'a>(
        &'a self,
        check: impl FnOnce(&Catalog) -> Result<(), DatasetError>,
        begin: impl FnOnce(&'a Pool) -> Result<Hold<'a>, DatasetError>,
    ) -> Result<Change<'a>, DatasetError> {
        // Writes the changes in memory, so that they count.
        self.settle()?;
        let namespace = self.namespace.lock();
        self.pool.quiesced(|| check(&self.catalog()))?;
        let hold = TxgHold::Own(begin(&self.pool)?);
        Ok(Change { hold, datasets: self, _namespace: Some(namespace) })
    }

    /// Calls `attempt` with a copy of the table of limits and with the free space. Does nothing if there are no limits.
    /// The gate must be closed.
    pub(crate) fn try_limits(
        &self,
        attempt: impl FnOnce(&mut Table, u64) -> Result<(), DatasetError>,
    ) -> Result<(), DatasetError> {
        let free = self.pool.space()?.free;
        self.limits.settled(|table| {
            if !table.has_limits() {
                return Ok(());
            }
            attempt(&mut table.clone(), free)
        })?
    }

    /// Begins a change that frees space or needs almost none, and so may use the reserve.
    pub(crate) fn freeing_change(&self) -> Result<Change<'_>, DatasetError> {
        let namespace = self.namespace.lock();
        Ok(Change {
            hold: TxgHold::Own(self.pool.begin_free()?),
            datasets: self,
            _namespace: Some(namespace),
        })
    }

    /// Runs a change alone at the end of its txg, and commits it. Nothing can be written between a freeze and the end
    /// of the txg.
    pub(crate) fn sync_change<T, E: From<PoolError>>(
        &self,
        task: impl FnOnce(&Change<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let _namespace = self.namespace.lock();
        self.pool
            .sync_task(|hold| task(&Change { hold: TxgHold::Task(hold), datasets: self, _namespace: None }))
    }

    /// Notes that a receive into `id` begins. Returns `false` when one is under way.
    pub(crate) fn begin_receiving(&self, id: DatasetId) -> bool {
        self.receiving.lock().insert(id)
    }

    pub(crate) fn end_receiving(&self, id: DatasetId) {
        self.receiving.lock().remove(&id);
    }

    /// Whether a receive into the dataset is under way in this process.
    pub fn is_receiving(&self, id: DatasetId) -> bool {
        self.receiving.lock().contains(&id)
    }

    /// Writes a line to the pool's history (`zpool history`): a command that changed something.
    ///
    /// # Errors
    /// When the pool cannot be written.
    pub fn record_history(&self, line: &str) -> Result<(), DatasetError> {
        const LINE_MAX: usize = 4096;
        // The line must be written also if the pool is full.
        let change = self.freeing_change()?;
        let sequence = change.next("history", 1)?;
        let mut value = random::now().to_be_bytes().to_vec();
        let end = (0..=line.len().min(LINE_MAX)).rev().find(|&at| line.is_char_boundary(at)).unwrap_or(0);
        value.extend_from_slice(&line.as_bytes()[..end]);
        change.put(&keys::history(sequence), &value)?;
        // The first tells how the pool was made, and stays.
        let (second, end) = (keys::history(2), sequence.saturating_sub(self.history_lines()?));
        if end >= 2 {
            let end = keys::history(end + 1);
            change.meta().remove_range(&change.hold, &second, &end, &mut |_, _| Ok(()))?;
        }
        Ok(())
    }

    /// How many lines of history the pool keeps: about as many as in ZFS, where the history takes at most a thousandth
    /// of the pool, or 128 KiB.
    fn history_lines(&self) -> Result<u64, DatasetError> {
        /// What a command takes there: its text, the user, the host and the time, packed.
        const LINE_BYTES: u64 = 300;
        const BYTES_MIN: u64 = 128 << 10;
        const LINES_MAX: u64 = 100_000;
        let size = self.pool.space()?.size.unwrap_or(u64::MAX);
        Ok(((size / 1000).max(BYTES_MIN) / LINE_BYTES).min(LINES_MAX))
    }
}

impl Change<'_> {
    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.datasets.pool
    }

    pub(crate) fn txg(&self) -> Txg {
        self.hold.txg()
    }

    fn meta(&self) -> &Arc<Tree> {
        self.datasets.pool.meta()
    }

    /// The state with everything that this change did so far.
    pub(crate) fn catalog(&self) -> Catalog {
        self.datasets.catalog()
    }

    pub(crate) fn put(&self, key: &[u8], value: &[u8]) -> Result<(), DatasetError> {
        self.datasets.limits.note(key, false);
        self.meta().insert(&self.hold, key, value)?;
        self.count(key);
        Ok(())
    }

    /// Increases the change count after each write, so that a reader of the old state has the old number.
    fn count(&self, key: &[u8]) {
        if !keys::is_bookkeeping(key) {
            self.datasets.changes.fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, DatasetError> {
        Ok(self.meta().get(key)?.map(|entry| entry.value.to_vec()))
    }

    pub(crate) fn delete(&self, key: &[u8]) -> Result<(), DatasetError> {
        self.datasets.limits.note(key, true);
        self.meta().remove(&self.hold, key)?;
        self.count(key);
        Ok(())
    }

    pub(crate) fn delete_prefix(&self, prefix: &[u8]) -> Result<(), DatasetError> {
        self.datasets.limits.note(prefix, true);
        if let Some(end) = keys::after(prefix) {
            self.meta().remove_range(&self.hold, prefix, &end, &mut |_, _| Ok(()))?;
        }
        self.count(prefix);
        Ok(())
    }

    /// Increments a counter that starts at `first`, and returns its number.
    pub(crate) fn next(&self, counter: &str, first: u64) -> Result<u64, DatasetError> {
        let key = keys::counter(counter);
        let number = match self.meta().get(&key)? {
            Some(entry) => keys::number(&entry.value, 0)?,
            None => first,
        };
        let next = number
            .checked_add(1)
            .ok_or_else(|| DatasetError::corrupt(format!("counter {counter}"), "it is at its end"))?;
        self.put(&key, &next.to_be_bytes())?;
        Ok(number)
    }

    /// Ends the change and waits until it is durable.
    pub(crate) fn commit(self) -> Result<(), DatasetError> {
        let pool = self.datasets.pool.clone();
        drop(self);
        pool.commit()?;
        Ok(())
    }
}
