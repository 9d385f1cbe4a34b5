//! `pool create`.

use std::io::Write;
use std::path::{Path, PathBuf};

use snowmelt_dataset::name::check_pool;
use snowmelt_dataset::property::{Types, parse_size};
use snowmelt_dataset::{Datasets, Name};
use snowmelt_pool::{NewPool, Pool, PoolOptions};
use snowmelt_store::{CreateOptions, Location, PoolLabel};

use super::assignments;
use crate::app::App;
use crate::args::PoolCreateArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::pools::{Owner, random_guid};
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
    let comment = pool_comment(&attempt, &args.pool_properties)?;
    let properties = root_properties(&attempt, args)?;
    let (location, size) = place(app, args, &attempt)?;
    if args.dry_run {
        writeln!(app.context.out, "would create '{name}' in {}", location.path().display())?;
        return Ok(Exit::Ok);
    }
    let guid = random_guid(&attempt)?;
    let label = PoolLabel { name: name.to_owned(), guid };
    if let Location::Directory(path) = &location {
        std::fs::create_dir_all(path).map_err(|error| CliError::failed(&attempt, &error))?;
    }
    let options = CreateOptions { label, size, force: args.force };
    let store =
        snowmelt_store::create(&location, &options).map_err(|error| CliError::failed(&attempt, &error))?;
    let pool = Pool::create(store, &NewPool { name, guid }, PoolOptions::default())
        .map_err(|error| CliError::failed(&attempt, &error))?;
    let datasets = Datasets::create(pool).map_err(report::failed(&attempt))?;
    let owner = Owner::new(datasets);
    let session = owner.session().clone();
    set_up(app, &session.datasets, &properties, comment.as_deref(), &attempt)?;
    app.record(&session);
    drop(session);
    owner.close()?;
    remember(app, location.path())?;
    Ok(Exit::Ok)
}

/// Lists the pool's place, if it would not be found without.
///
/// # Errors
/// When the list cannot be written.
pub fn remember(app: &mut App<'_>, path: &Path) -> Result<()> {
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if app.places.is_usual(&path) {
        return Ok(());
    }
    let registry = app.places.registry();
    let attempt = format!("cannot list the pool in {}", registry.path().display());
    registry.add(&path).map_err(|error| CliError::failed(attempt, &error))
}

fn set_up(
    app: &mut App<'_>,
    datasets: &Datasets,
    properties: &[(String, String)],
    comment: Option<&str>,
    attempt: &str,
) -> Result<()> {
    if !properties.is_empty() {
        let root =
            Name::parse(datasets.pool_name()).map_err(|error| report::failed(attempt)(error.into()))?;
        datasets.set_properties(&root, properties).map_err(report::failed(attempt))?;
    }
    if let Some(comment) = comment {
        let pool = datasets.pool();
        let hold = pool.begin().map_err(|error| CliError::failed(attempt, &error))?;
        pool.set_property(&hold, "comment", comment.as_bytes())
            .map_err(|error| CliError::failed(attempt, &error))?;
    }
    app.context.out.flush()?;
    Ok(())
}

/// `-o`: of zpool's properties only the comment means anything here; those that choose what is the only choice are
/// accepted.
fn pool_comment(attempt: &str, pairs: &[String]) -> Result<Option<String>> {
    let mut comment = None;
    for pair in pairs {
        match assignments::split(pair)? {
            ("comment", text) if text.len() <= 32 * 1024 => comment = Some(text.to_owned()),
            ("comment", _) => return Err(CliError::Failed(format!("{attempt}: comment is too long"))),
            (
                "ashift" | "autotrim" | "autoexpand" | "autoreplace" | "cachefile" | "failmode"
                | "listsnapshots",
                _,
            ) => {}
            ("compatibility" | "delegation" | "multihost", _) => {}
            (name, _) if name.starts_with("feature@") => {}
            (name, _) => {
                return Err(CliError::Failed(format!(
                    "{attempt}: property '{name}' is not a valid pool property"
                )));
            }
        }
    }
    Ok(comment)
}

fn root_properties(attempt: &str, args: &PoolCreateArgs) -> Result<Vec<(String, String)>> {
    let mut pairs = assignments::split_all(&args.properties)?;
    if let Some(mountpoint) = &args.mountpoint {
        pairs.push(("mountpoint", mountpoint));
    }
    Ok(assignments::stored(&assignments::for_new(attempt, &pairs, Types::FILESYSTEM)?))
}

/// Where the pool will be, and the size of the file that will be made for it.
fn place(app: &App<'_>, args: &PoolCreateArgs, attempt: &str) -> Result<(Location, Option<u64>)> {
    let size = args.size.as_deref().map(parse_size).transpose();
    let size = size.map_err(|error| CliError::Failed(format!("{attempt}: {error}")))?;
    let path: PathBuf = match &args.vdev {
        Some(path) => app.context.path(path),
        None => app.places.default_path(&args.pool),
    };
    let location = match (path.exists(), size) {
        (false, Some(_)) => Location::File(path),
        _ => Location::detect(&path).map_err(|error| CliError::failed(attempt, &error))?,
    };
    match (&location, size) {
        (Location::Directory(path), Some(_)) => {
            Err(CliError::Failed(format!("{attempt}: {} is a directory, which has no size", path.display())))
        }
        (Location::File(path), None) if !path.exists() => Err(CliError::Failed(format!(
            "{attempt}: {} does not exist: give a --size to make it",
            path.display()
        ))),
        _ => Ok((location, size)),
    }
}
