//! `pool import`.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use snowmelt_dataset::name::check_pool;
use snowmelt_dataset::text::visible_name;
use snowmelt_pool::Rewind;
use snowmelt_store::{Access, Location, PoolLabel};

use super::pool_create::{paths_of, remember_all};
use super::scan_text::date;
use super::{assignments, automount};
use crate::app::App;
use crate::args::{CacheArgs, PoolImportArgs};
use crate::cache;
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::output::json;
use crate::pools::keys::{self, KeySource, Stdin, Told};
use crate::pools::pins::{self, Pin, Pins};
use crate::pools::{KnownPool, Owner, acquire_alone, acquire_txg, look_at_txg, waiting};
use crate::report;

/// Finds pools and remembers where they are.
///
/// # Errors
/// When there is no such pool, or another one has its name.
pub fn run(app: &mut App<'_>, args: &PoolImportArgs) -> Result<Exit> {
    let options = ImportOptions::of(app.context, args)?;
    if let Some(url) = args.pool.as_ref().filter(|pool| snowmelt_store::is_url(pool)) {
        return import_url(app, url, &options).map(|()| Exit::Ok);
    }
    let found = found(app, args);
    let Some(wanted) = &args.pool else {
        if options.key.is_some() {
            return Err(CliError::Usage("a key is for one pool: give its name".to_owned()));
        }
        if args.cache.cache.is_some() {
            return Err(CliError::Usage("a cache is for one pool: give its name".to_owned()));
        }
        return if args.all { import_all(app, found, &options) } else { show(app, &found, args.json) };
    };
    let mut matching = found.into_iter().filter(|pool| {
        pool.label.name == *wanted || pool.label.guid.to_string() == *wanted || is_path_of(app, pool, wanted)
    });
    let Some(pool) = matching.next() else {
        return Err(CliError::Failed(format!("cannot import '{wanted}': no such pool available")));
    };
    if matching.next().is_some() {
        return Err(CliError::Failed(format!(
            "cannot import '{wanted}': more than one matching pool\nimport by numeric ID instead"
        )));
    }
    import_with_key(app, &pool, &options)?;
    mount(app, options.new_name.unwrap_or(&pool.label.name), &options)
}

/// Mounts the filesystems of the imported pool, if mounting is automatic.
fn mount(app: &mut App<'_>, name: &str, options: &ImportOptions<'_>) -> Result<Exit> {
    match options.no_mount || options.dry_run {
        true => Ok(Exit::Ok),
        false => automount::mount_pool(app, name),
    }
}

/// The txg that the arguments select.
fn rewind(args: &PoolImportArgs) -> Rewind {
    match (args.txg, args.rewind, args.extreme) {
        (Some(txg), ..) => Rewind::To(txg),
        (None, true, true) => Rewind::Extreme,
        (None, true, false) => Rewind::Recent,
        (None, false, _) => Rewind::No,
    }
}

/// Reports the result of a rewind.
fn would_rewind(app: &mut App<'_>, pool: &KnownPool, rewind: Rewind, as_json: bool) -> Result<()> {
    let attempt = format!("cannot import '{}'", pool.label.name);
    let owner = look_at_txg(app.context, &pool.location, &attempt, rewind)?;
    if as_json {
        return rewound_json(app, &owner, true);
    }
    let told = rewound(app, &owner, "would be");
    let name = &pool.label.name;
    let told = told
        .unwrap_or_else(|| format!("'{name}' can be imported without a rewind: nothing would be discarded"));
    writeln!(app.context.out, "{told}")?;
    Ok(())
}

/// The changes that were or would be discarded.
fn rewound(app: &App<'_>, owner: &Owner, is: &str) -> Option<String> {
    let session = owner.session();
    let report = session.datasets.pool().open_report();
    let txgs = report.passed_over.len();
    (txgs > 0).then(|| {
        format!(
            "'{}' {is} as of txg {}, {}: {txgs} {} discarded, {} seconds of changes\nrun a scrub afterwards, to \
             check that all data can be read",
            session.name(),
            report.txg,
            date(report.time, &app.context.time_zone()),
            if txgs == 1 { "txg" } else { "txgs" },
            report.lost,
        )
    })
}

