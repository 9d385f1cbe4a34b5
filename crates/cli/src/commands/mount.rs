//! `mount`.
//!
//! The owner of a pool serves its mounts. If a command finds the pool without an owner, a background process becomes
//! the owner: the command starts itself again, detached, and ends when the new process reports on its standard output
//! that everything is mounted. If there is an owner, the command lets it mount.

use std::collections::{BTreeSet, HashMap};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Map, json};
use snowmelt_dataset::property::{PropertyName, Source, TextStyle};
use snowmelt_dataset::{Catalog, Dataset, Kind};
use snowmelt_fs::vfs::{Atime, VfsOptions};
use snowmelt_fuse::{Mount, MountError, MountOptions, Mounted};

use super::pool_create::paths_of;
use super::{automount, background, mount_stream, names};
use crate::app::{App, pool_of};
use crate::args::MountArgs;
use crate::error::{CliError, Result, chain};
use crate::exit::Exit;
use crate::output::json;
use crate::pools::{Session, stream_index};
use crate::properties::{Entity, Reader};
use crate::report;
use crate::request::{Reply, Request};

/// How an owner refuses to mount that would otherwise end with its command.
const NOT_HERE: u8 = 118;
/// How long such an owner is waited for, and between two attempts.
const RETRY_MAX: Duration = Duration::from_secs(5);
const RETRY_STEP: Duration = Duration::from_millis(20);
/// Interval of the check whether a mount in the foreground has ended.
const WATCH_INTERVAL: Duration = Duration::from_millis(100);

/// Mounts filesystems, or lists the mounts.
///
/// # Errors
/// When something cannot be mounted.
pub fn run(app: &mut App<'_>, args: &MountArgs) -> Result<Exit> {
    let begun = Instant::now();
    loop {
        match run_once(app, args)? {
            // Another command owns the pool, and would not end while anything is mounted. It ends soon, and then it
            // is our turn.
            Exit::Other(NOT_HERE) if args.detached && !app.is_served() => {}
            exit => return Ok(exit),
        }
        std::thread::sleep(RETRY_STEP);
        if begun.elapsed() > RETRY_MAX && !app.context.args.iter().any(|word| word == "--anyway") {
            app.context.args.insert(1, "--anyway".into());
        }
    }
}

fn run_once(app: &mut App<'_>, args: &MountArgs) -> Result<Exit> {
    match (&args.dataset, args.all) {
        (None, false) => return list(app, args.json),
        (Some(_), true) if !args.detached && !args.foreground && !app.is_served() => {
            return Err(CliError::Usage("too many arguments".to_owned()));
        }
        _ => {}
    }
    let named;
    let args = match pool_on(app, args) {
        Some(pool) => {
            named = MountArgs { dataset: Some(pool), ..args.clone() };
            &named
        }
        None => args,
    };
    let is_remount = parse_options(args, VfsOptions::default(), &mut MountOptions::default())?.remount;
    if args.fake {
        return Ok(Exit::Ok);
    }
    if is_remount {
        return remount(app, args);
    }
    let stream = match stream_file(app, args)? {
        Some(file) => Some(mount_stream::indexed(app, args, &file)?),
        None => None,
    };
    if args.detached {
        background::leave_terminal();
    } else if !args.foreground && !app.is_served() {
        return detach(app, args);
    }
    let Some(name) = &args.dataset else { return Err(CliError::Usage("missing pool".to_owned())) };
    let pool = stream.as_ref().map_or(name, |stream| &stream.pool);
    app.on_dataset(pool, |app, session| {
        let is_automatic = args.below.is_some() || !args.each.is_empty();
        if is_automatic && app.is_served() && !args.anyway && !automount::stays(session) {
            return Ok(Exit::Other(NOT_HERE));
        }
        let (mounts, failed) = if args.all {
            mount_all(app, session, args)?
        } else if stream.is_some() {
            (vec![mount_stream::mount(app, session, args)?], false)
        } else {
            (vec![mount_one(app, session, name, args)?], false)
        };
        if args.detached && !app.is_served() {
            session.hosts.store(true, Ordering::Relaxed);
            // If nothing was mounted, it ends, and its exit status has the result.
            if !mounts.is_empty() {
                background::ready(app, session, failed)?;
            }
        } else if args.foreground && app.is_served() {
            stay(app, &mounts);
        }
        Ok(Exit::unless(failed))
    })
}

