//! A directory or an image as a source that is copied nowhere: its shadow is brought up to date, and sent.
//!
//! The data to send is read from the directory and verified. If something has changed since the shadow was made, the
//! stream ends. Then the shadow is brought up to date once more, and stores the differing data of these files, so
//! that they cannot change a second time.

use std::io::Write;

use snowmelt_replicate::FailureKind;
use snowmelt_replicate::request::TakenIn;

use super::place::Remote;
use super::{Attempt, Settings, bring, finish};
use crate::app::App;
use crate::args::SyncArgs;
use crate::commands::import_directory;
use crate::error::{CliError, Result};
use crate::exit::Exit;

/// How often the source may change while it is sent.
const ATTEMPTS: usize = 8;

/// Sends the directory or image at the path of `source`.
///
/// # Errors
/// As a sync of datasets; when the source cannot be read.
pub(super) fn run(app: &mut App<'_>, args: &SyncArgs, source: &Remote, target: &Remote) -> Result<Exit> {
    if args.no_snapshot || args.recursive {
        let flag = if args.recursive { "-r" } else { "--no-snapshot" };
        return Err(CliError::Usage(format!(
            "{flag} is only for datasets, and '{}' is not a dataset",
            args.source
        )));
    }
    let mut settings = Settings::new(args, source, target)?;
    // Of older snapshots the data is not there any more.
    settings.options.newest_only = true;
    for round in 1.. {
        let (report, taken) = match bring(app, args, source, target, &settings)? {
            Attempt::Done(report, taken) => (report, taken.unwrap_or_default()),
            Attempt::Looked(taken) => return tell(app, args, &taken),
            Attempt::Previewed(_) => break,
        };
        let failures = || report.datasets.iter().filter_map(|dataset| dataset.failure.as_ref());
        let changed = failures().find(|failure| failure.kind == FailureKind::SourceChanged);
        if let Some(changed) = changed.filter(|_| round < ATTEMPTS) {
            app.context.complain(format_args!("{changed}\nreading it again"));
            settings.again = true;
            continue;
        }
        tell(app, args, &taken)?;
        let sent = finish(app, args, &report)?;
        if taken.is_new && failures().next().is_some() && changed.is_none() {
            app.context.complain(format_args!(
                "'{}' was never synced from here: if '{}' is a copy of it, the state it was made from is not known",
                args.source, args.target
            ));
        }
        if taken.failures > 0 {
            let done = format!("synced '{}' to '{}'", args.source, args.target);
            app.context.complain(import_directory::failures(&done, taken.failures));
        }
        return Ok(if matches!(sent, Exit::Ok) && taken.failures > 0 { Exit::Partial } else { sent });
    }
    Ok(Exit::Ok)
}

/// The data that was or would be read into the shadow.
fn tell(app: &mut App<'_>, args: &SyncArgs, taken: &TakenIn) -> Result<Exit> {
    let out = &mut app.context.out;
    if args.dry_run && args.json {
        let said = serde_json::json!({ "source": taken.dataset, "summary": taken.summary });
        writeln!(out, "{said}")?;
    } else if args.dry_run || args.verbose && !args.json {
        writeln!(out, "{}: {}", args.source, taken.summary)?;
    }
    Ok(if taken.failures > 0 { Exit::Partial } else { Exit::Ok })
}