/// The same as JSON, also where nothing is discarded.
fn rewound_json(app: &mut App<'_>, owner: &Owner, dry_run: bool) -> Result<()> {
    let session = owner.session();
    let report = session.datasets.pool().open_report();
    let mut document = json::document("snowmelt pool import");
    for (key, value) in [
        ("pool", json!(session.name())),
        ("txg", json!(report.txg)),
        ("time", json!(report.time)),
        ("discarded_txgs", json!(report.passed_over.len())),
        ("discarded_seconds", json!(report.lost)),
        ("dry_run", json!(dry_run)),
    ] {
        document.insert(key.to_owned(), value);
    }
    json::print(&mut app.context.out, document)?;
    Ok(())
}

/// How a pool is imported.
struct ImportOptions<'a> {
    new_name: Option<&'a str>,
    /// It is only read here.
    read_only: bool,
    /// Take it from the machine that wrote to it last.
    force: bool,
    rewind: Rewind,
    /// Whatever pool was known at its place.
    accept_new: bool,
    /// Only report the result of a rewind (dry run).
    dry_run: bool,
    /// Where the key of an encrypted pool is, as far as this machine is concerned.
    key: Option<KeySource>,
    cache: &'a CacheArgs,
    /// Nothing is mounted.
    no_mount: bool,
    json: bool,
}

impl<'a> ImportOptions<'a> {
    fn of(context: &Context, args: &'a PoolImportArgs) -> Result<Self> {
        let mut read_only = false;
        for pair in &args.properties {
            match assignments::split(pair)? {
                ("readonly", "on") => read_only = true,
                ("readonly", "off") => read_only = false,
                (name, _) => {
                    return Err(CliError::Failed(format!(
                        "cannot import: property '{name}' cannot be set here, or not to this value"
                    )));
                }
            }
        }
        let new_name = args.new_name.as_deref();
        if read_only && new_name.is_some() {
            return Err(CliError::Failed(
                "cannot import: a pool that is imported read-only cannot be renamed".to_owned(),
            ));
        }
        Ok(Self {
            new_name,
            read_only,
            force: args.force,
            rewind: rewind(args),
            accept_new: args.accept_new,
            dry_run: args.dry_run,
            key: args.key.source(context),
            cache: &args.cache,
            no_mount: args.no_mount,
            json: args.json,
        })
    }
}

/// The pool at an address. Errors are reported, because the address was given explicitly.
fn import_url(app: &mut App<'_>, url: &str, options: &ImportOptions<'_>) -> Result<()> {
    let attempt = format!("cannot import '{url}'");
    let location = Location::detect(url).map_err(|error| CliError::failed(&attempt, &error))?;
    let place = location.clone();
    let label = waiting::for_store(app.context, &location, move || snowmelt_store::label(&place))?;
    let label = label.map_err(|error| CliError::failed(&attempt, &error))?;
    import_with_key(app, &KnownPool { label, location }, options)
}

/// Imports a pool, and stores the given source of its key on this machine.
fn import_with_key(app: &mut App<'_>, pool: &KnownPool, options: &ImportOptions<'_>) -> Result<()> {
    let Some(source) = &options.key else { return import(app, pool, options) };
    let guid = pool.label.guid;
    app.context.keys.only(guid, source.clone());
    import(app, pool, options)?;
    if options.dry_run { Ok(()) } else { Told::of(app.context, guid).set(Some(source)) }
}

/// All places to search: those of `-d`, or a path that was given instead of a name, else the working directory and
/// the usual places.
fn found(app: &App<'_>, args: &PoolImportArgs) -> Vec<KnownPool> {
    let mut paths: Vec<PathBuf> = args.search.iter().map(|path| app.context.path(path)).collect();
    if let Some(path) = args.pool.as_ref().filter(|pool| pool.contains('/')) {
        paths.push(app.context.path(path));
    }
    if !paths.is_empty() {
        return app.places.only(paths).all();
    }
    let mut pools = app.places.only(vec![app.context.cwd().to_owned()]).all();
    pools.extend(app.places.all());
    pools.sort_by_key(|pool| pool.label.guid);
    pools.dedup_by_key(|pool| pool.label.guid);
    pools
}

