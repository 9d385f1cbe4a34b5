//! SIGINT, SIGTERM and SIGHUP ask the command to end; the second time they end the process at once. A pool survives
//! either.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// A flag that signals set.
pub fn cancel_on_signals() -> Arc<AtomicBool> {
    let cancelled = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // In this order: the first signal finds the flag unset. Without handlers signals end the process, which is
        // safe too.
        let _ = flag::register_conditional_shutdown(signal, 128 + signal, cancelled.clone());
        let _ = flag::register(signal, cancelled.clone());
    }
    cancelled
}
