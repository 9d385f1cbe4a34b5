//! Age grids in the form of zrepl: `1x1h(keep=all) | 24x1h | 14x1d`.
//!
//! Buckets are consecutive ranges of age. The first one begins at the newest snapshot. Each bucket keeps its oldest
//! snapshots, up to its number, so that a snapshot moves from bucket to bucket as it ages. Snapshots older than the
//! last bucket are not kept. In contrast to zrepl, the newest snapshot is always kept. Otherwise all buckets would move
//! when it is destroyed.

use crate::duration::Duration;

/// Maximum number of buckets.
const BUCKETS_MAX: usize = 100_000;

/// An age grid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grid {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    repeat: usize,
    /// Length of a bucket in seconds.
    length: i64,
    /// Number of snapshots to keep, or `None` for all.
    keep: Option<usize>,
}

/// What is wrong with a grid, as a message.
pub type GridError = String;

impl Grid {
    /// Parses a grid.
    ///
    /// # Errors
    /// If the text is not a valid grid.
    pub fn parse(text: &str) -> Result<Self, GridError> {
        let parts = text.split('|').map(|part| parse_part(part.trim())).collect::<Result<Vec<_>, _>>()?;
        if parts.iter().map(|part| part.repeat).fold(0, usize::saturating_add) > BUCKETS_MAX {
            return Err(format!("'{text}' has more than {BUCKETS_MAX} buckets"));
        }
        Ok(Self { parts })
    }

    /// Whether each snapshot is kept. `creations` are the times of the snapshots in seconds since 1970, in the order of
    /// their creation.
    pub fn keeps(&self, creations: &[i64], now: i64) -> Vec<bool> {
        let mut kept = vec![false; creations.len()];
        let mut order: Vec<usize> = (0..creations.len()).collect();
        let creation = |at: &usize| creations.get(*at).copied().unwrap_or(0);
        // Newest first.
        order.sort_by_key(|at| std::cmp::Reverse((creation(at), *at)));
        let Some(newest) = order.first() else { return kept };
        // If the clock was set back, snapshots must not be treated as older than they are.
        let begin = creation(newest).min(now);
        let mut keep = |at: usize| {
            if let Some(place) = kept.get_mut(at) {
                *place = true;
            }
        };
        keep(*newest);
        let mut rest = order.into_iter().peekable();
        while let Some(at) = rest.next_if(|at| creation(at) > begin) {
            keep(at);
        }
        let mut edge = begin;
        let mut bucket = Vec::new();
        for part in &self.parts {
            for _ in 0..part.repeat {
                edge = edge.saturating_sub(part.length);
                bucket.clear();
                while let Some(at) = rest.next_if(|at| creation(at) > edge) {
                    bucket.push(at);
                }
                let count = part.keep.unwrap_or(bucket.len());
                bucket.iter().rev().take(count).for_each(|at| keep(*at));
            }
        }
        kept
    }
}

fn parse_part(text: &str) -> Result<Part, GridError> {
    let wrong =
        || format!("'{text}' is not a valid part of a grid: use parts such as 24x1h or 1x1h(keep=all)");
    let (size, keep) = match text.split_once('(') {
        None => (text, Some(1)),
        Some((size, rest)) => {
            match rest.trim().strip_suffix(')').and_then(|rest| rest.trim().strip_prefix("keep=")) {
                Some("all") => (size, None),
                Some(count) => (size, Some(count.trim().parse().map_err(|_| wrong())?)),
                None => return Err(wrong()),
            }
        }
    };
    let (repeat, length) = size.trim().split_once('x').ok_or_else(wrong)?;
    let repeat = repeat.trim().parse().map_err(|_| wrong())?;
    let length = Duration::parse(length).map(|length| length.seconds(0)).filter(|length| *length > 0);
    match (repeat, length, keep) {
        (1.., Some(length), None | Some(1..)) => Ok(Part { repeat, length, keep }),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H: i64 = 3600;

    /// Ages in hours of the snapshots that the grid keeps.
    fn kept(grid: &str, ages: &[i64]) -> Vec<i64> {
        let now = 1_000_000_000;
        let mut ages = ages.to_vec();
        ages.sort_by_key(|age| -age);
        let creations: Vec<i64> = ages.iter().map(|age| now - age * H).collect();
        let keeps = Grid::parse(grid).unwrap().keeps(&creations, now);
        let mut kept: Vec<i64> =
            ages.iter().zip(&keeps).filter(|(_, keeps)| **keeps).map(|(age, _)| *age).collect();
        kept.reverse();
        kept
    }

    #[test]
    fn the_oldest_of_each_bucket_stay() {
        for (grid, ages, expected) in [
            ("1x2h(keep=all) | 2x4h | 1x6h", (0..20).collect::<Vec<_>>(), vec![0, 1, 5, 9, 15]),
            ("3x1h", vec![0, 1, 2, 3], vec![0, 1, 2]),
            ("2x2h(keep=1)", vec![0, 1, 2, 3], vec![0, 1, 3]),
            ("1x1d(keep=3)", (0..24).collect(), vec![0, 21, 22, 23]),
            ("1x1h", vec![7], vec![7]),
            ("1x1h", vec![], vec![]),
        ] {
            assert_eq!(kept(grid, &ages), expected, "{grid}");
        }
    }

    #[test]
    fn what_stays_stays_when_looked_at_again() {
        for grid in ["1x1h(keep=all) | 24x1h | 14x1d", "4x6h", "1x3h(keep=2) | 2x5h"] {
            let once = kept(grid, &(0..500).collect::<Vec<_>>());
            assert_eq!(kept(grid, &once), once, "{grid}");
        }
    }

    #[test]
    fn snapshots_of_the_future_stay() {
        let grid = Grid::parse("1x1h").unwrap();
        assert_eq!(grid.keeps(&[10_000, 990_000, 2_000_000], 1_000_000), [false, false, true]);
        assert_eq!(grid.keeps(&[998_000, 1_000_000, 2_000_000], 1_000_000), [true, false, true]);
    }

    #[test]
    fn texts_that_are_none() {
        for text in [
            "",
            "1x1h|",
            "x1h",
            "0x1h",
            "1x0h",
            "1x1",
            "1x1h(keep=0)",
            "1x1h(all)",
            "1x1h(keep=all",
            "-1x1h",
            "999999x1h",
        ] {
            assert!(Grid::parse(text).is_err(), "{text:?}");
        }
    }
}
