//! The record of the last scrub. Bytes: `docs/format/pool.md`, "Scrub record".

use crate::error::Result;
use crate::format::bytes_io::Fields;
use crate::format::prefix;
use crate::ids::Txg;
use crate::tree::{KEY_MAX, Key};

const VERSION: u8 = 1;
const RECORD: &str = "scrub record";

/// Key of the record in the meta tree.
pub(crate) const KEY: [u8; 2] = [prefix::SCRUB, 0];

/// The state of a scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScrubState {
    /// Under way. If it is not running, it can be continued.
    Scanning,
    /// Paused by request.
    Paused,
    /// Everything that was live when it began has been read.
    Finished,
    /// Stopped by request.
    Canceled,
}

impl ScrubState {
    fn id(self) -> u8 {
        match self {
            ScrubState::Scanning => 1,
            ScrubState::Paused => 2,
            ScrubState::Finished => 3,
            ScrubState::Canceled => 4,
        }
    }

    fn from_id(id: u8) -> Option<Self> {
        [ScrubState::Scanning, ScrubState::Paused, ScrubState::Finished, ScrubState::Canceled]
            .into_iter()
            .find(|state| state.id() == id)
    }

    /// Whether the scrub can be continued.
    pub fn is_under_way(self) -> bool {
        matches!(self, ScrubState::Scanning | ScrubState::Paused)
    }
}

/// The stages of a scrub, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// The meta tree.
    Meta,
    /// Frozen roots, oldest first.
    Frozen,
    /// Live trees.
    Live,
    /// Roots that were frozen while the live trees were walked. They may hold blocks that the live trees released
    /// meanwhile.
    Late,
    /// Nothing is left.
    Done,
}

impl Stage {
    const ALL: [Stage; 5] = [Stage::Meta, Stage::Frozen, Stage::Live, Stage::Late, Stage::Done];

    fn id(self) -> u8 {
        self as u8
    }
}

/// Where a scrub continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) stage: Stage,
    /// The next root: txg and guid of a frozen root; tree id and 0 of a live tree.
    pub(crate) root: (u64, u64),
    /// The first key in it that was not walked yet.
    pub(crate) key: Key,
}

impl Position {
    pub(crate) fn start(stage: Stage) -> Self {
        Position { stage, root: (0, 0), key: Key::empty() }
    }
}

/// The last scrub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScrubRecord {
    pub(crate) state: ScrubState,
    /// Seconds since 1970.
    pub(crate) started: u64,
    /// When it ended, or was paused; seconds since 1970.
    pub(crate) ended: u64,
    /// Seconds of work, without pauses.
    pub(crate) worked: u64,
    /// Blocks born later are skipped.
    pub(crate) max_txg: Txg,
    /// Roots frozen up to this txg were walked before the live trees; 0 until the live trees begin.
    pub(crate) frozen_until: Txg,
    /// Live bytes when it began.
    pub(crate) total: u64,
    /// Bytes that were read.
    pub(crate) issued: u64,
    /// Bytes that were written again.
    pub(crate) repaired: u64,
    /// Damaged blocks that could not be repaired.
    pub(crate) errors: u64,
    pub(crate) position: Position,
}

impl ScrubRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION, self.state.id(), self.position.stage.id()];
        for number in [
            self.started,
            self.ended,
            self.worked,
            self.max_txg,
            self.frozen_until,
            self.total,
            self.issued,
            self.repaired,
            self.errors,
            self.position.root.0,
            self.position.root.1,
        ] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        let key = self.position.key.as_slice();
        out.extend_from_slice(&u16::try_from(key.len()).unwrap_or(u16::MAX).to_le_bytes());
        out.extend_from_slice(key);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut fields = Fields::new(RECORD, bytes);
        let version = fields.u8()?;
        if version != VERSION {
            return fields.fail(format!("unknown version {version}"));
        }
        let (state, stage) = (fields.u8()?, fields.u8()?);
        let Some(state) = ScrubState::from_id(state) else {
            return fields.fail(format!("unknown state {state}"));
        };
        let Some(stage) = Stage::ALL.into_iter().find(|known| known.id() == stage) else {
            return fields.fail(format!("unknown stage {stage}"));
        };
        let mut next = || fields.u64();
        let (started, ended, worked) = (next()?, next()?, next()?);
        let (max_txg, frozen_until) = (next()?, next()?);
        let (total, issued, repaired, errors) = (next()?, next()?, next()?, next()?);
        let root = (next()?, next()?);
        let len = usize::from(fields.u16()?);
        if len > KEY_MAX {
            return fields.fail(format!("a key of {len} bytes"));
        }
        let key = Key::from(fields.take(len)?);
        fields.end()?;
        let position = Position { stage, root, key };
        Ok(ScrubRecord {
            state,
            started,
            ended,
            worked,
            max_txg,
            frozen_until,
            total,
            issued,
            repaired,
            errors,
            position,
        })
    }
}
