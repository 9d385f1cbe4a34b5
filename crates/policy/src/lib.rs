//! The policy: when snapshots are taken, pruned and replicated.
//!
//! This crate has no side effects. It computes a plan from the configuration, the current state and the time. The
//! caller carries the plan out.
//!
//! - [`config`]: the configuration, from TOML or from a `sanoid.conf`
//! - [`schedule`]: the times at which something is due, in a time zone with gaps and folds
//! - [`retention`]: which snapshots of a dataset are kept, and why
//! - [`plan`]: the actions that are due now, with a reason for each
//! - [`monitor`]: messages and exit codes for Nagios
//! - [`state`]: the current state

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
