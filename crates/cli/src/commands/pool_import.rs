//! `pool import`.

use std::io::Write;
use std::path::{Path, PathBuf};

use snowmelt_dataset::name::check_pool;
use snowmelt_store::PoolLabel;

use super::pool_create::remember;
use crate::app::App;
use crate::args::PoolImportArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::pools::{KnownPool, acquire_alone};
use crate::report;

/// Finds pools and remembers where they are.
///
/// # Errors
/// When there is no such pool, or another one has its name.
pub fn run(app: &mut App<'_>, args: &PoolImportArgs) -> Result<Exit> {
    let found = found(app, args);
    let Some(wanted) = &args.pool else {
        return if args.all { import_all(app, found) } else { show(app, &found) };
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
    import(app, &pool, args.new_name.as_deref())?;
    Ok(Exit::Ok)
}

/// Everything where pools are looked for: at `-d`, at a path that is given instead of a name, else in the working
/// directory and at the usual places.
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
    let canonical = |path: &Path| std::fs::canonicalize(path).ok();
    let path = canonical(&app.context.path(wanted));
    wanted.contains('/') && path.is_some() && canonical(pool.location.path()) == path
}

/// Pools that are found already need no import.
fn is_known(app: &App<'_>, pool: &KnownPool) -> bool {
    app.places.find(&pool.label.name).is_some_and(|known| known.label.guid == pool.label.guid)
}

fn show(app: &mut App<'_>, found: &[KnownPool]) -> Result<Exit> {
    let importable: Vec<_> = found.iter().filter(|pool| !is_known(app, pool)).collect();
    if importable.is_empty() {
        app.context.complain("no pools available to import");
        return Ok(Exit::Failed);
    }
    let out = &mut app.context.out;
    for (at, pool) in importable.iter().enumerate() {
        if at > 0 {
            writeln!(out)?;
        }
        writeln!(out, "   pool: {}\n     id: {}\n  state: ONLINE", pool.label.name, pool.label.guid)?;
        writeln!(out, " action: The pool can be imported using its name or numeric identifier.\n config:\n")?;
        writeln!(out, "\t{}  ONLINE\n\t  {}  ONLINE", pool.label.name, pool.location.path().display())?;
    }
    Ok(Exit::Ok)
}

fn import_all(app: &mut App<'_>, found: Vec<KnownPool>) -> Result<Exit> {
    let mut failed = false;
    for pool in found {
        if is_known(app, &pool) {
            continue;
        }
        if let Err(error) = import(app, &pool, None) {
            app.context.complain(error);
            failed = true;
        }
    }
    Ok(Exit::unless(failed))
}

fn import(app: &mut App<'_>, pool: &KnownPool, new_name: Option<&str>) -> Result<()> {
    let name = new_name.unwrap_or(&pool.label.name);
    let attempt = format!("cannot import '{}'", pool.label.name);
    check_pool(name).map_err(|error| report::failed(&attempt)(error.into()))?;
    if let Some(other) = app.places.find(name).filter(|other| other.label.guid != pool.label.guid) {
        return Err(CliError::Failed(format!(
            "{attempt}: a pool with that name already exists at {}\nuse the form 'pool import <pool | id> <newpool>' to \
             give it a new name",
            other.location.path().display()
        )));
    }
    if name != pool.label.name {
        rename(pool, name, &attempt)?;
    }
    let owner = acquire_alone(&pool.location, &attempt)?;
    app.record(owner.session());
    owner.close()?;
    remember(app, pool.location.path())
}

/// The pool's own record of its name first: the label is what is found, so a crash between leaves the old name.
fn rename(pool: &KnownPool, name: &str, attempt: &str) -> Result<()> {
    let owner = acquire_alone(&pool.location, attempt)?;
    {
        let pool = owner.session().datasets.pool();
        let hold = pool.begin().map_err(|error| CliError::failed(attempt, &error))?;
        pool.set_property(&hold, "name", name.as_bytes())
            .map_err(|error| CliError::failed(attempt, &error))?;
    }
    owner.close()?;
    let label = PoolLabel { name: name.to_owned(), guid: pool.label.guid };
    snowmelt_store::set_label(&pool.location, &label).map_err(|error| CliError::failed(attempt, &error))
}
