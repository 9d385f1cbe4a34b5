//! `pool get`.

use super::pool_list::{document, facts, look_for_features};
use super::pool_properties as properties;
use crate::app::App;
use crate::args::PoolGetArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::output::json;
use crate::output::table::{self, Column};

const FIELDS: [&str; 4] = ["name", "property", "value", "source"];

/// Shows properties of pools.
///
/// # Errors
/// When a property or column does not exist, or output fails.
pub fn run(app: &mut App<'_>, args: &PoolGetArgs) -> Result<Exit> {
    let fields = fields(args.columns.as_deref().unwrap_or("all"))?;
    let wanted = match args.properties.as_str() {
        "all" => properties::all(),
        list => properties::parse(list)?,
    };
    let exact = args.parsable || args.json_int;
    let (mut pools, failed) = facts(app, &args.pools)?;
    if properties::needs_features(&wanted) {
        look_for_features(app, &mut pools)?;
    }
    if args.json {
        let document = document("zpool get", &pools, &wanted, exact, args.json_int);
        json::print(&mut app.context.out, document)?;
        return Ok(Exit::unless(failed));
    }
    let mut rows = Vec::new();
    for pool in &pools {
        for property in &wanted {
            let cell = |field: &&str| match *field {
                "name" => pool.name.clone(),
                "property" => property.name(),
                "value" => property.text(pool, exact),
                _ => property.source(pool).to_string(),
            };
            rows.push(fields.iter().map(cell).collect::<Vec<_>>());
        }
    }
    let columns: Vec<_> = fields.iter().map(|field| Column::left(field.to_uppercase())).collect();
    if !rows.is_empty() {
        table::print(&mut app.context.out, &columns, &rows, args.scripted)?;
    }
    Ok(Exit::unless(failed))
}

fn fields(list: &str) -> Result<Vec<&'static str>> {
    if list == "all" {
        return Ok(FIELDS.to_vec());
    }
    list.split(',')
        .map(|word| {
            let known = FIELDS.into_iter().find(|field| *field == word);
            known.ok_or_else(|| CliError::Usage(format!("invalid column name '{word}'")))
        })
        .collect()
}
