//! Formats values as text: ZFS's short numbers, ratios and times, and the plain numbers of `-p`.

use super::{IndexValue, Kind, Property, Value};

const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
const WEEKDAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const DAY_S: i64 = 86_400;

/// How values are formatted.
#[derive(Clone, Copy)]
pub struct TextStyle<'a> {
    /// `-p`: exact numbers, times as seconds since 1970.
    pub parsable: bool,
    /// Offset from UTC in seconds for the reader, at the given time (seconds since 1970).
    pub utc_offset: &'a dyn Fn(i64) -> i32,
}

impl TextStyle<'static> {
    /// Exact numbers, as `-p`.
    pub const PARSABLE: Self = Self { parsable: true, utc_offset: &|_| 0 };
    /// For people, times in UTC.
    pub const HUMAN_UTC: Self = Self { parsable: false, utc_offset: &|_| 0 };
}

impl Property {
    /// The VALUE column of `zfs get` (`zfs_prop_get` in `lib/libzfs/libzfs_dataset.c`).
    #[must_use]
    pub fn format(&self, value: &Value, style: &TextStyle<'_>) -> String {
        let number = match value {
            Value::Text(text) => return text.clone(),
            Value::Number(number) => *number,
        };
        match self.kind {
            Kind::Index(table) => {
                IndexValue::name_in(table, number).map_or(number.to_string(), str::to_owned)
            }
            Kind::YesNo => (if number == 0 { "no" } else { "yes" }).to_owned(),
            Kind::Identifier | Kind::Iterations => number.to_string(),
            Kind::Ratio => {
                let ratio = format_ratio(number);
                if style.parsable { ratio } else { ratio + "x" }
            }
            _ if style.parsable => number.to_string(),
            Kind::Quota | Kind::Reservation | Kind::RefReservation if number == 0 => "none".to_owned(),
            Kind::Limit if number == u64::MAX => "none".to_owned(),
            Kind::Quota | Kind::Reservation | Kind::RefReservation | Kind::Bytes => format_bytes(number),
            Kind::Date => format_time(number, style),
            Kind::DateSeconds => format_time_seconds(number, style),
            Kind::Limit
            | Kind::Number
            | Kind::BlockSize
            | Kind::SmallBlocks
            | Kind::VolumeSize
            | Kind::Text(_) => format_number(number),
        }
    }
}

/// A number in at most five characters: `5`, `1.50K`, `12.5M`; exact multiples of a unit have no decimals
/// (`zfs_nicenum_format` in `lib/libzutil/zutil_nicenum.c`).
#[must_use]
pub fn format_number(number: u64) -> String {
    nice(number, "")
}

/// As [`format_number`], with `B` for numbers without another unit.
#[must_use]
pub fn format_bytes(bytes: u64) -> String {
    nice(bytes, "B")
}

fn nice(number: u64, unit_of_one: &str) -> String {
    let index = usize::try_from(number.checked_ilog2().unwrap_or(0) / 10).unwrap_or(0);
    let base = 1u64 << (10 * index);
    let unit = if index == 0 { unit_of_one } else { UNITS.get(index).copied().unwrap_or("") };
    if number.is_multiple_of(base) {
        return format!("{}{unit}", number / base);
    }
    #[allow(clippy::cast_precision_loss)]
    let scaled = number as f64 / base as f64;
    for decimals in [2, 1] {
        let text = format!("{scaled:.decimals$}{unit}");
        if text.len() <= 5 {
            return text;
        }
    }
    format!("{scaled:.0}{unit}")
}

/// A number of hundredths as a ratio: 219 is `2.19`.
#[must_use]
pub fn format_ratio(hundredths: u64) -> String {
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

/// A time to the minute as ZFS shows `creation`: `Sat Nov 21  1:30 2026`; the seconds since 1970 with `-p`.
#[must_use]
pub fn format_time(seconds: u64, style: &TextStyle<'_>) -> String {
    match local_time(seconds, style) {
        Some(t) => {
            format!("{} {} {:2} {:2}:{:02} {}", t.weekday, t.month, t.day, t.hour, t.minute, t.year)
        }
        None => seconds.to_string(),
    }
}

/// As [`format_time`] with seconds, as ZFS shows `snapshots_changed`.
#[must_use]
pub fn format_time_seconds(seconds: u64, style: &TextStyle<'_>) -> String {
    match local_time(seconds, style) {
        Some(t) => format!(
            "{} {} {:2} {:2}:{:02}:{:02} {}",
            t.weekday, t.month, t.day, t.hour, t.minute, t.second, t.year
        ),
        None => seconds.to_string(),
    }
}

struct LocalTime {
    weekday: &'static str,
    month: &'static str,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
    year: i64,
}

/// `None` with `-p`, and for years beyond the supported range (where `strftime` fails too).
fn local_time(seconds: u64, style: &TextStyle<'_>) -> Option<LocalTime> {
    let utc = i64::try_from(seconds).ok().filter(|&s| !style.parsable && s < DAY_S * 366 * 10_000)?;
    let local = utc + i64::from((style.utc_offset)(utc));
    let (days, of_day) = (local.div_euclid(DAY_S), local.rem_euclid(DAY_S));
    let weekday = *WEEKDAYS.get(usize::try_from((days + 4).rem_euclid(7)).ok()?)?;
    let (year, month, day) = civil_date(days);
    let month = *MONTHS.get(usize::try_from(month - 1).ok()?)?;
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    Some(LocalTime { weekday, month, day, hour, minute, second, year })
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar. Uses eras of 400 years that begin
/// on the first of March, so that the leap day is the last day of its year.
fn civil_date(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}
