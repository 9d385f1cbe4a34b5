//! `clone`.

use snowmelt_dataset::property::{Assignment, REFRESERVATION_AUTO, Value};
use snowmelt_dataset::{Catalog, CloneOptions, DatasetError, Snapshot, volume_reservation};

use super::{assignments, automount, names};
use crate::app::App;
use crate::args::CloneArgs;
use crate::error::Result;
use crate::exit::Exit;
use crate::properties::of_kind;
use crate::report;

/// `refreservation=auto` is the space for the whole volume.
fn reserve_whole(
    catalog: &Catalog,
    snapshot: &Snapshot,
    properties: &mut [Assignment],
) -> std::result::Result<(), DatasetError> {
    let copies = properties.iter().find(|it| it.name == "copies").and_then(|it| it.value.as_number());
    for it in properties.iter_mut() {
        if it.name == "refreservation" && it.value.as_number() == Some(REFRESERVATION_AUTO) {
            let content = catalog.objset(snapshot);
            let (size, block_size) = (content.volume_size()?, content.volume_block_size()?);
            it.value = Value::Number(volume_reservation(size, block_size, copies.unwrap_or(1)));
        }
    }
    Ok(())
}

/// Makes a clone of a snapshot.
///
/// # Errors
/// When the snapshot does not exist, the target does, or its parent does not.
pub fn run(app: &mut App<'_>, args: &CloneArgs) -> Result<Exit> {
    app.may_mount = Some(args.dataset.clone());
    app.on_dataset(&args.snapshot, |app, session| {
        let attempt = format!("cannot create '{}'", args.dataset);
        let snapshot = names::open_snapshot(&session.datasets.catalog(), &args.snapshot)?;
        let pairs = assignments::split_all(&args.properties)?;
        let mut properties = assignments::for_new(&attempt, &pairs, of_kind(snapshot.kind))?;
        reserve_whole(&session.datasets.catalog(), &snapshot, &mut properties)
            .map_err(report::failed(&attempt))?;
        let options =
            CloneOptions { parents: args.parents > 0, properties: assignments::stored(&properties) };
        let created = automount::missing(&session.datasets.catalog(), &args.dataset);
        let origin = names::parse(&args.snapshot, &attempt)?;
        session
            .datasets
            .clone_snapshot(&origin, &args.dataset, &options)
            .map_err(report::failed(&attempt))?;
        app.record(session);
        if args.no_mount { Ok(Exit::Ok) } else { automount::mount_created(app, session, &created) }
    })
}
