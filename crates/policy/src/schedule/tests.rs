//! Tests of schedules over a year, and at the changes of summer time in several zones.

use super::*;

fn zone(name: &str) -> TimeZone {
    TimeZone::get(name).unwrap()
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn time(hour: i8, minute: i8) -> Time {
    Time::constant(hour, minute, 0, 0)
}

/// All times from `begin` until `end` in local time, found with `next`.
fn moments(schedule: &Schedule, zone: &TimeZone, begin: &str, end: &str) -> Vec<String> {
    let (mut now, end) = (at(begin), at(end));
    let mut found = Vec::new();
    while let Some(next) = schedule.next(now, zone).filter(|next| *next < end) {
        assert!(next > now);
        // From any time until the following one, `last` returns it.
        assert_eq!(schedule.last(next, zone), Some(next));
        let later = next + SignedDuration::from_secs(1);
        assert_eq!(schedule.last(later, zone), Some(next));
        found.push(next.to_zoned(zone.clone()).strftime("%m-%d %H:%M %z").to_string());
        now = next;
    }
    found
}

#[test]
fn plain_schedules() {
    let utc = TimeZone::UTC;
    let now = at("2026-11-21T12:34:56Z"); // a Saturday
    for (schedule, last, next) in [
        (Schedule::Hourly(vec![0]), "2026-11-21T12:00:00Z", "2026-11-21T13:00:00Z"),
        (Schedule::Hourly(vec![0, 15, 30, 45]), "2026-11-21T12:30:00Z", "2026-11-21T12:45:00Z"),
        (Schedule::Daily(time(23, 59)), "2026-11-20T23:59:00Z", "2026-11-21T23:59:00Z"),
        (Schedule::Weekly(Weekday::Monday, time(23, 30)), "2026-11-16T23:30:00Z", "2026-11-23T23:30:00Z"),
        (Schedule::Weekly(Weekday::Saturday, time(12, 34)), "2026-11-21T12:34:00Z", "2026-11-28T12:34:00Z"),
        (Schedule::Monthly(1, time(0, 0)), "2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z"),
        (Schedule::Monthly(31, time(0, 0)), "2026-10-31T00:00:00Z", "2026-11-30T00:00:00Z"),
        (Schedule::Yearly(1, 1, time(0, 0)), "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"),
        (Schedule::Yearly(2, 29, time(6, 0)), "2026-02-28T06:00:00Z", "2027-02-28T06:00:00Z"),
        (Schedule::cron("*/20 8-16 * * mon-fri").unwrap(), "2026-11-20T16:40:00Z", "2026-11-23T08:00:00Z"),
    ] {
        assert_eq!(schedule.last(now, &utc), Some(at(last)), "{schedule:?}");
        assert_eq!(schedule.next(now, &utc), Some(at(next)), "{schedule:?}");
        assert_eq!(schedule.last(at(last), &utc), Some(at(last)), "{schedule:?}");
    }
}

#[test]
fn cron_expressions_are_checked() {
    for text in ["", "* * * *", "61 * * * *", "* * * * * *", "0 0 30 2 *", "a b c d e"] {
        assert!(Schedule::cron(text).is_err(), "{text:?}");
    }
}

#[test]
fn a_gap_skips_nothing_and_doubles_nothing() {
    // 02:00 to 03:00 on 2026-03-29 does not exist.
    let vienna = zone("Europe/Vienna");
    let (begin, end) = ("2026-03-27T23:30:00Z", "2026-03-30T10:00:00Z");
    assert_eq!(
        moments(&Schedule::Daily(time(2, 30)), &vienna, begin, end),
        ["03-28 02:30 +0100", "03-29 03:30 +0200", "03-30 02:30 +0200"]
    );
    let cron = moments(&Schedule::cron("30 2 * * *").unwrap(), &vienna, begin, end);
    assert_eq!(cron.len(), 3, "{cron:?}");
    let hourly =
        moments(&Schedule::Hourly(vec![30]), &vienna, "2026-03-29T00:00:00Z", "2026-03-29T03:00:00Z");
    assert_eq!(hourly, ["03-29 01:30 +0100", "03-29 03:30 +0200", "03-29 04:30 +0200"]);
}

#[test]
fn a_fold_skips_nothing_and_doubles_nothing() {
    // 02:00 to 03:00 on 2026-10-25 happens twice.
    let vienna = zone("Europe/Vienna");
    let (begin, end) = ("2026-10-24T00:00:00Z", "2026-10-26T10:00:00Z");
    for schedule in [Schedule::Daily(time(2, 30)), Schedule::cron("30 2 * * *").unwrap()] {
        assert_eq!(
            moments(&schedule, &vienna, begin, end),
            ["10-24 02:30 +0200", "10-25 02:30 +0200", "10-26 02:30 +0100"],
            "{schedule:?}"
        );
    }
    let hours = ["10-25 01:00 +0200", "10-25 02:00 +0200", "10-25 02:00 +0100", "10-25 03:00 +0100"];
    for schedule in [Schedule::Hourly(vec![0]), Schedule::cron("0 * * * *").unwrap()] {
        let found = moments(&schedule, &vienna, "2026-10-24T22:30:00Z", "2026-10-25T02:30:00Z");
        assert_eq!(found, hours, "{schedule:?}");
    }
}

#[test]
fn days_of_every_zone_have_each_one_moment() {
    for (name, year) in [
        ("Europe/Vienna", 2026),
        ("America/New_York", 2026),
        ("Australia/Lord_Howe", 2026), // change of half an hour
        ("America/Santiago", 2026),    // change at midnight
        ("Asia/Kolkata", 2026),
        ("Africa/Casablanca", 2026), // change for Ramadan
        ("Antarctica/Troll", 2026),  // change of two hours
    ] {
        let zone = zone(name);
        let (begin, end) = (format!("{year}-01-02T00:00:30Z"), format!("{}-01-02T00:00:30Z", year + 1));
        for minutes in [0, 90, 135, 150, 23 * 60 + 59] {
            let shown = time((minutes / 60) as i8, (minutes % 60) as i8);
            let found = moments(&Schedule::Daily(shown), &zone, &begin, &end);
            assert_eq!(found.len(), 365, "{name} {shown}");
        }
        // One hour of local time begins for each hour that passes. If the change is half an hour, there is one more or
        // less.
        let hourly = moments(&Schedule::Hourly(vec![0]), &zone, &begin, &end).len();
        assert!((8759..=8761).contains(&hourly), "{name}: {hourly}");
    }
}

#[test]
fn delays_move_every_moment() {
    let utc = TimeZone::UTC;
    let hourly = Schedule::Hourly(vec![0]);
    assert_eq!(hourly.last_delayed(at("2026-11-21T12:00:30Z"), &utc, 60), Some(at("2026-11-21T11:01:00Z")));
    assert_eq!(hourly.next_delayed(at("2026-11-21T12:00:30Z"), &utc, 60), Some(at("2026-11-21T12:01:00Z")));
}

#[test]
fn what_is_wrong_with_a_cron_expression() {
    for (text, expected) in [
        ("61 * * * *", "'61 * * * *': '61' is not a valid minute: 0 to 59, with * , - and /"),
        ("0 24 * * *", "'24' is not a valid hour: 0 to 23"),
        ("0 0 0 * *", "'0' is not a valid day: 1 to 31"),
        ("0 0 * 13 *", "'13' is not a valid month: 1 to 12"),
        ("0 0 * * xyz", "'xyz' is not a valid weekday: 0 to 7"),
        ("0 0 30 2 *", "never occurs"),
        ("0 0 * *", "has 4 fields"),
        ("@never", "'@never': "),
    ] {
        let error = Schedule::cron(text).err().unwrap_or_default();
        assert!(error.contains(expected), "{text}: {error}");
    }
}
