//! `rollback`.

use snowmelt_dataset::{Dataset, DatasetError, DestroyPlan, Name, RollbackOptions};

use super::{automount, names};
use crate::app::App;
use crate::args::RollbackArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::pools::Session;
use crate::report;

/// Most newer snapshots and bookmarks that a refusal names.
const NAMED_MAX: usize = 32;

/// Clones of newer snapshots, with what depends on them.
fn clones_that_go(session: &Session, name: &Name, attempt: &str) -> Result<Vec<Dataset>> {
    let plan = session.datasets.read(|catalog| {
        let snapshot = catalog.snapshot(name)?;
        let dataset = catalog.dataset_by_id(snapshot.id.dataset)?;
        let all = catalog.snapshots(&dataset).collect::<std::result::Result<Vec<_>, _>>()?;
        let newer = all.into_iter().filter(|other| other.id.txg > snapshot.id.txg).collect();
        DestroyPlan::snapshots(catalog, newer, true)
    });
    Ok(plan.map_err(report::failed(attempt))?.datasets)
}

/// Takes a dataset back to a snapshot.
///
/// # Errors
/// When there are newer snapshots, bookmarks or clones, and no flag to destroy them.
pub fn run(app: &mut App<'_>, args: &RollbackArgs) -> Result<Exit> {
    let name = &args.snapshot;
    app.on_dataset(name, |app, session| {
        names::open_snapshot(&session.datasets.catalog(), name)?;
        let attempt = format!("cannot rollback to '{name}'");
        let parsed = names::parse(name, &attempt)?;
        let options = RollbackOptions { newer: args.recursive || args.with_clones, clones: args.with_clones };
        let clones = if args.with_clones { clones_that_go(session, &parsed, &attempt)? } else { Vec::new() };
        let unmounted = automount::Unmounted::of(app, session, &clones, false)?;
        let done = unmounted.when_released(|| session.datasets.rollback(&parsed, options));
        // A destroyed filesystem leaves its directory behind.
        unmounted.mount_again(app, session)?;
        done.map_err(|error| match error {
            DatasetError::NotNewest { name, mut newer } => {
                let total = newer.len();
                newer.truncate(NAMED_MAX);
                let mut text = report::dataset_error(&attempt, &DatasetError::NotNewest { name, newer });
                if total > NAMED_MAX {
                    text.push_str(&format!("\nOutput limited to {NAMED_MAX} snapshots/bookmarks"));
                }
                CliError::Failed(text)
            }
            DatasetError::HasClones { clones, .. } => CliError::Failed(format!(
                "{attempt}: clones of previous snapshots exist\nuse '-R' to force deletion of the following clones and \
                 dependents:\n{}",
                clones.join("\n")
            )),
            error => report::failed(&attempt)(error),
        })?;
        app.record(session);
        Ok(Exit::Ok)
    })
}
