//! `pool iostat`: how much is read and written.

use std::io::Write;
use std::time::{Duration, Instant};

use snowmelt_dataset::property::format_bytes;

use super::pool_list::facts;
use crate::app::App;
use crate::args::PoolIostatArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::facts::{IoFacts, PoolFacts};

/// How often a wait looks whether it was interrupted.
const WAIT_STEP: Duration = Duration::from_millis(50);
/// Width of all columns but the first, and least of that.
const WIDTH: usize = 5;
const NAME_WIDTH: usize = 10;

/// Prints the space of pools, and their reads and writes per second: since the pool was opened, or in each interval.
///
/// # Errors
/// When the words make no sense, a pool does not exist, or output fails.
pub fn run(app: &mut App<'_>, args: &PoolIostatArgs) -> Result<Exit> {
    let (names, every, count) = split_words(&args.words)?;
    let mut last: Vec<PoolFacts> = Vec::new();
    let mut printed = 0;
    loop {
        let begun = Instant::now();
        let (pools, failed) = facts(app, names)?;
        if pools.is_empty() {
            if !failed {
                app.context.complain("no pools available");
            }
            return Ok(Exit::unless(failed));
        }
        let is_left_out = args.no_first && last.is_empty() && every.is_some();
        if !is_left_out {
            print(app, args, &pools, &last)?;
            printed += 1;
        }
        let Some(every) = every.filter(|_| count.is_none_or(|count| printed < count)) else {
            return Ok(Exit::unless(failed));
        };
        last = pools;
        while begun.elapsed() < every {
            if app.context.is_cancelled() {
                return Ok(Exit::unless(failed));
            }
            std::thread::sleep(WAIT_STEP.min(every.saturating_sub(begun.elapsed())));
        }
    }
}

/// Names of pools, which begin with a letter; then seconds, and how often.
fn split_words(words: &[String]) -> Result<(&[String], Option<Duration>, Option<u64>)> {
    let is_number = |word: &String| word.starts_with(|first: char| first.is_ascii_digit());
    let (names, numbers) = words.split_at(words.iter().position(is_number).unwrap_or(words.len()));
    let bad = |what: &str, word: &str| Err(CliError::Usage(format!("invalid {what} '{word}'")));
    let (every, count) = match numbers {
        [] => return Ok((names, None, None)),
        [every] => (every, None),
        [every, count] => match count.parse() {
            Ok(count) if count > 0 => (every, Some(count)),
            _ => return bad("count", count),
        },
        [_, _, other, ..] => return Err(CliError::Usage(format!("too many arguments: '{other}'"))),
    };
    match every.parse().ok().and_then(|secs| Duration::try_from_secs_f64(secs).ok()) {
        Some(every) if !every.is_zero() => Ok((names, Some(every), count)),
        _ => bad("interval", every),
    }
}

