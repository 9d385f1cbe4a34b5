//! Where a dataset's value comes from.

use std::fmt;

/// Where the value that holds for a dataset was set. Its text is the SOURCE column of `zfs get`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Set on the dataset itself.
    Local,
    /// Set nowhere up the tree.
    Default,
    /// Brought by a stream, and not set over since.
    Received,
    /// Set on the ancestor that is named.
    Inherited(String),
    /// Holds for the present mount only.
    Temporary,
    /// The property has no source: it is a statistic or was fixed at creation.
    None,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Default => f.write_str("default"),
            Self::Received => f.write_str("received"),
            Self::Inherited(dataset) => write!(f, "inherited from {dataset}"),
            Self::Temporary => f.write_str("temporary"),
            Self::None => f.write_str("-"),
        }
    }
}
