//! The uberblock: the record that makes a txg the state of the pool. Bytes: `docs/format/pool.md`, "Uberblock".

use snowmelt_store::{MIRRORED_UBERBLOCK_MAX, SegmentId, UBERBLOCK_MAX};

use crate::error::{PoolError, Result};
use crate::format::bytes_io::Fields;
use crate::format::seal::{KeyRecord, Keys, RECORD_MAX};
use crate::format::segment::{Kind, SEGMENT_MAX};
use crate::format::tree_record::TreeRecord;
use crate::ids::{TXG_MAX, Txg};

const MAGIC: [u8; 8] = *b"snowmelt";
const VERSION: u32 = 1;
const SUM_LEN: usize = 32;
/// Length of the MAC, which proves that a holder of the pool's key made the uberblock.
const MAC_LEN: usize = 32;

/// Maximal number of segment ends in an uberblock. A commit with more writes segment records until this number is
/// enough.
pub(crate) const ENDS_MAX: usize = 64;
const END_LEN: usize = 18;
/// Maximal length of everything except the ends, with the longest meta root and key record.
const FIXED_MAX: usize = 256 + 2 + RECORD_MAX + MAC_LEN + SUM_LEN;
const _: () = assert!(FIXED_MAX + ENDS_MAX * END_LEN <= MIRRORED_UBERBLOCK_MAX);

/// Feature flags, grouped by what a program that does not know them may still do (as in zpool-features(7)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// With unknown bits here, the pool cannot be opened.
    pub incompat: u64,
    /// With unknown bits here, the pool can be opened only for reading.
    pub ro_compat: u64,
    /// Unknown bits here do not matter.
    pub compat: u64,
}

/// Names of the bits that this build knows. A bit without a name is unknown.
const INCOMPAT_NAMES: &[&str] = &["outside_blocks", "encryption"];
const RO_COMPAT_NAMES: &[&str] = &["parity"];

impl Features {
    /// Incompatible: the pool may have pointers to external blocks.
    pub(crate) const OUTSIDE: u64 = 1;
    /// Incompatible: blocks are encrypted.
    pub(crate) const ENCRYPTION: u64 = 2;
    /// Read-only compatible: segments have parity, and writers must write it.
    pub(crate) const PARITY: u64 = 1;

    /// Refuses features that this build does not know.
    pub(crate) fn check(&self, read_only: bool) -> Result<()> {
        let incompat = unknown("incompat", self.incompat, INCOMPAT_NAMES);
        if !incompat.is_empty() {
            return Err(PoolError::Features { names: incompat, read_only_ok: false });
        }
        let ro_compat = unknown("ro-compat", self.ro_compat, RO_COMPAT_NAMES);
        if !ro_compat.is_empty() && !read_only {
            return Err(PoolError::Features { names: ro_compat, read_only_ok: true });
        }
        Ok(())
    }
}

fn unknown(set: &str, bits: u64, names: &[&str]) -> Vec<String> {
    let unknown = (0..64).filter(|bit| bits & (1 << bit) != 0 && *bit >= names.len());
    unknown.map(|bit| format!("{set} bit {bit}")).collect()
}

/// Where a segment ended when the uberblock was written, for segments whose record is older.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentEnd {
    pub(crate) id: SegmentId,
    pub(crate) kind: Kind,
    pub(crate) open: bool,
    pub(crate) len: u64,
}

/// Additional fields in an uberblock of an encrypted pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sealed {
    pub(crate) record: KeyRecord,
    /// Hash of the bytes before the MAC.
    hash: [u8; 32],
    mac: [u8; MAC_LEN],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Uberblock {
    pub(crate) features: Features,
    pub(crate) guid: u64,
    pub(crate) txg: Txg,
    /// Seconds since 1970.
    pub(crate) time: u64,
    /// Number of owners that have opened the pool for writing.
    pub(crate) epoch: u64,
    /// The txg whose state the owner started from. Newer txgs of an earlier owner never happened. Such an uberblock may
    /// become visible after its publication failed, when later owners have already appended to its segments.
    pub(crate) base: Txg,
    /// A random number of the owner that wrote this uberblock.
    pub(crate) nonce: [u8; 16],
    pub(crate) next_tree: u64,
    pub(crate) next_segment: u64,
    pub(crate) allocated: u64,
    pub(crate) meta: TreeRecord,
    pub(crate) ends: Vec<SegmentEnd>,
    /// The additional fields, as read; only in an encrypted pool.
    pub(crate) sealed: Option<Sealed>,
}

impl Uberblock {
    /// Whether a holder of the pool's key made it.
    pub(crate) fn is_authentic(&self, keys: &Keys) -> bool {
        self.guid == keys.guid()
            && self.sealed.as_ref().is_some_and(|sealed| keys.is_mac(&sealed.hash, &sealed.mac))
    }

