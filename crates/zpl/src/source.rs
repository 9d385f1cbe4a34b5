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
    /// Highest data block number ever written.
    pub max_blkid: u64,
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
        }
    )*};
}
forward_objects!(&T, Box<T>, Arc<T>);
