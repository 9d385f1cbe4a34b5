//! `holds`.

use serde_json::{Map, Value, json};
use snowmelt_dataset::property::format_time;

use super::names;
use crate::app::App;
use crate::args::HoldsArgs;
use crate::error::Result;
use crate::exit::Exit;
use crate::output::json;
use crate::output::table::{self, Column};
use crate::report;

/// Lists the holds of snapshots.
///
/// # Errors
/// When output fails. Errors of single snapshots are reported.
pub fn run(app: &mut App<'_>, args: &HoldsArgs) -> Result<Exit> {
    app.on_each_pool(&args.snapshots, |app, session, snapshots| {
        let catalog = session.datasets.catalog();
        let mut found = Vec::new();
        let mut failed = false;
        for name in snapshots {
            match names::snapshots_of_name(&catalog, name, args.recursive) {
                Ok(snapshots) => {
                    for snapshot in snapshots {
                        let full = snapshot.full_name();
                        let attempt = format!("cannot read the holds of '{full}'");
                        let holds = catalog.holds(snapshot.id).map_err(report::failed(&attempt))?;
                        found.extend(holds.into_iter().map(|(tag, when)| (full.clone(), tag, when)));
                    }
                }
                Err(error) => {
                    app.context.complain(error);
                    failed = true;
                }
            }
        }
        if args.json {
            json::print(&mut app.context.out, document(&found))?;
            return Ok(Exit::unless(failed));
        }
        let rows: Vec<Vec<String>> = app.context.with_style(args.parsable, |style| {
            found.into_iter().map(|(name, tag, when)| vec![name, tag, format_time(when, style)]).collect()
        });
        let columns = [Column::left("NAME"), Column::left("TAG"), Column::left("TIMESTAMP")];
        if !rows.is_empty() || !failed {
            table::print(&mut app.context.out, &columns, &rows, args.scripted)?;
        }
        Ok(Exit::unless(failed))
    })
}

/// The holds of each snapshot: tag, and when it was made.
fn document(found: &[(String, String, u64)]) -> Map<String, Value> {
    let mut holds = Map::new();
    for (snapshot, tag, when) in found {
        let of_snapshot = holds.entry(snapshot.as_str()).or_insert_with(|| json!({}));
        of_snapshot[tag] = json!(when);
    }
    let mut document = json::document("snowmelt holds");
    document.insert("holds".to_owned(), holds.into());
    document
}
