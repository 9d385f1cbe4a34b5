//! Rows of all pools that a listing is about.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::app::{App, pool_of};
use crate::error::{CliError, Result};
use crate::listing::{Listing, Row, sort};
use crate::pools::KnownPool;
use crate::request::{Reply, Request};

/// Rows of a listing in their order. Names that are none are complained about.
pub struct Gathered {
    pub rows: Vec<Row>,
    pub failed: bool,
}

/// Asks every pool that the request names, or all.
///
/// # Errors
/// When output fails.
pub fn rows(app: &mut App<'_>, request: Listing) -> Result<Gathered> {
    let mut gathered = Gathered { rows: Vec::new(), failed: false };
    let mut request = request;
    let named = std::mem::take(&mut request.selection.names);
    let is_everything = named.is_empty();
    for name in named {
        match at_path(app, name) {
            Ok(name) => request.selection.names.push(name),
            Err(error) => {
                app.context.complain(error);
                gathered.failed = true;
            }
        }
    }
    if request.selection.names.is_empty() && !is_everything {
        return Ok(gathered);
    }
    let pools = if request.selection.names.is_empty() {
        app.places.all()
    } else {
        named_pools(app, &request, &mut gathered)
    };
    let sort_keys = request.sort.clone();
    let query = Request::Listing(request);
    for pool in pools {
        match app.query(&pool, &query) {
            Ok(Reply::Listing(rows)) => {
                gathered.failed |= !rows.errors.is_empty();
                gathered.rows.extend(rows.rows);
                for error in rows.errors {
                    app.context.complain(error);
                }
            }
            Ok(_) => {
                return Err(CliError::Failed("the pool's owner answered a different request".to_owned()));
            }
            Err(error @ CliError::Output(_)) => return Err(error),
            Err(error) => {
                app.context.complain(error);
                gathered.failed = true;
            }
        }
    }
    sort(&mut gathered.rows, &sort_keys);
    Ok(gathered)
}

/// A path as an argument means the filesystem that is mounted there (`zfs_path_to_zhandle`).
fn at_path(app: &App<'_>, word: String) -> Result<String> {
    if !(word.starts_with('/') || word.starts_with("./")) {
        return Ok(word);
    }
    let attempt = format!("cannot open '{word}'");
    let failed = |error: std::io::Error| CliError::failed(&attempt, &error);
    let path = app.context.path(&word).canonicalize().map_err(failed)?;
    let mounted = snowmelt_fuse::mounted().map_err(failed)?;
    let on = mounted.into_iter().filter(|mounted| path.starts_with(&mounted.dir));
    match on.max_by_key(|mounted| mounted.dir.components().count()) {
        Some(mounted) if is_same_filesystem(&path, &mounted.dir) => Ok(mounted.name),
        _ => Err(CliError::Failed(format!("{attempt}: not a ZFS filesystem"))),
    }
}

/// Whether nothing else is mounted between a directory and what is below it.
fn is_same_filesystem(path: &Path, above: &Path) -> bool {
    let device = |path: &Path| path.symlink_metadata().ok().map(|metadata| metadata.dev());
    device(path).is_some() && device(path) == device(above)
}

fn named_pools(app: &mut App<'_>, request: &Listing, gathered: &mut Gathered) -> Vec<KnownPool> {
    let mut pools: Vec<KnownPool> = Vec::new();
    for name in &request.selection.names {
        let pool = pool_of(name);
        if pools.iter().any(|known| known.label.name == pool) {
            continue;
        }
        match app.places.find(pool) {
            Some(known) => pools.push(known),
            None => {
                app.context.complain(format_args!("cannot open '{name}': dataset does not exist"));
                gathered.failed = true;
            }
        }
    }
    pools
}
