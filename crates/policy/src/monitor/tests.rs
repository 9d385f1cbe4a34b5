//! Tests of the messages of sanoid.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::*;
use crate::state::{Dataset, Snapshot, State};

const NOW: i64 = 1_800_000_000;

/// A state with snapshots, given by dataset, period and age.
fn state(list: &[(&str, &str, i64)]) -> State {
    let mut state = State::default();
    for (dataset, period, age) in list {
        let creation = Timestamp::from_second(NOW - age).unwrap();
        let snapshot = Snapshot {
            name: crate::name::of("autosnap", creation, &TimeZone::UTC, period, false),
            creation: NOW - age,
            ..Snapshot::default()
        };
        match state.datasets.iter_mut().find(|found| found.name == *dataset) {
            Some(found) => found.snapshots.push(snapshot),
            None => state.datasets.push(Dataset {
                name: (*dataset).to_owned(),
                snapshots: vec![snapshot],
                ..Dataset::default()
            }),
        }
    }
    state
}

fn told(config: &str, state: &State) -> Told {
    let config = Config::from_sanoid("sanoid.conf", config, None).unwrap();
    let now = Timestamp::from_second(NOW).unwrap();
    snapshots(&Planner::new(&config, state, now, &TimeZone::UTC, "host"), &[], NOW)
}

#[test]
fn ages_of_snapshots() {
    let config = "[tank/a]\nmonthly = 0\n[tank/B]\nmonthly = 0\ndaily = 0\n";
    let fresh = state(&[("tank/a", "hourly", 60), ("tank/a", "daily", 60), ("tank/B", "hourly", 60)]);
    let ok = told(config, &fresh);
    assert_eq!(ok.text, "OK: all monitored datasets (tank/a, tank/B) have fresh snapshots");
    assert_eq!(ok.level.code(), 0);
    let stale = state(&[("tank/a", "hourly", 5401), ("tank/a", "daily", 115_201), ("tank/B", "hourly", 10)]);
    let said = told(config, &stale);
    assert_eq!(
        said.text,
        "CRIT: tank/a newest daily snapshot is 1d 8h 0m 1s old (should be < 1d 8h 0m 0s), \
         WARN: tank/a newest hourly snapshot is 1h 30m 1s old (should be < 1h 30m 0s)"
    );
    assert_eq!(said.level.code(), 2);
    let none = told(config, &state(&[("tank/a", "hourly", 60), ("tank/B", "hourly", 60)]));
    assert_eq!(none.text, "CRIT: tank/a has no daily snapshots at all!");
    let quiet = told("[tank/a]\nmonthly = 0\nmonitor_dont_crit = yes\ndaily_crit = 1m\n", &stale);
    assert!(quiet.text.contains("CRIT: tank/a newest daily") && quiet.level == Level::Warning, "{quiet:?}");
    let unwatched = told("[tank/a]\nmonitor = no\n", &stale);
    assert_eq!(unwatched.text, "OK: all monitored datasets () have fresh snapshots");
}

#[test]
fn pools() {
    let pool = |name: &str, health: Option<&str>, capacity| PoolHealth {
        name: name.to_owned(),
        health: health.map(str::to_owned),
        size: "10G".to_owned(),
        free: "9G".to_owned(),
        capacity,
    };
    let well = health(&[pool("a", Some("ONLINE"), 10)]);
    assert_eq!(
        well,
        Told { level: Level::Ok, text: "OK ZPOOL a : ONLINE {Size:10G Free:9G Cap:10%} ".to_owned() }
    );
    let ill = health(&[pool("a", Some("DEGRADED"), 10), pool("b", None, 0)]);
    assert_eq!(
        ill.text,
        "*** CRITICAL *** WARNING ZPOOL a : DEGRADED {Size:10G Free:9G Cap:10%} , \
         CRITICAL ZPOOL {b} does not exist and/or is not responding!"
    );
    let text = "[a/x]\ncapacity_warn = 1\n[a]\n[b/y]\ncapacity_warn = 50\n[c]\ncapacity_warn = 0\ncapacity_crit = 0\n";
    let config = Config::from_sanoid("s", text, None).unwrap();
    let told = capacity(
        &config,
        &[pool("a", Some("ONLINE"), 79), pool("b", Some("ONLINE"), 50), pool("c", None, 0)],
    );
    assert_eq!(
        told,
        Told {
            level: Level::Warning,
            text: "*** WARNING *** OK ZPOOL a : 79%, WARNING ZPOOL b : 50%".to_owned()
        }
    );
    let told = capacity(&config, &[pool("a", Some("ONLINE"), 95)]);
    assert_eq!(told.text, "*** CRITICAL *** CRITICAL ZPOOL a : 95%");
    assert_eq!(told.level.code(), 2);
}

#[test]
fn copies() {
    let config = Config::from_toml(
        "x",
        "[job.a]\nsource = \"s\"\ntarget = \"t\"\nwhen = \"daily\"\nlag_warn = \"2h\"\nlag_crit = \"4h\"\n",
    )
    .unwrap();
    let status = |lag, failure: Option<&str>, began| JobStatus {
        running: false,
        job: "a".to_owned(),
        source: String::new(),
        target: String::new(),
        began,
        succeeded: None,
        failure: failure.map(str::to_owned),
        lag,
        next: None,
    };
    for (status, code, text) in [
        (status(Some(7200), None, Some(1)), 0, "OK: all replication jobs (a) are up to date"),
        (status(Some(7201), None, Some(1)), 1, "WARN: job a is 2h 0m 1s behind (should be < 2h 0m 0s)"),
        (status(Some(14_401), None, Some(1)), 2, "CRIT: job a is 4h 0m 1s behind (should be < 4h 0m 0s)"),
        (status(None, None, None), 2, "CRIT: job a has never succeeded (should be < 4h 0m 0s)"),
        (status(Some(0), Some("no\nroom"), Some(1)), 1, "WARN: job a failed: no"),
        (status(Some(0), None, None), 1, "WARN: job a has not run yet"),
    ] {
        let told = replication(&config, &[status]);
        assert_eq!((told.level.code(), told.text.as_str()), (code, text));
    }
}
