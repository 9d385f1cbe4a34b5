//! The expected content of the pool: names, and the bytes of every object of every head and snapshot.

use std::collections::BTreeMap;
use std::rc::Rc;

/// An object's block size, bytes (without zeros at the end) and spill block.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct File {
    pub(super) block_size: u32,
    pub(super) data: Vec<u8>,
    pub(super) spill: Option<Vec<u8>>,
}

impl File {
    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if self.data.len() < end {
            self.data.resize(end, 0);
        }
        self.data[offset..end].copy_from_slice(bytes);
        self.trim();
    }

    pub(super) fn free(&mut self, offset: usize, len: usize) {
        let from = offset.min(self.data.len());
        let to = offset.saturating_add(len).min(self.data.len());
        self.data[from..to].fill(0);
        self.trim();
    }

    pub(super) fn trim(&mut self) {
        let used = self.data.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        self.data.truncate(used);
    }
}

/// Objects by number.
pub(super) type Content = BTreeMap<u64, Rc<File>>;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Filesystem {
    pub(super) head: Content,
    /// Oldest first.
    pub(super) snapshots: Vec<(String, Rc<Content>)>,
    /// The full name of its origin.
    pub(super) origin: Option<String>,
}

/// Filesystems by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Model {
    pub(super) filesystems: BTreeMap<String, Filesystem>,
}

/// The two parts of a snapshot's name.
pub(super) fn split(full: &str) -> (&str, &str) {
    full.split_once('@').unwrap_or((full, ""))
}

impl Model {
    pub(super) fn get(&mut self, name: &str) -> &mut Filesystem {
        self.filesystems.get_mut(name).unwrap_or_else(|| panic!("the model has no {name}"))
    }

    /// The content of a snapshot.
    pub(super) fn content(&self, snapshot: &str) -> Option<Rc<Content>> {
        let (name, short) = split(snapshot);
        let snapshots = &self.filesystems.get(name)?.snapshots;
        snapshots.iter().find(|(it, _)| it == short).map(|(_, content)| content.clone())
    }

    pub(super) fn snapshot(&mut self, full: &str) {
        let (name, short) = split(full);
        let filesystem = self.get(name);
        let frozen = Rc::new(filesystem.head.clone());
        filesystem.snapshots.push((short.to_owned(), frozen));
    }

    pub(super) fn destroy_snapshot(&mut self, full: &str) {
        let (name, short) = split(full);
        self.get(name).snapshots.retain(|(it, _)| it != short);
    }

    /// Resets the head to a snapshot, and removes later snapshots.
    pub(super) fn rollback(&mut self, full: &str) {
        let content = self.content(full).unwrap_or_else(|| panic!("the model has no {full}"));
        self.forget_after(full);
        self.get(split(full).0).head = (*content).clone();
    }

    pub(super) fn forget_after(&mut self, full: &str) {
        let (name, short) = split(full);
        let snapshots = &mut self.get(name).snapshots;
        let at = snapshots.iter().position(|(it, _)| it == short).map_or(0, |at| at + 1);
        snapshots.truncate(at);
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) {
        let moved = |name: &str| match name.strip_prefix(from) {
            Some(rest) if rest.is_empty() || rest.starts_with(['/', '@']) => Some(format!("{to}{rest}")),
            _ => None,
        };
        let all = std::mem::take(&mut self.filesystems);
        for (name, mut filesystem) in all {
            filesystem.origin = filesystem.origin.map(|origin| moved(&origin).unwrap_or(origin));
            self.filesystems.insert(moved(&name).unwrap_or(name), filesystem);
        }
    }

    /// Moves the origin and older snapshots to the clone.
    pub(super) fn promote(&mut self, clone: &str) {
        let origin = self.get(clone).origin.clone().unwrap_or_else(|| panic!("{clone} is no clone"));
        let (parent, short) = split(&origin);
        let above = self.get(parent);
        let past = above.snapshots.iter().position(|(it, _)| it == short).map_or(0, |at| at + 1);
        let taken: Vec<_> = above.snapshots.drain(..past).collect();
        let higher = above.origin.replace(format!("{clone}@{short}"));
        let names: Vec<String> = taken.iter().map(|(short, _)| format!("{parent}@{short}")).collect();
        let promoted = self.get(clone);
        promoted.snapshots.splice(..0, taken);
        promoted.origin = higher;
        for filesystem in self.filesystems.values_mut() {
            if let Some(origin) = filesystem.origin.as_mut().filter(|origin| names.contains(origin)) {
                *origin = format!("{clone}@{}", split(origin).1);
            }
        }
    }

    /// The first difference between two models, for messages.
    pub(super) fn difference(&self, other: &Self) -> String {
        for (name, here) in &self.filesystems {
            let Some(there) = other.filesystems.get(name) else { return format!("{name} is missing") };
            if here.origin != there.origin {
                return format!("{name} is a clone of {:?}, not of {:?}", there.origin, here.origin);
            }
            let names = |of: &Filesystem| of.snapshots.iter().map(|(it, _)| it.clone()).collect::<Vec<_>>();
            if names(here) != names(there) {
                return format!("{name} has snapshots {:?}, not {:?}", names(there), names(here));
            }
            for ((short, here), (_, there)) in here.snapshots.iter().zip(&there.snapshots) {
                if here != there {
                    return format!("{name}@{short}: {}", difference(here, there));
                }
            }
            if here.head != there.head {
                return format!("{name}: {}", difference(&here.head, &there.head));
            }
        }
        match other.filesystems.keys().find(|name| !self.filesystems.contains_key(*name)) {
            Some(name) => format!("{name} should not be there"),
            None => "no difference".to_owned(),
        }
    }
}

fn difference(here: &Content, there: &Content) -> String {
    let numbers: std::collections::BTreeSet<u64> = here.keys().chain(there.keys()).copied().collect();
    for object in numbers {
        match (here.get(&object), there.get(&object)) {
            (Some(a), Some(b)) if a == b => {}
            (Some(a), Some(b)) => {
                let at = a.data.iter().zip(&b.data).position(|(a, b)| a != b);
                return format!(
                    "object {object} differs: {} and {} bytes, first at {at:?}, spill {}",
                    a.data.len(),
                    b.data.len(),
                    a.spill == b.spill
                );
            }
            (None, _) => return format!("object {object} should not be there"),
            (_, None) => return format!("object {object} is missing"),
        }
    }
    "no difference".to_owned()
}
