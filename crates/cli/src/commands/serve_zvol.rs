//! `serve zvol`.

use std::io::Write;
use std::time::Duration;

use snowmelt_fuse::{VolumesMount, VolumesOptions};
use snowmelt_pool::Syncer;

use super::mount::free_directory;
use super::names;
use crate::app::{App, pool_of};
use crate::args::ServeZvolArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::pools::{Session, complain};

/// How often it is looked whether to end.
const TICK: Duration = Duration::from_millis(50);

/// Shows volumes as files of a directory until it is unmounted or interrupted.
///
/// # Errors
/// When a target does not exist, or the directory cannot be mounted on.
pub fn run(app: &mut App<'_>, args: &ServeZvolArgs) -> Result<Exit> {
    let first = &args.targets[0];
    let pool = pool_of(first);
    if let Some(other) = args.targets.iter().find(|target| pool_of(target) != pool) {
        return Err(CliError::Usage(format!("'{first}' and '{other}' are in different pools")));
    }
    let missing = |pool: &str| format!("cannot open '{first}': no such pool '{pool}'");
    app.on_pool(first, missing, |app, session| serve(app, session, args))
}

fn serve(app: &mut App<'_>, session: &Session, args: &ServeZvolArgs) -> Result<Exit> {
    let failed = |error: &(dyn std::error::Error + 'static)| CliError::failed("cannot show volumes", error);
    names::check_all(&session.datasets, args.targets.iter().map(String::as_str))?;
    let options = VolumesOptions {
        targets: args.targets.clone(),
        read_only: args.read_only,
        // Root mounts for everybody, with the kernel checking permissions; others need leave for that.
        allow_other: rustix::process::geteuid().is_root(),
    };
    let directory = free_directory(&app.context.path(&args.directory), false, "cannot show volumes")?;
    let mount = VolumesMount::begin(session.datasets.clone(), &directory, options, complain)
        .map_err(|error| failed(&error))?;
    session.serve_now();
    writeln!(app.context.out, "volumes are in {}", mount.dir().display())?;
    app.context.out.flush()?;
    // If the pool cannot be written to, each write returns the error.
    let _syncer = Syncer::start(session.datasets.pool().clone(), |_| {}).map_err(|error| failed(&error))?;
    let mut told = false;
    while !mount.is_over() {
        std::thread::sleep(TICK);
        if app.context.is_cancelled() && !told {
            told = true;
            if mount.unmount(false).is_err() {
                app.context
                    .complain(format!("{}: in use; it is removed when it is closed", mount.dir().display()));
                mount.unmount(true).map_err(|error| failed(&error))?;
            }
        }
    }
    mount.wait().map_err(|error| failed(&error))?;
    Ok(Exit::Ok)
}
