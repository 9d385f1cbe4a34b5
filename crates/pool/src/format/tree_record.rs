//! The record of a tree in the meta tree. The record of the meta tree itself is in the uberblock. Bytes:
//! `docs/format/pool.md`, "Tree record".

use crate::error::Result;
use crate::format::bytes_io::Fields;
use crate::format::prefix;
use crate::format::ptr::StoredPtr;
use crate::ids::{TreeId, Txg};

const VERSION: u8 = 1;

/// The space that a tree refers to: its data blocks ([`Tree::retain`](crate::Tree::retain)) and its own nodes as last
/// written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeStats {
    /// Bytes in segments.
    pub physical: u64,
    /// Logical bytes.
    pub logical: u64,
}

impl TreeStats {
    pub(crate) fn add(&mut self, asize: u64, lsize: u32) {
        self.physical = self.physical.saturating_add(asize);
        self.logical = self.logical.saturating_add(u64::from(lsize));
    }

    pub(crate) fn add_all(&mut self, other: TreeStats) {
        self.physical = self.physical.saturating_add(other.physical);
        self.logical = self.logical.saturating_add(other.logical);
    }

    pub(crate) fn sub(&mut self, asize: u64, lsize: u32) {
        self.physical = self.physical.saturating_sub(asize);
        self.logical = self.logical.saturating_sub(u64::from(lsize));
    }
}

/// The recorded state of a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TreeRecord {
    pub(crate) root: Option<StoredPtr>,
    pub(crate) stats: TreeStats,
    pub(crate) shared_until: Txg,
    pub(crate) deadlist: Option<TreeId>,
}

impl TreeRecord {
    pub(crate) fn key(id: TreeId) -> Vec<u8> {
        let mut out = vec![prefix::TREE];
        out.extend_from_slice(&id.0.to_be_bytes());
        out
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend_from_slice(&self.shared_until.to_le_bytes());
        // 0 is the meta tree, which cannot be a deadlist, so it means "none".
        out.extend_from_slice(&self.deadlist.map_or(0, |id| id.0).to_le_bytes());
        out.extend_from_slice(&self.stats.physical.to_le_bytes());
        out.extend_from_slice(&self.stats.logical.to_le_bytes());
        match &self.root {
            Some(root) => {
                out.push(1);
                root.encode(&mut out);
            }
            None => out.push(0),
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut fields = Fields::new("tree record", bytes);
        let version = fields.u8()?;
        if version != VERSION {
            return fields.fail(format!("unknown version {version}"));
        }
        let shared_until = fields.u64()?;
        let deadlist = fields.u64()?;
        let stats = TreeStats { physical: fields.u64()?, logical: fields.u64()? };
        let root = match fields.u8()? {
            0 => None,
            1 => Some(StoredPtr::decode(&mut fields)?),
            other => return fields.fail(format!("root marked {other}")),
        };
        fields.end()?;
        let deadlist = (deadlist != 0).then_some(TreeId(deadlist));
        Ok(TreeRecord { root, stats, shared_until, deadlist })
    }
}
