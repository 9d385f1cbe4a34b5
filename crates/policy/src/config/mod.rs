//! The configuration of a policy.
//!
//! A configuration contains sections and replication jobs. A section applies to a dataset and possibly to the datasets
//! below it. A configuration is read from TOML ([`Config::from_toml`]) or from a `sanoid.conf`
//! ([`Config::from_sanoid`]). [`Config::rules`] computes the rules of each existing dataset.

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

/// A configuration that was read and checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// The time zone of schedules and of the dates in names. `None` means the zone of the machine.
    pub zone: Option<TimeZone>,
    /// The default settings of all datasets.
    pub(crate) defaults: Settings,
    /// The sections in the order in which they apply. Later ones take precedence.
    pub sections: Vec<Section>,
    /// The jobs by name.
    pub jobs: BTreeMap<String, Job>,
    /// Whether datasets with the same hooks share one run of them. Otherwise each dataset has its own run.
    pub shares_hooks: bool,
    /// Warnings about valid but unusual settings.
    pub warnings: Vec<String>,
}

/// The settings of a dataset, and possibly of the datasets below it.
#[derive(Debug, Clone)]
pub struct Section {
    /// The heading and the file, for messages.
    pub stands: String,
    /// Full name of the dataset.
    pub dataset: String,
    /// Which datasets below it the section applies to.
    pub recursion: Recursion,
    /// Whether earlier settings of the datasets below it are dropped.
    pub skips_children: bool,
    /// The settings of the section combined with its templates.
    pub settings: Settings,
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The text is not well-formed, or a key or value is not allowed.
    #[error("{file}:{line}: {message}")]
    Wrong {
        /// The name of the file.
        file: String,
        /// Line number, counted from 1.
        line: usize,
        /// What is wrong and what is allowed.
        message: String,
    },
}

impl ConfigError {
    /// An error at an offset of a text.
    pub(crate) fn at(file: &str, content: &str, offset: usize, message: impl Into<String>) -> Self {
        let line = content.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count() + 1;
        Self::Wrong { file: file.to_owned(), line, message: message.into() }
    }
}

/// Makes an error message of `serde` readable. For an unknown key, `serde` lists all keys.
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
        Some(name) => format!("unknown key '{key}': did you mean '{name}'?"),
        None => format!("unknown key '{key}'; valid keys: {}", known.join(", ")),
    }
}

/// Minimum similarity, between 0 and 1, of a key that is suggested.
const LIKENESS_MIN: f64 = 0.6;

#[cfg(test)]
mod tests;
