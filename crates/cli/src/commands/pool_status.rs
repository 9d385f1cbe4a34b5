//! `pool status`.

use std::io::Write;

use jiff::tz::TimeZone;
use serde_json::{Map, Value, json};
use snowmelt_dataset::property::format_bytes;
use snowmelt_dataset::text::visible_name;

use super::pool_list::facts;
use super::scan_text;
use crate::app::App;
use crate::args::{PoolStatusArgs, Program};
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::facts::{CacheFacts, MemberFacts, PoolFacts, RequestFacts};
use crate::output::json;
use crate::request::{Reply, Request};

/// The text of `zpool status` for ZFS-8000-8A.
const DATA_DAMAGED: &str = "\
status: One or more devices has experienced an error resulting in data
\tcorruption.  Applications may be affected.
action: Restore the file in question if possible.  Otherwise restore the
\tentire pool from backup.
   see: https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-8A
";
/// The text of `zpool status` for ZFS-8000-9P.
const DATA_MENDED: &str = "\
status: One or more devices has experienced an unrecoverable error.  An
\tattempt was made to correct the error.  Applications are unaffected.
action: Determine if the device needs to be replaced, and clear the errors
\tusing 'zpool clear' or replace the device with 'zpool replace'.
   see: https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-9P
";

const RESILVERING: &str = "\
status: One or more devices is currently being resilvered.  The pool will
\tcontinue to function, possibly in a degraded state.
action: Wait for the resilver to complete.
";
const RESILVER_DUE: &str = "\
status: One or more devices missed writes while it was unavailable.  The pool
\tcontinues to function without that copy of them.
action: Bring it up to date with 'zpool resilver'.
";
/// The text of `zpool status` for ZFS-8000-2Q.
const MEMBER_MISSING: &str = "\
status: One or more devices could not be opened.  Sufficient replicas exist for
\tthe pool to continue functioning in a degraded state.
action: Attach the missing device and online it using 'zpool online'.
   see: https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-2Q
";
const MEMBER_FAULTED: &str = "\
status: One or more devices are faulted in response to persistent errors.
\tSufficient replicas exist for the pool to continue functioning in a
\tdegraded state.
action: Replace the faulted device, or use 'zpool online' to bring it back.
";
const MEMBER_OFFLINE: &str = "\
status: One or more devices has been taken offline by the administrator.
\tSufficient replicas exist for the pool to continue functioning in a
\tdegraded state.
action: Online the device using 'zpool online' or replace the device with
\t'zpool replace'.
";

