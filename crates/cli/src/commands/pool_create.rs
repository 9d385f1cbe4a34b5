//! `pool create`.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use snowmelt_dataset::name::check_pool;
use snowmelt_dataset::property::{Types, parse_size};
use snowmelt_dataset::{Datasets, Name, pool_features};
use snowmelt_pool::{Keys, NewPool, PARITY_MAX_PERCENT, Pool, PoolOptions, Suite};
use snowmelt_store::{CreateOptions, DEADMAN_MAX, DEADMAN_MIN, Location, PoolLabel};

use super::pool_change_key::key_format;
use super::{assignments, automount};
use crate::app::App;
use crate::args::PoolCreateArgs;
use crate::cache;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::output::json;
use crate::pools::keys::{KeySource, Told, UserKey};
use crate::pools::pins::{self, Pin, Pins};
use crate::pools::{Owner, entry, pool_options, random_guid, waiting};
use crate::report;

/// Creates a pool.
///
/// # Errors
/// When the name is taken or cannot be one, or the place holds something.
pub fn run(app: &mut App<'_>, args: &PoolCreateArgs) -> Result<Exit> {
    let name = args.pool.as_str();
    let attempt = format!("cannot create '{name}'");
    check_pool(name).map_err(|error| report::failed(&attempt)(error.into()))?;
    if app.places.find(name).is_some() {
        return Err(CliError::Failed(format!("{attempt}: pool already exists")));
    }
    let known = Pins::of(app.context)?;
    let own = PoolProperties::parse(&attempt, &args.pool_properties)?;
    let disabled = own.disabled_features(args.no_features);
    let properties = root_properties(&attempt, args)?;
    let mut places = vdevs(app, args, &attempt)?;
    for (location, _) in &mut places {
        cache::choose(app, location, &args.cache, &attempt)?;
    }
    if args.dry_run {
        let paths: Vec<_> =
            places.iter().map(|(location, _)| location.path().display().to_string()).collect();
        if args.json {
            let mut document = json::document("snowmelt pool create");
            document.insert("pool".to_owned(), name.into());
            document.insert("vdevs".to_owned(), paths.into());
            document.insert("dry_run".to_owned(), true.into());
            json::print(&mut app.context.out, document)?;
            return Ok(Exit::Ok);
        }
        let what = if paths.len() > 1 { "a mirror of " } else { "" };
        writeln!(app.context.out, "would create '{name}' in {what}{}", paths.join(" and "))?;
        return Ok(Exit::Ok);
    }
    let guid = random_guid(&attempt)?;
    for (location, _) in &places {
        cache::check(location, guid, &attempt)?;
    }
    let user_key = user_key(app, args)?;
    let keys = user_key.as_ref().map(|(key, suite)| key.new_pool(guid, *suite)).transpose();
    let keys = keys.map_err(|error| CliError::failed(&attempt, &error))?;
    if let Some((key, _)) = &user_key {
        Told::of(app.context, guid).set(key.own())?;
    }
    let label = PoolLabel { name: name.to_owned(), guid };
    for (location, _) in &places {
        if let Location::Directory(path) = location {
            snowmelt_store::check_way(path).map_err(|error| CliError::failed(&attempt, &error))?;
            std::fs::create_dir_all(path).map_err(|error| CliError::failed(&attempt, &error))?;
        }
    }
    let size = places.iter().find_map(|(_, size)| *size);
    let options = CreateOptions { label: label.clone(), size, force: args.force };
    let locations: Vec<Location> = places.into_iter().map(|(location, _)| location).collect();
    let location =
        locations.first().ok_or_else(|| CliError::Usage("missing vdev specification".to_owned()))?;
    let places = locations.clone();
    let store = waiting::for_store(app.context, location, move || match places.as_slice() {
        [place] => snowmelt_store::create(place, &options),
        several => snowmelt_store::create_mirror(several, &options),
    })?;
    let store = store.map_err(|error| CliError::failed(&attempt, &error))?;
    let (is_encrypted, fingerprint) = (keys.is_some(), keys.as_ref().map(Keys::fingerprint));
    let options = PoolOptions { keys, ..pool_options(location) };
    let pool = Pool::create(store, &NewPool { name, guid }, options)
        .map_err(|error| CliError::failed(&attempt, &error))?;
    // First of all, so that whatever is written is covered.
    own.set_parity(&pool, &attempt)?;
    own.set_autotrim(&pool, &attempt)?;
    own.set_deadman(&pool, &attempt)?;
    let datasets = Datasets::create(pool).map_err(report::failed(&attempt))?;
    if !disabled.is_empty() {
        pool_features::disable(datasets.pool(), disabled)
            .map_err(|error| CliError::failed(&attempt, &error))?;
    }
    let owner = Owner::new(datasets, location.path());
    let session = owner.session().clone();
    set_up(app, &session.datasets, &properties, &own, &attempt)?;
    app.record(&session);
    drop(session);
    owner.close()?;
    let pin = Pin { place: pins::place(location), guid, is_encrypted, fingerprint, name: name.to_owned() };
    known.set(&pin);
    warn_of_readers(app, &locations);
    remember_all(app, location, &label)?;
    automount::mount_pool(app, name)
}

