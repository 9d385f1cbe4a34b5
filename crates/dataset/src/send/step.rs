//! One snapshot's stream: its target, its base and its options.

use std::sync::Arc;

use snowmelt_pool::{Pool, Txg, View};
use snowmelt_stream::features::Features;
use snowmelt_stream::token::ResumeToken;

use super::SendFlags;
use crate::catalog::{Content, Kind};
use crate::error::{DatasetError, SendError};

/// One substream.
#[derive(Clone)]
pub(super) struct Step {
    pub(super) target: Target,
    pub(super) base: Base,
    pub(super) style: Style,
    /// Object and offset at which to continue.
    pub(super) resume: Option<Resume>,
    /// The target is itself the state of an interrupted receive, so the stream has no END.
    pub(super) saved: bool,
}

/// The content that is sent.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) pool: Arc<Pool>,
    pub(super) view: View,
    /// Full name.
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) guid: u64,
    pub(super) creation: u64,
    pub(super) content: Content,
    /// Packed `crypt_keydata` of a raw dataset.
    pub(super) key_data: Option<Vec<u8>>,
    /// Guids of the snapshots that the dataset is redacted with respect to.
    pub(super) redact_snaps: Option<Vec<u64>>,
    /// Logical bytes that it refers to, for a quick estimate.
    pub(super) logical: u64,
}

impl Target {
    /// Whether its blocks are encrypted.
    pub(super) fn is_raw(&self) -> bool {
        self.content.features.contains(Features::RAW)
    }

    pub(super) fn corrupt(&self, object: u64, why: impl Into<String>) -> SendError {
        DatasetError::corrupt(format!("object {object} of {}", self.name), why).into()
    }
}

/// What the receiver already has.
#[derive(Clone)]
pub(super) enum Base {
    /// Nothing.
    Empty,
    /// A snapshot that still exists.
    Tree { view: View, from: BaseInfo },
    /// Only the txg of a snapshot is known: a bookmark.
    Txg { txg: Txg, from: BaseInfo },
}

/// Name and identity of a base.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BaseInfo {
    pub(super) name: String,
    pub(super) guid: u64,
    /// Whether it belongs to another dataset than the target.
    pub(super) is_origin: bool,
    pub(super) ivset_guid: u64,
    /// Guids of the snapshots that the base is redacted with respect to.
    pub(super) redact_snaps: Option<Vec<u64>>,
}

impl Base {
    pub(super) fn info(&self) -> Option<&BaseInfo> {
        match self {
            Self::Empty => None,
            Self::Tree { from, .. } | Self::Txg { from, .. } => Some(from),
        }
    }
}

/// Where an interrupted stream continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Resume {
    pub(super) object: u64,
    pub(super) offset: u64,
}

/// The options that affect the records of a substream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Style {
    pub(super) large_blocks: bool,
    pub(super) embed: bool,
    pub(super) compressed: bool,
    pub(super) raw: bool,
}

impl From<&SendFlags> for Style {
    fn from(flags: &SendFlags) -> Self {
        Self {
            large_blocks: flags.large_blocks,
            embed: flags.embed,
            compressed: flags.compressed,
            raw: flags.raw,
        }
    }
}

impl From<&ResumeToken> for Style {
    fn from(token: &ResumeToken) -> Self {
        Self {
            large_blocks: token.large_block_ok(),
            embed: token.embed_ok(),
            compressed: token.compress_ok(),
            raw: token.raw_ok(),
        }
    }
}

impl From<Features> for Style {
    fn from(features: Features) -> Self {
        Self {
            large_blocks: features.contains(Features::LARGE_BLOCKS),
            embed: features.contains(Features::EMBED_DATA),
            compressed: features.contains(Features::COMPRESSED),
            raw: features.contains(Features::RAW),
        }
    }
}
