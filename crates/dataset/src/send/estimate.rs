//! Estimates the size of a stream (`zfs send -nvP`).

use snowmelt_stream::record::{RECORD_LEN, Record};

use super::SendPlan;
use super::step::{Base, Step};
use crate::error::SendError;

/// Maximal number of records of a full stream that are walked, which takes about a second. The size of the rest is
/// estimated from the space of the snapshot.
const EXACT_RECORDS: u64 = 3_000_000;

/// Approximate bytes in tree nodes for each record. They are part of a snapshot's space.
const NODE_BYTES: u64 = 128;

/// The size of one snapshot's stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepSize {
    /// Full name of the snapshot or bookmark that is its base.
    pub from: Option<String>,
    /// Full name of the snapshot.
    pub to: String,
    /// Bytes.
    pub size: u64,
}

impl SendPlan {
    /// The size of each snapshot's stream. It is exact, except for large full streams: their beginning is walked and
    /// the rest is estimated from the space of the snapshot, so that an estimate costs little compared with the send.
    ///
    /// # Errors
    /// As [`SendPlan::run`], but no data is read.
    pub fn estimate(&self) -> Result<Vec<StepSize>, SendError> {
        self.steps
            .iter()
            .map(|step| {
                Ok(StepSize {
                    from: step.base.info().map(|from| from.name.clone()),
                    to: step.target.name.clone(),
                    size: self.step_size(step)?,
                })
            })
            .collect()
    }

    /// The bytes of a package in addition to the streams of its snapshots: its own records. `zfs send -nvP` omits them.
    ///
    /// # Errors
    /// When the list in its head cannot be created.
    pub fn package_size(&self) -> Result<u64, SendError> {
        let Some(package) = &self.package else { return Ok(0) };
        let (_, payload) = package.begin()?;
        // BEGIN with the list, its END, and the END of the package.
        Ok(3 * RECORD_LEN as u64 + payload.len() as u64)
    }

    fn step_size(&self, step: &Step) -> Result<u64, SendError> {
        self.step_size_within(step, EXACT_RECORDS)
    }

    pub(super) fn step_size_within(&self, step: &Step, exact_records: u64) -> Result<u64, SendError> {
        let may_guess = matches!(step.base, Base::Empty) && step.resume.is_none();
        let (mut size, mut records, mut space) = (0u64, 0u64, 0u64);
        let mut enough = false;
        let walked = self.substream(step, &mut |record: Record, _| {
            size = size.saturating_add(RECORD_LEN as u64).saturating_add(record.payload_len());
            space = space.saturating_add(NODE_BYTES).saturating_add(logical_len(&record));
            records += 1;
            enough = may_guess && records >= exact_records;
            if enough { Err(SendError::Closed) } else { Ok(()) }
        });
        match walked {
            Ok(()) => Ok(size),
            Err(_) if enough => Ok(scaled(size, step.target.logical, space)),
            Err(error) => Err(error),
        }
    }
}

/// Bytes of an object's content in a record.
fn logical_len(record: &Record) -> u64 {
    match record {
        Record::Write(write) => write.logical_size,
        Record::WriteEmbedded(write) => write.length,
        Record::Spill(spill) => spill.length,
        _ => 0,
    }
}

/// Scales `size`, which was counted for `part` bytes of space, to `whole` bytes of space.
fn scaled(size: u64, whole: u64, part: u64) -> u64 {
    let scaled = u128::from(size) * u128::from(whole.max(part)) / u128::from(part.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
