//! The order of file lists, which defines the indices on both sides.

use std::cmp::Ordering;

use super::Entry;

/// The first component of a path, the rest, and whether the component is a directory.
struct Head<'a> {
    name: &'a [u8],
    rest: Option<&'a [u8]>,
    is_dir: bool,
}

fn head(path: &[u8], is_dir: bool) -> Head<'_> {
    match path.iter().position(|byte| *byte == b'/') {
        Some(at) => Head { name: &path[..at], rest: Some(&path[at + 1..]), is_dir: true },
        None => Head { name: path, rest: None, is_dir },
    }
}

/// The order of lists in a version of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The order of the tree, as in [`compare`].
    Tree,
    /// The order of the bytes of the names, also for directories. Used before version 29.
    Bytes,
}

impl Order {
    /// The order in a version of the protocol.
    pub fn of(protocol: u8) -> Self {
        if protocol < 29 { Self::Bytes } else { Self::Tree }
    }

    /// Compares two names. Each has a flag that is true for directories.
    pub fn compare(self, a: (&[u8], bool), b: (&[u8], bool)) -> Ordering {
        match self {
            Self::Tree => compare_names(a, b),
            Self::Bytes => a.0.cmp(b.0),
        }
    }
}

/// Compares two entries. "." is first. In each directory, other files come before the directories, and a directory
/// comes before its content. Names of directories are compared as if they ended with a slash.
pub fn compare(a: &Entry, b: &Entry) -> Ordering {
    compare_names((&a.name, a.metadata.is_dir()), (&b.name, b.metadata.is_dir()))
}

/// The same for names. The flags are true for directories.
pub fn compare_names((a, a_is_dir): (&[u8], bool), (b, b_is_dir): (&[u8], bool)) -> Ordering {
    match (a == b".", b == b".") {
        (true, true) => return Ordering::Equal,
        (true, false) => return Ordering::Less,
        (false, true) => return Ordering::Greater,
        _ => {}
    }
    let (mut left, mut right) = (Some(a), Some(b));
    loop {
        let (Some(one), Some(other)) = (left, right) else {
            return left.is_some().cmp(&right.is_some());
        };
        let (one, other) = (head(one, a_is_dir), head(other, b_is_dir));
        let by_kind = one.is_dir.cmp(&other.is_dir);
        let by_name = match one.is_dir {
            true => one.name.iter().chain(b"/").cmp(other.name.iter().chain(b"/")),
            false => one.name.cmp(other.name),
        };
        match by_kind.then(by_name) {
            Ordering::Equal => (left, right) = (one.rest, other.rest),
            different => return different,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{Metadata, kind};

    #[test]
    fn files_come_before_directories() {
        let in_order = [
            "./",
            "a",
            "comp",
            "link",
            "foo.b/",
            "foo.b/z",
            "foo/",
            "foo/y",
            "foo/a/",
            "sub/",
            "sub/hl",
            "sub/deep/",
            "sub/deep/f",
            "t1/",
        ];
        let entries: Vec<Entry> = in_order
            .iter()
            .map(|text| {
                let name = text.trim_end_matches('/');
                let mode = if name == *text { kind::FILE } else { kind::DIRECTORY };
                Entry {
                    name: name.as_bytes().to_vec(),
                    root: b"".as_slice().into(),
                    metadata: Metadata { mode, ..Metadata::default() },
                    is_top: false,
                    has_content: false,
                    followed: false,
                    target: None,
                    digest: None,
                }
            })
            .collect();
        for (at, a) in entries.iter().enumerate() {
            for (other, b) in entries.iter().enumerate() {
                assert_eq!(compare(a, b), at.cmp(&other), "{} {}", in_order[at], in_order[other]);
            }
        }
    }
}
