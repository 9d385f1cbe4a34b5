//! Tests of retention, with one table for each rule.

use super::*;

const H: i64 = 3600;
const NOW: i64 = 1_800_000_000;

/// Snapshots with these periods and ages in hours, sorted from old to new.
fn snapshots(list: &[(&str, i64)]) -> Vec<Snapshot> {
    let mut list = list.to_vec();
    list.sort_by_key(|(_, age)| -age);
    list.iter()
        .enumerate()
        .map(|(at, (period, age))| {
            let date = jiff::Timestamp::from_second(NOW - age * H).unwrap();
            Snapshot {
                name: crate::name::of("autosnap", date, &jiff::tz::TimeZone::UTC, period, false),
                guid: *age as u64,
                createtxg: at as u64,
                creation: NOW - age * H,
                ..Snapshot::default()
            }
        })
        .collect()
}

/// Ages in hours of the kept snapshots, sorted from new to old.
fn kept(retention: &Retention, snapshots: &[Snapshot], facts: &Facts) -> Vec<i64> {
    let verdicts = retention.judge(snapshots, facts, NOW);
    let all = snapshots.iter().zip(verdicts).rev();
    all.filter(|(_, verdict)| !matches!(verdict, Verdict::Destroy(_)))
        .map(|(snapshot, _)| (NOW - snapshot.creation) / H)
        .collect()
}

fn counting(counts: &[(&str, usize, Option<i64>)]) -> Retention {
    Retention {
        prefix: "autosnap".to_owned(),
        counts: counts.iter().map(|(name, count, age)| ((*name).to_owned(), (*count, *age))).collect(),
        ..Retention::default()
    }
}

fn hourlies(ages: std::ops::Range<i64>) -> Vec<Snapshot> {
    snapshots(&ages.map(|age| ("hourly", age)).collect::<Vec<_>>())
}

#[test]
fn counts() {
    let none = Facts::default();
    for (count, age, ages, expected) in [
        // More than the count, and some too old.
        (3, Some(3 * H), 0..6, vec![0, 1, 2, 3]),
        // Too old, but not more than the count.
        (3, Some(3 * H), 10..13, vec![10, 11, 12]),
        // Too old, and one more than the count.
        (3, Some(3 * H), 10..14, vec![10, 11, 12]),
        // More than the count, but not too old.
        (3, Some(100 * H), 0..6, vec![0, 1, 2, 3, 4, 5]),
        (0, Some(0), 0..3, vec![]),
        (2, None, 0..5, vec![0, 1]),
    ] {
        let retention = counting(&[("hourly", count, age)]);
        assert_eq!(kept(&retention, &hourlies(ages.clone()), &none), expected, "{count} {age:?} {ages:?}");
    }
}

#[test]
fn periods_count_by_themselves() {
    let retention = counting(&[("hourly", 1, None), ("daily", 2, None)]);
    let all =
        snapshots(&[("hourly", 1), ("daily", 2), ("hourly", 3), ("daily", 4), ("daily", 5), ("weekly", 6)]);
    // There is no rule for weekly.
    assert_eq!(kept(&retention, &all, &Facts::default()), [1, 2, 4, 6]);
}

#[test]
fn what_others_took_is_never_touched() {
    let retention = Retention {
        grid: Some(Grid::parse("1x1h").unwrap()),
        last: Some(0),
        ..counting(&[("hourly", 0, None)])
    };
    let mut all = hourlies(0..4);
    for (snapshot, name) in
        all.iter_mut().zip(["monday", "snowmelt-sync_2026-01-01", "autosnap_x_hourly", "zrepl_1"])
    {
        snapshot.name = name.to_owned();
    }
    assert!(retention.judge(&all, &Facts::default(), NOW).iter().all(|verdict| *verdict == Verdict::Foreign));
}

#[test]
fn any_rule_keeps() {
    let mut all = hourlies(0..12);
    all[1].holds = 1; // 10 hours old
    all[2].has_clones = true; // 9
    all[3].name = "autosnap_2027-01-15_00:00:00_hourly".to_owned(); // 8
    let retention = Retention {
        grid: Some(Grid::parse("2x3h").unwrap()),
        last: Some(2),
        protect: vec![Regex::new("^autosnap_2027-01-15_00:00:00_").unwrap()],
        ..counting(&[("hourly", 1, None)])
    };
    let facts = Facts { bases: HashSet::from([7]), ..Facts::default() };
    // By count: 0. By last: 0, 1. By grid: 2, 5 (the oldest of [0, 3) and [3, 6)). The others by their own properties.
    assert_eq!(kept(&retention, &all, &facts), [0, 1, 2, 5, 7, 8, 9, 10]);
}

#[test]
fn what_no_target_has_stays() {
    let retention = Retention { keep_not_replicated: true, ..counting(&[("hourly", 1, None)]) };
    let all = hourlies(0..6);
    // The snapshot with createtxg 0 is 5 hours old. The newest has createtxg 5.
    for (facts, expected) in [
        (Facts { has_targets: true, replicated: Some(2), ..Facts::default() }, vec![0, 1, 2]),
        (Facts { has_targets: true, replicated: None, ..Facts::default() }, vec![0, 1, 2, 3, 4, 5]),
        (Facts { has_targets: false, ..Facts::default() }, vec![0]),
    ] {
        assert_eq!(kept(&retention, &all, &facts), expected, "{facts:?}");
    }
}

#[test]
fn a_clock_set_back_makes_nothing_older() {
    let retention =
        Retention { grid: Some(Grid::parse("4x1h").unwrap()), ..counting(&[("hourly", 2, Some(2 * H))]) };
    let all = hourlies(-3..3);
    let before = retention.judge(&all, &Facts::default(), NOW + 3 * H);
    let after = retention.judge(&all, &Facts::default(), NOW);
    for (before, after) in before.iter().zip(&after) {
        assert!(matches!(before, Verdict::Destroy(_)) || !matches!(after, Verdict::Destroy(_)));
    }
}

#[test]
fn reasons_are_told() {
    let retention = counting(&[("hourly", 2, Some(2 * H)), ("daily", 0, Some(0))]);
    let mut all = hourlies(0..5);
    all.extend(snapshots(&[("daily", 1)]));
    let verdicts = retention.judge(&all, &Facts::default(), NOW);
    let told = |at: usize| match &verdicts[at] {
        Verdict::Keep(reason) | Verdict::Destroy(reason) => reason.as_str(),
        Verdict::Foreign => "",
    };
    assert_eq!(told(4), "hourly 1 of 2");
    assert_eq!(told(2), "hourly, not older than 2h");
    assert_eq!(told(0), "hourly 5 of 2, 4h old");
    assert_eq!(told(5), "no daily snapshots are wanted");
}
