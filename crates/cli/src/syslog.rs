//! Lines for syslog (syslog(3), RFC 3164). They are sent to the socket of the log daemon; systemd's journal listens
//! on it too.

use std::os::unix::net::UnixDatagram;

use crate::journal::Level;

const SOCKET: &str = "/dev/log";
/// The default facility of servers: "daemon".
const DAEMON: u8 = 3;
/// Facilities with their numbers; "local0" to "local7" come after them.
const FACILITIES: [(&str, u8); 13] = [
    ("kern", 0),
    ("user", 1),
    ("mail", 2),
    ("daemon", DAEMON),
    ("auth", 4),
    ("security", 4),
    ("syslog", 5),
    ("lpr", 6),
    ("news", 7),
    ("uucp", 8),
    ("cron", 9),
    ("authpriv", 10),
    ("ftp", 11),
];
const LOCAL_0: u8 = 16;

/// A connection to the machine's log daemon, which may be none.
#[derive(Debug)]
pub struct Syslog {
    socket: Option<UnixDatagram>,
    facility: u8,
    tag: String,
}

impl Syslog {
    /// With a facility by its name, and what lines begin with.
    pub fn open(facility: Option<&str>, tag: &str) -> Self {
        let socket = UnixDatagram::unbound().ok();
        if let Some(socket) = &socket {
            // A server that then changes its root directory still reaches it. Without it, it is tried with each line.
            let _ = socket.connect(SOCKET);
        }
        Self { socket, facility: facility.and_then(number).unwrap_or(DAEMON), tag: tag.to_owned() }
    }

    /// Sends a line. A failure is ignored.
    pub fn line(&self, level: Level, text: &str) {
        let line = self.text(level, text);
        let Some(socket) = &self.socket else { return };
        if socket.send(line.as_bytes()).is_err() && socket.connect(SOCKET).is_ok() {
            let _ = socket.send(line.as_bytes());
        }
    }

    fn text(&self, level: Level, text: &str) -> String {
        let priority = self.facility << 3 | level as u8;
        let text = snowmelt_dataset::text::visible_message(text);
        format!("<{priority}>{}[{}]: {}", self.tag, std::process::id(), text.replace('\n', " "))
    }
}

/// A facility by its name or number.
fn number(name: &str) -> Option<u8> {
    let name = name.strip_prefix("log_").unwrap_or(name);
    let local = || name.strip_prefix("local")?.parse().ok().filter(|at| *at < 8).map(|at: u8| LOCAL_0 + at);
    let known = FACILITIES.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
    known.or_else(local).or_else(|| name.parse().ok().filter(|number| *number < LOCAL_0 + 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_facility_and_level() {
        let log = Syslog::open(Some("local3"), "rsyncd");
        let expected = format!("<156>rsyncd[{}]: auth failed", std::process::id());
        assert_eq!(log.text(Level::Warning, "auth failed"), expected);
        assert_eq!(
            (number("auth"), number("5"), number("local8"), number("x")),
            (Some(4), Some(5), None, None)
        );
        assert!(Syslog::open(None, "x").text(Level::Info, "a\nb").ends_with(": a b"));
    }
}
