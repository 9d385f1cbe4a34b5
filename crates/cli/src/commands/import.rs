//! `import`.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use snowmelt_dataset::objset::view::VOLUME_DATA;
use snowmelt_dataset::property::{Types, format_bytes, parse_size};
use snowmelt_dataset::{
    Catalog, Dataset, DatasetError, Kind, Name, NewVolume, ReceiveError, Snapshot, StageOptions, Staging,
    VOLUME_BLOCK_DEFAULT, new_volume_objects,
};
use snowmelt_volume::{Imported, image_size, import_image};

use super::take_in::Suspects;
use super::{assignments, import_directory};
use crate::app::App;
use crate::args::ImportArgs;
use crate::context::Context;
use crate::error::{CliError, Result, chain, is_no_space};
use crate::exit::Exit;
use crate::pools::Session;
use crate::progress::Progress;
use crate::report;

/// Takes a directory or an image into a dataset, as a snapshot.
///
/// # Errors
/// When the source cannot be read, the target is of another kind or was modified; then nothing has changed.
pub fn run(app: &mut App<'_>, args: &ImportArgs) -> Result<Exit> {
    app.is_streaming = true;
    take(app, args, false)
}

/// As [`run`]; with `only_changes`, a snapshot is taken only if something has changed since the newest.
///
/// # Errors
/// As of [`run`].
pub(super) fn take(app: &mut App<'_>, args: &ImportArgs, only_changes: bool) -> Result<Exit> {
    let (dataset, snapshot) = target(&args.target)?;
    let source = app.context.path(&args.source);
    let attempt = format!("cannot import '{}'", args.source.display());
    let metadata = std::fs::metadata(&source).map_err(|error| CliError::failed(&attempt, &error))?;
    let missing = |pool: &str| format!("cannot import into '{dataset}': no such pool '{pool}'");
    app.on_pool(&dataset, missing, |app, session| {
        if session.shadow().is_some() {
            return Err(CliError::Failed(format!(
                "{attempt}: '{dataset}' is a shadow, and only sync can write to it"
            )));
        }
        let stop = app.context.cancelled.clone();
        let import = Import {
            args,
            source: &source,
            dataset: &dataset,
            snapshot: &snapshot,
            attempt: &attempt,
            only_changes,
            suspects: None,
            stop: &stop,
        };
        let exit = match metadata.is_dir() {
            true => {
                let taken = import_directory::take(app.context, session, &import)?;
                import_directory::tell(app.context, &import, &taken)?
            }
            false => {
                let taken = import.image(app.context, session)?;
                import.tell(app.context, &taken)?
            }
        };
        if !args.dry_run {
            app.record(session);
        }
        Ok(exit)
    })
}

/// The dataset, and the snapshot's name.
fn target(text: &str) -> Result<(String, String)> {
    let name = Name::parse(text).map_err(|error| CliError::Failed(format!("cannot import into {error}")))?;
    if name.bookmark().is_some() {
        return Err(CliError::Failed(format!("cannot import into '{text}': a bookmark has no data")));
    }
    let snapshot = match name.snapshot() {
        Some(short) => short.to_owned(),
        None => jiff::Zoned::now().strftime("import_%Y-%m-%d_%H:%M:%S.%3f").to_string(),
    };
    Ok((name.dataset().to_owned(), snapshot))
}

/// The source and target of an import.
pub(super) struct Import<'a> {
    pub(super) args: &'a ImportArgs,
    pub(super) source: &'a Path,
    pub(super) dataset: &'a str,
    pub(super) snapshot: &'a str,
    /// The beginning of error messages.
    pub(super) attempt: &'a str,
    /// A snapshot is taken only if something has changed since the newest.
    pub(super) only_changes: bool,
    /// The pool is a shadow: what of it was not as it should be, when it was sent.
    pub(super) suspects: Option<&'a Suspects>,
    /// Set when the import is cancelled.
    pub(super) stop: &'a AtomicBool,
}

