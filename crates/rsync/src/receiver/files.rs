//! The files of the sender: one list, or one for each directory (docs/format/rsync.md, "Lists one by one"). Lists that
//! are done are dropped, so that memory depends only on what is in progress.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Index, IndexMut, Range};

use crate::error::{Result, RsyncError};
use crate::flist::{List, Order, Received, compare_names};

/// The key that entries are ordered by.
pub(super) fn key(one: &Received) -> (&[u8], bool) {
    (&one.name, one.metadata.is_dir())
}

/// Which entries of a sorted list count. Of several with the same name it is the first, or the directory, which may
/// have content.
fn counted(list: &[Received], order: Order) -> Vec<bool> {
    if order == Order::Bytes {
        let of_one_name = list.chunk_by(|a, b| a.name == b.name).flat_map(|same| {
            let counting = same.iter().position(|one| one.metadata.is_dir()).unwrap_or(0);
            (0..same.len()).map(move |at| at == counting)
        });
        return of_one_name.collect();
    }
    let is_again = |at: usize| at > 0 && key(&list[at]) == key(&list[at - 1]);
    let mut counts: Vec<bool> = (0..list.len()).map(|at| !is_again(at)).collect();
    for directory in list.iter().filter(|one| one.metadata.is_dir()) {
        let other = (directory.name.as_slice(), false);
        let at = list.partition_point(|one| compare_names(key(one), other).is_lt());
        if list.get(at).is_some_and(|one| key(one) == other) {
            counts[at] = false;
        }
    }
    counts
}

/// A list that is not done.
#[derive(Debug)]
struct Sublist {
    first: u32,
    /// The directory of the list. The index before the first one stands for it too.
    directory: Option<Received>,
    entries: Vec<Received>,
    /// Whether each entry counts. Of several with the same name only one does.
    counts: Vec<bool>,
    /// The memory of the list, in bytes.
    bytes: u64,
    /// The number of its files that are not done.
    held: u32,
    /// All its files were processed by the generator.
    is_generated: bool,
}

impl Sublist {
    fn end(&self) -> u32 {
        self.first + self.entries.len() as u32
    }

    fn get(&self, index: u32) -> Option<&Received> {
        match index.checked_sub(self.first) {
            Some(at) => self.entries.get(at as usize),
            None if index + 1 == self.first => self.directory.as_ref(),
            None => None,
        }
    }

    /// Whether the list has an entry of this name, of any kind.
    fn has(&self, name: &[u8], order: Order) -> bool {
        [false, true].into_iter().any(|is_dir| {
            let at = self.entries.partition_point(|one| order.compare(key(one), (name, is_dir)).is_lt());
            // Entries with the same name are neighbours here, and one of them counts.
            let same = self.entries[at..].iter().take_while(|one| one.name == name);
            same.zip(&self.counts[at..]).any(|(_, counts)| *counts)
        })
    }
}

/// A list that is done: its directory, and its memory in bytes.
pub(super) struct Finished {
    pub(super) directory: Option<Received>,
    pub(super) bytes: u64,
}

/// The lists that are not done, with their files by index.
#[derive(Debug)]
pub(super) struct Files {
    is_incremental: bool,
    order: Order,
    lists: VecDeque<Sublist>,
    /// Directories whose lists are still to come, by number.
    directories: BTreeMap<u32, Received>,
    directory_count: u32,
    /// The first index of the next list.
    next: u32,
    /// No further lists will come.
    is_complete: bool,
}

