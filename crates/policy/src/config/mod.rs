//! What is wanted.
//!
//! A configuration is a list of sections, each about a dataset and perhaps those below it, and replication jobs. It comes from
//! TOML ([`Config::from_toml`]) or from a `sanoid.conf` ([`Config::from_sanoid`]); [`Config::rules`] says what holds for each
//! dataset that there is.

mod effective;
mod job;
mod rules;
mod sanoid;
mod settings;
mod text;
mod values;

use std::collections::BTreeMap;

use jiff::tz::TimeZone;

pub use effective::Effective;
pub use job::{Job, When};
pub use rules::{Hooks, Monitor, Period, Rules};
pub use settings::{Recursion, Settings};
pub use values::{OneOrMany, Ranged};

/// A configuration, understood and checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// The zone of schedules and of the dates in names, if one is named: otherwise that of the machine.
    pub zone: Option<TimeZone>,
    /// What holds for every dataset, unless something else is said.
    pub(crate) defaults: Settings,
    /// In the order in which they apply: what comes later wins.
    pub sections: Vec<Section>,
    /// By name.
    pub jobs: BTreeMap<String, Job>,
    /// Datasets with the same hooks share one run of them; otherwise each has its own.
    pub shares_hooks: bool,
    /// What is strange, but understood.
    pub warnings: Vec<String>,
}

/// What is wanted of a dataset, and perhaps of those below it.
#[derive(Debug, Clone)]
pub struct Section {
    /// Its heading and its file, for people.
    pub stands: String,
    /// Full name of the dataset.
    pub dataset: String,
    /// What it reaches.
    pub recursion: Recursion,
    /// Whether datasets below it are taken out of what was wanted for them.
    pub skips_children: bool,
    /// Templates and what the section says itself, in one.
    pub settings: Settings,
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// It is not well-formed, or a key or a value is not one of those allowed.
    #[error("{file}:{line}: {message}")]
    Wrong {
        /// The name it was given.
        file: String,
        /// Counted from 1.
        line: usize,
        /// What is wrong, and what is allowed.
        message: String,
    },
}

impl ConfigError {
    /// At a place in a text.
    pub(crate) fn at(file: &str, content: &str, offset: usize, message: impl Into<String>) -> Self {
        let line = content.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count() + 1;
        Self::Wrong { file: file.to_owned(), line, message: message.into() }
    }
}

/// What is wrong with a table, in words for people: `serde` tells all keys there are for one that is none of them.
pub(crate) fn in_words(message: &str) -> String {
    let Some((key, known)) =
        message.strip_prefix("unknown field `").and_then(|rest| rest.split_once("`, expected "))
    else {
        return match message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
            Some(key) => format!("'{key}' is missing"),
            None => message.replace("expected i64", "expected a whole number"),
        };
    };
    let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
    let likeness = |name: &str| strsim::normalized_damerau_levenshtein(key, name);
    let likely = known.iter().copied().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    match likely.filter(|name| likeness(name) >= LIKENESS_MIN) {
        Some(name) => format!("there is no key '{key}': perhaps '{name}' is meant"),
        None => format!("there is no key '{key}', but: {}", known.join(", ")),
    }
}

/// How alike a key must be for it to be proposed, of 1.
const LIKENESS_MIN: f64 = 0.6;

#[cfg(test)]
mod tests;
