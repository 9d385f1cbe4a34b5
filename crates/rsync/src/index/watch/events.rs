//! The events of fanotify(7), and the changed names that are collected from them for each directory.

use std::collections::{BTreeMap, HashMap};

/// The most names that are collected. Beyond that the changes count as lost, and the whole tree is read again.
const NAMES_MAX: usize = 1 << 20;
/// Length of `struct fanotify_event_metadata` in bytes: length, 4; version, 1; reserved, 1; length of the struct, 2;
/// mask, 8; descriptor and process, 4 each.
const HEAD_LEN: usize = 24;
const VERSION: u8 = 3;
/// Length of `struct fanotify_event_info_header` in bytes: type, 1; padding, 1; length, 2. The filesystem follows in 8
/// bytes.
const INFO_LEN: usize = 4;
const FILESYSTEM_LEN: usize = 8;
/// Bytes before the data of a handle: length, 4, and type, 4.
const HANDLE_HEAD_LEN: usize = 8;
/// The events after which a name may be a different file.
const OTHER_FILE: u64 = libc::FAN_CREATE | libc::FAN_DELETE | libc::FAN_MOVED_FROM | libc::FAN_MOVED_TO;

/// A directory: its filesystem, as `statfs(2)` returns it, and its handle.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Directory {
    pub filesystem: u64,
    pub handle: Vec<u8>,
}

/// The names in a directory that had an event, and whether they may now be different files. "." is the directory
/// itself.
pub type NamesSeen = BTreeMap<Vec<u8>, bool>;

/// The changes since the last check.
#[derive(Debug, Default)]
pub struct Pending {
    pub directories: HashMap<Directory, NamesSeen>,
    names: usize,
    /// There were further changes, which are unknown.
    pub is_lost: bool,
}

impl Pending {
    /// Records that events were lost.
    pub fn lose(&mut self) {
        *self = Self { is_lost: true, ..Self::default() };
    }

    /// Adds the events of one read.
    pub fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && !self.is_lost {
            let Some((event, rest)) = split_event(bytes) else { return self.lose() };
            match event {
                Event::Name { directory, name, is_other } => self.add_name(directory, name, is_other),
                Event::Lost => self.lose(),
            }
            bytes = rest;
        }
    }

    fn add_name(&mut self, directory: Directory, name: Vec<u8>, is_other: bool) {
        let names = self.directories.entry(directory).or_default();
        let before = names.len();
        *names.entry(name).or_default() |= is_other;
        self.names += names.len() - before;
        if self.names > NAMES_MAX {
            self.lose();
        }
    }
}

enum Event {
    Name {
        directory: Directory,
        name: Vec<u8>,
        is_other: bool,
    },
    /// The queue overflowed, or the event has an unknown form.
    Lost,
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// The first event and the rest. `None` if there is no complete event.
fn split_event(bytes: &[u8]) -> Option<(Event, &[u8])> {
    let len = u32_at(bytes, 0)? as usize;
    let (event, rest) = bytes.split_at_checked(len)?;
    let mask = u64::from_ne_bytes(*event.get(8..)?.first_chunk()?);
    let infos = event.get(HEAD_LEN..)?;
    if event.get(4) != Some(&VERSION) || mask & libc::FAN_Q_OVERFLOW != 0 {
        return Some((Event::Lost, rest));
    }
    let is_other = mask & OTHER_FILE != 0;
    let event = match info(infos) {
        Some((directory, name)) => Event::Name { directory, name, is_other },
        None => Event::Lost,
    };
    Some((event, rest))
}

/// The directory and the name of an event.
fn info(infos: &[u8]) -> Option<(Directory, Vec<u8>)> {
    if *infos.first()? != libc::FAN_EVENT_INFO_TYPE_DFID_NAME {
        return None;
    }
    let len = u16::from_ne_bytes(*infos.get(2..)?.first_chunk()?);
    let info = infos.get(INFO_LEN..usize::from(len))?;
    let (filesystem, rest) = info.split_at_checked(FILESYSTEM_LEN)?;
    let filesystem = u64::from(u32_at(filesystem, 0)?) | u64::from(u32_at(filesystem, 4)?) << 32;
    let handle_len = HANDLE_HEAD_LEN.checked_add(u32_at(rest, 0)? as usize)?;
    let (handle, name) = rest.split_at_checked(handle_len)?;
    let name = name.split(|byte| *byte == 0).next()?;
    Some((Directory { filesystem, handle: handle.to_vec() }, name.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(mask: u64, info: &[u8]) -> Vec<u8> {
        let len = (HEAD_LEN + info.len()) as u32;
        let mut bytes = len.to_ne_bytes().to_vec();
        bytes.extend([VERSION, 0, 24, 0]);
        bytes.extend(mask.to_ne_bytes());
        bytes.extend([0xff; 8]);
        bytes.extend(info);
        bytes
    }

    fn name(name: &[u8]) -> Vec<u8> {
        let mut info = vec![libc::FAN_EVENT_INFO_TYPE_DFID_NAME, 0];
        info.extend((INFO_LEN as u16 + 8 + 8 + 2 + name.len() as u16 + 1).to_ne_bytes());
        info.extend([1, 0, 0, 0, 2, 0, 0, 0]);
        info.extend(2_u32.to_ne_bytes());
        info.extend([9, 0, 0, 0, 0xaa, 0xbb]);
        info.extend(name);
        info.push(0);
        info
    }

    #[test]
    fn events_of_one_name_are_one() {
        let mut pending = Pending::default();
        let bytes = [
            event(libc::FAN_MODIFY, &name(b"a")),
            event(libc::FAN_CREATE, &name(b"b")),
            event(libc::FAN_ATTRIB | libc::FAN_ONDIR, &name(b".")),
            event(libc::FAN_DELETE, &name(b"a")),
        ];
        pending.add(&bytes.concat());
        assert!(!pending.is_lost);
        let directory =
            Directory { filesystem: 1 | 2 << 32, handle: vec![2, 0, 0, 0, 9, 0, 0, 0, 0xaa, 0xbb] };
        let names: Vec<_> =
            pending.directories[&directory].iter().map(|(name, is)| (&name[..], *is)).collect();
        assert_eq!(names, [(&b"."[..], false), (b"a", true), (b"b", true)]);
        assert_eq!((pending.directories.len(), pending.names), (1, 3));
    }

    #[test]
    fn what_cannot_be_read_is_lost() {
        let whole = event(libc::FAN_CREATE, &name(b"a"));
        for len in 1..whole.len() {
            let mut pending = Pending::default();
            pending.add(&whole[..len]);
            assert!(pending.is_lost, "{len}");
        }
        for bytes in [event(libc::FAN_Q_OVERFLOW, b""), event(libc::FAN_CREATE, &[9, 0, 4, 0]), vec![0; 24]] {
            let mut pending = Pending::default();
            pending.add(&[whole.clone(), bytes].concat());
            assert!(pending.is_lost && pending.directories.is_empty());
        }
    }

    proptest::proptest! {
        #[test]
        fn nothing_breaks_it(bytes: Vec<u8>) {
            Pending::default().add(&bytes);
        }
    }
}
