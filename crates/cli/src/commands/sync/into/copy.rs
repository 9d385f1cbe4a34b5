//! One dataset into a directory, an image or device, or a file with a stream.

use snowmelt_replicate::end::End;
use snowmelt_replicate::request::{Bring, Brought, DatasetInfo, Form, OpenTarget, SnapshotInfo, TargetState};
use snowmelt_replicate::target::{self, Material, Target};

use super::super::canonical;
use super::show::{Shown, Told, bytes, report};
use super::{Snapshots, Unreached, attempt, no_tree, told};
use crate::app::App;
use crate::args::SyncArgs;
use crate::error::CliError;
use crate::exit::Exit;

/// A pool, and what its datasets are copied into.
pub(super) struct Copy<'a> {
    pub(super) args: &'a SyncArgs,
    pub(super) end: &'a dyn End,
    pub(super) target: &'a mut dyn Target,
}

/// The dataset of which a target is a copy. It is `below` the dataset that was given.
pub(super) fn source_of(args: &SyncArgs, below: &[&str]) -> String {
    below.iter().fold(canonical(&args.source), |source, name| source + "/" + name)
}

/// How to open the target of a dataset, which is `below` the one that is named, with others below itself.
pub(super) fn opening(
    args: &SyncArgs,
    info: &DatasetInfo,
    below: &[&str],
    children: &[&str],
    dry_run: bool,
) -> OpenTarget {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    OpenTarget {
        source: source_of(args, below),
        kind: info.kind,
        below: owned(below),
        children: owned(children),
        force: args.force,
        dry_run: args.dry_run || dry_run,
        list: false,
    }
}

/// Brings one target up to date, and reports it.
pub(super) fn bring(app: &mut App<'_>, copy: &mut Copy<'_>, info: &DatasetInfo) -> Result<Exit, Unreached> {
    let args = copy.args;
    let state = copy.open(&opening(args, info, &[], &[], false))?;
    let id = state.id.clone();
    let mut taken = Snapshots::take(args, copy.end, std::slice::from_ref(info), id.as_deref())?;
    let Some(snapshots) = taken.pop() else { return Ok(Exit::Ok) };
    let snapshots = snapshots?;
    let told = copy.run(app, &snapshots, state, &args.target)?;
    if told.brought.as_ref().is_some_and(|brought| brought.is_touched) {
        Snapshots::note(app, copy.end);
    }
    report(app, args, &told)?;
    Ok(told.exit)
}

/// Writes a stream of the newest snapshot to standard output.
pub(super) fn to_standard(
    app: &mut App<'_>,
    args: &SyncArgs,
    end: &dyn End,
    snapshots: &Snapshots,
) -> Result<Exit, Unreached> {
    let request = snapshots.stream(args);
    if args.dry_run {
        report(app, args, &rehearse_stream(args, end, snapshots, &args.target)?)?;
        return Ok(Exit::Ok);
    }
    let out = app.context.out.get_ref().try_clone();
    let mut out = out.map_err(|error| Unreached::Failed(CliError::Output(error)))?;
    let source = end.send(&request).map_err(|failure| told(&attempt(args), failure))?;
    let mut shown = Shown::bytes(app, args)?;
    let copied = target::copy(source, &mut out, &mut shown);
    shown.finish();
    copied.map_err(|failure| told(&attempt(args), failure))?;
    snapshots.tidy(app, end);
    Ok(Exit::Ok)
}

/// The size of a stream of the newest snapshot.
fn rehearse_stream(
    args: &SyncArgs,
    end: &dyn End,
    snapshots: &Snapshots,
    target: &str,
) -> Result<Told, Unreached> {
    let request = snapshots.stream(args);
    let tried = |failure| told(&attempt(args), failure);
    let mut size = 0;
    if snapshots.has_one() {
        let sizes = end.sizes(std::slice::from_ref(&request)).map_err(tried)?;
        size = sizes.into_iter().next().transpose().map_err(tried)?.unwrap_or(0);
    }
    let said = format!("would write {} in full to {target}: {}", request.to, bytes(size));
    Ok(Told { bytes: size, ..Told::rehearsed(snapshots, target, said) })
}

