//! Changing ZAPs, as `module/zfs/zap.c` and the functions it calls do.
//!
//! A [`ZapEdit`] collects changes in memory. All checks happen there, and [`ZapEdit::write`] then only writes. So a
//! transaction begins only when it is certain that the ZAP can take the entry.

mod fat;
mod leaf;
mod micro;
#[cfg(test)]
mod tests;

use super::hash::{Hashing, Wanted};
use super::{Entry, Form, Matching, Value, Zap};
use crate::bytes::Endian;
use crate::error::ZplError;
use crate::normalize::NormFlags;
use crate::source::{NewObject, Objects, ObjectsMut};
use leaf::{Named, Stored};

/// `ZAP_MAXVALUELEN`.
const VALUE_MAX: usize = 8192;
/// Longest name: `ZAP_MAXNAMELEN`, without the NUL.
pub(crate) const NAME_MAX: usize = 255;
/// `fzap_default_block_shift`.
const DEFAULT_BLOCK_SHIFT: u32 = 14;
/// Number of bytes by which a micro ZAP grows: `SPA_MINBLOCKSIZE`.
const BLOCK_STEP: usize = 512;
/// Largest size of a micro ZAP: `zap_micro_max_size`.
const MICRO_MAX: usize = 128 << 10;

/// Why an entry was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refused {
    /// A micro ZAP cannot hold the entry, but a fat one might.
    TooSmall,
    /// Too many names with nearly the same hash.
    Full,
}

fn other_order(object: u64) -> ZplError {
    ZplError::Unsupported { object, what: "changing a ZAP written in big-endian byte order".into() }
}

enum Changed {
    Micro(micro::Micro),
    Fat {
        fat: fat::Fat,
        /// The ZAP was a micro ZAP before the changes.
        upgraded: bool,
    },
}

/// A ZAP with changes that are not written yet.
pub struct ZapEdit<'o, O: Objects + ?Sized> {
    objects: &'o O,
    object: u64,
    changed: Changed,
}

/// A micro ZAP that is kept in memory between changes, with an index of its names. If the object is changed in any
/// other way, the holder must drop it.
pub struct KeptZap {
    object: u64,
    micro: micro::Micro,
}

impl KeptZap {
    /// Keeps a micro ZAP that was read. `None` for a fat ZAP, and for one in big-endian byte order, which cannot be
    /// changed.
    pub fn new<O: Objects + ?Sized>(zap: Zap<'_, O>) -> Option<Self> {
        let (object, hashing) = (zap.object, *zap.hashing());
        match zap.form {
            Form::Micro(micro) if micro.endian == Endian::Little => {
                Some(Self { object, micro: micro::Micro::new(micro.into_block(), hashing) })
            }
            _ => None,
        }
    }

    /// Object number.
    pub fn object(&self) -> u64 {
        self.object
    }

    /// Approximate size in memory, in bytes.
    pub fn weight(&self) -> usize {
        self.micro.weight()
    }

    /// Like [`Zap::lookup`].
    pub fn lookup(&mut self, name: &[u8], matching: Matching) -> Option<Entry> {
        self.micro.index();
        self.micro.entry(&Wanted::new(&self.micro.hashing, name, matching))
    }
}

/// An entry returned by [`ZapEdit::lookup`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EditEntry {
    /// Its name as stored.
    pub name: Vec<u8>,
    /// Its value, if that is one 64-bit integer.
    pub value: Option<u64>,
}

impl<'o, O: Objects + ?Sized> ZapEdit<'o, O> {
    /// Reads the ZAP `object`.
    ///
    /// # Errors
    /// If it cannot be read or is no ZAP. [`ZplError::Unsupported`] if its keys are integers or its byte order is
    /// big-endian.
    pub fn open(objects: &'o O, object: u64) -> Result<Self, ZplError> {
        let zap = Zap::open(objects, object)?;
        let hashing = *zap.hashing();
        if hashing.has_word_keys() {
            return Err(ZplError::Unsupported {
                object,
                what: "changing a ZAP with keys of integers".into(),
            });
        }
        let (endian, block) = match zap.form {
            Form::Micro(micro) => (micro.endian, Err(micro.into_block())),
            Form::Fat(fat) => (fat.endian, Ok(fat.into_header())),
        };
        if endian != Endian::Little {
            return Err(other_order(object));
        }
        let changed = match block {
            Ok(header) => Changed::Fat { fat: fat::Fat::new(object, header, hashing), upgraded: false },
            Err(block) => Changed::Micro(micro::Micro::new(block, hashing)),
        };
        Ok(Self { objects, object, changed })
    }

