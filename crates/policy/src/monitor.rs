//! Messages and exit codes for Nagios, in the form of sanoid (`monitor_snapshots`, `monitor_health` and
//! `monitor_capacity`).

use crate::config::{Config, Rules};
use crate::duration::spelled;
use crate::plan::Planner;
use crate::status::{JobStatus, PeriodStatus};

/// The result of a Nagios check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Exit code 0.
    Ok,
    /// Exit code 1.
    Warning,
    /// Exit code 2.
    Critical,
    /// Exit code 3.
    Unknown,
}

impl Level {
    /// The exit code.
    pub fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Warning => 1,
            Self::Critical => 2,
            Self::Unknown => 3,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Warning => "WARNING",
            Self::Critical => "CRITICAL",
            Self::Unknown => "UNKNOWN",
        }
    }

    fn heading(self) -> &'static str {
        match self {
            Self::Ok => "",
            Self::Warning => "*** WARNING *** ",
            Self::Critical | Self::Unknown => "*** CRITICAL *** ",
        }
    }
}

/// The output of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// The result.
    pub level: Level,
    /// The message, in one line.
    pub text: String,
}

/// The health of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolHealth {
    /// Its name.
    pub name: String,
    /// `ONLINE`, `DEGRADED`, …, or `None` if the pool does not exist.
    pub health: Option<String>,
    /// Size, as printed by `zpool list`.
    pub size: String,
    /// Free space, as printed by `zpool list`.
    pub free: String,
    /// Percentage in use.
    pub capacity: u64,
}

/// Checks whether the newest snapshots are new enough. `missing` are datasets of sections that do not exist.
pub fn snapshots(planner: &Planner<'_>, missing: &[&str], now: i64) -> Told {
    let mut level = Level::Ok;
    let mut messages = Vec::new();
    for name in missing {
        level = Level::Critical;
        messages.push(format!("CRIT: {name} does not exist"));
    }
    let periods = planner.periods();
    let watched = || planner.rules.iter().filter(|(_, rules)| rules.monitor.enabled);
    for (dataset, rules) in watched() {
        for period in rules.periods.iter().filter(|period| period.count > 0) {
            let found = periods.iter().find(|found| found.dataset == *dataset && found.period == period.name);
            let age = found
                .and_then(|found: &PeriodStatus| found.newest)
                .map(|newest| now.saturating_sub(newest).max(0));
            let (worth, message) = aged(dataset, &period.name, rules, age, period.warn, period.crit);
            level = level.max(worth);
            messages.extend(message);
        }
    }
    messages.sort_by_key(|message| message.to_lowercase());
    if messages.is_empty() {
        let mut names: Vec<&str> = watched().map(|(name, _)| name.as_str()).collect();
        names.sort_by_key(|name| name.to_lowercase());
        messages.push(format!("OK: all monitored datasets ({}) have fresh snapshots", names.join(", ")));
    }
    Told { level, text: messages.join(", ") }
}

fn aged(
    dataset: &str,
    period: &str,
    rules: &Rules,
    age: Option<i64>,
    warn: Option<i64>,
    crit: Option<i64>,
) -> (Level, Option<String>) {
    let critical = if rules.monitor.crits { Level::Critical } else { Level::Ok };
    let warning = if rules.monitor.warns { Level::Warning } else { Level::Ok };
    match (age, crit, warn) {
        (None, Some(_), _) => (critical, Some(format!("CRIT: {dataset} has no {period} snapshots at all!"))),
        (Some(age), Some(crit), _) if age > crit => (
            critical,
            Some(format!(
                "CRIT: {dataset} newest {period} snapshot is {} old (should be < {})",
                spelled(age),
                spelled(crit)
            )),
        ),
        // sanoid warns here only if there is also a limit for the critical state.
        (Some(age), _, Some(warn)) if age > warn => (
            warning,
            Some(format!(
                "WARN: {dataset} newest {period} snapshot is {} old (should be < {})",
                spelled(age),
                spelled(warn)
            )),
        ),
        (None, None, Some(_)) => {
            (warning, Some(format!("WARN: {dataset} has no {period} snapshots at all!")))
        }
        _ => (Level::Ok, None),
    }
}

