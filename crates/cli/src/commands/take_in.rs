//! Bringing the shadow of a directory or an image up to date, for a sync.

use std::collections::BTreeSet;
use std::fs::Metadata;
use std::io;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use snowmelt_dataset::property::format_bytes;
use snowmelt_dataset::text::visible_name;
use snowmelt_dataset::{DatasetError, Datasets, DestroyPlan, Staging};
use snowmelt_fs::import::SourceStat;
use snowmelt_fs::shadow::{Suspect, suspects};
use snowmelt_replicate::request::{TakeIn, TakenIn};
use snowmelt_replicate::serve::Taker;
use snowmelt_replicate::{Failure, FailureKind};

use super::import::Import;
use super::import_directory;
use crate::app::App;
use crate::args::ImportArgs;
use crate::error::{CliError, Result};
use crate::pools::shadow::{self, About, Lock, Shadow};
use crate::pools::{Session, outside};
use crate::report;

/// Longest name of a target that is noted, in characters.
const TARGET_MAX: usize = 1000;

/// Takes in the source of a shadow.
pub(super) struct ShadowTaker<'a, 'b> {
    app: Mutex<&'a mut App<'b>>,
    session: &'a Session,
    shadow: &'a Shadow,
    /// Where the pool is.
    place: &'a Path,
    /// The facts known about an earlier shadow that no longer exists.
    lost: Option<&'a About>,
    lock: Mutex<Option<Lock>>,
}

/// Objects that differed from the shadow.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    objects: BTreeSet<Suspect>,
}

/// The data of a shadow's source that is only referred to: all except data that will probably have changed when it is
/// sent.
pub(super) struct Shadowing<'a> {
    staging: &'a Staging<'a>,
    suspects: &'a Suspects,
    /// Seconds since 1970.
    begun: i64,
    /// Bytes of files changed just now that may still be kept.
    left: u64,
    /// New files are stored as well, because it is not known yet which of them change often.
    keeps_new: bool,
}

impl Suspects {
    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// The state of an object. If several states apply, the worst one.
    fn get(&self, object: u64) -> Option<&Suspect> {
        let all = Suspect { object, is_lost: false }..=Suspect { object, is_lost: true };
        self.objects.range(all).next_back()
    }
}

impl<'a> Shadowing<'a> {
    /// A file that changed no longer ago than this is likely to change again soon.
    const JUST_NOW_SECONDS: i64 = 60;
    /// So much of such files is kept.
    const KEPT_MAX: u64 = 256 << 20;

    pub(super) fn new(staging: &'a Staging<'a>, suspects: &'a Suspects, is_first: bool) -> Self {
        let begun = jiff::Timestamp::now().as_second();
        let keeps_new = is_first || !suspects.is_empty();
        Self { staging, suspects, begun, left: Self::KEPT_MAX, keeps_new }
    }

    /// A file's content will be read.
    pub(super) fn reading(&mut self, object: u64, stat: &SourceStat, is_new: bool) {
        let head = self.staging.head();
        if let Some(suspect) = self.suspects.get(object) {
            if suspect.is_lost {
                head.keep_inside(object);
            }
            return;
        }
        let is_just_now = stat.mtime.seconds >= self.begun - Self::JUST_NOW_SECONDS;
        if is_just_now && (self.keeps_new || !is_new) && stat.size <= self.left {
            self.left -= stat.size;
            return;
        }
        head.refer_outside(object);
    }

    pub(super) fn has_suspects(&self) -> bool {
        !self.suspects.is_empty()
    }

    pub(super) fn is_suspect(&self, object: u64) -> bool {
        self.suspects.get(object).is_some()
    }
}

impl<'a, 'b> ShadowTaker<'a, 'b> {
    /// Of this shadow, which is the pool of `session`.
    pub(super) fn new(
        app: &'a mut App<'b>,
        session: &'a Session,
        shadow: &'a Shadow,
        place: &'a Path,
        lost: Option<&'a About>,
    ) -> Self {
        Self { app: Mutex::new(app), session, shadow, place, lost, lock: Mutex::default() }
    }

    /// Until this is dropped, no other process reads it into the shadow.
    fn lock(&self) -> Result<(), Failure> {
        let mut held = self.lock.lock().map_err(|_| Failure::other("an earlier request has failed"))?;
        if held.is_none() {
            let busy = |taken| {
                let source = self.shadow.source.display();
                Failure::new(FailureKind::Busy, format!("cannot read '{source}': {taken}"))
            };
            *held = Some(shadow::lock(self.place).map_err(|error| self.failed(&error))?.map_err(busy)?);
        }
        Ok(())
    }

    fn attempt(&self) -> String {
        format!("cannot read '{}'", self.shadow.source.display())
    }