    /// Continues with a ZAP that was kept in memory.
    pub fn resume(objects: &'o O, kept: KeptZap) -> Self {
        Self { objects, object: kept.object, changed: Changed::Micro(kept.micro) }
    }

    /// Keeps a micro ZAP in memory for the next change. `None` for a fat ZAP.
    pub fn into_kept(self) -> Option<KeptZap> {
        match self.changed {
            Changed::Micro(micro) => Some(KeptZap { object: self.object, micro }),
            Changed::Fat { .. } => None,
        }
    }

    /// Object number.
    pub fn object(&self) -> u64 {
        self.object
    }

    /// Number of entries.
    pub fn count(&self) -> u64 {
        match &self.changed {
            Changed::Micro(micro) => micro.entries(),
            Changed::Fat { fat, .. } => fat.entries(),
        }
    }

    fn hashing(&self) -> Hashing {
        match &self.changed {
            Changed::Micro(micro) => micro.hashing,
            Changed::Fat { fat, .. } => fat.hashing,
        }
    }

    /// Number of bytes in the blocks that [`ZapEdit::write`] writes.
    pub fn room(&self) -> u64 {
        match &self.changed {
            Changed::Micro(micro) => micro.room(),
            Changed::Fat { fat, .. } => fat.room(),
        }
    }

    /// Finds the entry called `name`.
    ///
    /// # Errors
    /// If a block cannot be read or is inconsistent.
    pub fn lookup(&mut self, name: &[u8], matching: Matching) -> Result<Option<EditEntry>, ZplError> {
        let hashing = self.hashing();
        let wanted = Wanted::new(&hashing, name, matching);
        match &mut self.changed {
            Changed::Micro(micro) => Ok(micro.lookup(&wanted)),
            Changed::Fat { fat, .. } => fat.lookup(self.objects, &wanted),
        }
    }

    /// Checks that a ZAP can hold the name.
    fn check_name(&self, name: &[u8]) -> Result<(), ZplError> {
        if name.len() > NAME_MAX {
            return Err(ZplError::NameTooLong { len: name.len() });
        }
        if name.is_empty() || name.contains(&0) {
            return Err(ZplError::InvalidName { name: name.to_vec() });
        }
        // ZFS normalises names into a buffer of this size. It does not find a name that does not fit in it.
        let norm = self.hashing().norm;
        for norm in [norm, norm.without_case_folding()] {
            let len = norm.apply(name).len();
            if len > NAME_MAX {
                return Err(ZplError::NameTooLong { len });
            }
        }
        Ok(())
    }

    fn full(&self) -> ZplError {
        ZplError::ZapFull { object: self.object }
    }

