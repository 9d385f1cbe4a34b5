//! What holds for one dataset, with nothing left open.

use jiff::civil::{Time, Weekday};

use super::settings::Settings;
use crate::duration::Duration;
use crate::retention::Retention;
use crate::schedule::Schedule;

/// What holds for a dataset.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Snapshots are taken.
    pub autosnap: bool,
    /// Snapshots are pruned.
    pub autoprune: bool,
    /// Snapshots are taken only when they are of this dataset above, and with its names.
    pub follows: Option<String>,
    /// What names of snapshots begin with.
    pub prefix: String,
    /// All schedules are late by up to so many seconds, always the same.
    pub jitter: i64,
    /// Periods that something is said about, the longest first.
    pub periods: Vec<Period>,
    /// Which snapshots stay.
    pub retention: Retention,
    /// Percent of the pool in use, up to which nothing is pruned; 0 for always.
    pub prune_defer: u8,
    /// Commands before and after.
    pub hooks: Hooks,
    /// What is told of it to Nagios.
    pub monitor: Monitor,
}

/// A period: when its snapshots are taken, and how many there should be.
#[derive(Debug, Clone, PartialEq)]
pub struct Period {
    /// What names of its snapshots end with.
    pub name: String,
    /// When.
    pub schedule: Schedule,
    /// How many.
    pub count: usize,
    /// Up to what age they stay, however many: `count` lengths of the period.
    pub age: Option<i64>,
    /// Seconds since the newest, from which Nagios is warned.
    pub warn: Option<i64>,
    /// Seconds since the newest, from which it is critical.
    pub crit: Option<i64>,
}

/// Commands before and after, for a shell.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hooks {
    /// Before snapshots are taken.
    pub pre_snapshot: Option<String>,
    /// After.
    pub post_snapshot: Option<String>,
    /// Before a snapshot is pruned: if it fails, the snapshot stays.
    pub pre_pruning: Option<String>,
    /// After.
    pub pruning: Option<String>,
    /// Seconds after which a command is ended; 0 for never.
    pub timeout: u64,
    /// No snapshot is taken if the command before failed.
    pub no_inconsistent_snapshot: bool,
    /// The command after is run even then.
    pub force_post_snapshot: bool,
}

/// What is told to Nagios.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Monitor {
    /// Anything.
    pub enabled: bool,
    /// Warnings count as warnings.
    pub warns: bool,
    /// What is critical counts as that.
    pub crits: bool,
    /// Percent in use of a pool from which Nagios is warned; 0 for never.
    pub capacity_warn: u8,
    /// Percent from which it is critical; 0 for never.
    pub capacity_crit: u8,
}

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
/// Lengths of periods, as sanoid counts them.
const MONTH: i64 = 31 * DAY;
const YEAR: i64 = 31_557_600;

/// Values that hold if nothing is said (`sanoid.defaults.conf`).
const FREQUENT_PERIOD: i8 = 15;
const SCRIPT_TIMEOUT: i64 = 5;
const CAPACITY_WARN: i64 = 80;
const CAPACITY_CRIT: i64 = 95;
/// The same for ages of the newest snapshot, in seconds.
const HOURLY_AGES: (i64, i64) = (90 * MINUTE, 360 * MINUTE);
const DAILY_AGES: (i64, i64) = (28 * HOUR, 32 * HOUR);
const MONTHLY_AGES: (i64, i64) = (32 * DAY, 40 * DAY);
const NO_AGES: (i64, i64) = (0, 0);

impl Rules {
    /// Of these settings, with nothing below them.
    pub(crate) fn new(settings: &Settings, follows: Option<String>) -> Self {
        let prefix = settings.prefix.as_ref().map_or("autosnap", |prefix| prefix.0.as_str()).to_owned();
        let periods = periods(settings);
        let percent = |value: Option<super::settings::Percent>, default: i64| {
            u8::try_from(value.map_or(default, |value| value.get())).unwrap_or(0)
        };
        Self {
            autosnap: settings.autosnap.unwrap_or(true) && !settings.process_children_only.unwrap_or(false),
            autoprune: settings.autoprune.unwrap_or(true) && !settings.process_children_only.unwrap_or(false),
            follows,
            retention: Retention {
                prefix: prefix.clone(),
                counts: periods
                    .iter()
                    .map(|period| (period.name.clone(), (period.count, period.age)))
                    .collect(),
                grid: settings.grid.as_ref().map(|grid| grid.0.clone()),
                last: settings.keep_last.map(|count| count.count()),
                keep_not_replicated: settings.keep_not_replicated.unwrap_or(false),
                protect: settings.protect.iter().flatten().map(|pattern| pattern.0.clone()).collect(),
            },
            prefix,
            jitter: settings.jitter.map_or(0, |jitter| jitter.seconds(1)),
            periods,
            prune_defer: percent(settings.prune_defer, 0),
            hooks: hooks(settings),
            monitor: Monitor {
                enabled: settings.monitor.unwrap_or(true) && !settings.process_children_only.unwrap_or(false),
                warns: !settings.monitor_dont_warn.unwrap_or(false),
                crits: !settings.monitor_dont_crit.unwrap_or(false),
                capacity_warn: percent(settings.capacity_warn, CAPACITY_WARN),
                capacity_crit: percent(settings.capacity_crit, CAPACITY_CRIT),
            },
        }
    }
}

