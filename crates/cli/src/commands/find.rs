//! `find`.

use std::io::Write;

use serde_json::Map;
use snowmelt_fs::{Event, Node, Walk};
use snowmelt_zpl::FileKind;

use super::files::{self, printable};
use crate::app::App;
use crate::args::FindArgs;
use crate::error::{CliError, Result, chain};
use crate::exit::Exit;
use crate::glob::Pattern;
use crate::output::json;

/// Finds files by name, type and depth.
///
/// # Errors
/// When output fails, or the options make no sense.
pub fn run(app: &mut App<'_>, args: &FindArgs) -> Result<Exit> {
    app.is_streaming = true;
    let wanted = Wanted::new(args)?;
    let command = args.json.then_some("snowmelt find");
    files::each_listed(app, &args.paths, command, |app, _, place, mut listing| {
        let name = place.name.clone();
        let opened = place.open()?;
        let is_terminal = app.context.is_terminal_out() && !args.zero;
        let walk = Walk::new(&opened.fs, opened.object).map_err(|error| CliError::Failed(chain(&error)))?;
        let mut failed = false;
        for event in walk {
            if app.context.is_cancelled() {
                return Err(CliError::Failed("interrupted".to_owned()));
            }
            match event {
                Ok(Event::Node(node)) if wanted.includes(&node, opened.last_name().unwrap_or_default()) => {
                    let path = full_path(&opened.path, &node.path);
                    let out = &mut app.context.out;
                    if let Some(listing) = &mut listing {
                        let mut item = Map::new();
                        item.insert("dataset".to_owned(), name.as_str().into());
                        json::insert_bytes(&mut item, "path", &path);
                        json::insert_attributes(&mut item, node.object, &node.attributes);
                        listing.push(out, item)?;
                        continue;
                    }
                    out.write_all(&printable(&path, is_terminal))?;
                    out.write_all(if args.zero { b"\0" } else { b"\n" })?;
                }
                Ok(_) => {}
                Err(error) => {
                    app.context.complain(chain(&error));
                    failed = true;
                }
            }
        }
        if failed { Err(CliError::Failed("some directories could not be read".to_owned())) } else { Ok(()) }
    })
}

/// The conditions for a path to be printed.
struct Wanted {
    patterns: Vec<Pattern>,
    kind: Option<FileKind>,
    depth: usize,
}

impl Wanted {
    fn new(args: &FindArgs) -> Result<Self> {
        let kind = match args.kind {
            None => None,
            Some('f') => Some(FileKind::File),
            Some('d') => Some(FileKind::Directory),
            Some('l') => Some(FileKind::Symlink),
            Some('b') => Some(FileKind::BlockDevice),
            Some('c') => Some(FileKind::CharDevice),
            Some('p') => Some(FileKind::Fifo),
            Some('s') => Some(FileKind::Socket),
            Some(other) => return Err(CliError::Usage(format!("invalid type '{other}'"))),
        };
        let exact = args.name.iter().map(|text| Pattern::new(text, false));
        let folded = args.iname.iter().map(|text| Pattern::new(text, true));
        let patterns = exact.chain(folded).collect();
        Ok(Self { patterns, kind, depth: args.maxdepth.unwrap_or(usize::MAX) })
    }

    /// `start` is the name of where the walk begins.
    fn includes(&self, node: &Node, start: &[u8]) -> bool {
        let is_start = node.path == b".";
        let depth = if is_start { 0 } else { 1 + node.path.iter().filter(|byte| **byte == b'/').count() };
        let name =
            if is_start { start } else { node.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default() };
        depth <= self.depth
            && self.kind.is_none_or(|kind| node.attributes.kind() == kind)
            && self.patterns.iter().all(|pattern| pattern.matches(name))
    }
}

/// A path from the root of the snapshot on.
fn full_path(start: &[u8], below: &[u8]) -> Vec<u8> {
    let start = start.strip_suffix(b"/").unwrap_or(start);
    match (start, below) {
        (b"", below) => below.to_vec(),
        (start, b".") => start.to_vec(),
        (start, below) => [start, b"/", below].concat(),
    }
}
