//! Authenticating a whole raw stream, record by record.
//!
//! A WRITE or SPILL is authenticated by itself. A block of dnodes is authenticated together with the MACs of all blocks
//! of its objects, and the object set with those of all dnode blocks. A full stream contains all of them. An
//! incremental stream contains only those that changed. The others are known only if the earlier streams were read as
//! well ([`Verifier::remember`]). Otherwise its dnode blocks are counted as [`Authenticated::unknown_dnode_blocks`].

use std::sync::Arc;

use snowmelt_stream::reader::Positioned;
use snowmelt_stream::{Begin, ByteOrder, FreeObjects, NvList, Object, ObjectRange, Record};

use crate::auth::{BlockAuth, block_order};
use crate::dataset::{Dataset, Tree};
use crate::decrypt::Decryptor;
use crate::dnode::{Dnode, SLOTS};
use crate::error::{BlockError, TreeError};
use crate::keydata::Keydata;
use crate::tree::Keep;

/// Maximum number of blocks and objects of earlier snapshots that are remembered, together: about 500 MB.
const MAX_REMEMBERED: usize = 4 << 20;
/// `DMU_OT_SA`, the contents of spill blocks.
const OT_SA: u32 = 44;

/// Counts of what was authenticated so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Authenticated {
    /// WRITEs and SPILLs.
    pub blocks: u64,
    /// Blocks of dnodes (OBJECT_RANGE with its OBJECTs).
    pub dnode_blocks: u64,
    /// Object sets: snapshots in which nothing is missing or in a wrong place.
    pub object_sets: u64,
    /// Blocks of dnodes that could not be authenticated, because they need data of earlier streams.
    pub unknown_dnode_blocks: u64,
    /// Object sets that could not be authenticated, because they need data of earlier streams.
    pub unknown_object_sets: u64,
}

/// A part of a stream that is not authentic.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("record {index} ({kind}) at offset {offset}: {subject}: {cause}")]
pub struct AuthError {
    /// Index of the record, counted from 0.
    pub index: u64,
    /// Its offset, in bytes from the start of the stream.
    pub offset: u64,
    /// Its type.
    pub kind: &'static str,
    /// The subject of the error.
    pub subject: Subject,
    /// The reason.
    pub cause: AuthCause,
}

/// The subject of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A block of data.
    Block {
        /// The object.
        object: u64,
        /// Offset in it, in bytes.
        offset: u64,
    },
    /// An object's spill block.
    Spill {
        /// The object.
        object: u64,
    },
    /// An object.
    Object {
        /// The object.
        object: u64,
    },
    /// A block of dnodes.
    Dnodes {
        /// First object.
        first: u64,
        /// Last object.
        last: u64,
    },
    /// A whole snapshot.
    ObjectSet,
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Block { object, offset } => write!(f, "object {object}, block at {offset}"),
            Self::Spill { object } => write!(f, "object {object}, spill block"),
            Self::Object { object } => write!(f, "object {object}"),
            Self::Dnodes { first, last } => write!(f, "dnodes of objects {first} to {last}"),
            Self::ObjectSet => f.write_str("object set"),
        }
    }
}

/// The reason of an error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AuthCause {
    /// The block.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// A block does not fit into the tree.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// The record belongs to an object outside the last OBJECT_RANGE, or to none.
    #[error("not within the last OBJECT_RANGE")]
    NotInRange,
    /// An object is freed, but its dnode block is not sent again.
    #[error("object {object} is freed without its dnode block")]
    FreedAlone {
        /// The object.
        object: u64,
    },
    /// A WRITE_BYREF. Its data is not in the record, so it cannot be authenticated.
    #[error("blocks by reference cannot be authenticated")]
    ByReference,
}

/// A dnode block of which more records may follow.
#[derive(Debug)]
struct Open {
    range: ObjectRange,
    index: u64,
    offset: u64,
    /// With their bonus buffers.
    objects: Vec<(Object, Vec<u8>)>,
    /// Whether all of it is in this stream or remembered.
    is_known: bool,
}

