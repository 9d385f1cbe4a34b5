//! `create`.

use std::io::Write;

use snowmelt_dataset::CreateOptions;
use snowmelt_dataset::property::{Assignment, Types};

use super::assignments;
use crate::app::{App, pool_of};
use crate::args::CreateArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::pools::Session;
use crate::report;

/// Creates a filesystem.
///
/// # Errors
/// When it exists, its parent does not, or a property cannot be set.
pub fn run(app: &mut App<'_>, args: &CreateArgs) -> Result<Exit> {
    if args.no_mount && args.volume.is_some() {
        return Err(CliError::Usage("'-u' can only be used when creating a filesystem".to_owned()));
    }
    let name = &args.dataset;
    let attempt = format!("cannot {} '{name}'", if args.dry_run { "verify" } else { "create" });
    if args.volume.is_some() {
        return Err(CliError::Failed(format!("{attempt}: volumes can be received, but not made here")));
    }
    let chosen =
        assignments::for_new(&attempt, &assignments::split_all(&args.properties)?, Types::FILESYSTEM)?;
    let missing = |pool: &str| format!("cannot create '{name}': no such pool '{pool}'");
    app.on_pool(name, missing, |app, session| {
        let exists = session.datasets.catalog().dataset(name).is_ok();
        if exists && args.parents > 0 {
            return Ok(Exit::Ok);
        }
        tell(app, args, &chosen, session)?;
        if args.dry_run {
            return match exists {
                true => Err(CliError::Failed(format!("{attempt}: dataset already exists"))),
                false => Ok(Exit::Ok),
            };
        }
        let options = CreateOptions { parents: args.parents > 0, properties: assignments::stored(&chosen) };
        session.datasets.create_filesystem(name, &options).map_err(report::failed(&attempt))?;
        app.record(session);
        Ok(Exit::Ok)
    })
}

/// `-v` and `-P`.
fn tell(app: &mut App<'_>, args: &CreateArgs, chosen: &[Assignment], session: &Session) -> Result<()> {
    if !args.verbose && !args.parsable {
        return Ok(());
    }
    let out = &mut app.context.out;
    let name = &args.dataset;
    let would = if args.dry_run { "would " } else { "" };
    let parent = name.rsplit_once('/').map_or(pool_of(name), |(parent, _)| parent);
    if args.parents > 0 && session.datasets.catalog().dataset(parent).is_err() {
        match args.parsable {
            true => writeln!(out, "create_ancestors\t{name}")?,
            false => writeln!(out, "{would}create ancestors of {name}")?,
        }
    }
    match args.parsable {
        true => writeln!(out, "create\t{name}")?,
        false => writeln!(out, "{would}create {name}")?,
    }
    for (property, value) in assignments::stored(chosen) {
        match args.parsable {
            true => writeln!(out, "property\t{property}\t{value}")?,
            false => writeln!(out, "\t{property}={value}")?,
        }
    }
    Ok(())
}
