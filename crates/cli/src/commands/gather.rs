//! Rows of all pools that a listing is about.

use crate::app::{App, pool_of};
use crate::error::{CliError, Result};
use crate::listing::{Request, Row, sort};
use crate::pools::KnownPool;
use crate::rows::{Answer, Query};

/// Rows of a listing in their order. Names that are none are complained about.
pub struct Gathered {
    pub rows: Vec<Row>,
    pub failed: bool,
}

/// Asks every pool that the request names, or all.
///
/// # Errors
/// When output fails.
pub fn rows(app: &mut App<'_>, request: Request) -> Result<Gathered> {
    let mut gathered = Gathered { rows: Vec::new(), failed: false };
    let pools = if request.selection.names.is_empty() {
        app.places.all()
    } else {
        named_pools(app, &request, &mut gathered)
    };
    let sort_keys = request.sort.clone();
    let query = Query::Listing(request);
    for pool in pools {
        match app.query(&pool, &query) {
            Ok(Answer::Listing(rows)) => {
                gathered.failed |= !rows.errors.is_empty();
                gathered.rows.extend(rows.rows);
                for error in rows.errors {
                    app.context.complain(error);
                }
            }
            Ok(_) => return Err(CliError::Failed("the owner's answer is to another question".to_owned())),
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

fn named_pools(app: &mut App<'_>, request: &Request, gathered: &mut Gathered) -> Vec<KnownPool> {
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
