//! `stream verify`.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use serde_json::json;
use snowmelt_dataset::property::format_bytes;
use snowmelt_stream::error::StreamError;
use snowmelt_stream::verify::{Summary, verify};

use crate::app::App;
use crate::args::StreamVerifyArgs;
use crate::error::{CliError, Result, chain};
use crate::exit::Exit;
use crate::output::json;

/// Reads a stream and checks everything that can be checked without a pool.
///
/// # Errors
/// When the stream is bad, or output fails.
pub fn run(app: &mut App<'_>, args: &StreamVerifyArgs) -> Result<Exit> {
    let (input, name) = open(app, args.file.as_deref())?;
    let summary = verify(input).map_err(|error| refused(&name, &error))?;
    let out = &mut app.context.out;
    if args.json {
        let snapshots: Vec<_> = summary
            .snapshots
            .iter()
            .map(|begin| {
                json!({
                    "name": begin.to_name.to_string(),
                    "guid": begin.to_guid.to_string(),
                    "from_guid": begin.from_guid.to_string(),
                    "creation": begin.creation_time.to_string(),
                })
            })
            .collect();
        let mut document = json::document("snowmelt stream verify");
        document.insert("stream".to_owned(), name.into());
        document.insert("bytes".to_owned(), summary.bytes.into());
        document.insert("records".to_owned(), summary.records().into());
        document.insert("package".to_owned(), summary.is_package.into());
        document.insert("byteswapped".to_owned(), summary.is_swapped.into());
        document.insert("record_checksums".to_owned(), summary.has_record_checksums.into());
        document.insert("features".to_owned(), feature_names(&summary).into());
        document.insert("snapshots".to_owned(), snapshots.into());
        json::print(out, document)?;
    } else if !args.quiet {
        for begin in &summary.snapshots {
            let kind = if begin.from_guid == 0 { "full" } else { "incremental" };
            writeln!(out, "{kind}  {}  guid {}", begin.to_name, begin.to_guid)?;
        }
        let (records, bytes) = (summary.records(), format_bytes(summary.bytes));
        let features = feature_names(&summary);
        let features = if features.is_empty() { "none".to_owned() } else { features.join(" ") };
        writeln!(out, "{name}: good: {records} records, {bytes}, features: {features}")?;
    }
    Ok(Exit::Ok)
}

fn feature_names(summary: &Summary) -> Vec<String> {
    summary.features.names().map(|name| name.to_string()).collect()
}

/// The file, or standard input, and what to call it.
///
/// # Errors
/// When it cannot be opened.
pub fn open(app: &App<'_>, file: Option<&Path>) -> Result<(File, String)> {
    match file.filter(|path| *path != Path::new("-")) {
        Some(path) => {
            let name = path.display().to_string();
            let file = File::open(app.context.path(path));
            Ok((file.map_err(|error| CliError::failed(format!("cannot open {name}"), &error))?, name))
        }
        None if rustix::termios::isatty(&app.context.stdin) => {
            let why =
                "Error: Backup stream can not be read from a terminal.\nYou must redirect standard input.";
            Err(CliError::Failed(why.to_owned()))
        }
        None => {
            let input = app.context.stdin.try_clone();
            let input = input.map_err(|error| CliError::failed("cannot read standard input", &error))?;
            Ok((input, "standard input".to_owned()))
        }
    }
}

/// What is wrong with a stream.
pub fn refused(name: &str, error: &StreamError) -> CliError {
    CliError::Failed(format!("{name}: {}", chain(error)))
}
