//! Where objects come from: the one trait through which this crate reads.
//!
//! A ZPL filesystem is an objset: numbered objects, each with a dnode (type, bonus buffer, block size), data blocks
//! and perhaps a spill block. This crate knows what the bytes mean, the implementor knows where they are.

use std::sync::Arc;

/// `DMU_OT_ZNODE` of `include/sys/dmu.h`: a bonus buffer holding a `znode_phys_t` (ZPL versions before 5).
pub const DMU_OT_ZNODE: u8 = 17;
/// `DMU_OT_PLAIN_FILE_CONTENTS`: the data of a regular file.
pub const DMU_OT_PLAIN_FILE_CONTENTS: u8 = 19;
/// `DMU_OT_DIRECTORY_CONTENTS`: the ZAP of a directory.
pub const DMU_OT_DIRECTORY_CONTENTS: u8 = 20;
/// `DMU_OT_MASTER_NODE`: object 1 of every ZPL objset.
pub const DMU_OT_MASTER_NODE: u8 = 21;
/// `DMU_OT_UNLINKED_SET`: the ZAP of removed files still open.
pub const DMU_OT_UNLINKED_SET: u8 = 22;
/// `DMU_OT_SA`: a bonus or spill buffer holding system attributes.
pub const DMU_OT_SA: u8 = 44;

/// What of a dnode (`dnode_phys_t`) matters to the ZPL.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Dnode {
    /// Object number.
    pub object: u64,
    /// `DMU_OT_*` of the object's data.
    pub object_type: u8,
    /// `DMU_OT_*` of the bonus buffer; 0 where there is none.
    pub bonus_type: u8,
    /// Bytes in a data block.
    pub block_size: u32,
    /// 512-byte slots the dnode takes (1 to 32).
    pub slots: u8,
    /// There is a spill block.
    pub has_spill: bool,
    /// `ZIO_CHECKSUM_*` for new blocks; 0 inherits.
    pub checksum: u8,
    /// `ZIO_COMPRESS_*` for new blocks; 0 inherits.
    pub compress: u8,
    /// The bonus buffer, in the byte order of whoever wrote it.
    pub bonus: Vec<u8>,
}

/// Why objects or blocks could not be supplied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The dataset is encrypted and no key is loaded.
    #[error("the dataset is encrypted (encryption root {encryption_root}) and its key is not loaded")]
    Encrypted {
        /// The dataset whose key is needed.
        encryption_root: String,
    },
    /// One block cannot be read (damaged); the rest of the filesystem can. A kernel would say `EIO`.
    #[error("object {object}: the block at offset {offset} cannot be read: {source}")]
    Unreadable {
        /// Object number.
        object: u64,
        /// Byte offset in the object.
        offset: u64,
        /// What was wrong with it.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The pool is full. A kernel would say `ENOSPC`.
    #[error("no space left in the pool")]
    NoSpace,
    /// A quota is used up. A kernel would say `EDQUOT`.
    #[error("quota exceeded")]
    QuotaExceeded,
    /// What is read from cannot be written.
    #[error("read-only")]
    ReadOnly,
    /// Any other failure of the layer below.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

/// Supplies the objects and blocks of one objset, as of one moment.
///
/// Bytes are handed out as stored. Blocks written on a machine of the other byte order are recognised by the magic
/// numbers in them, so they may be mixed.
pub trait Objects {
    /// The dnode of `object`, or `None` where no such object is allocated.
    ///
    /// # Errors
    /// Whatever keeps the dnode from being read.
    fn dnode(&self, object: u64) -> Result<Option<Dnode>, SourceError>;

    /// Reads exactly `buf.len()` bytes at `offset`; holes, and what lies past the last block, read as zeros.
    ///
    /// # Errors
    /// [`SourceError::Unreadable`] for a damaged block.
    fn read(&self, object: u64, offset: u64, buf: &mut [u8]) -> Result<(), SourceError>;

    /// The spill block of `object`, if it has one.
    ///
    /// # Errors
    /// Whatever keeps the block from being read.
    fn spill(&self, object: u64) -> Result<Option<Vec<u8>>, SourceError>;

    /// The first offset at or after `offset` that lies in a data block (not a hole), as `SEEK_DATA`; `None` when
    /// there is none.
    ///
    /// # Errors
    /// Whatever keeps the block pointers from being read.
    fn next_data(&self, object: u64, offset: u64) -> Result<Option<u64>, SourceError>;

    /// The first offset at or after `offset` that lies in a hole, as `SEEK_HOLE`. All that is past the last block is a
    /// hole; `None` says that there is none, and means the end of the file.
    ///
    /// # Errors
    /// Whatever keeps the block pointers from being read.
    fn next_hole(&self, object: u64, offset: u64) -> Result<Option<u64>, SourceError>;

    /// Says that `object` will soon be read: its dnode and spill block, and its data unless it is a file (`dmu_prefetch`).
    /// A source that is far away asks for that ahead of time; others need not do anything. So for all that follow.
    fn prefetch(&self, object: u64) {
        let _ = object;
    }

    /// As [`Objects::prefetch`], with the data of a small file.
    fn prefetch_content(&self, object: u64) {
        let _ = object;
    }

    /// Says that `len` bytes at `offset` will soon be read, and asked where the data there begins and ends.
    fn prefetch_extent(&self, object: u64, offset: u64, len: u64) {
        let _ = (object, offset, len);
    }

    /// Says that `len` bytes at `offset` will soon be read, in one piece.
    fn prefetch_data(&self, object: u64, offset: u64, len: u64) {
        let _ = (object, offset, len);
    }

    /// Says that the directory `object` and all that is below it will soon be looked at, in the order of whole paths.
    fn prefetch_tree(&self, object: u64) {
        let _ = object;
    }
}

/// What a new object is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewObject {
    /// `DMU_OT_*` of its data.
    pub object_type: u8,
    /// `DMU_OT_*` of its bonus buffer.
    pub bonus_type: u8,
    /// Bytes in a data block: a multiple of 512.
    pub block_size: u32,
    /// 512-byte slots of its dnode: 1 to 32.
    pub slots: u8,
    /// The bonus buffer.
    pub bonus: Vec<u8>,
}

