//! `create`.

use std::io::Write;

use serde_json::{Map, json};
use snowmelt_dataset::property::{Assignment, REFRESERVATION_AUTO, Types, parse_size};
use snowmelt_dataset::{CreateOptions, Kind, NewVolume, VOLUME_BLOCK_DEFAULT, volume_reservation};

use super::{assignments, automount};
use crate::app::App;
use crate::args::CreateArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::output::json;
use crate::report;

/// Creates a filesystem or a volume.
///
/// # Errors
/// When it exists, its parent does not, or a property cannot be set.
pub fn run(app: &mut App<'_>, args: &CreateArgs) -> Result<Exit> {
    if args.no_mount && args.volume.is_some() {
        return Err(CliError::Usage("'-u' can only be used when creating a filesystem".to_owned()));
    }
    let name = &args.dataset;
    let attempt = format!("cannot {} '{name}'", if args.dry_run { "verify" } else { "create" });
    let pairs = assignments::split_all(&args.properties)?;
    let (volume, chosen) = match &args.volume {
        Some(size) => {
            let (volume, chosen) = new_volume(&attempt, args, size, pairs)?;
            (Some(volume), chosen)
        }
        None => (None, assignments::for_new(&attempt, &pairs, Types::FILESYSTEM)?),
    };
    let missing = |pool: &str| format!("cannot create '{name}': no such pool '{pool}'");
    app.may_mount = Some(name.clone());
    app.on_pool(name, missing, |app, session| {
        let existing = session.datasets.catalog().dataset(name).ok();
        let exists = existing.is_some();
        let kind = if args.volume.is_some() { Kind::Volume } else { Kind::Filesystem };
        if args.parents > 0 && existing.as_ref().is_some_and(|existing| existing.record.kind == kind) {
            return tell_json(app, args, &[], &[]).map(|()| Exit::Ok);
        }
        if exists && !args.dry_run {
            return Err(CliError::Failed(format!("{attempt}: dataset already exists")));
        }
        tell(app, args, &chosen)?;
        let created = automount::missing(&session.datasets.catalog(), name);
        if args.dry_run {
            if !exists {
                tell_json(app, args, &created, &chosen)?;
            }
            return match exists {
                true => Err(CliError::Failed(format!("{attempt}: dataset already exists"))),
                false => Ok(Exit::Ok),
            };
        }
        let properties = stored(&chosen);
        let options = CreateOptions { parents: args.parents > 0, properties };
        match &volume {
            Some(volume) => session.datasets.create_volume(name, volume, &options),
            None => session.datasets.create_filesystem(name, &options),
        }
        .map_err(report::failed(&attempt))?;
        app.record(session);
        tell_json(app, args, &created, &chosen)?;
        if args.no_mount { Ok(Exit::Ok) } else { automount::mount_created(app, session, &created) }
    })
}

/// The properties of a new volume that are stored as properties. Its sizes are in its data.
fn stored(chosen: &[Assignment]) -> Vec<(String, String)> {
    let mut stored = assignments::stored(chosen);
    stored.retain(|(name, _)| name != "volsize" && name != "volblocksize");
    stored
}

/// `-V`, `-b` and `-s`.
fn new_volume(
    attempt: &str,
    args: &CreateArgs,
    size: &str,
    pairs: Vec<(&str, &str)>,
) -> Result<(NewVolume, Vec<Assignment>)> {
    let mut pairs = pairs;
    if let Some(block_size) = &args.block_size {
        pairs.push(("volblocksize", block_size));
    }
    let given = pairs.iter().find(|(name, _)| *name == "volblocksize").map(|(_, value)| *value);
    let block_size = match given {
        Some(text) => parse_size(text).map_err(|error| CliError::Failed(format!("{attempt}: {error}")))?,
        None => u64::from(VOLUME_BLOCK_DEFAULT),
    };
    let size = match parse_size(size) {
        Ok(bytes) if block_size.is_power_of_two() => bytes
            .checked_next_multiple_of(block_size)
            .map_or_else(|| size.to_owned(), |bytes| bytes.to_string()),
        _ => size.to_owned(),
    };
    pairs.push(("volsize", &size));
    let mut chosen = assignments::for_new_volume(attempt, &pairs, block_size)?;
    let number = |name: &str| chosen.iter().find(|a| a.name == name).and_then(|a| a.value.as_number());
    let size = number("volsize").unwrap_or(0);
    let volume = NewVolume { size, block_size: u32::try_from(block_size).unwrap_or(0) };
    if !args.sparse && number("refreservation").is_none_or(|value| value == REFRESERVATION_AUTO) {
        let copies = number("copies").unwrap_or(1);
        chosen.retain(|assignment| assignment.name != "refreservation");
        let whole = volume_reservation(size, block_size, copies).to_string();
        chosen.extend(assignments::for_new_volume(attempt, &[("refreservation", &whole)], block_size)?);
    }
    Ok((volume, chosen))
}

/// `-v` and `-P`.
fn tell(app: &mut App<'_>, args: &CreateArgs, chosen: &[Assignment]) -> Result<()> {
    if args.json || (!args.verbose && !args.parsable) {
        return Ok(());
    }
    let out = &mut app.context.out;
    let name = &args.dataset;
    let would = if args.dry_run { "would " } else { "" };
    // As ZFS: whether any is missing or not.
    if args.parents > 0 {
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

/// `--json`: the datasets that are new, those above first, and the properties that the last one was made with.
fn tell_json(app: &mut App<'_>, args: &CreateArgs, created: &[String], chosen: &[Assignment]) -> Result<()> {
    if !args.json {
        return Ok(());
    }
    let properties: Map<_, _> =
        assignments::stored(chosen).into_iter().map(|(name, value)| (name, value.into())).collect();
    let mut document = json::document("snowmelt create");
    document.insert("created".to_owned(), json!(created));
    document.insert("properties".to_owned(), properties.into());
    document.insert("dry_run".to_owned(), args.dry_run.into());
    json::print(&mut app.context.out, document)?;
    Ok(())
}
