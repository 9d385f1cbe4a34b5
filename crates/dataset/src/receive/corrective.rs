//! Corrective receive (`zfs receive -c`): repairs damaged data of an existing snapshot from a stream of that snapshot.
//!
//! Nothing is received. For each data block in the stream, the local block is read. If it is damaged, and the stream's
//! bytes match the hash in its pointer, it is written again. So a stream can do no harm, whatever it contains.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use snowmelt_pool::{BlockId, BlockPtr, COMPRESSION_OFF, Mending, Prepared, StoredPtr, TreeId};
use snowmelt_stream::compress::{self, Compression};
use snowmelt_stream::features::Features;
use snowmelt_stream::reader::{Positioned, Reader};
use snowmelt_stream::record::{Begin, HeaderType, Record};

use super::prepare::{Codec, Job};
use super::{Observer, ReceiveEvent};
use crate::datasets::Datasets;
use crate::error::{DatasetError, ReceiveError};
use crate::objset::{Block, Objset, ObjsetKey};

/// Bytes of stream between two [`ReceiveEvent::Progress`].
const PROGRESS: u64 = 1 << 20;

/// The result of a corrective receive.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Corrected {
    /// Full names of the snapshots of the stream.
    pub snapshots: Vec<String>,
    /// Blocks that were repaired.
    pub blocks: u64,
    /// Their stored bytes.
    pub bytes: u64,
    /// Blocks that are still damaged: the stream has them in another form.
    pub damaged: u64,
}

/// The snapshot whose records are being read.
struct Current {
    objset: Objset,
    tree: TreeId,
    codec: Codec,
    raw: bool,
}

impl Datasets {
    /// Repairs damaged data in snapshots of `target` (`pool/fs` or `pool/fs@snap`) from a stream of the same snapshots.
    /// The stream may be full or incremental, and contain several snapshots.
    ///
    /// # Errors
    /// When the stream is invalid, or contains no snapshot of `target`. Blocks repaired before the error stay repaired.
    pub fn correct(
        &self,
        target: &str,
        input: impl Read,
        observer: &Observer<'_>,
    ) -> Result<Corrected, ReceiveError> {
        let (dataset, wanted) = match target.split_once('@') {
            Some((dataset, snapshot)) => (dataset, Some(snapshot)),
            None => (target, None),
        };
        let mut reader = Reader::new(input);
        let mut payload = Vec::new();
        let mut done = Corrected::default();
        let mut mending = self.pool().mending();
        let mut current: Option<Current> = None;
        let mut told = 0;
        let mut is_empty = true;
        while let Some(at) = reader.next(&mut payload)? {
            is_empty = false;
            if observer.cancelled.load(Ordering::Relaxed) {
                return Err(DatasetError::Interrupted.into());
            }
            if let Record::Begin(begin) = &at.record
                && begin.header_type == HeaderType::Substream
            {
                current = self.correct_begin(dataset, wanted, begin, observer, &mut done)?;
            } else if let Some(current) = &mut current {
                let bytes = std::mem::take(&mut payload);
                current.record(&mut mending, &at, bytes, reader.is_swapped(), &mut done)?;
            }
            if at.offset.saturating_sub(told) >= PROGRESS {
                told = at.offset;
                (observer.event)(ReceiveEvent::Progress { bytes: told });
            }
        }
        if is_empty {
            return Err(ReceiveError::Package { why: "the input is empty".to_owned() });
        }
        let report = mending.finish()?;
        (done.blocks, done.bytes) = (report.blocks, report.bytes);
        if done.snapshots.is_empty() {
            return Err(ReceiveError::Package {
                why: format!("corrective receive: no snapshot of '{dataset}' is what the stream is of"),
            });
        }
        Ok(done)
    }

    fn correct_begin(
        &self,
        dataset: &str,
        wanted: Option<&str>,
        begin: &Begin,
        observer: &Observer<'_>,
        done: &mut Corrected,
    ) -> Result<Option<Current>, ReceiveError> {
        let catalog = self.catalog();
        let here = catalog.dataset(dataset)?;
        let found = catalog.snapshots_by_guid(begin.to_guid)?.into_iter().find(|snapshot| {
            snapshot.id.dataset == here.id && wanted.is_none_or(|wanted| snapshot.record.name == wanted)
        });
        let Some(snapshot) = found else { return Ok(None) };
        (observer.event)(ReceiveEvent::Begin {
            source: begin.to_name.to_string(),
            target: snapshot.full_name(),
            incremental: begin.from_guid != 0,
        });
        done.snapshots.push(snapshot.full_name());
        let compression = catalog.inherited_property(&here, "compression")?;
        Ok(Some(Current {
            objset: catalog.objset(&snapshot),
            tree: here.record.head,
            codec: Codec::of_property(compression.as_ref().map_or("on", |(value, ..)| value)),
            raw: begin.features.contains(Features::RAW),
        }))
    }
}

