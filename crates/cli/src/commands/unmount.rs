//! `unmount`.
//!
//! Only the owner of a pool knows its mounts. The table of the system has only names, and another user can have a
//! pool of the same name. So the table is only used to find the pool of a directory, and the mounts that have lost
//! their server.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use snowmelt_dataset::Name;
use snowmelt_fuse::{Mount, MountError, Mounted};

use super::automount;
use super::mount::text;
use crate::app::{App, pool_of};
use crate::args::{Program, UnmountArgs};
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::pools::{Session, holder};
use crate::report;

/// How long others may take to let go of a mount before a message names them.
const TELL_AFTER: Duration = Duration::from_secs(5);
/// Maximum time until a mount that only this process had is no longer used.
const LET_GO_MAX: Duration = Duration::from_secs(1);
/// How often a wait looks whether it was interrupted.
const WAIT_STEP: Duration = Duration::from_millis(100);
/// So many namespaces are named.
const USERS_MAX: usize = 5;

/// Unmounts.
///
/// # Errors
/// When something is not mounted, or in use.
pub fn run(app: &mut App<'_>, args: &UnmountArgs) -> Result<Exit> {
    let table = snowmelt_fuse::mounted()
        .map_err(|error| CliError::failed("cannot read the list of mounts", &error))?;
    match (&args.target, args.all) {
        (Some(_), true) if is_zfs(app) && !app.is_served() => {
            Err(CliError::Usage("too many arguments".to_owned()))
        }
        (Some(pool), true) => app.on_dataset(pool, |app, session| all_of(app, session, args)),
        (None, _) => all(app, args, &table),
        (Some(target), false) if is_directory(app, target) => directory(app, args, target, table),
        (Some(target), false) => named(app, args, target, table),
    }
}

/// `zfs` knows directories by absolute paths alone.
fn is_zfs(app: &App<'_>) -> bool {
    Program::of(&app.context.args).0 != Program::Snowmelt
}

fn is_directory(app: &App<'_>, target: &str) -> bool {
    target.starts_with('/') || (target.starts_with('.') && !is_zfs(app))
}

/// A directory, which the table knows.
fn directory(app: &mut App<'_>, args: &UnmountArgs, target: &str, table: Vec<Mounted>) -> Result<Exit> {
    let dir = app.context.path(target);
    let dir = std::fs::canonicalize(&dir).unwrap_or(dir);
    // The latest mount of several at one place is the one that shows.
    let Some(found) = table.into_iter().rev().find(|mounted| mounted.dir == dir) else {
        return Err(CliError::Failed(format!("cannot unmount '{target}': not a mountpoint of snowmelt")));
    };
    if !found.is_alive() {
        return dead(&found.dir);
    }
    let attempt = attempt(&dir);
    let words = [OsString::from("--"), dir.clone().into()];
    in_owner(app, &found.name, args.force, &words, |app, session| {
        let mount = session.mounts.list().into_iter().rev().find(|mount| mount.dirs().contains(&dir));
        let mount = mount.ok_or_else(|| {
            // Another pool of the same name, or of another user.
            CliError::Failed(format!("{attempt}: it is not served by the process that has the pool open"))
        })?;
        if mount.dirs().len() > 1 {
            // It stays mounted in the others.
            let force = args.force && !is_zfs(app);
            mount.leave(&dir, force).map_err(|error| failed(&attempt, &error))?;
            return Ok(Exit::Ok);
        }
        automount::unmount_inside(app, session, &mount, args.force)?;
        end(app.context, &mount, args.force)
    })
}

fn failed(attempt: &str, error: &MountError) -> CliError {
    match error {
        MountError::Busy { .. } => CliError::Failed(format!("{attempt}: pool or dataset is busy")),
        other => CliError::failed(attempt, other),
    }
}

/// As in ZFS, what mount(8) mounted since its mountpoint is `legacy` is for umount(8).
fn refuse_legacy(app: &App<'_>, session: &Session, mount: &Mount, name: &str) -> Result<()> {
    if !is_zfs(app) || mount.vfs().is_snapshot() {
        return Ok(());
    }
    let attempt = format!("cannot unmount '{name}'");
    let catalog = session.datasets.catalog();
    let dataset = catalog.dataset_by_id(mount.vfs().dataset_id()).map_err(report::failed(&attempt))?;
    let (mountpoint, _) = text(&catalog, &dataset, "mountpoint").map_err(report::failed(&attempt))?;
    if mountpoint == "legacy" {
        return Err(CliError::Failed(format!(
            "{attempt}: legacy mountpoint\nuse umount(8) to unmount this filesystem"
        )));
    }
    Ok(())
}

