//! The `snowmelt` command.

mod app;
mod args;
mod commands;
mod context;
mod error;
mod exit;
mod glob;
mod listing;
mod output;
mod pools;
mod progress;
mod properties;
mod report;
mod rows;
mod run;
mod signals;

use std::process::ExitCode;

fn main() -> ExitCode {
    let cancelled = signals::cancel_on_signals();
    let Ok(mut context) = context::Context::of_process(cancelled) else { return ExitCode::FAILURE };
    run::run(&mut context).code().into()
}
