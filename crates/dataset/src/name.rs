//! Names of datasets, snapshots and bookmarks, and ZFS's rules for them
//! (zfsprops(7), `zcommon/zfs_namecheck.c`).

use std::fmt;

use crate::error::NameError;

/// Maximal length of a full name in bytes: `ZFS_MAX_DATASET_NAME_LEN` without its NUL.
pub const NAME_MAX: usize = 255;

/// Maximal length of a pool's name in bytes. ZFS reserves space for `/$ORIGIN@$ORIGIN`, a snapshot in each of its
/// pools.
pub const POOL_NAME_MAX: usize = NAME_MAX - 16;

/// Maximal number of components in a dataset's name (`zfs_max_dataset_nesting`).
pub const NESTING_MAX: usize = 50;

/// The part of a full name after the dataset.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Suffix {
    /// Nothing: a filesystem or volume.
    None,
    /// `@name`
    Snapshot(String),
    /// `#name`
    Bookmark(String),
}

/// A parsed full name: `pool/a/b`, `pool/a@snap` or `pool/a#mark`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    dataset: String,
    suffix: Suffix,
}

impl Name {
    /// Parses and checks a full name.
    ///
    /// # Errors
    /// What is wrong with it, in the words of ZFS.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        if text.len() > NAME_MAX {
            return Err(NameError::TooLong { name: text.to_owned() });
        }
        let (dataset, suffix) = match text.find(['@', '#']) {
            None => (text, Suffix::None),
            Some(at) => {
                let rest = &text[at + 1..];
                if rest.contains(['@', '#']) {
                    return Err(NameError::MultipleDelimiters { name: text.to_owned() });
                }
                check_component(text, rest)?;
                let suffix = if text.as_bytes()[at] == b'@' {
                    Suffix::Snapshot(rest.to_owned())
                } else {
                    Suffix::Bookmark(rest.to_owned())
                };
                (&text[..at], suffix)
            }
        };
        check_dataset(text, dataset)?;
        Ok(Self { dataset: dataset.to_owned(), suffix })
    }

    /// Parses a name that must be a filesystem or volume.
    ///
    /// # Errors
    /// As [`Name::parse`]; when the name has a `@` or `#`.
    pub fn parse_dataset(text: &str) -> Result<Self, NameError> {
        let name = Self::parse(text)?;
        match name.suffix {
            Suffix::None => Ok(name),
            Suffix::Snapshot(_) => Err(NameError::UnexpectedDelimiter { name: text.to_owned(), found: '@' }),
            Suffix::Bookmark(_) => Err(NameError::UnexpectedDelimiter { name: text.to_owned(), found: '#' }),
        }
    }

    /// The filesystem or volume part.
    pub fn dataset(&self) -> &str {
        &self.dataset
    }

    /// The part after the dataset.
    pub fn suffix(&self) -> &Suffix {
        &self.suffix
    }

    /// The name of the snapshot, if it has one.
    pub fn snapshot(&self) -> Option<&str> {
        match &self.suffix {
            Suffix::Snapshot(name) => Some(name),
            _ => None,
        }
    }

    /// The name of the bookmark, if it has one.
    pub fn bookmark(&self) -> Option<&str> {
        match &self.suffix {
            Suffix::Bookmark(name) => Some(name),
            _ => None,
        }
    }

    /// The pool: the first component.
    pub fn pool(&self) -> &str {
        self.dataset.split('/').next().unwrap_or_default()
    }

    /// The dataset's parent and last component; `None` for a pool's root.
    pub fn parent(&self) -> Option<(&str, &str)> {
        self.dataset.rsplit_once('/')
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.dataset)?;
        match &self.suffix {
            Suffix::None => Ok(()),
            Suffix::Snapshot(name) => write!(f, "@{name}"),
            Suffix::Bookmark(name) => write!(f, "#{name}"),
        }
    }
}

/// A dataset with all its descendants, by name: `tank/a` includes `tank/a`, `tank/a/b` and `tank/a@s`, but not
/// `tank/ab`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subtree {
    root: String,
}

impl Subtree {
    /// The subtree of the dataset with this full name. The dataset need not exist.
    ///
    /// # Errors
    /// When this is not the name of a filesystem or volume.
    pub fn new(root: &str) -> Result<Self, NameError> {
        Ok(Self { root: Name::parse_dataset(root)?.dataset })
    }

