//! Automatic mounting: the mounts and unmounts of `zfs` and `zpool` (docs/mount.md, "Mounting as ZFS does").
//!
//! Only the owner of a pool mounts. An owner that stays in the background, or has mounts already, does it at once.
//! Any other owner ends with its command. So the command is executed first, and then a background process mounts.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use snowmelt_dataset::property::Source;
use snowmelt_dataset::{Catalog, Dataset, DatasetError, DatasetId, Kind};
use snowmelt_fuse::Mount;
use snowmelt_store::{Access, StoreError};

use super::mount::{free_place, mount_at, place, text};
use super::{background, unmount};
use crate::app::{App, pool_of};
use crate::args::{MountArgs, Program};
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::pools::{AUTOMOUNT_VARIABLE, KnownPool, Session, waiting};
use crate::report;

/// The variable that turns this on or off.
pub const VARIABLE: &str = AUTOMOUNT_VARIABLE;
/// How long the owner of a pool may take to end once nothing is mounted, and between two looks.
const END_MAX: Duration = Duration::from_secs(30);
const END_STEP: Duration = Duration::from_millis(10);
/// How long others may still use a filesystem after its unmount.
const RELEASE_MAX: Duration = Duration::from_secs(2);

/// Whether this command mounts automatically: commands of `zfs` and `zpool` that root runs, unless the variable has
/// another setting.
pub(super) fn is_on(app: &App<'_>) -> bool {
    if Program::of(&app.context.args).0 == Program::Snowmelt {
        return false;
    }
    match app.context.env(VARIABLE).and_then(|value| value.to_str()) {
        Some("on") => true,
        Some("off") => false,
        _ => rustix::process::geteuid().is_root() && std::path::Path::new("/dev/fuse").exists(),
    }
}

/// Whether the owner of the pool stays as long as anything is mounted.
pub(super) fn stays(session: &Session) -> bool {
    session.hosts.load(Ordering::Relaxed) || !session.mounts.is_empty()
}

/// Filesystems that were unmounted for a change of their names or properties.
#[derive(Default)]
pub(super) struct Unmounted {
    were: Vec<Was>,
}

/// How a filesystem was mounted.
struct Was {
    id: DatasetId,
    dir: PathBuf,
    /// The mount, if others still have it: in a bind mount, or in another mount namespace.
    held: Option<Arc<Mount>>,
    /// It was mounted where a directory was named, since its mountpoint is `legacy` or `none`.
    is_legacy: bool,
    /// Whether the directory comes from an inherited mountpoint, so that it is removed when it is not needed.
    is_inherited: bool,
}

impl Was {
    fn of(catalog: &Catalog, mount: &Mount) -> Result<Self> {
        let dir = mount.dir();
        let attempt = format!("cannot unmount '{}'", dir.display());
        let dataset = catalog.dataset_by_id(mount.vfs().dataset_id()).map_err(report::failed(&attempt))?;
        let (mountpoint, source) = text(catalog, &dataset, "mountpoint").map_err(report::failed(&attempt))?;
        let is_at_place = Path::new(&mountpoint) == dir;
        Ok(Self {
            id: dataset.id,
            dir,
            held: None,
            is_legacy: !mountpoint.starts_with('/'),
            is_inherited: is_at_place && matches!(source, Source::Default | Source::Inherited(_)),
        })
    }
}

