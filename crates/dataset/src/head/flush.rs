//! Writes the layers of changes to the tree.

use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use snowmelt_pool::{BlockId, BlockPtr, Hold, OutsidePlace, PoolError, Prepared, Tree, Writeback};
use snowmelt_stream::Compression;
use snowmelt_stream::features::Features;

use super::Head;
use super::overlay::{ObjectChange, Overlay};
use super::read::Shared;
use crate::catalog::keys;
use crate::catalog::record::DatasetRecord;
use crate::error::DatasetError;
use crate::objset::fill::put_block;
use crate::objset::key::{object_end, object_start};
use crate::objset::types;
use crate::objset::view::blocks_end;
use crate::objset::{Block, ObjsetKey};
use crate::receive::prepare::{Codec, METADATA, pack};

/// Number of blocks that are compressed and hashed together, on all cores, before they are put into the tree.
const BATCH: usize = 256;

/// Maximal bytes of such a batch. They are still in the processor's cache when they are written.
const BATCH_BYTES: usize = 4 << 20;

/// Computed only once, because the system reads several files for it.
static CORES: LazyLock<usize> = LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));

impl Writeback for Head {
    fn is_dirty(&self) -> bool {
        // An earlier write-back may have left parts that must be written at the end.
        let has_features = !self.staged && self.new_features() != Features::NONE;
        if has_features || !self.staged && !self.spare.is_empty() {
            return true;
        }
        let layers = self.layers.lock();
        layers.below.is_some() || !layers.active.objects.is_empty()
    }

    fn write_back(&self, hold: &Hold<'_>, last: bool) -> Result<(), PoolError> {
        let _writing = self.writing.lock();
        while let Some(overlay) = self.next_layer() {
            self.write_overlay(hold, &overlay).map_err(pool_error)?;
            self.known.forget(overlay.objects.keys().copied());
            self.fulfil(hold, overlay.bytes);
            self.layers.lock().below = None;
            self.spare.keep(overlay);
            if !last {
                break;
            }
        }
        // A staging writer uses the memory again at once, and releases it when it ends.
        if last && !self.staged {
            self.spare.clear();
        }
        if last && !self.staged {
            self.record_features(hold).map_err(pool_error)?;
        }
        Ok(())
    }
}

/// Unpacks an error of the pool, for returning it to the pool.
fn pool_error(error: DatasetError) -> PoolError {
    match error {
        DatasetError::Pool(error) => error,
        other => PoolError::Record { record: "objset", why: other.to_string() },
    }
}

/// A block to be written.
struct Job<'o> {
    object: u64,
    /// Block number; `None` for the spill block.
    blkid: Option<u64>,
    data: &'o Arc<Vec<u8>>,
    codec: Codec,
    /// The place of the data, if it is an external block.
    outside: Option<OutsidePlace>,
    /// Whether a block of zeros becomes a hole.
    holes: bool,
}

impl Job<'_> {
    fn key(&self) -> Vec<u8> {
        let object = self.object;
        match self.blkid {
            Some(blkid) => ObjsetKey::Block { object, blkid }.encode(),
            None => ObjsetKey::Spill { object }.encode(),
        }
    }

    /// `None` if it becomes a hole.
    fn prepare(&self) -> Option<Prepared> {
        if self.holes && is_zero(self.data) {
            return None;
        }
        let data = Bytes::from_owner(Shared(self.data.clone()));
        Some(match self.outside {
            Some(place) => {
                let lsize = u32::try_from(data.len()).unwrap_or(u32::MAX);
                Prepared::outside(data, lsize, Compression::Off.id(), place)
            }
            None => pack(data, self.codec),
        })
    }
}

fn is_zero(data: &[u8]) -> bool {
    let (chunks, rest) = data.as_chunks::<64>();
    chunks.iter().all(|chunk| *chunk == [0; 64]) && rest.iter().all(|byte| *byte == 0)
}

impl Head {
    /// The next layer to write: the one that an earlier, failed attempt left, or all changes since.
    fn next_layer(&self) -> Option<Arc<Overlay>> {
        let mut layers = self.layers.lock();
        if layers.below.is_none() && !layers.active.objects.is_empty() {
            layers.below = Some(Arc::new(std::mem::take(&mut layers.active)));
        }
        layers.below.clone()
    }

    /// Writes a layer to the tree. Writing it twice has the same result.
    fn write_overlay(&self, hold: &Hold<'_>, overlay: &Overlay) -> Result<(), DatasetError> {
        let tree = self.tree();
        let codec = *self.codec.lock();
        let mut objects: Vec<u64> = overlay.objects.keys().copied().collect();
        objects.sort_unstable();
        let mut jobs = Vec::new();
        let mut bytes = 0;
        for object in objects {
            let Some(change) = overlay.objects.get(&object) else { continue };
            self.remove_hidden(hold, &tree, object, change)?;
            let dnode = match &change.dnode {
                Some(dnode) => Some(dnode.clone()),
                None => self.dnode(object)?,
            };
            let Some(dnode) = dnode else { continue };
            if change.dnode.is_some() {
                let (key, value) = (ObjsetKey::Dnode { object }.encode(), dnode.encode());
                if tree.get(&key)?.is_none_or(|entry| *entry.value != *value) {
                    tree.insert(hold, &key, &value)?;
                }
            }
            let metadata = types::is_metadata(dnode.object_type);
            let codec = match &self.shadow {
                _ if metadata => METADATA,
                // The data of a file is compared with the external block before, which is as in the file: uncompressed.
                Some(_) => Codec { algorithm: Compression::Off, level: 0 },
                None => codec,
            };
            let holes = !metadata && (self.shadow.is_some() || codec.algorithm != Compression::Off);
            let is_outside = !metadata
                && self.shadow.as_ref().is_some_and(|shadow| shadow.lock().outside.contains(object));
            let place = |blkid: u64| OutsidePlace {
                source: object,
                offset: blkid.saturating_mul(u64::from(dnode.block_size)),
            };
            let data = change.blocks.iter().map(|(blkid, data)| Job {
                object,
                blkid: Some(*blkid),
                data,
                codec,
                outside: is_outside.then(|| place(*blkid)),
                holes,
            });
            let spill = change.spill.iter().flatten().map(|data| Job {
                object,
                blkid: None,
                data,
                codec: METADATA,
                outside: None,
                holes: false,
            });
            for job in data.chain(spill) {
                bytes += job.data.len();
                jobs.push(job);
                if jobs.len() >= BATCH || bytes >= BATCH_BYTES {
                    self.write_batch(hold, &tree, &std::mem::take(&mut jobs))?;
                    bytes = 0;
                }
            }
            if codec.algorithm == Compression::Zstd && !change.blocks.is_empty() && !metadata {
                self.new_features.fetch_or(Features::ZSTD.0, Ordering::Relaxed);
            }
        }
        self.write_batch(hold, &tree, &jobs)
    }

