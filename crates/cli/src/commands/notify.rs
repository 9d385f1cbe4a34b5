//! Messages to systemd about a command that runs permanently (sd_notify(3)).

use std::cell::Cell;
use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::context::Context;

/// Tells systemd, if it is there.
pub(super) fn notify(context: &Context, what: &str) {
    let Some(path) = context.env("NOTIFY_SOCKET") else { return };
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(path),
    };
    if let (Ok(address), Ok(socket)) = (address, UnixDatagram::unbound()) {
        // It is not needed for anything else.
        let _ = socket.send_to_addr(what.as_bytes(), &address);
    }
}

/// Reports to systemd that the configuration is being reloaded. `READY=1` reports the end.
pub(super) fn reloading(context: &Context) {
    let now = clock_gettime(ClockId::Monotonic);
    let now = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
    notify(context, &format!("RELOADING=1\nMONOTONIC_USEC={now}"));
}

/// One line for 'systemctl status'.
pub(super) fn status(context: &Context, text: &str) {
    notify(context, &format!("STATUS={}", text.replace('\n', " ")));
}

/// Reports to systemd's watchdog that this process gets on, if the unit has one (WatchdogSec=).
#[derive(Debug)]
pub(super) struct Watchdog {
    /// `None` without a watchdog.
    every: Option<Duration>,
    last: Cell<Instant>,
}

impl Watchdog {
    /// By the settings in the environment. The first report is due.
    pub(super) fn new(context: &Context) -> Self {
        let number = |name: &str| context.env(name).and_then(OsStr::to_str)?.parse::<u64>().ok();
        let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let limit = number("WATCHDOG_USEC").filter(|_| is_ours).map(Duration::from_micros);
        Self { every: limit.map(|limit| limit / 4), last: Cell::new(Instant::now()) }
    }

    /// Reports, four times within the limit at most. To be called wherever the work has gone on.
    pub(super) fn alive(&self, context: &Context) {
        if self.every.is_some_and(|every| self.last.get().elapsed() >= every) {
            self.last.set(Instant::now());
            notify(context, "WATCHDOG=1");
        }
    }
}
