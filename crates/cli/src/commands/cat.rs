//! `cat`.

use std::io;

use snowmelt_fs::{FsError, ObjectReader, volume_info};

use super::files::{self, Place};
use crate::app::App;
use crate::args::CatArgs;
use crate::error::{CliError, Result, chain};
use crate::exit::Exit;

/// Writes files, or volumes, to standard output.
///
/// # Errors
/// When output fails. Errors of single files are reported.
pub fn run(app: &mut App<'_>, args: &CatArgs) -> Result<Exit> {
    app.is_streaming = true;
    files::each(app, &args.paths, |app, _, place| {
        place.warn_if_redacted(app.context);
        if place.is_volume() {
            return volume(app, &place);
        }
        let name = place.name.clone();
        let opened = place.open()?;
        let copied = snowmelt_fs::cat(&opened.fs, &opened.path, opened.object, &mut app.context.out);
        copied.map(drop).map_err(|error| match error {
            FsError::Output(error) => CliError::Output(error),
            error => CliError::Failed(format!("{name}:{}", chain(&error))),
        })
    })
}

fn volume(app: &mut App<'_>, place: &Place) -> Result<()> {
    let failed = |error: &(dyn std::error::Error + 'static)| {
        CliError::failed(format!("cannot read '{}'", place.name), error)
    };
    if !place.path.is_empty() {
        return Err(CliError::Failed(format!("cannot open '{}': a volume has no files", place.name)));
    }
    let info = volume_info(&place.objset).map_err(|error| failed(&error))?;
    let mut reader = ObjectReader::new(&place.objset, info.object, info.size);
    // Of the two ends of the copy only the reading one can have its own error.
    io::copy(&mut reader, &mut app.context.out).map(drop).map_err(|error| match error.kind() {
        io::ErrorKind::Other => failed(&error),
        _ => CliError::Output(error),
    })
}