/// The snapshot that is being read.
#[derive(Debug)]
struct Current {
    begin: Begin,
    keydata: Keydata,
    decryptor: Arc<Decryptor>,
    order: ByteOrder,
    /// The known part of the snapshot. `None` if the stream starts from an unknown snapshot.
    dataset: Option<Dataset>,
    /// The object where an interrupted stream continues. Dnode blocks up to that of this object have only part of their
    /// records.
    resumed: Option<u64>,
    open: Option<Open>,
    keep: Keep,
    /// Number of blocks and objects that it added to memory.
    held: usize,
}

/// A snapshot that later streams may start from.
#[derive(Debug)]
struct Remembered {
    guid: u64,
    dataset: Dataset,
    held: usize,
}

/// Authenticates the records of streams, one stream after the other.
#[derive(Debug, Default)]
pub struct Verifier {
    current: Option<Current>,
    remembered: Vec<Remembered>,
    remembers: bool,
    done: Authenticated,
}

impl Verifier {
    /// Knows nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether snapshots that are read from now on are remembered. Streams that start from them can then be
    /// authenticated completely, in a package or when more streams follow.
    ///
    /// Takes memory for each block, up to about 500 MB. Beyond that, the oldest snapshots are forgotten. Otherwise
    /// memory does not depend on the stream's length.
    pub fn remember(&mut self, remembers: bool) {
        self.remembers = remembers;
    }

    /// Counts of what was authenticated so far.
    #[must_use]
    pub fn done(&self) -> Authenticated {
        self.done
    }

    /// Handles the BEGIN of a raw substream with its unpacked payload. `keydata` is the result of [`Keydata::of_begin`]
    /// for it. [`record`](Self::record) then handles everything up to its END.
    ///
    /// # Errors
    /// The snapshot it starts from is known, and the two contradict each other.
    pub fn begin(
        &mut self,
        at: &Positioned,
        begin: &Begin,
        payload: &NvList,
        (keydata, decryptor, order): (Keydata, Arc<Decryptor>, ByteOrder),
    ) -> Result<(), AuthError> {
        let resumed = payload.get_u64("resume_object");
        let fails = |cause: TreeError| error(at, Subject::ObjectSet, cause);
        let dataset = if begin.from_guid == 0 {
            Some(Dataset::new(keydata.metadnode).map_err(fails)?)
        } else if resumed.is_none() {
            let mut base = self.base(begin.from_guid);
            if let Some(base) = &mut base {
                base.grow(keydata.metadnode).map_err(fails)?;
            }
            base
        } else {
            None
        };
        // Blocks of a full stream come in order and are never freed again.
        let keep = if self.remembers || begin.from_guid != 0 { Keep::All } else { Keep::Open };
        let begin = begin.clone();
        self.current =
            Some(Current { begin, keydata, decryptor, order, dataset, resumed, open: None, keep, held: 0 });
        Ok(())
    }

    /// The snapshot that a stream starts from.
    fn base(&mut self, guid: u64) -> Option<Dataset> {
        let at = self.remembered.iter().position(|known| known.guid == guid)?;
        if self.remembers {
            self.remembered.get(at).map(|known| known.dataset.clone())
        } else {
            Some(self.remembered.remove(at).dataset)
        }
    }

    /// Handles any other record with its payload. Where records are authenticated by themselves, the payload is
    /// decrypted in place. It is then still compressed. Records outside raw substreams are ignored.
    ///
    /// # Errors
    /// Something is not authentic, or records contradict each other.
    pub fn record(&mut self, at: &Positioned, payload: &mut [u8]) -> Result<(), AuthError> {
        let Some(current) = &mut self.current else { return Ok(()) };
        match &at.record {
            Record::ObjectRange(range) => {
                current.close(&mut self.done, self.remembers)?;
                current.open_range(at, range);
                Ok(())
            }
            Record::End(_) => self.end(at),
            Record::Write(_) | Record::Spill(_) => {
                current.block(at, payload)?;
                self.done.blocks += 1;
                Ok(())
            }
            _ => current.other(at, payload),
        }
    }