    /// The topmost dataset.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// Whether a dataset with this full name is in the subtree.
    pub fn contains(&self, dataset: &str) -> bool {
        dataset.strip_prefix(&self.root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// Checks one component: the name of a snapshot or bookmark, or a part of a dataset's path (`entity_namecheck`).
///
/// `%` is reserved for ZFS's own names (`%recv`), which no command and no stream can create in ZFS either.
///
/// # Errors
/// What is wrong with it; the message contains `full`.
pub fn check_component(full: &str, component: &str) -> Result<(), NameError> {
    if component.is_empty() {
        return Err(NameError::EmptyComponent { name: full.to_owned() });
    }
    let bad = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | ' '));
    if let Some(found) = component.chars().find(|&c| bad(c)) {
        return Err(NameError::InvalidCharacter { name: full.to_owned(), found });
    }
    match component {
        "." => Err(NameError::SelfReference { name: full.to_owned() }),
        ".." => Err(NameError::ParentReference { name: full.to_owned() }),
        _ => Ok(()),
    }
}

fn check_dataset(full: &str, dataset: &str) -> Result<(), NameError> {
    if dataset.starts_with('/') {
        return Err(NameError::LeadingSlash { name: full.to_owned() });
    }
    if dataset.ends_with('/') {
        return Err(NameError::TrailingSlash { name: full.to_owned() });
    }
    let mut count = 0;
    for component in dataset.split('/') {
        check_component(full, component)?;
        count += 1;
    }
    if count > NESTING_MAX {
        return Err(NameError::TooDeep { name: full.to_owned() });
    }
    Ok(())
}

/// Checks a pool's name: it must begin with a letter, and must not be a word used in vdev specifications.
///
/// # Errors
/// What is wrong with it.
pub fn check_pool(name: &str) -> Result<(), NameError> {
    if name.len() > POOL_NAME_MAX {
        return Err(NameError::TooLong { name: name.to_owned() });
    }
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return Err(NameError::NoLetter { name: name.to_owned() });
    }
    check_component(name, name)?;
    if ["mirror", "raidz", "draid", "spare"].iter().any(|word| name.starts_with(word))
        || matches!(name, "log" | "none")
    {
        return Err(NameError::Reserved { name: name.to_owned() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_name() {
        let name = Name::parse("tank/a b/c@mon:day").unwrap();
        assert_eq!((name.dataset(), name.snapshot(), name.pool()), ("tank/a b/c", Some("mon:day"), "tank"));
        assert_eq!(name.parent(), Some(("tank/a b", "c")));
        assert_eq!(name.to_string(), "tank/a b/c@mon:day");
        assert_eq!(Name::parse("t#b").unwrap().bookmark(), Some("b"));
        assert_eq!(Name::parse("t").unwrap().parent(), None);
    }

    #[test]
    fn bad_names_are_refused() {
        for bad in [
            "", "/a", "a/", "a//b", "a@", "a@b@c", "a@b#c", "a/%b", "a/..", "a/.", "a@b/c", "é", "a@.",
            "a@..", "a#.", "a#..", "./a", "../a", "a/./b", ".@a", "a/..@b", "a@b%", "a@b c\n", "a@\u{0}",
        ] {
            assert!(Name::parse(bad).is_err(), "{bad:?} was accepted");
        }
        assert!(Name::parse(&"a".repeat(256)).is_err());
        assert!(Name::parse(&vec!["a"; 51].join("/")).is_err());
        assert!(Name::parse_dataset("a@b").is_err());
        for good in ["a@...", "a@.a", "a@a.", "a/.b@-", "a#:", "a/...", "a@ "] {
            assert!(Name::parse(good).is_ok(), "{good:?} was refused");
        }
        assert!(Name::parse(&format!("a@{}", "b".repeat(253))).is_ok());
        assert!(Name::parse(&format!("a@{}", "b".repeat(254))).is_err());
        assert!(Name::parse(&vec!["a"; 50].join("/")).is_ok());
    }

    #[test]
    fn pools_begin_with_a_letter() {
        assert!(check_pool("tank").is_ok());
        assert!(check_pool("logs").is_ok());
        assert!(check_pool(&"a".repeat(239)).is_ok());
        assert!(check_pool(&"a".repeat(240)).is_err());
        for bad in ["1tank", "mirror", "mirror1", "log", "raidz2", "", "a/b"] {
            assert!(check_pool(bad).is_err(), "{bad:?} was accepted");
        }
    }
}