fn is_path_of(app: &App<'_>, pool: &KnownPool, wanted: &str) -> bool {
    let canonical = snowmelt_store::canonical;
    wanted.contains('/') && canonical(pool.location.path()) == canonical(&app.context.path(wanted))
}

/// Pools that are found already need no import.
fn is_known(app: &App<'_>, pool: &KnownPool) -> bool {
    app.places.find(&pool.label.name).is_some_and(|known| known.label.guid == pool.label.guid)
}

fn show(app: &mut App<'_>, found: &[KnownPool], as_json: bool) -> Result<Exit> {
    let importable: Vec<_> = found.iter().filter(|pool| !is_known(app, pool)).collect();
    if as_json {
        let pools: Vec<_> = importable.iter().map(|pool| importable_json(pool)).collect();
        let mut document = json::document("snowmelt pool import");
        document.insert("pools".to_owned(), pools.into());
        json::print(&mut app.context.out, document)?;
        return Ok(Exit::unless(importable.is_empty()));
    }
    if importable.is_empty() {
        app.context.complain("no pools available to import");
        return Ok(Exit::Failed);
    }
    let out = &mut app.context.out;
    for (at, pool) in importable.iter().enumerate() {
        if at > 0 {
            writeln!(out)?;
        }
        // The disk of a stranger can have any content.
        let name = visible_name(pool.label.name.as_bytes());
        writeln!(out, "   pool: {name}\n     id: {}\n  state: ONLINE", pool.label.guid)?;
        writeln!(out, " action: The pool can be imported using its name or numeric identifier.\n config:\n")?;
        writeln!(out, "\t{name}  ONLINE")?;
        for path in members(pool) {
            let shown = visible_name(path.as_os_str().as_encoded_bytes());
            writeln!(out, "\t  {shown}  {}", state_of(&path))?;
        }
    }
    Ok(Exit::Ok)
}

fn members(pool: &KnownPool) -> Vec<PathBuf> {
    let mut paths = paths_of(&pool.location);
    paths.sort();
    paths.dedup();
    paths
}

fn importable_json(pool: &KnownPool) -> Value {
    let vdevs: Map<_, _> = members(pool)
        .iter()
        .map(|path| (path.display().to_string(), json!({ "state": state_of(path) })))
        .collect();
    json!({
        "name": pool.label.name,
        "pool_guid": pool.label.guid.to_string(),
        "state": "ONLINE",
        "vdevs": vdevs,
    })
}

fn state_of(path: &Path) -> &'static str {
    if snowmelt_store::exists(path) == Some(true) { "ONLINE" } else { "UNAVAIL" }
}

fn import_all(app: &mut App<'_>, found: Vec<KnownPool>, options: &ImportOptions<'_>) -> Result<Exit> {
    let mut failed = false;
    for pool in found {
        if is_known(app, &pool) {
            continue;
        }
        let imported = import(app, &pool, options).and_then(|()| mount(app, &pool.label.name, options));
        match imported {
            Ok(exit) => failed |= exit != Exit::Ok,
            Err(error) => {
                app.context.complain(error);
                failed = true;
            }
        }
    }
    Ok(Exit::unless(failed))
}

