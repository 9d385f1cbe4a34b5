//! `manifest`.

use snowmelt_fs::manifest::{manifest, manifest_volume};
use snowmelt_fs::{FsError, ObjectReader, volume_info};

use super::files::Place;
use crate::app::App;
use crate::args::ManifestArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;

/// Describes everything in a snapshot.
///
/// # Errors
/// When something cannot be read, or output fails.
pub fn run(app: &mut App<'_>, args: &ManifestArgs) -> Result<Exit> {
    app.is_streaming = true;
    app.on_dataset(&args.snapshot, |app, session| {
        let place = Place::find(&session.datasets.catalog(), args.snapshot.as_ref())?;
        place.warn_if_redacted(app.context);
        let name = place.name.clone();
        let failed = |error: FsError| match error {
            FsError::Output(error) => CliError::Output(error),
            error => CliError::failed(format!("cannot read '{name}'"), &error),
        };
        let out = &mut app.context.out;
        if place.is_volume() {
            let info = volume_info(&place.objset);
            let info = info.map_err(|error| CliError::failed(format!("cannot read '{name}'"), &error))?;
            let reader = ObjectReader::new(&place.objset, info.object, info.size);
            manifest_volume(reader, info.size, info.block_size.into(), out).map_err(failed)?;
        } else {
            manifest(&place.open()?.fs, out).map_err(failed)?;
        }
        Ok(Exit::Ok)
    })
}
