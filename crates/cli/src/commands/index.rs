//! `index`.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::json;
use snowmelt_rsync::index::{Builder, Index, IndexError, Replacement, Unread, changed_paths, scan, update};
use snowmelt_rsync::source::Time;

use crate::app::App;
use crate::args::IndexArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::output::json;

/// Longest line of a log: a name has at most 4 KiB, of which each byte may be told as five.
const LINE_MAX: u64 = 64 << 10;

/// Makes the index of a directory, or brings it up to date.
///
/// # Errors
/// When it cannot be made; then the one that was there is there still.
pub fn run(app: &mut App<'_>, args: &IndexArgs) -> Result<Exit> {
    let directory = app.context.path(&args.directory);
    let file = match &args.file {
        Some(file) => app.context.path(file),
        None => beside(&directory),
    };
    if args.watch {
        return super::index_watch::run(app, args, &directory, &file);
    }
    let failed =
        |error: &IndexError| CliError::failed(format!("cannot index '{}'", directory.display()), error);
    let begun = now();
    let replacement = Replacement::begin(&file).map_err(|error| failed(&error))?;
    let (builder, unread) = match &args.from_rsync_log {
        None => scan(&directory, args.threads.max(1).into()).map_err(|error| failed(&error))?,
        Some(log) => {
            let index = Index::load(&file).map_err(|error| failed(&error))?;
            let mut builder = Builder::from_index(&index).map_err(|error| failed(&error))?;
            let changed = changes(app, log)?;
            let unread = update(&mut builder, &directory, changed).map_err(|error| failed(&error))?;
            (builder, unread)
        }
    };
    let files = builder.files().map_err(|error| failed(&error))?;
    let bytes = builder.finish(begun).map_err(|error| failed(&error))?;
    replacement.commit(&bytes).map_err(|error| failed(&error))?;
    if args.json {
        let mut document = json::document("snowmelt index");
        document.insert("index".to_owned(), json!(file.display().to_string()));
        document.insert("files".to_owned(), json!(files));
        document.insert("bytes".to_owned(), json!(bytes.len()));
        document.insert("unread".to_owned(), json!(unread.len()));
        json::print(&mut app.context.out, document)?;
    } else if !args.quiet {
        writeln!(app.context.out, "{files} files in {}, {} bytes", file.display(), bytes.len())?;
    }
    tell(app, &directory, &unread);
    Ok(if unread.is_empty() { Exit::Ok } else { Exit::Partial })
}

fn beside(directory: &Path) -> PathBuf {
    let mut name = directory.components().as_path().as_os_str().to_owned();
    name.push(".index");
    name.into()
}

pub(super) fn now() -> Time {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Time { seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanoseconds: since.subsec_nanos() }
}

pub(super) fn tell(app: &mut App<'_>, directory: &Path, unread: &[Unread]) {
    for Unread { path, error } in unread {
        let path = directory.join(String::from_utf8_lossy(path).as_ref());
        app.context.complain(format_args!("cannot read '{}': {error}", path.display()));
    }
}

/// The paths in a log.
fn changes(app: &mut App<'_>, log: &Path) -> Result<BTreeSet<Vec<u8>>> {
    let failed = |error: std::io::Error| CliError::failed(format!("cannot read '{}'", log.display()), &error);
    let input: Box<dyn Read> = match log.as_os_str() == "-" {
        true => Box::new(&app.context.stdin),
        false => Box::new(File::open(app.context.path(log)).map_err(failed)?),
    };
    let mut reader = BufReader::new(input);
    let (mut changed, mut line) = (BTreeSet::new(), Vec::new());
    loop {
        line.clear();
        let len = (&mut reader).take(LINE_MAX).read_until(b'\n', &mut line).map_err(failed)?;
        if len == 0 {
            return Ok(changed);
        }
        if len as u64 == LINE_MAX {
            let error = std::io::Error::new(std::io::ErrorKind::InvalidData, "a line is too long");
            return Err(failed(error));
        }
        changed.extend(changed_paths(&line));
    }
}