/// The pool on a device or file that mount(8) was given. The topmost filesystem of this pool is meant. The arguments of
/// the command are changed too, because the process in the background reads them again.
fn pool_on(app: &mut App<'_>, args: &MountArgs) -> Option<String> {
    let word = args.dataset.as_ref().filter(|word| args.only_legacy && word.starts_with('/'))?;
    let path = snowmelt_store::canonical(Path::new(word));
    let pool = app.places.all().into_iter().find(|known| paths_of(&known.location).contains(&path))?;
    for given in app.context.args.iter_mut().filter(|given| *given == word.as_str()) {
        *given = pool.label.name.clone().into();
    }
    Some(pool.label.name)
}

/// The file that is meant, where that is no dataset.
fn stream_file(app: &App<'_>, args: &MountArgs) -> Result<Option<PathBuf>> {
    let name = args.dataset.as_ref().filter(|_| !args.all);
    let is_dataset = |name: &str| match app.served_pool() {
        Some(pool) => !stream_index::is_name(pool) || pool_of(name) == pool,
        None => app.places.find(pool_of(name)).is_some(),
    };
    let file = name
        .filter(|name| !is_dataset(name))
        .map(|name| app.context.path(name))
        .filter(|path| path.is_file());
    if file.is_none() && args.member.is_some() {
        return Err(CliError::Usage("--dataset is only for stream files".to_owned()));
    }
    Ok(file)
}

/// `tank/home                       /tank/home`, as `zfs mount` prints it.
fn list(app: &mut App<'_>, as_json: bool) -> Result<Exit> {
    let mut mounted = snowmelt_fuse::mounted()
        .map_err(|error| CliError::failed("cannot read the list of mounts", &error))?;
    rename(app, &mut mounted);
    if as_json {
        let mut datasets = Map::new();
        for mounted in mounted {
            let dir = mounted.dir.to_string_lossy().into_owned();
            let item = json!({ "filesystem": mounted.name, "mountpoint": dir });
            // A filesystem with two mounts has one entry under its name, as in ZFS, and another under its directory.
            let key = if datasets.contains_key(&mounted.name) { dir } else { mounted.name };
            datasets.insert(key, item);
        }
        let mut document = json::document("zfs mount");
        document.insert("datasets".to_owned(), datasets.into());
        json::print(&mut app.context.out, document)?;
        return Ok(Exit::Ok);
    }
    for mounted in mounted {
        writeln!(app.context.out, "{:<30}  {}", mounted.name, mounted.dir.display())?;
    }
    Ok(Exit::Ok)
}

/// Gives what was renamed since it was mounted the name that it has now, which only the owner of its pool knows: the
/// kernel's table keeps the first.
fn rename(app: &mut App<'_>, mounted: &mut [Mounted]) {
    let pools: BTreeSet<String> = mounted
        .iter()
        .filter(|mounted| mounted.is_alive())
        .map(|mounted| pool_of(&mounted.name).to_owned())
        .collect();
    for pool in pools {
        let Some(known) = app.places.find(&pool) else { continue };
        // Without an answer the names of the table have to do.
        let Ok(Reply::Mounts(places)) = app.query(&known, &Request::Mounts) else { continue };
        let now: HashMap<PathBuf, String> = places.into_iter().collect();
        for mounted in mounted.iter_mut().filter(|mounted| pool_of(&mounted.name) == pool) {
            if let Some(name) = now.get(&mounted.dir) {
                mounted.name.clone_from(name);
            }
        }
    }
}

/// Does the command in processes that stay in the background, one for each pool.
fn detach(app: &mut App<'_>, args: &MountArgs) -> Result<Exit> {
    let pools = match &args.dataset {
        Some(_) => vec![None],
        None => app.places.all().into_iter().map(|known| Some(known.label.name)).collect(),
    };
    let mut worst = Exit::Ok;
    for pool in pools {
        let exit = detach_one(app, pool.as_deref())?;
        if exit.code() != 0 {
            worst = exit;
        }
    }
    Ok(worst)
}

/// Starts this program again with the same words (and a pool, for `-a`), and waits until it is ready or ends.
fn detach_one(app: &mut App<'_>, pool: Option<&str>) -> Result<Exit> {
    let mut words = app.context.args.clone();
    // Before anything that is no option.
    let at = words.iter().position(|word| word == "--").unwrap_or(words.len());
    words.insert(at, "--detached".into());
    words.extend(pool.map(Into::into));
    background::start(app, &words)
}