/// Warns of files for the pool that were there before and that others can read.
pub fn warn_of_readers(app: &mut App<'_>, locations: &[Location]) {
    for location in locations {
        let Location::File(path) = location else { continue };
        let Ok(found) = std::fs::metadata(path) else { continue };
        if found.is_file() && found.mode() & 0o077 != 0 {
            let (path, mode) = (path.display(), found.mode() & 0o777);
            app.context.complain(format_args!(
                "warning: other users can read or change the pool's file {path} (mode {mode:04o}): use 'chmod 600 \
                 {path}'"
            ));
        }
    }
}

/// The key and suite of a pool that is to be encrypted.
fn user_key(app: &App<'_>, args: &PoolCreateArgs) -> Result<Option<(UserKey, Suite)>> {
    let source = args.key.source(app.context);
    let Some(suite) = &args.encrypt else {
        return match source.is_some() || args.key_format.is_some() {
            true => Err(CliError::Usage("a key needs --encrypt".to_owned())),
            false => Ok(None),
        };
    };
    let suite = Suite::of_name(suite).ok_or_else(|| {
        let names = Suite::ALL.map(Suite::name).join(" or ");
        CliError::Usage(format!("invalid suite '{suite}': it must be {names}"))
    })?;
    let format = key_format(args.key_format.as_deref())?;
    let key = UserKey::read(app.context, source.unwrap_or(KeySource::Prompt), format, &args.pool)?;
    Ok(Some((key, suite)))
}

/// As [`remember`], of all members of a mirror: the pool is found by any of them.
///
/// # Errors
/// When the list cannot be written.
pub fn remember_all(app: &mut App<'_>, location: &Location, label: &PoolLabel) -> Result<()> {
    if let Location::Object(_) = location {
        return remember(app, &entry::line(location, label));
    }
    for path in std::iter::once(location.path().to_owned()).chain(snowmelt_store::mirror_paths(location)) {
        if snowmelt_store::exists(&path) == Some(false) {
            continue;
        }
        if location.is_read_only() {
            list(app, &entry::path_line(&snowmelt_store::canonical(&path), true))?;
        } else {
            remember(app, &path)?;
        }
    }
    Ok(())
}

/// Forgets a pool's place, or all those of its members. `paths` are those that it had.
///
/// # Errors
/// When the list cannot be written.
pub fn forget_all(app: &mut App<'_>, paths: &[PathBuf], attempt: &str) -> Result<()> {
    let places: Vec<PathBuf> = paths.iter().map(|path| snowmelt_store::canonical(path)).collect();
    Pins::of(app.context)?.forget(&places);
    for path in places {
        app.places.registry().remove(&path).map_err(|error| CliError::failed(attempt, &error))?;
    }
    Ok(())
}

/// Where a pool is: one path, or those of its members.
pub fn paths_of(location: &Location) -> Vec<PathBuf> {
    let own = snowmelt_store::canonical(location.path());
    std::iter::once(own).chain(snowmelt_store::mirror_paths(location)).collect()
}

/// Lists the pool's place, if it would not be found without.
///
/// # Errors
/// When the list cannot be written.
pub fn remember(app: &mut App<'_>, path: &Path) -> Result<()> {
    let path = snowmelt_store::canonical(path);
    if app.places.is_usual(&path) {
        return Ok(());
    }
    list(app, &path)
}

fn list(app: &App<'_>, line: &Path) -> Result<()> {
    let registry = app.places.registry();
    let attempt = format!("cannot list the pool in {}", registry.path().display());
    registry.add(line).map_err(|error| CliError::failed(attempt, &error))
}

fn set_up(
    app: &mut App<'_>,
    datasets: &Datasets,
    properties: &[(String, String)],
    own: &PoolProperties,
    attempt: &str,
) -> Result<()> {
    if !properties.is_empty() {
        let root =
            Name::parse(datasets.pool_name()).map_err(|error| report::failed(attempt)(error.into()))?;
        datasets.set_properties(&root, properties).map_err(report::failed(attempt))?;
    }
    own.set_comment(datasets.pool(), attempt)?;
    app.context.out.flush()?;
    Ok(())
}

