//! Names on the command line.

use snowmelt_dataset::{Catalog, Dataset, DatasetError, Datasets, Name, Snapshot};

use crate::error::{CliError, Result};
use crate::report;

/// Parses a name; a bad one is refused after `attempt`.
///
/// # Errors
/// When it cannot be a name.
pub fn parse(name: &str, attempt: &str) -> Result<Name> {
    Name::parse(name).map_err(|error| report::failed(attempt)(error.into()))
}

/// Refuses names that do not exist, for a server that runs for long. While a catalog exists, freed space cannot be
/// reused. So this catalog is dropped when all names are found.
///
/// # Errors
/// As [`open_dataset`], for snapshots too.
pub fn check_all<'n>(datasets: &Datasets, names: impl IntoIterator<Item = &'n str>) -> Result<()> {
    let catalog = datasets.catalog();
    for name in names {
        let attempt = format!("cannot open '{name}'");
        catalog.find(&parse(name, &attempt)?).map_err(report::failed(&attempt))?;
    }
    Ok(())
}

/// Finds a filesystem or volume.
///
/// # Errors
/// `cannot open 'tank/a': dataset does not exist`.
pub fn open_dataset(catalog: &Catalog, name: &str) -> Result<Dataset> {
    let attempt = format!("cannot open '{name}'");
    Name::parse_dataset(name)
        .map_err(DatasetError::from)
        .and_then(|name| catalog.dataset(name.dataset()))
        .map_err(report::failed(&attempt))
}

/// Finds a snapshot.
///
/// # Errors
/// `cannot open 'tank/a@b': dataset does not exist`; when the name is not of a snapshot.
pub fn open_snapshot(catalog: &Catalog, name: &str) -> Result<Snapshot> {
    let attempt = format!("cannot open '{name}'");
    let parsed = parse(name, &attempt)?;
    if parsed.snapshot().is_none() {
        return Err(CliError::Failed(format!("{attempt}: not a snapshot: a name with '@' is needed")));
    }
    catalog.snapshot(&parsed).map_err(report::failed(&attempt))
}

/// The snapshots of one name in a dataset and, if `recursive`, everything below it. Datasets below that lack it are
/// passed over.
///
/// # Errors
/// When the dataset does not exist or no dataset has such a snapshot.
pub fn snapshots_of_name(catalog: &Catalog, name: &str, recursive: bool) -> Result<Vec<Snapshot>> {
    let attempt = format!("cannot open '{name}'");
    let parsed = parse(name, &attempt)?;
    let Some(short) = parsed.snapshot() else {
        return Err(CliError::Failed(format!("'{name}' is not a snapshot")));
    };
    if !recursive {
        return Ok(vec![open_snapshot(catalog, name)?]);
    }
    let top = open_dataset(catalog, parsed.dataset())?;
    let mut found = Vec::new();
    for dataset in catalog.descendants(top).map_err(report::failed(&attempt))? {
        let name = parse(&format!("{}@{short}", dataset.name), &attempt)?;
        match catalog.snapshot(&name) {
            Ok(snapshot) => found.push(snapshot),
            Err(DatasetError::NotFound { .. }) => {}
            Err(error) => return Err(report::failed(&attempt)(error)),
        }
    }
    if found.is_empty() {
        return Err(CliError::Failed(format!("{attempt}: dataset does not exist")));
    }
    Ok(found)
}

/// Full names of snapshots, parsed.
///
/// # Errors
/// Never for names from a catalog.
pub fn full_names(snapshots: &[Snapshot]) -> Result<Vec<Name>> {
    snapshots.iter().map(|snapshot| parse(&snapshot.full_name(), "cannot open")).collect()
}
