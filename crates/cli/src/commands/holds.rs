//! `holds`.

use snowmelt_dataset::property::format_time;

use super::names;
use crate::app::App;
use crate::args::HoldsArgs;
use crate::error::Result;
use crate::exit::Exit;
use crate::output::table::{self, Column};
use crate::report;

/// Lists the holds of snapshots.
///
/// # Errors
/// When output fails; of single snapshots it is told.
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
