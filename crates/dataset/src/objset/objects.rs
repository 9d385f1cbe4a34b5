//! A set of object numbers with one bit for each, in chunks, because the numbers are dense.

use std::collections::HashMap;

const WORDS: usize = 64;
const CHUNK: u64 = WORDS as u64 * 64;

/// A set of object numbers.
#[derive(Debug, Default)]
pub struct ObjectSet(HashMap<u64, Box<[u64; WORDS]>>);

impl ObjectSet {
    /// Adds a number.
    pub fn insert(&mut self, object: u64) {
        let chunk = self.0.entry(object / CHUNK).or_insert_with(|| Box::new([0; WORDS]));
        let at = object % CHUNK;
        chunk[(at / 64) as usize] |= 1 << (at % 64);
    }

    /// Whether the set contains the number.
    pub fn contains(&self, object: u64) -> bool {
        let at = object % CHUNK;
        self.0.get(&(object / CHUNK)).is_some_and(|chunk| chunk[(at / 64) as usize] >> (at % 64) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_what_was_put_in() {
        let mut set = ObjectSet::default();
        let numbers = [0, 1, 63, 64, 4095, 4096, 1 << 47, (1 << 48) - 1];
        for number in numbers {
            assert!(!set.contains(number));
            set.insert(number);
        }
        assert!(numbers.iter().all(|number| set.contains(*number)));
        assert!(!set.contains(2) && !set.contains(4097));
    }
}