impl Copy<'_> {
    /// Whether one side is gone.
    pub(super) fn is_lost(&self) -> bool {
        self.end.is_lost() || self.target.is_lost()
    }

    pub(super) fn open(&mut self, what: &OpenTarget) -> Result<TargetState, Unreached> {
        let state = self.target.open(what).map_err(|failure| told(&attempt(self.args), failure))?;
        match self.args.recursive && state.form == Form::Stream {
            true => Err(Unreached::Failed(no_tree(self.args))),
            false => Ok(state),
        }
    }

    /// Updates the opened target to the newest snapshot, or prints how this would be done.
    pub(super) fn run(
        &mut self,
        app: &mut App<'_>,
        snapshots: &Snapshots,
        state: TargetState,
        target: &str,
    ) -> Result<Told, Unreached> {
        if self.args.dry_run {
            return self.rehearse(app, snapshots, &state, target);
        }
        let newest = &snapshots.newest;
        let mut so_far = nothing(state);
        // An interrupted update is completed first: only then is the state of the target known.
        let begun = so_far.state.unfinished.as_ref().and_then(|held| snapshots.find(held.guid)).cloned();
        if let Some(to) = begun.filter(|_| so_far.state.form == Form::Directory) {
            self.step(app, snapshots, &to, &mut so_far)?;
        }
        if !holds(&so_far.state, newest)
            && so_far.state.unfinished.as_ref().is_none_or(|_| so_far.failures == 0)
        {
            self.step(app, snapshots, newest, &mut so_far)?;
        }
        let is_whole = holds(&so_far.state, newest);
        if is_whole {
            snapshots.tidy(app, self.end);
        }
        match (so_far.failures, is_whole) {
            (0, _) => {}
            (failures, true) => app.context.complain(format_args!(
                "{failures} attributes could not be set; everything else was written"
            )),
            (_, false) => app.context.complain("some changes failed: the next sync tries them again"),
        }
        Ok(Told::done(snapshots, target, so_far))
    }

    /// Updates the opened target to a snapshot.
    fn step(
        &mut self,
        app: &mut App<'_>,
        snapshots: &Snapshots,
        to: &SnapshotInfo,
        so_far: &mut Brought,
    ) -> Result<(), Unreached> {
        let args = self.args;
        let base = base(snapshots, &so_far.state, to);
        let how = Bring {
            to: snapshots.holding(to),
            has_base: base.is_some(),
            force: args.force,
            dry_run: args.dry_run,
        };
        let material = match so_far.state.form {
            Form::Stream => {
                let request = snapshots.stream(args);
                Material::Stream(self.end.send(&request).map_err(|failure| told(&attempt(args), failure))?)
            }
            Form::Directory | Form::Image => Material::Snapshots {
                new: snapshots.open(args, self.end, to, base)?,
                old: base.map(|base| snapshots.open(args, self.end, base, None)).transpose()?,
            },
        };
        let mut shown = match so_far.state.form {
            Form::Directory => Shown::items(app, args)?,
            Form::Image | Form::Stream => Shown::bytes(app, args)?,
        };
        let brought = self.target.bring(&how, material, &mut shown);
        shown.finish();
        add(so_far, brought.map_err(|failure| told(&attempt(args), failure))?);
        Ok(())
    }

    fn rehearse(
        &mut self,
        app: &mut App<'_>,
        snapshots: &Snapshots,
        state: &TargetState,
        target: &str,
    ) -> Result<Told, Unreached> {
        if state.form == Form::Stream && (snapshots.would_take || !holds(state, &snapshots.newest)) {
            return rehearse_stream(self.args, self.end, snapshots, target);
        }
        let (name, newest) = (&snapshots.info.name, &snapshots.newest);
        let more = match snapshots.would_take && snapshots.has_one() {
            true => ", and the changes in a new snapshot",
            false => "",
        };
        let unfinished = state.unfinished.as_ref().and_then(|held| snapshots.find(held.guid));
        let to = unfinished.filter(|_| state.form == Form::Directory).unwrap_or(newest);
        let base = base(snapshots, state, to);
        let rehearsed = |said| Ok(Told::rehearsed(snapshots, target, said));
        match base {
            _ if state.is_new && state.is_foreign => {
                rehearsed(format!("would make {target} a copy of {name}, and remove everything else"))
            }
            _ if state.is_new => rehearsed(format!("would copy all of {name} to {target}")),
            _ if holds(state, to) => rehearsed(format!("{target} already has {}{more}", to.name)),
            None => rehearsed(format!("would compare {target} with all of {}{more}", to.name)),
            Some(base) if state.form == Form::Image => {
                rehearsed(format!("would write to {target} the changes since {}{more}", base.name))
            }
            Some(_) => {
                let mut so_far = nothing(state.clone());
                self.step(app, snapshots, &to.clone(), &mut so_far)?;
                let Brought { new, removed, changed, .. } = so_far;
                let said = format!(
                    "would update {target} to {}: {new} new names, {removed} removed names, {changed} changed \
                     files{more}",
                    to.name
                );
                let told = Told::rehearsed(snapshots, target, said);
                Ok(Told { brought: Some(so_far), ..told })
            }
        }
    }
}

/// Whether a target has a snapshot, without an interrupted update.
fn holds(state: &TargetState, snapshot: &SnapshotInfo) -> bool {
    state.unfinished.is_none() && state.held.as_ref().is_some_and(|held| held.guid == snapshot.guid)
}

/// The snapshot from which a target can be brought to `to` by what changed since.
fn base<'a>(snapshots: &'a Snapshots, state: &TargetState, to: &SnapshotInfo) -> Option<&'a SnapshotInfo> {
    let is_sound = match (&state.unfinished, state.form) {
        (None, _) => true,
        (Some(begun), Form::Directory) => begun.guid == to.guid && state.resumes,
        // An interrupted update is part of the changes since then, as long as its snapshot exists: nothing was rolled
        // back.
        (Some(begun), _) => snapshots.find(begun.guid).is_some(),
    };
    state.held.as_ref().filter(|_| is_sound).and_then(|held| snapshots.find(held.guid))
}

fn nothing(state: TargetState) -> Brought {
    Brought { state, new: 0, moved: 0, changed: 0, removed: 0, bytes: 0, failures: 0, is_touched: false }
}

fn add(total: &mut Brought, more: Brought) {
    *total = Brought {
        new: total.new + more.new,
        moved: total.moved + more.moved,
        changed: total.changed + more.changed,
        removed: total.removed + more.removed,
        bytes: total.bytes + more.bytes,
        failures: total.failures + more.failures,
        is_touched: total.is_touched || more.is_touched,
        state: more.state,
    };
}
