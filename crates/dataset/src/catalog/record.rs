//! Values of this layer in the pool's meta tree (docs/format/dataset.md).

use snowmelt_pool::{BlockPtr, StoredPtr, TreeId, TreeStats, Txg};
use snowmelt_stream::features::Features;

use super::DatasetId;
use crate::codec::{Fields, put_text};
use crate::error::DatasetError;

const VERSION: u8 = 1;

/// The kind of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// `DMU_OST_ZFS`
    Filesystem,
    /// `DMU_OST_ZVOL`
    Volume,
}

impl Kind {
    /// The number in streams (`dmu_objset_type_t`).
    pub fn objset_type(self) -> u32 {
        match self {
            Self::Filesystem => 2,
            Self::Volume => 3,
        }
    }

    /// The kind for an objset type; other types are not replicated.
    pub fn from_objset_type(number: u32) -> Option<Self> {
        match number {
            2 => Some(Self::Filesystem),
            3 => Some(Self::Volume),
            _ => None,
        }
    }

    /// The value of the `type` property.
    pub fn name(self) -> &'static str {
        match self {
            Self::Filesystem => "filesystem",
            Self::Volume => "volume",
        }
    }
}

/// The id of a snapshot: its dataset and txg.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SnapshotId {
    /// The dataset it belongs to.
    pub dataset: DatasetId,
    /// The txg it was taken in: its `createtxg`.
    pub txg: Txg,
}

/// What the objset of a dataset or snapshot contains, as far as streams must announce it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Content {
    /// The features that a stream of it may need (large blocks, large dnodes, zstd, raw, …).
    pub features: Features,
    /// File names are case-insensitive (`DRR_FLAG_CI_DATA`).
    pub case_insensitive: bool,
}

impl Content {
    fn encode(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.features.0.to_le_bytes());
        out.push(u8::from(self.case_insensitive));
    }

    fn decode(fields: &mut Fields<'_>) -> Result<Self, DatasetError> {
        Ok(Self { features: Features(fields.u64()?), case_insensitive: fields.u8()? != 0 })
    }
}

/// A filesystem or volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetRecord {
    /// Its kind.
    pub kind: Kind,
    /// The first receive has not ended: it has neither a snapshot nor visible content.
    pub inconsistent: bool,
    /// Its `guid` property.
    pub guid: u64,
    /// When it was created: seconds since 1970.
    pub creation: u64,
    /// The txg in which it was created.
    pub createtxg: Txg,
    /// Its parent; itself for the pool's root.
    pub parent: DatasetId,
    /// Last component of its name.
    pub name: String,
    /// The tree of its current objset.
    pub head: TreeId,
    /// The snapshot it was cloned from.
    pub origin: Option<SnapshotId>,
    /// What its head contains.
    pub content: Content,
}

impl DatasetRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out =
            vec![VERSION, u8::try_from(self.kind.objset_type()).unwrap_or(0), u8::from(self.inconsistent)];
        for number in [self.guid, self.creation, self.createtxg, self.parent.0, self.head.0] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        let (dataset, txg) = self.origin.map_or((0, 0), |origin| (origin.dataset.0, origin.txg));
        out.extend_from_slice(&dataset.to_le_bytes());
        out.extend_from_slice(&txg.to_le_bytes());
        self.content.encode(&mut out);
        put_text(&mut out, &self.name);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DatasetError> {
        let mut fields = Fields::new("dataset record", bytes);
        fields.version(VERSION)?;
        let kind = Kind::from_objset_type(u32::from(fields.u8()?))
            .ok_or_else(|| DatasetError::corrupt("dataset record", "unknown type"))?;
        let inconsistent = fields.u8()? != 0;
        let (guid, creation, createtxg) = (fields.u64()?, fields.u64()?, fields.u64()?);
        let (parent, head) = (DatasetId(fields.u64()?), TreeId(fields.u64()?));
        let (dataset, txg) = (DatasetId(fields.u64()?), fields.u64()?);
        let origin = (dataset.0 != 0).then_some(SnapshotId { dataset, txg });
        let content = Content::decode(&mut fields)?;
        let name = fields.text()?;
        if head == TreeId::META {
            return Err(DatasetError::corrupt("dataset record", "its tree is the pool's own"));
        }
        fields.finish()?;
        Ok(Self { kind, inconsistent, guid, creation, createtxg, parent, name, head, origin, content })
    }
}

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotRecord {
    /// The part of its name after the `@`.
    pub name: String,
    /// Its guid. All copies of the snapshot have the same guid.
    pub guid: u64,
    /// When it was taken at its source: seconds since 1970.
    pub creation: u64,
    /// Root of its objset tree; `None` when it is empty.
    pub root: Option<StoredPtr>,
    /// Space of everything that the root refers to.
    pub stats: TreeStats,
    /// Blocks of the previous snapshot (or of the origin) that this one no longer uses.
    pub deadlist: Option<TreeId>,
    /// What it contains.
    pub content: Content,
    /// Set by `destroy -d`: it is destroyed when its last hold and clone are gone.
    pub defer_destroy: bool,
}

