//! `-o PROPERTY=VALUE` and the like.

use snowmelt_dataset::property::{Assignment, PropertyError, PropertyName, Target, Types, validate};

use crate::error::{CliError, Result};

/// The version of the ZPL that new filesystems have.
pub const VERSION: u64 = 5;

/// Splits `PROPERTY=VALUE`.
///
/// # Errors
/// When there is no `=`.
pub fn split(pair: &str) -> Result<(&str, &str)> {
    pair.split_once('=')
        .ok_or_else(|| CliError::Usage(format!("missing '=' for property=value argument '{pair}'")))
}

/// Splits them all.
///
/// # Errors
/// As [`split`].
pub fn split_all(pairs: &[String]) -> Result<Vec<(&str, &str)>> {
    pairs.iter().map(|pair| split(pair)).collect()
}

/// Checks the properties of a new dataset. `attempt` is the beginning of error messages.
///
/// # Errors
/// The first pair that is not allowed; encryption, for which there are no keys here.
pub fn for_new(attempt: &str, pairs: &[(&str, &str)], types: Types) -> Result<Vec<Assignment>> {
    checked(attempt, pairs, Target { types, creating: true, volume_block_size: None })
}

/// As [`for_new`], for a volume of such blocks.
///
/// # Errors
/// As [`for_new`].
pub fn for_new_volume(attempt: &str, pairs: &[(&str, &str)], block_size: u64) -> Result<Vec<Assignment>> {
    let target = Target { types: Types::VOLUME, creating: true, volume_block_size: Some(block_size) };
    checked(attempt, pairs, target)
}

fn checked(attempt: &str, pairs: &[(&str, &str)], target: Target) -> Result<Vec<Assignment>> {
    let assignments = validate(pairs.iter().copied(), target).map_err(refused(attempt))?;
    let is_plain = |a: &Assignment| match a.name.as_str() {
        "encryption" => a.value.as_number() == Some(2),
        "keyformat" | "pbkdf2iters" => a.value.as_number() == Some(0),
        "keylocation" => a.value.as_text() == Some("none"),
        _ => true,
    };
    if !assignments.iter().all(is_plain) {
        return Err(CliError::Failed(format!(
            "{attempt}: encrypted datasets cannot be created, only received as raw streams"
        )));
    }
    // A request for an older version is meant for old programs, which could not read the result.
    if assignments.iter().any(|a| a.name == "version" && a.value.as_number() != Some(VERSION)) {
        return Err(CliError::Failed(format!("{attempt}: a new filesystem always has version {VERSION}")));
    }
    Ok(assignments)
}

/// Only user properties: for snapshots.
///
/// # Errors
/// As [`for_new`].
pub fn for_snapshot(attempt: &str, pairs: &[(&str, &str)]) -> Result<Vec<Assignment>> {
    let target = Target { types: Types::SNAPSHOT, creating: true, volume_block_size: None };
    validate(pairs.iter().copied(), target).map_err(refused(attempt))
}

/// Names and texts to keep.
pub fn stored(assignments: &[Assignment]) -> Vec<(String, String)> {
    assignments.iter().map(Assignment::to_stored).collect()
}

/// The canonical name of a property that a person named.
///
/// # Errors
/// When there is no such property.
pub fn canonical_name(name: &str) -> Result<String, PropertyError> {
    PropertyName::parse(name).map(|name| name.text())
}

/// A refusal after `attempt`.
pub fn refused(attempt: &str) -> impl Fn(PropertyError) -> CliError + '_ {
    move |error| match error {
        PropertyError::Twice { .. } => CliError::Usage(error.to_string()),
        error => CliError::Failed(format!("{attempt}: {error}")),
    }
}
