//! Replication jobs as syncs.

use std::ffi::OsString;

use snowmelt_policy::config::{Job, When};

use crate::app::App;
use crate::args::{Command, SyncArgs, parse};
use crate::commands::sync::{Place, Remote, parse_place};
use crate::error::{CliError, Result};

/// A job understood as the sync it is.
pub(super) struct Sync {
    pub(super) args: SyncArgs,
    pub(super) source: Remote,
    pub(super) target: Remote,
}

/// The words that do what a job says.
pub(super) fn words(job: &Job) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["sync".into(), "--json".into()];
    let said = &job.sync;
    for (is_said, flag) in [
        (said.recursive, "--recursive"),
        (said.force, "--force"),
        (said.newest_only, "--newest-only"),
        (!said.snapshot, "--no-snapshot"),
        (!said.hold, "--no-hold"),
        (said.properties, "--props"),
        (said.raw, "--raw"),
    ] {
        if is_said {
            words.push(flag.into());
        }
    }
    // With '=', so that no value can be taken for an option.
    let mut valued = |flag: &str, value: &str| words.push(format!("{flag}={value}").into());
    said.exclude.iter().for_each(|pattern| valued("--exclude", pattern));
    said.identifier.iter().for_each(|identifier| valued("--identifier", identifier));
    said.bwlimit.iter().for_each(|rate| valued("--bwlimit", rate));
    said.rsh.iter().for_each(|command| valued("--rsh", command));
    said.remote_command.iter().for_each(|command| valued("--remote-command", command));
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
/// When `sync` would not take it, or an end is no dataset.
pub(super) fn understand(app: &App<'_>, name: &str, job: &Job) -> Result<Sync> {
    let wrong = |why: String| CliError::Failed(format!("job '{name}': {why}"));
    let args = match parse(&words(job), None) {
        Ok(cli) => match cli.command {
            Command::Sync(args) => args,
            _ => return Err(wrong("it is no sync".to_owned())),
        },
        Err(failure) => {
            use crate::args::ParseFailure::{Help, Missing, Usage};
            let (Help(text) | Usage(text) | Missing(text)) = failure;
            return Err(wrong(text.lines().next().unwrap_or_default().to_owned()));
        }
    };
    let end = |text: &str| match parse_place(app, text).map_err(|error| wrong(error.to_string()))? {
        Place::Dataset(remote) => Ok(remote),
        Place::Path(_) | Place::Elsewhere(_) | Place::Standard => {
            Err(wrong(format!("'{text}' is no dataset")))
        }
    };
    let (source, target) = (end(&args.source)?, end(&args.target)?);
    if job.when == When::AfterSnapshot && (source.host.is_some() || source.is_zfs) {
        return Err(wrong(format!(
            "when = \"after_snapshot\": snapshots of '{}' are not seen from here: give it a time",
            job.source
        )));
    }
    Ok(Sync { args, source, target })
}

/// What stands before names of this place to tell them from those of this machine; nothing for this machine.
pub(super) fn place_name(remote: &Remote) -> String {
    let host = remote.host.as_ref().map(|host| format!("{host}:")).unwrap_or_default();
    let zfs = if remote.is_zfs { "zfs:" } else { "" };
    format!("{host}{zfs}")
}
