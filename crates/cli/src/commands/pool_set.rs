//! `pool set`.

use super::pool_create::PoolProperties;
use crate::app::App;
use crate::args::PoolSetArgs;
use crate::cache;
use crate::error::Result;
use crate::exit::Exit;

/// Sets a property of a pool, or enables a feature. A property that has only one possible value is accepted with it.
///
/// # Errors
/// When the pool or the property does not exist, or the pool cannot be written.
pub fn run(app: &mut App<'_>, args: &PoolSetArgs) -> Result<Exit> {
    let attempt = format!("cannot set property for '{}'", args.pool);
    let missing = |pool: &str| format!("cannot open '{pool}': no such pool");
    if let Some(text) = args.property.strip_prefix("cachesize=") {
        return set_cache_size(app, args, cache::size(text, &attempt)?, &attempt);
    }
    let own = PoolProperties::parse(&attempt, std::slice::from_ref(&args.property))?;
    app.on_pool(&args.pool, missing, |app, session| {
        own.set_comment(session.datasets.pool(), &attempt)?;
        own.set_parity(session.datasets.pool(), &attempt)?;
        own.set_autotrim(session.datasets.pool(), &attempt)?;
        own.set_deadman(session.datasets.pool(), &attempt)?;
        own.enable_features(session.datasets.pool(), &attempt)?;
        app.record(session);
        Ok(Exit::Ok)
    })
}

/// How much the pool's cache takes on this machine: in no store, so it is no matter for the pool's history.
fn set_cache_size(app: &mut App<'_>, args: &PoolSetArgs, bytes: u64, attempt: &str) -> Result<Exit> {
    cache::resize(app, &args.pool, bytes, attempt)?;
    let missing = |pool: &str| format!("cannot open '{pool}': no such pool");
    app.on_pool(&args.pool, missing, |_, session| {
        session.datasets.pool().store().set_cache_size(bytes);
        Ok(Exit::Ok)
    })
}