    fn failed(&self, error: &(dyn std::error::Error + 'static)) -> Failure {
        self.refused(CliError::failed(self.attempt(), error))
    }

    fn refused(&self, error: CliError) -> Failure {
        match self.shadow.told_of_room(error) {
            CliError::NoSpace(text) => Failure::new(FailureKind::NoSpace, text),
            other => Failure::other(other.to_string()),
        }
    }

    /// Notes for the user before the start.
    fn notes(&self, about: &About, now: &Metadata) -> Vec<String> {
        let source = self.shadow.source.display();
        let mut notes = Vec::new();
        if let Some(lost) = self.lost {
            let targets: Vec<&str> = lost.sent.iter().map(|sent| sent.target.as_str()).collect();
            notes.push(format!(
                "the shadow of '{source}' is lost, and with it the state that {} was made from: everything is read \
                 and sent again",
                targets.join(", ")
            ));
        }
        if about.is_replaced(now) {
            let what = if about.is_image { "file" } else { "directory" };
            notes.push(format!("'{source}' is a different {what} than at the last sync"));
        }
        notes
    }

    /// A shadow is of a directory or of an image for ever.
    fn check_kind(&self, now: &Metadata) -> Result<(), Failure> {
        let known = outside::of(self.session.datasets.pool()).map_err(|error| self.failed(&error))?;
        let (was, is) = match (known.map(|(kind, _)| kind), now.is_dir()) {
            (Some(outside::Kind::Directory), false) => ("a directory", "none"),
            (Some(outside::Kind::Image), true) => ("a file", "a directory"),
            _ => return Ok(()),
        };
        let source = self.shadow.source.display();
        Err(Failure::other(format!(
            "{}: it was {was} at the last sync, and is {is} now\nrun 'snowmelt shadow destroy {source}', and then \
             sync it to another dataset",
            self.attempt()
        )))
    }

    fn import(&self, how: &TakeIn, stop: &AtomicBool, is_directory: bool) -> Result<(String, u64)> {
        let mut app =
            self.app.lock().map_err(|_| CliError::Failed("an earlier request has failed".into()))?;
        let attempt = self.attempt();
        let list = shadow::suspects(self.place);
        let objects = suspects(&list).map_err(|error| CliError::failed(&attempt, &error))?;
        let args = ImportArgs {
            force: true,
            dry_run: how.dry_run,
            parents: false,
            verbose: false,
            one_filesystem: false,
            block_size: None,
            properties: Vec::new(),
            exclude: how.exclude.clone(),
            exclude_from: Vec::new(),
            ignore_ctime: false,
            json: false,
            source: self.shadow.source.clone(),
            target: self.shadow.dataset.clone(),
        };
        let suspects = Suspects { objects };
        let import = Import {
            args: &args,
            source: &self.shadow.source,
            dataset: &self.shadow.dataset,
            snapshot: &how.snapshot,
            attempt: &attempt,
            // Objects that differed are read again.
            only_changes: !how.again && suspects.is_empty(),
            suspects: Some(&suspects),
            stop,
        };
        if is_directory {
            let taken = import_directory::take(app.context, self.session, &import)?;
            let said = match taken.is_unchanged {
                true => "nothing changed".to_owned(),
                false => import_directory::describe(&taken.summary, how.dry_run),
            };
            return Ok((said, taken.summary.failures));
        }
        let taken = import.image(app.context, self.session)?;
        if taken.done.is_some_and(|done| done.is_unchanged) {
            return Ok(("nothing changed".to_owned(), 0));
        }
        let size = format_bytes(taken.imported.size);
        let would = if how.dry_run { "would be " } else { "" };
        Ok((format!("an image of {size} {would}read"), 0))
    }

    fn remember(&self, about: &About) -> Result<(), Failure> {
        about.store(self.place).map_err(|error| self.failed(&error))
    }
}

impl Taker for ShadowTaker<'_, '_> {
    fn take_in(&self, how: &TakeIn, stop: &AtomicBool) -> Result<TakenIn, Failure> {
        self.lock()?;
        let now = std::fs::metadata(&self.shadow.source).map_err(|error| self.failed(&error))?;
        let mut about = About::load(self.place);
        self.check_kind(&now)?;
        let notes = self.notes(&about, &now);
        let done = self.import(how, stop, now.is_dir());
        let (summary, failures) = done.map_err(|error| self.refused(error))?;
        if !how.dry_run {
            if how.again {
                let given_up = give_up_older(&self.session.datasets, &self.shadow.dataset);
                given_up
                    .map_err(report::failed(&self.attempt()))
                    .map_err(|e| Failure::other(e.to_string()))?;
            }
            about.became(&self.shadow.source, &now);
            self.remember(&about)?;
        }
        let (dataset, is_new) = (self.shadow.dataset.clone(), about.sent.is_empty());
        Ok(TakenIn { dataset, is_new, summary, failures, notes })
    }

    fn sent(&self, target: &str) -> Result<(), Failure> {
        match std::fs::remove_file(shadow::suspects(self.place)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(self.failed(&error)),
            _ => {}
        }
        let mut about = About::load(self.place);
        // The client sends it: one line, with a maximum length.
        let target: String = target.chars().take(TARGET_MAX).collect();
        about.sent(&visible_name(target.as_bytes()), jiff::Timestamp::now().as_second());
        self.remember(&about)
    }
}

/// Destroys all snapshots but the newest: their data may be gone. Those that a target has have bookmarks.
fn give_up_older(datasets: &Datasets, name: &str) -> Result<(), DatasetError> {
    let plan = datasets.read(|catalog| {
        let dataset = catalog.dataset(name)?;
        let mut snapshots = catalog.snapshots(&dataset).collect::<Result<Vec<_>, _>>()?;
        snapshots.pop();
        DestroyPlan::snapshots(catalog, snapshots, false)
    })?;
    match plan.snapshots.is_empty() {
        true => Ok(()),
        false => datasets.destroy(&plan),
    }
}