    fn end(&mut self, at: &Positioned) -> Result<(), AuthError> {
        let Some(mut current) = self.current.take() else { return Ok(()) };
        current.close(&mut self.done, self.remembers)?;
        let Some(dataset) = current.dataset.filter(|_| current.resumed.is_none()) else {
            self.done.unknown_object_sets += 1;
            return Ok(());
        };
        let roots = dataset.metadnode.roots();
        let objset_type = current.begin.objset_type;
        let authentic = current.decryptor.objset(&current.keydata, objset_type, &roots);
        authentic.map_err(|cause| error(at, Subject::ObjectSet, cause))?;
        self.done.object_sets += 1;
        if self.remembers && current.keep == Keep::All && current.held <= MAX_REMEMBERED {
            let held = current.held + dataset.objects.len();
            self.remembered.push(Remembered { guid: current.begin.to_guid, dataset, held });
            let total = |known: &[Remembered]| known.iter().map(|one| one.held).sum::<usize>();
            while total(&self.remembered) > MAX_REMEMBERED {
                self.remembered.remove(0);
            }
        }
        Ok(())
    }
}

impl Current {
    fn open_range(&mut self, at: &Positioned, range: &ObjectRange) {
        let is_known =
            self.dataset.is_some() && self.resumed.is_none_or(|object| object / SLOTS < range.first / SLOTS);
        let objects = Vec::new();
        self.open = Some(Open { range: *range, index: at.index, offset: at.offset, objects, is_known });
    }

    /// Whether blocks of an object are tracked: its dnode block is open, and all of it is known.
    fn follows(&self, object: u64) -> Result<bool, AuthCause> {
        match &self.open {
            Some(open) if object.wrapping_sub(open.range.first) < SLOTS => Ok(open.is_known),
            _ if self.dataset.is_none() || self.resumed.is_some() => Ok(false),
            _ => Err(AuthCause::NotInRange),
        }
    }

    fn block(&mut self, at: &Positioned, payload: &mut [u8]) -> Result<(), AuthError> {
        let subject = subject_of(&at.record);
        self.block_of(&at.record, payload).map_err(|cause| error(at, subject, cause))
    }

