//! `diff`.

use std::os::unix::ffi::OsStringExt;

use serde_json::{Map, Value};
use snowmelt_dataset::diff::changed_objects;
use snowmelt_dataset::property::{PropertyName, TextStyle};
use snowmelt_dataset::{Catalog, DatasetError, Name, Objset};
use snowmelt_fs::FsError;
use snowmelt_fs::diff::{Change, Differ, Difference, Format};
use snowmelt_fs::manifest;
use snowmelt_zpl::Filesystem;

use super::files::Place;
use crate::app::App;
use crate::args::DiffArgs;
use crate::error::{CliError, Result, chain};
use crate::exit::Exit;
use crate::output::json::{self, Listing};
use crate::properties::{Entity, Reader};
use crate::report;

/// Lists what changed between two snapshots, or since one.
///
/// # Errors
/// When they are not of one filesystem, or something cannot be read.
pub fn run(app: &mut App<'_>, args: &DiffArgs) -> Result<Exit> {
    app.is_streaming = true;
    let (from, to) = full_names(&args.from, args.to.as_deref())?;
    app.on_dataset(&from, |app, session| {
        let attempt = format!("cannot open '{from}'");
        // The newest changes are still in memory.
        session.datasets.settle().map_err(report::failed(&attempt))?;
        let catalog = session.datasets.catalog();
        let (old, new) = (Place::find(&catalog, from.as_ref())?, Place::find(&catalog, to.as_ref())?);
        check_related(&catalog, &old.name, &new.name)?;
        let changed = changed_objects(&old.objset, &new.objset);
        let old_fs = open(&old)?;
        let new_fs = open(&new)?;
        let format = Format {
            prefix: shown_at(&catalog, dataset_of(&new.name)).map_err(report::failed(&attempt))?,
            scripted: args.scripted,
            classify: args.classify,
            timestamps: args.times,
            no_mangle: args.unescaped,
        };
        let mut differ = Differ::new(&old_fs, &new_fs);
        let changed = changed.map(|object| object.map_err(Failure::Dataset));
        let out = &mut app.context.out;
        let written = match args.json {
            true => {
                let mut listing = Listing::begin(out, "snowmelt diff", "changes")?;
                let mut push = |difference| listing.push(out, item(&difference, &format.prefix));
                let written = each(&mut differ, changed, &mut push);
                written.and_then(|()| listing.end(out).map_err(FsError::Output).map_err(Failure::Fs))
            }
            false => differ.write(changed, &format, out),
        };
        written.map_err(|error| match error {
            Failure::Fs(FsError::Output(error)) => CliError::Output(error),
            Failure::Fs(error) => CliError::Failed(format!("Unable to diff: {}", chain(&error))),
            Failure::Dataset(error) => CliError::Failed(format!("Unable to diff: {}", chain(&error))),
        })?;
        Ok(Exit::Ok)
    })
}

/// Hands over what became of each object that changed.
fn each(
    differ: &mut Differ<'_, Objset, Objset>,
    changed: impl Iterator<Item = std::result::Result<u64, Failure>>,
    push: &mut impl FnMut(Difference) -> std::io::Result<()>,
) -> std::result::Result<(), Failure> {
    for object in changed {
        for difference in differ.object(object?)? {
            push(difference).map_err(FsError::Output)?;
        }
    }
    Ok(())
}

/// A change as JSON. A file that was renamed is `path` now.
fn item(difference: &Difference, prefix: &[u8]) -> Map<String, Value> {
    let mut item = Map::new();
    let (change, path, links) = match &difference.change {
        Change::Added { path } => ("added", path, None),
        Change::Removed { path } => ("removed", path, None),
        Change::Modified { path } => ("modified", path, None),
        Change::Linked { path, delta } => ("modified", path, Some(*delta)),
        Change::Renamed { from, to } => {
            json::insert_bytes(&mut item, "from", &[prefix, from].concat());
            ("renamed", to, None)
        }
    };
    json::insert_bytes(&mut item, "path", &[prefix, path].concat());
    item.insert("change".to_owned(), change.into());
    item.insert("type".to_owned(), manifest::letter(difference.kind).into());
    item.insert("ino".to_owned(), difference.object.into());
    item.insert("ctime".to_owned(), json::nanoseconds(difference.ctime));
    if let Some(links) = links {
        item.insert("links".to_owned(), links.into());
    }
    item
}

