//! A set of block numbers as ranges.

use std::collections::BTreeMap;

/// Disjoint ranges that do not touch: from the first block to the one after the last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Holes(BTreeMap<u64, u64>);

impl Holes {
    pub(super) fn contains(&self, blkid: u64) -> bool {
        self.0.range(..=blkid).next_back().is_some_and(|(_, &end)| blkid < end)
    }

    /// Adds `from..end`.
    pub(super) fn add(&mut self, from: u64, end: u64) {
        if from >= end {
            return;
        }
        let (mut from, mut end) = (from, end);
        let touching: Vec<u64> =
            self.0.range(..=end).rev().take_while(|(_, other)| **other >= from).map(|(at, _)| *at).collect();
        for at in touching {
            if let Some(other) = self.0.remove(&at) {
                from = from.min(at);
                end = end.max(other);
            }
        }
        self.0.insert(from, end);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().map(|(from, end)| (*from, *end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn is_a_set(ranges in proptest::collection::vec((0u64..60, 0u64..12), 0..30)) {
            let mut holes = Holes::default();
            let mut model = [false; 80];
            for (from, len) in ranges {
                holes.add(from, from + len);
                model[from as usize..(from + len) as usize].fill(true);
                for (blkid, expected) in model.iter().enumerate() {
                    prop_assert_eq!(holes.contains(blkid as u64), *expected);
                }
                let all: Vec<_> = holes.iter().collect();
                prop_assert!(all.windows(2).all(|pair| pair[0].1 < pair[1].0));
            }
        }
    }

    #[test]
    fn reaches_the_end_of_numbers() {
        let mut holes = Holes::default();
        holes.add(5, u64::MAX);
        holes.add(3, 5);
        assert_eq!(holes.iter().collect::<Vec<_>>(), [(3, u64::MAX)]);
        assert!(holes.contains(u64::MAX - 1) && !holes.contains(2));
    }
}
