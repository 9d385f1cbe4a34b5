//! What can be wrong with keys, parameters and encrypted blocks.

/// Why key data or a key cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// A field of the key data is missing, or has another type or length than it must have.
    #[error("crypt_keydata: {field} is missing or is not {expected}")]
    Field {
        /// Its name.
        field: &'static str,
        /// What it must be.
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
    /// `enum zio_encrypt` of a suite that is not known.
    #[error("crypt_keydata: unsupported encryption suite {found}")]
    Suite {
        /// The number.
        found: u64,
    },
    /// A version of the key's format other than 1; raw streams of others are not sent.
    #[error("crypt_keydata: unsupported key version {found}")]
    Version {
        /// The version.
        found: u64,
    },
    /// The key given is not as long as keys of this format are.
    #[error("{} key too {} (expected {expected})", .format.capitalized(), if .found < .expected { "short" } else { "long" })]
    Length {
        /// The format.
        format: crate::KeyFormat,
        /// How long it is, as far as it was looked at.
        found: usize,
        /// How long it must be.
        expected: usize,
    },
    /// A key in hexadecimal that has something else in it.
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
    /// The ciphertext, its MAC, its IV, its salt or what was authenticated beside it has changed.
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
    /// A dnode whose bonus buffer has another length than its block pointers leave room for.
    #[error("object {object} has a bonus buffer of {found} bytes where its dnode has room for {expected}")]
    BonusLength {
        /// The object.
        object: u64,
        /// Its length.
        found: usize,
        /// Room in the dnode.
        expected: usize,
    },
    /// Another number of block pointers than the dnode says.
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

/// Why the blocks of an object do not make a tree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// Sizes, levels or pointers no dnode has.
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
    /// A block that the tree has no place for.
    #[error("block {blkid} is beyond the object's block tree")]
    Beyond {
        /// The block.
        blkid: u64,
    },
    /// A block that comes after later ones: their place in the tree is closed.
    #[error("block {blkid} comes after later blocks")]
    Order {
        /// The block.
        blkid: u64,
    },
    /// A block that is not one of the object's: not at a multiple of its size, or of another size.
    #[error("{length} bytes at offset {offset} are no block of an object with blocks of {block_size} bytes")]
    NotABlock {
        /// Where, in bytes.
        offset: u64,
        /// Its size.
        length: u64,
        /// The object's block size.
        block_size: u64,
    },
    /// Sizes that no block pointer can have.
    #[error("no block pointer has a logical size of {logical} and a physical size of {physical} bytes")]
    Sizes {
        /// Logical size.
        logical: u64,
        /// Physical size.
        physical: u64,
    },
}