impl Unmounted {
    /// Unmounts all mounts of `datasets`, inner ones first. If one is in use, everything is mounted again.
    ///
    /// # Errors
    /// `cannot unmount '/tank/a': pool or dataset is busy`.
    pub(super) fn of(
        app: &mut App<'_>,
        session: &Session,
        datasets: &[Dataset],
        force: bool,
    ) -> Result<Self> {
        let mut unmounted = Self::default();
        if !is_on(app) {
            return Ok(unmounted);
        }
        let ids: HashSet<DatasetId> = datasets.iter().map(|dataset| dataset.id).collect();
        for mount in inner_first(session, |mount| ids.contains(&mount.vfs().dataset_id())) {
            session.hosts.store(true, Ordering::Relaxed);
            let is_head = !mount.vfs().is_snapshot();
            let ended = Was::of(&session.datasets.catalog(), &mount)
                .and_then(|was| unmount::begin_end(app.context, &mount, force).map(|is_over| (was, is_over)));
            match ended {
                Ok((was, is_over)) if is_head => {
                    unmounted.were.push(Was { held: (!is_over).then_some(mount), ..was });
                }
                Ok(_) => {}
                Err(error) => {
                    unmounted.mount_again(app, session)?;
                    return Err(error);
                }
            }
        }
        Ok(unmounted)
    }

    /// Mounts them again, at the places in their current properties. Returns whether this succeeded; otherwise a
    /// message was printed.
    pub(super) fn mount_again(mut self, app: &mut App<'_>, session: &Session) -> Result<bool> {
        let catalog = session.datasets.catalog();
        let held: HashMap<DatasetId, Arc<Mount>> =
            self.were.iter_mut().filter_map(|was| Some((was.id, was.held.take()?))).collect();
        let mut wanted = Vec::new();
        for was in self.were.drain(..) {
            let dir = match catalog.dataset_by_id(was.id) {
                Ok(dataset) => {
                    let attempt = format!("cannot mount '{}'", dataset.name);
                    let place = place(&catalog, &dataset).map_err(report::failed(&attempt))?;
                    let (mountpoint, _) =
                        text(&catalog, &dataset, "mountpoint").map_err(report::failed(&attempt))?;
                    let stays = was.is_legacy && mountpoint == "legacy";
                    let dir = place.ok().or_else(|| stays.then(|| was.dir.clone()));
                    wanted.extend(dir.clone().map(|dir| (dir, dataset)));
                    dir
                }
                Err(DatasetError::NotFound { .. }) => None,
                Err(error) => return Err(report::failed("cannot mount")(error)),
            };
            if was.is_inherited && dir.as_ref() != Some(&was.dir) {
                // There may be entries in it that the mount has hidden.
                let _ = std::fs::remove_dir(&was.dir);
            }
        }
        drop(catalog);
        Ok(mount_each(app, session, wanted, &held))
    }

    /// Does something for which nobody may have these datasets open. After an unmount they can stay in use for a
    /// moment.
    pub(super) fn when_released<T>(
        &self,
        mut work: impl FnMut() -> std::result::Result<T, DatasetError>,
    ) -> std::result::Result<T, DatasetError> {
        let begun = Instant::now();
        loop {
            match work() {
                Err(DatasetError::Busy { .. }) if !self.were.is_empty() && begun.elapsed() < RELEASE_MAX => {
                    std::thread::sleep(END_STEP);
                }
                done => return done,
            }
        }
    }
}

/// Mounts of a pool, those inside others first.
fn inner_first(session: &Session, is_meant: impl Fn(&Mount) -> bool) -> Vec<Arc<Mount>> {
    let mut mounts = session.mounts.list();
    mounts.retain(|mount| is_meant(mount));
    mounts.reverse();
    mounts.sort_by_key(|mount| Reverse(mount.dir().components().count()));
    mounts
}

/// Mounts filesystems, outer ones first. Failures are reported. Returns whether there were none. Of those in `held`,
/// others still have the old mount: it gets another place.
fn mount_each(
    app: &mut App<'_>,
    session: &Session,
    mut wanted: Vec<(PathBuf, Dataset)>,
    held: &HashMap<DatasetId, Arc<Mount>>,
) -> bool {
    wanted.sort_by(|a, b| a.0.cmp(&b.0));
    let mut all = true;
    for (dir, dataset) in wanted {
        let args = MountArgs::default();
        let mounted = free_place(&session.datasets.catalog(), &dataset, &dir, &args).and_then(|dir| {
            let held = held.get(&dataset.id).filter(|mount| !mount.is_over());
            match held.map(|mount| mount.mount_also(&dataset.name, &dir, &mount.vfs().options())) {
                Some(Ok(())) => Ok(()),
                // It is no longer used.
                Some(Err(_)) | None => mount_at(app, session, &dataset, &dir, &args).map(drop),
            }
        });
        if let Err(error) = mounted {
            app.context.complain(error);
            all = false;
        }
    }
    all
}

