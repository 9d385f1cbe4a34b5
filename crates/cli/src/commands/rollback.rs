//! `rollback`.

use snowmelt_dataset::{DatasetError, RollbackOptions};

use super::names;
use crate::app::App;
use crate::args::RollbackArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::report;

/// Most newer snapshots and bookmarks that a refusal names.
const NAMED_MAX: usize = 32;

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
        session.datasets.rollback(&parsed, options).map_err(|error| match error {
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
