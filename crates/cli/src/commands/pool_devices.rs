//! `pool attach`, `detach`, `replace`, `online` and `offline`: the members of a mirror come and go.

use std::path::{Path, PathBuf};

use snowmelt_pool::Pool;
use snowmelt_store::{CreateOptions, Location, MemberStatus, Mirror, PoolLabel};

use super::pool_create::{file_size, place, remember, warn_of_readers};
use super::pool_resilver;
use crate::app::App;
use crate::args::{PoolAttachArgs, PoolDetachArgs, PoolOfflineArgs, PoolOnlineArgs, PoolReplaceArgs};
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::pools::{Session, acquire_alone};

/// The message of zpool for a pool on one device.
const NO_MIRROR: &str = "only applicable to mirror and replacing vdevs";

fn missing(pool: &str) -> String {
    format!("cannot open '{pool}': no such pool")
}

fn mirror_of<'a>(session: &'a Session, attempt: &str) -> Result<&'a dyn Mirror> {
    let mirror = session.datasets.pool().store().mirror();
    mirror.ok_or_else(|| CliError::Failed(format!("{attempt}: {NO_MIRROR}")))
}

/// The member that is called so: by path, as given or resolved, or by guid.
fn member(app: &App<'_>, mirror: &dyn Mirror, device: &Path, attempt: &str) -> Result<MemberStatus> {
    let path = app.context.path(device);
    let real = snowmelt_store::canonical(&path);
    let number = device.to_str().and_then(|text| text.parse::<u64>().ok());
    let is_it =
        |member: &MemberStatus| member.path == path || member.path == real || Some(member.guid) == number;
    // Of two at one place, the one that is not there any more was meant.
    let mut found: Vec<_> = mirror.members().into_iter().filter(is_it).collect();
    found.sort_by_key(|member| member.state == snowmelt_store::MemberState::Online);
    let found = found.into_iter().next();
    found.ok_or_else(|| CliError::Failed(format!("{attempt}: no such device in pool")))
}

/// Adds a member.
///
/// # Errors
/// When the device is not of the pool, or the new one cannot be used.
pub fn attach(app: &mut App<'_>, args: &PoolAttachArgs) -> Result<Exit> {
    let attempt = format!("cannot attach {} to {}", args.new_device.display(), args.device.display());
    let size = file_size(args.new.size.as_deref(), &attempt)?;
    if !app.is_served() {
        make_mirror(app, &args.pool, &args.device, &attempt)?;
    }
    let exit = app.on_pool(&args.pool, missing, |app, session| {
        let mirror = mirror_of(session, &attempt)?;
        member(app, mirror, &args.device, &attempt)?;
        let (location, size) = place(app.context.path(&args.new_device), size, &attempt)?;
        add(app, session, mirror, New { location, size, force: args.new.force, replaces: None }, &attempt)
    })?;
    bring_up(app, &args.pool, args.new.wait, exit)
}

/// Puts one device in the place of another.
///
/// # Errors
/// As [`attach`].
pub fn replace(app: &mut App<'_>, args: &PoolReplaceArgs) -> Result<Exit> {
    let new = args.new_device.as_ref().unwrap_or(&args.device);
    let attempt = format!("cannot replace {} with {}", args.device.display(), new.display());
    let size = file_size(args.new.size.as_deref(), &attempt)?;
    if !app.is_served() {
        make_mirror(app, &args.pool, &args.device, &attempt)?;
    }
    let exit = app.on_pool(&args.pool, missing, |app, session| {
        let mirror = mirror_of(session, &attempt)?;
        let old = member(app, mirror, &args.device, &attempt)?;
        let (location, size) = place(app.context.path(new), size, &attempt)?;
        add(
            app,
            session,
            mirror,
            New { location, size, force: args.new.force, replaces: Some(old.guid) },
            &attempt,
        )
    })?;
    bring_up(app, &args.pool, args.new.wait, exit)
}

