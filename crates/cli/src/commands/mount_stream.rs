//! `mount` of a file that holds a stream: its index is a pool, of which the newest snapshots are mounted.

use std::path::Path;
use std::sync::Arc;

use snowmelt_dataset::{Catalog, Dataset, Kind};
use snowmelt_fuse::Mount;

use super::mount::{default_options, free_directory, properties, told};
use super::names;
use crate::app::App;
use crate::args::MountArgs;
use crate::error::{CliError, Result};
use crate::pools::Session;
use crate::pools::stream_index::StreamFile;
use crate::report;

/// The file, with its index made if it is not there.
///
/// # Errors
/// When the file holds nothing that could be mounted.
pub fn indexed(app: &mut App<'_>, args: &MountArgs, file: &Path) -> Result<StreamFile> {
    let attempt = attempt(args);
    if args.directory.is_none() {
        return Err(CliError::Usage("a stream file needs a directory to be mounted on".to_owned()));
    }
    let stream = StreamFile::of(file).map_err(|error| CliError::failed(&attempt, &error))?;
    // The owner of the index has it; the process that started a background process has made it.
    if !app.is_served() && !args.detached {
        for note in stream.index(app.places.indexes(), app.context, &attempt)? {
            app.context.complain(format_args!("{}: {note}", args.dataset.as_deref().unwrap_or_default()));
        }
    }
    Ok(stream)
}

/// Mounts the dataset or snapshot of an index that the command names.
///
/// # Errors
/// When there is no such dataset, or it cannot be mounted.
pub fn mount(app: &mut App<'_>, session: &Session, args: &MountArgs) -> Result<Arc<Mount>> {
    let attempt = attempt(args);
    let catalog = session.datasets.catalog();
    let (below, snapshot) =
        match args.member.as_deref().map(|name| name.split_once('@').unwrap_or((name, ""))) {
            Some((below, snapshot)) => (below, Some(snapshot).filter(|snapshot| !snapshot.is_empty())),
            None => ("", None),
        };
    let dataset = find(&catalog, below, &attempt)?;
    if dataset.record.kind != Kind::Filesystem {
        let name = &dataset.name;
        return Err(CliError::Failed(format!(
            "{attempt}: it is a volume\nserve it as a block device with 'snowmelt serve nbd', or as a file with \
             'snowmelt serve zvol', under the name {name}"
        )));
    }
    let mut options = default_options();
    let mut chosen = properties(&catalog, &dataset, args, &mut options, &attempt)?;
    chosen.read_only = true;
    // Most streams do not have the properties of the dataset: the content shows them.
    (chosen.posix_acl, chosen.xattrs) = (true, true);
    let directory = args.directory.as_deref().unwrap_or(Path::new("."));
    let directory = free_directory(&app.context.path(directory), false, &attempt)?;
    let mounted = match snapshot {
        Some(snapshot) => {
            let snapshot = names::open_snapshot(&catalog, &format!("{}@{snapshot}", dataset.name))?;
            session.mounts.mount_snapshot(&snapshot, &directory, chosen, &options)
        }
        None => session.mounts.mount(&dataset, &directory, chosen, &options),
    };
    told(app, args, mounted, &attempt)
}

fn attempt(args: &MountArgs) -> String {
    format!("cannot mount '{}'", args.dataset.as_deref().unwrap_or_default())
}

/// The dataset of a name below the stream's topmost one.
fn find(catalog: &Catalog, below: &str, attempt: &str) -> Result<Dataset> {
    let root = catalog.root().map_err(report::failed(attempt))?;
    let all = catalog.descendants(root).map_err(report::failed(attempt))?;
    // The root of the pool comes first, and then the received datasets.
    let Some(top) = all.get(1) else {
        return Err(CliError::Failed(format!("{attempt}: its index is empty")));
    };
    let wanted = if below.is_empty() { top.name.clone() } else { format!("{}/{below}", top.name) };
    if let Some(found) = all.iter().find(|dataset| dataset.name == wanted) {
        return Ok(found.clone());
    }
    let prefix = format!("{}/", top.name);
    let others: Vec<&str> = all.iter().filter_map(|dataset| dataset.name.strip_prefix(&prefix)).collect();
    let others = if others.is_empty() { "only the topmost one".to_owned() } else { others.join(", ") };
    Err(CliError::Failed(format!("{attempt}: it has no dataset '{below}': it has {others}")))
}