/// A dataset or snapshot, which its pool knows.
fn named(app: &mut App<'_>, args: &UnmountArgs, target: &str, table: Vec<Mounted>) -> Result<Exit> {
    let missing = CliError::Failed(format!("cannot unmount '{target}': not currently mounted"));
    let is_strange = !app.is_served() && app.places.find(pool_of(target)).is_none();
    if is_strange && is_zfs(app) {
        return Err(missing);
    }
    if is_strange {
        let relative = app.context.path(target);
        return match table.iter().any(|mounted| mounted.dir == relative) {
            true => directory(app, args, &format!("./{target}"), table),
            false => Err(missing),
        };
    }
    let target = target.to_owned();
    app.on_dataset(&target.clone(), |app, session| {
        if let Some(mount) = find(session, &target) {
            refuse_legacy(app, session, &mount, &target)?;
            automount::unmount_inside(app, session, &mount, args.force)?;
            return end(app.context, &mount, args.force);
        }
        // The process that served it has died, so that we own the pool.
        match table.iter().rev().find(|mounted| mounted.name == target && !mounted.is_alive()) {
            Some(mounted) => dead(&mounted.dir),
            None => Err(missing),
        }
    })
}

/// A dataset may have been renamed since it was mounted.
fn find(session: &Session, name: &str) -> Option<Arc<Mount>> {
    let dataset = Name::parse_dataset(name).ok().and_then(|name| {
        let dataset = session.datasets.catalog().dataset(name.dataset()).ok()?;
        session.mounts.head(dataset.id)
    });
    dataset.or_else(|| session.mounts.list().into_iter().rev().find(|mount| mount.name() == name))
}

/// Everything of all pools that we can reach, and all mounts that have lost their server.
fn all(app: &mut App<'_>, args: &UnmountArgs, table: &[Mounted]) -> Result<Exit> {
    let mut failed = false;
    let (alive, mut lost): (Vec<_>, Vec<_>) = table.iter().rev().partition(|mounted| mounted.is_alive());
    // Nothing inside a lost mount can be accessed. It is unmounted with it.
    lost.sort_by_key(|mounted| mounted.dir.components().count());
    let mut gone: Vec<&Path> = Vec::new();
    for mounted in lost {
        if gone.iter().any(|outer| mounted.dir.starts_with(outer)) {
            continue;
        }
        match dead(&mounted.dir) {
            Ok(_) => gone.push(&mounted.dir),
            Err(error) => {
                app.context.complain(error);
                failed = true;
            }
        }
    }
    let mut pools: Vec<&str> = Vec::new();
    for mounted in alive {
        if !pools.contains(&pool_of(&mounted.name)) {
            pools.push(pool_of(&mounted.name));
        }
    }
    for pool in pools {
        if app.places.find(pool).is_none() {
            continue;
        }
        let words = [OsString::from("-a"), "--".into(), pool.into()];
        match in_owner(app, pool, args.force, &words, |app, session| all_of(app, session, args)) {
            Ok(exit) => failed |= exit.code() != 0,
            Err(error) => {
                app.context.complain(error);
                failed = true;
            }
        }
    }
    Ok(Exit::unless(failed))
}

/// Everything of the pool of this name.
///
/// # Errors
/// When the pool cannot be opened. What cannot be unmounted is reported.
pub(super) fn pool(app: &mut App<'_>, name: &str, force: bool) -> Result<Exit> {
    let args = UnmountArgs { all: true, force, unload_key: false, target: None };
    let words = [OsString::from("-a"), "--".into(), name.into()];
    in_owner(app, name, force, &words, |app, session| all_of(app, session, &args))
}

