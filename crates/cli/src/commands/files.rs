//! `DATASET[@SNAPSHOT][:PATH]`: a place in a snapshot, or in the current state of a dataset.
//!
//! Names of datasets and snapshots may have colons in them, so the longest name that exists counts, and a path
//! begins after it. A leading slash of the path changes nothing.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use snowmelt_dataset::text::visible_name;
use snowmelt_dataset::{Catalog, DatasetError, Kind, Objset};
use snowmelt_fs::resolve;
use snowmelt_zpl::{FileKind, Filesystem};

use crate::app::App;
use crate::context::Context;
use crate::error::{CliError, Result, chain};
use crate::exit::Exit;
use crate::output::json::Listing;
use crate::properties::Entity;
use crate::report;

/// A place in a dataset or snapshot.
pub struct Place {
    /// The dataset's or snapshot's full name.
    pub name: String,
    /// Its content.
    pub objset: Objset,
    /// The path in it, without leading slashes; empty for the root.
    pub path: Vec<u8>,
}

/// A file or directory that was found.
pub struct Opened {
    pub fs: Filesystem<Objset>,
    /// Its object.
    pub object: u64,
    /// Its path, empty for the root.
    pub path: Vec<u8>,
}

impl Place {
    /// Finds a place.
    ///
    /// # Errors
    /// When no part of the text names something that exists.
    pub fn find(catalog: &Catalog, text: &OsStr) -> Result<Self> {
        let bytes = text.as_bytes();
        let colons = bytes.iter().enumerate().filter(|(_, byte)| **byte == b':').map(|(at, _)| at);
        let ends = std::iter::once(bytes.len()).chain(colons.collect::<Vec<_>>().into_iter().rev());
        for end in ends {
            let (name, path) = bytes.split_at(end);
            let Ok(name) = std::str::from_utf8(name) else { continue };
            let attempt = format!("cannot open '{name}'");
            let objset = match Entity::find(catalog, name) {
                Ok(Entity::Dataset(dataset)) => catalog.head(&dataset).map_err(report::failed(&attempt))?,
                Ok(Entity::Snapshot(snapshot, _)) => catalog.objset(&snapshot),
                Ok(Entity::Bookmark(..)) => {
                    return Err(CliError::Failed(format!("{attempt}: a bookmark has no data")));
                }
                Err(
                    DatasetError::NotFound { .. } | DatasetError::NoBookmark { .. } | DatasetError::Name(_),
                ) => continue,
                Err(error) => return Err(report::failed(&attempt)(error)),
            };
            objset.require_readable().map_err(report::failed(&attempt))?;
            let path = path.strip_prefix(b":").unwrap_or(path);
            let start = path.iter().position(|byte| *byte != b'/').unwrap_or(path.len());
            let path = path.get(start..).unwrap_or_default().to_vec();
            return Ok(Self { name: name.to_owned(), objset, path });
        }
        let name = text.to_string_lossy();
        Err(CliError::Failed(format!("cannot open '{}': dataset does not exist", without_path(&name))))
    }

    /// Warns that the content is incomplete, before it is used.
    pub fn warn_if_redacted(&self, context: &mut Context) {
        if self.objset.is_redacted() {
            context.complain(format_args!(
                "warning: '{}' is redacted: the redacted data is read as zeros",
                self.name
            ));
        }
    }

    /// Whether it is of a volume, which has no files.
    pub fn is_volume(&self) -> bool {
        self.objset.kind() == Kind::Volume
    }

    /// Opens the file or directory.
    ///
    /// # Errors
    /// When there is none, or the filesystem cannot be read, perhaps because it is encrypted.
    pub fn open(self) -> Result<Opened> {
        let attempt = format!("cannot open '{}'", self.name);
        if self.is_volume() {
            return Err(CliError::Failed(format!("{attempt}: a volume has no files")));
        }
        let fs = Filesystem::open(self.objset)
            .map_err(|error| CliError::Failed(format!("{attempt}: {}", chain(&error))))?;
        let object = resolve(&fs, &self.path)
            .map_err(|error| CliError::Failed(format!("{}:{}", self.name, chain(&error))))?;
        Ok(Opened { fs, object, path: self.path })
    }
}

impl Opened {
    /// Whether it is a directory.
    ///
    /// # Errors
    /// When its attributes cannot be read.
    pub fn is_directory(&self) -> Result<bool> {
        let attributes = self.fs.attributes(self.object).map_err(|error| CliError::Failed(chain(&error)))?;
        Ok(attributes.kind() == FileKind::Directory)
    }

    /// The last name of its path; `None` for the root.
    pub fn last_name(&self) -> Option<&[u8]> {
        self.path.rsplit(|byte| *byte == b'/').find(|name| !name.is_empty())
    }
}

/// Works on places that must all be in one pool. An error at one place is reported, and does not stop the others.
///
/// # Errors
/// When the pool cannot be opened, or output fails.
pub fn each(
    app: &mut App<'_>,
    places: &[OsString],
    work: impl Fn(&mut App<'_>, &OsStr, Place) -> Result<()>,
) -> Result<Exit> {
    each_listed(app, places, None, |app, text, place, _| work(app, text, place))
}

/// The same, with the list of files that becomes the JSON document of `command`, if that is asked for.
///
/// # Errors
/// As [`each`].
pub fn each_listed(
    app: &mut App<'_>,
    places: &[OsString],
    command: Option<&str>,
    work: impl Fn(&mut App<'_>, &OsStr, Place, Option<&mut Listing>) -> Result<()>,
) -> Result<Exit> {
    let names: Vec<String> =
        places.iter().map(|place| without_path(&place.to_string_lossy()).to_owned()).collect();
    app.on_datasets(&names, |app, session| {
        let catalog = session.datasets.catalog();
        let mut failed = false;
        let begin = |command| Listing::begin(&mut app.context.out, command, "files");
        let mut listing = command.map(begin).transpose()?;
        for text in places {
            match Place::find(&catalog, text).and_then(|place| work(app, text, place, listing.as_mut())) {
                Ok(()) => {}
                Err(error @ CliError::Output(_)) => return Err(error),
                Err(error) => {
                    app.context.complain(error);
                    failed = true;
                }
            }
        }
        listing.map_or(Ok(()), |listing| listing.end(&mut app.context.out))?;
        Ok(Exit::unless(failed))
    })
}

/// The text up to the last colon before the first slash after the `@`: good for messages and for the pool's name.
fn without_path(text: &str) -> &str {
    match text.find('@') {
        Some(at) => {
            let end = text.get(at..).and_then(|rest| rest.find(":/")).map_or(text.len(), |end| at + end);
            text.get(..end).unwrap_or(text)
        }
        None => text.split(':').next().unwrap_or(text),
    }
}

/// Bytes to print: unchanged for programs, and without control characters for a terminal.
pub fn printable(bytes: &[u8], is_terminal: bool) -> Vec<u8> {
    if !is_terminal {
        return bytes.to_vec();
    }
    visible_name(bytes).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_begin_after_the_name() {
        assert_eq!(without_path("t/a@s:/x:y"), "t/a@s");
        assert_eq!(without_path("t/a@2026-01-01:12:00"), "t/a@2026-01-01:12:00");
        assert_eq!(without_path("t/a@s"), "t/a@s");
        assert_eq!(without_path("t/a:/x"), "t/a");
    }

    #[test]
    fn terminals_are_not_confused() {
        assert_eq!(printable(b"a\x1b[2Jb\n", true), b"a\\033[2Jb\\n");
        assert_eq!(printable(b"a\x1b", false), b"a\x1b");
    }
}
