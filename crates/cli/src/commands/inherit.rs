//! `inherit`.

use snowmelt_dataset::property::{Property, PropertyName, Types};

use super::{automount, names};
use crate::app::App;
use crate::args::InheritArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::pools::Session;
use crate::properties::Entity;
use crate::report;

/// Lets properties be inherited, or take their received values.
///
/// # Errors
/// When the property cannot be inherited, or a dataset does not exist.
pub fn run(app: &mut App<'_>, args: &InheritArgs) -> Result<Exit> {
    let property = match PropertyName::parse(&args.property) {
        Ok(PropertyName::Native(property)) => {
            check(property, &args.property, args.received)?;
            Some(property)
        }
        Ok(PropertyName::User(_)) => None,
        _ => return Err(CliError::Usage(format!("invalid property '{}'", args.property))),
    };
    let name = property.map_or(args.property.as_str(), |property| property.name);
    app.on_each_pool(&args.datasets, |app, session, datasets| {
        let mut failed = false;
        for dataset in datasets {
            let done = automount::around(app, session, dataset, &[(name, None)], |_| {
                inherit(session, dataset, name, property, args)
            });
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

fn check(property: &Property, name: &str, received: bool) -> Result<()> {
    let refuse = |why: String| Err(CliError::Failed(why));
    if property.is_readonly() {
        return refuse(format!("{name} property is read-only"));
    }
    if !property.is_inheritable() && !received {
        let mut why = format!("'{name}' property cannot be inherited");
        if matches!(property.name, "quota" | "reservation" | "refquota" | "refreservation") {
            why.push_str(&format!(
                "\nuse 'zfs set {name}=none' to clear\nuse 'zfs inherit -S {name}' to revert to received value"
            ));
        }
        return refuse(why);
    }
    if received && matches!(property.name, "volsize" | "version") {
        return refuse(format!("'{name}' property cannot be reverted to a received value"));
    }
    Ok(())
}

fn inherit(
    session: &Session,
    dataset: &str,
    name: &str,
    property: Option<&Property>,
    args: &InheritArgs,
) -> Result<()> {
    let attempt = format!("cannot inherit {name} for '{dataset}'");
    let catalog = session.datasets.catalog();
    let open = format!("cannot open '{dataset}'");
    let found = Entity::find(&catalog, dataset).map_err(report::failed(&open))?;
    let applies = |types: Types| property.is_none_or(|property| property.applies_to(types));
    if !args.recursive && !applies(found.types()) {
        return Err(CliError::Failed(format!("{attempt}: '{name}' does not apply to datasets of this type")));
    }
    let mut targets = Vec::new();
    match found {
        Entity::Dataset(top) if args.recursive => {
            for below in catalog.descendants(top).map_err(report::failed(&attempt))? {
                // Of native properties only user-set ones are kept on snapshots.
                if property.is_none() {
                    for snapshot in catalog.snapshots(&below) {
                        targets.push(Entity::from(snapshot.map_err(report::failed(&attempt))?));
                    }
                }
                targets.push(below.into());
            }
        }
        other => targets.push(other),
    }
    for target in targets.iter().filter(|target| applies(target.types())) {
        let parsed = names::parse(target.name(), &attempt)?;
        session.datasets.inherit_property(&parsed, name, args.received).map_err(report::failed(&attempt))?;
    }
    Ok(())
}