    fn remove_hidden(
        &self,
        hold: &Hold<'_>,
        tree: &Tree,
        object: u64,
        change: &ObjectChange,
    ) -> Result<(), DatasetError> {
        let mut gone = Vec::new();
        let mut remove = |from: &[u8], end: &[u8]| -> Result<(), DatasetError> {
            tree.remove_range(hold, from, end, &mut |key, entry| {
                if let Ok(ObjsetKey::Block { .. } | ObjsetKey::Spill { .. }) = ObjsetKey::decode(key)
                    && let Ok(block) = Block::decode(&entry.value)
                {
                    gone.push(block.ptr);
                }
                Ok(())
            })?;
            Ok(())
        };
        if change.cleared {
            remove(&object_start(object), &object_end(object))?;
        } else {
            for (from, end) in change.holes.iter() {
                let from = ObjsetKey::Block { object, blkid: from }.encode();
                if end == u64::MAX {
                    remove(&from, &blocks_end(object))?;
                } else {
                    remove(&from, &ObjsetKey::Block { object, blkid: end }.encode())?;
                }
            }
            if matches!(change.spill, Some(None)) {
                let key = ObjsetKey::Spill { object };
                remove(&key.encode(), &ObjsetKey::Block { object, blkid: 0 }.encode())?;
            }
        }
        for ptr in gone {
            tree.release(hold, &ptr)?;
        }
        Ok(())
    }

    fn write_batch(&self, hold: &Hold<'_>, tree: &Tree, jobs: &[Job<'_>]) -> Result<(), DatasetError> {
        for (job, prepared) in jobs.iter().zip(prepare_all(jobs)) {
            let key = job.key();
            let old = tree.get(&key)?.map(|entry| Block::decode(&entry.value)).transpose()?;
            let Some(prepared) = prepared else {
                if let Some(old) = old {
                    tree.remove(hold, &key)?;
                    tree.release(hold, &old.ptr)?;
                }
                continue;
            };
            // An unchanged block is not written, and so not sent in streams (nopwrite).
            let id = BlockId { object: job.object, blkid: job.blkid.unwrap_or(u64::MAX) };
            let is_same = old
                .as_ref()
                .is_some_and(|old| old.crypt.is_none() && hold.pool().is_at(&prepared, id, &old.ptr));
            if is_same && !old.as_ref().is_some_and(|old| self.must_come_inside(job.object, &old.ptr)) {
                continue;
            }
            let ptr = hold.write(tree.id(), id, prepared)?;
            put_block(hold, tree, &key, &Block { ptr, crypt: None })?;
            if let Some(old) = old {
                tree.release(hold, &old.ptr)?;
            }
        }
        Ok(())
    }

    /// Whether an external block of a shadow must be stored in the pool from now on.
    fn must_come_inside(&self, object: u64, old: &BlockPtr) -> bool {
        matches!(old, BlockPtr::Outside(_))
            && self.shadow.as_ref().is_some_and(|shadow| shadow.lock().inside.contains(object))
    }

    /// Records in the dataset's record the new features that its streams must announce.
    fn record_features(&self, hold: &Hold<'_>) -> Result<(), DatasetError> {
        let new = Features(self.new_features.swap(0, Ordering::Relaxed));
        if new == Features::NONE {
            return Ok(());
        }
        let (meta, key) = (self.pool.meta(), keys::dataset(self.id));
        let Some(entry) = meta.get(&key)? else { return Ok(()) };
        let mut record = DatasetRecord::decode(&entry.value)?;
        if !record.content.features.contains(new) {
            record.content.features |= new;
            meta.insert(hold, &key, &record.encode())?;
        }
        Ok(())
    }
}

/// Compresses and hashes on all cores.
fn prepare_all(jobs: &[Job<'_>]) -> Vec<Option<Prepared>> {
    let cores = *CORES;
    let bytes: usize = jobs.iter().map(|job| job.data.len()).sum();
    if cores == 1 || bytes < 256 << 10 {
        return jobs.iter().map(Job::prepare).collect();
    }
    let (own, others) = jobs.split_at(jobs.len().div_ceil(cores));
    std::thread::scope(|scope| {
        let prepare = |jobs: &[Job<'_>]| jobs.iter().map(Job::prepare).collect::<Vec<_>>();
        let workers: Vec<_> =
            others.chunks(own.len()).map(|jobs| scope.spawn(move || prepare(jobs))).collect();
        let mut prepared = prepare(own);
        for worker in workers {
            prepared.extend(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        prepared
    })
}
