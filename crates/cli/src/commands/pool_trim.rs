//! `pool trim`.

use std::io::Write;

use serde_json::json;
use snowmelt_dataset::CleanOptions;
use snowmelt_dataset::property::format_bytes;

use crate::app::App;
use crate::args::PoolTrimArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::output::json;
use crate::report;

/// Moves the blocks in use out of segments that are mostly unused, deletes these segments, and reports the free space
/// to the medium below.
///
/// # Errors
/// When the pool is not there, or cannot be read or written.
pub fn run(app: &mut App<'_>, args: &PoolTrimArgs) -> Result<Exit> {
    let name = &args.pool;
    let attempt = format!("cannot trim '{name}'");
    let missing = |pool: &str| format!("cannot open '{pool}': no such pool");
    if name.contains('/') {
        return Err(CliError::Usage(format!("'{name}' is not the name of a pool")));
    }
    app.on_pool(name, missing, |app, session| {
        let report = session.datasets.clean(&CleanOptions::default()).map_err(report::failed(&attempt))?;
        let attempted = |error| CliError::failed(&attempt, &error);
        let trimmed = session.datasets.pool().trim().map_err(attempted)?;
        if args.json {
            let mut document = json::document("snowmelt pool trim");
            for (key, value) in [
                ("pool", json!(name)),
                ("freed", json!(report.freed)),
                ("segments", json!(report.segments)),
                ("copied", json!(report.copied)),
                ("trimmed", json!(trimmed)),
                ("unreadable", json!(report.unreadable)),
            ] {
                document.insert(key.to_owned(), value);
            }
            json::print(&mut app.context.out, document)?;
        } else if args.verbose {
            let (freed, copied) = (format_bytes(report.freed), format_bytes(report.copied));
            let segments = report.segments;
            writeln!(app.context.out, "{name}: {freed} freed ({segments} segments), {copied} copied")?;
            if trimmed > 0 {
                writeln!(app.context.out, "{name}: {} trimmed", format_bytes(trimmed))?;
            }
        }
        if report.unreadable > 0 {
            app.context.complain(format_args!(
                "{name}: {} blocks cannot be read and were not moved; run 'snowmelt check'",
                report.unreadable
            ));
        }
        app.record(session);
        Ok(Exit::unless(report.unreadable > 0))
    })
}
