//! `pool list`.

use serde_json::{Map, Value, json};

use super::pool_properties::{self as properties, Column as Property};
use crate::app::App;
use crate::args::{PoolListArgs, Program};
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::facts::PoolFacts;
use crate::output::json;
use crate::output::table::{self, Column};
use crate::pools::missing;
use crate::request::{Reply, Request};

const DEFAULT_FIELDS: &str =
    "name,size,allocated,free,checkpoint,expandsize,fragmentation,capacity,dedupratio,health,altroot";

/// Lists pools.
///
/// # Errors
/// When a column does not exist, or output fails.
pub fn run(app: &mut App<'_>, args: &PoolListArgs) -> Result<Exit> {
    let wanted = match args.columns.as_deref().unwrap_or(DEFAULT_FIELDS) {
        "all" => properties::parse("name")?.into_iter().chain(properties::all()).collect(),
        list => properties::parse(list)?,
    };
    let exact = args.parsable || args.json_int;
    let (mut pools, failed) = facts(app, &args.pools)?;
    if properties::needs_features(&wanted) {
        look_for_features(app, &mut pools)?;
    }
    if args.json {
        json::print(&mut app.context.out, document("zpool list", &pools, &wanted, exact, args.json_int))?;
    } else if pools.is_empty() {
        if !failed && !args.scripted {
            app.context.complain("no pools available");
        }
    } else {
        let columns: Vec<Column> = wanted
            .iter()
            .map(|property| Column { header: property.header(), width: 0, right: property.right() })
            .collect();
        let mut rows = Vec::new();
        for pool in &pools {
            rows.push(wanted.iter().map(|property| property.text(pool, exact)).collect::<Vec<_>>());
            if args.verbose {
                rows.push(wanted.iter().map(|property| property.vdev_text(pool, exact)).collect());
                let of = |member| wanted.iter().map(|property| property.member_text(member)).collect();
                rows.extend(pool.members.iter().map(of));
            }
        }
        table::print(&mut app.context.out, &columns, &rows, args.scripted)?;
    }
    Ok(Exit::unless(failed))
}

/// Requests the state of the given pools, or of all. Reports pools that do not answer. The second value is whether
/// there are such pools, or missing ones.
///
/// # Errors
/// When output fails.
pub fn facts(app: &mut App<'_>, names: &[String]) -> Result<(Vec<PoolFacts>, bool)> {
    let mut failed = false;
    let (mut known, mut pools) = (Vec::new(), Vec::new());
    if names.is_empty() {
        known = app.places.all();
        let missing = missing::pools(app.context, &app.places, &known)?;
        pools.extend(missing.iter().map(PoolFacts::of_missing));
    }
    for name in names {
        if let Some(pool) = app.places.find(name) {
            known.push(pool);
        } else if let Some(pin) = missing::find(app.context, &app.places, name)? {
            pools.push(PoolFacts::of_missing(&pin));
        } else {
            app.context.complain(format_args!("cannot open '{name}': no such pool"));
            failed = true;
        }
    }
    // A `zpool` reports a missing pool, and succeeds.
    failed |= !pools.is_empty() && Program::of(&app.context.args).0 != Program::Zpool;
    for pool in known {
        match app.query(&pool, &Request::Pool) {
            Ok(Reply::Pool(facts)) => pools.push(*facts),
            Ok(_) => {
                return Err(CliError::Failed("the pool's owner answered a different request".to_owned()));
            }
            Err(error @ CliError::Output(_)) => return Err(error),
            Err(error) => {
                app.context.complain(error);
                failed = true;
            }
        }
    }
    pools.sort_by(|a, b| a.name.cmp(&b.name));
    Ok((pools, failed))
}

/// Finds out which features of pools something uses.
///
/// # Errors
/// When output fails.
pub fn look_for_features(app: &mut App<'_>, pools: &mut [PoolFacts]) -> Result<()> {
    for pool in pools.iter_mut().filter(|pool| !pool.is_missing && pool.unanswered.is_none()) {
        let Some(known) = app.places.find(&pool.name) else { continue };
        match app.query(&known, &Request::Features) {
            Ok(Reply::Features(names)) => pool.in_use = names,
            Ok(_) => return Err(CliError::Failed("the owner's answer is to another question".to_owned())),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Properties of pools in the form of OpenZFS 2.3.
pub fn document(
    command: &str,
    pools: &[PoolFacts],
    wanted: &[Property],
    exact: bool,
    as_number: bool,
) -> Map<String, Value> {
    let mut items = Map::new();
    for pool in pools {
        let mut properties = Map::new();
        for property in wanted.iter().filter(|property| property.name() != "name") {
            let source = property.source(pool);
            properties
                .insert(property.name(), json::property(&property.text(pool, exact), &source, as_number));
        }
        let mut item = Map::new();
        item.insert("name".to_owned(), json!(pool.name));
        item.insert("type".to_owned(), json!("POOL"));
        item.insert("state".to_owned(), json!(pool.health()));
        item.insert("pool_guid".to_owned(), json::number_or_text(&pool.guid.to_string(), as_number));
        item.insert("txg".to_owned(), json::number_or_text(&pool.txg.to_string(), as_number));
        item.insert("properties".to_owned(), properties.into());
        items.insert(pool.name.clone(), item.into());
    }
    let mut document = json::document(command);
    document.insert("pools".to_owned(), items.into());
    document
}