/// Works for a caller that waits in the foreground, until the filesystem is unmounted, or the caller disconnects.
fn stay(app: &mut App<'_>, mounts: &[Arc<Mount>]) {
    while mounts.iter().any(|mount| !mount.is_over()) {
        if app.context.is_cancelled() {
            for mount in mounts.iter().rev() {
                if let Err(error) = mount.unmount(true) {
                    app.context.complain(chain(&error));
                }
            }
        }
        std::thread::sleep(WATCH_INTERVAL);
    }
}

/// Remounts it at the same place with other options. The process that serves the mount does it.
fn remount(app: &mut App<'_>, args: &MountArgs) -> Result<Exit> {
    let Some(name) = args.dataset.as_ref().filter(|_| !args.all) else {
        return Err(CliError::Usage("'remount' needs the name of a dataset".to_owned()));
    };
    let attempt = format!("cannot remount '{name}'");
    app.on_dataset(name, |app, session| {
        let directory = args.directory.as_ref().map(|directory| app.context.path(directory));
        let directory = directory.map(|path| path.canonicalize().unwrap_or(path));
        let is_meant = |mount: &Arc<Mount>| {
            mount.name() == *name && directory.as_ref().is_none_or(|directory| mount.dir() == *directory)
        };
        let Some(mount) = session.mounts.list().into_iter().find(is_meant) else {
            return Err(CliError::Failed(format!("{attempt}: not mounted")));
        };
        let catalog = session.datasets.catalog();
        let id = mount.vfs().dataset_id();
        let dataset = catalog.dataset_by_id(id).map_err(report::failed(&attempt))?;
        let chosen = properties(&catalog, &dataset, args, &mut default_options(), &attempt)?;
        // A snapshot is always read-only, with or without the option. The opposite option is refused.
        let is_said = args.options.iter().flat_map(|list| list.split(',')).any(|word| word.trim() == "rw");
        let read_only = chosen.read_only || (mount.vfs().is_snapshot() && !is_said);
        mount
            .remount(VfsOptions { read_only, ..chosen })
            .map_err(|error| CliError::failed(&attempt, &error))?;
        Ok(Exit::Ok)
    })
}

fn mount_one(app: &mut App<'_>, session: &Session, name: &str, args: &MountArgs) -> Result<Arc<Mount>> {
    let catalog = session.datasets.catalog();
    let attempt = format!("cannot mount '{name}'");
    if let Some(caveat) = session.caveat() {
        app.context.complain(caveat);
    }
    let mut options = default_options();
    let parsed = names::parse(name, &format!("cannot open '{name}'"))?;
    if parsed.snapshot().is_some() {
        let snapshot = names::open_snapshot(&catalog, name)?;
        let Some(directory) = &args.directory else {
            return Err(CliError::Usage("a snapshot needs a directory to be mounted on".to_owned()));
        };
        check_kind(&attempt, snapshot.kind)?;
        let dataset = catalog.dataset_by_id(snapshot.id.dataset).map_err(report::failed(&attempt))?;
        let properties = properties(&catalog, &dataset, args, &mut options, &attempt)?;
        let directory = free_directory(&app.context.path(directory), false, &attempt)?;
        let mounted = session.mounts.mount_snapshot(&snapshot, &directory, properties, &options);
        return told(app, args, mounted, &attempt);
    }
    let dataset = names::open_dataset(&catalog, name)?;
    check_kind(&attempt, dataset.record.kind)?;
    refuse_managed(&catalog, &dataset, args)?;
    let directory = match &args.directory {
        Some(directory) => free_directory(&app.context.path(directory), false, &attempt)?,
        None => {
            let directory = place(&catalog, &dataset).map_err(report::failed(&attempt))?;
            let directory = directory.map_err(|why| CliError::Failed(format!("{attempt}: {why}")))?;
            // Before the directory is made.
            if session.mounts.head(dataset.id).is_some() {
                return Err(CliError::Failed(format!("{attempt}: filesystem already mounted")));
            }
            free_place(&catalog, &dataset, &directory, args)?
        }
    };
    if let Some(mount) = session.mounts.head(dataset.id).filter(|_| rustix::process::geteuid().is_root()) {
        // The same files in one more place.
        let chosen = properties(&catalog, &dataset, args, &mut options, &attempt)?;
        let also = mount.mount_also(&dataset.name, &directory, &chosen).map(|()| mount);
        return told(app, args, also, &attempt);
    }
    mount_at(app, session, &dataset, &directory, args)
}