/// Shows the state of pools.
///
/// # Errors
/// When output fails.
pub fn run(app: &mut App<'_>, args: &PoolStatusArgs) -> Result<Exit> {
    let (mut pools, failed) = facts(app, &args.pools)?;
    let found = pools.len();
    if args.unhealthy {
        pools.retain(|pool| !pool.is_well());
    }
    let mut named = Vec::new();
    for pool in &pools {
        named.push(match args.verbose && pool.damaged > 0 {
            true => damage(app, &pool.name)?,
            false => Vec::new(),
        });
    }
    if args.json {
        json::print(&mut app.context.out, document(&pools, &named))?;
        return Ok(Exit::unless(failed));
    }
    let (zone, program) = (app.context.time_zone(), Program::of(&app.context.args).0);
    let out = &mut app.context.out;
    for (at, (pool, named)) in pools.iter().zip(&named).enumerate() {
        if at > 0 {
            writeln!(out)?;
        }
        print(out, pool, named, &zone, program)?;
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

/// Requests the list of damage from a pool.
fn damage(app: &mut App<'_>, pool: &str) -> Result<Vec<String>> {
    let Some(known) = app.places.find(pool) else { return Ok(Vec::new()) };
    match app.query(&known, &Request::Damage)? {
        Reply::Damage(names) => Ok(names),
        _ => Err(CliError::Failed("the pool's owner answered a different request".to_owned())),
    }
}

/// The form of zpool-status(8), which monitors take apart: a heading, then indented devices with five columns.
/// The commands that it proposes are those of `program`.
fn print(
    out: &mut impl Write,
    pool: &PoolFacts,
    named: &[String],
    zone: &TimeZone,
    program: Program,
) -> Result<()> {
    writeln!(out, "  pool: {}\n state: {}", pool.name, pool.health())?;
    if pool.is_missing {
        writeln!(out, "status: The pool was not found at its last place: {}.", pool.vdev)?;
        writeln!(out, "action: Connect its disk, or mount its filesystem. If you moved the pool,")?;
        writeln!(
            out,
            "\t{}",
            program.spoken("'zpool import -d DIRECTORY' finds it. If it no longer exists,")
        )?;
        writeln!(out, "\t{}", program.spoken(&format!("'zpool export {}' forgets it.", pool.name)))?;
    } else if let Some(unanswered) = &pool.unanswered {
        writeln!(out, "status: The pool waits for a device: {unanswered}.")?;
        writeln!(out, "\tRequests continue when it answers; nothing is lost.")?;
        writeln!(out, "action: Check the device and the system log.")?;
    } else if !pool.faults.is_empty() {
        writeln!(out, "status: Parts of the pool are missing or cannot be read: see the errors below.")?;
        writeln!(out, "action: Run 'snowmelt check {}', and restore the data that it lists.", pool.name)?;
    } else if pool.damaged > 0 {
        out.write_all(DATA_DAMAGED.as_bytes())?;
    } else if let Some(text) = mirror_status(pool) {
        out.write_all(program.spoken(text).as_bytes())?;
    } else if !pool.is_well() {
        out.write_all(program.spoken(DATA_MENDED).as_bytes())?;
    }
    // As in ZFS, of scrub and resilver the one that began last.
    let resilver = pool.resilver.filter(|resilver| {
        let scan = pool.scan.as_ref();
        resilver.ended == 0 || scan.is_none_or(|scan| scan.started <= resilver.started)
    });
    let mut text = Vec::new();
    match (&resilver, &pool.scan) {
        (Some(resilver), _) => scan_text::print_resilver(&mut text, &pool.name, resilver, zone)?,
        (None, Some(scan)) => scan_text::print(&mut text, &pool.name, scan, zone)?,
        (None, None) => {}
    }
    out.write_all(program.spoken(&String::from_utf8_lossy(&text)).as_bytes())?;
    if let Some(comment) = pool.comment.as_ref().filter(|comment| !comment.is_empty()) {
        writeln!(out, "comment: {comment}")?;
    }
    writeln!(out, "config:\n")?;
    let rows = rows(pool);
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0).max(10);
    writeln!(out, "\t{:<width$}  {:<8} {:>5} {:>5} {:>5}", "NAME", "STATE", "READ", "WRITE", "CKSUM")?;
    for Row { name, state, errors: [read, write, checksum], note } in rows {
        writeln!(out, "\t{name:<width$}  {state:<8} {read:>5} {write:>5} {checksum:>5}{note}")?;
    }
    writeln!(out)?;
    if let Some(requests) = &pool.requests {
        let RequestFacts { puts, gets, lists, deletes, retries, bytes_sent, bytes_received } = &**requests;
        let (sent, received) = (format_bytes(*bytes_sent), format_bytes(*bytes_received));
        writeln!(
            out,
            "requests: {puts} put, {gets} get, {lists} list, {deletes} delete; {retries} repeated"
        )?;
        writeln!(out, "\t{sent} sent, {received} received since the pool was opened\n")?;
    }
    if let Some(cache) = &pool.cache {
        let CacheFacts { directory, size, used, trouble } = &**cache;
        let full = format!("{} of {}", format_bytes(*used), format_bytes(*size));
        writeln!(out, "cache: {full} in {directory}")?;
        if let Some(trouble) = trouble {
            writeln!(out, "\t{trouble}")?;
        }
        writeln!(out)?;
    }
    if pool.error_count() == 0 && !pool.is_missing {
        writeln!(out, "errors: No known data errors")?;
    }
    if !pool.faults.is_empty() {
        writeln!(out, "errors:")?;
        for fault in &pool.faults {
            writeln!(out, "\t{}", visible_name(fault.to_string().as_bytes()))?;
        }
    }
    match (pool.damaged, named) {
        (0, _) => {}
        (damaged, []) => writeln!(out, "errors: {damaged} data errors, use '-v' for a list")?,
        (_, named) => {
            writeln!(out, "errors: Permanent errors have been detected in the following files:\n")?;
            for name in named {
                writeln!(out, "        {}", visible_name(name.as_bytes()))?;
            }
        }
    }
    Ok(())
}

fn members(pool: &PoolFacts) -> Map<String, Value> {
    let member = |member: &MemberFacts| {
        let value = json!({
            "name": member.path,
            "guid": member.guid.to_string(),
            "state": member.state,
            "resilvering": member.is_resilvering,
            "read_errors": member.read_errors.to_string(),
            "write_errors": member.write_errors.to_string(),
            "checksum_errors": member.checksum_errors.to_string(),
            "unanswered_secs": member.unanswered,
        });
        (member.path.clone(), value)
    };
    pool.members.iter().map(member).collect()
}

/// A line of the configuration: the pool, a vdev, or a member of one.
struct Row {
    name: String,
    state: String,
    /// Reads, writes, checksums.
    errors: [u64; 3],
    note: String,
}

fn rows(pool: &PoolFacts) -> Vec<Row> {
    let errors = [pool.read_errors, 0, pool.checksum_errors];
    let of_pool = |name: String| Row { name, state: pool.health().to_owned(), errors, note: String::new() };
    let mut rows = vec![of_pool(pool.name.clone()), of_pool(format!("  {}", pool.vdev))];
    let is_replaced = |member: &MemberFacts| pool.members.iter().any(|m| m.replaces == Some(member.guid));
    for (at, member) in pool.members.iter().enumerate() {
        if member.replaces.is_some() && pool.members.iter().any(|m| Some(m.guid) == member.replaces) {
            continue;
        }
        if !is_replaced(member) {
            rows.push(of_member(pool, member, 4));
            continue;
        }
        let new = pool.members.iter().filter(|new| new.replaces == Some(member.guid));
        let state = if member.is_online() { "ONLINE" } else { "DEGRADED" };
        rows.push(Row {
            name: format!("    replacing-{at}"),
            state: state.to_owned(),
            errors: [0; 3],
            note: String::new(),
        });
        rows.extend(std::iter::once(member).chain(new).map(|member| of_member(pool, member, 6)));
    }
    rows
}

fn of_member(pool: &PoolFacts, member: &MemberFacts, indent: usize) -> Row {
    let unanswered = member.unanswered.map(|secs| format!("has not answered for {secs} s"));
    let note = match (unanswered.as_ref().or(member.why.as_ref()), member.is_online()) {
        (_, true) if member.is_resilvering && is_being_resilvered(pool) => "  (resilvering)".to_owned(),
        (_, true) if member.is_resilvering => "  (awaiting resilver)".to_owned(),
        (Some(why), false) if member.state != "OFFLINE" => format!("  {why}"),
        _ => String::new(),
    };
    Row {
        name: format!("{:indent$}{}", "", member.path),
        state: member.state.clone(),
        errors: [member.read_errors, member.write_errors, member.checksum_errors],
        note,
    }
}

/// Whether a process is doing it.
fn is_being_resilvered(pool: &PoolFacts) -> bool {
    pool.resilver.is_some_and(|resilver| resilver.is_running)
}

/// The text of `zpool status` about a mirror that is not complete.
fn mirror_status(pool: &PoolFacts) -> Option<&'static str> {
    let has = |state: &str| pool.members.iter().any(|member| member.state == state);
    Some(match () {
        () if is_being_resilvered(pool) => RESILVERING,
        () if pool.members.iter().any(|member| member.is_resilvering) => RESILVER_DUE,
        () if has("UNAVAIL") => MEMBER_MISSING,
        () if has("FAULTED") => MEMBER_FAULTED,
        () if has("OFFLINE") => MEMBER_OFFLINE,
        () => return None,
    })
}

