//! The traits through which this crate reads and changes objects.
//!
//! A ZPL filesystem is an objset: numbered objects, each with a dnode (type, bonus buffer, block size), data blocks and
//! possibly a spill block. This crate knows the meaning of the bytes. The implementor of the traits knows where they
//! are stored.

use std::sync::Arc;

/// `DMU_OT_ZNODE` of `include/sys/dmu.h`: a bonus buffer with a `znode_phys_t` (ZPL versions before 5).
pub const DMU_OT_ZNODE: u8 = 17;
/// `DMU_OT_PLAIN_FILE_CONTENTS`: the data of a regular file.
pub const DMU_OT_PLAIN_FILE_CONTENTS: u8 = 19;
/// `DMU_OT_DIRECTORY_CONTENTS`: the ZAP of a directory.
pub const DMU_OT_DIRECTORY_CONTENTS: u8 = 20;
/// `DMU_OT_MASTER_NODE`: object 1 of every ZPL objset.
pub const DMU_OT_MASTER_NODE: u8 = 21;
/// `DMU_OT_UNLINKED_SET`: the ZAP of removed files that are still open.
pub const DMU_OT_UNLINKED_SET: u8 = 22;
/// `DMU_OT_SA`: a bonus buffer or spill block with system attributes.
pub const DMU_OT_SA: u8 = 44;

/// The fields of a dnode (`dnode_phys_t`) that the ZPL needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Dnode {
    /// Object number.
    pub object: u64,
    /// `DMU_OT_*` of the object's data.
    pub object_type: u8,
    /// `DMU_OT_*` of the bonus buffer, or 0 if there is none.
    pub bonus_type: u8,
    /// Size of a data block in bytes.
    pub block_size: u32,
    /// Number of 512-byte slots of the dnode (1 to 32).
    pub slots: u8,
    /// Whether there is a spill block.
    pub has_spill: bool,
    /// `ZIO_CHECKSUM_*` for new blocks, or 0 to inherit it.
    pub checksum: u8,
    /// `ZIO_COMPRESS_*` for new blocks, or 0 to inherit it.
    pub compress: u8,
    /// The bonus buffer, in the byte order of its writer.
    pub bonus: Vec<u8>,
}

/// Why objects or blocks could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The dataset is encrypted and no key is loaded.
    #[error("the dataset is encrypted (encryption root {encryption_root}) and its key is not loaded")]
    Encrypted {
        /// The dataset whose key is needed.
        encryption_root: String,
    },
    /// One block is damaged and cannot be read. The rest of the filesystem can. A kernel would return `EIO`.
    #[error("object {object}: the block at offset {offset} cannot be read: {source}")]
    Unreadable {
        /// Object number.
        object: u64,
        /// Byte offset in the object.
        offset: u64,
        /// What is wrong with the block.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The pool is full. A kernel would return `ENOSPC`.
    #[error("no space left in the pool")]
    NoSpace,
    /// A quota is used up. A kernel would return `EDQUOT`.
    #[error("quota exceeded")]
    QuotaExceeded,
    /// The source is read-only.
    #[error("read-only")]
    ReadOnly,
    /// Any other failure of the layer below.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

/// Supplies the objects and blocks of one objset, as it was at one moment.
///
/// Bytes are returned as stored. Blocks written on a machine of the other byte order are recognised by their magic
/// numbers, so both byte orders may be mixed.
pub trait Objects {
    /// The dnode of `object`, or `None` if no such object is allocated.
    ///
    /// # Errors
    /// If the dnode cannot be read.
    fn dnode(&self, object: u64) -> Result<Option<Dnode>, SourceError>;

    /// Reads exactly `buf.len()` bytes at `offset`. Holes, and bytes past the last block, are zeros.
    ///
    /// # Errors
    /// [`SourceError::Unreadable`] for a damaged block.
    fn read(&self, object: u64, offset: u64, buf: &mut [u8]) -> Result<(), SourceError>;

    /// The spill block of `object`, if it has one.
    ///
    /// # Errors
    /// If the block cannot be read.
    fn spill(&self, object: u64) -> Result<Option<Vec<u8>>, SourceError>;

    /// The first offset at or after `offset` that lies in a data block (not in a hole), like `SEEK_DATA`. `None` if
    /// there is none.
    ///
    /// # Errors
    /// If the block pointers cannot be read.
    fn next_data(&self, object: u64, offset: u64) -> Result<Option<u64>, SourceError>;

    /// The first offset at or after `offset` that lies in a hole, like `SEEK_HOLE`. Everything past the last block is a
    /// hole. `None` means that there is no hole before the end of the file.
    ///
    /// # Errors
    /// If the block pointers cannot be read.
    fn next_hole(&self, object: u64, offset: u64) -> Result<Option<u64>, SourceError>;

    /// Hints that `object` will soon be read: its dnode and spill block, and its data unless it is a file
    /// (`dmu_prefetch`). A source with high latency fetches them ahead of time. Other sources may ignore this and the
    /// following hints.
    fn prefetch(&self, object: u64) {
        let _ = object;
    }

    /// Like [`Objects::prefetch`], including the data of a small file.
    fn prefetch_content(&self, object: u64) {
        let _ = object;
    }

    /// Hints that `len` bytes at `offset` will soon be read, and that their data and holes will be looked up.
    fn prefetch_extent(&self, object: u64, offset: u64, len: u64) {
        let _ = (object, offset, len);
    }

    /// Hints that `len` bytes at `offset` will soon be read in one piece.
    fn prefetch_data(&self, object: u64, offset: u64, len: u64) {
        let _ = (object, offset, len);
    }

    /// Hints that the directory `object` and everything below it will soon be visited, in the order of full paths.
    fn prefetch_tree(&self, object: u64) {
        let _ = object;
    }
}

/// The parameters of a new object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewObject {
    /// `DMU_OT_*` of its data.
    pub object_type: u8,
    /// `DMU_OT_*` of its bonus buffer.
    pub bonus_type: u8,
    /// Size of a data block in bytes, a multiple of 512.
    pub block_size: u32,
    /// Number of 512-byte slots of its dnode: 1 to 32.
    pub slots: u8,
    /// The bonus buffer.
    pub bonus: Vec<u8>,
}

