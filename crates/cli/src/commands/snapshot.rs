//! `snapshot`.

use std::collections::HashSet;

use serde_json::Value;
use snowmelt_dataset::{DatasetError, Name};

use super::{assignments, names};
use crate::app::App;
use crate::args::SnapshotArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::output::json;
use crate::report;

/// Takes snapshots, all at once.
///
/// # Errors
/// When one exists already, or its dataset does not.
pub fn run(app: &mut App<'_>, args: &SnapshotArgs) -> Result<Exit> {
    for name in &args.snapshots {
        if !name.contains('@') {
            return Err(CliError::Usage(format!("'{name}' is not a snapshot: a name with '@' is needed")));
        }
    }
    app.on_datasets(&args.snapshots, |app, session| {
        let catalog = session.datasets.catalog();
        let mut targets: Vec<Name> = Vec::new();
        for name in &args.snapshots {
            let attempt = format!("cannot create snapshot '{name}'");
            let parsed = names::parse(name, &attempt)?;
            // As zfs has it: the status of words that make no sense, and the usage.
            let top = names::open_dataset(&catalog, parsed.dataset());
            let top = top.map_err(|error| CliError::Usage(error.to_string()))?;
            if !args.recursive {
                targets.push(parsed);
                continue;
            }
            for dataset in catalog.descendants(top).map_err(report::failed(&attempt))? {
                if !dataset.record.inconsistent {
                    let short = parsed.snapshot().unwrap_or_default();
                    targets.push(names::parse(&format!("{}@{short}", dataset.name), &attempt)?);
                }
            }
        }
        let mut seen = HashSet::new();
        targets.retain(|name| seen.insert(name.to_string()));
        let mut datasets = HashSet::new();
        if let Some(second) = targets.iter().find(|name| !datasets.insert(name.dataset())) {
            return Err(CliError::Failed(format!(
                "cannot create snapshot '{second}': multiple snapshots of same fs not allowed\nno snapshots were created"
            )));
        }
        let first = targets.first().map(ToString::to_string).unwrap_or_default();
        let attempt = format!("cannot create snapshot '{first}'");
        let properties = assignments::for_snapshot(&attempt, &assignments::split_all(&args.properties)?)?;
        session.datasets.snapshot(&targets, &assignments::stored(&properties)).map_err(|error| {
            let name = match &error {
                DatasetError::Exists { name } | DatasetError::NotFound { name } => name.clone(),
                _ => first.clone(),
            };
            let mut text = report::dataset_error(&format!("cannot create snapshot '{name}'"), &error);
            if targets.len() > 1 {
                text.push_str("\nno snapshots were created");
            }
            CliError::Failed(text)
        })?;
        app.record(session);
        if args.json {
            let taken = targets.iter().map(|name| Value::from(name.to_string())).collect();
            let mut document = json::document("snowmelt snapshot");
            document.insert("snapshots".to_owned(), Value::Array(taken));
            json::print(&mut app.context.out, document)?;
        }
        Ok(Exit::Ok)
    })
}
