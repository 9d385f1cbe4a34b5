//! `pool clear`.

use crate::app::App;
use crate::args::PoolClearArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;

/// Clears the list of damaged blocks.
///
/// # Errors
/// When the pool is not there, or cannot be written.
pub fn run(app: &mut App<'_>, args: &PoolClearArgs) -> Result<Exit> {
    let name = &args.pool;
    let missing = |pool: &str| format!("cannot open '{pool}': no such pool");
    app.on_pool(name, missing, |app, session| {
        let pool = session.datasets.pool();
        let mirror = pool.store().mirror();
        if let Some(device) = &args.device {
            let place = mirror.and_then(|mirror| {
                let path = app.context.path(device);
                mirror.members().iter().position(|member| member.path == path)
            });
            match (mirror, place) {
                (Some(mirror), Some(place)) => mirror.clear_errors(Some(place)),
                _ if *device == pool.store().describe() => {}
                _ => {
                    return Err(CliError::Failed(format!(
                        "cannot clear errors for {device}: no such device in pool"
                    )));
                }
            }
        } else if let Some(mirror) = mirror {
            mirror.clear_errors(None);
        }
        pool.clear_damage()
            .map_err(|error| CliError::failed(format!("cannot clear errors for {name}"), &error))?;
        app.record(session);
        Ok(Exit::Ok)
    })
}
