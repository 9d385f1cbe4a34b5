//! A target at work.

use std::path::PathBuf;
use std::sync::Arc;

use snowmelt_fs::mirror::{
    self, Between, Held, Image, ImageChange, Mirror, MirrorError, MirrorOptions, Move,
};
use snowmelt_fs::restore::{self, LeftOut, Observer, Owners, Privileges, Summary};
use snowmelt_fs::volume_info;
use snowmelt_zpl::Filesystem;

use super::explain::explained;
use super::{Watcher, stream_file};
use crate::error::{Failure, chain};
use crate::objects::{Lifeline, RemoteSnapshot};
use crate::request::{Bring, Brought, Form, Holding, Kept, Kind, Relocation, TargetState};

/// Maximum size of the report about the copies below, in bytes. It must fit into an answer.
const KEPT_LEN_MAX: usize = 3 << 20;
/// One of them takes that, besides its names.
const KEPT_LEN: usize = 256;

/// A target that is open.
pub(super) struct Opened {
    pub(super) thing: Thing,
    pub(super) form: Form,
    pub(super) path: PathBuf,
    /// The source of the copy, as the user gave it.
    pub(super) source: String,
    pub(super) children: Vec<String>,
    /// The privileged attributes to restore on this machine.
    pub(super) privileges: Privileges,
    /// It was opened to look at only: a rehearsal also looks at places that nothing is written to.
    pub(super) is_rehearsal: bool,
}

pub(super) enum Thing {
    Directory(Mirror),
    Image(Image),
    Stream,
    /// In a rehearsal: no sync has been at it.
    Untouched {
        /// There is something in it.
        is_foreign: bool,
    },
}

fn holding(held: &Held) -> Holding {
    Holding { guid: held.guid, name: held.name.clone() }
}

fn told(kept: mirror::Kept) -> Kept {
    let kind = if kept.is_image { Kind::Volume } else { Kind::Filesystem };
    let (held, unfinished) = (kept.held.as_ref().map(holding), kept.unfinished.as_ref().map(holding));
    Kept { below: kept.below, kind, source: kept.source, held, unfinished }
}

impl Opened {
    pub(super) fn state(&self) -> TargetState {
        let nothing = TargetState {
            form: self.form,
            id: None,
            held: None,
            unfinished: None,
            resumes: false,
            is_new: false,
            is_foreign: false,
            kept: Vec::new(),
        };
        match &self.thing {
            Thing::Directory(mirror) => TargetState {
                id: Some(mirror.id().to_owned()),
                held: mirror.held().map(holding),
                unfinished: mirror.unfinished().map(holding),
                resumes: mirror.resumes_update(),
                ..nothing
            },
            Thing::Image(image) => TargetState {
                id: Some(image.id().to_owned()),
                held: image.held().map(holding),
                unfinished: image.unfinished().map(holding),
                // An interrupted update is part of the changes since then.
                resumes: image.held().is_some(),
                ..nothing
            },
            Thing::Stream => TargetState { held: stream_file::held(&self.path), ..nothing },
            Thing::Untouched { is_foreign } => {
                TargetState { id: Some("new".to_owned()), is_new: true, is_foreign: *is_foreign, ..nothing }
            }
        }
    }

    /// The copies below it, as many as fit into an answer.
    pub(super) fn kept(&self) -> Result<Vec<Kept>, Failure> {
        let Thing::Directory(mirror) = &self.thing else { return Ok(Vec::new()) };
        let kept = mirror.kept().map_err(|error| explained(&self.source, &error))?;
        let mut left = KEPT_LEN_MAX;
        let fits = |one: &mirror::Kept| {
            let names = one.below.iter().map(|name| 4 + name.len()).sum::<usize>();
            let held =
                [&one.held, &one.unfinished].map(|held| held.as_ref().map_or(0, |held| held.name.len()));
            let len = KEPT_LEN + names + one.source.len() + held.iter().sum::<usize>();
            left.checked_sub(len).inspect(|rest| left = *rest).is_some()
        };
        Ok(kept.into_iter().take_while(fits).map(told).collect())
    }

    pub(super) fn relocate(&mut self, moves: &[Relocation]) -> Result<Vec<Result<(), Failure>>, Failure> {
        let Thing::Directory(mirror) = &mut self.thing else {
            return Err(Failure::other("the target is not a directory, so nothing can be stored below it"));
        };
        let moves: Vec<Move> = moves
            .iter()
            .map(|one| Move { from: one.from.clone(), to: one.to.clone(), source: one.source.clone() })
            .collect();
        let outcomes = mirror.relocate(&moves).map_err(|error| explained(&self.source, &error))?;
        mirror.nest(&self.children).map_err(|error| explained(&self.source, &error))?;
        let told = |(outcome, one): (Result<(), MirrorError>, &Move)| {
            outcome.map_err(|error| explained(&one.source, &error))
        };
        Ok(outcomes.into_iter().zip(&moves).map(told).collect())
    }

    pub(super) fn brought(&self) -> Brought {
        Brought {
            state: self.state(),
            new: 0,
            moved: 0,
            changed: 0,
            removed: 0,
            bytes: 0,
            failures: 0,
            is_touched: false,
        }
    }