/// The directory at the beginning of paths: the place where the filesystem is or would be mounted. Without a
/// mountpoint, it is the name of the filesystem.
fn shown_at(catalog: &Catalog, name: &str) -> std::result::Result<Vec<u8>, DatasetError> {
    let mounted = snowmelt_fuse::mounted().unwrap_or_default();
    let place = match mounted.into_iter().find(|mounted| mounted.name == name) {
        Some(mounted) => mounted.dir.into_os_string().into_vec(),
        None => {
            let dataset = Entity::Dataset(catalog.dataset(name)?);
            let mountpoint = PropertyName::parse("mountpoint").ok();
            let reader = Reader::new(catalog);
            let value = mountpoint.map(|property| reader.text(&dataset, &property, &TextStyle::PARSABLE));
            value.transpose()?.flatten().map_or_else(Vec::new, |(text, _)| text.into_bytes())
        }
    };
    Ok(match place.as_slice() {
        b"/" => Vec::new(),
        [b'/', ..] => place,
        _ => format!("/{name}").into_bytes(),
    })
}

/// Why a comparison ended.
enum Failure {
    Fs(FsError),
    Dataset(DatasetError),
}

impl From<FsError> for Failure {
    fn from(error: FsError) -> Self {
        Self::Fs(error)
    }
}

fn open(place: &Place) -> Result<Filesystem<Objset>> {
    if place.is_volume() {
        return Err(CliError::Failed(format!(
            "cannot open '{}': operation not applicable to datasets of this type",
            place.name
        )));
    }
    Filesystem::open(place.objset.clone())
        .map_err(|error| CliError::failed(format!("cannot open '{}'", place.name), &error))
}

fn dataset_of(name: &str) -> &str {
    name.split('@').next().unwrap_or(name)
}

/// One of the two names can be short if the other is not. Without a second name, it is the current state of the
/// dataset.
fn full_names(from: &str, to: Option<&str>) -> Result<(String, String)> {
    let usage = |why: &str| Err(CliError::Usage(why.to_owned()));
    let to = to.unwrap_or_else(|| dataset_of(from));
    if to.is_empty() || (from.starts_with('@') && to.starts_with('@')) {
        return usage("must provide at least one snapshot name with its filesystem");
    }
    let from = if from.starts_with('@') { format!("{}{from}", dataset_of(to)) } else { from.to_owned() };
    let to = if to.starts_with('@') { format!("{}{to}", dataset_of(&from)) } else { to.to_owned() };
    if !from.contains('@') {
        return usage("Badly formed snapshot name: a name with '@' is needed");
    }
    Ok((from, to))
}

/// Both must be of one filesystem, or the older one of its origin.
fn check_related(catalog: &Catalog, from: &str, to: &str) -> Result<()> {
    let failed = |error: DatasetError| CliError::Failed(format!("Unable to diff: {}", chain(&error)));
    let not_earlier =
        || Err(CliError::Failed(format!("'{from}' is not an earlier snapshot from the same fs")));
    let txg = |name: &str| match Name::parse(name).map(|name| catalog.snapshot(&name)) {
        Ok(Ok(snapshot)) => snapshot.id.txg,
        // As it is now.
        _ => u64::MAX,
    };
    let (first, last) = (txg(from), txg(to));
    let (old, new) = (dataset_of(from), dataset_of(to));
    if old == new && first >= last {
        return not_earlier();
    }
    let old = catalog.dataset(old).map_err(failed)?.id;
    for at in catalog.lineage(catalog.dataset(new).map_err(failed)?) {
        if at.map_err(failed)?.id == old {
            return Ok(());
        }
    }
    not_earlier()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_name_may_be_short() {
        let full = |from: &str, to: Option<&str>| full_names(from, to).map_err(|error| error.to_string());
        let pair = |a: &str, b: &str| Ok((a.to_owned(), b.to_owned()));
        assert_eq!(full("t/a@x", Some("t/a@y")), pair("t/a@x", "t/a@y"));
        assert_eq!(full("t/a@x", Some("@y")), pair("t/a@x", "t/a@y"));
        assert_eq!(full("@x", Some("t/a@y")), pair("t/a@x", "t/a@y"));
        assert_eq!(full("@x", Some("t/a")), pair("t/a@x", "t/a"));
        assert_eq!(full("t/a@x", None), pair("t/a@x", "t/a"));
        assert!(full("@x", None).is_err());
        assert!(full("@x", Some("@y")).is_err());
        assert!(full("t/a", Some("t/a@y")).is_err());
    }
}
