//! The settings of a dataset, all of which are optional. Settings of defaults, templates and sections are combined.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::values::{CronText, GridText, OneOrMany, Pattern, Prefix, Ranged};
use crate::duration::Duration;

/// Number of snapshots of one period.
pub(crate) type Count = Ranged<0, 1_000_000>;
/// A percentage.
pub(crate) type Percent = Ranged<0, 100>;

/// Which datasets below a section's dataset the section applies to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Recursion {
    /// None.
    #[default]
    None,
    /// All. Each may have its own section with other settings.
    Each,
    /// All, and their snapshots are always taken together with those of the section's dataset (`recursive = zfs` of
    /// sanoid).
    Together,
}

/// The settings of a dataset. The fields have the names of the keys in the configuration.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs)] // docs/policy.md describes them
pub struct Settings {
    // Only in sections, not in templates.
    pub(crate) path: Option<String>,
    pub(crate) recursive: Option<RecursionText>,
    pub(crate) skip_children: Option<bool>,
    // The templates that these settings are based on.
    pub(crate) use_template: Option<OneOrMany>,

    pub(crate) process_children_only: Option<bool>,
    pub(crate) autosnap: Option<bool>,
    pub(crate) autoprune: Option<bool>,
    pub(crate) prefix: Option<Prefix>,
    pub(crate) jitter: Option<Duration>,

    pub(crate) frequently: Option<Count>,
    pub(crate) hourly: Option<Count>,
    pub(crate) daily: Option<Count>,
    pub(crate) weekly: Option<Count>,
    pub(crate) monthly: Option<Count>,
    pub(crate) yearly: Option<Count>,
    pub(crate) cron: Option<BTreeMap<String, CronSettings>>,

    pub(crate) frequent_period: Option<Ranged<1, 60>>,
    pub(crate) hourly_min: Option<Ranged<0, 59>>,
    pub(crate) daily_hour: Option<Ranged<0, 23>>,
    pub(crate) daily_min: Option<Ranged<0, 59>>,
    pub(crate) weekly_wday: Option<Ranged<0, 7>>,
    pub(crate) weekly_hour: Option<Ranged<0, 23>>,
    pub(crate) weekly_min: Option<Ranged<0, 59>>,
    pub(crate) monthly_mday: Option<Ranged<1, 31>>,
    pub(crate) monthly_hour: Option<Ranged<0, 23>>,
    pub(crate) monthly_min: Option<Ranged<0, 59>>,
    pub(crate) yearly_mon: Option<Ranged<1, 12>>,
    pub(crate) yearly_mday: Option<Ranged<1, 31>>,
    pub(crate) yearly_hour: Option<Ranged<0, 23>>,
    pub(crate) yearly_min: Option<Ranged<0, 59>>,

    pub(crate) grid: Option<GridText>,
    pub(crate) keep_last: Option<Count>,
    pub(crate) keep_not_replicated: Option<bool>,
    pub(crate) protect: Option<Vec<Pattern>>,
    pub(crate) prune_defer: Option<Percent>,

    pub(crate) pre_snapshot_script: Option<String>,
    pub(crate) post_snapshot_script: Option<String>,
    pub(crate) pre_pruning_script: Option<String>,
    pub(crate) pruning_script: Option<String>,
    pub(crate) script_timeout: Option<Duration>,
    pub(crate) no_inconsistent_snapshot: Option<bool>,
    pub(crate) force_post_snapshot_script: Option<bool>,

