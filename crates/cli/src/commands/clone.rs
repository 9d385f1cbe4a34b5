//! `clone`.

use snowmelt_dataset::CloneOptions;

use super::{assignments, names};
use crate::app::App;
use crate::args::CloneArgs;
use crate::error::Result;
use crate::exit::Exit;
use crate::properties::of_kind;
use crate::report;

/// Makes a clone of a snapshot.
///
/// # Errors
/// When the snapshot does not exist, the target does, or its parent does not.
pub fn run(app: &mut App<'_>, args: &CloneArgs) -> Result<Exit> {
    app.on_dataset(&args.snapshot, |app, session| {
        let attempt = format!("cannot create '{}'", args.dataset);
        let snapshot = names::open_snapshot(&session.datasets.catalog(), &args.snapshot)?;
        let pairs = assignments::split_all(&args.properties)?;
        let properties = assignments::for_new(&attempt, &pairs, of_kind(snapshot.kind))?;
        let options =
            CloneOptions { parents: args.parents > 0, properties: assignments::stored(&properties) };
        let origin = names::parse(&args.snapshot, &attempt)?;
        session
            .datasets
            .clone_snapshot(&origin, &args.dataset, &options)
            .map_err(report::failed(&attempt))?;
        app.record(session);
        Ok(Exit::Ok)
    })
}
