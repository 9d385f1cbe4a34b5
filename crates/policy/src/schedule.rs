//! Schedules: the times at which something is due.
//!
//! A schedule is in local time of a time zone. Its times are returned as instants. If the clock is set forward, a time
//! in the gap is due at the end of the gap. Hourly times in the gap are skipped, because that hour did not exist. If
//! the clock is set back, a daily or rarer time is due when the clock shows it first. Hourly times are due both times.

use croner::Cron;
use croner::parser::CronParser;
use jiff::civil::{Date, DateTime, Time, Weekday};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Timestamp, ToSpan};

/// A schedule.
#[derive(Debug, Clone, PartialEq)]
pub enum Schedule {
    /// Every hour, at these minutes.
    Hourly(Vec<i8>),
    /// Every day.
    Daily(Time),
    /// Every week, on this day.
    Weekly(Weekday, Time),
    /// Every month on this day, or on the last day of shorter months.
    Monthly(i8, Time),
    /// Every year in this month, on this day or the last day of the month.
    Yearly(i8, i8, Time),
    /// At the times of a cron expression.
    Cron(Box<Cron>),
}

/// The fields of a cron expression and their ranges.
const CRON_FIELDS: [(&str, &str); 5] = [
    ("minute", "0 to 59"),
    ("hour", "0 to 23"),
    ("day", "1 to 31, or L for the last"),
    ("month", "1 to 12, or JAN to DEC"),
    ("weekday", "0 to 7, or SUN to SAT"),
];

/// The error message for a cron expression: the first field that is wrong by itself, otherwise the parser's error.
fn wrong_cron(text: &str, error: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    for (at, ((name, range), word)) in CRON_FIELDS.iter().zip(&words).enumerate() {
        let mut alone = ["*"; CRON_FIELDS.len()];
        alone[at] = word;
        if words.len() == CRON_FIELDS.len() && CronParser::new().parse(&alone.join(" ")).is_err() {
            return format!("'{text}': '{word}' is not a valid {name}: {range}, with * , - and /");
        }
    }
    format!("'{text}': {error}")
}

/// How many hours before and after a time are searched. This is more than any change of summer time.
const HOURS_AROUND: i64 = 4;

impl Schedule {
    /// Parses a cron expression of five fields.
    ///
    /// # Errors
    /// If the expression is invalid or never matches.
    pub fn cron(text: &str) -> Result<Self, String> {
        let words = text.split_whitespace().count();
        if words != 5 && !text.trim().starts_with('@') {
            return Err(format!(
                "'{text}' has {words} fields instead of 5 (minute, hour, day, month, weekday)"
            ));
        }
        let cron = CronParser::new().parse(text).map_err(|error| wrong_cron(text, &error.to_string()))?;
        // The date does not matter: an expression that does not match in the years after it never matches.
        let begin = Date::constant(2024, 1, 1).to_zoned(TimeZone::UTC).map_err(|error| error.to_string())?;
        match cron.find_next_occurrence(&begin, true) {
            Ok(_) => Ok(Self::Cron(Box::new(cron))),
            Err(_) => Err(format!("'{text}' never occurs")),
        }
    }

    /// The newest time that is not after `now`.
    pub fn last(&self, now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        match self {
            Self::Cron(cron) => {
                let found = cron.find_previous_occurrence(&now.to_zoned(zone.clone()), true).ok()?;
                Some(found.timestamp())
            }
            _ => self.around(now, zone).into_iter().filter(|moment| *moment <= now).max(),
        }
    }

    /// The first time after `now`.
    pub fn next(&self, now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        match self {
            Self::Cron(cron) => {
                let found = cron.find_next_occurrence(&now.to_zoned(zone.clone()), false).ok()?;
                Some(found.timestamp())
            }
            _ => self.around(now, zone).into_iter().filter(|moment| *moment > now).min(),
        }
    }

