//! `pool sync`.

use crate::app::App;
use crate::args::PoolSyncArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;

/// Writes all pending changes of the given pools, or of all, to disk.
///
/// # Errors
/// When a pool is not there or cannot be written; the others are synced all the same.
pub fn run(app: &mut App<'_>, args: &PoolSyncArgs) -> Result<Exit> {
    let pools = match args.pools.is_empty() {
        true => app.every_pool(),
        false => args.pools.clone(),
    };
    let missing = |pool: &str| format!("cannot open '{pool}': no such pool");
    let mut failed = false;
    for pool in &app.own_share(&pools) {
        let synced = app.on_pool(pool, missing, |_, session| {
            let commit = session.datasets.pool().commit();
            commit.map_err(|error| CliError::failed(format!("cannot sync '{pool}'"), &error))?;
            Ok(Exit::Ok)
        });
        match synced {
            Ok(exit) => failed |= exit != Exit::Ok,
            Err(CliError::Reported) => failed = true,
            Err(error @ CliError::Output(_)) => return Err(error),
            Err(error) => {
                app.context.complain(error);
                failed = true;
            }
        }
    }
    Ok(Exit::unless(failed))
}