/// Properties of the pool itself that are to be set.
#[derive(Debug, Default)]
pub struct PoolProperties {
    comment: Option<String>,
    /// Hundredths of the data.
    parity: Option<u8>,
    autotrim: Option<bool>,
    deadman: Option<Duration>,
    /// A version of pools that had no features.
    is_old: bool,
    /// `feature@…`, and whether it is to be enabled.
    features: Vec<(&'static str, bool)>,
}

impl PoolProperties {
    /// `-o`: of zpool's properties, only the comment has an effect here. Others are accepted with their only possible
    /// value. `parity` exists only in snowmelt.
    ///
    /// # Errors
    /// When there is no such property, or it cannot have that value.
    pub fn parse(attempt: &str, pairs: &[String]) -> Result<Self> {
        let mut own = Self::default();
        for pair in pairs {
            match assignments::split(pair)? {
                ("comment", text) if text.len() <= 32 * 1024 => own.comment = Some(text.to_owned()),
                ("comment", _) => return Err(CliError::Failed(format!("{attempt}: comment is too long"))),
                ("parity", text) => own.parity = Some(parse_parity(attempt, text)?),
                ("autotrim", "on") => own.autotrim = Some(true),
                ("autotrim", "off") => own.autotrim = Some(false),
                ("autotrim", _) => {
                    return Err(CliError::Failed(format!("{attempt}: 'autotrim' must be one of 'on | off'")));
                }
                ("deadman", text) => own.deadman = Some(parse_deadman(attempt, text)?),
                ("ashift" | "autoexpand" | "autoreplace" | "cachefile" | "failmode" | "listsnapshots", _) => {
                }
                ("compatibility" | "delegation" | "multihost", _) => {}
                ("version", text) if is_pool_version(text) => own.is_old = text != FEATURES_VERSION,
                (name, text) if name.starts_with("feature@") => own.parse_feature(attempt, name, text)?,
                (name, _) => {
                    return Err(CliError::Failed(format!(
                        "{attempt}: property '{name}' is not a valid pool property"
                    )));
                }
            }
        }
        Ok(own)
    }

    /// `feature@NAME=enabled`, or `disabled`. What is about the layout of ZFS's disks alone is no matter here.
    fn parse_feature(&mut self, attempt: &str, name: &str, state: &str) -> Result<()> {
        let is_enabled = match state {
            "enabled" => true,
            "disabled" => false,
            _ => {
                return Err(CliError::Failed(format!(
                    "{attempt}: property '{name}' can only be set to 'enabled' or 'disabled'"
                )));
            }
        };
        let known = pool_features::names().find(|known| name.strip_prefix("feature@") == Some(known));
        self.features.extend(known.map(|known| (known, is_enabled)));
        Ok(())
    }

    /// The features that a new pool is not to have; with `none` all that are not named.
    fn disabled_features(&self, none: bool) -> Vec<&'static str> {
        let is_off = |name: &&str| {
            let last = self.features.iter().rev().find(|(known, _)| known == name);
            last.map_or(none || self.is_old, |(_, is_enabled)| !is_enabled)
        };
        pool_features::names().filter(is_off).collect()
    }

    /// Enables features of a pool.
    ///
    /// # Errors
    /// When one is to be disabled, which a pool is only made with; when the pool cannot be written.
    pub fn enable_features(&self, pool: &Pool, attempt: &str) -> Result<()> {
        if let Some((name, _)) = self.features.iter().find(|(_, is_enabled)| !is_enabled) {
            return Err(CliError::Failed(format!(
                "{attempt}: property 'feature@{name}' can only be set to 'disabled' at creation time"
            )));
        }
        if self.features.is_empty() {
            return Ok(());
        }
        let names: Vec<_> = self.features.iter().map(|(name, _)| *name).collect();
        pool_features::enable(pool, &names).map_err(|error| CliError::failed(attempt, &error))?;
        Ok(())
    }

    /// Gives a pool its comment, if there is to be one.
    ///
    /// # Errors
    /// When the pool cannot be written.
    pub fn set_comment(&self, pool: &Pool, attempt: &str) -> Result<()> {
        let Some(comment) = &self.comment else { return Ok(()) };
        let hold = pool.begin().map_err(|error| CliError::failed(attempt, &error))?;
        let set = pool.set_property(&hold, "comment", comment.as_bytes());
        set.map_err(|error| CliError::failed(attempt, &error))
    }

    /// Gives a pool its parity, if it is to be set.
    ///
    /// # Errors
    /// When the pool cannot be written.
    pub fn set_parity(&self, pool: &Pool, attempt: &str) -> Result<()> {
        let Some(percent) = self.parity else { return Ok(()) };
        pool.set_parity(percent).map_err(|error| CliError::failed(attempt, &error))
    }

    /// Sets whether free space is reported at once to the medium below, if it was given.
    ///
    /// # Errors
    /// When the pool cannot be written.
    pub fn set_autotrim(&self, pool: &Pool, attempt: &str) -> Result<()> {
        let Some(on) = self.autotrim else { return Ok(()) };
        pool.set_autotrim(on).map_err(|error| CliError::failed(attempt, &error))
    }

