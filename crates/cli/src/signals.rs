//! SIGINT, SIGTERM and SIGHUP ask the command to end; the second time they end the process at once. A pool survives
//! either. A daemon takes SIGHUP for another purpose.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

/// What SIGHUP does, to be undone.
static ON_HANGUP: Mutex<Vec<SigId>> = Mutex::new(Vec::new());

/// A flag that signals set.
pub fn cancel_on_signals() -> Arc<AtomicBool> {
    let cancelled = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // In this order: the first signal finds the flag unset. Without handlers signals end the process, which is
        // safe too.
        let shutdown = flag::register_conditional_shutdown(signal, 128 + signal, cancelled.clone());
        let cancel = flag::register(signal, cancelled.clone());
        if signal == SIGHUP {
            ON_HANGUP.lock().extend(shutdown.into_iter().chain(cancel));
        }
    }
    cancelled
}

/// A flag that SIGHUP sets from now on, instead of ending anything.
pub fn flag_on_hangup() -> Arc<AtomicBool> {
    let hung_up = Arc::new(AtomicBool::new(false));
    // The new handler first, so that a signal meanwhile does not end the process.
    if flag::register(SIGHUP, hung_up.clone()).is_ok() {
        for id in ON_HANGUP.lock().drain(..) {
            low_level::unregister(id);
        }
    }
    hung_up
}
