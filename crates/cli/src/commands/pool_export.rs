//! `pool export`.

use super::automount;
use super::pool_create::{forget_all, paths_of};
use crate::app::App;
use crate::args::PoolExportArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::pools::{KnownPool, acquire_alone, missing};

/// Forgets where pools are.
///
/// # Errors
/// When one is not there, or in use.
pub fn run(app: &mut App<'_>, args: &PoolExportArgs) -> Result<Exit> {
    let mut missing = Vec::new();
    let mut pools = if args.all { app.places.all() } else { Vec::new() };
    for name in &args.pools {
        if let Some(pool) = app.places.find(name) {
            pools.push(pool);
        } else if let Some(pin) = missing::find(app.context, &app.places, name)? {
            missing.push(pin);
        } else {
            return Err(CliError::Failed(format!("cannot open '{name}': no such pool")));
        }
    }
    for pin in missing {
        forget_all(app, &[pin.place], &format!("cannot export '{}'", pin.name))?;
    }
    let mut failed = false;
    for pool in pools {
        if let Err(error) = export(app, &pool, args.force) {
            app.context.complain(error);
            failed = true;
        }
    }
    Ok(Exit::unless(failed))
}

fn export(app: &mut App<'_>, pool: &KnownPool, force: bool) -> Result<()> {
    let attempt = format!("cannot export '{}'", pool.label.name);
    automount::release_pool(app, pool, force, &attempt)?;
    // One that is only read here has its owner elsewhere.
    if !pool.location.is_read_only() {
        let owner = acquire_alone(app.context, &pool.location, &attempt)?;
        app.record(owner.session());
        owner.close()?;
    }
    let paths = paths_of(&pool.location);
    forget_all(app, &paths, &attempt)?;
    if let Some(path) = paths.iter().find(|path| app.places.is_usual(path)) {
        app.context.complain(format_args!(
            "note: {} is searched for pools, so the pool is still found until it is moved",
            path.display()
        ));
    }
    Ok(())
}