/// A pool on one device becomes a mirror with one member. For this no other process may own it.
fn make_mirror(app: &mut App<'_>, pool: &str, device: &Path, attempt: &str) -> Result<()> {
    let Some(known) = app.places.find(pool) else { return Err(CliError::Failed(missing(pool))) };
    if !snowmelt_store::mirror_paths(&known.location).is_empty() {
        return Ok(());
    }
    let real = snowmelt_store::canonical;
    if real(&app.context.path(device)) != real(known.location.path()) {
        return Err(CliError::Failed(format!("{attempt}: no such device in pool")));
    }
    acquire_alone(app.context, &known.location, attempt)?.close()?;
    snowmelt_store::attach_to_single(&known.location).map_err(|error| CliError::failed(attempt, &error))
}

/// A member to be made.
struct New {
    location: Location,
    size: Option<u64>,
    force: bool,
    replaces: Option<u64>,
}

fn add(app: &mut App<'_>, session: &Session, mirror: &dyn Mirror, new: New, attempt: &str) -> Result<Exit> {
    let label = PoolLabel { name: session.name().to_owned(), guid: mirror.pool_guid() };
    if let Location::Directory(path) = &new.location {
        snowmelt_store::check_way(path).map_err(|error| CliError::failed(attempt, &error))?;
        std::fs::create_dir_all(path).map_err(|error| CliError::failed(attempt, &error))?;
    }
    let options = CreateOptions { label, size: new.size, force: new.force };
    let attached = mirror.attach_at(&new.location, &options, new.replaces);
    attached.map_err(|error| CliError::failed(attempt, &error))?;
    warn_of_readers(app, std::slice::from_ref(&new.location));
    remember(app, new.location.path())?;
    app.record(session);
    Ok(Exit::Ok)
}

/// Starts the resilver of the new member. The caller does this, not the pool's owner.
fn bring_up(app: &mut App<'_>, pool: &str, wait: bool, exit: Exit) -> Result<Exit> {
    if exit.code() != 0 || app.is_served() {
        return Ok(exit);
    }
    pool_resilver::start(app, pool, wait)
}

/// Takes a member away.
///
/// # Errors
/// When there is no member of this name, or it is the last one with all data.
pub fn detach(app: &mut App<'_>, args: &PoolDetachArgs) -> Result<Exit> {
    let attempt = format!("cannot detach {}", args.device.display());
    app.on_pool(&args.pool, missing, |app, session| {
        let mirror = mirror_of(session, &attempt)?;
        let gone = member(app, mirror, &args.device, &attempt)?;
        if mirror.members().len() < 2 {
            return Err(CliError::Failed(format!("{attempt}: {NO_MIRROR}")));
        }
        mirror.detach(gone.guid).map_err(|error| CliError::failed(&attempt, &error))?;
        app.places.registry().remove(&gone.path).map_err(|error| CliError::failed(&attempt, &error))?;
        app.record(session);
        Ok(Exit::Ok)
    })
}

/// Takes members offline.
///
/// # Errors
/// As [`detach`].
pub fn offline(app: &mut App<'_>, args: &PoolOfflineArgs) -> Result<Exit> {
    each(app, &args.pool, &args.devices, "offline", |_, mirror, member| mirror.offline(member.guid))
}

/// Brings members back.
///
/// # Errors
/// When one is not there.
pub fn online(app: &mut App<'_>, args: &PoolOnlineArgs) -> Result<Exit> {
    let exit = each(app, &args.pool, &args.devices, "online", |pool, mirror, member| {
        mirror.online_again(member.guid)?;
        pool.known_segments().map_or(Ok(()), |known| mirror.forget_unknown(&known))
    })?;
    bring_up(app, &args.pool, false, exit)
}

fn each(
    app: &mut App<'_>,
    pool: &str,
    devices: &[PathBuf],
    verb: &str,
    change: impl Fn(&Pool, &dyn Mirror, &MemberStatus) -> Result<(), snowmelt_store::StoreError>,
) -> Result<Exit> {
    app.on_pool(pool, missing, |app, session| {
        let mut failed = false;
        for device in devices {
            let attempt = format!("cannot {verb} {}", device.display());
            let changed = mirror_of(session, &attempt).and_then(|mirror| {
                let member = member(app, mirror, device, &attempt)?;
                change(session.datasets.pool(), mirror, &member)
                    .map_err(|error| CliError::failed(&attempt, &error))
            });
            if let Err(error) = changed {
                app.context.complain(error);
                failed = true;
            }
        }
        if !failed {
            app.record(session);
        }
        Ok(Exit::unless(failed))
    })
}
