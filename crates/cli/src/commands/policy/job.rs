//! Replication jobs as syncs.

use std::ffi::OsString;

use snowmelt_policy::config::{Job, When};

use crate::app::App;
use crate::args::{Command, SyncArgs, parse};
use crate::commands::sync::{Direction, Place, Remote, is_without_snapshots, parse_place, rsync_end};
use crate::error::{CliError, Result};

/// A job understood as the sync it is.
pub(super) struct Sync {
    pub(super) args: SyncArgs,
    pub(super) source: End,
    pub(super) target: End,
}

/// One side of a job.
pub(super) enum End {
    Dataset(Remote),
    /// A server of rsync, or a directory of another machine: neither has snapshots.
    Files,
}

impl End {
    /// The dataset that it is.
    pub(super) fn dataset(&self) -> Option<&Remote> {
        match self {
            Self::Dataset(remote) => Some(remote),
            Self::Files => None,
        }
    }
}

impl Sync {
    /// Whether one side has no snapshots.
    pub(super) fn has_files(&self) -> bool {
        matches!((&self.source, &self.target), (End::Files, _) | (_, End::Files))
    }
}

/// The command line of a job.
pub(super) fn words(job: &Job) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["sync".into(), "--json".into()];
    let said = &job.sync;
    for (is_said, flag) in [
        (said.recursive, "--recursive"),
        (said.force, "--force"),
        (said.newest_only, "--newest-only"),
        // Where one end has none, a snapshot is named, or taken in any case.
        (
            !said.snapshot && !is_without_snapshots(&job.source) && !is_without_snapshots(&job.target),
            "--no-snapshot",
        ),
        (!said.hold, "--no-hold"),
        (said.properties, "--props"),
        (said.raw, "--raw"),
        (said.delete, "--delete"),
        (said.checksum, "--checksum"),
    ] {
        if is_said {
            words.push(flag.into());
        }
    }
    // With '=', so that a value cannot be parsed as an option.
    let mut valued = |flag: &str, value: &str| words.push(format!("{flag}={value}").into());
    said.exclude.iter().for_each(|pattern| valued("--exclude", pattern));
    said.identifier.iter().for_each(|identifier| valued("--identifier", identifier));
    said.bwlimit.iter().for_each(|rate| valued("--bwlimit", rate));
    said.rsh.iter().for_each(|command| valued("--rsh", command));
    said.remote_command.iter().for_each(|command| valued("--remote-command", command));
    said.filter.iter().for_each(|rule| valued("--filter", rule));
    said.password_file.iter().for_each(|file| valued("--password-file", file));
    said.timeout.iter().for_each(|seconds| valued("--timeout", &seconds.to_string()));
    said.jobs.iter().for_each(|count| valued("--jobs", &count.to_string()));
    said.retries.iter().for_each(|count| valued("--retries", &count.to_string()));
    for (name, value) in &said.set {
        words.extend(["-o".into(), format!("{name}={value}").into()]);
    }
    for name in &said.without {
        words.extend(["-x".into(), name.into()]);
    }
    words.extend(["--".into(), job.source.clone().into(), job.target.clone().into()]);
    words
}

/// Understands a job.
///
/// # Errors
/// When `sync` would refuse it. An end must be a dataset, or files on another machine if the other end is a dataset of
/// this machine.
pub(super) fn understand(app: &App<'_>, name: &str, job: &Job) -> Result<Sync> {
    let wrong = |why: String| CliError::Failed(format!("job '{name}': {why}"));
    let args = match parse(&words(job), None) {
        Ok(cli) => match cli.command {
            Command::Sync(args) => args,
            _ => return Err(wrong("its source and target are not valid for a sync".to_owned())),
        },
        Err(failure) => {
            use crate::args::ParseFailure::{Help, Missing, Usage};
            let (Help(text) | Usage(text) | Missing(text)) = failure;
            return Err(wrong(text.lines().next().unwrap_or_default().to_owned()));
        }
    };
    let end = |text: &str| match parse_place(app, text).map_err(|error| wrong(error.to_string()))? {
        Place::Dataset(remote) => Ok(End::Dataset(remote)),
        Place::Elsewhere(_) if is_without_snapshots(text) => Ok(End::Files),
        Place::Path(_) | Place::Elsewhere(_) | Place::Standard => {
            Err(wrong(format!("'{text}' is not a dataset")))
        }
    };
    let (source, target) = match rsync_end(app, &args).map_err(|error| wrong(error.to_string()))? {
        Some((Direction::Pull, here)) => (End::Files, End::Dataset(here)),
        Some((Direction::Push, here)) => (End::Dataset(here), End::Files),
        None => (end(&args.source)?, end(&args.target)?),
    };
    let is_here = |remote: &Remote| remote.host.is_none() && !remote.is_zfs;
    for (files, other, other_name) in [(&source, &target, &job.target), (&target, &source, &job.source)] {
        if matches!(files, End::Files) && !other.dataset().is_some_and(is_here) {
            return Err(wrong(format!(
                "'{other_name}' must be a dataset of this machine, because the other end is not"
            )));
        }
    }
    for (key, rules, end) in
        [("prune_source", &job.prune_source, &source), ("prune_target", &job.prune_target, &target)]
    {
        if rules.is_some() && end.dataset().is_none() {
            let what = if rsync_end(app, &args).is_ok_and(|end| end.is_some()) {
                "an rsync server"
            } else {
                "a directory"
            };
            return Err(wrong(format!("{key}: {what} has no snapshots")));
        }
    }
    if job.when == When::AfterSnapshot && !source.dataset().is_some_and(is_here) {
        return Err(wrong(format!(
            "when = \"after_snapshot\": snapshots of '{}' are taken elsewhere: give a time instead",
            job.source
        )));
    }
    Ok(Sync { args, source, target })
}

/// The prefix of names at this place, to distinguish them from names on this machine. Empty for this machine.
pub(super) fn place_name(remote: &Remote) -> String {
    let host = remote.host.as_ref().map(|host| format!("{host}:")).unwrap_or_default();
    let zfs = if remote.is_zfs { "zfs:" } else { "" };
    format!("{host}{zfs}")
}