/// Unmounts everything of one pool, inner mounts first. Failures are reported, and the others are still unmounted.
fn all_of(app: &mut App<'_>, session: &Session, args: &UnmountArgs) -> Result<Exit> {
    let mut failed = false;
    for mount in session.mounts.list().into_iter().rev() {
        if let Err(error) = end(app.context, &mount, args.force) {
            app.context.complain(error);
            failed = true;
        }
    }
    Ok(Exit::unless(failed))
}

/// Has the owner of the pool that `name` is of do `unmount` with `words`.
fn in_owner(
    app: &mut App<'_>,
    name: &str,
    force: bool,
    words: &[OsString],
    work: impl FnOnce(&mut App<'_>, &Session) -> Result<Exit>,
) -> Result<Exit> {
    let shim = is_zfs(app).then_some("zfs");
    let said = shim.into_iter().chain(["unmount"]).chain(force.then_some("-f")).map(OsString::from);
    let given = std::mem::replace(&mut app.context.args, said.chain(words.iter().cloned()).collect());
    let missing = |pool: &str| format!("cannot unmount '{name}': its pool '{pool}' was not found");
    let done = app.on_pool(name, missing, work);
    app.context.args = given;
    done
}

fn attempt(dir: &Path) -> String {
    format!("cannot unmount '{}'", dir.display())
}

/// Unmounts it for an action that is possible although others have it mounted. Returns whether no one has.
///
/// # Errors
/// When it is in use here, or could not be written to the end.
pub(super) fn begin_end(context: &Context, mount: &Mount, force: bool) -> Result<bool> {
    let attempt = attempt(&mount.dir());
    unmount_it(context, mount, force)?;
    match mount.is_forced() {
        true => Ok(true),
        false => mount.wait_for(LET_GO_MAX).map_err(|error| failed(&attempt, &error)),
    }
}

/// Like ZFS on Linux, `zfs` and `zpool` do not unmount a filesystem in use.
fn unmount_it(context: &Context, mount: &Mount, force: bool) -> Result<()> {
    let force = force && Program::of(&context.args).0 == Program::Snowmelt;
    let attempt = attempt(&mount.dir());
    mount.unmount(force).map_err(|error| failed(&attempt, &error))
}

/// Unmounts a filesystem that this process has mounted, and waits until all data is in the pool. If other namespaces
/// have the mount too, it ends when they release it: after a while, a message names them. The wait ends when the
/// command is interrupted, or another command unmounts it by force.
///
/// # Errors
/// When it is in use, or could not be written to the end; when the wait was interrupted.
pub(super) fn end(context: &mut Context, mount: &Mount, force: bool) -> Result<Exit> {
    let dir = mount.dir();
    let attempt = attempt(&dir);
    let device = mount.device();
    unmount_it(context, mount, force)?;
    let (begun, mut is_told) = (Instant::now(), false);
    while !mount.is_forced() && !mount.wait_for(WAIT_STEP).map_err(|error| failed(&attempt, &error))? {
        if context.is_cancelled() {
            return Err(CliError::Failed(format!(
                "{attempt}: interrupted: it is unmounted here, but other processes still use it"
            )));
        }
        if !is_told && begun.elapsed() >= TELL_AFTER {
            is_told = true;
            let users = device.map(users).unwrap_or_default();
            let users = if users.is_empty() { "other processes".to_owned() } else { users.join(", ") };
            context.complain(format_args!("'{}' is still mounted elsewhere, by {users}", dir.display()));
        }
    }
    Ok(Exit::Ok)
}

/// One process of each mount namespace that has a filesystem with this device number: `process 42 (bash)`.
fn users(device: u64) -> Vec<String> {
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let mut namespaces = BTreeSet::new();
    let mut users = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(namespace) = std::fs::read_link(entry.path().join("ns/mnt")) else { continue };
        if !namespaces.insert(namespace) {
            continue;
        }
        let table = std::fs::read_to_string(entry.path().join("mountinfo")).unwrap_or_default();
        if table.lines().any(|line| line.split(' ').nth(2) == Some(&number)) {
            let words = holder::words(pid).map(|words| format!(" ({words})"));
            users.push(format!("process {pid}{}", words.unwrap_or_default()));
        }
    }
    users.truncate(USERS_MAX);
    users
}

fn dead(dir: &Path) -> Result<Exit> {
    unmount_dead(dir).map_err(|error| CliError::failed(attempt(dir), &error))?;
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
