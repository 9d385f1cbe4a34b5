//! `pool set`.

use super::pool_create::{pool_comment, set_comment};
use crate::app::App;
use crate::args::PoolSetArgs;
use crate::error::Result;
use crate::exit::Exit;

/// Sets a property of a pool: its comment, or one that allows only what is the case anyhow.
///
/// # Errors
/// When the pool or the property does not exist, or the pool cannot be written.
pub fn run(app: &mut App<'_>, args: &PoolSetArgs) -> Result<Exit> {
    let attempt = format!("cannot set property for '{}'", args.pool);
    let missing = |pool: &str| format!("cannot open '{pool}': no such pool");
    let comment = pool_comment(&attempt, std::slice::from_ref(&args.property))?;
    app.on_pool(&args.pool, missing, |app, session| {
        if let Some(comment) = &comment {
            set_comment(&session.datasets, comment, &attempt)?;
        }
        app.record(session);
        Ok(Exit::Ok)
    })
}
