//! `import` of a directory.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use snowmelt_dataset::property::{Types, format_bytes};
use snowmelt_dataset::{
    Datasets, Kind, ListingDigest, SourceFile, SourceObject, Staging, new_filesystem_objects,
};
use snowmelt_fs::import::{
    Filter, HintError, Hints, ImportEvent, ImportObserver, ImportOptions, Scan, SourceId, SourceStat,
    Summary, import,
};
use snowmelt_zpl::FilesystemMut;

use super::files::printable;
use super::import::Import;
use super::take_in::Shadowing;
use crate::context::Context;
use crate::error::{CliError, Result, chain};
use crate::exit::Exit;
use crate::pools::Session;
use crate::progress::Progress;

/// Block size of a shadow's large files in bytes: the default of `recordsize`.
const RECORD: u32 = 128 << 10;

/// What became of a directory.
pub(super) struct Taken {
    pub(super) summary: Summary,
    /// Full name of the snapshot.
    snapshot: String,
    /// Nothing has changed, and no snapshot was taken. The name is that of the newest snapshot.
    pub(super) is_unchanged: bool,
    /// Bytes, unless nothing was to be done.
    written: Option<u64>,
}

/// Takes a directory into a filesystem, as a snapshot.
///
/// # Errors
/// When the whole import fails. Errors of single files are reported.
pub(super) fn take(context: &mut Context, session: &Session, to: &Import<'_>) -> Result<Taken> {
    let args = to.args;
    let failed = |error: &(dyn std::error::Error + 'static)| CliError::failed(to.attempt, error);
    if args.block_size.is_some() {
        return Err(CliError::Usage("'-b' is only for disk images: for files, set 'recordsize'".to_owned()));
    }
    let exclude_from: Vec<_> = args.exclude_from.iter().map(|file| context.path(file)).collect();
    let filter = Filter::new(&args.exclude, &exclude_from).map_err(|error| failed(&error))?;
    let scan = Scan::open(to.source, filter, args.one_filesystem).map_err(|error| failed(&error))?;
    let is_first = !to.check_kind(session, Kind::Filesystem)?;
    let options = to.options(Types::FILESYSTEM)?;
    let staging = session
        .datasets
        .stage(to.dataset, Kind::Filesystem, new_filesystem_objects, &options)
        .map_err(|error| to.refused(&error))?;
    let fs = staging.head().filesystem(&session.datasets.catalog()).map_err(|error| failed(&error))?;
    let shadow = to.suspects.map(|suspects| Shadowing::new(&staging, suspects, is_first));
    let mut hints = Noted { datasets: &session.datasets, staging: &staging, new: Vec::new(), shadow };
    let progress = (!args.verbose).then(|| Progress::entries(context));
    if let Some(progress) = &progress {
        progress.message(to.dataset);
    }
    let is_terminal = context.is_terminal_out();
    let mut teller = Teller { context, verbose: args.verbose, is_terminal, progress, stop: to.stop };
    let how = ImportOptions {
        ignore_ctime: args.ignore_ctime,
        dry_run: args.dry_run,
        whole_blocks: if to.suspects.is_some() { RECORD } else { 0 },
    };
    let done = import(&scan, &fs, &mut hints, &mut teller, how);
    if let Some(progress) = teller.progress.take() {
        progress.finish();
    }
    let summary = done.map_err(|error| failed(&error))?;
    if !args.dry_run {
        hints.flush().map_err(|error| failed(&*error))?;
        if summary.created + summary.removed > 0 {
            hints.prune(&fs, summary.entries).map_err(|error| failed(&*error))?;
        }
        staging.keep_listings().map_err(|error| failed(&error))?;
    }
    drop(fs);
    let mut written = None;
    let mut snapshot = format!("{}@{}", to.dataset, to.snapshot);
    let mut is_unchanged = false;
    if !args.dry_run {
        let finished = to.finish(session, staging)?;
        (snapshot, is_unchanged, written) =
            (finished.snapshot, finished.is_unchanged, Some(finished.written));
    }
    Ok(Taken { summary, snapshot, is_unchanged, written })
}

/// The text about what was or would be done.
pub(super) fn describe(summary: &Summary, dry_run: bool) -> String {
    let would = if dry_run { "would be " } else { "" };
    let read = format_bytes(summary.bytes_read);
    format!(
        "{} entries; {would}{} created, {} changed, {} renamed, {} removed; {read} {would}read",
        summary.entries, summary.created, summary.changed, summary.renamed, summary.removed
    )
}

/// The line about files that are not correct in the snapshot. `done` is what was done nevertheless.
pub(super) fn failures(done: &str, count: u64) -> String {
    let (files, were) = if count == 1 { ("file", "it was") } else { ("files", "they were") };
    format!("{done}, except {count} {files} that could not be read or changed while {were} read: see above")
}

/// Reports what was done.
///
/// # Errors
/// When output fails.
pub(super) fn tell(context: &mut Context, to: &Import<'_>, taken: &Taken) -> Result<Exit> {
    let Taken { summary, snapshot, written, .. } = taken;
    if to.args.json {
        let said = serde_json::json!({
            "snapshot": snapshot,
            "dry_run": to.args.dry_run,
            "entries": summary.entries,
            "created": summary.created,
            "changed": summary.changed,
            "renamed": summary.renamed,
            "removed": summary.removed,
            "files_read": summary.files_read,
            "bytes_read": summary.bytes_read,
            "written": written,
            "unchanged": taken.is_unchanged,
            "failures": summary.failures,
        });
        writeln!(context.out, "{said}")?;
    } else if taken.is_unchanged && to.args.verbose {
        writeln!(context.out, "nothing changed since {snapshot}")?;
    } else if to.args.verbose || to.args.dry_run {
        write!(context.out, "{snapshot}: {}", describe(summary, to.args.dry_run))?;
        match written {
            Some(written) => writeln!(context.out, ", {} written", format_bytes(*written))?,
            None => writeln!(context.out)?,
        }
    }
    if summary.failures == 0 {
        return Ok(Exit::Ok);
    }
    let snapshot = if to.args.dry_run { to.dataset } else { snapshot };
    let verb = if to.args.dry_run { "would import" } else { "imported" };
    context.complain(failures(&format!("{verb} {snapshot}"), summary.failures));
    Ok(Exit::Partial)
}

/// What became of the source last time: kept in the pool.
struct Noted<'a> {
    datasets: &'a Datasets,
    staging: &'a Staging<'a>,
    new: Vec<(SourceFile, SourceObject)>,
    shadow: Option<Shadowing<'a>>,
}

