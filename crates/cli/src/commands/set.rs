//! `set`.

use snowmelt_dataset::property::{Assignment, REFRESERVATION_AUTO, Target, Types, Value, validate};
use snowmelt_dataset::{Catalog, DatasetError, Kind, resized_reservation, volume_reservation};
use snowmelt_stream::features::Features;

use super::{assignments, automount, names};
use crate::app::App;
use crate::args::SetArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::pools::Session;
use crate::properties::{Entity, Reader};
use crate::report;

/// Sets properties of one or more datasets.
///
/// # Errors
/// When the arguments are not valid, or a property cannot be set.
pub fn run(app: &mut App<'_>, args: &SetArgs) -> Result<Exit> {
    let (pairs, datasets) = split_words(&args.words)?;
    app.on_each_pool(datasets, |app, session, datasets| {
        let mut failed = false;
        for name in datasets {
            let done = if args.no_mount {
                set(session, name, &pairs).map(|()| true)
            } else {
                let properties: Vec<_> = pairs.iter().map(|(name, value)| (*name, Some(*value))).collect();
                automount::around(app, session, name, &properties, |_| set(session, name, &pairs))
            };
            match done {
                Ok(all) => failed |= !all,
                Err(error @ CliError::Usage(_)) => return Err(error),
                Err(error) => {
                    app.context.complain(error);
                    failed = true;
                }
            }
        }
        if !failed {
            app.record(session);
        }
        Ok(Exit::unless(failed))
    })
}

/// Pairs of property and value.
type Assignments<'a> = Vec<(&'a str, &'a str)>;

/// First `property=value` words, then datasets.
fn split_words(words: &[String]) -> Result<(Assignments<'_>, &[String])> {
    let usage = |why: &str| CliError::Usage(why.to_owned());
    let start = words.iter().position(|word| !word.contains('=')).unwrap_or(words.len());
    let (pairs, datasets) = words.split_at(start);
    if pairs.is_empty() {
        return Err(usage("missing property=value argument(s)"));
    }
    if datasets.is_empty() {
        return Err(usage("missing dataset name(s)"));
    }
    if datasets.iter().any(|word| word.contains('=')) {
        return Err(usage("invalid argument order"));
    }
    Ok((assignments::split_all(pairs)?, datasets))
}

fn set(session: &Session, name: &str, pairs: &[(&str, &str)]) -> Result<()> {
    let open = format!("cannot open '{name}'");
    let attempt = format!("cannot set property for '{name}'");
    let catalog = session.datasets.catalog();
    let entity = Entity::find(&catalog, name).map_err(report::failed(&open))?;
    if entity.types() == Types::BOOKMARK {
        return Err(CliError::Failed(format!("{open}: operation not applicable to datasets of this type")));
    }
    let volume_block_size = match &entity {
        Entity::Dataset(dataset) if dataset.record.kind == Kind::Volume => {
            catalog.head(dataset).and_then(|head| head.volume_block_size()).ok()
        }
        _ => None,
    };
    let target = Target { types: entity.types(), creating: false, volume_block_size };
    check_keylocation(&entity, pairs, &attempt)?;
    let mut chosen = validate(pairs.iter().copied(), target).map_err(assignments::refused(&attempt))?;
    check_against_use(&catalog, &entity, &mut chosen, &attempt)?;
    let parsed = names::parse(name, &open)?;
    // A volume's size is in its data.
    let size = chosen.iter().position(|assignment| assignment.name == "volsize");
    let size = size.and_then(|at| chosen.remove(at).value.as_number());
    let resize = |size| session.datasets.resize_volume(name, size).map_err(report::failed(&attempt));
    let mut grown = None;
    if let Some(size) = size {
        keep_whole(&catalog, &entity, size, &mut chosen).map_err(report::failed(&attempt))?;
        let present = Reader::new(&catalog).number(&entity, "volsize").map_err(report::failed(&attempt))?;
        // A volume does not grow if there is no space for it. A volume that shrinks frees its space.
        if size > present {
            grown = Some(size);
        } else {
            resize(size)?;
        }
    }
    session
        .datasets
        .set_properties(&parsed, &assignments::stored(&chosen))
        .map_err(report::failed(&attempt))?;
    grown.map_or(Ok(()), resize)
}

/// The place of a key only applies to datasets that have one.
fn check_keylocation(entity: &Entity, pairs: &[(&str, &str)], attempt: &str) -> Result<()> {
    let is_encrypted = match entity {
        Entity::Dataset(dataset) => dataset.record.content.features.contains(Features::RAW),
        _ => false,
    };
    if !is_encrypted && pairs.iter().any(|(name, value)| *name == "keylocation" && *value != "none") {
        return Err(CliError::Failed(format!("{attempt}: keylocation may only be set on encryption roots")));
    }
    Ok(())
}

/// Has as much reserved as before: nothing, something, or the whole.
fn keep_whole(
    catalog: &Catalog,
    entity: &Entity,
    size: u64,
    chosen: &mut Vec<Assignment>,
) -> Result<(), DatasetError> {
    let is_chosen = chosen.iter().any(|assignment| assignment.name == "refreservation");
    if let (Entity::Dataset(volume), false) = (entity, is_chosen)
        && let Some(bytes) = resized_reservation(catalog, volume, size)?
    {
        chosen.push(Assignment { name: "refreservation".to_owned(), value: Value::Number(bytes) });
    }
    Ok(())
}

/// What depends on how the dataset is now: versions stay, and `auto` becomes a size.
fn check_against_use(
    catalog: &Catalog,
    entity: &Entity,
    chosen: &mut [Assignment],
    attempt: &str,
) -> Result<()> {
    let reader = Reader::new(catalog);
    let number = |name: &str| reader.number(entity, name).map_err(report::failed(attempt));
    let refuse = |why: &str| Err(CliError::Failed(format!("{attempt}: {why}")));
    for assignment in chosen {
        let Some(value) = assignment.value.as_number() else { continue };
        match assignment.name.as_str() {
            "refreservation" if value == REFRESERVATION_AUTO => {
                let (block_size, copies) = (number("volblocksize")?, number("copies")?);
                assignment.value = Value::Number(volume_reservation(number("volsize")?, block_size, copies));
            }
            "version" if value < number("version")? => {
                let present = number("version")?;
                return refuse(&format!("Can not downgrade; already at version {present}"));
            }
            "version" if value > number("version")? => {
                return refuse("the version of a received filesystem cannot be changed");
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn pairs_stand_before_datasets() {
        let line = words("a=b c:d=e=f tank tank/x");
        let (pairs, datasets) = split_words(&line).unwrap();
        assert_eq!(pairs, [("a", "b"), ("c:d", "e=f")]);
        assert_eq!(datasets, ["tank", "tank/x"]);
        for (line, why) in [
            ("tank", "missing property=value argument(s)"),
            ("a=b", "missing dataset name(s)"),
            ("a=b tank c=d", "invalid argument order"),
        ] {
            assert_eq!(split_words(&words(line)).unwrap_err().to_string(), why);
        }
    }
}