    /// Like [`Schedule::last`], with every time `delay` seconds later.
    pub fn last_delayed(&self, now: Timestamp, zone: &TimeZone, delay: i64) -> Option<Timestamp> {
        let delay = SignedDuration::from_secs(delay);
        self.last(now.checked_sub(delay).ok()?, zone)?.checked_add(delay).ok()
    }

    /// Like [`Schedule::next`], with every time `delay` seconds later.
    pub fn next_delayed(&self, now: Timestamp, zone: &TimeZone, delay: i64) -> Option<Timestamp> {
        let delay = SignedDuration::from_secs(delay);
        self.next(now.checked_sub(delay).ok()?, zone)?.checked_add(delay).ok()
    }

    /// The times near `now`, at least one before and one after it.
    fn around(&self, now: Timestamp, zone: &TimeZone) -> Vec<Timestamp> {
        let local = now.to_zoned(zone.clone()).datetime();
        match self {
            Self::Hourly(minutes) => hours(local, minutes, zone),
            Self::Daily(time) => {
                let days = (-3..=3).filter_map(|days| local.date().checked_add(days.days()).ok());
                days.filter_map(|date| instant(date.to_datetime(*time), zone)).collect()
            }
            Self::Weekly(weekday, time) => {
                let days = (-15..=15).filter_map(|days| local.date().checked_add(days.days()).ok());
                days.filter(|date| date.weekday() == *weekday)
                    .filter_map(|date| instant(date.to_datetime(*time), zone))
                    .collect()
            }
            Self::Monthly(day, time) => {
                let months = (-2..=2)
                    .filter_map(|months| local.date().first_of_month().checked_add(months.months()).ok());
                months.filter_map(|month| instant(clamped(month, *day)?.to_datetime(*time), zone)).collect()
            }
            Self::Yearly(month, day, time) => {
                let years = (-2..=2).filter_map(|years| local.year().checked_add(years));
                years
                    .filter_map(|year| clamped(Date::new(year, *month, 1).ok()?, *day))
                    .filter_map(|date| instant(date.to_datetime(*time), zone))
                    .collect()
            }
            Self::Cron(_) => Vec::new(),
        }
    }
}

/// The given day of a month, or its last day.
fn clamped(month: Date, day: i8) -> Option<Date> {
    Date::new(month.year(), month.month(), day.min(month.days_in_month())).ok()
}

/// The first time at which the clock shows `shown`. If it is in a gap, the time is later by the length of the gap.
fn instant(shown: DateTime, zone: &TimeZone) -> Option<Timestamp> {
    zone.to_ambiguous_zoned(shown).compatible().ok().map(|zoned| zoned.timestamp())
}

/// All times at which the clock shows one of these minutes, in the hours around `local`.
fn hours(local: DateTime, minutes: &[i8], zone: &TimeZone) -> Vec<Timestamp> {
    let mut found = Vec::new();
    let Ok(hour) = local.date().at(local.hour(), 0, 0, 0).checked_sub(HOURS_AROUND.hours()) else {
        return found;
    };
    for ahead in 0..=2 * HOURS_AROUND {
        let Ok(hour) = hour.checked_add(ahead.hours()) else { continue };
        for minute in minutes {
            let Ok(shown) = hour.checked_add(i64::from(*minute).minutes()) else { continue };
            let both = match zone.to_ambiguous_timestamp(shown).offset() {
                AmbiguousOffset::Unambiguous { offset } => [Some(offset), None],
                // The hour did not exist, or the gap is only a part of it.
                AmbiguousOffset::Gap { before, after } => {
                    let is_part = after.seconds() - before.seconds() < 3600;
                    [is_part.then_some(before), None]
                }
                AmbiguousOffset::Fold { before, after } => [Some(before), Some(after)],
            };
            found.extend(both.into_iter().flatten().filter_map(|offset| offset.to_timestamp(shown).ok()));
        }
    }
    found
}

#[cfg(test)]
mod tests;
