//! `restore`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde_json::json;
use snowmelt_dataset::Catalog;
use snowmelt_dataset::text::visible_name;
use snowmelt_fs::restore::{
    Existing, Failure, LeftOut, Observer, Owners, RestoreOptions, Summary, VolumeOptions, restore,
    restore_volume,
};
use snowmelt_fs::volume_info;

use super::files::{Opened, Place};
use crate::app::App;
use crate::args::RestoreArgs;
use crate::context::Context;
use crate::error::{CliError, Result, chain};
use crate::exit::Exit;
use crate::output::json;
use crate::progress::Progress;
use crate::properties::Entity;

/// Copies files, or a volume, out of a snapshot.
///
/// # Errors
/// When the restore cannot start. Errors of single files are reported.
pub fn run(app: &mut App<'_>, args: &RestoreArgs) -> Result<Exit> {
    let dataset = args.source.to_string_lossy().split(':').next().unwrap_or_default().to_owned();
    app.on_dataset(&dataset, |app, session| {
        let place = Place::find(&session.datasets.catalog(), &args.source)?;
        place.warn_if_redacted(app.context);
        if let Some(caveat) = session.caveat() {
            app.context.complain(caveat);
        }
        let target = app.context.path(&args.target);
        let total = logical_bytes(&session.datasets.catalog(), &place);
        if place.is_volume() {
            volume(app, args, &place, &target)
        } else {
            files(app, args, place, total, &target)
        }
    })
}

/// Bytes in all files of a dataset or snapshot, for the progress line. Unknown for a part of a dataset.
fn logical_bytes(catalog: &Catalog, place: &Place) -> Option<u64> {
    let is_whole = place.path.is_empty();
    match Entity::find(catalog, &place.name).ok().filter(|_| is_whole)? {
        Entity::Dataset(dataset) => {
            catalog.dataset_space(&dataset).ok().map(|space| space.referenced.logical)
        }
        Entity::Snapshot(snapshot, _) => Some(snapshot.record.stats.logical),
        Entity::Bookmark(..) => None,
    }
}

fn existing(args: &RestoreArgs) -> Existing {
    if args.force { Existing::Replace } else { Existing::Keep }
}

fn volume(app: &mut App<'_>, args: &RestoreArgs, place: &Place, target: &Path) -> Result<Exit> {
    let attempt = format!("cannot restore '{}'", place.name);
    if !place.path.is_empty() {
        return Err(CliError::Failed(format!("{attempt}: a volume has no files")));
    }
    let info = volume_info(&place.objset).map_err(|error| CliError::failed(&attempt, &error))?;
    let progress = (!args.quiet).then(|| Progress::bytes(app.context, Some(info.size)));
    if let Some(progress) = &progress {
        progress.message(&place.name);
    }
    let options = VolumeOptions { existing: existing(args) };
    let restored = restore_volume(&place.objset, info, target, options, &mut |at| {
        if let Some(progress) = &progress {
            progress.set(at);
        }
    });
    if let Some(progress) = progress {
        progress.finish();
    }
    restored.map_err(|error| CliError::failed(&attempt, &error))?;
    if args.json {
        let mut document = json::document("snowmelt restore");
        document.insert("size".to_owned(), info.size.into());
        json::print(&mut app.context.out, document)?;
    }
    Ok(Exit::Ok)
}

fn files(
    app: &mut App<'_>,
    args: &RestoreArgs,
    place: Place,
    total: Option<u64>,
    target: &Path,
) -> Result<Exit> {
    let name = place.name.clone();
    let opened = place.open()?;
    let options = RestoreOptions {
        owners: match (args.owners, args.no_owners) {
            (true, _) => Owners::Always,
            (false, true) => Owners::Never,
            (false, false) => Owners::Auto,
        },
        existing: existing(args),
        sync: false,
        privileges: args.privileges.of(),
    };
    let progress = (!args.quiet && !args.verbose).then(|| Progress::bytes(app.context, total));
    if let Some(progress) = &progress {
        progress.message(&name);
    }
    let (directory, name) = destination(&opened, target)?;
    let mut watcher = Watcher { context: app.context, verbose: args.verbose, progress };
    let restored = restore(&opened.fs, opened.object, &name, &directory, options, &mut watcher);
    if let Some(progress) = watcher.progress.take() {
        progress.finish();
    }
    let summary = restored.map_err(|error| CliError::Failed(format!("cannot restore: {}", chain(&error))))?;
    if summary.left_out != LeftOut::default() {
        app.context.complain(summary.left_out);
    }
    if args.json {
        tell_json(app, &summary)?;
    }
    match (summary.failures, done(&summary)) {
        (0, _) => Ok(Exit::Ok),
        (_, 0) => Ok(Exit::Failed),
        (failures, done) => {
            app.context.complain(format_args!("{done} restored, {failures} failed"));
            Ok(Exit::Partial)
        }
    }
}

fn tell_json(app: &mut App<'_>, summary: &Summary) -> Result<()> {
    let mut document = json::document("snowmelt restore");
    for (key, count) in [
        ("directories", summary.directories),
        ("files", summary.files),
        ("bytes", summary.bytes),
        ("hardlinks", summary.hardlinks),
        ("symlinks", summary.symlinks),
        ("specials", summary.specials),
        ("failures", summary.failures),
    ] {
        document.insert(key.to_owned(), count.into());
    }
    let LeftOut { setuid, capabilities, devices, records } = summary.left_out;
    let left_out =
        json!({ "setuid": setuid, "capabilities": capabilities, "devices": devices, "records": records });
    document.insert("left_out".to_owned(), left_out);
    json::print(&mut app.context.out, document)?;
    Ok(())
}

fn done(summary: &Summary) -> u64 {
    summary.directories + summary.files + summary.hardlinks + summary.symlinks + summary.specials
}

/// The content of a directory is restored into the target. A file is restored into the target if this is a directory,
/// otherwise under the name of the target.
fn destination(opened: &Opened, target: &Path) -> Result<(PathBuf, Vec<u8>)> {
    if opened.is_directory()? {
        return Ok((target.to_owned(), Vec::new()));
    }
    if target.is_dir() {
        return Ok((target.to_owned(), opened.last_name().unwrap_or_default().to_vec()));
    }
    let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
        return Err(CliError::Failed(format!(
            "cannot restore to {}: not a valid name for a file",
            target.display()
        )));
    };
    Ok((parent.to_owned(), OsStr::as_bytes(name).to_vec()))
}

struct Watcher<'a> {
    context: &'a mut Context,
    verbose: bool,
    progress: Option<Progress>,
}

impl Observer for Watcher<'_> {
    fn progress(&mut self, path: &[u8], so_far: &Summary) {
        if self.verbose {
            self.context.complain(visible_name(path));
        }
        self.bytes(so_far.bytes);
    }

    fn bytes(&mut self, so_far: u64) {
        if let Some(progress) = &self.progress {
            progress.set(so_far);
        }
    }

    fn failure(&mut self, failure: Failure) {
        self.context.complain(chain(&failure));
    }
}