fn document(pools: &[PoolFacts], named: &[Vec<String>]) -> Map<String, Value> {
    let mut items = Map::new();
    for (pool, named) in pools.iter().zip(named) {
        let mut vdev = json!({
            "name": pool.vdev,
            "state": pool.health(),
            "read_errors": pool.read_errors.to_string(),
            "write_errors": "0",
            "checksum_errors": pool.checksum_errors.to_string(),
        });
        if let Some(vdev) = vdev.as_object_mut().filter(|_| !pool.members.is_empty()) {
            vdev.insert("vdev_type".to_owned(), json!("mirror"));
            vdev.insert("vdevs".to_owned(), members(pool).into());
        }
        let mut item = json!({
            "name": pool.name,
            "state": pool.health(),
            "pool_guid": pool.guid.to_string(),
            "txg": pool.txg.to_string(),
            "vdevs": { pool.vdev.as_str(): vdev },
            "error_count": pool.error_count().to_string(),
            "errors": pool.faults,
        });
        if let Some(item) = item.as_object_mut() {
            if let Some(scan) = &pool.scan {
                item.insert("scan_stats".to_owned(), scan_text::document(scan).into());
            }
            if let Some(requests) = &pool.requests {
                item.insert("requests".to_owned(), json!(requests));
            }
            if let Some(cache) = &pool.cache {
                item.insert("cache".to_owned(), json!(cache));
            }
            if let Some(unanswered) = &pool.unanswered {
                item.insert("unanswered".to_owned(), json!(unanswered));
            }
            if !named.is_empty() {
                item.insert("errlist".to_owned(), json!(named));
            }
        }
        items.insert(pool.name.clone(), item);
    }
    let mut document = json::document("zpool status");
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
            size: 1,
            free: 1,
            txg: 9,
            ..PoolFacts::default()
        }
    }

    fn printed(pool: &PoolFacts) -> String {
        let mut out = Vec::new();
        print(&mut out, pool, &[], &TimeZone::UTC, Program::Snowmelt).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_pool_that_waits_says_for_what() {
        let unanswered = Some("no answer for 75 s from /srv/tank (sync)".to_owned());
        let text = printed(&PoolFacts { unanswered, ..pool() });
        assert!(
            text.contains(
                " state: SUSPENDED\nstatus: The pool waits for a device: no answer for 75 s from \
                               /srv/tank (sync).\n"
            ),
            "{text}"
        );
        let member = |state: &str, unanswered| MemberFacts {
            guid: 1,
            path: "/a".to_owned(),
            state: state.to_owned(),
            why: Some("cannot sync it: no answer for 60 s".to_owned()),
            is_resilvering: false,
            replaces: None,
            read_errors: 0,
            write_errors: 1,
            checksum_errors: 0,
            unanswered,
        };
        let text = printed(&PoolFacts { members: vec![member("FAULTED", Some(75))], ..pool() });
        assert!(text.contains("0  has not answered for 75 s\n") && text.contains("are faulted"), "{text}");
        let behind = MemberFacts { is_resilvering: true, ..member("ONLINE", None) };
        let text = printed(&PoolFacts { members: vec![behind], ..pool() });
        assert!(
            text.contains("0  (awaiting resilver)\n") && text.contains("'snowmelt pool resilver'"),
            "{text}"
        );
        let text = printed(&PoolFacts { members: vec![member("FAULTED", None)], ..pool() });
        assert!(text.contains("0  cannot sync it: no answer for 60 s\n"), "{text}");
    }

    #[test]
    fn the_form_that_monitors_take_apart() {
        assert_eq!(
            printed(&pool()),
            "  pool: tank\n state: ONLINE\nconfig:\n\n\
             \tNAME         STATE     READ WRITE CKSUM\n\
             \ttank         ONLINE       0     0     0\n\
             \t  /srv/tank  ONLINE       0     0     0\n\
             \nerrors: No known data errors\n"
        );
    }
}
