//! Memory for keys that is not swapped to disk.
#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};

/// A value in a memory page of its own that is locked in memory, if the system allows it (`RLIMIT_MEMLOCK`). The value
/// must erase itself when it is dropped.
pub(super) struct Locked<T>(Box<Page<T>>);

/// The page contains nothing else, so unlocking it affects nothing else.
#[repr(align(4096))]
struct Page<T>(T);

impl<T> Locked<T> {
    pub(super) fn new(value: T) -> Self {
        let page = Box::new(Page(value));
        let begin: *const Page<T> = &raw const *page;
        // SAFETY: mlock(2) neither reads nor writes memory; the range is that of our own box.
        let _ = unsafe { libc::mlock(begin.cast(), size_of::<Page<T>>()) };
        Self(page)
    }
}

impl<T> Drop for Locked<T> {
    fn drop(&mut self) {
        let begin: *const Page<T> = &raw const *self.0;
        // SAFETY: as in `new`; the box is freed later. Unlocking a page that was never locked is not an error.
        let _ = unsafe { libc::munlock(begin.cast(), size_of::<Page<T>>()) };
    }
}

impl<T> Deref for Locked<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.0
    }
}

impl<T> DerefMut for Locked<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many kilobytes of the mapping around an address are locked.
    fn locked(address: usize) -> u64 {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut is_it = false;
        for line in maps.lines() {
            let mut words = line.split_whitespace();
            let first = words.next().unwrap();
            if let Some((begin, end)) = first.split_once('-') {
                let number = |text| usize::from_str_radix(text, 16).unwrap();
                is_it = (number(begin)..number(end)).contains(&address);
            } else if is_it && first == "Locked:" {
                return words.next().unwrap().parse().unwrap();
            }
        }
        panic!("{address:x} is not mapped");
    }

    #[test]
    fn what_is_in_it_stays_in_memory() {
        let secret = Locked::new([7_u8; 32]);
        let address = secret.as_ptr() as usize;
        assert_eq!((address % 4096, secret[31]), (0, 7));
        assert!(locked(address) >= 4);
    }
}
