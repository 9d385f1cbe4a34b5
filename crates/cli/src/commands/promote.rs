//! `promote`.

use super::names;
use crate::app::App;
use crate::args::PromoteArgs;
use crate::error::Result;
use crate::exit::Exit;
use crate::report;

/// Turns a clone and its origin around.
///
/// # Errors
/// When it is not a clone, or names of snapshots collide.
pub fn run(app: &mut App<'_>, args: &PromoteArgs) -> Result<Exit> {
    app.on_dataset(&args.dataset, |app, session| {
        names::open_dataset(&session.datasets.catalog(), &args.dataset)?;
        let attempt = format!("cannot promote '{}'", args.dataset);
        session.datasets.promote(&args.dataset).map_err(report::failed(&attempt))?;
        app.record(session);
        Ok(Exit::Ok)
    })
}
