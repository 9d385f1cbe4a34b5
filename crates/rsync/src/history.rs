//! Snapshots that transfers make: their names, and which of them are kept.

use std::time::{SystemTime, UNIX_EPOCH};

use snowmelt_dataset::{Catalog, Dataset, DatasetError, Datasets, DestroyPlan, Name, Snapshot};

/// The property with the number of such snapshots that a dataset keeps. Without it, all are kept.
pub const KEEP: &str = "snowmelt:rsync-keep";
/// The beginning of their names.
const PREFIX: &str = "rsync_";
/// The end of the name after an interrupted transfer, and of the name of a snapshot that keeps the content before a
/// transfer.
const PARTIAL: &str = "_partial";
const BEFORE: &str = "_before";

/// What a snapshot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The result of a complete transfer.
    Whole,
    /// The result of an interrupted transfer.
    Partial,
    /// Other changes that were made before a transfer.
    Before,
}

/// The name of a snapshot that is taken now: `rsync_2026-11-22_07.45.00`, UTC.
///
/// # Errors
/// When the pool cannot be read.
pub fn name(catalog: &Catalog, dataset: &Dataset, moment: Moment) -> Result<String, DatasetError> {
    let end = match moment {
        Moment::Whole => "",
        Moment::Partial => PARTIAL,
        Moment::Before => BEFORE,
    };
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let begin = format!("{PREFIX}{}", time_text(seconds));
    let mut number = 1;
    loop {
        let name = if number == 1 { format!("{begin}{end}") } else { format!("{begin}.{number}{end}") };
        match catalog.snapshot(&Name::parse(&format!("{}@{name}", dataset.name))?) {
            Err(DatasetError::NotFound { .. }) => return Ok(name),
            Err(other) => return Err(other),
            Ok(_) => number += 1,
        }
    }
}

/// Date and time in the form of the names.
fn time_text(seconds: u64) -> String {
    let (days, of_day) = ((seconds / 86_400) as i64, seconds % 86_400);
    // Computed in eras of 400 years, in years that begin on the first of March.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year}-{month:02}-{day:02}_{hour:02}.{minute:02}.{second:02}")
}

/// Date and time in the form of logs, in UTC.
pub(crate) fn log_time(seconds: i64) -> String {
    let text = time_text(u64::try_from(seconds).unwrap_or(0));
    text.replace('-', "/").replace('_', " ").replace('.', ":")
}

/// After a complete transfer: destroys the snapshots of interrupted transfers, and the oldest snapshots of transfers
/// when there are more than `keep`. The newest snapshot stays. So do held snapshots, origins of clones, and snapshots
/// that no transfer made.
///
/// # Errors
/// When the pool cannot be read or written.
pub fn prune(datasets: &Datasets, dataset: &str, keep: Option<usize>) -> Result<(), DatasetError> {
    let plan =
        datasets.read(|catalog| DestroyPlan::snapshots(catalog, expired(catalog, dataset, keep)?, false))?;
    match plan.snapshots.is_empty() {
        true => Ok(()),
        false => datasets.destroy(&plan),
    }
}

fn expired(catalog: &Catalog, dataset: &str, keep: Option<usize>) -> Result<Vec<Snapshot>, DatasetError> {
    let dataset = catalog.dataset(dataset)?;
    let keep = match keep {
        Some(keep) => Some(keep),
        None => catalog.inherited_property(&dataset, KEEP)?.and_then(|(value, ..)| value.parse().ok()),
    };
    let mut own: Vec<Snapshot> = catalog.snapshots(&dataset).collect::<Result<_, _>>()?;
    let newest = own.last().map(|snapshot| snapshot.id);
    own.retain(|snapshot| snapshot.record.name.starts_with(PREFIX));
    let (partial, whole): (Vec<_>, Vec<_>) =
        own.into_iter().partition(|snapshot| snapshot.record.name.ends_with(PARTIAL));
    let excess = keep.map_or(0, |keep| whole.len().saturating_sub(keep.max(1)));
    let mut expired = Vec::new();
    for snapshot in partial.iter().chain(&whole[..excess]) {
        let is_needed = Some(snapshot.id) == newest
            || !catalog.holds(snapshot.id)?.is_empty()
            || !catalog.clones(snapshot.id)?.is_empty();
        if !is_needed {
            expired.push(snapshot.clone());
        }
    }
    Ok(expired)
}

/// Whether a dataset has snapshots, but none that a transfer made.
///
/// # Errors
/// When the pool cannot be read.
pub fn is_of_others(catalog: &Catalog, dataset: &Dataset) -> Result<bool, DatasetError> {
    let mut is_empty = true;
    for snapshot in catalog.snapshots(dataset) {
        is_empty = false;
        if snapshot?.record.name.starts_with(PREFIX) {
            return Ok(false);
        }
    }
    Ok(!is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_the_calendar() {
        assert_eq!(time_text(0), "1970-01-01_00.00.00");
        assert_eq!(time_text(951_827_696), "2000-02-29_12.34.56");
        assert_eq!(log_time(951_827_696), "2000/02/29 12:34:56");
        assert_eq!(time_text(1_795_333_500), "2026-11-22_07.45.00");
    }
}
