//! How large a stream will be (`zfs send -nvP`).

use snowmelt_stream::record::{RECORD_LEN, Record};

use super::SendPlan;
use super::begin;
use super::step::{Base, Step};
use crate::error::SendError;

/// Records that are walked of a full stream before its size is guessed from the space that its snapshot takes.
const EXACT_RECORDS: u64 = 200_000;

/// Block size assumed in a guess.
const GUESSED_BLOCK: u64 = 128 * 1024;

/// The size of one snapshot's stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepSize {
    /// Full name of the snapshot or bookmark it is incremental from.
    pub from: Option<String>,
    /// Full name of the snapshot.
    pub to: String,
    /// Bytes.
    pub size: u64,
}

/// Why a walk stopped.
enum Stop {
    Enough,
    Failed(SendError),
}

impl SendPlan {
    /// The size of each snapshot's stream. It is exact, except for large full streams, where it is a guess from the
    /// space the snapshot takes, so that asking costs nothing in proportion to the sending.
    ///
    /// # Errors
    /// As [`SendPlan::run`], but that no data is read.
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

    fn step_size(&self, step: &Step) -> Result<u64, SendError> {
        let may_guess = matches!(step.base, Base::Empty) && step.resume.is_none();
        let (mut size, mut records) = (0u64, 0u64);
        let mut stop = None;
        let walked = self.substream(step, &mut |record: Record, _| {
            size = size.saturating_add(RECORD_LEN as u64).saturating_add(record.payload_len());
            records += 1;
            if may_guess && records > EXACT_RECORDS {
                stop = Some(Stop::Enough);
                return Err(SendError::Closed);
            }
            Ok(())
        });
        if let Err(error) = walked {
            stop.get_or_insert(Stop::Failed(error));
        }
        match stop {
            None => Ok(size),
            Some(Stop::Enough) => guess(step),
            Some(Stop::Failed(error)) => Err(error),
        }
    }
}

/// `dmu_adjust_send_estimate_for_indirects` of `module/zfs/dmu_send.c`: the space, and a header for every block.
fn guess(step: &Step) -> Result<u64, SendError> {
    let features = begin::features(step)?;
    let bytes = if features.contains(snowmelt_stream::features::Features::COMPRESSED) {
        step.target.physical
    } else {
        step.target.logical
    };
    let blocks = step.target.logical / GUESSED_BLOCK;
    Ok(bytes.saturating_add(blocks.saturating_mul(RECORD_LEN as u64)))
}