/// As in ZFS, mount(8) mounts only filesystems whose mountpoint is `legacy`, unless `zfsutil` is given.
fn refuse_managed(catalog: &Catalog, dataset: &Dataset, args: &MountArgs) -> Result<()> {
    let is_said = args.options.iter().flat_map(|list| list.split(',')).any(|word| word.trim() == "zfsutil");
    if !args.only_legacy || is_said {
        return Ok(());
    }
    let name = &dataset.name;
    let attempt = format!("cannot mount '{name}'");
    let (mountpoint, _) = text(catalog, dataset, "mountpoint").map_err(report::failed(&attempt))?;
    match mountpoint.as_str() {
        "legacy" => Ok(()),
        _ => Err(CliError::Failed(format!(
            "filesystem '{name}' cannot be mounted using 'mount'.\n\
             Use 'zfs set mountpoint=legacy' or 'zfs mount {name}', or mount it with '-o zfsutil'."
        ))),
    }
}

pub(super) fn mount_at(
    app: &mut App<'_>,
    session: &Session,
    dataset: &Dataset,
    directory: &Path,
    args: &MountArgs,
) -> Result<Arc<Mount>> {
    let attempt = format!("cannot mount '{}'", dataset.name);
    let mut options = default_options();
    let properties = properties(&session.datasets.catalog(), dataset, args, &mut options, &attempt)?;
    let mounted = session.mounts.mount(dataset, directory, properties, &options);
    told(app, args, mounted, &attempt)
}

pub(super) fn told(
    app: &mut App<'_>,
    args: &MountArgs,
    mounted: Result<Arc<Mount>, MountError>,
    attempt: &str,
) -> Result<Arc<Mount>> {
    let mount = mounted.map_err(|error| match error {
        MountError::Mounted { .. } => CliError::Failed(format!("{attempt}: filesystem already mounted")),
        other => CliError::failed(attempt, &other),
    })?;
    if args.verbose {
        writeln!(app.context.out, "{} mounted on {}", mount.name(), mount.dir().display())?;
    }
    Ok(mount)
}

/// Mounts every filesystem of the pool that should be mounted, parents first. Failures are reported, and the others
/// are still mounted.
fn mount_all(app: &mut App<'_>, session: &Session, args: &MountArgs) -> Result<(Vec<Arc<Mount>>, bool)> {
    let catalog = session.datasets.catalog();
    let attempt = format!("cannot mount the filesystems of '{}'", session.name());
    let all = catalog.root().and_then(|root| catalog.descendants(root)).map_err(report::failed(&attempt))?;
    let is_below = |dataset: &Dataset| match &args.below {
        Some(top) => {
            dataset.name.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        }
        None => args.each.is_empty() || args.each.contains(&dataset.name),
    };
    let meant = all.into_iter().filter(is_below);
    let mut wanted = automount::wanting(&catalog, session, meant).map_err(report::failed(&attempt))?;
    if args.below.is_none() && args.each.is_empty() {
        wanted = confirmed(app, &catalog, wanted).map_err(report::failed(&attempt))?;
    }
    wanted.sort_by(|a, b| a.0.cmp(&b.0));
    let (mut mounts, mut failed) = (Vec::new(), false);
    for (directory, dataset) in wanted {
        let mount = free_place(&catalog, &dataset, &directory, args)
            .and_then(|directory| mount_at(app, session, &dataset, &directory, args));
        match mount {
            Ok(mount) => mounts.push(mount),
            Err(error) => {
                app.context.complain(error);
                failed = true;
            }
        }
    }
    Ok((mounts, failed))
}

pub(super) fn check_kind(attempt: &str, kind: Kind) -> Result<()> {
    match kind {
        Kind::Filesystem => Ok(()),
        _ => Err(CliError::Failed(format!("{attempt}: operation not applicable to datasets of this type"))),
    }
}

pub(super) fn default_options() -> MountOptions {
    // Root mounts for everybody, with the kernel checking permissions; others need leave for that from /etc/fuse.conf.
    MountOptions { allow_other: rustix::process::geteuid().is_root() }
}

