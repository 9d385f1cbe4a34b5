//! `salvage`.

use std::io::Write;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use snowmelt_pool::{CheckOptions, Keys, LostState, PoolOptions, Salvage};
use snowmelt_store::Access;

use crate::app::App;
use crate::args::SalvageArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::output::json;
use crate::pools::keys::{self, Stdin};
use crate::pools::pins::Pins;
use crate::pools::{KnownPool, acquire_alone, acquire_lost, waiting};
use crate::progress::Progress;
use crate::report;

/// States that are looked into. Each takes a walk over all metadata.
const TRIED_MAX: usize = 64;

/// A state, and how many errors a check of its metadata finds.
struct Judged<'a> {
    state: &'a LostState,
    errors: u64,
    datasets: usize,
}

/// Searches a pool's segments for its states, and takes it back to the newest that is whole.
///
/// # Errors
/// When there is no such pool, it can be opened as it is, or nothing is found.
pub fn run(app: &mut App<'_>, args: &SalvageArgs) -> Result<Exit> {
    let name = &args.pool;
    let attempt = format!("cannot salvage '{name}'");
    let found =
        if name.contains('/') { app.places.at(&app.context.path(name)) } else { app.places.find(name) };
    let Some(pool) = found else {
        return Err(CliError::Failed(format!(
            "{attempt}: no such pool\na path is a pool only if it has a label"
        )));
    };
    // If another process has it open, it can be opened.
    let store = waiting::open(app.context, &pool.location, Access::ReadWrite)?;
    drop(store.map_err(|error| CliError::failed(&attempt, &error))?);
    if acquire_alone(app.context, &pool.location, &attempt).is_ok() {
        match args.json {
            true => tell_json(app, name, &[("needed", json!(false))])?,
            false => writeln!(app.context.out, "'{name}' can be opened: there is nothing to salvage")?,
        }
        return Ok(Exit::Ok);
    }
    let salvage = search(app, &pool, &attempt)?;
    let record = salvage.key_record();
    let pins = Pins::of(app.context)?;
    // Before a key is asked for.
    pins.verify_unopened(&pool, record.is_some())?;
    let keys =
        record.map(|record| keys::of_record(app.context, record, &pool.location, Stdin::Free)).transpose()?;
    keys.as_ref().map_or(Ok(()), |keys| pins.verify_key(&pool, keys))?;
    if !args.json {
        writeln!(
            app.context.out,
            "found {} blocks and {} damaged ones, and the roots of {} txgs",
            salvage.frames,
            salvage.damaged,
            salvage.states.len()
        )?;
    }
    let Some(best) = best(app, &pool, &salvage, keys.as_ref())? else {
        return Err(CliError::Failed(format!(
            "{attempt}: none of the {} newest txgs has a readable meta tree\nnothing was changed",
            salvage.states.len().min(TRIED_MAX)
        )));
    };
    let (txg, is) = (best.state.txg(), if args.dry_run { "would be" } else { "is" });
    if !args.dry_run {
        let owner = acquire_lost(
            &pool.location,
            &attempt,
            &salvage,
            best.state,
            PoolOptions { keys, ..PoolOptions::default() },
        )?;
        // This write makes this state the newest.
        let recorded = owner.session().datasets.record_history(&format!("snowmelt salvage {name}"));
        recorded.map_err(report::failed(&attempt))?;
        owner.close()?;
    }
    if args.json {
        let found = [
            ("needed", json!(true)),
            ("blocks", json!(salvage.frames)),
            ("damaged", json!(salvage.damaged)),
            ("txgs", json!(salvage.states.len())),
            ("txg", json!(txg)),
            ("datasets", json!(best.datasets)),
            ("errors", json!(best.errors)),
            ("dry_run", json!(args.dry_run)),
        ];
        tell_json(app, name, &found)?;
        return Ok(Exit::unless(best.errors > 0));
    }
    let wrong = match best.errors {
        0 => "no errors in its metadata".to_owned(),
        1 => "1 error in its metadata".to_owned(),
        errors => format!("{errors} errors in its metadata"),
    };
    writeln!(
        app.context.out,
        "'{name}' {is} as of txg {txg}: {} datasets, {wrong}\nrun a scrub, to check that all data can be read",
        best.datasets
    )?;
    Ok(Exit::unless(best.errors > 0))
}

fn tell_json(app: &mut App<'_>, name: &str, found: &[(&str, Value)]) -> Result<()> {
    let mut document = json::document("snowmelt salvage");
    document.insert("pool".to_owned(), name.into());
    document.extend(found.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
    json::print(&mut app.context.out, document)?;
    Ok(())
}

fn search(app: &App<'_>, pool: &KnownPool, attempt: &str) -> Result<Salvage> {
    let store = waiting::open(app.context, &pool.location, Access::ReadOnly)?;
    let store = store.map_err(|error| CliError::failed(attempt, &error))?;
    let progress = Progress::bytes(app.context, None);
    let cancelled = app.context.cancelled.clone();
    let found = Salvage::find(&*store, pool.label.guid, &mut |done, total| {
        progress.expect(Some(total));
        progress.set(done);
        !cancelled.load(Ordering::Relaxed)
    });
    let found = found.map_err(|error| CliError::failed(attempt, &error))?;
    found.ok_or_else(|| CliError::Failed(format!("{attempt}: interrupted; nothing was changed")))
}

/// The newest state without errors. If there is none, the state with the fewest errors. An incomplete state has
/// errors, because its accounting contains missing blocks.
fn best<'a>(
    app: &App<'_>,
    pool: &KnownPool,
    salvage: &'a Salvage,
    keys: Option<&Keys>,
) -> Result<Option<Judged<'a>>> {
    let mut best: Option<Judged<'a>> = None;
    for state in salvage.states.iter().take(TRIED_MAX) {
        if app.context.is_cancelled() {
            return Err(CliError::Failed("interrupted; nothing was changed".to_owned()));
        }
        // A state that cannot be opened is not a candidate.
        let Some(judged) = judge(pool, salvage, state, keys) else { continue };
        let whole = judged.errors == 0;
        if best.as_ref().is_none_or(|best| judged.errors < best.errors) {
            best = Some(judged);
        }
        if whole {
            break;
        }
    }
    Ok(best)
}

fn judge<'a>(
    pool: &KnownPool,
    salvage: &Salvage,
    state: &'a LostState,
    keys: Option<&Keys>,
) -> Option<Judged<'a>> {
    let options = PoolOptions { read_only: true, keys: keys.cloned(), ..PoolOptions::default() };
    let owner = acquire_lost(&pool.location, "", salvage, state, options).ok()?;
    let datasets = &owner.session().datasets;
    let report = datasets.check(CheckOptions { data: false }, &mut |_| {}).ok()?;
    let catalog = datasets.catalog();
    let all = catalog.root().and_then(|root| catalog.descendants(root)).ok()?;
    Some(Judged { state, errors: report.errors, datasets: all.len() })
}