impl Files {
    pub(super) fn new(is_incremental: bool, order: Order) -> Self {
        Self {
            is_incremental,
            order,
            lists: VecDeque::new(),
            directories: BTreeMap::new(),
            directory_count: 0,
            next: u32::from(is_incremental),
            is_complete: false,
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// The first index of the next list.
    pub(super) fn next_index(&self) -> u32 {
        self.next
    }

    /// The directory that the sender is about to list.
    ///
    /// # Errors
    /// When no directory has this number, or its list has come already.
    pub(super) fn take_directory(&mut self, number: u32) -> Result<Received> {
        let found = if self.is_complete { None } else { self.directories.remove(&number) };
        found.ok_or_else(|| {
            RsyncError::protocol(format!(
                "refusing flist for cleared dir_ndx {number}: no list of it is to come"
            ))
        })
    }

    /// Records that the sender has sent all lists.
    ///
    /// # Errors
    /// When that was recorded before, or there is only one list.
    pub(super) fn complete(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.is_complete, true) {
            false => Ok(()),
            true => Err(RsyncError::protocol("an end of lists after the end")),
        }
    }

    /// Adds a list. Returns the memory in bytes of the directories in it whose lists are still to come.
    ///
    /// # Errors
    /// When an entry is not in the list's directory, or there are too many files.
    pub(super) fn add(&mut self, list: List, directory: Option<Received>) -> Result<u64> {
        let List { mut entries, bytes, .. } = list;
        let bytes = bytes + directory.as_ref().map_or(0, Received::bytes);
        let mut more = 0;
        if self.is_incremental {
            let above = directory.as_ref().map_or(&b""[..], |directory| &directory.name);
            let is_in = |one: &Received| {
                let at = one.name.iter().rposition(|byte| *byte == b'/');
                at.map_or(&b""[..], |at| &one.name[..at]) == above
            };
            if let Some(other) = entries.iter().find(|one| !is_in(one)) {
                let (name, above) = (String::from_utf8_lossy(&other.name), String::from_utf8_lossy(above));
                return Err(RsyncError::protocol(format!("{name:?} in the list of directory {above:?}")));
            }
        }
        entries.sort_by(|a, b| self.order.compare(key(a), key(b)));
        let counts = counted(&entries, self.order);
        let mut directory = directory;
        if self.is_incremental {
            for (one, counts) in entries.iter().zip(&counts).filter(|(one, _)| one.metadata.is_dir()) {
                if one.name == b"." && *counts {
                    // The content of this directory is in the same list.
                    directory = Some(one.clone());
                } else if *counts {
                    more += one.bytes();
                    self.directories.insert(self.directory_count, one.clone());
                }
                self.directory_count += 1;
            }
        }
        let first = self.next;
        let next = u64::from(first) + entries.len() as u64 + u64::from(self.is_incremental);
        self.next = u32::try_from(next)
            .ok()
            .filter(|next| *next < i32::MAX as u32)
            .ok_or_else(|| RsyncError::protocol("more files than the protocol can count"))?;
        self.is_complete |= !self.is_incremental;
        self.lists.push_back(Sublist {
            first,
            directory,
            entries,
            counts,
            bytes,
            held: 0,
            is_generated: false,
        });
        Ok(more)
    }

    /// The position of the list with this first index.
    fn position(&self, first: u32) -> Option<usize> {
        self.lists.binary_search_by_key(&first, |list| list.first).ok()
    }

    fn list_of(&self, index: u32) -> Option<&Sublist> {
        let after = self.lists.partition_point(|list| list.first <= index.saturating_add(1));
        self.lists.get(after.checked_sub(1)?)
    }

    fn list_of_mut(&mut self, index: u32) -> Option<&mut Sublist> {
        let at = self.position(self.list_of(index)?.first)?;
        self.lists.get_mut(at)
    }

    /// The file with this index, if its list is not done.
    pub(super) fn get(&self, index: u32) -> Option<&Received> {
        self.list_of(index)?.get(index)
    }

    /// The files that count, with their indices.
    pub(super) fn counting(&self) -> impl DoubleEndedIterator<Item = (u32, &Received)> {
        self.lists.iter().flat_map(|list| {
            let all = list.entries.iter().zip(&list.counts).enumerate();
            all.filter(|(_, (_, counts))| **counts).map(|(at, (one, _))| (list.first + at as u32, one))
        })
    }

    /// Excludes files for which `counts` is false. It is called in reverse order in each list.
    pub(super) fn retain_counting(&mut self, mut counts: impl FnMut(&Received) -> bool) {
        for list in &mut self.lists {
            for (one, is_counting) in list.entries.iter().zip(&mut list.counts).rev() {
                *is_counting = *is_counting && counts(one);
            }
        }
    }

    pub(super) fn counts(&self, index: u32) -> bool {
        let list = self.list_of(index);
        list.is_some_and(|list| {
            index.checked_sub(list.first).is_none_or(|at| list.counts.get(at as usize) == Some(&true))
        })
    }

    /// The indices of the list with this first index, if it has come. The index of its directory is included.
    pub(super) fn list_from(&self, first: u32) -> Option<Range<u32>> {
        let list = self.lists.get(self.position(first)?)?;
        Some(list.first - u32::from(list.directory.is_some())..list.end())
    }

    /// Whether this index is a directory that is processed with its own list.
    pub(super) fn is_only_named(&self, index: u32) -> bool {
        self.is_incremental
            && self.list_of(index).is_some_and(|list| index >= list.first)
            && self.get(index).is_some_and(|one| one.metadata.is_dir())
    }

    /// Whether the directory with this index has an entry of this name, of any kind.
    pub(super) fn has(&self, directory: u32, name: &[u8]) -> bool {
        self.list_of(directory).is_some_and(|list| list.has(name, self.order))
    }

    /// Records that all files of the list with this first index were processed by the generator.
    pub(super) fn set_generated(&mut self, first: u32) {
        if let Some(list) = self.position(first).and_then(|at| self.lists.get_mut(at)) {
            list.is_generated = true;
        }
    }

    /// Records that a file is not done.
    pub(super) fn hold(&mut self, index: u32) {
        if let Some(list) = self.list_of_mut(index) {
            list.held += 1;
        }
    }

    /// Records that a file is done.
    pub(super) fn release(&mut self, index: u32) {
        if let Some(list) = self.list_of_mut(index) {
            debug_assert!(list.held > 0, "what is released was held");
            list.held = list.held.saturating_sub(1);
        }
    }

    /// Drops the first list if it is done and a list follows, or all lists have come.
    pub(super) fn finish_first(&mut self) -> Option<Finished> {
        let is_followed = self.lists.len() > 1 || self.is_complete;
        let is_done = self.lists.front().is_some_and(|list| list.is_generated && list.held == 0);
        let list = if self.is_incremental && is_followed && is_done {
            self.lists.pop_front()?
        } else {
            return None;
        };
        Some(Finished { directory: list.directory, bytes: list.bytes })
    }

    /// The number of files in the lists.
    pub(super) fn len(&self) -> usize {
        self.lists.iter().map(|list| list.entries.len()).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }
}

impl Index<usize> for Files {
    type Output = Received;

