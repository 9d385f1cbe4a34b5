//! `pool destroy`.

use snowmelt_store::{Access, StoreError};

use super::automount;
use super::pool_create::{forget_all, paths_of};
use crate::app::App;
use crate::args::PoolDestroyArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::pools::keys::{self, Told};
use crate::pools::pins::Pins;
use crate::pools::{holder, missing, waiting};

/// Destroys a pool.
///
/// # Errors
/// When there is none, or it is in use.
pub fn run(app: &mut App<'_>, args: &PoolDestroyArgs) -> Result<Exit> {
    let name = &args.pool;
    let Some(pool) = app.places.find(name) else {
        let failed = format!("cannot open '{name}': no such pool");
        return Err(CliError::Failed(match missing::find(app.context, &app.places, name)? {
            Some(_) => {
                format!("{failed}\nif the pool no longer exists, 'snowmelt pool export {name}' forgets it")
            }
            None => failed,
        }));
    };
    let attempt = format!("cannot destroy '{name}'");
    automount::release_pool(app, &pool, args.force, &attempt)?;
    let paths = paths_of(&pool.location);
    if pool.location.is_read_only() {
        // As in ZFS, nothing of what was imported for reading is written: it is gone here, and can be imported again.
        return forget_all(app, &paths, &attempt).map(|()| Exit::Ok);
    }
    // Not opened as a pool: one that is damaged can be destroyed too.
    let store = match waiting::open(app.context, &pool.location, Access::ReadWrite)? {
        Ok(store) => store,
        Err(StoreError::Locked { .. }) => {
            return Err(CliError::Failed(holder::busy(&attempt, &pool.location)));
        }
        Err(error) => return Err(CliError::failed(&attempt, &error)),
    };
    // A record of a key that cannot be read is one all the same.
    let is_encrypted = keys::record(&*store, &pool.location).map_or(true, |record| record.is_some());
    Pins::of(app.context)?.verify_unopened(&pool, is_encrypted)?;
    store.destroy().map_err(|error| CliError::failed(&attempt, &error))?;
    forget_all(app, &paths, &attempt)?;
    Told::of(app.context, pool.label.guid).set(None)?;
    Ok(Exit::Ok)
}
