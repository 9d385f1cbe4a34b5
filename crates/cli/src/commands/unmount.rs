//! `unmount`.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use snowmelt_fuse::{MountError, Mounted};

use super::mount::pool_of_mount;
use crate::app::App;
use crate::args::UnmountArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::pools::Session;

/// Unmounts.
///
/// # Errors
/// When something is not mounted, or in use.
pub fn run(app: &mut App<'_>, args: &UnmountArgs) -> Result<Exit> {
    let mounted =
        snowmelt_fuse::mounted().map_err(|error| CliError::failed("cannot tell what is mounted", &error))?;
    let Some(target) = &args.target else { return unmount_all(app, args, mounted) };
    // The latest mount of several at one place is the one that shows.
    let found = if target.contains('/') && target.starts_with(['/', '.']) {
        let directory = app.context.path(target);
        let directory = std::fs::canonicalize(&directory).unwrap_or(directory);
        mounted.into_iter().rev().find(|mounted| mounted.dir == directory)
    } else {
        let directory = app.context.path(target);
        mounted.into_iter().rev().find(|mounted| mounted.name == *target || mounted.dir == directory)
    };
    let Some(found) = found else {
        let what = if target.starts_with('/') { "not a mountpoint of ours" } else { "not currently mounted" };
        return Err(CliError::Failed(format!("cannot unmount '{target}': {what}")));
    };
    unmount_one(app, args, found)
}

/// Those inside others first. Failures are told, and the others unmounted all the same.
fn unmount_all(app: &mut App<'_>, args: &UnmountArgs, mounted: Vec<Mounted>) -> Result<Exit> {
    let mut failed = false;
    for mounted in mounted.into_iter().rev() {
        // A command that works for another process reaches the pool of its own only.
        match unmount_one(app, args, mounted) {
            Ok(exit) => failed |= exit.code() != 0,
            Err(error) => {
                app.context.complain(error);
                failed = true;
            }
        }
    }
    Ok(Exit::unless(failed))
}

fn unmount_one(app: &mut App<'_>, args: &UnmountArgs, mounted: Mounted) -> Result<Exit> {
    let attempt = format!("cannot unmount '{}'", mounted.dir.display());
    if matches!(rustix::fs::stat(&mounted.dir), Err(Errno::NOTCONN)) {
        unmount_dead(&mounted.dir).map_err(|error| CliError::failed(&attempt, &error))?;
        return Ok(Exit::Ok);
    }
    let Some(pool) = pool_of_mount(&mounted.name) else {
        return Err(CliError::Failed(format!("{attempt}: '{}' is no dataset", mounted.name)));
    };
    // Said anew, since the owner is to unmount this one, whatever we were asked for.
    let words = app.context.args.clone();
    app.context.args = ["unmount"].into_iter().chain(args.force.then_some("-f")).map(Into::into).collect();
    app.context.args.extend(["--".into(), mounted.dir.clone().into()]);
    let missing = |pool: &str| format!("{attempt}: pool '{pool}', which it is of, is not to be found");
    let done = app.on_pool(pool, missing, |_, session| in_owner(session, args, &mounted, &attempt));
    app.context.args = words;
    done
}

/// Unmounts what this process has mounted, and waits until everything written is in the pool.
fn in_owner(session: &Session, args: &UnmountArgs, mounted: &Mounted, attempt: &str) -> Result<Exit> {
    let mounts = session.mounts.list();
    let Some(mount) = mounts.iter().rev().find(|mount| mount.dir() == mounted.dir) else {
        // Another pool of the same name, or of another user.
        return Err(CliError::Failed(format!(
            "{attempt}: it is not served by the process that has the pool open"
        )));
    };
    let unmounted = mount.unmount(args.force).and_then(|()| if args.force { Ok(()) } else { mount.wait() });
    unmounted.map_err(|error| match error {
        MountError::Busy { .. } => CliError::Failed(format!("{attempt}: pool or dataset is busy")),
        other => CliError::failed(attempt, &other),
    })?;
    Ok(Exit::Ok)
}

/// Takes away a mount whose process has died.
pub fn unmount_dead(directory: &Path) -> io::Result<()> {
    match unmount(directory, UnmountFlags::DETACH) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => {
            let mut command = Command::new("fusermount3");
            let output = command.arg("-uz").arg("--").arg(directory).stdin(Stdio::null()).output()?;
            match output.status.success() {
                true => Ok(()),
                false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
            }
        }
        Err(error) => Err(error.into()),
    }
}
