//! `pool history`.

use std::io::Write;

use serde_json::{Map, Value, json};
use snowmelt_dataset::text::visible_name;

use crate::app::App;
use crate::args::PoolHistoryArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::output::json;
use crate::request::{Reply, Request};

/// Shows the commands that changed pools.
///
/// # Errors
/// When output fails.
pub fn run(app: &mut App<'_>, args: &PoolHistoryArgs) -> Result<Exit> {
    let mut failed = false;
    let mut known = Vec::new();
    for name in &args.pools {
        match app.places.find(name) {
            Some(pool) => known.push(pool),
            None => {
                app.context.complain(format_args!("cannot open '{name}': no such pool"));
                failed = true;
            }
        }
    }
    if args.pools.is_empty() {
        known = app.places.all();
    }
    let mut pools = Map::new();
    let zone = app.context.time_zone();
    for pool in known {
        let lines = match app.query(&pool, &Request::History)? {
            Reply::History(lines) => lines,
            _ => return Err(CliError::Failed("the pool's owner answered a different request".to_owned())),
        };
        if args.json {
            let lines = lines.iter().map(|(when, what)| json!({ "time": when, "command": what }));
            pools.insert(pool.label.name.clone(), Value::Array(lines.collect()));
            continue;
        }
        let out = &mut app.context.out;
        writeln!(out, "History for '{}':", pool.label.name)?;
        for (when, what) in lines {
            let second = i64::try_from(when).unwrap_or(i64::MAX);
            let time = jiff::Timestamp::from_second(second)
                .map(|time| time.to_zoned(zone.clone()).strftime("%Y-%m-%d.%H:%M:%S").to_string());
            let what = visible_name(what.as_bytes());
            writeln!(out, "{} {what}", time.unwrap_or_else(|_| when.to_string()))?;
        }
        writeln!(out)?;
    }
    if args.json {
        let mut document = json::document("snowmelt pool history");
        document.insert("pools".to_owned(), pools.into());
        json::print(&mut app.context.out, document)?;
    }
    Ok(Exit::unless(failed))
}