fn import(app: &mut App<'_>, pool: &KnownPool, options: &ImportOptions<'_>) -> Result<()> {
    let name = options.new_name.unwrap_or(&pool.label.name);
    let attempt = format!("cannot import '{}'", pool.label.name);
    check_pool(name).map_err(|error| report::failed(&attempt)(error.into()))?;
    // A known pool at the same place is checked against its pin. It is not a second pool of this name.
    let is_other = |other: &KnownPool| {
        let canonical = snowmelt_store::canonical;
        other.label.guid != pool.label.guid
            && canonical(other.location.path()) != canonical(pool.location.path())
    };
    if let Some(other) = app.places.find(name).filter(is_other) {
        return Err(CliError::Failed(format!(
            "{attempt}: a pool with that name already exists at {}\nuse the form 'zpool import <pool | id> <newpool>' to \
             give it a new name",
            other.location.path().display()
        )));
    }
    let failed = |error: snowmelt_store::StoreError| CliError::failed(&attempt, &error);
    let mut location = pool.location.clone().with_read_only(options.read_only);
    cache::choose(app, &mut location, options.cache, &attempt)?;
    cache::check(&location, pool.label.guid, &attempt)?;
    if options.accept_new && !options.dry_run {
        accept(app, &KnownPool { label: pool.label.clone(), location: location.clone() })?;
    }
    if let Location::Object(object) = &location {
        if options.force && !options.read_only && !options.dry_run {
            // Without the key, a pool cannot be taken over.
            can_open(app, pool)?;
            snowmelt_store::take_over(&object.url).map_err(failed)?;
        }
    } else if options.read_only && app.places.is_usual(&snowmelt_store::canonical(location.path())) {
        return Err(CliError::Failed(format!(
            "{attempt}: its directory is searched for pools, so it is found without being imported: move it \
             elsewhere first"
        )));
    }
    if options.dry_run {
        return would_rewind(
            app,
            &KnownPool { label: pool.label.clone(), location },
            options.rewind,
            options.json,
        );
    }
    if location.is_read_only() {
        // That it can be read at all.
        can_open(app, &KnownPool { label: pool.label.clone(), location: location.clone() })?;
        return remember_all(app, &location, &pool.label);
    }
    let owner = acquire_txg(app.context, &location, &attempt, options.rewind)?;
    // This write makes the older txg the newest.
    app.record(owner.session());
    let told = rewound(app, &owner, "is").filter(|_| !options.json);
    if options.json {
        rewound_json(app, &owner, false)?;
    }
    owner.close()?;
    if let Some(told) = told {
        writeln!(app.context.out, "{told}")?;
    }
    if name != pool.label.name {
        rename(app, pool, name, &attempt)?;
    }
    let label = PoolLabel { name: name.to_owned(), guid: pool.label.guid };
    remember_all(app, &location, &label)
}

/// Whether a pool can be read, is the one that is known at its place, and its key is to be had.
fn can_open(app: &App<'_>, pool: &KnownPool) -> Result<()> {
    let location = &pool.location;
    let failed = |error| CliError::failed(format!("cannot import {}", location.path().display()), &error);
    let store = waiting::open(app.context, location, Access::ReadOnly)?.map_err(failed)?;
    let record = keys::record(&*store, location)?;
    let pins = Pins::of(app.context)?;
    pins.verify_unopened(pool, record.is_some())?;
    let Some(record) = record else { return Ok(()) };
    pins.verify_key(pool, &keys::of_record(app.context, &record, location, Stdin::Free)?)
}

/// From now on this pool is the known one at its place, whatever was there before. It may be refused because of pools
/// in other places too, so it is recorded with its key before it is opened.
fn accept(app: &App<'_>, pool: &KnownPool) -> Result<()> {
    let location = &pool.location;
    let failed = |error| CliError::failed(format!("cannot import {}", location.path().display()), &error);
    let store = waiting::open(app.context, location, Access::ReadOnly)?.map_err(failed)?;
    let record = keys::record(&*store, location)?;
    drop(store);
    let mut accepted = Pin::unopened(pool, record.is_some());
    if let Some(record) = record {
        let keys = keys::of_record(app.context, &record, location, Stdin::Free)?;
        accepted.fingerprint = Some(keys.fingerprint());
    }
    let pins = Pins::of(app.context)?;
    pins.forget(&[pins::place(location)]);
    pins.set(&accepted);
    Ok(())
}

/// The name in the pool is changed first. Searches read the label, so after a crash in between the pool has the old
/// name.
fn rename(app: &App<'_>, pool: &KnownPool, name: &str, attempt: &str) -> Result<()> {
    let owner = acquire_alone(app.context, &pool.location, attempt)?;
    {
        let pool = owner.session().datasets.pool();
        let hold = pool.begin().map_err(|error| CliError::failed(attempt, &error))?;
        pool.set_property(&hold, "name", name.as_bytes())
            .map_err(|error| CliError::failed(attempt, &error))?;
    }
    owner.close()?;
    let label = PoolLabel { name: name.to_owned(), guid: pool.label.guid };
    let place = pool.location.clone();
    let named =
        waiting::for_store(app.context, &pool.location, move || snowmelt_store::set_label(&place, &label))?;
    named.map_err(|error| CliError::failed(attempt, &error))
}
