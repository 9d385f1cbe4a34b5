//! Missing pools: they were here when they were last open, and are not found now. Their disk is not connected, or
//! they were removed.

use std::path::Path;

use super::entry;
use super::locate::{KnownPool, Places};
use super::pins::{Pin, Pins};
use crate::context::Context;
use crate::error::Result;

/// The known pools that were in one of the searched places, and are in none of them now. `found` are the pools that
/// were found.
///
/// # Errors
/// When the list of known pools cannot be read.
pub fn pools(context: &Context, places: &Places, found: &[KnownPool]) -> Result<Vec<Pin>> {
    let listed = places.registry().read().unwrap_or_default();
    let is_found = |pin: &Pin| {
        found.iter().any(|pool| {
            pool.label.guid == pin.guid || pool.label.name == pin.name || pool.location.path() == pin.place
        })
    };
    // A pool that was opened once by its path is not looked for.
    let is_listed =
        |place: &Path| listed.iter().any(|line| entry::read_only_path(line).unwrap_or(line) == place);
    let is_expected = |pin: &Pin| places.is_usual(&pin.place) || is_listed(&pin.place);
    let mut missing: Vec<Pin> = Vec::new();
    for pin in Pins::of(context)?.all().iter().rev() {
        if is_expected(pin) && !is_found(pin) && missing.iter().all(|other| other.name != pin.name) {
            missing.push(pin.clone());
        }
    }
    Ok(missing)
}

/// The missing pool of this name.
///
/// # Errors
/// When the list of known pools cannot be read.
pub fn find(context: &Context, places: &Places, name: &str) -> Result<Option<Pin>> {
    Ok(pools(context, places, &places.all())?.into_iter().find(|pin| pin.name == name))
}
