//! A cache of blocks with a limit in bytes: S3-FIFO (Yang et al., SOSP 2023) in independent shards.
//!
//! New blocks enter a small queue with a tenth of the space. A block that is read again before it leaves that queue
//! moves to the main queue. A block that is cached again soon after it left also goes to the main queue; for this, the
//! places of such blocks are remembered (the ghosts). A scan therefore passes through the small queue, and blocks in
//! frequent use stay.

use crate::memory;
use parking_lot::Mutex;
use snowmelt_store::SegmentId;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};

const SHARDS: usize = 16;
const FREQUENCY_MAX: u8 = 3;

/// The place of a block. It identifies the content, because segments are never written twice.
pub(crate) type Place = (SegmentId, u64);

/// Hashes the two integers of a [`Place`]. Users cannot choose them, so collisions cannot be provoked.
#[derive(Default)]
pub(crate) struct PlaceHasher(u64);

impl Hasher for PlaceHasher {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(26) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

type PlaceMap<V> = HashMap<Place, V, BuildHasherDefault<PlaceHasher>>;
type PlaceSet = HashSet<Place, BuildHasherDefault<PlaceHasher>>;

struct Slot<V> {
    value: V,
    weight: usize,
    frequency: u8,
    main: bool,
}

struct Shard<V> {
    slots: PlaceMap<Slot<V>>,
    small: VecDeque<Place>,
    main: VecDeque<Place>,
    small_bytes: usize,
    main_bytes: usize,
    ghosts: VecDeque<Place>,
    ghost_set: PlaceSet,
}

/// Values larger than half a shard, the most recently used last. A large block is often read in small pieces. Without
/// this, it would be decompressed again for each piece.
struct Large<V> {
    values: Vec<(Place, V, usize)>,
    bytes: usize,
}

/// A cache of values that are cheap to clone, with a limit in bytes.
pub(crate) struct Cache<V> {
    shards: Vec<Mutex<Shard<V>>>,
    shard_bytes: usize,
    large: Mutex<Large<V>>,
    /// The bytes of [`Large`], readable without its lock.
    large_bytes: AtomicUsize,
}

impl<V: Clone> Cache<V> {
    /// A cache of at most `bytes`. With 0 it caches nothing.
    pub(crate) fn new(bytes: usize) -> Self {
        let shard = || {
            Mutex::new(Shard {
                slots: PlaceMap::default(),
                small: VecDeque::new(),
                main: VecDeque::new(),
                small_bytes: 0,
                main_bytes: 0,
                ghosts: VecDeque::new(),
                ghost_set: PlaceSet::default(),
            })
        };
        Cache {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            shard_bytes: bytes / SHARDS,
            large: Mutex::new(Large { values: Vec::new(), bytes: 0 }),
            large_bytes: AtomicUsize::new(0),
        }
    }

    fn shard(&self, place: Place) -> &Mutex<Shard<V>> {
        let mut hasher = PlaceHasher::default();
        hasher.write_u64(place.0.0);
        hasher.write_u64(place.1 / 8);
        // The map in a shard uses the low bits of its own hash, so other bits are used here.
        &self.shards[(hasher.finish() >> 40) as usize % SHARDS]
    }

    /// Whether a place is cached. This does not count as a read.
    pub(crate) fn has(&self, place: Place) -> bool {
        self.shard(place).lock().slots.contains_key(&place)
            || self.has_large() && self.large.lock().values.iter().any(|(other, ..)| *other == place)
    }

