//! `pool segments`.

use serde_json::{Map, Value, json};
use snowmelt_dataset::property::format_bytes;

use crate::app::App;
use crate::args::PoolSegmentsArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::facts::SegmentFacts;
use crate::output::json;
use crate::output::table::{self, Column};
use crate::request::{Reply, Request};

/// Groups of segments by the part in use: the text, and the upper limit in percent. The cleaner takes segments with
/// at most 75 percent in use. If nothing else frees space, it takes those with at most 90 percent.
const SHARES: [(&str, u64); 6] =
    [("over 90%", 100), ("75-90%", 90), ("50-75%", 75), ("25-50%", 50), ("up to 25%", 25), ("none", 0)];

/// Shows how full the segments of pools are.
///
/// # Errors
/// When a pool does not exist or output fails.
pub fn run(app: &mut App<'_>, args: &PoolSegmentsArgs) -> Result<Exit> {
    let missing = |pool: &str| format!("cannot open '{pool}': no such pool");
    let mut pools = Vec::new();
    if args.pools.is_empty() {
        pools = app.places.all();
    }
    for name in &args.pools {
        pools.push(app.places.find(name).ok_or_else(|| CliError::Failed(missing(name)))?);
    }
    let mut document = Map::new();
    let several = pools.len() > 1;
    for pool in pools {
        let name = pool.label.name.clone();
        let segments = match app.query(&pool, &Request::Segments)? {
            Reply::Segments(segments) => segments,
            _ => return Err(CliError::Failed("the pool's owner answered a different request".to_owned())),
        };
        if args.json {
            document.insert(name, json!({ "segments": segments.iter().map(value).collect::<Vec<_>>() }));
            continue;
        }
        let size = |bytes: u64| if args.parsable { bytes.to_string() } else { format_bytes(bytes) };
        let (mut columns, mut rows) = match args.verbose {
            true => (["SEGMENT", "KIND", "STATE"].map(Column::left).to_vec(), each(&segments)),
            false => (vec![Column::left("ALIVE"), Column::right("SEGMENTS")], by_share(&segments)),
        };
        columns.extend(["SIZE", "ALLOC", "DEAD"].map(Column::right));
        if several {
            columns.insert(0, Column::left("NAME"));
        }
        let lines: Vec<Vec<String>> = rows
            .drain(..)
            .map(|row| {
                let sums = [row.size, row.allocated, row.size.saturating_sub(row.allocated)].map(size);
                let name = several.then(|| name.clone());
                name.into_iter().chain(row.words).chain(sums).collect()
            })
            .collect();
        table::print(&mut app.context.out, &columns, &lines, args.scripted)?;
    }
    if args.json {
        let mut whole = json::document("pool segments");
        whole.insert("pools".to_owned(), document.into());
        json::print(&mut app.context.out, whole)?;
    }
    Ok(Exit::Ok)
}

struct Row {
    words: Vec<String>,
    size: u64,
    allocated: u64,
}

fn each(segments: &[SegmentFacts]) -> Vec<Row> {
    let row = |segment: &SegmentFacts| Row {
        words: vec![
            format!("{:016x}", segment.id),
            kind(segment).to_owned(),
            (if segment.is_open { "open" } else { "sealed" }).to_owned(),
        ],
        size: segment.size,
        allocated: segment.allocated,
    };
    segments.iter().map(row).collect()
}

/// A row for each share that some have, and for all.
fn by_share(segments: &[SegmentFacts]) -> Vec<Row> {
    let sum = |word: &str, of: Vec<&SegmentFacts>| Row {
        words: vec![word.to_owned(), of.len().to_string()],
        size: of.iter().map(|segment| segment.size).sum(),
        allocated: of.iter().map(|segment| segment.allocated).sum(),
    };
    let (open, sealed): (Vec<_>, Vec<_>) = segments.iter().partition(|segment| segment.is_open);
    let mut rows = vec![("open", open)];
    for (at, (word, _)) in SHARES.iter().enumerate() {
        rows.push((word, sealed.iter().copied().filter(|segment| share(segment) == at).collect()));
    }
    let mut rows: Vec<Row> =
        rows.into_iter().filter(|(_, of)| !of.is_empty()).map(|(word, of)| sum(word, of)).collect();
    rows.push(sum("all", segments.iter().collect()));
    rows
}

/// The index in [`SHARES`] of a segment: the last group whose limit is not less than the part in use.
fn share(segment: &SegmentFacts) -> usize {
    let alive = u128::from(segment.allocated) * 100;
    let is_within = |limit: u64| alive <= u128::from(segment.size) * u128::from(limit);
    SHARES.iter().rposition(|(_, limit)| is_within(*limit)).unwrap_or(0)
}

fn kind(segment: &SegmentFacts) -> &'static str {
    if segment.is_data { "data" } else { "nodes" }
}

fn value(segment: &SegmentFacts) -> Value {
    json!({
        "id": format!("{:016x}", segment.id),
        "kind": kind(segment),
        "open": segment.is_open,
        "size": segment.size,
        "allocated": segment.allocated,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_told_by_how_much_of_them_is_alive() {
        let of = |allocated, size| SegmentFacts { id: 1, is_data: true, size, allocated, is_open: false };
        let word = |segment| SHARES[share(&segment)].0;
        let words = [100, 91, 90, 76, 75, 51, 50, 26, 25, 1, 0].map(|alive| word(of(alive, 100)));
        let wanted = [
            "over 90%",
            "over 90%",
            "75-90%",
            "75-90%",
            "50-75%",
            "50-75%",
            "25-50%",
            "25-50%",
            "up to 25%",
            "up to 25%",
            "none",
        ];
        assert_eq!(words, wanted);
        assert_eq!(word(of(0, 0)), "none");
        let rows = by_share(&[of(3, 4), of(0, 4), SegmentFacts { is_open: true, ..of(4, 4) }]);
        let rows: Vec<_> = rows.iter().map(|row| (row.words.join(" "), row.size, row.allocated)).collect();
        let row = |words: &str, size, allocated| (words.to_owned(), size, allocated);
        assert_eq!(
            rows,
            [row("open 1", 4, 4), row("50-75% 1", 4, 3), row("none 1", 4, 0), row("all 3", 12, 7)]
        );
    }
}