impl Noted<'_> {
    /// Entries written at a time.
    const BATCH: usize = 4096;

    fn flush(&mut self) -> Result<(), HintError> {
        self.datasets.note_sources(self.staging.id(), &std::mem::take(&mut self.new))?;
        Ok(())
    }

    /// Forgets files that no longer exist, once they are the majority.
    fn prune<O: snowmelt_zpl::ObjectsMut>(
        &self,
        fs: &FilesystemMut<O>,
        entries: u64,
    ) -> Result<(), HintError> {
        if self.datasets.count_sources(self.staging.id(), 2 * entries + 1000)? <= 2 * entries {
            return Ok(());
        }
        self.datasets.prune_sources::<HintBox>(self.staging.id(), |_, noted| {
            let now = fs.attributes(noted.object);
            Ok(now.is_ok_and(|now| now.generation == noted.generation && now.links > 0))
        })?;
        Ok(())
    }
}

/// An error that everything becomes.
struct HintBox(HintError);

impl From<snowmelt_dataset::DatasetError> for HintBox {
    fn from(error: snowmelt_dataset::DatasetError) -> Self {
        Self(error.into())
    }
}

impl From<HintBox> for HintError {
    fn from(error: HintBox) -> Self {
        error.0
    }
}

fn source_file(file: SourceId) -> SourceFile {
    SourceFile { device: file.device, inode: file.inode }
}

impl Hints for Noted<'_> {
    fn object_of(&mut self, file: SourceId) -> Result<Option<(u64, u64)>, HintError> {
        let found = self.datasets.source_object(self.staging.id(), source_file(file))?;
        Ok(found.map(|found| (found.object, found.generation)))
    }

    fn note(&mut self, file: SourceId, object: u64, generation: u64) -> Result<(), HintError> {
        self.new.push((source_file(file), SourceObject { object, generation }));
        if self.new.len() >= Self::BATCH { self.flush() } else { Ok(()) }
    }

    fn listing(&mut self, directory: u64) -> Result<Option<ListingDigest>, HintError> {
        // A suspect lies in a directory that looks as it did.
        if self.shadow.as_ref().is_some_and(Shadowing::has_suspects) {
            return Ok(None);
        }
        Ok(self.staging.listing(directory)?)
    }

    fn note_listing(&mut self, directory: u64, digest: Option<ListingDigest>) -> Result<(), HintError> {
        Ok(self.staging.note_listing(directory, digest)?)
    }

    fn is_suspect(&self, object: u64) -> bool {
        self.shadow.as_ref().is_some_and(|shadow| shadow.is_suspect(object))
    }

    fn reading(&mut self, object: u64, stat: &SourceStat, is_new: bool) {
        if let Some(shadow) = &mut self.shadow {
            shadow.reading(object, stat, is_new);
        }
    }
}

/// Tells what happens.
struct Teller<'a> {
    context: &'a mut Context,
    verbose: bool,
    is_terminal: bool,
    progress: Option<Progress>,
    stop: &'a AtomicBool,
}

impl ImportObserver for Teller<'_> {
    fn event(&mut self, path: &[u8], event: ImportEvent<'_>) {
        let why = match event {
            ImportEvent::Unreadable(error) => chain(error),
            ImportEvent::Unsteady => "it changed each time it was read".to_owned(),
            ImportEvent::Vanished => "it no longer exists".to_owned(),
            ImportEvent::Created => return self.say(b'+', path),
            ImportEvent::Changed => return self.say(b'M', path),
            ImportEvent::Renamed => return self.say(b'R', path),
            ImportEvent::Removed => return self.say(b'-', path),
            _ => return,
        };
        let path = String::from_utf8_lossy(&printable(path, true)).into_owned();
        self.context.complain(CliError::Failed(format!("{path}: {why}")));
    }

    fn progress(&mut self, summary: &Summary) {
        if let Some(progress) = &self.progress {
            progress.read(summary.bytes_read);
            progress.set(summary.entries);
        }
    }

    fn is_cancelled(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl Teller<'_> {
    /// The letters of `diff`.
    fn say(&mut self, what: u8, path: &[u8]) {
        if self.verbose {
            let mut line = vec![what, b'\t'];
            line.extend(printable(if path.is_empty() { b"." } else { path }, self.is_terminal));
            line.push(b'\n');
            // If the output is closed, nothing more is printed, and the import continues.
            let _ = self.context.out.write_all(&line);
        }
    }
}
