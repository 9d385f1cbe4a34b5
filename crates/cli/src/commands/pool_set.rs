//! `pool set`.

use super::pool_create::PoolProperties;
use crate::app::App;
use crate::args::PoolSetArgs;
use crate::error::Result;
use crate::exit::Exit;

/// Sets a property of a pool: its comment, its parity, whether it is trimmed, or one that allows only what is the case anyhow.
///
/// # Errors
/// When the pool or the property does not exist, or the pool cannot be written.
pub fn run(app: &mut App<'_>, args: &PoolSetArgs) -> Result<Exit> {
    let attempt = format!("cannot set property for '{}'", args.pool);
    let missing = |pool: &str| format!("cannot open '{pool}': no such pool");
    let own = PoolProperties::parse(&attempt, std::slice::from_ref(&args.property))?;
    app.on_pool(&args.pool, missing, |app, session| {
        own.set_comment(session.datasets.pool(), &attempt)?;
        own.set_parity(session.datasets.pool(), &attempt)?;
        own.set_autotrim(session.datasets.pool(), &attempt)?;
        app.record(session);
        Ok(Exit::Ok)
    })
}