/// The space that a transaction reserves before it begins, so that it does not fail half-way (`dmu_tx_hold_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// At most this many bytes of new blocks, before compression.
    Write(u64),
    /// The transaction frees more than it writes, so it may use the reserve of a full pool.
    Free,
}

/// Objects that can also be changed.
///
/// Changes are made in transactions. The changes of one transaction become durable together or not at all. Reads see
/// them at once. There is no undo: before a caller begins a transaction, it has checked that the changes are possible.
/// Objects are not locked against each other; the caller does that.
///
/// After a transaction has begun, only failures that end all writing, such as a broken disk, are possible.
pub trait ObjectsMut: Objects {
    /// A transaction. It ends when it is dropped.
    type Tx<'a>
    where
        Self: 'a;

    /// Begins a transaction. A thread may have only one at a time.
    ///
    /// # Errors
    /// [`SourceError::NoSpace`], [`SourceError::QuotaExceeded`], [`SourceError::ReadOnly`].
    fn begin(&self, room: Room) -> Result<Self::Tx<'_>, SourceError>;

    /// The txg that the transaction belongs to.
    fn txg(&self, tx: &Self::Tx<'_>) -> u64;

    /// Creates an object with a free number, and returns the number.
    ///
    /// # Errors
    /// If the pool cannot be read.
    fn create(&self, tx: &Self::Tx<'_>, new: NewObject) -> Result<u64, SourceError>;

    /// Creates an object with a given number, which must be free.
    ///
    /// # Errors
    /// If the pool cannot be read.
    fn create_at(&self, tx: &Self::Tx<'_>, object: u64, new: NewObject) -> Result<(), SourceError>;

    /// Replaces an object's bonus buffer. The new one must fit in the slots of the dnode.
    ///
    /// # Errors
    /// If there is no such object or the pool cannot be read.
    fn set_bonus(
        &self,
        tx: &Self::Tx<'_>,
        object: u64,
        bonus_type: u8,
        bonus: Vec<u8>,
    ) -> Result<(), SourceError>;

    /// Changes the block size of an object that has at most one block. The block keeps its bytes.
    ///
    /// # Errors
    /// If there is no such object, if it has more blocks, or if the pool cannot be read.
    fn set_block_size(&self, tx: &Self::Tx<'_>, object: u64, block_size: u32) -> Result<(), SourceError>;

    /// Writes bytes. The other bytes of the affected blocks are kept; in new blocks they are zeros.
    ///
    /// # Errors
    /// If there is no such object or the pool cannot be read.
    fn write(&self, tx: &Self::Tx<'_>, object: u64, offset: u64, data: &[u8]) -> Result<(), SourceError>;

    /// Makes a hole: removes whole blocks and zeroes parts of blocks. If `offset + length` overflows, the hole reaches
    /// to the end.
    ///
    /// # Errors
    /// Like [`ObjectsMut::write`].
    fn free(&self, tx: &Self::Tx<'_>, object: u64, offset: u64, length: u64) -> Result<(), SourceError>;

    /// Sets or removes an object's spill block, which has a multiple of 512 bytes and at most 128 KiB.
    ///
    /// # Errors
    /// Like [`ObjectsMut::write`].
    fn set_spill(&self, tx: &Self::Tx<'_>, object: u64, spill: Option<Vec<u8>>) -> Result<(), SourceError>;

    /// Removes an object with all its blocks.
    ///
    /// # Errors
    /// Like [`ObjectsMut::write`].
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
