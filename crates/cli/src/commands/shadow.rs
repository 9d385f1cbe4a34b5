//! `shadow`: the shadows of directories and images that are synced to other machines.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde_json::{Map, Value, json};
use snowmelt_dataset::property::{format_bytes, format_time};

use crate::app::App;
use crate::args::{ShadowDestroyArgs, ShadowListArgs};
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::output::json;
use crate::output::table::{self, Column};
use crate::pools::shadow::{self, About};

/// A shadow that was found.
struct Found {
    name: String,
    about: About,
    /// Bytes that its pool uses; `None` if the pool no longer exists.
    size: Option<u64>,
}

/// Lists shadows, without opening them.
///
/// # Errors
/// When they cannot be found out about, or output fails.
pub fn list(app: &mut App<'_>, args: &ShadowListArgs) -> Result<Exit> {
    let found =
        find(app.places.shadows()).map_err(|error| CliError::failed("cannot list shadows", &error))?;
    if args.json {
        let shadows: Vec<_> = found.iter().map(json_of).collect();
        let document = Map::from_iter([("shadows".to_owned(), Value::from(shadows))]);
        json::print(&mut app.context.out, document)?;
        return Ok(Exit::Ok);
    }
    let rows: Vec<Vec<String>> = app.context.with_style(args.parsable, |style| {
        let row = |found: &Found| {
            let size = match found.size {
                Some(size) if args.parsable => size.to_string(),
                Some(size) => format_bytes(size),
                None => "-".to_owned(),
            };
            let last = found.about.sent.last();
            let when = last.and_then(|sent| u64::try_from(sent.seconds).ok());
            let when = when.map_or("-".to_owned(), |seconds| format_time(seconds, style));
            let targets: Vec<&str> = found.about.sent.iter().map(|sent| sent.target.as_str()).collect();
            let targets = if targets.is_empty() { "-".to_owned() } else { targets.join(",") };
            let source = if found.about.source.is_empty() { "-" } else { &found.about.source };
            vec![found.name.clone(), size, when, source.to_owned(), targets]
        };
        found.iter().map(row).collect()
    });
    let columns = [
        Column::left("NAME"),
        Column::right("SIZE"),
        Column::left("SENT"),
        Column::left("SOURCE"),
        Column::left("TARGETS"),
    ];
    if rows.is_empty() && !args.scripted {
        app.context.complain("no shadows");
    } else {
        table::print(&mut app.context.out, &columns, &rows, args.scripted)?;
    }
    Ok(Exit::Ok)
}

/// Removes shadows.
///
/// # Errors
/// When output fails. Errors of single shadows are reported.
pub fn destroy(app: &mut App<'_>, args: &ShadowDestroyArgs) -> Result<Exit> {
    let mut failed = false;
    for word in &args.shadows {
        if let Err(error) = destroy_one(app, word) {
            app.context.complain(error);
            failed = true;
        }
    }
    Ok(Exit::unless(failed))
}

fn destroy_one(app: &App<'_>, word: &Path) -> Result<()> {
    let attempt = format!("cannot destroy the shadow '{}'", word.display());
    let name = match word.to_str().filter(|name| shadow::is_name(name)) {
        Some(name) => name.to_owned(),
        None => {
            let path = app.context.path(word);
            // Its source may no longer exist.
            shadow::name_of(&path.canonicalize().unwrap_or(path))
        }
    };
    let shadows = app.places.shadows();
    let known = shadow::names(shadows).map_err(|error| CliError::failed(&attempt, &error))?;
    if !known.contains(&name) {
        return Err(CliError::Failed(format!(
            "{attempt}: no such shadow\n'snowmelt shadow list' lists all shadows"
        )));
    }
    shadow::remove(&shadows.join(name), &attempt)
}

fn find(shadows: &Path) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    for name in shadow::names(shadows)? {
        let place = shadows.join(&name);
        let size = match size_of(&place) {
            Ok(size) => Some(size),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        found.push(Found { about: About::load(&place), name, size });
    }
    Ok(found)
}

/// Bytes on disk of a pool in a directory, with all in it.
fn size_of(place: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    let mut directories = vec![place.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory)? {
            let entry = entry?;
            match entry.metadata() {
                Ok(found) if found.is_dir() => directories.push(entry.path()),
                Ok(found) => bytes += found.blocks() * 512,
                // Its owner is at work.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(bytes)
}

fn json_of(found: &Found) -> Value {
    let about = &found.about;
    let sent: Vec<_> =
        about.sent.iter().map(|sent| json!({ "target": sent.target, "seconds": sent.seconds })).collect();
    json!({
        "name": found.name,
        "size": found.size,
        "source": about.source,
        "kind": if about.is_image { "image" } else { "directory" },
        "sent": sent,
    })
}
