//! `pool list`.

use serde_json::{Map, Value, json};
use snowmelt_dataset::property::{Source, format_bytes};

use crate::app::App;
use crate::args::PoolListArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::output::json;
use crate::output::table::{self, Column};
use crate::rows::{Answer, PoolFacts, Query};

/// A column: its name, its other names, its header, whether it is aligned to the right.
struct Field {
    name: &'static str,
    aliases: &'static [&'static str],
    header: &'static str,
    right: bool,
}

const FIELDS: [Field; 16] = [
    Field { name: "name", aliases: &[], header: "NAME", right: false },
    Field { name: "size", aliases: &[], header: "SIZE", right: true },
    Field { name: "allocated", aliases: &["alloc"], header: "ALLOC", right: true },
    Field { name: "free", aliases: &[], header: "FREE", right: true },
    Field { name: "checkpoint", aliases: &["ckpoint"], header: "CKPOINT", right: true },
    Field { name: "expandsize", aliases: &["expandsz"], header: "EXPANDSZ", right: true },
    Field { name: "fragmentation", aliases: &["frag"], header: "FRAG", right: true },
    Field { name: "capacity", aliases: &["cap"], header: "CAP", right: true },
    Field { name: "dedupratio", aliases: &["dedup"], header: "DEDUP", right: true },
    Field { name: "health", aliases: &[], header: "HEALTH", right: false },
    Field { name: "altroot", aliases: &[], header: "ALTROOT", right: false },
    Field { name: "guid", aliases: &[], header: "GUID", right: true },
    Field { name: "readonly", aliases: &["rdonly"], header: "RDONLY", right: false },
    Field { name: "comment", aliases: &[], header: "COMMENT", right: false },
    Field { name: "ashift", aliases: &[], header: "ASHIFT", right: true },
    Field { name: "version", aliases: &[], header: "VERSION", right: true },
];
const DEFAULT_FIELDS: &str =
    "name,size,allocated,free,checkpoint,expandsize,fragmentation,capacity,dedupratio,health,altroot";

/// Lists pools.
///
/// # Errors
/// When a column does not exist, or output fails.
pub fn run(app: &mut App<'_>, args: &PoolListArgs) -> Result<Exit> {
    let fields = fields(args.columns.as_deref().unwrap_or(DEFAULT_FIELDS))?;
    let exact = args.parsable || args.json_int;
    let (pools, failed) = facts(app, &args.pools)?;
    if args.json {
        json::print(&mut app.context.out, document(&pools, &fields, exact, args.json_int))?;
    } else if pools.is_empty() {
        if !failed && !args.scripted {
            app.context.complain("no pools available");
        }
    } else {
        let columns: Vec<Column> = fields
            .iter()
            .map(|field| Column { header: field.header.to_owned(), width: 0, right: field.right })
            .collect();
        let mut rows = Vec::new();
        for pool in &pools {
            rows.push(fields.iter().map(|field| text(pool, field.name, exact)).collect::<Vec<_>>());
            if args.verbose {
                rows.push(fields.iter().map(|field| vdev_text(pool, field.name, exact)).collect());
            }
        }
        table::print(&mut app.context.out, &columns, &rows, args.scripted)?;
    }
    Ok(Exit::unless(failed))
}

/// Asks the pools named, or all, how they are; complains of those that do not answer.
///
/// # Errors
/// When output fails.
pub fn facts(app: &mut App<'_>, names: &[String]) -> Result<(Vec<PoolFacts>, bool)> {
    let mut failed = false;
    let mut known = Vec::new();
    if names.is_empty() {
        known = app.places.all();
    }
    for name in names {
        match app.places.find(name) {
            Some(pool) => known.push(pool),
            None => {
                app.context.complain(format_args!("cannot open '{name}': no such pool"));
                failed = true;
            }
        }
    }
    let mut pools = Vec::new();
    for pool in known {
        match app.query(&pool, &Query::Pool) {
            Ok(Answer::Pool(facts)) => pools.push(facts),
            Ok(_) => return Err(CliError::Failed("the owner's answer is to another question".to_owned())),
            Err(error @ CliError::Output(_)) => return Err(error),
            Err(error) => {
                app.context.complain(error);
                failed = true;
            }
        }
    }
    Ok((pools, failed))
}

fn fields(list: &str) -> Result<Vec<&'static Field>> {
    if list == "all" {
        return Ok(FIELDS.iter().collect());
    }
    list.split(',')
        .map(|name| {
            let found = FIELDS.iter().find(|field| field.name == name || field.aliases.contains(&name));
            found.ok_or_else(|| CliError::Usage(format!("bad property list: invalid property '{name}'")))
        })
        .collect()
}

fn text(pool: &PoolFacts, field: &str, exact: bool) -> String {
    let size = |bytes: u64| if exact { bytes.to_string() } else { format_bytes(bytes) };
    let percent = |number: u64| if exact { number.to_string() } else { format!("{number}%") };
    match field {
        "name" => pool.name.clone(),
        "size" => size(pool.size),
        "allocated" => size(pool.allocated),
        "free" => size(pool.free),
        "fragmentation" => percent(0),
        "capacity" => percent(pool.capacity()),
        "dedupratio" if exact => "1.00".to_owned(),
        "dedupratio" => "1.00x".to_owned(),
        "health" => pool.health().to_owned(),
        "guid" => pool.guid.to_string(),
        "readonly" => (if pool.read_only { "on" } else { "off" }).to_owned(),
        "comment" => pool.comment.clone().filter(|text| !text.is_empty()).unwrap_or_else(|| "-".to_owned()),
        "ashift" => "12".to_owned(),
        _ => "-".to_owned(),
    }
}

/// The one vdev of a pool, below it.
fn vdev_text(pool: &PoolFacts, field: &str, exact: bool) -> String {
    match field {
        "name" => format!("  {}", pool.vdev),
        "dedupratio" | "altroot" | "guid" | "readonly" | "comment" => "-".to_owned(),
        field => text(pool, field, exact),
    }
}

fn document(pools: &[PoolFacts], fields: &[&Field], exact: bool, as_number: bool) -> Map<String, Value> {
    let mut items = Map::new();
    for pool in pools {
        let mut properties = Map::new();
        for field in fields.iter().filter(|field| field.name != "name") {
            let value = json::property(&text(pool, field.name, exact), &Source::None, as_number);
            properties.insert(field.name.to_owned(), value);
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
    let mut document = json::document("zpool list");
    document.insert("pools".to_owned(), items.into());
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> PoolFacts {
        PoolFacts {
            name: "tank".to_owned(),
            guid: 7,
            vdev: "/srv/tank".to_owned(),
            size: 10 << 30,
            allocated: 3 << 30,
            free: 7 << 30,
            read_only: false,
            txg: 9,
            comment: None,
            faults: Vec::new(),
        }
    }

    #[test]
    fn columns_that_monitors_read() {
        let line = |list: &str, exact| {
            fields(list)
                .unwrap()
                .iter()
                .map(|field| text(&pool(), field.name, exact))
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(line("name,size,cap,health,free", false), "tank 10G 30% ONLINE 7G");
        assert_eq!(line("size,alloc,cap,dedup", true), "10737418240 3221225472 30 1.00");
        assert_eq!(line("altroot,comment,ckpoint", false), "- - -");
        assert!(fields("frob").is_err());
    }
}
