//! The output for users and programs.

use std::io::Write;

use snowmelt_dataset::property::format_bytes;
use snowmelt_replicate::limit::Limit;
use snowmelt_replicate::request::{Brought, Form};
use snowmelt_replicate::target::Watcher;

use super::super::rate;
use super::{Snapshots, Unreached};
use crate::app::App;
use crate::args::SyncArgs;
use crate::context::Context;
use crate::exit::Exit;
use crate::progress::Progress;

pub(in super::super) fn bytes(count: u64) -> String {
    format_bytes(count)
}

/// The result, or with `-n` the plan, for one dataset.
pub(super) struct Told {
    /// The snapshot's name, without the dataset's.
    pub(super) snapshot: String,
    pub(super) target: String,
    /// Bytes written, or that would be.
    pub(super) bytes: u64,
    /// Nothing where that is not known beforehand.
    pub(super) brought: Option<Brought>,
    pub(super) said: String,
    pub(super) exit: Exit,
}

impl Told {
    pub(super) fn rehearsed(snapshots: &Snapshots, target: &str, said: String) -> Self {
        let (snapshot, target) = (snapshots.newest.name.clone(), target.to_owned());
        Self { snapshot, target, bytes: 0, brought: None, said, exit: Exit::Ok }
    }

    pub(super) fn done(snapshots: &Snapshots, target: &str, brought: Brought) -> Self {
        let name = snapshots.name(&snapshots.newest);
        let Brought { new, moved, changed, removed, .. } = brought;
        let written = bytes(brought.bytes);
        let said = match brought.state.form {
            _ if !brought.is_touched && brought.failures == 0 => format!("{target} already has {name}"),
            Form::Directory => format!(
                "{name} is in {target}: {new} new, {moved} moved, {changed} changed, {removed} removed, {written} \
                 written"
            ),
            Form::Image | Form::Stream => format!("{name} is in {target}: {written} written"),
        };
        let exit = if brought.failures == 0 { Exit::Ok } else { Exit::Partial };
        let bytes = brought.bytes;
        Self { bytes, brought: Some(brought), exit, ..Self::rehearsed(snapshots, target, said) }
    }

    /// For programs.
    pub(super) fn json(&self, source: &str) -> serde_json::Value {
        let mut told = serde_json::json!({
            "source": source, "target": self.target, "snapshot": self.snapshot, "bytes": self.bytes,
        });
        if let (Some(all), Some(brought)) = (told.as_object_mut(), &self.brought) {
            let counts = [
                ("new", brought.new),
                ("moved", brought.moved),
                ("changed", brought.changed),
                ("removed", brought.removed),
                ("failures", brought.failures),
            ];
            all.extend(counts.map(|(name, count)| (name.to_owned(), count.into())));
        }
        told
    }
}

/// The results, for programs or, with `-v`, for users.
pub(super) fn report(app: &mut App<'_>, args: &SyncArgs, told: &Told) -> Result<(), Unreached> {
    match args.json {
        true => say(app, &told.json(&args.source).to_string()),
        false if args.verbose || args.dry_run => say(app, &told.said),
        false => Ok(()),
    }
}

pub(super) fn say(app: &mut App<'_>, line: &str) -> Result<(), Unreached> {
    let out = &mut app.context.out;
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|error| Unreached::Failed(error.into()))
}

/// Shows progress, and keeps to `--bwlimit`.
pub(in super::super) struct Shown<'a> {
    context: &'a mut Context,
    progress: Option<Progress>,
    limit: Option<Limit>,
    items: u64,
}

impl<'a> Shown<'a> {
    /// Counts names.
    pub(super) fn items(app: &'a mut App<'_>, args: &SyncArgs) -> Result<Self, Unreached> {
        Self::new(app, args, Progress::entries)
    }

    /// Counts bytes.
    pub(in super::super) fn bytes(app: &'a mut App<'_>, args: &SyncArgs) -> Result<Self, Unreached> {
        Self::new(app, args, |context| Progress::bytes(context, None))
    }

    fn new(
        app: &'a mut App<'_>,
        args: &SyncArgs,
        progress: impl FnOnce(&Context) -> Progress,
    ) -> Result<Self, Unreached> {
        let limit = rate(args).map_err(Unreached::Failed)?.map(Limit::new);
        let progress = (!args.json).then(|| progress(app.context));
        Ok(Self { context: app.context, progress, limit, items: 0 })
    }

    pub(in super::super) fn finish(self) {
        if let Some(progress) = self.progress {
            progress.finish();
        }
    }
}

impl Watcher for Shown<'_> {
    fn item(&mut self) {
        self.items += 1;
        self.at(self.items);
    }

    fn expect(&mut self, bytes: u64) {
        if let Some(progress) = &self.progress {
            progress.expect(Some(bytes));
        }
    }

    fn at(&mut self, bytes: u64) {
        if let Some(progress) = &self.progress {
            progress.set(bytes);
        }
    }

    fn pass(&mut self, bytes: usize) {
        if let Some(limit) = &self.limit {
            limit.pass(bytes);
        }
    }

    fn failure(&mut self, what: &str) {
        self.context.complain(what);
    }

    fn is_cancelled(&self) -> bool {
        self.context.is_cancelled()
    }
}