    fn index(&self, index: usize) -> &Received {
        self.get(index as u32).unwrap_or_else(|| unreachable!("file {index} is done with"))
    }
}

impl IndexMut<usize> for Files {
    fn index_mut(&mut self, index: usize) -> &mut Received {
        let list = self.list_of_mut(index as u32);
        let found = list.and_then(|list| match (index as u32).checked_sub(list.first) {
            Some(at) => list.entries.get_mut(at as usize),
            None => list.directory.as_mut(),
        });
        found.unwrap_or_else(|| unreachable!("file {index} is done with"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{Metadata, kind};

    const FILE: u32 = kind::FILE;
    const DIRECTORY: u32 = kind::DIRECTORY;

    fn list(names: &[(&str, u32)]) -> List {
        let one = |(name, mode): &(&str, u32)| Received {
            name: name.as_bytes().to_vec(),
            metadata: Metadata { mode: *mode, ..Metadata::default() },
            ..Received::default()
        };
        List { entries: names.iter().map(one).collect(), ..List::default() }
    }

    #[test]
    fn of_two_of_one_name_one_counts() {
        let mut files = Files::new(false, Order::Tree);
        let all = [
            ("d", FILE),
            (".", DIRECTORY),
            ("d/f", FILE),
            ("d", DIRECTORY),
            ("a", FILE),
            ("a", kind::SYMLINK),
            ("d", FILE),
            ("d", DIRECTORY),
            ("d-e", DIRECTORY),
        ];
        files.add(list(&all), None).unwrap();
        let counting: Vec<_> = files.counting().map(|(_, one)| key(one)).collect();
        let expected: [(&[u8], bool); 5] =
            [(b".", true), (b"a", false), (b"d-e", true), (b"d", true), (b"d/f", false)];
        assert_eq!(counting, expected);
        let first = files.counting().nth(1).unwrap().0;
        assert_eq!(files[first as usize].metadata.mode, FILE);
        assert!(files.has(0, b"d") && files.has(0, b"a") && !files.has(0, b"f"));

        let mut files = Files::new(false, Order::Bytes);
        files.add(list(&all), None).unwrap();
        let counting: Vec<_> = files.counting().map(|(_, one)| key(one)).collect();
        let expected: [(&[u8], bool); 5] =
            [(b".", true), (b"a", false), (b"d", true), (b"d-e", true), (b"d/f", false)];
        assert_eq!(counting, expected);
        assert!(files.has(0, b"d") && files.has(0, b"a") && !files.has(0, b"f"));
    }

    #[test]
    fn indices_go_on_from_list_to_list() {
        let mut files = Files::new(true, Order::Tree);
        files.add(list(&[("b", DIRECTORY), (".", DIRECTORY), ("a", FILE)]), None).unwrap();
        // The indices 0 and 1 are ".", 2 is "a", and 3 is "b" as directory number 1. Index 4 is "b" again.
        let b = files.take_directory(1).unwrap();
        files.add(list(&[("b/d", DIRECTORY), ("b/c", FILE)]), Some(b)).unwrap();
        let d = files.take_directory(2).unwrap();
        files.add(list(&[]), Some(d)).unwrap();
        let names: Vec<_> = (0..8).map(|at| String::from_utf8(files[at].name.clone()).unwrap()).collect();
        assert_eq!(names, [".", ".", "a", "b", "b", "b/c", "b/d", "b/d"]);
        assert!(files.get(8).is_none() && files.get(u32::MAX).is_none());
        assert_eq!([1, 5, 8].map(|first| files.list_from(first)), [Some(0..4), Some(4..7), Some(7..8)]);
        assert_eq!(
            [0, 1, 2, 3, 4, 6, 7].map(|at| files.is_only_named(at)),
            [false, true, false, true, false, true, false]
        );
        assert!(files.has(0, b"b") && files.has(4, b"b/c") && !files.has(4, b"b") && !files.has(7, b"b/c"));

        files.hold(5);
        [1, 5, 8].into_iter().for_each(|first| files.set_generated(first));
        assert!(files.finish_first().is_some_and(|list| list.directory.is_some()));
        assert!(
            files.get(3).is_none() && files.finish_first().is_none(),
            "something is to be done in the next one"
        );
        files.release(5);
        assert!(files.finish_first().is_some() && files.finish_first().is_none(), "more may come");
        files.complete().unwrap();
        assert!(files.finish_first().is_some() && files.is_empty());
    }

    #[test]
    fn lists_that_lie_are_refused() {
        let mut files = Files::new(true, Order::Tree);
        files.add(list(&[(".", DIRECTORY), ("a", DIRECTORY), ("a", DIRECTORY), ("f", FILE)]), None).unwrap();
        for number in [0, 2, 3, u32::MAX] {
            assert!(files.take_directory(number).is_err(), "{number} has no list of its own");
        }
        let a = files.take_directory(1).unwrap();
        assert!(files.take_directory(1).is_err(), "it has one list");
        for name in ["x", "a", ".", "b/x", "a/b/x", "aa/x"] {
            assert!(files.add(list(&[(name, FILE)]), Some(a.clone())).is_err(), "{name}");
        }
        files.add(list(&[("a/b", DIRECTORY)]), Some(a)).unwrap();
        assert!(files.complete().is_ok() && files.complete().is_err());
        assert!(files.take_directory(3).is_err(), "all has been told");
        assert!(Files::new(true, Order::Tree).add(list(&[("a/b", FILE)]), None).is_err());
    }
}
