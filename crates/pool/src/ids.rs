//! Numbers that identify transaction groups, trees and blocks.

/// The number of a transaction group. No block is born in txg 0.
pub type Txg = u64;

/// Largest txg. No pool reaches it, and sums of txgs do not overflow.
pub(crate) const TXG_MAX: Txg = i64::MAX as u64;

/// The largest txg that is taken for one of a pool. Larger ones in the ring of uberblocks are forged or damaged. The
/// distance to [`TXG_MAX`] is enough for a commit every second for a hundred years.
pub(crate) const TXG_FOUND_MAX: Txg = TXG_MAX - (1 << 32);

/// Identifies a tree. Ids are never reused within a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TreeId(pub u64);

impl TreeId {
    /// The meta tree.
    pub const META: TreeId = TreeId(0);
}

/// The object and block number in a frame's header. Only scans and salvage use them; no lookup does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockId {
    /// Object number.
    pub object: u64,
    /// Block number within the object.
    pub blkid: u64,
}
