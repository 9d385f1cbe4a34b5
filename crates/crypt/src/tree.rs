//! The tree of MACs above an object's blocks (`zio_crypt_do_indirect_mac_checksum`).
//!
//! The MAC of an indirect block is the beginning of SHA-512 over the authenticated parts of its block pointers. The
//! dnode's own pointers therefore authenticate every block of the object together with its place.

use std::collections::BTreeMap;

use sha2::{Digest, Sha512};

use crate::auth::{AUTH_LEN, BlockAuth};
use crate::error::TreeError;
use crate::suite::MAC_LEN;

/// log2 of a block pointer's size (`SPA_BLKPTRSHIFT`).
const POINTER_SHIFT: u8 = 7;
/// Maximum number of levels (`DN_MAX_LEVELS`, rounded up).
const MAX_LEVELS: u8 = 12;

/// The shape of a block tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// `dmu_object_type_t` of the object.
    pub object_type: u32,
    /// Number of levels. 1 if the dnode points to data.
    pub nlevels: u8,
    /// Block pointers in the dnode, 1 to 3.
    pub nblkptr: u8,
    /// log2 of the indirect block size, 12 to 17. Unused with one level.
    pub indirect_shift: u8,
}

impl Shape {
    fn check(self) -> Result<Self, TreeError> {
        let Self { nlevels, nblkptr, indirect_shift, .. } = self;
        let indirect = nlevels == 1 || (12..=17).contains(&indirect_shift);
        if (1..=MAX_LEVELS).contains(&nlevels) && (1..=3).contains(&nblkptr) && indirect {
            Ok(self)
        } else {
            Err(TreeError::Shape { nlevels, nblkptr, indirect_shift })
        }
    }

    /// log2 of the number of block pointers in an indirect block.
    const fn fan_shift(self) -> u32 {
        self.indirect_shift.saturating_sub(POINTER_SHIFT) as u32
    }

    /// Whether the tree has a place for this block at this level.
    fn has(self, level: u8, index: u64) -> bool {
        let above = u32::from(self.nlevels.saturating_sub(1).saturating_sub(level));
        index.checked_shr(above.saturating_mul(self.fan_shift())).unwrap_or(0) < u64::from(self.nblkptr)
    }
}

/// Whether a tree keeps every block, or only what later blocks need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Every block, so that blocks can be replaced and freed.
    All,
    /// At most the blocks of one indirect block per level. Blocks must come in order, and none may be freed.
    Open,
}

/// The block tree of one object.
#[derive(Clone, Debug)]
pub struct MacTree {
    shape: Shape,
    /// By level: blocks that are not holes and that are not yet part of an indirect block above.
    levels: Vec<BTreeMap<u64, BlockAuth>>,
    /// Blocks before this one are closed.
    closed: u64,
}

impl MacTree {
    /// Creates a tree that has only holes.
    ///
    /// # Errors
    /// No dnode has this shape.
    pub fn new(shape: Shape) -> Result<Self, TreeError> {
        let shape = shape.check()?;
        Ok(Self { shape, levels: vec![BTreeMap::new(); usize::from(shape.nlevels)], closed: 0 })
    }

