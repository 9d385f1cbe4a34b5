//! Checks for Nagios.

use std::io::Write;

use jiff::Timestamp;
use snowmelt_dataset::property::format_bytes;
use snowmelt_policy::Config;
use snowmelt_policy::monitor::{self, PoolHealth, Told};

use super::act::{Runner, host};
use super::books::Books;
use super::survey::{Survey, survey};
use crate::app::App;
use crate::error::Result;
use crate::exit::Exit;

/// The kind of check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Question {
    Snapshots,
    Health,
    Capacity,
    Replication,
}

/// Prints the answer, and exits with its status.
///
/// # Errors
/// When output fails.
pub(super) fn answer(app: &mut App<'_>, config: &Config, books: &Books, question: Question) -> Result<Exit> {
    let found = survey(app, config, books, &|_| false);
    let host = host();
    let planner = Runner::planner(config, app, &found.state, &host);
    let now = Timestamp::now().as_second();
    let told = match question {
        Question::Snapshots => monitor::snapshots(&planner, &config.absent(&found.state), now),
        Question::Replication => with_complaints(monitor::replication(config, &planner.jobs(now)), &found),
        Question::Health => monitor::health(&pools(config, &found)),
        Question::Capacity => monitor::capacity(config, &pools(config, &found)),
    };
    writeln!(app.context.out, "{}", told.text)?;
    Ok(Exit::Other(told.level.code()))
}

/// A pool of a job that is not there is no copy that is up to date.
fn with_complaints(told: Told, found: &Survey) -> Told {
    match found.complaints.as_slice() {
        [] => told,
        complaints => Told {
            level: told.level.max(monitor::Level::Critical),
            text: format!("CRIT: {}, {}", complaints.join(", ").replace('\n', " "), told.text),
        },
    }
}

fn pools(config: &Config, found: &Survey) -> Vec<PoolHealth> {
    let pools =
        config.pools().into_keys().map(|name| match found.pools.iter().find(|facts| facts.name == name) {
            Some(facts) => PoolHealth {
                name: name.to_owned(),
                health: Some(facts.health().to_owned()),
                size: format_bytes(facts.size),
                free: format_bytes(facts.free),
                capacity: facts.capacity(),
            },
            None => PoolHealth {
                name: name.to_owned(),
                health: None,
                size: String::new(),
                free: String::new(),
                capacity: 0,
            },
        });
    pools.collect()
}
