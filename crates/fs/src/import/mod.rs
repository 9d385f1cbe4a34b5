//! Taking a directory into a filesystem dataset, as it is now.

mod content;
mod filter;
mod scan;

pub use filter::{Filter, FilterError};
pub use scan::{Listing, Scan, SourceEntry, SourcePath, SourceStat};