    /// Its shape.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Number of blocks that are held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.levels.iter().map(BTreeMap::len).sum()
    }

    /// Whether the tree has only holes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds levels to the tree, as writing beyond its end does. Blocks stay.
    ///
    /// # Errors
    /// No dnode has this shape, or the new shape has fewer levels or other indirect blocks: then it is another tree.
    pub fn grow(&mut self, shape: Shape) -> Result<(), TreeError> {
        let Shape { nlevels, nblkptr, indirect_shift, .. } = shape.check()?;
        if nlevels < self.shape.nlevels || nblkptr < self.shape.nblkptr || self.closed > 0 {
            return Err(TreeError::Shape { nlevels, nblkptr, indirect_shift });
        }
        self.levels.resize(usize::from(nlevels), BTreeMap::new());
        self.shape = shape;
        Ok(())
    }

    /// Inserts a block.
    ///
    /// # Errors
    /// The tree has no place for it, or that place is closed.
    pub fn insert(&mut self, blkid: u64, auth: BlockAuth, keep: Keep) -> Result<(), TreeError> {
        if !self.shape.has(0, blkid) {
            return Err(TreeError::Beyond { blkid });
        }
        if blkid < self.closed {
            return Err(TreeError::Order { blkid });
        }
        if keep == Keep::Open {
            self.close_before(blkid);
        }
        if let Some(leaves) = self.levels.first_mut() {
            leaves.insert(blkid, auth);
        }
        Ok(())
    }

    /// Turns a range of blocks into holes.
    ///
    /// # Errors
    /// Some of the range is closed.
    pub fn free(&mut self, blocks: std::ops::Range<u64>) -> Result<(), TreeError> {
        if blocks.start < self.closed && !blocks.is_empty() {
            return Err(TreeError::Order { blkid: blocks.start });
        }
        if let Some(leaves) = self.levels.first_mut() {
            // The freed range may be a small or a large part of the tree. Walks through the smaller part.
            let mut behind = leaves.split_off(&blocks.start);
            leaves.append(&mut behind.split_off(&blocks.end));
        }
        Ok(())
    }

    /// Folds every indirect block that ends before `blkid`.
    fn close_before(&mut self, blkid: u64) {
        let (shape, fan) = (self.shape, self.shape.fan_shift());
        let mut index = blkid;
        for level in 0..shape.nlevels.saturating_sub(1) {
            let parent = index.checked_shr(fan).unwrap_or(0);
            let first = parent.checked_shl(fan).unwrap_or(0);
            if level == 0 {
                self.closed = self.closed.max(first);
            }
            let Some(here) = self.levels.get_mut(usize::from(level)) else { return };
            let open = here.split_off(&first);
            let done = std::mem::replace(here, open);
            if !done.is_empty() {
                let folded = fold(shape, level + 1, done);
                if let Some(above) = self.levels.get_mut(usize::from(level) + 1) {
                    above.extend(folded);
                }
            }
            index = parent;
        }
    }

    /// The contents of the dnode's block pointers.
    #[must_use]
    pub fn roots(&self) -> Vec<BlockAuth> {
        let mut carried: Vec<(u64, BlockAuth)> = Vec::new();
        for (level, here) in (0_u8..).zip(&self.levels) {
            // Folded blocks come before those that are still open.
            let mut all = here.iter().map(|(index, auth)| (*index, *auth)).chain(carried).collect::<Vec<_>>();
            if level > 0 {
                all.sort_unstable_by_key(|(index, _)| *index);
            }
            carried = if level + 1 < self.shape.nlevels { fold(self.shape, level + 1, all) } else { all };
        }
        let mut roots = vec![BlockAuth::HOLE; usize::from(self.shape.nblkptr)];
        for (index, auth) in carried {
            if let Some(root) = usize::try_from(index).ok().and_then(|index| roots.get_mut(index)) {
                *root = auth;
            }
        }
        roots
    }
}

/// Builds the indirect blocks of a level from the blocks below, in order. One that has only holes below is a hole
/// itself.
fn fold(shape: Shape, level: u8, below: impl IntoIterator<Item = (u64, BlockAuth)>) -> Vec<(u64, BlockAuth)> {
    let fan = shape.fan_shift();
    let pointers = 1_u64 << fan;
    let mut folded = Vec::new();
    let mut open: Option<(u64, u64, Sha512)> = None;
    for (index, auth) in below {
        let (parent, slot) = (index >> fan, index & (pointers - 1));
        if let Some((at, _, _)) = &open
            && *at != parent
            && let Some(done) = open.take()
        {
            folded.push(close(shape, level, pointers, done));
        }
        let (_, next, hash) = open.get_or_insert_with(|| (parent, 0, Sha512::new()));
        holes(hash, slot.saturating_sub(*next));
        hash.update(auth.to_bytes());
        *next = slot + 1;
    }
    folded.extend(open.map(|done| close(shape, level, pointers, done)));
    folded
}

fn close(
    shape: Shape,
    level: u8,
    pointers: u64,
    (index, next, mut hash): (u64, u64, Sha512),
) -> (u64, BlockAuth) {
    holes(&mut hash, pointers.saturating_sub(next));
    let digest = hash.finalize();
    let mut mac = [0; MAC_LEN];
    mac.copy_from_slice(&digest[..MAC_LEN]);
    (index, BlockAuth::indirect(shape.object_type, level, shape.indirect_shift, mac))
}