/// What a transaction asks for before it begins, so that it does not fail half-way (`dmu_tx_hold_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// At most so many bytes of new blocks, before compression.
    Write(u64),
    /// It gives back more than it takes, and so may use what a full pool keeps in reserve.
    Free,
}

/// Objects that can also be changed.
///
/// Changes are made in transactions: all that is done in one lands on disk together or not at all, and is seen by
/// reads at once. There is no undo: whoever begins a transaction has looked beforehand whether what it is about to do
/// can be done. Objects are not locked against one another: that is the caller's part.
///
/// Once a transaction has begun, only failures that end all writing (a broken disk) are left.
pub trait ObjectsMut: Objects {
    /// A transaction; ends when dropped.
    type Tx<'a>
    where
        Self: 'a;

    /// Begins a transaction; a thread has at most one.
    ///
    /// # Errors
    /// [`SourceError::NoSpace`], [`SourceError::QuotaExceeded`], [`SourceError::ReadOnly`].
    fn begin(&self, room: Room) -> Result<Self::Tx<'_>, SourceError>;

    /// The txg that a transaction lands in.
    fn txg(&self, tx: &Self::Tx<'_>) -> u64;

    /// Makes an object under a number that is free, and gives the number.
    ///
    /// # Errors
    /// When the pool cannot be read.
    fn create(&self, tx: &Self::Tx<'_>, new: NewObject) -> Result<u64, SourceError>;

    /// Makes an object under a given number, which must be free.
    ///
    /// # Errors
    /// When the pool cannot be read.
    fn create_at(&self, tx: &Self::Tx<'_>, object: u64, new: NewObject) -> Result<(), SourceError>;

    /// Replaces an object's bonus buffer, which must fit its slots.
    ///
    /// # Errors
    /// When there is no such object or the pool cannot be read.
    fn set_bonus(
        &self,
        tx: &Self::Tx<'_>,
        object: u64,
        bonus_type: u8,
        bonus: Vec<u8>,
    ) -> Result<(), SourceError>;

    /// Changes the block size of an object that has no block but the first, which keeps its bytes.
    ///
    /// # Errors
    /// When there is no such object, it has further blocks, or the pool cannot be read.
    fn set_block_size(&self, tx: &Self::Tx<'_>, object: u64, block_size: u32) -> Result<(), SourceError>;

    /// Writes bytes; what the blocks hold beside them is kept, and zeros where there was nothing.
    ///
    /// # Errors
    /// When there is no such object or the pool cannot be read.
    fn write(&self, tx: &Self::Tx<'_>, object: u64, offset: u64, data: &[u8]) -> Result<(), SourceError>;

    /// Makes a hole: whole blocks go, parts of blocks become zeros. A `length` that overflows means to the end.
    ///
    /// # Errors
    /// As [`ObjectsMut::write`].
    fn free(&self, tx: &Self::Tx<'_>, object: u64, offset: u64, length: u64) -> Result<(), SourceError>;

    /// Sets or removes an object's spill block: a multiple of 512 bytes, at most 128 KiB.
    ///
    /// # Errors
    /// As [`ObjectsMut::write`].
    fn set_spill(&self, tx: &Self::Tx<'_>, object: u64, spill: Option<Vec<u8>>) -> Result<(), SourceError>;

    /// Removes an object with all its blocks.
    ///
    /// # Errors
    /// As [`ObjectsMut::write`].
    fn destroy(&self, tx: &Self::Tx<'_>, object: u64) -> Result<(), SourceError>;
}

macro_rules! forward_objects {
    ($($of:ty),*) => {$(
        impl<T: Objects + ?Sized> Objects for $of {
            fn dnode(&self, object: u64) -> Result<Option<Dnode>, SourceError> {
                (**self).dnode(object)
            }
            fn read(&self, object: u64, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
                (**self).read(object, offset, buf)
            }
            fn spill(&self, object: u64) -> Result<Option<Vec<u8>>, SourceError> {
                (**self).spill(object)
            }
            fn next_data(&self, object: u64, offset: u64) -> Result<Option<u64>, SourceError> {
                (**self).next_data(object, offset)
            }
            fn next_hole(&self, object: u64, offset: u64) -> Result<Option<u64>, SourceError> {
                (**self).next_hole(object, offset)
            }
            fn prefetch(&self, object: u64) {
                (**self).prefetch(object);
            }
            fn prefetch_content(&self, object: u64) {
                (**self).prefetch_content(object);
            }
            fn prefetch_extent(&self, object: u64, offset: u64, len: u64) {
                (**self).prefetch_extent(object, offset, len);
            }
            fn prefetch_data(&self, object: u64, offset: u64, len: u64) {
                (**self).prefetch_data(object, offset, len);
            }
            fn prefetch_tree(&self, object: u64) {
                (**self).prefetch_tree(object);
            }
        }
    )*};
}
forward_objects!(&T, Box<T>, Arc<T>);

macro_rules! forward_objects_mut {
    ($($of:ty),*) => {$(
        impl<T: ObjectsMut> ObjectsMut for $of {
            type Tx<'a>
                = T::Tx<'a>
            where
                Self: 'a;

            fn begin(&self, room: Room) -> Result<Self::Tx<'_>, SourceError> {
                (**self).begin(room)
            }
            fn txg(&self, tx: &Self::Tx<'_>) -> u64 {
                (**self).txg(tx)
            }
            fn create(&self, tx: &Self::Tx<'_>, new: NewObject) -> Result<u64, SourceError> {
                (**self).create(tx, new)
            }
            fn create_at(&self, tx: &Self::Tx<'_>, object: u64, new: NewObject) -> Result<(), SourceError> {
                (**self).create_at(tx, object, new)
            }
            fn set_bonus(
                &self,
                tx: &Self::Tx<'_>,
                object: u64,
                bonus_type: u8,
                bonus: Vec<u8>,
            ) -> Result<(), SourceError> {
                (**self).set_bonus(tx, object, bonus_type, bonus)
            }
            fn set_block_size(&self, tx: &Self::Tx<'_>, object: u64, size: u32) -> Result<(), SourceError> {
                (**self).set_block_size(tx, object, size)
            }
            fn write(
                &self,
                tx: &Self::Tx<'_>,
                object: u64,
                offset: u64,
                data: &[u8],
            ) -> Result<(), SourceError> {
                (**self).write(tx, object, offset, data)
            }
            fn free(
                &self,
                tx: &Self::Tx<'_>,
                object: u64,
                offset: u64,
                length: u64,
            ) -> Result<(), SourceError> {
                (**self).free(tx, object, offset, length)
            }
            fn set_spill(
                &self,
                tx: &Self::Tx<'_>,
                object: u64,
                spill: Option<Vec<u8>>,
            ) -> Result<(), SourceError> {
                (**self).set_spill(tx, object, spill)
            }
            fn destroy(&self, tx: &Self::Tx<'_>, object: u64) -> Result<(), SourceError> {
                (**self).destroy(tx, object)
            }
        }
    )*};
}
forward_objects_mut!(Arc<T>);