impl Current {
    /// Repairs the block of one record, if it is damaged and the record contains it.
    fn record(
        &self,
        mending: &mut Mending<'_>,
        at: &Positioned,
        payload: Vec<u8>,
        swapped: bool,
        done: &mut Corrected,
    ) -> Result<(), ReceiveError> {
        let (object, offset) = match &at.record {
            Record::Write(write) => (write.object, Some(write.offset)),
            Record::Spill(spill) => (spill.object, None),
            _ => return Ok(()),
        };
        let Some((key, block_size)) = self.key(object, offset)? else { return Ok(()) };
        let entry = match self.objset.view().get(&key.encode()) {
            Ok(Some(entry)) => entry,
            Ok(None) => return Ok(()),
            // A node on the path is damaged. No stream contains nodes.
            Err(error) if error.is_corruption() => return Ok(()),
            Err(error) => return Err(DatasetError::from(error).into()),
        };
        let BlockPtr::Stored(ptr) = Block::decode(&entry.value)?.ptr else { return Ok(()) };
        if self.objset.pool().is_sound(&ptr).map_err(DatasetError::from)? {
            return Ok(());
        }
        let id = match key {
            ObjsetKey::Block { object, blkid } => BlockId { object, blkid },
            key => BlockId { object: key.object(), blkid: u64::MAX },
        };
        let job = Job {
            record: Arc::new(at.record.clone()),
            payload,
            codec: self.codec,
            outside: None,
            raw: self.raw,
            swapped,
            block_size,
        };
        // Bytes are used only if their hash is correct, so invalid records are just skipped.
        if let Ok(came) = job.run() {
            for good in candidates(came, &ptr) {
                if mending.offer(&ptr, self.tree, id, &good).map_err(DatasetError::from)? {
                    return Ok(());
                }
            }
        }
        done.damaged += 1;
        Ok(())
    }

    /// The key of a record's block, and the object's block size. `None` if the local blocks have another size, or the
    /// size cannot be read.
    fn key(&self, object: u64, offset: Option<u64>) -> Result<Option<(ObjsetKey, u64)>, ReceiveError> {
        let Some(offset) = offset else { return Ok(Some((ObjsetKey::Spill { object }, 0))) };
        let dnode = match self.objset.dnode(object) {
            Ok(dnode) => dnode,
            Err(DatasetError::Pool(error)) if error.is_corruption() => None,
            Err(error) => return Err(error.into()),
        };
        let block_size = dnode.map_or(0, |dnode| u64::from(dnode.block_size));
        let is_whole = block_size > 0 && offset.is_multiple_of(block_size);
        Ok(is_whole.then(|| (ObjsetKey::Block { object, blkid: offset / block_size }, block_size)))
    }
}

/// The forms in which a block may have been stored, the most likely first.
pub(crate) fn candidates(came: Prepared, ptr: &StoredPtr) -> Vec<Prepared> {
    let mut out = vec![came];
    let Some(plain) = out.first().and_then(Prepared::expand) else { return out };
    if ptr.algorithm() == COMPRESSION_OFF {
        out.push(Prepared::stored(plain, ptr.lsize, COMPRESSION_OFF));
        return out;
    }
    for codec in CODECS.into_iter().filter(|codec| codec.id() == ptr.algorithm()) {
        let mut packed = Vec::new();
        if let Some(len) = compress::compress(codec, 0, &plain, &mut packed) {
            packed.truncate(len);
            out.push(Prepared::stored(packed, ptr.lsize, codec.id()));
        }
    }
    out
}

/// Compressions that may have been used, except for the many levels of zstd.
const CODECS: [Compression; 6] = [
    Compression::Lz4,
    Compression::Lzjb,
    Compression::Zle,
    Compression::Zstd,
    Compression::Gzip(6),
    Compression::Gzip(9),
];
