//! The caches that pools in object stores have on this machine: remembered in the list of pools ([`entry`]).

use std::path::{Path, PathBuf};

use snowmelt_dataset::property::parse_size;
use snowmelt_store::{CACHE_BYTES, CacheLocation, Location, check_cache};

use crate::app::App;
use crate::args::CacheArgs;
use crate::error::{CliError, Result};
use crate::pools::{KnownPool, entry};

/// Less holds too little to be of use.
const SIZE_MIN: u64 = 1 << 20;

/// Gives the pool at `location` the cache in the arguments, or the one that it already has on this machine. `attempt`
/// is the beginning of error messages.
///
/// # Errors
/// When the pool is not in an object store, or the directory or the size is not valid.
pub fn choose(app: &App<'_>, location: &mut Location, args: &CacheArgs, attempt: &str) -> Result<()> {
    let Location::Object(object) = location else {
        return match &args.cache {
            Some(_) => {
                Err(CliError::Failed(format!("{attempt}: only a pool in an object store has a cache")))
            }
            None => Ok(()),
        };
    };
    let Some(directory) = &args.cache else {
        object.cache = remembered(app, &object.url);
        return Ok(());
    };
    if directory == Path::new("none") {
        object.cache = None;
        return Ok(());
    }
    let directory = app.context.path(directory);
    // It is a word of a line.
    if directory.to_str().is_none_or(|text| text.contains(['\t', '\n'])) {
        let shown = directory.display();
        return Err(CliError::Failed(format!(
            "{attempt}: {shown}: the path of a cache must be UTF-8, without tabs and line breaks"
        )));
    }
    let max_bytes = args.cache_size.as_deref().map_or(Ok(CACHE_BYTES), |text| size(text, attempt))?;
    // If the disk of the cache is not mounted, the disk below its mountpoint must not be filled.
    if !directory.is_dir() {
        let shown = directory.display();
        return Err(CliError::Failed(format!(
            "{attempt}: the cache {shown} is not a directory: create it first"
        )));
    }
    object.cache = Some(CacheLocation { directory, max_bytes });
    Ok(())
}

/// How much a cache may take.
///
/// # Errors
/// When it is not a size, or too small.
pub fn size(text: &str, attempt: &str) -> Result<u64> {
    match parse_size(text) {
        Ok(bytes) if bytes >= SIZE_MIN => Ok(bytes),
        Ok(_) => {
            Err(CliError::Failed(format!("{attempt}: a cache of {text} is too small: it needs at least 1M")))
        }
        Err(error) => Err(CliError::Failed(format!("{attempt}: cache size '{text}': {error}"))),
    }
}

/// Tries whether the cache of a pool can be written, before anything depends on it.
///
/// # Errors
/// When it cannot.
pub fn check(location: &Location, guid: u64, attempt: &str) -> Result<()> {
    let Location::Object(object) = location else { return Ok(()) };
    let Some(cache) = &object.cache else { return Ok(()) };
    let attempt = format!("{attempt}: the cache");
    check_cache(cache, guid).map_err(|error| CliError::failed(attempt, &error))
}

/// Has this machine remember another size of a pool's cache.
///
/// # Errors
/// When the pool has none of its own here, or the list cannot be written.
pub fn resize(app: &App<'_>, pool: &str, max_bytes: u64, attempt: &str) -> Result<()> {
    let known = app.places.find(pool);
    let Some(KnownPool { label, location: Location::Object(mut object) }) = known else {
        return Err(CliError::Failed(format!("{attempt}: only a pool in an object store has a cache")));
    };
    let Some(cache) = &mut object.cache else {
        return Err(CliError::Failed(format!(
            "{attempt}: it has no cache of its own on this machine: 'snowmelt pool import --cache DIR {}' adds one",
            object.url.display()
        )));
    };
    cache.max_bytes = max_bytes;
    let registry = app.places.registry();
    let attempt = format!("cannot list the pool in {}", registry.path().display());
    registry
        .add(&entry::line(&Location::Object(object), &label))
        .map_err(|error| CliError::failed(attempt, &error))
}

/// The entry of an address in the list of pools.
fn remembered(app: &App<'_>, url: &Path) -> Option<CacheLocation> {
    let lines: Vec<PathBuf> = app.places.registry().read().ok()?;
    let known = lines.iter().find(|line| entry::is_of(line, url)).and_then(|line| entry::parse(line))?;
    match known.location {
        Location::Object(object) => object.cache,
        _ => None,
    }
}