    /// Says how long a member of a mirror may take to answer, if that is to be set.
    ///
    /// # Errors
    /// When the pool cannot be written.
    pub fn set_deadman(&self, pool: &Pool, attempt: &str) -> Result<()> {
        let Some(wait) = self.deadman else { return Ok(()) };
        pool.set_deadman(wait).map_err(|error| CliError::failed(attempt, &error))
    }
}

/// The version of pools whose features have names.
const FEATURES_VERSION: &str = "5000";

/// Whether ZFS knows such a version of pools: those before features had names, and the one of all since.
fn is_pool_version(text: &str) -> bool {
    text.parse().is_ok_and(|version: u32| matches!(version, 1..=28 | 5000))
}

/// A number of seconds, with or without its unit.
fn parse_deadman(attempt: &str, text: &str) -> Result<Duration> {
    let number = text.strip_suffix('s').unwrap_or(text).parse().ok();
    let wait = number.map(Duration::from_secs);
    wait.filter(|wait| (DEADMAN_MIN..=DEADMAN_MAX).contains(wait)).ok_or_else(|| {
        CliError::Failed(format!("{attempt}: 'deadman' must be a number of seconds from 1s to 86400s"))
    })
}

/// `off`, or a percentage of the data.
fn parse_parity(attempt: &str, text: &str) -> Result<u8> {
    let number = match text {
        "off" => Some(0),
        text => text.strip_suffix('%').unwrap_or(text).parse().ok(),
    };
    number.filter(|percent| *percent <= PARITY_MAX_PERCENT).ok_or_else(|| {
        let allowed = format!("'off', or a percentage from 0% to {PARITY_MAX_PERCENT}%");
        CliError::Failed(format!("{attempt}: 'parity' must be {allowed}"))
    })
}

fn root_properties(attempt: &str, args: &PoolCreateArgs) -> Result<Vec<(String, String)>> {
    let mut pairs = assignments::split_all(&args.properties)?;
    if let Some(mountpoint) = &args.mountpoint {
        pairs.push(("mountpoint", mountpoint));
    }
    Ok(assignments::stored(&assignments::for_new(attempt, &pairs, Types::FILESYSTEM)?))
}

/// Where the pool will be, and the size of the files that will be made for it.
fn vdevs(app: &App<'_>, args: &PoolCreateArgs, attempt: &str) -> Result<Vec<(Location, Option<u64>)>> {
    let size = file_size(args.size.as_deref(), attempt)?;
    let words: Vec<&Path> = args.vdevs.iter().map(PathBuf::as_path).collect();
    let invalid =
        |what: &str| Err(CliError::Failed(format!("{attempt}: invalid vdev specification: {what}")));
    let paths: Vec<PathBuf> = match words.as_slice() {
        [] => vec![app.places.default_path(&args.pool)],
        [first, members @ ..] if *first == Path::new("mirror") => match members {
            [] | [_] => return invalid("mirror requires at least 2 devices"),
            members if members.contains(&Path::new("mirror")) => {
                return invalid("a pool can have only one mirror");
            }
            members => members.iter().map(|path| app.context.path(path)).collect(),
        },
        [path] => vec![app.context.path(path)],
        _ => {
            return invalid(
                "a pool has one device, or one mirror: put 'mirror' before the names of several devices",
            );
        }
    };
    paths.into_iter().map(|path| place(path, size, attempt)).collect()
}

/// The size given for files that are to be made.
///
/// # Errors
/// When it is none.
pub fn file_size(size: Option<&str>, attempt: &str) -> Result<Option<u64>> {
    let size = size.map(parse_size).transpose();
    size.map_err(|error| CliError::Failed(format!("{attempt}: {error}")))
}

/// The kind of a vdev, and the size of the file if one has to be created.
///
/// # Errors
/// When it cannot be one.
pub fn place(path: PathBuf, size: Option<u64>, attempt: &str) -> Result<(Location, Option<u64>)> {
    let location = match (path.exists(), size) {
        (false, Some(_)) if !snowmelt_store::is_url(&path) => Location::File(path),
        _ => Location::detect(&path).map_err(|error| CliError::failed(attempt, &error))?,
    };
    match (&location, size) {
        (Location::Directory(path), Some(_)) => Err(CliError::Failed(format!(
            "{attempt}: {} is a directory, and --size is only for files",
            path.display()
        ))),
        (Location::Object(_), Some(_)) => {
            Err(CliError::Failed(format!("{attempt}: --size is only for files, not for buckets")))
        }
        (Location::File(path), None) if !path.exists() => Err(CliError::Failed(format!(
            "{attempt}: {} does not exist: use --size to create it",
            path.display()
        ))),
        _ => Ok((location, size)),
    }
}