/// Hashes block pointers that are holes; at most those of one indirect block.
fn holes(hash: &mut Sha512, mut count: u64) {
    const AT_ONCE: u64 = 128;
    static ZEROS: [u8; AUTH_LEN * AT_ONCE as usize] = [0; AUTH_LEN * AT_ONCE as usize];
    while count > 0 {
        let now = count.min(AT_ONCE);
        hash.update(&ZEROS[..AUTH_LEN * usize::try_from(now).unwrap_or(0)]);
        count -= now;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn auth(seed: u64) -> BlockAuth {
        let mut mac = [0; 16];
        mac[..8].copy_from_slice(&seed.to_le_bytes());
        BlockAuth::indirect(19, 0, 12, mac)
    }

    /// Reference implementation: every pointer of every indirect block, including holes, from the top.
    fn naive(shape: Shape, blocks: &BTreeMap<u64, BlockAuth>, level: u8, index: u64) -> BlockAuth {
        if level == 0 {
            return blocks.get(&index).copied().unwrap_or_default();
        }
        let pointers = 1 << shape.fan_shift();
        let children: Vec<_> =
            (0..pointers).map(|i| naive(shape, blocks, level - 1, index * pointers + i)).collect();
        if children.iter().all(|child| *child == BlockAuth::HOLE) {
            return BlockAuth::HOLE;
        }
        let bytes: Vec<u8> = children.iter().flat_map(|child| child.to_bytes()).collect();
        let mac = Sha512::digest(bytes)[..16].try_into().unwrap();
        BlockAuth::indirect(shape.object_type, level, shape.indirect_shift, mac)
    }

    proptest! {
        #[test]
        fn both_ways_give_what_the_whole_tree_gives(
            nlevels in 1_u8..4, nblkptr in 1_u8..4,
            ids in prop::collection::btree_set(0_u64..3 * 32 * 32, 0..40),
            freed in 0_u64..3 * 32 * 32, length in 0_u64..200,
        ) {
            let shape = Shape { object_type: 19, nlevels, nblkptr, indirect_shift: 12 };
            let mut all = MacTree::new(shape).unwrap();
            let mut open = all.clone();
            let mut blocks: BTreeMap<u64, BlockAuth> =
                ids.into_iter().filter(|id| shape.has(0, *id)).map(|id| (id, auth(id))).collect();
            for (id, auth) in &blocks {
                open.insert(*id, *auth, Keep::Open).unwrap();
                prop_assert!(open.len() <= 32 * usize::from(nlevels));
            }
            for (id, auth) in blocks.iter().rev() {
                all.insert(*id, *auth, Keep::All).unwrap();
            }
            let expected = |blocks: &_| -> Vec<_> {
                (0..u64::from(nblkptr)).map(|i| naive(shape, blocks, nlevels - 1, i)).collect()
            };
            prop_assert_eq!(all.roots(), expected(&blocks));
            prop_assert_eq!(open.roots(), expected(&blocks));
            all.free(freed..freed + length).unwrap();
            blocks.retain(|id, _| !(freed..freed + length).contains(id));
            prop_assert_eq!(all.roots(), expected(&blocks));
            prop_assert_eq!(all.len(), blocks.len());
        }
    }

    #[test]
    fn places_are_checked() {
        let shape = Shape { object_type: 19, nlevels: 2, nblkptr: 1, indirect_shift: 12 };
        let mut tree = MacTree::new(shape).unwrap();
        assert_eq!(tree.insert(32, auth(1), Keep::All), Err(TreeError::Beyond { blkid: 32 }));
        tree.grow(Shape { nlevels: 12, indirect_shift: 17, ..shape }).unwrap();
        tree.insert(u64::MAX, auth(1), Keep::All).unwrap();
        tree.insert(40, auth(1), Keep::Open).unwrap();
        tree.insert(4000, auth(1), Keep::Open).unwrap();
        assert_eq!(tree.insert(41, auth(1), Keep::Open), Err(TreeError::Order { blkid: 41 }));
        assert_eq!(tree.free(7..8), Err(TreeError::Order { blkid: 7 }));
        assert!(tree.grow(shape).is_err());
        for bad in [
            Shape { nlevels: 0, ..shape },
            Shape { nlevels: 13, ..shape },
            Shape { nblkptr: 4, ..shape },
            Shape { nblkptr: 0, ..shape },
            Shape { indirect_shift: 18, ..shape },
            Shape { indirect_shift: 7, ..shape },
        ] {
            assert!(matches!(MacTree::new(bad), Err(TreeError::Shape { .. })));
        }
    }
}
