//! Replication jobs: the arguments of `snowmelt sync` and the time to run it.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::rules::Rules;
use super::settings::Settings;
use crate::duration::Duration;
use crate::schedule::Schedule;

/// A job that keeps a copy up to date.
#[derive(Debug, Clone)]
pub struct Job {
    /// The source in the form that `sync` accepts: a dataset, `host:pool/dataset`, …
    pub source: String,
    /// The target in the form that `sync` accepts.
    pub target: String,
    /// When the job is due.
    pub when: When,
    /// Maximum delay in seconds. The actual delay of a machine is constant.
    pub jitter: i64,
    /// Seconds after which a failed job runs again, even if it is not due.
    pub retry: i64,
    /// Lag in seconds from which Nagios gets a warning.
    pub lag_warn: Option<i64>,
    /// Lag in seconds from which Nagios gets a critical state.
    pub lag_crit: Option<i64>,
    /// How the source is pruned, if no section applies to it.
    pub prune_source: Option<Rules>,
    /// How the target is pruned, if no section applies to it.
    pub prune_target: Option<Rules>,
    /// The options for `sync`.
    pub sync: SyncSettings,
    /// Hook that runs before the job. If it fails, the job fails too.
    pub pre_script: Option<String>,
    /// Hook that runs after the job.
    pub post_script: Option<String>,
    /// Seconds after which a hook is ended, or 0 for no limit.
    pub script_timeout: u64,
}

/// When a job is due.
#[derive(Debug, Clone, PartialEq)]
pub enum When {
    /// At the times of a schedule.
    At(Schedule),
    /// When the source has a newer snapshot than at the last start of the job.
    AfterSnapshot,
}

/// The keys of a job.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JobTable {
    pub(super) source: String,
    pub(super) target: String,
    pub(super) when: WhenText,
    #[serde(default)]
    jitter: Option<Duration>,
    #[serde(default)]
    retry: Option<Duration>,
    #[serde(default)]
    lag_warn: Option<Duration>,
    #[serde(default)]
    lag_crit: Option<Duration>,
    #[serde(default)]
    pub(super) prune_source: Option<Settings>,
    #[serde(default)]
    pub(super) prune_target: Option<Settings>,
    #[serde(default)]
    pre_replication_script: Option<String>,
    #[serde(default)]
    post_replication_script: Option<String>,
    #[serde(default)]
    script_timeout: Option<Duration>,
    #[serde(default)]
    recursive: bool,
    #[serde(default)]
    exclude: Vec<String>,
    #[serde(default)]
    force: bool,
    #[serde(default)]
    newest_only: bool,
    #[serde(default)]
    snapshot: bool,
    #[serde(default = "yes")]
    hold: bool,
    #[serde(default)]
    identifier: Option<String>,
    #[serde(default)]
    properties: bool,
    #[serde(default)]
    raw: bool,
    #[serde(default)]
    set: BTreeMap<String, String>,
    #[serde(default)]
    without: Vec<String>,
    #[serde(default)]
    bwlimit: Option<String>,
    #[serde(default)]
    jobs: Option<super::Ranged<1, 32>>,
    #[serde(default)]
    retries: Option<super::Ranged<0, 1000>>,
    #[serde(default)]
    rsh: Option<String>,
    #[serde(default)]
    remote_command: Option<String>,
    #[serde(default)]
    delete: bool,
    #[serde(default)]
    filter: Vec<String>,
    #[serde(default)]
    checksum: bool,
    #[serde(default)]
    password_file: Option<String>,
    #[serde(default)]
    timeout: Option<super::Ranged<0, 86_400>>,
}

fn yes() -> bool {
    true
}

/// The options for `sync`. They have the names of its flags.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[allow(missing_docs)] // docs/sync.md and `sync --help` describe them
pub struct SyncSettings {
    pub recursive: bool,
    pub exclude: Vec<String>,
    pub force: bool,
    pub newest_only: bool,
    pub snapshot: bool,
    pub hold: bool,
    pub identifier: Option<String>,
    pub properties: bool,
    pub raw: bool,
    pub set: BTreeMap<String, String>,
    pub without: Vec<String>,
    pub bwlimit: Option<String>,
    pub jobs: Option<i64>,
    pub retries: Option<i64>,
    pub rsh: Option<String>,
    pub remote_command: Option<String>,
    pub delete: bool,
    pub filter: Vec<String>,
    pub checksum: bool,
    pub password_file: Option<String>,
    pub timeout: Option<i64>,
}

/// `"hourly"`, `"daily"`, …, `"after_snapshot"`, or a cron expression.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct WhenText(When);

impl TryFrom<String> for WhenText {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let cron = match text.as_str() {
            "after_snapshot" => return Ok(Self(When::AfterSnapshot)),
            "hourly" => "0 * * * *",
            "daily" => "0 0 * * *",
            "weekly" => "0 0 * * mon",
            "monthly" => "0 0 1 * *",
            "yearly" => "0 0 1 1 *",
            text if text.contains(' ') => text,
            text => {
                return Err(format!(
                    "'{text}' is not one of \"after_snapshot\", \"hourly\", \"daily\", \"weekly\", \"monthly\", \
                     \"yearly\" and a cron expression"
                ));
            }
        };
        Schedule::cron(cron).map(|schedule| Self(When::At(schedule)))
    }
}

/// Default number of seconds until a failed job runs again.
const RETRY: i64 = 600;
/// Default number of seconds after which a hook is ended.
const SCRIPT_TIMEOUT: i64 = 5;

impl JobTable {
    /// Creates the job. The rules for pruning already contain their templates.
    pub(super) fn job(self, prune_source: Option<Rules>, prune_target: Option<Rules>) -> Job {
        let seconds =
            |duration: Option<Duration>, default: i64| duration.map_or(default, |said| said.seconds(1));
        let limit =
            |duration: Option<Duration>| duration.map(|said| said.seconds(1)).filter(|limit| *limit > 0);
        Job {
            source: self.source,
            target: self.target,
            when: self.when.0,
            jitter: seconds(self.jitter, 0),
            retry: seconds(self.retry, RETRY).max(1),
            lag_warn: limit(self.lag_warn),
            lag_crit: limit(self.lag_crit),
            prune_source,
            prune_target,
            pre_script: self.pre_replication_script,
            post_script: self.post_replication_script,
            script_timeout: u64::try_from(seconds(self.script_timeout, SCRIPT_TIMEOUT)).unwrap_or(0),
            sync: SyncSettings {
                recursive: self.recursive,
                exclude: self.exclude,
                force: self.force,
                newest_only: self.newest_only,
                snapshot: self.snapshot,
                hold: self.hold,
                identifier: self.identifier,
                properties: self.properties,
                raw: self.raw,
                set: self.set,
                without: self.without,
                bwlimit: self.bwlimit,
                jobs: self.jobs.map(|jobs| jobs.get()),
                retries: self.retries.map(|retries| retries.get()),
                rsh: self.rsh,
                remote_command: self.remote_command,
                delete: self.delete,
                filter: self.filter,
                checksum: self.checksum,
                password_file: self.password_file,
                timeout: self.timeout.map(|seconds| seconds.get()),
            },
        }
    }
}