/// Those of `datasets` that want to be mounted and are not, and where.
///
/// # Errors
/// When the pool cannot be read.
pub(super) fn wanting(
    catalog: &Catalog,
    session: &Session,
    datasets: impl IntoIterator<Item = Dataset>,
) -> std::result::Result<Vec<(PathBuf, Dataset)>, DatasetError> {
    let mounted = session.mounts.heads();
    let mut wanted = Vec::new();
    for dataset in datasets {
        let is_mounted = mounted.contains(&dataset.id);
        if dataset.record.kind != Kind::Filesystem || is_mounted || dataset.record.inconsistent {
            continue;
        }
        if text(catalog, &dataset, "canmount")?.0 == "on"
            && let Ok(dir) = place(catalog, &dataset)?
        {
            wanted.push((dir, dataset));
        }
    }
    Ok(wanted)
}

/// Mounts the datasets that should be mounted and are not: now, or after the command. Returns whether nothing failed.
///
/// # Errors
/// When the pool cannot be read.
pub(super) fn mount_new(app: &mut App<'_>, session: &Session, datasets: Vec<Dataset>) -> Result<bool> {
    if !is_on(app) {
        return Ok(true);
    }
    let wanted = wanting(&session.datasets.catalog(), session, datasets);
    let wanted = wanted.map_err(report::failed("cannot mount"))?;
    if stays(session) {
        return Ok(mount_each(app, session, wanted, &HashMap::new()));
    }
    app.to_mount.extend(wanted.into_iter().map(|(_, dataset)| dataset.name));
    Ok(true)
}

/// The same of filesystems that were just created, by their names.
///
/// # Errors
/// When the pool cannot be read.
pub(super) fn mount_created(app: &mut App<'_>, session: &Session, names: &[String]) -> Result<Exit> {
    let catalog = session.datasets.catalog();
    let created = names.iter().filter_map(|name| catalog.dataset(name).ok()).collect();
    drop(catalog);
    if mount_new(app, session, created)? {
        return Ok(Exit::Ok);
    }
    app.context.complain("filesystem successfully created, but not mounted");
    Ok(Exit::Failed)
}

/// Filesystems from the top of `name` down that do not exist yet.
pub(super) fn missing(catalog: &Catalog, name: &str) -> Vec<String> {
    let ends = name.match_indices('/').map(|(at, _)| at).chain([name.len()]);
    ends.map(|end| name[..end].to_owned()).filter(|name| catalog.dataset(name).is_err()).collect()
}

/// `top` and all that inherits its mountpoint.
///
/// # Errors
/// When the pool cannot be read.
pub(super) fn sharing_mountpoint(
    catalog: &Catalog,
    top: &Dataset,
) -> std::result::Result<Vec<Dataset>, DatasetError> {
    let mut found: Vec<Dataset> = Vec::new();
    let mut pending = vec![top.clone()];
    while let Some(dataset) = pending.pop() {
        let inherits = matches!(
            text(catalog, &dataset, "mountpoint")?.1,
            Source::Default | Source::Inherited(_) | Source::None
        );
        if dataset.id == top.id || inherits {
            pending.extend(catalog.children(&dataset)?);
            found.push(dataset);
        }
    }
    Ok(found)
}

