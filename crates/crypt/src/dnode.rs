//! A block of dnodes, assembled from an OBJECT_RANGE and its OBJECTs (`zio_crypt_init_uios_dnode` in
//! `module/os/linux/zfs/zio_crypt.c`; `dnode_phys_t` in `include/sys/dnode.h`).
//!
//! Of a dnode, only the bonus buffer is encrypted, and only if its type is. Everything else that is the same at sender
//! and receiver is authenticated: the core without the space used and without local flags, the authenticated parts of
//! the block pointers, and bonus buffers that are not encrypted. Slots without a dnode are zeros. They are
//! authenticated too.

use snowmelt_stream::{ByteOrder, Object};

use crate::auth::{AUTH_LEN, BlockAuth, is_encrypted};
use crate::error::BlockError;

/// Dnodes in a block (`DNODES_PER_BLOCK`).
pub const SLOTS: u64 = 32;
/// Size of a slot, in bytes (`DNODE_MIN_SIZE`).
const SLOT_LEN: usize = 512;
/// Size of the dnode core, which precedes the block pointers (`DNODE_CORE_SIZE`).
pub(crate) const CORE_LEN: usize = 64;
/// Size of a block pointer.
const POINTER_LEN: usize = 128;
/// `DNODE_FLAG_SPILL_BLKPTR`, the only flag that is authenticated (`DNODE_CRYPT_PORTABLE_FLAGS_MASK`).
const FLAG_SPILL: u8 = 1 << 2;

/// One dnode of a block.
#[derive(Debug)]
pub struct Dnode<'a> {
    /// Its OBJECT record.
    pub record: &'a Object,
    /// The record's payload: first encrypted, later decrypted. [`Object::bonus_len`] bytes of it are in use.
    pub bonus: &'a mut [u8],
    /// The contents of its block pointers: [`MacTree::roots`](crate::MacTree::roots).
    pub blocks: &'a [BlockAuth],
    /// The contents of its spill block pointer, if it has one.
    pub spill: Option<BlockAuth>,
}

/// The fields of a dnode's core that are not always zero.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Core {
    pub object_type: u8,
    pub indirect_shift: u8,
    pub nlevels: u8,
    pub nblkptr: u8,
    pub bonus_type: u8,
    pub checksum: u8,
    pub compress: u8,
    pub has_spill: bool,
    pub block_sectors: u16,
    pub bonus_len: u16,
    pub extra_slots: u8,
    pub max_blkid: u64,
}

impl Core {
    /// The core of a dnode that an OBJECT describes. Fields are cut to their width in a dnode.
    fn of(record: &Object) -> Self {
        Self {
            object_type: low(record.object_type.into()),
            indirect_shift: record.indirect_block_shift,
            nlevels: record.nlevels,
            nblkptr: record.nblkptr,
            bonus_type: low(record.bonus_type.into()),
            checksum: record.checksum_type,
            compress: record.compress,
            has_spill: has_spill(record),
            block_sectors: low16(record.block_size >> 9),
            bonus_len: low16(record.bonus_len),
            extra_slots: record.slots().wrapping_sub(1),
            max_blkid: record.max_blkid,
        }
    }

    /// The authenticated bytes: numbers in the byte order of the block on disk, `dn_used` zero.
    pub(crate) fn to_bytes(self, order: ByteOrder) -> [u8; CORE_LEN] {
        let (sectors, bonus_len, max_blkid) = match order {
            ByteOrder::Little => {
                (self.block_sectors.to_le_bytes(), self.bonus_len.to_le_bytes(), self.max_blkid.to_le_bytes())
            }
            ByteOrder::Big => {
                (self.block_sectors.to_be_bytes(), self.bonus_len.to_be_bytes(), self.max_blkid.to_be_bytes())
            }
        };
        let mut out = [0; CORE_LEN];
        out[..8].copy_from_slice(&[
            self.object_type,
            self.indirect_shift,
            self.nlevels,
            self.nblkptr,
            self.bonus_type,
            self.checksum,
            self.compress,
            if self.has_spill { FLAG_SPILL } else { 0 },
        ]);
        out[8..10].copy_from_slice(&sectors);
        out[10..12].copy_from_slice(&bonus_len);
        out[12] = self.extra_slots;
        out[16..24].copy_from_slice(&max_blkid);
        out
    }
}

fn low(number: u64) -> u8 {
    number.to_le_bytes()[0]
}

