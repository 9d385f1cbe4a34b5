//! Values that are checked when they are read, so that errors contain their line.

use serde::Deserialize;

use crate::retention::Grid;
use crate::schedule::Schedule;

/// A whole number within bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "i64")]
pub struct Ranged<const MIN: i64, const MAX: i64>(i64);

impl<const MIN: i64, const MAX: i64> TryFrom<i64> for Ranged<MIN, MAX> {
    type Error = String;

    fn try_from(number: i64) -> Result<Self, String> {
        match (MIN..=MAX).contains(&number) {
            true => Ok(Self(number)),
            false => Err(format!("{number} is not between {MIN} and {MAX}")),
        }
    }
}

impl<const MIN: i64, const MAX: i64> Ranged<MIN, MAX> {
    /// The number.
    pub fn get(self) -> i64 {
        self.0
    }

    /// The number, for ranges that fit in this type.
    pub(crate) fn small(self) -> i8 {
        i8::try_from(self.0).unwrap_or(0)
    }

    /// The number, for ranges that fit in this type.
    pub(crate) fn count(self) -> usize {
        usize::try_from(self.0).unwrap_or(0)
    }
}

/// One string or a list of strings.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "a text or a list of texts")]
pub enum OneOrMany {
    /// One string, or several separated by commas.
    One(String),
    /// A list.
    Many(Vec<String>),
}

impl OneOrMany {
    /// All strings.
    pub fn texts(&self) -> Vec<&str> {
        match self {
            Self::One(text) => text.split(',').map(str::trim).filter(|text| !text.is_empty()).collect(),
            Self::Many(texts) => texts.iter().map(String::as_str).collect(),
        }
    }
}

/// A regular expression.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
pub struct Pattern(pub(crate) regex_lite::Regex);

impl TryFrom<String> for Pattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let regex = regex_lite::Regex::new(&text)
            .map_err(|error| format!("'{text}' is not a valid regular expression: {error}"))?;
        Ok(Self(regex))
    }
}

/// A cron expression.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
pub struct CronText(pub(crate) Schedule);

impl TryFrom<String> for CronText {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Schedule::cron(&text).map(Self)
    }
}

/// An age grid.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
pub struct GridText(pub(crate) Grid);

impl TryFrom<String> for GridText {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Grid::parse(&text).map(Self)
    }
}

/// The prefix of snapshot names.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Prefix(pub(crate) String);

impl TryFrom<String> for Prefix {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_fine = (1..=64).contains(&text.len())
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':'));
        match is_fine {
            true => Ok(Self(text)),
            false => Err(format!(
                "'{text}' cannot be the prefix of a snapshot name: it needs 1 to 64 letters, digits, '-', '_', '.', ':'"
            )),
        }
    }
}
