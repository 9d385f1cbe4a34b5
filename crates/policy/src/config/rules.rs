//! The complete rules of one dataset, with all defaults filled in.

use jiff::civil::{Time, Weekday};

use super::settings::Settings;
use crate::duration::Duration;
use crate::retention::Retention;
use crate::schedule::Schedule;

/// The rules of a dataset.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Whether snapshots are taken.
    pub autosnap: bool,
    /// Whether snapshots are pruned.
    pub autoprune: bool,
    /// The dataset above this one whose snapshots include this dataset. Then this dataset has no schedule of its own.
    pub follows: Option<String>,
    /// Prefix of the names of snapshots.
    pub prefix: String,
    /// Maximum delay of all schedules in seconds. The actual delay of a machine is constant.
    pub jitter: i64,
    /// The configured periods, the longest first.
    pub periods: Vec<Period>,
    /// The rules for which snapshots are kept.
    pub retention: Retention,
    /// Percentage of the pool in use up to which nothing is pruned. With 0, pruning is never deferred.
    pub prune_defer: u8,
    /// The hooks.
    pub hooks: Hooks,
    /// What Nagios monitors.
    pub monitor: Monitor,
}

/// A period: when its snapshots are taken, and how many are kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Period {
    /// Suffix of the names of its snapshots.
    pub name: String,
    /// When its snapshots are taken.
    pub schedule: Schedule,
    /// How many snapshots are kept.
    pub count: usize,
    /// Age in seconds up to which all snapshots are kept: `count` lengths of the period.
    pub age: Option<i64>,
    /// Age in seconds of the newest snapshot from which Nagios gets a warning.
    pub warn: Option<i64>,
    /// Age in seconds of the newest snapshot from which Nagios gets a critical state.
    pub crit: Option<i64>,
}

/// Shell commands that run before and after steps.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hooks {
    /// Runs before snapshots are taken.
    pub pre_snapshot: Option<String>,
    /// Runs after snapshots are taken.
    pub post_snapshot: Option<String>,
    /// Runs before a snapshot is pruned. If it fails, the snapshot is kept.
    pub pre_pruning: Option<String>,
    /// Runs after a snapshot is pruned.
    pub pruning: Option<String>,
    /// Seconds after which a command is ended, or 0 for no limit.
    pub timeout: u64,
    /// Whether no snapshot is taken if `pre_snapshot` failed.
    pub no_inconsistent_snapshot: bool,
    /// Whether `post_snapshot` runs even then.
    pub force_post_snapshot: bool,
}

/// What Nagios monitors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Monitor {
    /// Whether the dataset is monitored at all.
    pub enabled: bool,
    /// Whether warnings are reported as warnings.
    pub warns: bool,
    /// Whether critical states are reported as critical.
    pub crits: bool,
    /// Percentage of the pool in use from which Nagios gets a warning, or 0 for never.
    pub capacity_warn: u8,
    /// Percentage of the pool in use from which Nagios gets a critical state, or 0 for never.
    pub capacity_crit: u8,
}

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
/// Lengths of periods, as in sanoid.
const MONTH: i64 = 31 * DAY;
const YEAR: i64 = 31_557_600;

/// Default values (`sanoid.defaults.conf`).
const FREQUENT_PERIOD: i8 = 15;
const SCRIPT_TIMEOUT: i64 = 5;
const CAPACITY_WARN: i64 = 80;
const CAPACITY_CRIT: i64 = 95;
/// Default ages of the newest snapshot for warnings and critical states, in seconds.
const HOURLY_AGES: (i64, i64) = (90 * MINUTE, 360 * MINUTE);
const DAILY_AGES: (i64, i64) = (28 * HOUR, 32 * HOUR);
const MONTHLY_AGES: (i64, i64) = (32 * DAY, 40 * DAY);
const NO_AGES: (i64, i64) = (0, 0);

impl Rules {
    /// The rules for these settings. Missing settings get their default values.
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

/// A period of sanoid: its settings, and the constants that follow from its name.
struct Known {
    name: &'static str,
    count: Option<super::settings::Count>,
    schedule: Schedule,
    /// Length of the period in seconds.
    length: i64,
    ages: (Option<Duration>, Option<Duration>),
    default_ages: (i64, i64),
    /// Unit, in seconds, of an age without a unit: the next shorter period.
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
    /// `None` if the period is not configured.
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
