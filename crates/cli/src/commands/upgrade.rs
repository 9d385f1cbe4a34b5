//! `zfs upgrade` and `zpool upgrade`: list versions and features, and enable features. New filesystems have the newest
//! version. New pools have all features that are not disabled explicitly.

use std::io::Write;

use snowmelt_dataset::pool_features;
use snowmelt_dataset::property::Types;

use super::assignments::VERSION;
use super::{gather, list, pool_list};
use crate::app::App;
use crate::args::UpgradeArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::listing::{Columns, Listing, Selection, bit};
use crate::pools::Session;

/// Versions of the ZPL, and their new features.
const ZPL: [(u64, &str); 5] = [
    (1, "the first version"),
    (2, "types of files in directories"),
    (3, "names without regard to case, owners by identifier"),
    (4, "quotas of users and groups"),
    (5, "system attributes"),
];
/// What pools could do before features had names (zpool-features(7)).
const POOL: [(u64, &str); 6] = [
    (4, "zpool history"),
    (9, "refquota and refreservation properties"),
    (12, "Snapshot properties"),
    (18, "Snapshot user holds"),
    (24, "System attributes"),
    (26, "Improved snapshot deletion"),
];

/// `zfs upgrade`.
///
/// # Errors
/// When a filesystem does not exist.
pub fn filesystems(app: &mut App<'_>, args: &UpgradeArgs) -> Result<Exit> {
    if args.verbose {
        let out = &mut app.context.out;
        writeln!(out, "Versions of filesystems:\n\nVER  SINCE THEN\n---  ----------")?;
        for (version, what) in ZPL {
            writeln!(out, "{version:>2}   {what}")?;
        }
        return Ok(Exit::Ok);
    }
    let is_all = args.all || args.names.is_empty();
    let types = bit(Types::FILESYSTEM);
    let (recursive, depth) = list::reach(args.recursive || is_all, None, types, !is_all)?;
    let gathered = gather::rows(
        app,
        Listing {
            selection: Selection { names: args.names.clone(), types, recursive, depth },
            columns: Columns::Named(vec!["version".to_owned()]),
            sort: Vec::new(),
            parsable: true,
            received: false,
        },
    )?;
    let version = |text: &str| text.parse().unwrap_or(VERSION);
    let older: Vec<_> = gathered
        .rows
        .iter()
        .filter_map(|row| Some((version(&row.cells.first()?.text), &row.name)))
        .filter(|(version, _)| *version < VERSION)
        .collect();
    if args.all || !args.names.is_empty() {
        for (version, name) in &older {
            app.context.complain(format_args!(
                "cannot upgrade '{name}': it was received with version {version}, which snowmelt keeps"
            ));
        }
        writeln!(app.context.out, "0 filesystems upgraded")?;
        let current = gathered.rows.len() - older.len();
        if current > 0 {
            writeln!(app.context.out, "{current} filesystems already at this version")?;
        }
        return Ok(Exit::unless(gathered.failed || !older.is_empty()));
    }
    let out = &mut app.context.out;
    writeln!(out, "Filesystems made here have ZFS filesystem version {VERSION}.\n")?;
    if older.is_empty() {
        writeln!(out, "All filesystems have it.")?;
    } else {
        writeln!(out, "These were received with an older one:\n\nVER  FILESYSTEM\n---  ----------")?;
        for (version, name) in older {
            writeln!(out, "{version:>2}   {name}")?;
        }
    }
    Ok(Exit::unless(gathered.failed))
}

/// `zpool upgrade`.
///
/// # Errors
/// When a pool does not exist, or cannot be written.
pub fn pools(app: &mut App<'_>, args: &UpgradeArgs) -> Result<Exit> {
    for name in &args.names {
        if app.places.find(name).is_none() {
            return Err(CliError::Failed(format!("cannot open '{name}': no such pool")));
        }
    }
    if args.verbose {
        return pool_versions(app);
    }
    // Who asked the owner of a pool has said so.
    if !app.is_served() {
        writeln!(app.context.out, "This system supports ZFS pool feature flags.\n")?;
        app.context.out.flush()?;
    }
    if args.all || !args.names.is_empty() {
        let names = if args.all { app.every_pool() } else { args.names.clone() };
        if names.is_empty() {
            return Ok(Exit::Ok);
        }
        return app.on_each_pool(&names, |app, session, _| enable_all(app, session));
    }
    let (pools, failed) = pool_list::facts(app, &[])?;
    let out = &mut app.context.out;
    let lacking: Vec<_> = pools.iter().filter(|pool| !pool.disabled.is_empty()).collect();
    if lacking.is_empty() {
        writeln!(out, "Every pool has all of them.")?;
    } else {
        writeln!(out, "Features that are disabled:\n\nPOOL  FEATURE\n-------------")?;
        for pool in lacking {
            writeln!(out, "{}", pool.name)?;
            for feature in &pool.disabled {
                writeln!(out, "      {feature}")?;
            }
        }
    }
    Ok(Exit::unless(failed))
}

fn enable_all(app: &mut App<'_>, session: &Session) -> Result<Exit> {
    let name = session.name();
    let enabled = pool_features::enable(session.datasets.pool(), &[])
        .map_err(|error| CliError::failed(format!("cannot upgrade '{name}'"), &error))?;
    let out = &mut app.context.out;
    if enabled.is_empty() {
        writeln!(out, "Pool '{name}' already has all supported features enabled.")?;
        return Ok(Exit::Ok);
    }
    writeln!(out, "Enabled in '{name}':\n  {}", enabled.join("\n  "))?;
    app.record(session);
    Ok(Exit::Ok)
}

/// `zpool upgrade -v`.
fn pool_versions(app: &mut App<'_>) -> Result<Exit> {
    let out = &mut app.context.out;
    writeln!(out, "This system supports ZFS pool feature flags.\n\nFEAT\n----")?;
    for feature in pool_features::names() {
        writeln!(out, "{feature}")?;
    }
    writeln!(out, "\nEvery pool also has these features of earlier pool versions:\n\nVER  WHAT\n---  ----")?;
    for (version, what) in POOL {
        writeln!(out, "{version:>2}   {what}")?;
    }
    Ok(Exit::Ok)
}