fn hooks(settings: &Settings) -> Hooks {
    let command = |text: &Option<String>| text.clone().filter(|text| !text.trim().is_empty());
    let timeout = settings.script_timeout.map_or(SCRIPT_TIMEOUT, |timeout| timeout.seconds(1));
    Hooks {
        pre_snapshot: command(&settings.pre_snapshot_script),
        post_snapshot: command(&settings.post_snapshot_script),
        pre_pruning: command(&settings.pre_pruning_script),
        pruning: command(&settings.pruning_script),
        timeout: u64::try_from(timeout).unwrap_or(0),
        no_inconsistent_snapshot: settings.no_inconsistent_snapshot.unwrap_or(false),
        force_post_snapshot: settings.force_post_snapshot_script.unwrap_or(false),
    }
}

/// A period of sanoid: what is said about it, and what follows from its name.
struct Known {
    name: &'static str,
    count: Option<super::settings::Count>,
    schedule: Schedule,
    /// Seconds.
    length: i64,
    ages: (Option<Duration>, Option<Duration>),
    default_ages: (i64, i64),
    /// What an age without a unit counts in: one period down.
    age_unit: i64,
}

fn periods(settings: &Settings) -> Vec<Period> {
    let s = settings;
    let mut periods: Vec<Period> = known(s).into_iter().filter_map(Known::period).collect();
    for (name, rule) in s.cron.iter().flatten() {
        let age = |age: Option<Duration>| age.map(|age| age.seconds(MINUTE)).filter(|age| *age > 0);
        periods.push(Period {
            name: name.clone(),
            schedule: rule.at.0.clone(),
            count: rule.keep.count(),
            age: None,
            warn: age(rule.warn),
            crit: age(rule.crit),
        });
    }
    periods
}

impl Known {
    /// `None` if nothing is said about it.
    fn period(self) -> Option<Period> {
        let count = self.count?.count();
        let age = |said: Option<Duration>, default: i64| {
            Some(said.map_or(default, |age| age.seconds(self.age_unit))).filter(|age| *age > 0)
        };
        Some(Period {
            name: self.name.to_owned(),
            count,
            age: i64::try_from(count).ok().and_then(|count| count.checked_mul(self.length)),
            warn: age(self.ages.0, self.default_ages.0),
            crit: age(self.ages.1, self.default_ages.1),
            schedule: self.schedule,
        })
    }
}

fn known(s: &Settings) -> [Known; 6] {
    let frequent = s.frequent_period.map_or(FREQUENT_PERIOD, |minutes| minutes.small());
    let month = s.yearly_mon.map_or(1, |month| month.small());
    [
        Known {
            name: "yearly",
            count: s.yearly,
            schedule: Schedule::Yearly(
                month,
                s.yearly_mday.map_or(1, |day| day.small()),
                time(s.yearly_hour, s.yearly_min, (0, 0)),
            ),
            length: YEAR,
            ages: (s.yearly_warn, s.yearly_crit),
            default_ages: NO_AGES,
            age_unit: MONTH,
        },
        Known {
            name: "monthly",
            count: s.monthly,
            schedule: Schedule::Monthly(
                s.monthly_mday.map_or(1, |day| day.small()),
                time(s.monthly_hour, s.monthly_min, (0, 0)),
            ),
            length: MONTH,
            ages: (s.monthly_warn, s.monthly_crit),
            default_ages: MONTHLY_AGES,
            age_unit: 7 * DAY,
        },
        Known {
            name: "weekly",
            count: s.weekly,
            schedule: Schedule::Weekly(
                weekday(s.weekly_wday.map_or(1, |day| day.small())),
                time(s.weekly_hour, s.weekly_min, (23, 30)),
            ),
            length: 7 * DAY,
            ages: (s.weekly_warn, s.weekly_crit),
            default_ages: NO_AGES,
            age_unit: DAY,
        },
        Known {
            name: "daily",
            count: s.daily,
            schedule: Schedule::Daily(time(s.daily_hour, s.daily_min, (23, 59))),
            length: DAY,
            ages: (s.daily_warn, s.daily_crit),
            default_ages: DAILY_AGES,
            age_unit: HOUR,
        },
        Known {
            name: "hourly",
            count: s.hourly,
            schedule: Schedule::Hourly(vec![s.hourly_min.map_or(0, |minute| minute.small())]),
            length: HOUR,
            ages: (s.hourly_warn, s.hourly_crit),
            default_ages: HOURLY_AGES,
            age_unit: MINUTE,
        },
        Known {
            name: "frequently",
            count: s.frequently,
            schedule: Schedule::Hourly((0..60).step_by(usize::try_from(frequent).unwrap_or(1)).collect()),
            length: i64::from(frequent) * MINUTE,
            ages: (s.frequently_warn, s.frequently_crit),
            default_ages: NO_AGES,
            age_unit: 1,
        },
    ]
}

fn time(hour: Option<super::Ranged<0, 23>>, minute: Option<super::Ranged<0, 59>>, default: (i8, i8)) -> Time {
    let hour = hour.map_or(default.0, |hour| hour.small());
    let minute = minute.map_or(default.1, |minute| minute.small());
    Time::new(hour, minute, 0, 0).unwrap_or(Time::midnight())
}

/// 0 and 7 are Sunday.
fn weekday(number: i8) -> Weekday {
    Weekday::from_sunday_zero_offset(number % 7).unwrap_or(Weekday::Monday)
}
