//! `hold` and `release`.

use snowmelt_dataset::{DatasetError, Name};

use super::names;
use crate::app::App;
use crate::args::{HoldArgs, ReleaseArgs};
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::pools::Session;
use crate::report;

/// Adds a hold to snapshots.
///
/// # Errors
/// When the tag is not valid, or output fails. Errors of single snapshots are reported.
pub fn run_hold(app: &mut App<'_>, args: &HoldArgs) -> Result<Exit> {
    if args.tag.starts_with('.') {
        return Err(CliError::Usage("tag may not start with '.'".to_owned()));
    }
    each(app, &args.snapshots, args.recursive, "cannot hold snapshot", |session, names| {
        session.datasets.hold(&args.tag, names)
    })
}

/// Removes a hold from snapshots.
///
/// # Errors
/// As [`run_hold`].
pub fn run_release(app: &mut App<'_>, args: &ReleaseArgs) -> Result<Exit> {
    let attempt = "cannot release hold from snapshot";
    each(app, &args.snapshots, args.recursive, attempt, |session, names| {
        // Below the top, only those that have the hold count.
        let catalog = session.datasets.catalog();
        let has_tag = |name: &Name| -> Result<bool, DatasetError> {
            let snapshot = catalog.snapshot(name)?;
            Ok(catalog.holds(snapshot.id)?.iter().any(|(tag, _)| *tag == args.tag))
        };
        let mut held = Vec::new();
        for name in names {
            if has_tag(name)? {
                held.push(name.clone());
            }
        }
        if held.is_empty() {
            held.extend(names.first().cloned());
        }
        session.datasets.release(&args.tag, &held)
    })
}

fn each(
    app: &mut App<'_>,
    snapshots: &[String],
    recursive: bool,
    attempt: &str,
    change: impl Fn(&Session, &[Name]) -> Result<(), DatasetError>,
) -> Result<Exit> {
    app.on_each_pool(snapshots, |app, session, snapshots| {
        let mut failed = false;
        for name in snapshots {
            let result = names::snapshots_of_name(&session.datasets.catalog(), name, recursive)
                .and_then(|found| names::full_names(&found))
                .and_then(|found| {
                    change(session, &found).map_err(|error| {
                        let subject = match &error {
                            DatasetError::TagExists { name: at } | DatasetError::NoTag { name: at } => {
                                at.clone()
                            }
                            _ => name.clone(),
                        };
                        report::failed(&format!("{attempt} '{subject}'"))(error)
                    })
                });
            if let Err(error) = result {
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
