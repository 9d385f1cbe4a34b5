//! `rename`.

use snowmelt_dataset::{Dataset, DatasetError, Name, RenameOptions};

use super::{automount, names};
use crate::app::App;
use crate::args::RenameArgs;
use crate::error::CliError;
use crate::exit::Exit;
use crate::pools::Session;
use crate::report;

/// Renames a dataset, snapshot or bookmark.
///
/// # Errors
/// When the new name is taken or cannot be one.
pub fn run(app: &mut App<'_>, args: &RenameArgs) -> Result<Exit, CliError> {
    if args.recursive && !args.from.contains('@') {
        return Err(CliError::Usage("source dataset for recursive rename must be a snapshot".to_owned()));
    }
    app.on_dataset(&args.from, |app, session| {
        let attempt = format!("cannot rename '{}'", args.from);
        let from = names::parse(&args.from, &format!("cannot open '{}'", args.from))?;
        let to = target(&from, &args.to, &attempt)?;
        let options = RenameOptions { parents: args.parents > 0, recursive: args.recursive };
        let moved = moved(session, &from, args).map_err(report::failed(&attempt))?;
        let unmounted = automount::Unmounted::of(app, session, &moved, args.force)?;
        let renamed = session.datasets.rename(&from, &to, options);
        let mounted = unmounted.mount_again(app, session)?;
        renamed.map_err(|error| match &error {
            DatasetError::NotFound { name } if *name == args.from => {
                CliError::Failed(format!("cannot open '{name}': dataset does not exist"))
            }
            DatasetError::Exists { .. }
            | DatasetError::BookmarkExists { .. }
            | DatasetError::NoParent { .. } => {
                CliError::Failed(report::dataset_error(&format!("cannot rename to '{to}'"), &error))
            }
            _ => CliError::Failed(report::dataset_error(&attempt, &error)),
        })?;
        app.record(session);
        Ok(Exit::unless(!mounted))
    })
}

/// Datasets whose mounts a rename moves.
fn moved(session: &Session, from: &Name, args: &RenameArgs) -> Result<Vec<Dataset>, DatasetError> {
    if args.no_mount || from.snapshot().is_some() || from.bookmark().is_some() {
        return Ok(Vec::new());
    }
    let catalog = session.datasets.catalog();
    match catalog.dataset(from.dataset()) {
        Ok(top) => catalog.descendants(top),
        // The rename itself reports this.
        Err(DatasetError::NotFound { .. }) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Of snapshots the new name may be short: `@new`, or `new` alone.
fn target(from: &Name, to: &str, attempt: &str) -> Result<Name, CliError> {
    let full = match (from.snapshot(), to) {
        (Some(_), to) if to.starts_with('@') => format!("{}{to}", from.dataset()),
        (Some(_), to) if !to.contains(['/', '@']) => format!("{}@{to}", from.dataset()),
        (_, to) if to.starts_with('#') => format!("{}{to}", from.dataset()),
        (_, to) => to.to_owned(),
    };
    names::parse(&full, attempt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_names_may_be_short() {
        let name = |text: &str| Name::parse(text).unwrap();
        for (from, to, full) in [
            ("t/a@x", "t/a@y", "t/a@y"),
            ("t/a@x", "@y", "t/a@y"),
            ("t/a@x", "y", "t/a@y"),
            ("t/a", "t/b", "t/b"),
            ("t/a#x", "#y", "t/a#y"),
        ] {
            assert_eq!(target(&name(from), to, "").unwrap(), name(full));
        }
    }
}
