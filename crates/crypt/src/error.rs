//! Errors of keys, parameters and encrypted blocks.

/// Why key data or a key cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// A field of the key data is missing, or has a wrong type or length.
    #[error("crypt_keydata: {field} is missing or is not {expected}")]
    Field {
        /// Its name.
        field: &'static str,
        /// The required type or length.
        expected: &'static str,
    },
    /// A number outside its range.
    #[error("crypt_keydata: {field} {found} is not within {min}..={max}")]
    Range {
        /// The field's name.
        field: &'static str,
        /// Its value.
        found: u64,
        /// Least value allowed.
        min: u64,
        /// Greatest value allowed.
        max: u64,
    },
    /// `enum zio_encrypt` of an unknown suite.
    #[error("crypt_keydata: unsupported encryption suite {found}")]
    Suite {
        /// The number.
        found: u64,
    },
    /// A version of the key's format other than 1. Raw streams with other versions are not sent.
    #[error("crypt_keydata: unsupported key version {found}")]
    Version {
        /// The version.
        found: u64,
    },
    /// The given key does not have the length of keys in this format.
    #[error("{} key too {} (expected {expected})", .format.capitalized(), if .found < .expected { "short" } else { "long" })]
    Length {
        /// The format.
        format: crate::KeyFormat,
        /// Its length, as far as it was examined.
        found: usize,
        /// The required length.
        expected: usize,
    },
    /// A hexadecimal key with other characters.
    #[error("Invalid hex character detected")]
    Hex,
    /// The key does not open the key data: it is another key, or the key data is damaged.
    #[error("Incorrect key")]
    Incorrect,
}

/// Why an encrypted block is not what its owner wrote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// The ciphertext, its MAC, IV or salt, or the authenticated data beside it has changed.
    #[error("authentication failed")]
    Unauthentic,
    /// A dnode does not fit into its block, or overlaps another.
    #[error("object {object} does not fit into the dnode block of objects {first} to {last}")]
    DnodeSlots {
        /// The object.
        object: u64,
        /// First object of the block.
        first: u64,
        /// Last object of the block.
        last: u64,
    },
    /// The length of a bonus buffer does not match the space that the block pointers leave.
    #[error("object {object} has a bonus buffer of {found} bytes where its dnode has room for {expected}")]
    BonusLength {
        /// The object.
        object: u64,
        /// Its length.
        found: usize,
        /// Space in the dnode.
        expected: usize,
    },
    /// The number of block pointers differs from the number in the dnode.
    #[error("object {object}: {found} block pointers given where the dnode has {expected}")]
    BlockPointers {
        /// The object.
        object: u64,
        /// How many were given.
        found: usize,
        /// How many there are.
        expected: usize,
    },
}

/// Why the blocks of an object do not form a tree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// No dnode has such sizes, levels or pointers.
    #[error(
        "a tree of {nlevels} levels with {nblkptr} block pointers and indirect blocks of 2^{indirect_shift} bytes"
    )]
    Shape {
        /// Levels.
        nlevels: u8,
        /// Block pointers in the dnode.
        nblkptr: u8,
        /// log2 of the indirect block size.
        indirect_shift: u8,
    },
    /// A block outside the tree.
    #[error("block {blkid} is beyond the object's block tree")]
    Beyond {
        /// The block.
        blkid: u64,
    },
    /// A block that comes after later ones: its part of the tree is already closed.
    #[error("block {blkid} comes after later blocks")]
    Order {
        /// The block.
        blkid: u64,
    },
    /// A block that does not belong to the object: its offset is not a multiple of the block size, or it has another
    /// size.
    #[error("{length} bytes at offset {offset} are no block of an object with blocks of {block_size} bytes")]
    NotABlock {
        /// Its offset, in bytes.
        offset: u64,
        /// Its size.
        length: u64,
        /// The object's block size.
        block_size: u64,
    },
    /// No block pointer can have these sizes.
    #[error("no block pointer has a logical size of {logical} and a physical size of {physical} bytes")]
    Sizes {
        /// Logical size.
        logical: u64,
        /// Physical size.
        physical: u64,
    },
}