fn print(app: &mut App<'_>, args: &PoolIostatArgs, pools: &[PoolFacts], last: &[PoolFacts]) -> Result<()> {
    let mut rows = Vec::new();
    for pool in pools {
        let before = last.iter().find(|before| before.guid == pool.guid).map(|before| before.io);
        rows.push((pool.name.clone(), cells(args, Some((pool.allocated, pool.free)), pool.io, before)));
        if args.verbose && pool.members.is_empty() {
            let room = Some((pool.allocated, pool.free));
            rows.push((format!("  {}", pool.vdev), cells(args, room, pool.io, before)));
        } else if args.verbose {
            rows.push((format!("  {}", pool.vdev), cells(args, None, pool.io, before)));
            // What each member of a mirror did is not counted.
            let dashes = || vec!["-".to_owned(); 6];
            rows.extend(pool.members.iter().map(|member| (format!("    {}", member.path), dashes())));
        }
        if args.verbose {
            rows.push((String::new(), Vec::new()));
        }
    }
    let out = &mut app.context.out;
    if args.scripted {
        for (name, cells) in rows.iter().filter(|(_, cells)| !cells.is_empty()) {
            writeln!(out, "{}\t{}", name.trim_start(), cells.join("\t"))?;
        }
        out.flush()?;
        return Ok(());
    }
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max(NAME_WIDTH);
    let ruler = format!("{}{}", "-".repeat(width), format!("  {}", "-".repeat(WIDTH)).repeat(6));
    let line = |name: &str, cells: &[&str]| {
        let cells: String = cells.iter().map(|cell| format!("  {cell:>WIDTH$}")).collect();
        format!("{name:<width$}{cells}")
    };
    writeln!(out, "{:<width$}  {:^12}  {:^12}  {:^12}", "", "capacity", "operations", "bandwidth")?;
    writeln!(out, "{}", line("pool", &["alloc", "free", "read", "write", "read", "write"]))?;
    writeln!(out, "{ruler}")?;
    for (name, cells) in &rows {
        let cells: Vec<&str> = cells.iter().map(String::as_str).collect();
        writeln!(out, "{}", if cells.is_empty() { ruler.clone() } else { line(name, &cells) })?;
    }
    if pools.len() > 1 && !args.verbose {
        writeln!(out, "{ruler}")?;
    }
    out.flush()?;
    Ok(())
}

/// Allocated and free bytes, reads and writes per second, and bytes read and written per second.
fn cells(
    args: &PoolIostatArgs,
    room: Option<(u64, u64)>,
    now: IoFacts,
    before: Option<IoFacts>,
) -> Vec<String> {
    let size = |bytes: u64| if args.parsable { bytes.to_string() } else { format_bytes(bytes) };
    // Another process may own the pool by now: then it counts from its beginning.
    let before = before.filter(|before| before.milliseconds <= now.milliseconds).unwrap_or_default();
    let milliseconds = now.milliseconds.saturating_sub(before.milliseconds).max(1);
    let rate = |now: u64, before: u64| {
        let rate = u128::from(now.saturating_sub(before)) * 1000 / u128::from(milliseconds);
        u64::try_from(rate).unwrap_or(u64::MAX)
    };
    let count = |number: u64| match args.parsable {
        true => number.to_string(),
        // A number is no size.
        false => format_bytes(number).trim_end_matches('B').to_owned(),
    };
    let (allocated, free) = room.map_or(("-".to_owned(), "-".to_owned()), |(a, f)| (size(a), size(f)));
    vec![
        allocated,
        free,
        count(rate(now.reads, before.reads)),
        count(rate(now.writes, before.writes)),
        count(rate(now.bytes_read, before.bytes_read)),
        count(rate(now.bytes_written, before.bytes_written)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn pools_stand_before_an_interval_and_a_count() {
        let given = words("tank dozer 0.5 3");
        let (names, every, count) = split_words(&given).unwrap();
        assert_eq!((names.len(), every, count), (2, Some(Duration::from_millis(500)), Some(3)));
        assert_eq!(split_words(&words("tank")).unwrap().1, None);
        for (line, why) in [
            ("0", "invalid interval '0'"),
            ("5x", "invalid interval '5x'"),
            ("1 0", "invalid count '0'"),
            ("1 2 3", "too many arguments: '3'"),
        ] {
            assert_eq!(split_words(&words(line)).unwrap_err().to_string(), why);
        }
    }

    #[test]
    fn rates_are_of_the_time_between() {
        let args = PoolIostatArgs { parsable: true, ..PoolIostatArgs::default() };
        let before = IoFacts { reads: 10, writes: 5, bytes_read: 1000, bytes_written: 0, milliseconds: 1000 };
        let now = IoFacts { reads: 30, writes: 5, bytes_read: 5000, bytes_written: 64, milliseconds: 3000 };
        assert_eq!(cells(&args, Some((7, 9)), now, Some(before)), ["7", "9", "10", "0", "2000", "32"]);
        // A new owner began again.
        assert_eq!(cells(&args, None, before, Some(now)), ["-", "-", "10", "5", "1000", "0"]);
    }
}