pub(super) fn properties(
    catalog: &Catalog,
    dataset: &Dataset,
    args: &MountArgs,
    options: &mut MountOptions,
    attempt: &str,
) -> Result<VfsOptions> {
    let mut properties = VfsOptions::of(catalog, dataset).map_err(report::failed(attempt))?;
    properties.read_only |= catalog.pool().is_read_only();
    let chosen = parse_options(args, properties, options)?.vfs;
    if catalog.pool().is_read_only() && !chosen.read_only {
        return Err(CliError::Failed(format!("{attempt}: the pool is read-only")));
    }
    Ok(chosen)
}

/// What `-o` asks for.
struct Asked {
    vfs: VfsOptions,
    /// Of filesystems that are already mounted.
    remount: bool,
}

/// `-o`: its options override the properties for this mount.
fn parse_options(args: &MountArgs, properties: VfsOptions, options: &mut MountOptions) -> Result<Asked> {
    let (mut chosen, mut remount) = (properties, false);
    chosen.setuid |= args.privileges.setuid;
    chosen.devices |= args.privileges.devices;
    let given = &args.options;
    for option in given.iter().flat_map(|list| list.split(',')).map(str::trim).filter(|word| !word.is_empty())
    {
        match option {
            // Options of fstab(5) that are for other programs, or that always apply.
            "defaults" | "auto" | "noauto" | "user" | "nouser" | "users" | "owner" | "group" | "nofail"
            | "_netdev" | "async" | "diratime" | "zfsutil" => {}
            other if ["x-", "X-", "comment="].iter().any(|prefix| other.starts_with(prefix)) => {}
            "ro" | "readonly" => chosen.read_only = true,
            "rw" => chosen.read_only = false,
            "noatime" => chosen.atime = Atime::Off,
            "relatime" => chosen.atime = Atime::Relative,
            "atime" | "strictatime" | "norelatime" => chosen.atime = Atime::Strict,
            "dev" | "devices" => chosen.devices = true,
            "nodev" | "nodevices" => chosen.devices = false,
            "xattr" | "dirxattr" | "saxattr" => chosen.xattrs = true,
            "noxattr" => chosen.xattrs = false,
            "exec" => chosen.exec = true,
            "noexec" => chosen.exec = false,
            "suid" | "setuid" => chosen.setuid = true,
            "nosuid" | "nosetuid" => chosen.setuid = false,
            "allow_other" => options.allow_other = true,
            "remount" => remount = true,
            _ if args.sloppy => {}
            other => return Err(CliError::Usage(format!("unknown mount option '{other}'"))),
        }
    }
    Ok(Asked { vfs: chosen, remount })
}

/// A property as `get -p` shows it, and where it comes from.
pub(super) fn text(
    catalog: &Catalog,
    dataset: &Dataset,
    name: &str,
) -> Result<(String, Source), snowmelt_dataset::DatasetError> {
    let reader = Reader::new(catalog);
    let Ok(name) = PropertyName::parse(name) else { return Ok((String::new(), Source::None)) };
    let style = TextStyle { parsable: true, utc_offset: &|_| 0 };
    let shown = reader.text(&Entity::Dataset(dataset.clone()), &name, &style)?;
    Ok(shown.unwrap_or((String::new(), Source::None)))
}

/// Where a filesystem is to be mounted by its properties, or why not.
pub(super) fn place(
    catalog: &Catalog,
    dataset: &Dataset,
) -> Result<Result<PathBuf, &'static str>, snowmelt_dataset::DatasetError> {
    if text(catalog, dataset, "canmount")?.0 == "off" {
        return Ok(Err("'canmount' property is set to 'off'"));
    }
    let (mountpoint, _) = text(catalog, dataset, "mountpoint")?;
    Ok(match mountpoint.as_str() {
        "none" => Err("no mountpoint set"),
        "legacy" => Err("legacy mountpoint\ngive a directory to mount it on"),
        path if path.starts_with('/') => Ok(PathBuf::from(path)),
        _ => Err("no mountpoint set"),
    })
}

/// The mountpoint of a filesystem by its properties. With `overlay=off`, it must be an empty directory.
pub(super) fn free_place(
    catalog: &Catalog,
    dataset: &Dataset,
    directory: &Path,
    args: &MountArgs,
) -> Result<PathBuf> {
    let attempt = format!("cannot mount '{}'", dataset.name);
    let directory = free_directory(directory, true, &attempt)?;
    let (overlay, _) = text(catalog, dataset, "overlay").map_err(report::failed(&attempt))?;
    if overlay == "off" && !args.overlay && !is_free(&directory) {
        let shown = directory.display();
        return Err(CliError::Failed(format!("cannot mount '{shown}': directory is not empty")));
    }
    Ok(directory)
}