impl SnapshotRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION, u8::from(self.defer_destroy)];
        for number in [
            self.guid,
            self.creation,
            self.stats.physical,
            self.stats.logical,
            self.deadlist.map_or(0, |id| id.0),
        ] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        self.content.encode(&mut out);
        put_text(&mut out, &self.name);
        match &self.root {
            None => out.push(0),
            Some(root) => {
                out.push(1);
                BlockPtr::Stored(root.clone()).encode(&mut out);
            }
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DatasetError> {
        let mut fields = Fields::new("snapshot record", bytes);
        fields.version(VERSION)?;
        let defer_destroy = fields.u8()? != 0;
        let (guid, creation) = (fields.u64()?, fields.u64()?);
        let stats = TreeStats { physical: fields.u64()?, logical: fields.u64()? };
        let deadlist = Some(TreeId(fields.u64()?)).filter(|id| id.0 != 0);
        let content = Content::decode(&mut fields)?;
        let name = fields.text()?;
        let root = match fields.u8()? {
            0 => None,
            _ => match BlockPtr::decode(fields.nested())? {
                BlockPtr::Stored(root) => Some(root),
                BlockPtr::Embedded { .. } | BlockPtr::Outside(_) => {
                    return Err(DatasetError::corrupt("snapshot record", "root is a block of no segment"));
                }
            },
        };
        fields.finish()?;
        Ok(Self { name, guid, creation, root, stats, deadlist, content, defer_destroy })
    }
}

/// A bookmark: remembers a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BookmarkRecord {
    /// The snapshot's guid.
    pub guid: u64,
    /// The snapshot's creation: seconds since 1970.
    pub creation: u64,
    /// The snapshot's txg in this pool.
    pub createtxg: Txg,
    /// What the snapshot contained.
    pub content: Content,
    /// `to_ivset_guid` of a raw encrypted snapshot; otherwise 0.
    pub ivset_guid: u64,
}

impl BookmarkRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        for number in [self.guid, self.creation, self.createtxg, self.ivset_guid] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        self.content.encode(&mut out);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DatasetError> {
        let mut fields = Fields::new("bookmark record", bytes);
        fields.version(VERSION)?;
        let (guid, creation, createtxg, ivset_guid) =
            (fields.u64()?, fields.u64()?, fields.u64()?, fields.u64()?);
        let content = Content::decode(&mut fields)?;
        fields.finish()?;
        Ok(Self { guid, creation, createtxg, content, ivset_guid })
    }
}

/// The state of a receive that is under way, or was interrupted and can be resumed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiveState {
    /// Whether it may be resumed (`receive -s`). Otherwise it is removed when the pool is opened next.
    pub resumable: bool,
    /// The tree that is being filled.
    pub tree: TreeId,
    /// The snapshot that it starts from.
    pub base: Option<SnapshotId>,
    /// `toguid` of the stream.
    pub to_guid: u64,
    /// Guid of the incremental source; 0 for a full stream.
    pub from_guid: u64,
    /// The snapshot's full name at the sender.
    pub to_name: String,
    /// Features of the stream.
    pub features: Features,
    /// The object of the last applied record.
    pub object: u64,
    /// The offset of the last applied record in the object.
    pub offset: u64,
    /// Received bytes of the stream, over all attempts.
    pub bytes: u64,
    /// What the tree contains.
    pub content: Content,
    /// Packed `crypt_keydata` nvlist of a raw stream.
    pub key_data: Vec<u8>,
}

impl ReceiveState {
    /// Whether the receive can be resumed: the state is kept, and some records were applied.
    pub fn can_be_resumed(&self) -> bool {
        self.resumable && self.object != 0
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION, u8::from(self.resumable)];
        let (dataset, txg) = self.base.map_or((0, 0), |base| (base.dataset.0, base.txg));
        for number in [
            self.tree.0,
            dataset,
            txg,
            self.to_guid,
            self.from_guid,
            self.features.0,
            self.object,
            self.offset,
            self.bytes,
        ] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        self.content.encode(&mut out);
        put_text(&mut out, &self.to_name);
        out.extend_from_slice(&self.key_data);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DatasetError> {
        let mut fields = Fields::new("receive state", bytes);
        fields.version(VERSION)?;
        let resumable = fields.u8()? != 0;
        let tree = TreeId(fields.u64()?);
        if tree == TreeId::META {
            return Err(DatasetError::corrupt("receive state", "its tree is the pool's own"));
        }
        let (dataset, txg) = (DatasetId(fields.u64()?), fields.u64()?);
        let base = (dataset.0 != 0).then_some(SnapshotId { dataset, txg });
        let (to_guid, from_guid, features) = (fields.u64()?, fields.u64()?, Features(fields.u64()?));
        let (object, offset, bytes) = (fields.u64()?, fields.u64()?, fields.u64()?);
        let content = Content::decode(&mut fields)?;
        let to_name = fields.text()?;
        let key_data = fields.remaining().to_vec();
        Ok(Self {
            resumable,
            tree,
            base,
            to_guid,
            from_guid,
            to_name,
            features,
            object,
            offset,
            bytes,
            content,
            key_data,
        })
    }
}
