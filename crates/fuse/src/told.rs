//! Names that the kernel was told of a moment ago, and takes to be right for [`NAMES_HOLD`].
//!
//! When the content of a mounted dataset is replaced, exactly these names may lead to the old content. They are few,
//! because they are dropped here as soon as the kernel drops them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long the kernel may use a name without asking again. A longer time costs fewer requests. But each name within
/// this time is remembered, and invalidated when the content is replaced.
pub(crate) const NAMES_HOLD: Duration = Duration::from_secs(1);
/// Most names that are kept of each half of the time that they hold.
const NAMES_MAX: usize = 4096;

/// The object of a name in a directory (by the kernel's number of the directory): inode number and generation.
pub(crate) type Told = ((u64, Box<[u8]>), (u64, u64));

/// Names that the kernel knows.
#[derive(Debug, Default)]
pub(crate) struct NamesTold {
    state: Mutex<State>,
}

/// The answers about names in directories, by the number of the directory and the name.
type Names = HashMap<(u64, Box<[u8]>), (u64, u64)>;

#[derive(Debug, Default)]
struct State {
    /// Told since `begun`, and in the time before that.
    recent: Names,
    older: Names,
    begun: Option<Instant>,
    /// When a name was told that there was no room for.
    missed: Option<Instant>,
}

impl State {
    /// Drops the names that the kernel no longer caches.
    fn age(&mut self, now: Instant) {
        match self.begun.map(|begun| now.duration_since(begun)) {
            Some(age) if age < NAMES_HOLD => return,
            Some(age) if age < 2 * NAMES_HOLD => self.older = std::mem::take(&mut self.recent),
            _ => (self.older, self.recent) = (HashMap::new(), HashMap::new()),
        }
        self.begun = Some(now);
    }
}

impl NamesTold {
    /// The kernel is about to be told that a name leads to an inode of this generation.
    pub(crate) fn tell(&self, parent: u64, name: &[u8], inode: (u64, u64)) {
        let now = Instant::now();
        let mut state = self.state.lock();
        state.age(now);
        if state.recent.len() < NAMES_MAX {
            state.recent.insert((parent, name.into()), inode);
        } else {
            state.missed = Some(now);
        }
    }

    /// All names that the kernel may believe, and how long it may believe others.
    pub(crate) fn all(&self) -> (Vec<Told>, Duration) {
        let now = Instant::now();
        let mut state = self.state.lock();
        state.age(now);
        let missed = state
            .missed
            .map_or(Duration::ZERO, |missed| NAMES_HOLD.saturating_sub(now.duration_since(missed)));
        let mut names: HashMap<_, _> = state.older.clone();
        names.extend(state.recent.iter().map(|(name, inode)| (name.clone(), *inode)));
        (names.into_iter().collect(), missed)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kept_as_long_as_they_hold() {
        let told = NamesTold::default();
        told.tell(1, b"a", (34, 5));
        told.tell(1, b"a", (35, 6));
        told.tell(34, b"b", (36, 7));
        let (mut names, missed) = told.all();
        names.sort();
        let expected: [Told; 2] = [((1, b"a"[..].into()), (35, 6)), ((34, b"b"[..].into()), (36, 7))];
        assert_eq!((names.as_slice(), missed), (&expected[..], Duration::ZERO));
        let mut state = told.state.lock();
        let begun = state.begun.unwrap();
        state.age(begun + NAMES_HOLD);
        assert_eq!((state.recent.len(), state.older.len()), (0, 2));
        state.age(begun + 2 * NAMES_HOLD);
        assert_eq!((state.recent.len(), state.older.len()), (0, 0));
    }

    #[test]
    fn too_many_names_are_waited_for() {
        let told = NamesTold::default();
        for number in 0..=NAMES_MAX {
            told.tell(1, number.to_string().as_bytes(), (number as u64, 0));
        }
        let (names, missed) = told.all();
        assert!(names.len() <= 2 * NAMES_MAX && missed > Duration::ZERO && missed <= NAMES_HOLD);
    }
}