    /// Whether a later owner started from a txg before this one: see `base`.
    pub(crate) fn is_ghost(&self, ring: &[Uberblock]) -> bool {
        ring.iter().any(|later| later.epoch > self.epoch && self.txg > later.base)
    }

    /// Encodes the uberblock. `keys` are those of an encrypted pool. Without keys, an uberblock that was read keeps its
    /// MAC.
    pub(crate) fn encode(&self, keys: Option<&Keys>) -> Vec<u8> {
        let mut out = Vec::with_capacity(UBERBLOCK_MAX);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        for word in [
            self.features.incompat,
            self.features.ro_compat,
            self.features.compat,
            self.guid,
            self.txg,
            self.time,
            self.epoch,
            self.base,
        ] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&self.nonce);
        for word in [self.next_tree, self.next_segment, self.allocated] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        let meta = self.meta.encode();
        out.extend_from_slice(&u16::try_from(meta.len()).unwrap_or(u16::MAX).to_le_bytes());
        out.extend_from_slice(&meta);
        out.extend_from_slice(&u16::try_from(self.ends.len()).unwrap_or(u16::MAX).to_le_bytes());
        for end in &self.ends {
            out.extend_from_slice(&end.id.0.to_le_bytes());
            out.push(end.kind.id());
            out.push(u8::from(end.open));
            out.extend_from_slice(&end.len.to_le_bytes());
        }
        if let Some(record) = keys.map(Keys::record).or(self.sealed.as_ref().map(|sealed| &sealed.record)) {
            let record = record.encode();
            out.extend_from_slice(&u16::try_from(record.len()).unwrap_or(u16::MAX).to_le_bytes());
            out.extend_from_slice(&record);
            let found = self.sealed.as_ref().map_or([0; MAC_LEN], |sealed| sealed.mac);
            out.extend_from_slice(&keys.map_or(found, |keys| keys.mac(blake3::hash(&out).as_bytes())));
        }
        let sum = blake3::hash(&out);
        out.extend_from_slice(sum.as_bytes());
        debug_assert!(out.len() <= UBERBLOCK_MAX);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let refuse = |why: &str| Err(PoolError::record("uberblock", why));
        let Some((body, sum)) = bytes.split_last_chunk::<SUM_LEN>() else {
            return refuse("too short");
        };
        if *blake3::hash(body).as_bytes() != *sum {
            return refuse("checksum does not match");
        }
        let mut fields = Fields::new("uberblock", body);
        if fields.array::<8>()? != MAGIC {
            return refuse("not an uberblock of a snowmelt pool");
        }
        let version = fields.u32()?;
        if version != VERSION {
            return fields.fail(format!("format version {version} is unknown to this build"));
        }
        let features = Features { incompat: fields.u64()?, ro_compat: fields.u64()?, compat: fields.u64()? };
        let (guid, txg, time) = (fields.u64()?, fields.u64()?, fields.u64()?);
        let (epoch, base) = (fields.u64()?, fields.u64()?);
        let nonce = fields.array()?;
        let (next_tree, next_segment, allocated) = (fields.u64()?, fields.u64()?, fields.u64()?);
        let meta_len = usize::from(fields.u16()?);
        let meta = TreeRecord::decode(fields.take(meta_len)?)?;
        let count = usize::from(fields.u16()?);
        if count > ENDS_MAX || txg == 0 {
            return fields.fail(format!("{count} segment ends, txg {txg}"));
        }
        // All of these numbers only increase.
        for (what, number) in [("txg", txg), ("epoch", epoch), ("tree", next_tree), ("segment", next_segment)]
        {
            if number > TXG_MAX {
                return fields.fail(format!("{what} {number} is higher than there is any"));
            }
        }
        let mut ends = Vec::with_capacity(count);
        for _ in 0..count {
            let id = SegmentId(fields.u64()?);
            let kind = fields.u8()?;
            let open = fields.u8()?;
            let len = fields.u64()?;
            match (Kind::from_id(kind), open) {
                (Some(kind), 0 | 1) if len <= SEGMENT_MAX => {
                    ends.push(SegmentEnd { id, kind, open: open == 1, len })
                }
                _ => return fields.fail(format!("segment {id}: kind {kind}, open {open}, {len} bytes")),
            }
        }
        let mut sealed = None;
        if features.incompat & Features::ENCRYPTION != 0 {
            let len = usize::from(fields.u16()?);
            let record = KeyRecord::decode(guid, fields.take(len)?)?;
            let covered = body.len() - fields.rest().len();
            let hash = *blake3::hash(body.get(..covered).unwrap_or_default()).as_bytes();
            sealed = Some(Sealed { record, hash, mac: fields.array()? });
        }
        // Later compatible versions may append fields here.
        Ok(Uberblock {
            features,
            guid,
            txg,
            time,
            epoch,
            base,
            nonce,
            next_tree,
            next_segment,
            allocated,
            meta,
            ends,
            sealed,
        })
    }
}