/// Whether a directory is empty, and nothing is mounted on it.
fn is_free(directory: &Path) -> bool {
    let is_mounted = rustix::fs::statx(
        rustix::fs::CWD,
        directory,
        rustix::fs::AtFlags::empty(),
        rustix::fs::StatxFlags::empty(),
    )
    .is_ok_and(|stat| stat.stx_attributes.contains(rustix::fs::StatxAttributes::MOUNT_ROOT));
    !is_mounted && std::fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none())
}

/// Leaves out those whose mountpoint came with a stream. It can be any directory, /etc included, so the user has to
/// confirm it.
fn confirmed(
    app: &mut App<'_>,
    catalog: &Catalog,
    wanted: Vec<(PathBuf, Dataset)>,
) -> Result<Vec<(PathBuf, Dataset)>, snowmelt_dataset::DatasetError> {
    let mut kept = Vec::new();
    for (directory, dataset) in wanted {
        if !is_received_place(catalog, &dataset)? {
            kept.push((directory, dataset));
            continue;
        }
        let (directory, name) = (directory.display(), &dataset.name);
        app.context.complain(format_args!(
            "'{name}' is not mounted: its mountpoint '{directory}' was received with a stream\nuse 'snowmelt set \
             mountpoint={directory} {name}' to confirm it, or 'snowmelt mount {name}' to mount it once"
        ));
    }
    Ok(kept)
}

/// Whether the mountpoint of a filesystem, or of one above it, came with a stream, and was not set here since.
pub(super) fn is_received_place(
    catalog: &Catalog,
    dataset: &Dataset,
) -> Result<bool, snowmelt_dataset::DatasetError> {
    Ok(match text(catalog, dataset, "mountpoint")?.1 {
        Source::Received => true,
        Source::Inherited(above) => {
            matches!(text(catalog, &catalog.dataset(&above)?, "mountpoint")?.1, Source::Received)
        }
        _ => false,
    })
}

/// A directory to mount on. With `make`, it is created if it does not exist. A mount whose process has died is
/// removed from it.
pub fn free_directory(directory: &Path, make: bool, attempt: &str) -> Result<PathBuf> {
    if !snowmelt_fuse::is_alive(directory) {
        super::unmount::unmount_dead(directory).map_err(|error| {
            CliError::failed(
                format!(
                    "{attempt}: cannot unmount a mount at {} whose process has ended",
                    directory.display()
                ),
                &error,
            )
        })?;
    }
    if rustix::process::geteuid().is_root() {
        snowmelt_store::check_way(directory).map_err(|error| CliError::failed(attempt, &error))?;
    }
    if make {
        std::fs::create_dir_all(directory)
            .map_err(|error| CliError::failed(format!("{attempt}: {}", directory.display()), &error))?;
    }
    Ok(directory.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_outdo_properties() {
        let parse = |sloppy: bool, list: &str| {
            let args = MountArgs { options: vec![list.to_owned()], sloppy, ..MountArgs::default() };
            let mut options = MountOptions::default();
            parse_options(&args, VfsOptions::default(), &mut options).map(|asked| (asked, options))
        };
        let (Asked { vfs: chosen, remount }, options) =
            parse(false, "ro,noatime,nodev, allow_other,rw").unwrap();
        assert!(!remount);
        assert!(!chosen.read_only && !chosen.devices && chosen.exec);
        assert_eq!(chosen.atime, Atime::Off);
        assert!(options.allow_other);
        assert!(parse(false, "zap").is_err() && parse(true, "zap,ro").unwrap().0.vfs.read_only);
        assert!(!parse(false, "noxattr").unwrap().0.vfs.xattrs);
        assert!(parse(false, "noxattr,xattr").unwrap().0.vfs.xattrs);
        assert!(parse(false, "defaults,noauto,nofail,x-systemd.automount,_netdev").is_ok());
        let asked = parse(false, "suid,dev").unwrap().0.vfs;
        assert!(asked.setuid && asked.devices);
        let mut args = MountArgs::default();
        args.privileges.setuid = true;
        let asked = parse_options(&args, VfsOptions::default(), &mut MountOptions::default()).unwrap().vfs;
        assert!(asked.setuid && !asked.devices);
        let asked = parse(true, "remount,ro").unwrap().0;
        assert!(asked.remount && asked.vfs.read_only);
    }
}
