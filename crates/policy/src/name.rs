//! Names of snapshots, in the form of sanoid: `autosnap_2026-11-21_12:00:00_hourly`.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Length of `2026-11-21_12:00:00`.
const DATE_LEN: usize = 19;

/// The name of a snapshot that is taken now. `again` is set if the name already exists, in the hour that happens twice
/// when summer time ends.
pub fn of(prefix: &str, now: Timestamp, zone: &TimeZone, period: &str, again: bool) -> String {
    let again = if again { "dst" } else { "" };
    format!("{prefix}_{}{again}_{period}", now.to_zoned(zone.clone()).strftime("%Y-%m-%d_%H:%M:%S"))
}

/// The period in the name of a snapshot. `None` if the snapshot was not taken by a policy with this prefix.
pub fn period<'a>(prefix: &str, name: &'a str) -> Option<&'a str> {
    let rest = name.strip_prefix(prefix)?.strip_prefix('_')?;
    let (date, rest) = rest.split_at_checked(DATE_LEN)?;
    let is_date = date.bytes().zip(b"0000-00-00_00:00:00").all(|(found, form)| match form {
        b'0' => found.is_ascii_digit(),
        form => found == *form,
    });
    let period = rest.strip_prefix("dst").unwrap_or(rest).strip_prefix('_')?;
    let is_word =
        !period.is_empty() && period.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    (is_date && is_word).then_some(period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_sanoid() {
        let zone = TimeZone::get("Europe/Vienna").unwrap();
        let now: Timestamp = "2026-10-25T00:30:05Z".parse().unwrap();
        let name = of("autosnap", now, &zone, "hourly", false);
        assert_eq!(name, "autosnap_2026-10-25_02:30:05_hourly");
        assert_eq!(period("autosnap", &name), Some("hourly"));
        let again = of("autosnap", now, &zone, "hourly", true);
        assert_eq!(again, "autosnap_2026-10-25_02:30:05dst_hourly");
        assert_eq!(period("autosnap", &again), Some("hourly"));
    }

    #[test]
    fn names_of_others_are_not_ours() {
        for name in [
            "monday",
            "autosnap",
            "autosnap_hourly",
            "autosnap_2026-10-25_02:30:05",
            "autosnap_2026-10-25_02:30:05_",
            "autosnap_2026-10-25_02:30:05_a_b",
            "autosnap_2026-1-25_02:30:050_hourly",
            "myautosnap_2026-10-25_02:30:05_hourly",
            "autosnap2_2026-10-25_02:30:05_hourly",
            "autosnap_2026-10-25_02:30:0ä_hourly",
        ] {
            assert_eq!(period("autosnap", name), None, "{name}");
        }
    }
}
