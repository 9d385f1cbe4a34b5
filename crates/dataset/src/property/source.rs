//! The source of a dataset's property value.

use std::fmt;

/// Where the effective value of a dataset's property was set. Its text is the SOURCE column of `zfs get`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Set on the dataset itself.
    Local,
    /// Not set on the dataset or any of its parents.
    Default,
    /// Received with a stream, and not overridden since.
    Received,
    /// Set on this parent.
    Inherited(String),
    /// Applies only to the present mount.
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