/// Checks the health of pools.
pub fn health(pools: &[PoolHealth]) -> Told {
    let told = pools.iter().map(|pool| match pool.health.as_deref() {
        None => absent(pool),
        Some(health) => {
            let level = match health {
                "ONLINE" => Level::Ok,
                "DEGRADED" => Level::Warning,
                _ => Level::Critical,
            };
            let (name, size, free, used) = (&pool.name, &pool.size, &pool.free, pool.capacity);
            let text =
                format!("{} ZPOOL {name} : {health} {{Size:{size} Free:{free} Cap:{used}%}} ", level.word());
            (level, text)
        }
    });
    joined(told.collect())
}

/// Checks the free space of pools.
pub fn capacity(config: &Config, pools: &[PoolHealth]) -> Told {
    let limits = config.pools();
    let told = pools.iter().filter_map(|pool| {
        let limit = limits.get(pool.name.as_str())?;
        let is_over = |percent: u8| percent > 0 && pool.capacity >= u64::from(percent);
        if limit.capacity_warn == 0 && limit.capacity_crit == 0 {
            return None;
        }
        if pool.health.is_none() {
            return Some(absent(pool));
        }
        let level = match (is_over(limit.capacity_crit), is_over(limit.capacity_warn)) {
            (true, _) => Level::Critical,
            (false, true) => Level::Warning,
            (false, false) => Level::Ok,
        };
        Some((level, format!("{} ZPOOL {} : {}%", level.word(), pool.name, pool.capacity)))
    });
    joined(told.collect())
}

fn absent(pool: &PoolHealth) -> (Level, String) {
    let text = format!("CRITICAL ZPOOL {{{}}} does not exist and/or is not responding!", pool.name);
    (Level::Critical, text)
}

fn joined(told: Vec<(Level, String)>) -> Told {
    let level = told.iter().map(|(level, _)| *level).max().unwrap_or(Level::Ok);
    let texts: Vec<String> = told.into_iter().map(|(_, text)| text).collect();
    Told { level, text: format!("{}{}", level.heading(), texts.join(", ")) }
}

/// Checks whether copies are up to date.
pub fn replication(config: &Config, jobs: &[JobStatus]) -> Told {
    let mut level = Level::Ok;
    let mut messages = Vec::new();
    for status in jobs {
        let Some(job) = config.jobs.get(&status.job) else { continue };
        let (name, over) = (&status.job, |limit: Option<i64>| {
            limit.filter(|limit| status.lag.is_none_or(|lag| lag > *limit))
        });
        let behind = status
            .lag
            .map_or_else(|| "has never succeeded".to_owned(), |lag| format!("is {} behind", spelled(lag)));
        let (worth, text) = match (over(job.lag_crit), over(job.lag_warn)) {
            (Some(limit), _) => {
                (Level::Critical, format!("CRIT: job {name} {behind} (should be < {})", spelled(limit)))
            }
            (None, Some(limit)) => {
                (Level::Warning, format!("WARN: job {name} {behind} (should be < {})", spelled(limit)))
            }
            (None, None) => match (&status.failure, status.began) {
                (Some(failure), _) => {
                    (Level::Warning, format!("WARN: job {name} failed: {}", first_line(failure)))
                }
                (None, None) => (Level::Warning, format!("WARN: job {name} has not run yet")),
                (None, Some(_)) => continue,
            },
        };
        level = level.max(worth);
        messages.push(text);
    }
    if messages.is_empty() {
        let names: Vec<&str> = jobs.iter().map(|job| job.job.as_str()).collect();
        messages.push(format!("OK: all replication jobs ({}) are up to date", names.join(", ")));
    }
    Told { level, text: messages.join(", ") }
}

/// The first line of a text. Nagios accepts only one.
fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

#[cfg(test)]
mod tests;
