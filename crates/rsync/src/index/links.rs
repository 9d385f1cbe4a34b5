//! Checks hard links in an index, which has a record for each name of a file.

use std::collections::{BTreeSet, HashMap};

use super::{Builder, IndexError};
use crate::source::Metadata;

/// A hard-linked file whose names in the index do not match its link count, or whose records differ.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unsettled {
    id: (u64, u64),
    links: u64,
    found: u64,
    differs: bool,
}

/// All such files in an index.
pub fn unsettled(builder: &Builder) -> Result<BTreeSet<Unsettled>, IndexError> {
    let mut files: HashMap<(u64, u64), (Metadata, Unsettled)> = HashMap::new();
    for number in 0..builder.numbers() {
        let Some(listing) = builder.listing(number)? else { continue };
        let mut records = listing.records();
        while let Some(fields) = records.next()? {
            let Metadata { id, links, .. } = fields.metadata;
            if links < 2 || fields.directory.is_some() {
                continue;
            }
            let new = || (fields.metadata, Unsettled { id, links, found: 0, differs: false });
            let (metadata, file) = files.entry(id).or_insert_with(new);
            file.found += 1;
            file.differs |= *metadata != fields.metadata;
        }
    }
    let unsettled = files.into_values().map(|(_, file)| file);
    Ok(unsettled.filter(|file| file.differs || file.found != file.links).collect())
}
