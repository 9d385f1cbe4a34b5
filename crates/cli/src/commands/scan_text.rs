//! The `scan:` lines of a pool's status, in the form of `print_scan_scrub_resilver_status` (cmd/zpool/zpool_main.c).
//! Monitors parse them.

use std::io::{self, Write};

use jiff::tz::TimeZone;
use serde_json::{Map, Value, json};
use snowmelt_dataset::property::format_bytes;

use crate::facts::{ResilverFacts, ScanFacts, ScanState};

/// Below this rate, in bytes per second, no remaining time is printed.
const RATE_MIN: u64 = 10 << 20;

/// Prints the state of the last scrub of `pool`, in the words of `zpool`
/// ([`Program::spoken`](crate::args::Program::spoken)).
///
/// # Errors
/// When the output cannot be written.
pub fn print(out: &mut impl Write, pool: &str, scan: &ScanFacts, zone: &TimeZone) -> io::Result<()> {
    let (started, ended) = (date(scan.started, zone), date(scan.ended, zone));
    let repaired = format_bytes(scan.repaired);
    match scan.state {
        ScanState::Finished => {
            let took = hours(scan.worked);
            return writeln!(
                out,
                "  scan: scrub repaired {repaired} in {took} with {} errors on {ended}",
                scan.errors
            );
        }
        ScanState::Canceled => return writeln!(out, "  scan: scrub canceled on {ended}"),
        ScanState::Paused => {
            writeln!(out, "  scan: scrub paused since {ended}\n\tscrub started on {started}")?;
        }
        ScanState::Scanning => writeln!(out, "  scan: scrub in progress since {started}")?,
    }
    let rate = if scan.is_running { scan.issued / scan.worked.max(1) } else { 0 };
    let at = |bytes: u64| match scan.is_running && bytes / scan.worked.max(1) > 0 {
        true => format!(" at {}/s", format_bytes(bytes / scan.worked.max(1))),
        false => String::new(),
    };
    let bytes = [scan.scanned, scan.total, scan.issued].map(format_bytes);
    let [scanned, total, issued] = &bytes;
    let (scan_rate, issue_rate) = (at(scan.scanned), at(scan.issued));
    writeln!(out, "\t{scanned} / {total} scanned{scan_rate}, {issued} / {total} issued{issue_rate}")?;
    write!(out, "\t{repaired} repaired, {}% done", percent(scan))?;
    match scan.state {
        ScanState::Paused => writeln!(out),
        _ if !scan.is_running => {
            writeln!(out, ", no estimated completion time")?;
            writeln!(out, "\tnot running: 'zpool scrub {pool}' resumes it")
        }
        _ if rate >= RATE_MIN && scan.total >= scan.issued => {
            writeln!(out, ", {} to go", hours((scan.total - scan.issued) / rate))
        }
        _ => writeln!(out, ", no estimated completion time"),
    }
}

/// Prints how the last resilver of `pool` stands.
///
/// # Errors
/// When the output cannot be written.
pub fn print_resilver(
    out: &mut impl Write,
    pool: &str,
    scan: &ResilverFacts,
    zone: &TimeZone,
) -> io::Result<()> {
    let [copied, total] = [scan.copied, scan.total].map(format_bytes);
    if scan.ended > 0 {
        let (took, ended) = (hours(scan.ended.saturating_sub(scan.started)), date(scan.ended, zone));
        return writeln!(out, "  scan: resilvered {copied} in {took} with 0 errors on {ended}");
    }
    writeln!(out, "  scan: resilver in progress since {}", date(scan.started, zone))?;
    writeln!(out, "\t{copied} / {total} scanned, {copied} / {total} issued")?;
    let done = hundredths(scan.copied, scan.total);
    writeln!(out, "\t{copied} resilvered, {done}% done, no estimated completion time")?;
    if !scan.is_running {
        writeln!(out, "\tnot running: 'zpool resilver {pool}' resumes it")?;
    }
    Ok(())
}