/// Changes `property` of a dataset. All filesystems whose mountpoints it changes are unmounted before, and mounted
/// again afterwards. `value` is the new value, if it is known.
///
/// # Errors
/// As `change`; when something that has to be unmounted is in use.
pub(super) fn around(
    app: &mut App<'_>,
    session: &Session,
    name: &str,
    properties: &[(&str, Option<&str>)],
    change: impl FnOnce(&mut App<'_>) -> Result<()>,
) -> Result<bool> {
    let is_moved = properties.iter().any(|(name, _)| *name == "mountpoint");
    let is_hidden = properties.iter().any(|(name, value)| *name == "canmount" && *value == Some("off"));
    let is_shared = properties
        .iter()
        .any(|(name, value)| matches!(*name, "sharenfs" | "sharesmb") && *value != Some("off"));
    if !(is_moved || is_hidden || is_shared) || !is_on(app) {
        return change(app).map(|()| true);
    }
    if !(is_moved || is_hidden) {
        change(app)?;
        return mount_shared(app, session, name, properties);
    }
    let catalog = session.datasets.catalog();
    let Ok(top) = catalog.dataset(name) else { return change(app).map(|()| true) };
    let attempt = format!("cannot set property for '{name}'");
    let shared = sharing_mountpoint(&catalog, &top).map_err(report::failed(&attempt))?;
    // An unmounted filesystem is only mounted if it had no mountpoint before.
    let mut without_place = Vec::new();
    for dataset in shared.iter().filter(|_| is_moved) {
        let (mountpoint, _) = text(&catalog, dataset, "mountpoint").map_err(report::failed(&attempt))?;
        if !mountpoint.starts_with('/') {
            without_place.push(dataset.clone());
        }
    }
    drop(catalog);
    let unmounted = Unmounted::of(app, session, &shared, false)?;
    let changed = change(app);
    let mut all = unmounted.mount_again(app, session)?;
    changed?;
    all &= mount_new(app, session, without_place)?;
    if !all {
        app.context.complain("property may be set but unable to remount filesystem");
    }
    Ok(all)
}

/// As in ZFS, a filesystem that is to be shared is mounted, if possible.
fn mount_shared(
    app: &mut App<'_>,
    session: &Session,
    name: &str,
    properties: &[(&str, Option<&str>)],
) -> Result<bool> {
    let is_given = properties.iter().any(|(_, value)| value.is_some());
    let top = session.datasets.catalog().dataset(name).ok().filter(|_| is_given);
    let mounted = mount_new(app, session, top.into_iter().collect())?;
    if !mounted {
        app.context.complain("property may be set but unable to mount the filesystem that is to be shared");
    }
    Ok(mounted)
}

/// The filesystems of a pool and their mountpoints before a receive.
pub(super) struct Before {
    known: HashSet<DatasetId>,
    places: Vec<(DatasetId, String, Option<PathBuf>)>,
}

impl Before {
    /// Takes note; nothing if this command does not mount.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub(super) fn receive(app: &App<'_>, session: &Session) -> Result<Option<Self>> {
        if !is_on(app) {
            return Ok(None);
        }
        let failed = |error| report::failed("cannot receive")(error);
        let catalog = session.datasets.catalog();
        let all = catalog.root().and_then(|root| catalog.descendants(root)).map_err(failed)?;
        let mounted = session.mounts.heads();
        let mut places = Vec::new();
        for dataset in all.iter().filter(|dataset| mounted.contains(&dataset.id)) {
            places.push((dataset.id, dataset.name.clone(), place(&catalog, dataset).map_err(failed)?.ok()));
        }
        Ok(Some(Self { known: all.iter().map(|dataset| dataset.id).collect(), places }))
    }

    /// Mounts new filesystems, and moves mounted ones whose mountpoint changed. Returns whether nothing failed.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub(super) fn received(self, app: &mut App<'_>, session: &Session) -> Result<bool> {
        let failed = |error| report::failed("cannot mount")(error);
        let catalog = session.datasets.catalog();
        let mut moved = Vec::new();
        for (id, name, was) in &self.places {
            let Ok(dataset) = catalog.dataset_by_id(*id) else { continue };
            if dataset.name != *name || place(&catalog, &dataset).map_err(failed)?.ok() != *was {
                moved.push(dataset);
            }
        }
        let all = catalog.root().and_then(|root| catalog.descendants(root)).map_err(failed)?;
        drop(catalog);
        let unmounted = Unmounted::of(app, session, &moved, false)?;
        let again = unmounted.mount_again(app, session)?;
        let new = all.into_iter().filter(|dataset| !self.known.contains(&dataset.id)).collect();
        Ok(mount_new(app, session, new)? && again)
    }
}