    fn upgrade(&mut self) -> Result<(), ZplError> {
        if let Changed::Micro(micro) = &self.changed {
            let fat = micro.upgrade(self.objects, self.object)?.map_err(|_| self.full())?;
            self.changed = Changed::Fat { fat, upgraded: true };
        }
        Ok(())
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// [`ZplError::Exists`] if there is an entry with exactly this name, [`ZplError::NameTooLong`],
    /// [`ZplError::InvalidName`], [`ZplError::ZapFull`], or if a block cannot be read.
    pub fn add(&mut self, name: &[u8], value: &Value) -> Result<(), ZplError> {
        self.check_name(name)?;
        if self.lookup(name, Matching::Exact)?.is_some() {
            return Err(ZplError::Exists { directory: self.object, name: name.to_vec() });
        }
        let stored = self.stored(value)?;
        let hash = self.hashing().hash_name(name);
        if let Changed::Micro(micro) = &mut self.changed {
            let added = match value.as_u64() {
                Some(value) => micro.add(name, hash, value),
                None => Err(Refused::TooSmall),
            };
            match added {
                Ok(()) => return Ok(()),
                Err(Refused::TooSmall) => self.upgrade()?,
                Err(Refused::Full) => return Err(self.full()),
            }
        }
        let added = match &mut self.changed {
            Changed::Fat { fat, .. } => fat.add(self.objects, Named { name, hash, cd: None }, &stored)?,
            Changed::Micro(_) => Err(Refused::TooSmall),
        };
        added.map_err(|_| self.full())
    }

    fn stored(&self, value: &Value) -> Result<Stored, ZplError> {
        Stored::new(value).ok_or_else(|| ZplError::Unsupported {
            object: self.object,
            what: format!("a ZAP value of {} integers", value.integers().len()),
        })
    }

    /// Replaces the value of the entry with exactly this name, or adds the entry.
    ///
    /// # Errors
    /// Like [`ZapEdit::add`].
    pub fn update(&mut self, name: &[u8], value: &Value) -> Result<(), ZplError> {
        if self.lookup(name, Matching::Exact)?.is_none() {
            return self.add(name, value);
        }
        let stored = self.stored(value)?;
        let hashing = self.hashing();
        let wanted = Wanted::new(&hashing, name, Matching::Exact);
        if let Changed::Micro(micro) = &mut self.changed {
            match value.as_u64() {
                Some(value) => {
                    micro.update(&wanted, value);
                    return Ok(());
                }
                None => self.upgrade()?,
            }
        }
        let updated = match &mut self.changed {
            Changed::Fat { fat, .. } => fat.update(self.objects, &wanted, &stored)?,
            Changed::Micro(_) => Err(Refused::TooSmall),
        };
        updated.map_err(|_| self.full())
    }

    /// Removes the entry with exactly this name. Returns whether it existed.
    ///
    /// # Errors
    /// If a block cannot be read or is inconsistent.
    pub fn remove(&mut self, name: &[u8]) -> Result<bool, ZplError> {
        let hashing = self.hashing();
        let wanted = Wanted::new(&hashing, name, Matching::Exact);
        match &mut self.changed {
            Changed::Micro(micro) => Ok(micro.remove(&wanted)),
            Changed::Fat { fat, .. } => fat.remove(self.objects, &wanted),
        }
    }
}

impl<O: ObjectsMut> ZapEdit<'_, O> {
    /// Writes the changes.
    ///
    /// # Errors
    /// If the layer below fails.
    pub fn write(&mut self, tx: &O::Tx<'_>) -> Result<(), ZplError> {
        match &mut self.changed {
            Changed::Micro(micro) => micro.write(self.objects, tx, self.object),
            Changed::Fat { fat, upgraded } => {
                if *upgraded {
                    let failed = ZplError::source(self.object);
                    self.objects.set_block_size(tx, self.object, 1 << DEFAULT_BLOCK_SHIFT).map_err(failed)?;
                }
                fat.write(self.objects, tx)
            }
        }
    }
}

/// The parameters of a new ZAP.
#[derive(Debug, Clone)]
pub struct NewZap {
    /// `DMU_OT_*` of its object.
    pub object_type: u8,
    /// `DMU_OT_*` of its bonus buffer; 0 for none.
    pub bonus_type: u8,
    /// The bonus buffer.
    pub bonus: Vec<u8>,
    /// `DMU_OT_*` of its bonus buffer, or 0 for none.
    pub slots: u8,
    /// Normalisation applied to names before they are hashed and compared.
    pub norm: NormFlags,
    /// Random start value of the hash of every name, so that nobody can choose names that collide.
    pub salt: u64,
}

impl NewZap {
    /// A ZAP with no bonus buffer.
    pub fn plain(object_type: u8, salt: u64) -> Self {
        Self { object_type, bonus_type: 0, bonus: Vec::new(), slots: 1, norm: NormFlags::NONE, salt }
    }

    fn object(self) -> (NewObject, Vec<u8>) {
        // ZFS never uses the salt 0 either.
        let hashing = Hashing { salt: self.salt | 1, flags: 0, norm: self.norm };
        let new = NewObject {
            object_type: self.object_type,
            bonus_type: self.bonus_type,
            block_size: BLOCK_STEP as u32,
            slots: self.slots,
            bonus: self.bonus,
        };
        (new, micro::Micro::header(&hashing))
    }

    /// Creates an empty micro ZAP and returns its object number.
    ///
    /// # Errors
    /// If the layer below fails.
    pub fn create<O: ObjectsMut>(self, objects: &O, tx: &O::Tx<'_>) -> Result<u64, ZplError> {
        let (new, header) = self.object();
        let object = objects.create(tx, new).map_err(ZplError::source(0))?;
        objects.write(tx, object, 0, &header).map_err(ZplError::source(object))?;
        Ok(object)
    }

    /// Like [`NewZap::create`], with a given object number, which must be free.
    ///
    /// # Errors
    /// If the layer below fails.
    pub fn create_at<O: ObjectsMut>(self, objects: &O, tx: &O::Tx<'_>, object: u64) -> Result<(), ZplError> {
        let (new, header) = self.object();
        objects.create_at(tx, object, new).map_err(ZplError::source(object))?;
        objects.write(tx, object, 0, &header).map_err(ZplError::source(object))
    }
}