/// Hundredths of a percent are printed.
fn percent(scan: &ScanFacts) -> String {
    hundredths(scan.issued, scan.total)
}

fn hundredths(done: u64, total: u64) -> String {
    let parts = u128::from(done.min(total)) * 10_000 / u128::from(total.max(1));
    format!("{}.{:02}", parts / 100, parts % 100)
}

/// As `ctime` has it.
pub(super) fn date(seconds: u64, zone: &TimeZone) -> String {
    let time = i64::try_from(seconds).ok().and_then(|second| jiff::Timestamp::from_second(second).ok());
    time.map_or_else(
        || seconds.to_string(),
        |time| time.to_zoned(zone.clone()).strftime("%a %b %e %H:%M:%S %Y").to_string(),
    )
}

/// `secs_to_dhms` of zpool_main.c.
fn hours(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let clock = format!("{:02}:{:02}:{:02}", rest / 3600, rest % 3600 / 60, rest % 60);
    match days {
        0 => clock,
        days => format!("{days} days {clock}"),
    }
}

/// The `scan_stats` of `zpool status -j`.
pub fn document(scan: &ScanFacts) -> Map<String, Value> {
    let state = match scan.state {
        ScanState::Scanning | ScanState::Paused => "SCANNING",
        ScanState::Finished => "FINISHED",
        ScanState::Canceled => "CANCELED",
    };
    let paused = if scan.state == ScanState::Paused { scan.ended } else { 0 };
    let ended = if scan.state == ScanState::Paused { 0 } else { scan.ended };
    let mut out = Map::new();
    out.insert("function".to_owned(), json!("SCRUB"));
    out.insert("state".to_owned(), json!(state));
    for (name, number) in [
        ("start_time", scan.started),
        ("end_time", ended),
        ("scrub_pause", paused),
        ("to_examine", scan.total),
        ("examined", scan.scanned),
        ("issued", scan.issued),
        ("processed", scan.repaired),
        ("errors", scan.errors),
    ] {
        out.insert(name.to_owned(), json!(number.to_string()));
    }
    out.insert("is_running".to_owned(), json!(scan.is_running));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(scan: &ScanFacts) -> String {
        let mut out = Vec::new();
        print(&mut out, "tank", scan, &TimeZone::UTC).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_words_of_zpool() {
        let mut scan = ScanFacts {
            state: ScanState::Scanning,
            is_running: true,
            started: 1_627_229_269,
            ended: 0,
            worked: 100,
            total: 405 << 30,
            scanned: 300 << 30,
            issued: 81 << 30,
            repaired: 0,
            errors: 0,
        };
        assert_eq!(
            printed(&scan),
            "  scan: scrub in progress since Sun Jul 25 16:07:49 2021\n\
             \t300G / 405G scanned at 3G/s, 81G / 405G issued at 829M/s\n\
             \t0B repaired, 20.00% done, 00:06:40 to go\n"
        );
        scan.is_running = false;
        assert!(printed(&scan).ends_with(
            "\t300G / 405G scanned, 81G / 405G issued\n\
             \t0B repaired, 20.00% done, no estimated completion time\n\
             \tnot running: 'zpool scrub tank' resumes it\n"
        ));
        (scan.state, scan.ended) = (ScanState::Paused, 1_627_229_270);
        assert_eq!(
            printed(&scan),
            "  scan: scrub paused since Sun Jul 25 16:07:50 2021\n\
             \tscrub started on Sun Jul 25 16:07:49 2021\n\
             \t300G / 405G scanned, 81G / 405G issued\n\
             \t0B repaired, 20.00% done\n"
        );
        (scan.state, scan.errors, scan.worked) = (ScanState::Finished, 3, 90_061);
        assert_eq!(
            printed(&scan),
            "  scan: scrub repaired 0B in 1 days 01:01:01 with 3 errors on Sun Jul 25 16:07:50 2021\n"
        );
        scan.state = ScanState::Canceled;
        assert_eq!(printed(&scan), "  scan: scrub canceled on Sun Jul 25 16:07:50 2021\n");
    }
}
