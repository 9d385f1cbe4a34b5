//! `pool status`.

use std::io::Write;

use serde_json::{Map, Value, json};

use super::pool_list::facts;
use crate::app::App;
use crate::args::PoolStatusArgs;
use crate::error::Result;
use crate::exit::Exit;
use crate::output::json;
use crate::rows::PoolFacts;

/// Shows the state of pools.
///
/// # Errors
/// When output fails.
pub fn run(app: &mut App<'_>, args: &PoolStatusArgs) -> Result<Exit> {
    let (mut pools, failed) = facts(app, &args.pools)?;
    let found = pools.len();
    if args.unhealthy {
        pools.retain(|pool| !pool.faults.is_empty());
    }
    if args.json {
        json::print(&mut app.context.out, document(&pools))?;
        return Ok(Exit::unless(failed));
    }
    let out = &mut app.context.out;
    for (at, pool) in pools.iter().enumerate() {
        if at > 0 {
            writeln!(out)?;
        }
        print(out, pool)?;
    }
    if pools.is_empty() && !failed {
        match (args.unhealthy, args.pools.as_slice()) {
            (true, [name]) => writeln!(out, "pool '{name}' is healthy")?,
            (true, _) if found > 0 => writeln!(out, "all pools are healthy")?,
            _ => app.context.complain("no pools available"),
        }
    }
    Ok(Exit::unless(failed))
}

/// The form of zpool-status(8), which monitors take apart: a heading, then indented devices with five columns.
fn print(out: &mut impl Write, pool: &PoolFacts) -> Result<()> {
    writeln!(out, "  pool: {}\n state: {}", pool.name, pool.health())?;
    if !pool.faults.is_empty() {
        writeln!(out, "status: The pool was not found as it was left: see the errors below.")?;
        writeln!(out, "action: Run 'snowmelt check {}', and restore what it names.", pool.name)?;
    }
    if let Some(comment) = pool.comment.as_ref().filter(|comment| !comment.is_empty()) {
        writeln!(out, "comment: {comment}")?;
    }
    writeln!(out, "config:\n")?;
    let width = (pool.vdev.len() + 2).max(pool.name.len()).max(10);
    let (name, vdev, health) = (&pool.name, format!("  {}", pool.vdev), pool.health());
    writeln!(out, "\t{:<width$}  {:<8} {:>5} {:>5} {:>5}", "NAME", "STATE", "READ", "WRITE", "CKSUM")?;
    for name in [name, &vdev] {
        writeln!(out, "\t{name:<width$}  {health:<8} {:>5} {:>5} {:>5}", 0, 0, 0)?;
    }
    writeln!(out)?;
    match pool.faults.as_slice() {
        [] => writeln!(out, "errors: No known data errors")?,
        faults => {
            writeln!(out, "errors:")?;
            for fault in faults {
                writeln!(out, "\t{fault}")?;
            }
        }
    }
    Ok(())
}

fn document(pools: &[PoolFacts]) -> Map<String, Value> {
    let mut items = Map::new();
    for pool in pools {
        let vdev = json!({
            "name": pool.vdev, "state": pool.health(), "read_errors": "0", "write_errors": "0", "checksum_errors": "0",
        });
        let item = json!({
            "name": pool.name,
            "state": pool.health(),
            "pool_guid": pool.guid.to_string(),
            "txg": pool.txg.to_string(),
            "vdevs": { pool.vdev.as_str(): vdev },
            "error_count": pool.faults.len().to_string(),
            "errors": pool.faults,
        });
        items.insert(pool.name.clone(), item);
    }
    let mut document = json::document("zpool status");
    document.insert("pools".to_owned(), items.into());
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_that_monitors_take_apart() {
        let pool = PoolFacts {
            name: "tank".to_owned(),
            guid: 7,
            vdev: "/srv/tank".to_owned(),
            size: 1,
            allocated: 0,
            free: 1,
            read_only: false,
            txg: 9,
            comment: None,
            faults: Vec::new(),
        };
        let mut out = Vec::new();
        print(&mut out, &pool).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "  pool: tank\n state: ONLINE\nconfig:\n\n\
             \tNAME         STATE     READ WRITE CKSUM\n\
             \ttank         ONLINE       0     0     0\n\
             \t  /srv/tank  ONLINE       0     0     0\n\
             \nerrors: No known data errors\n"
        );
    }
}