fn low16(number: u32) -> u16 {
    let [a, b, ..] = number.to_le_bytes();
    u16::from_le_bytes([a, b])
}

fn has_spill(record: &Object) -> bool {
    record.flags & Object::SPILL != 0
}

/// Whether a dnode's bonus buffer is encrypted.
fn hides_bonus(record: &Object) -> bool {
    record.object_type != 0 && record.bonus_len != 0 && is_encrypted(record.bonus_type)
}

/// A block of dnodes, split into its authenticated bytes and its encrypted bytes.
#[derive(Debug)]
pub(crate) struct Split {
    pub authenticated: Vec<u8>,
    pub encrypted: Vec<u8>,
}

/// Splits a block of dnodes. The dnodes must be in order.
///
/// # Errors
/// The dnodes do not fit into the block.
pub(crate) fn split(first: u64, order: ByteOrder, dnodes: &[Dnode<'_>]) -> Result<Split, BlockError> {
    let block_len = SLOT_LEN * 32;
    let mut out = Split { authenticated: Vec::with_capacity(block_len), encrypted: Vec::new() };
    let mut slot = 0;
    for dnode in dnodes {
        let record = dnode.record;
        let last = first.saturating_add(SLOTS - 1);
        let misfit = BlockError::DnodeSlots { object: record.object, first, last };
        let at =
            record.object.checked_sub(first).filter(|at| (slot..SLOTS).contains(at)).ok_or(misfit.clone())?;
        free_slots(&mut out.authenticated, at - slot);
        slot = at + u64::from(record.slots());
        if slot > SLOTS {
            return Err(misfit);
        }
        append(&mut out, order, dnode)?;
    }
    free_slots(&mut out.authenticated, SLOTS - slot);
    Ok(out)
}

/// Adds free slots. A slot without a dnode has no block pointers. Everything except its core counts as bonus buffer,
/// which is not encrypted.
fn free_slots(authenticated: &mut Vec<u8>, slots: u64) {
    let len = usize::try_from(slots).unwrap_or(0) * SLOT_LEN;
    authenticated.resize(authenticated.len() + len, 0);
}

fn append(out: &mut Split, order: ByteOrder, dnode: &Dnode<'_>) -> Result<(), BlockError> {
    let Dnode { record, bonus, blocks, spill } = dnode;
    let object = record.object;
    let expected = usize::from(record.nblkptr) + usize::from(has_spill(record));
    let found = blocks.len() + usize::from(spill.is_some());
    if blocks.len() != usize::from(record.nblkptr) || spill.is_some() != has_spill(record) {
        return Err(BlockError::BlockPointers { object, found, expected });
    }
    let room = bonus_room(record).ok_or(BlockError::BlockPointers { object, found, expected: 1 })?;
    if bonus.len() != room && !(bonus.is_empty() && record.bonus_len == 0) {
        return Err(BlockError::BonusLength { object, found: bonus.len(), expected: room });
    }
    out.authenticated.extend_from_slice(&Core::of(record).to_bytes(order));
    for block in blocks.iter().chain(spill) {
        let bytes: [u8; AUTH_LEN] = block.to_bytes();
        out.authenticated.extend_from_slice(&bytes);
    }
    if hides_bonus(record) {
        out.encrypted.extend_from_slice(bonus);
    } else {
        out.authenticated.extend_from_slice(bonus);
        // A bonus buffer of length 0 is not sent, and is zeros on disk.
        let unsent = room - bonus.len();
        out.authenticated.resize(out.authenticated.len() + unsent, 0);
    }
    Ok(())
}

/// Bytes between the block pointers and the end of the dnode or its spill block pointer (`DN_MAX_BONUS_LEN`).
fn bonus_room(record: &Object) -> Option<usize> {
    let pointers = usize::from(record.nblkptr) + usize::from(has_spill(record));
    (usize::from(record.slots()) * SLOT_LEN).checked_sub(CORE_LEN + pointers * POINTER_LEN)
}

/// Copies decrypted bytes back into their bonus buffers.
pub(crate) fn join(plain: &[u8], dnodes: &mut [Dnode<'_>]) {
    let mut rest = plain;
    for dnode in dnodes.iter_mut().filter(|dnode| hides_bonus(dnode.record)) {
        if let Some((bonus, behind)) = rest.split_at_checked(dnode.bonus.len()) {
            dnode.bonus.copy_from_slice(bonus);
            rest = behind;
        }
    }
}