    fn block_of(&mut self, record: &Record, payload: &mut [u8]) -> Result<(), AuthCause> {
        match record {
            Record::Write(write) => {
                self.decryptor.block(write.object_type, &write.crypt, payload)?;
                let auth = BlockAuth::of_write(write, self.order)?;
                let follows = self.follows(write.object)?;
                if let Some(dataset) = self.dataset.as_mut().filter(|_| follows) {
                    self.held += 1;
                    if !dataset.write(write, auth, self.keep)? {
                        return Err(AuthCause::NotInRange);
                    }
                }
            }
            Record::Spill(spill) => {
                let follows = self.follows(spill.object)?;
                let of = self
                    .open
                    .as_ref()
                    .and_then(|open| open.objects.iter().find(|(object, _)| object.object == spill.object));
                let bonus_type = of.map_or(OT_SA, |(object, _)| object.bonus_type);
                self.decryptor.block(bonus_type, &spill.crypt, payload)?;
                let auth = BlockAuth::of_spill(spill, bonus_type, self.order)?;
                if let Some(dataset) = self.dataset.as_mut().filter(|_| follows)
                    && !dataset.spill(spill.object, auth)
                {
                    return Err(AuthCause::NotInRange);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn other(&mut self, at: &Positioned, payload: &[u8]) -> Result<(), AuthError> {
        let subject = subject_of(&at.record);
        let result = match &at.record {
            Record::Object(object) => self.object(object, payload),
            Record::FreeObjects(freed) => self.free_objects(freed),
            Record::Free(free) => self.follows(free.object).and_then(|follows| {
                let Some(dataset) = self.dataset.as_mut().filter(|_| follows) else { return Ok(()) };
                if dataset.free(free)? { Ok(()) } else { Err(AuthCause::NotInRange) }
            }),
            Record::WriteByRef(_) | Record::WriteEmbedded(_) => Err(AuthCause::ByReference),
            // The MACs of the parts that were left out are unknown.
            Record::Redact(_) => {
                self.dataset = None;
                self.open.iter_mut().for_each(|open| open.is_known = false);
                Ok(())
            }
            _ => Ok(()),
        };
        result.map_err(|cause| error(at, subject, cause))
    }

    fn object(&mut self, object: &Object, payload: &[u8]) -> Result<(), AuthCause> {
        let follows = self.follows(object.object)?;
        let Some(open) = self.open.as_mut().filter(|_| follows) else { return Ok(()) };
        let after =
            open.objects.last().map_or(open.range.first, |(last, _)| last.object + u64::from(last.slots()));
        let last = open.range.first.saturating_add(SLOTS - 1);
        if object.object < after || object.object.saturating_add(u64::from(object.slots())) > last + 1 {
            let (object, first) = (object.object, open.range.first);
            return Err(BlockError::DnodeSlots { object, first, last }.into());
        }
        open.objects.push((*object, payload.to_vec()));
        if let Some(dataset) = &mut self.dataset {
            self.held += 1;
            dataset.object(object)?;
        }
        Ok(())
    }

    fn free_objects(&mut self, freed: &FreeObjects) -> Result<(), AuthCause> {
        let open = self.open.as_ref().map(|open| open.range.first);
        let Some(dataset) = self.dataset.as_mut().filter(|_| self.resumed.is_none()) else { return Ok(()) };
        match dataset.free_objects(freed, open)? {
            Some(object) => Err(AuthCause::FreedAlone { object }),
            None => Ok(()),
        }
    }

    /// Authenticates the open dnode block, after all blocks of its objects.
    fn close(&mut self, done: &mut Authenticated, remembers: bool) -> Result<(), AuthError> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let (first, last) = (open.range.first, open.range.first.saturating_add(SLOTS - 1));
        let fails = |cause: AuthCause| AuthError {
            index: open.index,
            offset: open.offset,
            kind: "OBJECT_RANGE",
            subject: Subject::Dnodes { first, last },
            cause,
        };
        let Some(dataset) = self.dataset.as_mut().filter(|_| open.is_known) else {
            done.unknown_dnode_blocks += 1;
            return Ok(());
        };
        let mut objects = open.objects;
        let known: Option<Vec<&Tree>> =
            objects.iter().map(|(record, _)| Some(&**dataset.objects.get(&record.object)?)).collect();
        let trees = known.ok_or_else(|| fails(AuthCause::NotInRange))?;
        let roots: Vec<Vec<BlockAuth>> = trees.iter().map(|tree| tree.macs.roots()).collect();
        let spills: Vec<Option<BlockAuth>> = trees.iter().map(|tree| tree.spill).collect();
        let mut dnodes: Vec<Dnode<'_>> = objects
            .iter_mut()
            .zip(&roots)
            .zip(spills)
            .map(|(((record, bonus), blocks), spill)| Dnode { record, bonus, blocks, spill })
            .collect();
        let authentic = self.decryptor.dnodes(&open.range, self.order, &mut dnodes);
        authentic.map_err(|cause| fails(cause.into()))?;
        done.dnode_blocks += 1;

        // Slots without an OBJECT are free, whatever was in them.
        let is_sent = |object: &u64| objects.iter().any(|(record, _)| record.object == *object);
        let remembers = remembers && self.held <= MAX_REMEMBERED;
        let here = dataset.objects.range(first..=last).map(|(object, _)| *object);
        let gone: Vec<u64> = here.filter(|object| !remembers || !is_sent(object)).collect();
        for object in gone {
            dataset.objects.remove(&object);
        }
        let order = block_order(self.order, open.range.flags & snowmelt_stream::Write::RAW_BYTESWAP != 0);
        let auth = BlockAuth::of_dnodes(open.range.crypt.mac, order);
        dataset.metadnode.insert(first / SLOTS, auth, self.keep).map_err(|cause| AuthError {
            index: open.index,
            offset: open.offset,
            kind: "OBJECT_RANGE",
            subject: Subject::Dnodes { first, last },
            cause: cause.into(),
        })
    }
}

fn error(at: &Positioned, subject: Subject, cause: impl Into<AuthCause>) -> AuthError {
    AuthError {
        index: at.index,
        offset: at.offset,
        kind: at.record.kind_name(),
        subject,
        cause: cause.into(),
    }
}

fn subject_of(record: &Record) -> Subject {
    match record {
        Record::Write(write) => Subject::Block { object: write.object, offset: write.offset },
        Record::Spill(spill) => Subject::Spill { object: spill.object },
        Record::FreeObjects(freed) => {
            let last = freed.first.saturating_add(freed.count.saturating_sub(1));
            Subject::Dnodes { first: freed.first, last }
        }
        other => other.object().map_or(Subject::ObjectSet, |object| Subject::Object { object }),
    }
}