    fn has_large(&self) -> bool {
        self.large_bytes.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn get(&self, place: Place) -> Option<V> {
        let mut shard = self.shard(place).lock();
        if let Some(slot) = shard.slots.get_mut(&place) {
            slot.frequency = (slot.frequency + 1).min(FREQUENCY_MAX);
            return Some(slot.value.clone());
        }
        drop(shard);
        if !self.has_large() {
            return None;
        }
        let mut large = self.large.lock();
        let at = large.values.iter().position(|(other, ..)| *other == place)?;
        let found = large.values.remove(at);
        let value = found.1.clone();
        large.values.push(found);
        Some(value)
    }

    /// Caches a value that is too large for a shard. They use up to half of the limit; one is always kept.
    fn put_large(&self, place: Place, value: V, weight: usize, bytes: usize) {
        let mut large = self.large.lock();
        if bytes == 0 || large.values.iter().any(|(other, ..)| *other == place) {
            return;
        }
        large.values.push((place, value, weight));
        large.bytes += weight;
        while large.bytes > bytes / 2 && large.values.len() > 1 {
            let (_, _, weight) = large.values.remove(0);
            large.bytes -= weight;
        }
        self.large_bytes.store(large.bytes, Ordering::Relaxed);
    }

    /// Caches a value that takes `weight` bytes of memory.
    pub(crate) fn put(&self, place: Place, value: V, weight: usize) {
        // Pools may have been opened or closed meanwhile, which changes the limit.
        let shard_bytes = memory::for_one_pool(self.shard_bytes as u64) as usize;
        if weight > shard_bytes / 2 {
            return self.put_large(place, value, weight, shard_bytes * SHARDS);
        }
        let shard_bytes = shard_bytes.saturating_sub(self.large_bytes.load(Ordering::Relaxed) / SHARDS);
        let mut shard = self.shard(place).lock();
        if shard.slots.contains_key(&place) {
            return;
        }
        let main = shard.ghost_set.remove(&place);
        shard.slots.insert(place, Slot { value, weight, frequency: 0, main });
        if main {
            shard.main.push_back(place);
            shard.main_bytes += weight;
        } else {
            shard.small.push_back(place);
            shard.small_bytes += weight;
        }
        while shard.small_bytes + shard.main_bytes > shard_bytes {
            if shard.small_bytes > shard_bytes / 10 || shard.main.is_empty() {
                shard.evict_small();
            } else {
                shard.evict_main();
            }
        }
    }

    /// Bytes in the cache.
    pub(crate) fn bytes(&self) -> usize {
        let bytes = |shard: &Mutex<Shard<V>>| {
            let shard = shard.lock();
            shard.small_bytes + shard.main_bytes
        };
        self.shards.iter().map(bytes).sum::<usize>() + self.large_bytes.load(Ordering::Relaxed)
    }
}

impl<V> Shard<V> {
    fn evict_small(&mut self) {
        let Some(place) = self.small.pop_front() else { return };
        let Some(slot) = self.slots.get_mut(&place) else { return };
        self.small_bytes -= slot.weight;
        if slot.frequency > 0 {
            slot.frequency = 0;
            slot.main = true;
            self.main_bytes += slot.weight;
            self.main.push_back(place);
            return;
        }
        self.slots.remove(&place);
        self.ghosts.push_back(place);
        self.ghost_set.insert(place);
        // There are as many ghosts as cached blocks, as in the paper.
        while self.ghosts.len() > self.slots.len().max(16) {
            if let Some(old) = self.ghosts.pop_front() {
                self.ghost_set.remove(&old);
            }
        }
    }

    fn evict_main(&mut self) {
        let Some(place) = self.main.pop_front() else { return };
        let Some(slot) = self.slots.get_mut(&place) else { return };
        if slot.frequency > 0 {
            slot.frequency -= 1;
            self.main.push_back(place);
            return;
        }
        self.main_bytes -= slot.weight;
        self.slots.remove(&place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(n: u64) -> Place {
        (SegmentId(n / 1000), (n % 1000) * 8)
    }

    #[test]
    fn stays_within_its_bytes() {
        let cache = Cache::new(16 * 1000);
        for n in 0..10_000 {
            cache.put(place(n), n, 10);
            assert!(cache.bytes() <= 16 * 1000);
        }
        assert!(cache.bytes() > 8 * 1000, "only {} bytes used", cache.bytes());
    }

    #[test]
    fn a_scan_does_not_push_out_what_is_used_often() {
        let cache = Cache::new(16 * 10_000);
        let hot = |n: u64| place(n + 1_000_000);
        for round in 0..3 {
            for n in 0..200 {
                if cache.get(hot(n)).is_none() {
                    cache.put(hot(n), n, 10);
                }
            }
            assert!(round < 3);
        }
        for n in 0..100_000 {
            cache.put(place(n), n, 10);
        }
        let kept = (0..200).filter(|&n| cache.get(hot(n)) == Some(n)).count();
        assert!(kept > 180, "{kept} of 200 hot blocks survived the scan");
    }

    #[test]
    fn a_block_that_comes_back_soon_is_taken_into_the_main_queue() {
        let cache = Cache::new(16 * 1000);
        for n in 0..2_000 {
            cache.put(place(n), n, 10);
        }
        // The shard holds about 125 values, and the first 25 have left. A failed lookup does not count as a read.
        let back = 100;
        assert_eq!(cache.get(place(back)), None);
        cache.put(place(back), back, 10);
        for n in 10_000..10_300 {
            cache.put(place(n), n, 10);
        }
        assert_eq!(cache.get(place(back)), Some(back));
    }

    #[test]
    fn large_ones_have_half_of_the_space_and_one_is_always_kept() {
        let cache = Cache::new(1600);
        for n in 0..1000 {
            cache.put(place(n), n, 10);
        }
        for n in 1000..1020 {
            cache.put(place(n), n, 300);
            assert_eq!((cache.get(place(n)), cache.has(place(n))), (Some(n), true));
            cache.put(place(n), n, 300);
        }
        let kept: Vec<u64> = (1000..1020).filter(|n| cache.has(place(*n))).collect();
        assert_eq!(kept, [1018, 1019]);
        for n in 2000..3000 {
            cache.put(place(n), n, 10);
        }
        assert!(cache.bytes() <= 1600 && cache.has(place(1019)), "{}", cache.bytes());
        cache.put(place(1), 1, 5000);
        assert_eq!((cache.get(place(1)), cache.get(place(1019))), (Some(1), None));
        let none = Cache::new(0);
        none.put(place(1), 1, 1);
        assert_eq!(none.bytes(), 0);
    }
}