    pub(crate) monitor: Option<bool>,
    pub(crate) monitor_dont_warn: Option<bool>,
    pub(crate) monitor_dont_crit: Option<bool>,
    pub(crate) frequently_warn: Option<Duration>,
    pub(crate) frequently_crit: Option<Duration>,
    pub(crate) hourly_warn: Option<Duration>,
    pub(crate) hourly_crit: Option<Duration>,
    pub(crate) daily_warn: Option<Duration>,
    pub(crate) daily_crit: Option<Duration>,
    pub(crate) weekly_warn: Option<Duration>,
    pub(crate) weekly_crit: Option<Duration>,
    pub(crate) monthly_warn: Option<Duration>,
    pub(crate) monthly_crit: Option<Duration>,
    pub(crate) yearly_warn: Option<Duration>,
    pub(crate) yearly_crit: Option<Duration>,
    pub(crate) capacity_warn: Option<Percent>,
    pub(crate) capacity_crit: Option<Percent>,
}

/// A schedule with its own cron expression. Its snapshots are named after it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CronSettings {
    pub(crate) at: CronText,
    pub(crate) keep: Count,
    #[serde(default)]
    pub(crate) warn: Option<Duration>,
    #[serde(default)]
    pub(crate) crit: Option<Duration>,
}

/// `true`, `false`, or a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "RecursionWritten")]
pub struct RecursionText(pub(crate) Recursion);

#[derive(Deserialize)]
#[serde(untagged, expecting = "true, false or \"atomic\"")]
enum RecursionWritten {
    Toggle(bool),
    Word(String),
}

impl TryFrom<RecursionWritten> for RecursionText {
    type Error = String;

    fn try_from(written: RecursionWritten) -> Result<Self, String> {
        match written {
            RecursionWritten::Toggle(false) => Ok(Self(Recursion::None)),
            RecursionWritten::Toggle(true) => Ok(Self(Recursion::Each)),
            RecursionWritten::Word(word) if word == "atomic" || word.eq_ignore_ascii_case("zfs") => {
                Ok(Self(Recursion::Together))
            }
            RecursionWritten::Word(word) => Err(format!("'{word}' is not one of true, false and \"atomic\"")),
        }
    }
}

macro_rules! lay {
    ($under:ident, $over:ident, $($field:ident)*) => {
        $(if $over.$field.is_some() {
            $under.$field.clone_from(&$over.$field);
        })*
    };
}

impl Settings {
    /// Overrides these settings by those that are set in `over`. Settings that only a section can have are not changed.
    pub(crate) fn lay(&mut self, over: &Self) {
        let under = self;
        lay!(under, over, process_children_only autosnap autoprune prefix jitter);
        lay!(under, over, frequently hourly daily weekly monthly yearly);
        lay!(under, over, frequent_period hourly_min daily_hour daily_min);
        lay!(under, over, weekly_wday weekly_hour weekly_min monthly_mday monthly_hour monthly_min);
        lay!(under, over, yearly_mon yearly_mday yearly_hour yearly_min);
        lay!(under, over, grid keep_last keep_not_replicated protect prune_defer);
        lay!(under, over, pre_snapshot_script post_snapshot_script pre_pruning_script pruning_script script_timeout);
        lay!(under, over, no_inconsistent_snapshot force_post_snapshot_script);
        lay!(under, over, monitor monitor_dont_warn monitor_dont_crit capacity_warn capacity_crit);
        lay!(under, over, frequently_warn frequently_crit hourly_warn hourly_crit daily_warn daily_crit);
        lay!(under, over, weekly_warn weekly_crit monthly_warn monthly_crit yearly_warn yearly_crit);
        if let Some(cron) = &over.cron {
            under
                .cron
                .get_or_insert_default()
                .extend(cron.iter().map(|(name, rule)| (name.clone(), rule.clone())));
        }
    }

    /// A key that is allowed only in sections, if one is set.
    pub(crate) fn section_key(&self) -> Option<&'static str> {
        [
            ("path", self.path.is_some()),
            ("recursive", self.recursive.is_some()),
            ("skip_children", self.skip_children.is_some()),
        ]
        .into_iter()
        .find_map(|(key, is_there)| is_there.then_some(key))
    }

    /// Which datasets below are included.
    pub(crate) fn recursion(&self) -> Recursion {
        self.recursive.map(|RecursionText(recursion)| recursion).unwrap_or_default()
    }
}
