//! A stream that is given, in a file or on standard input, into a dataset.

use std::fs::File;
use std::io::{self, Read, Write};

use snowmelt_replicate::end::Source;
use snowmelt_replicate::request::ReceiveRequest;
use snowmelt_replicate::target::copy;
use snowmelt_replicate::{Failure, FailureKind};

use super::ends::{OneEnd, Unreached};
use super::into::show::{Shown, bytes};
use super::place::Remote;
use super::{Settings, receive};
use crate::app::App;
use crate::args::{ReceiveArgs, SyncArgs};
use crate::error::{CliError, Result};
use crate::exit::Exit;

/// Receives the stream on standard input.
///
/// # Errors
/// When the target cannot be reached, or does not take the stream.
pub(super) fn run(app: &mut App<'_>, args: &SyncArgs, target: &Remote) -> Result<Exit> {
    if target.host.is_some() || target.is_zfs {
        return elsewhere(app, args, target);
    }
    let receive = ReceiveArgs {
        force: args.force,
        resumable: true,
        abort: false,
        corrective: false,
        drop_first: false,
        last_only: false,
        skip_holds: true,
        force_unmount: false,
        no_mount: true,
        dry_run: args.dry_run,
        json: args.json,
        verbose: u8::from(args.verbose),
        set: args.set.clone(),
        exclude: args.without.clone(),
        target: target.dataset.clone(),
    };
    receive::run(app, &receive)
}

/// Into a pool of another machine, or of ZFS.
fn elsewhere(app: &mut App<'_>, args: &SyncArgs, target: &Remote) -> Result<Exit> {
    if args.dry_run {
        return Err(CliError::Usage(
            "-n is not supported for streams to another machine: 'snowmelt stream dump' shows what is in a stream".to_owned(),
        ));
    }
    let settings = Settings::new(args, target, target)?;
    let request = ReceiveRequest {
        target: target.dataset.clone(),
        force: args.force,
        origin: None,
        properties: settings.options.set,
        exclude: settings.options.exclude,
        only_adds: false,
        wants_notes: true,
    };
    let input = app.context.stdin.try_clone().map_err(CliError::Output)?;
    let end = OneEnd::open(app, args, target)?;
    let passed = pass(app, args, input, &end, &request);
    end.close();
    let count = passed?;
    let out = &mut app.context.out;
    if args.json {
        let told = serde_json::json!({ "source": args.source, "target": args.target, "bytes": count });
        writeln!(out, "{told}")?;
    } else if args.verbose {
        writeln!(out, "{} to {}: {}", args.source, args.target, bytes(count))?;
    }
    Ok(Exit::Ok)
}

fn pass(
    app: &mut App<'_>,
    args: &SyncArgs,
    input: File,
    end: &OneEnd,
    request: &ReceiveRequest,
) -> Result<u64> {
    let told = |failure: Failure| {
        CliError::Failed(format!("cannot sync '{}' to '{}': {failure}", args.source, args.target))
    };
    let mut sink = end.end().receive(request).map_err(told)?;
    let mut shown = Shown::bytes(app, args).map_err(|unreached| match unreached {
        Unreached::Failed(error) => error,
        Unreached::Lost(why) | Unreached::Busy(why) => CliError::Failed(why),
    })?;
    let copied = copy(Box::new(Given(input)), &mut sink, &mut shown);
    shown.finish();
    match copied {
        Ok(count) => {
            sink.finish().map_err(told)?.iter().for_each(|note| app.context.complain(note));
            Ok(count)
        }
        // The receiver reports why it has stopped.
        Err(failure) if failure.kind == FailureKind::Other => {
            Err(told(sink.finish().err().unwrap_or(failure)))
        }
        Err(failure) => Err(told(failure)),
    }
}

struct Given(File);

impl Read for Given {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl Source for Given {
    fn finish(self: Box<Self>) -> Result<(), Failure> {
        Ok(())
    }
}