    pub(super) fn bring(
        &mut self,
        how: &Bring,
        mut new: RemoteSnapshot,
        mut old: Option<RemoteSnapshot>,
        watcher: &mut dyn Watcher,
    ) -> Result<Brought, Failure> {
        let lifeline = Arc::new(Lifeline::default());
        [Some(&mut new), old.as_mut()].into_iter().flatten().for_each(|one| one.tie(&lifeline));
        let mut watching = Watching { watcher, lifeline: &lifeline };
        let done = match (&mut self.thing, how.dry_run) {
            (Thing::Directory(mirror), false) => {
                let options = MirrorOptions {
                    force: how.force,
                    owners: Owners::Auto,
                    privileges: self.privileges,
                    children: &self.children,
                    cancelled: lifeline.flag(),
                };
                update(mirror, &how.to, new, old, &options, &mut watching)
            }
            (Thing::Directory(mirror), true) => {
                preview(mirror, how, (new, old), (&self.children, self.privileges))
            }
            (Thing::Image(image), false) => write(image, &how.to, &new, old.is_some(), &mut watching),
            (Thing::Image(_) | Thing::Stream | Thing::Untouched { .. }, _) => Ok(Done::default()),
        };
        if let Some(lost) = lifeline.lost() {
            return Err(lost);
        }
        let done = done.map_err(|error| match error {
            Wrong::Mirror(error) => explained(&self.source, &error),
            Wrong::Failure(failure) => failure,
        })?;
        let Done { summary, is_touched } = done;
        if summary.left_out != LeftOut::default() {
            watching.watcher.failure(&format!("{}: {}", self.path.display(), summary.left_out));
        }
        Ok(Brought {
            new: summary.files
                + summary.directories
                + summary.symlinks
                + summary.specials
                + summary.hardlinks,
            moved: summary.moved,
            changed: summary.changed,
            removed: summary.removed,
            bytes: summary.bytes,
            failures: summary.failures,
            is_touched,
            ..self.brought()
        })
    }
}

/// What was done so far.
#[derive(Default)]
struct Done {
    summary: Summary,
    is_touched: bool,
}

enum Wrong {
    Mirror(MirrorError),
    Failure(Failure),
}

impl From<MirrorError> for Wrong {
    fn from(error: MirrorError) -> Self {
        Self::Mirror(error)
    }
}

fn filesystem(snapshot: RemoteSnapshot) -> Result<Filesystem<RemoteSnapshot>, Wrong> {
    Filesystem::open(snapshot).map_err(|error| Wrong::Failure(Failure::other(chain(&error))))
}

fn held(to: &Holding) -> Held {
    Held { guid: to.guid, name: to.name.clone() }
}

/// Brings a directory to a snapshot.
fn update(
    mirror: &mut Mirror,
    to: &Holding,
    new: RemoteSnapshot,
    old: Option<RemoteSnapshot>,
    options: &MirrorOptions<'_>,
    watching: &mut Watching<'_>,
) -> Result<Done, Wrong> {
    let (new, to) = (filesystem(new)?, held(to));
    let mut result = match old {
        Some(old) => {
            let old = filesystem(old)?;
            let between = Between { old: &old, new: &new, changes: new.objects() };
            mirror.update(&between, &to, options, watching)
        }
        None => mirror.fill(&new, &to, options, watching),
    };
    if matches!(result, Err(MirrorError::Conflicts { .. })) && options.force {
        result = mirror.fill(&new, &to, options, watching);
    }
    let summary = result?;
    // What this directory had in the place of a dataset below is out of the way now.
    mirror.nest(options.children)?;
    Ok(Done { summary, is_touched: summary != Summary::default() })
}

/// What bringing a directory to a snapshot would do.
fn preview(
    mirror: &Mirror,
    how: &Bring,
    (new, old): (RemoteSnapshot, Option<RemoteSnapshot>),
    (children, privileges): (&[String], Privileges),
) -> Result<Done, Wrong> {
    let Some(old) = old else { return Ok(Done::default()) };
    let (old, new) = (filesystem(old)?, filesystem(new)?);
    let between = Between { old: &old, new: &new, changes: new.objects() };
    let preview = mirror.preview(&between, children, privileges)?;
    if preview.conflicts.count > 0 && !how.force {
        return Err(Wrong::Mirror(preview.conflicts.into()));
    }
    let summary =
        Summary { files: preview.new, removed: preview.gone, changed: preview.changed, ..Summary::default() };
    Ok(Done { summary, is_touched: false })
}

/// Brings an image to a snapshot.
fn write(
    image: &mut Image,
    to: &Holding,
    new: &RemoteSnapshot,
    has_base: bool,
    watching: &mut Watching<'_>,
) -> Result<Done, Wrong> {
    let volume = volume_info(new).map_err(|error| Wrong::Failure(Failure::other(chain(&error))))?;
    watching.watcher.expect(volume.size);
    let change = if has_base { ImageChange::Since(new) } else { ImageChange::Whole };
    let lifeline = watching.lifeline;
    let bytes = image.write((new, volume), change, &held(to), lifeline.flag(), &mut |at| {
        watching.watcher.at(at);
        watching.look();
    })?;
    Ok(Done { summary: Summary { bytes, ..Summary::default() }, is_touched: true })
}

struct Watching<'a> {
    watcher: &'a mut dyn Watcher,
    lifeline: &'a Lifeline,
}

impl Watching<'_> {
    fn look(&self) {
        if self.watcher.is_cancelled() {
            self.lifeline.stop();
        }
    }
}

impl Observer for Watching<'_> {
    fn progress(&mut self, _path: &[u8], _so_far: &Summary) {
        self.watcher.item();
        self.look();
    }

    fn failure(&mut self, failure: restore::Failure) {
        // After this nothing can be done, so it is reported only once.
        if self.lifeline.lost().is_none() {
            self.watcher.failure(&chain(&failure));
        }
    }
}