/// Unmounts the mounts inside of a filesystem and those of its descendants, before its own mount.
///
/// # Errors
/// When something is in use.
pub(super) fn unmount_inside(app: &mut App<'_>, session: &Session, mount: &Mount, force: bool) -> Result<()> {
    if !is_on(app) || mount.vfs().is_snapshot() {
        return Ok(());
    }
    let catalog = session.datasets.catalog();
    let Ok(top) = catalog.dataset_by_id(mount.vfs().dataset_id()) else { return Ok(()) };
    let below = catalog.descendants(top).map_err(report::failed("cannot unmount"))?;
    drop(catalog);
    let ids: HashSet<DatasetId> = below.iter().map(|dataset| dataset.id).collect();
    let dir = mount.dir();
    // The filesystems below it by name, wherever they are mounted, and the mounted snapshots that are in the way.
    let is_inside = |other: &Mount| {
        ids.contains(&other.vfs().dataset_id())
            && other.dir() != dir
            && (!other.vfs().is_snapshot() || other.dir().starts_with(&dir))
    };
    for inner in inner_first(session, is_inside) {
        unmount::end(app.context, &inner, force)?;
    }
    Ok(())
}

/// Mounts in the background what a command left to be mounted. `which` are arguments of `mount -a`; `pool` is the
/// pool.
///
/// # Errors
/// When no process can be started.
pub fn in_background(app: &mut App<'_>, which: Vec<OsString>, pool: &str) -> Result<Exit> {
    let mut words: Vec<OsString> = vec!["mount".into(), "--detached".into(), "-a".into()];
    for dir in app.pool_dirs() {
        words.extend(["--pool-dir".into(), dir.clone().into()]);
    }
    words.extend(which);
    words.extend(["--".into(), pool.into()]);
    background::start(app, &words)
}

/// Words for `mount -a`: these filesystems, by their names.
pub fn each(names: Vec<String>) -> Vec<OsString> {
    names.into_iter().flat_map(|name| ["--each".into(), name.into()]).collect()
}

/// Arguments of `mount -a`: the filesystems that a command created with this name, or below it.
pub fn below(name: &str) -> Vec<OsString> {
    let dataset = name.split(['@', '#']).next().unwrap_or_default();
    vec!["--below".into(), dataset.into()]
}

/// Mounts everything of a pool that was just created or imported.
///
/// # Errors
/// When no process can be started.
pub(super) fn mount_pool(app: &mut App<'_>, pool: &str) -> Result<Exit> {
    if !is_on(app) { Ok(Exit::Ok) } else { in_background(app, below(pool), pool) }
}

/// Unmounts everything of a pool that is to be exported or destroyed, and waits until its owner has ended.
///
/// # Errors
/// When something is in use.
pub(super) fn release_pool(app: &mut App<'_>, pool: &KnownPool, force: bool, attempt: &str) -> Result<()> {
    let name = pool.label.name.clone();
    if !is_on(app) || app.is_served() || pool.location.is_read_only() {
        return Ok(());
    }
    let table = snowmelt_fuse::mounted()
        .map_err(|error| CliError::failed("cannot read the list of mounts", &error))?;
    if !table.iter().any(|mounted| pool_of(&mounted.name) == name) {
        return Ok(());
    }
    if unmount::pool(app, &name, force)?.code() != 0 {
        return Err(CliError::Failed(format!("{attempt}: pool is busy")));
    }
    let begun = Instant::now();
    while begun.elapsed() < END_MAX && !app.context.is_cancelled() {
        match waiting::open(app.context, &pool.location, Access::ReadWrite)? {
            Err(StoreError::Locked { .. }) => std::thread::sleep(END_STEP),
            _ => break,
        }
    }
    Ok(())
}
