//! The request and the result.

use serde::{Deserialize, Serialize};
use snowmelt_dataset::property::{Source, Types};

use crate::error::{CliError, Result};

/// Which datasets.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Selection {
    /// These, or all if there are none.
    pub names: Vec<String>,
    /// Types wanted, one bit each as in [`Types`].
    pub types: u8,
    /// With descendants.
    pub recursive: bool,
    /// Levels below; all if none.
    pub depth: Option<usize>,
}

/// Which properties.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Columns {
    /// All that apply and have a value.
    All,
    /// These columns, which the caller has checked.
    Named(Vec<String>),
}

/// One property to sort by.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SortKey {
    /// Its name.
    pub property: String,
    /// From the highest value to the lowest.
    pub descending: bool,
}

/// A listing that is asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Listing {
    /// Which datasets, snapshots and bookmarks.
    pub selection: Selection,
    /// Which properties.
    pub columns: Columns,
    /// What to sort by, the most important first.
    pub sort: Vec<SortKey>,
    /// `-p`
    pub parsable: bool,
    /// Also received values.
    pub received: bool,
}

/// The sort key of a row; `None` if it has no value of this kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SortValue {
    None,
    Number(u64),
    Text(String),
}

/// A property in a row.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Cell {
    /// Its name.
    pub property: String,
    /// Its printed value.
    pub text: String,
    source: (char, String),
    /// The received value, if it was asked for and there is one.
    pub received: Option<String>,
}

/// A dataset, snapshot or bookmark with its properties.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    /// The full name.
    pub name: String,
    /// The dataset that it is, or that it belongs to.
    pub dataset: String,
    /// The word for its type.
    pub kind: String,
    /// Datasets come before their snapshots, and those before bookmarks.
    pub rank: u8,
    /// The txg that it was created in.
    pub createtxg: u64,
    /// Its values of the properties to sort by.
    pub sort: Vec<SortValue>,
    /// The properties asked for, in the order asked for.
    pub cells: Vec<Cell>,
}

/// All rows of a pool, and complaints about names that are none.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Rows {
    /// In the order of the pool.
    pub rows: Vec<Row>,
    /// A message for each name that is not there.
    pub errors: Vec<String>,
}

impl Cell {
    /// From the value and its source.
    pub fn new(property: String, text: String, source: &Source, received: Option<String>) -> Self {
        let source = match source {
            Source::Local => ('l', String::new()),
            Source::Default => ('d', String::new()),
            Source::Received => ('r', String::new()),
            Source::Inherited(from) => ('i', from.clone()),
            Source::Temporary => ('t', String::new()),
            Source::None => ('-', String::new()),
        };
        Self { property, text, source, received }
    }

    /// Where the value comes from.
    pub fn source(&self) -> Source {
        match self.source.0 {
            'l' => Source::Local,
            'd' => Source::Default,
            'r' => Source::Received,
            'i' => Source::Inherited(self.source.1.clone()),
            't' => Source::Temporary,
            _ => Source::None,
        }
    }
}

/// `filesystem`, `snapshot`, … separated by commas.
///
/// # Errors
/// When one is none.
pub fn parse_types(list: &str) -> Result<u8> {
    let mut types = 0;
    for word in list.split(',') {
        types |= match word {
            "filesystem" | "fs" => bit(Types::FILESYSTEM),
            "volume" | "vol" => bit(Types::VOLUME),
            "snapshot" | "snap" => bit(Types::SNAPSHOT),
            "bookmark" => bit(Types::BOOKMARK),
            "all" => bit(Types::ANY),
            _ => return Err(CliError::Usage(format!("invalid type '{word}'"))),
        };
    }
    Ok(types)
}

/// Bits of a set of types, to travel.
pub const fn bit(types: Types) -> u8 {
    let mut bits = 0;
    let all = [Types::FILESYSTEM, Types::SNAPSHOT, Types::VOLUME, Types::BOOKMARK];
    let mut at = 0;
    while at < all.len() {
        if types.intersects(all[at]) {
            bits |= 1 << at;
        }
        at += 1;
    }
    bits
}

/// The number after `-d`.
///
/// # Errors
/// When it is none.
pub fn parse_depth(text: &str) -> Result<usize> {
    text.parse().map_err(|_| CliError::Usage(format!("{text} is not an integer")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_and_their_short_names() {
        assert_eq!(parse_types("filesystem,volume").unwrap(), bit(Types::FILESYSTEM_VOLUME));
        assert_eq!(parse_types("snap").unwrap(), bit(Types::SNAPSHOT));
        assert_eq!(parse_types("all").unwrap(), bit(Types::ANY));
        assert_eq!(parse_types("snapshot,frob").unwrap_err().to_string(), "invalid type 'frob'");
    }

    #[test]
    fn sources_survive_the_journey() {
        for source in [
            Source::Local,
            Source::Default,
            Source::Received,
            Source::Inherited("tank/a".into()),
            Source::Temporary,
            Source::None,
        ] {
            assert_eq!(Cell::new("p".into(), "v".into(), &source, None).source(), source);
        }
    }
}
