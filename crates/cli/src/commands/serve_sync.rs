//! `serve sync`.

use std::os::fd::{AsFd, OwnedFd};

use snowmelt_replicate::serve::serve_pool;

use crate::app::App;
use crate::args::ServeSyncArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;

/// Serves a pool to `sync` at the other side of standard input and output, until that is gone.
///
/// # Errors
/// When there is no such pool, or what is at the other side is no `sync`.
pub fn run(app: &mut App<'_>, args: &ServeSyncArgs) -> Result<Exit> {
    let pool = args.pool.as_str();
    let missing = |_: &str| {
        format!(
            "cannot open '{pool}': no such pool\nif it was exported, 'snowmelt pool import' brings it back"
        )
    };
    app.on_pool(pool, missing, |app, session| {
        let copy = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned();
        let failed = |error: std::io::Error| CliError::failed(format!("cannot serve '{pool}'"), &error);
        let input: OwnedFd = copy(app.context.stdin.as_fd()).map_err(failed)?;
        let output: OwnedFd = copy(app.context.out.get_ref().as_fd()).map_err(failed)?;
        serve_pool(
            &session.datasets,
            std::fs::File::from(input),
            std::fs::File::from(output),
            &app.context.cancelled,
        )
        .map_err(|error| CliError::failed(format!("cannot serve '{pool}'"), &error))?;
        Ok(Exit::Ok)
    })
}
