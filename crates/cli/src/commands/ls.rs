//! `ls`.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use jiff::tz::TimeZone;
use serde_json::Map;
use snowmelt_dataset::property::format_bytes;
use snowmelt_fs::{Listed, list};
use snowmelt_zpl::{FileKind, Filesystem, Objects, Timestamp};

use super::files::{self, printable};
use crate::app::App;
use crate::args::LsArgs;
use crate::error::{CliError, Result, chain};
use crate::exit::Exit;
use crate::output::json;

/// Maximum depth of `-R`. No normal tree is deeper, and a damaged one can be infinite.
const DEPTH_MAX: usize = 1000;

/// Lists files.
///
/// # Errors
/// When output fails. Errors of single files are reported.
pub fn run(app: &mut App<'_>, args: &LsArgs) -> Result<Exit> {
    app.is_streaming = true;
    let several = args.paths.len() > 1;
    let zone = app.context.time_zone();
    let command = args.json.then_some("snowmelt ls");
    files::each_listed(app, &args.paths, command, |app, text, place, listing| {
        let name = place.name.clone();
        let opened = place.open()?;
        let is_terminal = app.context.is_terminal_out();
        let out = &mut app.context.out;
        let style = Style { args, zone: &zone, is_terminal };
        let mut form = match listing {
            Some(listing) => Form::Json { listing, dataset: &name },
            None => Form::Text(&style),
        };
        if several && !args.json {
            out.write_all(&printable(text.as_bytes(), is_terminal))?;
            out.write_all(b":\n")?;
        }
        if args.directory || !opened.is_directory()? {
            let name = if opened.path.is_empty() { b"." } else { opened.path.as_slice() };
            let one = itself(&opened.fs, name, opened.object)?;
            return form.print(out, None, &[one]);
        }
        let failures = directory(&opened.fs, &opened.path, opened.object, (args, &mut form), out)?;
        if failures.is_empty() {
            return Ok(());
        }
        failures.iter().for_each(|failure| app.context.complain(failure));
        Err(CliError::Failed(format!("parts of '{}' could not be read", text.to_string_lossy())))
    })
}

/// How files are printed.
enum Form<'a> {
    Text(&'a Style<'a>),
    Json { listing: &'a mut json::Listing, dataset: &'a str },
}

impl Form<'_> {
    /// Prints the entries of a directory. `None`: a file or directory itself, whose name is its path.
    fn print(&mut self, out: &mut impl Write, directory: Option<&[u8]>, entries: &[Listed]) -> Result<()> {
        match self {
            Self::Text(style) => print(out, entries, style),
            Self::Json { listing, dataset } => {
                for entry in entries {
                    let mut item = Map::new();
                    item.insert("dataset".to_owned(), (*dataset).into());
                    json::insert_bytes(&mut item, "path", &below(directory.unwrap_or_default(), &entry.name));
                    json::insert_attributes(&mut item, entry.object, &entry.attributes);
                    if let Some(target) = &entry.target {
                        json::insert_bytes(&mut item, "target", target);
                    }
                    listing.push(out, item)?;
                }
                Ok(())
            }
        }
    }
}

/// The path of a name in a directory.
fn below(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() }
}

struct Style<'a> {
    args: &'a LsArgs,
    zone: &'a TimeZone,
    is_terminal: bool,
}

fn itself<O: Objects>(fs: &Filesystem<O>, name: &[u8], object: u64) -> Result<Listed> {
    let failed = |error: snowmelt_zpl::ZplError| CliError::Failed(chain(&error));
    let attributes = fs.attributes(object).map_err(failed)?;
    let target = match attributes.kind() {
        FileKind::Symlink => Some(fs.readlink(object).map_err(failed)?),
        _ => None,
    };
    Ok(Listed { name: name.to_vec(), object, attributes, target })
}

/// A directory and, with `-R`, everything below it, each directory once. Returns the errors, as lines for the user.
fn directory<O: Objects>(
    fs: &Filesystem<O>,
    path: &[u8],
    object: u64,
    (args, form): (&LsArgs, &mut Form<'_>),
    out: &mut impl Write,
) -> Result<Vec<String>> {
    let mut failures = Vec::new();
    let mut pending = vec![(path.to_vec(), object, 0)];
    let mut seen = std::collections::HashSet::new();
    while let Some((path, object, depth)) = pending.pop() {
        if !seen.insert(object) {
            continue;
        }
        let listing = match list(fs, &path, object) {
            Ok(listing) => listing,
            Err(error) if depth == 0 => return Err(CliError::Failed(chain(&error))),
            Err(error) => {
                failures.push(chain(&error));
                continue;
            }
        };
        failures.extend(listing.failures.iter().map(|error| chain(error)));
        let mut entries = listing.entries;
        entries.retain(|entry| args.all || !entry.name.starts_with(b"."));
        if let (true, Form::Text(style)) = (args.recursive, &*form) {
            if depth > 0 {
                writeln!(out)?;
            }
            out.write_all(&printable(if path.is_empty() { b"." } else { &path }, style.is_terminal))?;
            out.write_all(b":\n")?;
        }
        form.print(out, Some(&path), &entries)?;
        if !args.recursive || depth >= DEPTH_MAX {
            continue;
        }
        for entry in entries.iter().rev().filter(|entry| entry.attributes.kind() == FileKind::Directory) {
            pending.push((below(&path, &entry.name), entry.object, depth + 1));
        }
    }
    Ok(failures)
}

fn print(out: &mut impl Write, entries: &[Listed], style: &Style<'_>) -> Result<()> {
    let long = style.args.long || style.args.numeric;
    let width = |text: &dyn Fn(&Listed) -> String| entries.iter().map(|e| text(e).len()).max().unwrap_or(0);
    let links = width(&|e| e.attributes.links.to_string());
    let owner = width(&|e| e.attributes.uid.to_string());
    let group = width(&|e| e.attributes.gid.to_string());
    let size = width(&|e| size_text(e, style.args.human));
    for entry in entries {
        if long {
            let a = &entry.attributes;
            write!(
                out,
                "{} {:>links$} {:>owner$} {:>group$} {:>size$} {} ",
                entry.mode_string(),
                a.links,
                a.uid,
                a.gid,
                size_text(entry, style.args.human),
                time_text(a.mtime, style.zone),
            )?;
        }
        out.write_all(&printable(&entry.name, style.is_terminal))?;
        if let Some(target) = entry.target.as_ref().filter(|_| long) {
            out.write_all(b" -> ")?;
            out.write_all(&printable(target, style.is_terminal))?;
        }
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// Of devices, their numbers.
fn size_text(entry: &Listed, human: bool) -> String {
    match entry.attributes.rdev {
        Some((major, minor)) => format!("{major}, {minor}"),
        None if human => format_bytes(entry.attributes.size),
        None => entry.attributes.size.to_string(),
    }
}

fn time_text(time: Timestamp, zone: &TimeZone) -> String {
    match jiff::Timestamp::from_second(time.seconds) {
        Ok(timestamp) => timestamp.to_zoned(zone.clone()).strftime("%Y-%m-%d %H:%M").to_string(),
        Err(_) => format!("{:>16}", time.seconds),
    }
}
