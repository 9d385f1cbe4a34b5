//! When snapshots are taken, pruned and replicated.
//!
//! Everything here is pure: from a configuration, what is there, and the time follows what has to be done, always the
//! same. Whoever calls carries it out.
//!
//! - [`config`]: what is wanted, from TOML or from a `sanoid.conf`
//! - [`schedule`]: moments at which something is due, in a time zone with its gaps and folds
//! - [`retention`]: which snapshots of a dataset stay, and why
//! - [`plan`]: what has to be done now, with a reason for each action
//! - [`monitor`]: texts and exit codes for Nagios
//! - [`state`]: what is there

pub mod config;
pub mod duration;
pub mod monitor;
pub mod name;
pub mod plan;
pub mod retention;
pub mod schedule;
pub mod state;
pub mod status;

pub use config::{Config, ConfigError};
pub use state::State;
