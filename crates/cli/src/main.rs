//! The `snowmelt` command.

mod app;
mod args;
mod budget;
mod cache;
mod commands;
mod glob;
mod output;
mod run;
mod signals;
mod syslog;

use std::process::ExitCode;

use args::mount_helper;
use exit::Exit;
use snowmelt_host::{
    context, error, exit, facts, journal, lines, listing, pools, progress, properties, report, request,
    secrets,
};

/// Unused memory is returned to the system some seconds after the end of the work (docs/memory.md). The allocator of
/// the C library keeps most of the memory that many threads have freed.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let cancelled = signals::cancel_on_signals();
    let Ok(mut context) = context::Context::of_process(cancelled) else { return ExitCode::FAILURE };
    let argv: Vec<_> = std::env::args_os().collect();
    let exit = match mount_helper::words(&argv) {
        None => run::run(&mut context),
        Some(Ok(words)) => {
            context.args = words;
            mount_helper::status(run::run(&mut context))
        }
        Some(Err(text)) => {
            context.complain(text);
            mount_helper::status(Exit::Usage)
        }
    };
    exit.code().into()
}