/// The outcome of the staged import.
pub(super) struct Finished {
    /// Full name of the snapshot that holds it.
    pub(super) snapshot: String,
    /// That was there before.
    pub(super) is_unchanged: bool,
    /// Bytes.
    pub(super) written: u64,
}

impl Finished {
    fn taken(session: &Session, snapshot: &Snapshot) -> Self {
        let written = session.datasets.catalog().snapshot_space(snapshot).map_or(0, |space| space.written);
        Self { snapshot: snapshot.full_name(), is_unchanged: false, written }
    }
}

/// What became of an image.
pub(super) struct TakenImage {
    /// The volume was there before.
    exists: bool,
    /// Unless nothing was to be done.
    pub(super) done: Option<Finished>,
    pub(super) imported: Imported,
}

impl Import<'_> {
    pub(super) fn options(&self, types: Types) -> Result<StageOptions> {
        let attempt = format!("cannot create '{}'", self.dataset);
        let pairs = assignments::split_all(&self.args.properties)?;
        let chosen = assignments::for_new(&attempt, &pairs, types)?;
        Ok(StageOptions {
            parents: self.args.parents,
            force: self.args.force,
            properties: assignments::stored(&chosen),
            shadow: self.suspects.is_some(),
        })
    }

    /// Why a staging did not begin or end.
    pub(super) fn refused(&self, error: &ReceiveError) -> CliError {
        let attempt = format!("cannot import into '{}'", self.dataset);
        match error {
            ReceiveError::Dataset(error) if is_no_space(error) => {
                CliError::NoSpace(report::dataset_error(&attempt, error))
            }
            ReceiveError::Dataset(error) => CliError::Failed(report::dataset_error(&attempt, error)),
            ReceiveError::Modified { .. } => CliError::Failed(format!(
                "{attempt}: it has been modified since its most recent snapshot\ntake a snapshot to keep the \
                 changes, or use '-F' to discard them"
            )),
            other => CliError::Failed(format!("{attempt}: {}", chain(other))),
        }
    }

    /// If the dataset exists, it must be of the kind that the source needs.
    pub(super) fn check_kind(&self, session: &Session, kind: Kind) -> Result<bool> {
        let catalog = session.datasets.catalog();
        match catalog.dataset(self.dataset) {
            Ok(found) if found.record.kind == kind => {
                let full = format!("{}@{}", self.dataset, self.snapshot);
                match Name::parse(&full).map_err(DatasetError::from).and_then(|name| catalog.snapshot(&name))
                {
                    Ok(_) => Err(self.refused(&DatasetError::Exists { name: full }.into())),
                    Err(_) => self.check_replica(&catalog, &found).map(|()| true),
                }
            }
            Ok(_) => Err(CliError::Failed(format!(
                "cannot import into '{}': a {} can only be imported into a {}",
                self.dataset,
                if kind == Kind::Volume { "disk image" } else { "directory" },
                kind.name()
            ))),
            Err(DatasetError::NotFound { .. }) => Ok(false),
            Err(error) => Err(self.refused(&error.into())),
        }
    }

    /// A replica is not changed without force: after a snapshot that does not come from its source, it cannot receive
    /// more streams of this source.
    fn check_replica(&self, catalog: &Catalog, dataset: &Dataset) -> Result<()> {
        let attempt = format!("cannot import into '{}'", self.dataset);
        let failed = report::failed(&attempt);
        let Some(newest) = catalog.newest_snapshot(dataset).map_err(&failed)? else { return Ok(()) };
        if self.args.force
            || self.suspects.is_some()
            || !catalog.came_with_stream(newest.id).map_err(&failed)?
        {
            return Ok(());
        }
        let option = if self.only_changes { "--force" } else { "-F" };
        Err(CliError::Failed(format!(
            "{attempt}: its newest snapshot {} was received\nafter an import, it can no longer receive streams of \
             its source: use '{option}' to import anyway",
            newest.full_name()
        )))
    }

    pub(super) fn image(&self, context: &Context, session: &Session) -> Result<TakenImage> {
        let failed = |error: &(dyn std::error::Error + 'static)| CliError::failed(self.attempt, error);
        let file = File::open(self.source).map_err(|error| failed(&error))?;
        let block_size = self.block_size()?;
        let exists = self.check_kind(session, Kind::Volume)?;
        let (size, whole) = image_size(&file, block_size).map_err(|error| failed(&error))?;
        if self.args.dry_run {
            return Ok(TakenImage { exists, done: None, imported: Imported { size, read: 0 } });
        }
        let options = self.options(Types::VOLUME)?;
        let first = |_: &[(String, String)]| Ok(new_volume_objects(&NewVolume { size: whole, block_size }));
        let staging = session
            .datasets
            .stage(self.dataset, Kind::Volume, first, &options)
            .map_err(|error| self.refused(&error))?;
        let progress = (!self.args.verbose).then(|| Progress::bytes(context, Some(size)));
        if self.suspects.is_some_and(Suspects::is_empty) {
            staging.head().refer_outside(VOLUME_DATA);
        }
        let imported = import_image(
            &file,
            &staging,
            &mut |at| {
                if let Some(progress) = &progress {
                    progress.set(at);
                }
            },
            self.stop,
        );
        if let Some(progress) = progress {
            progress.finish();
        }
        let imported = imported.map_err(|error| failed(&error))?;
        let done = Some(self.finish(session, staging)?);
        Ok(TakenImage { exists, done, imported })
    }

    /// Makes the staged import visible.
    pub(super) fn finish(&self, session: &Session, staging: Staging<'_>) -> Result<Finished> {
        let refused = |error: ReceiveError| self.refused(&error);
        if !self.only_changes {
            let snapshot = staging.finish(self.snapshot, &[]).map_err(refused)?;
            return Ok(Finished::taken(session, &snapshot));
        }
        let base = staging.base().map(Snapshot::full_name).unwrap_or_default();
        Ok(match staging.finish_if_changed(self.snapshot, &[]).map_err(refused)? {
            Some(snapshot) => Finished::taken(session, &snapshot),
            None => Finished { snapshot: base, is_unchanged: true, written: 0 },
        })
    }

    fn tell(&self, context: &mut Context, taken: &TakenImage) -> Result<Exit> {
        let TakenImage { exists, done, imported } = taken;
        let Some(Finished { snapshot, is_unchanged, written }) = done else {
            let verb = if *exists { "would update" } else { "would create" };
            let size = format_bytes(imported.size);
            writeln!(context.out, "{verb} volume {} from {size} of image", self.dataset)?;
            return Ok(Exit::Ok);
        };
        if self.args.json {
            let said = serde_json::json!({
                "snapshot": snapshot,
                "size": imported.size,
                "read": imported.read,
                "written": written,
                "unchanged": is_unchanged,
            });
            writeln!(context.out, "{said}")?;
        } else if *is_unchanged && self.args.verbose {
            writeln!(context.out, "nothing changed since {snapshot}")?;
        } else if self.args.verbose {
            let (read, written) = (format_bytes(imported.read), format_bytes(*written));
            writeln!(context.out, "{snapshot}: {read} read, {written} written")?;
        }
        Ok(Exit::Ok)
    }

    fn block_size(&self) -> Result<u32> {
        let Some(text) = &self.args.block_size else { return Ok(VOLUME_BLOCK_DEFAULT) };
        let refuse = |why: String| CliError::Failed(format!("{}: {why}", self.attempt));
        let size = parse_size(text).map_err(|error| refuse(error.to_string()))?;
        match u32::try_from(size) {
            Ok(size) if size.is_power_of_two() && (512..=16 << 20).contains(&size) => Ok(size),
            _ => Err(refuse("'volblocksize' must be power of 2 from 512B to 16M".to_owned())),
        }
    }
}
