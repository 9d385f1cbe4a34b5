//! Waiting for a store that does not answer: with a message, and until the user interrupts.
//!
//! A request to an object store is repeated for minutes before it fails, and a disk can hang without limit. While a
//! pool is opened, nothing else would react to a signal.

use std::io::Write;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use snowmelt_store::{Access, Location, Store, StoreError};

use crate::context::Context;
use crate::error::{CliError, Result};

/// How soon a signal is noticed.
const STEP: Duration = Duration::from_millis(50);
/// Time before a message.
const TELL_AFTER: Duration = Duration::from_secs(5);

/// As [`snowmelt_store::open`].
///
/// # Errors
/// When the command is cancelled; the inner one is that of the store.
pub fn open(
    context: &Context,
    location: &Location,
    access: Access,
) -> Result<std::result::Result<Box<dyn Store>, StoreError>> {
    let place = location.clone();
    for_store(context, location, move || snowmelt_store::open(&place, access))
}

/// Has `work` talk to the store at `location`, and waits for it.
///
/// # Errors
/// When the command is cancelled. Then `work` continues until the process ends.
pub fn for_store<T: Send + 'static>(
    context: &Context,
    location: &Location,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let (done, answer) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name("snowmelt-waiting".to_owned());
    // The answer of a cancelled request is not used.
    let thread = thread.spawn(move || drop(done.send(work())));
    thread.map_err(|error| CliError::failed("cannot begin a thread", &error))?;
    let (begun, mut is_told) = (Instant::now(), false);
    loop {
        match answer.recv_timeout(STEP) {
            Ok(value) => return Ok(value),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                let place = location.path().display();
                return Err(CliError::Failed(format!("the thread that talked to {place} has ended")));
            }
        }
        if context.is_cancelled() {
            return Err(CliError::Failed("interrupted".to_owned()));
        }
        if !is_told && begun.elapsed() > TELL_AFTER && context.is_terminal_err() {
            is_told = true;
            let place = location.path().display();
            let _ = match location {
                Location::Object(_) => {
                    writeln!(&context.err, "no answer yet from {place}: trying for 3 minutes")
                }
                _ => writeln!(&context.err, "no answer yet from a device of the pool at {place}: waiting"),
            };
        }
    }
}
