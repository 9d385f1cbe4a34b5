//! How trees that a server of rsync has are named.

use crate::commands::sync::place::split_host;
use crate::error::{CliError, Result};

/// The port of daemons.
const PORT: u16 = 873;

/// A tree of another machine, through its rsync.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    /// As it was given.
    pub(super) text: String,
    pub(super) user: Option<String>,
    /// A name or a number, without brackets.
    pub(super) host: String,
    pub(super) way: Way,
}

/// How it is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Way {
    /// A daemon: the module, and the path in it without slashes at either end.
    Daemon { port: u16, module: String, path: String },
    /// A remote shell, and a path of that machine.
    Shell { path: String },
}

impl Address {
    /// Parses `rsync://[user@]host[:port]/module/path`, `[user@]host::module/path` and `[user@]host:rsync:path`.
    /// `None` for anything else.
    ///
    /// # Errors
    /// When a part of it is missing.
    pub(super) fn parse(text: &str) -> Result<Option<Self>> {
        if let Some(rest) = text.strip_prefix("rsync://") {
            let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
            let (user, place) = split_user(authority);
            let (host, port) = split_port(place).ok_or_else(|| wrong(text, "the port is not a number"))?;
            return Self::daemon(text, user, host, (port, path)).map(Some);
        }
        if text.starts_with(['/', '.', '~']) {
            return Ok(None);
        }
        let (Some(place), rest) = split_host(text) else { return Ok(None) };
        let (user, host) = split_user(place);
        if let Some(path) = rest.strip_prefix(':') {
            return Self::daemon(text, user, host, (PORT, path)).map(Some);
        }
        let Some(path) = rest.strip_prefix("rsync:") else { return Ok(None) };
        if path.is_empty() {
            return Err(wrong(text, "the path is missing"));
        }
        Self::new(text, user, host, Way::Shell { path: path.to_owned() }).map(Some)
    }

    /// Parses `[user@]host:/path`, for which rsync is used if the host does not have snowmelt. `None` for anything
    /// else.
    ///
    /// # Errors
    /// When a part of it is missing.
    pub(super) fn parse_directory(text: &str) -> Result<Option<Self>> {
        match split_host(text) {
            (Some(place), path) if path.starts_with('/') && !text.starts_with(['/', '.', '~']) => {
                let (user, host) = split_user(place);
                Self::new(text, user, host, Way::Shell { path: path.to_owned() }).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn daemon(text: &str, user: Option<&str>, host: &str, (port, path): (u16, &str)) -> Result<Self> {
        let path = path.trim_matches('/');
        let (module, path) = path.split_once('/').unwrap_or((path, ""));
        if module.is_empty() {
            return Err(wrong(text, "the module is missing (rsync://host/module/path)"));
        }
        if text.contains(char::is_control) {
            return Err(wrong(text, "the name of the module is not valid"));
        }
        let path = path.trim_matches('/').to_owned();
        Self::new(text, user, host, Way::Daemon { port, module: module.to_owned(), path })
    }

    fn new(text: &str, user: Option<&str>, host: &str, way: Way) -> Result<Self> {
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        // ssh would take it for an option.
        if host.is_empty() || host.starts_with('-') || user.is_some_and(|user| user.starts_with('-')) {
            return Err(wrong(text, "this is not a valid host name"));
        }
        let (user, host) = (user.map(str::to_owned), host.to_owned());
        Ok(Self { text: text.to_owned(), user, host, way })
    }

    /// A directory of another machine, so that its rsync is asked in any case.
    pub(super) fn explicit(&self) -> String {
        let (place, path) = self.text.split_at(self.text.find(":/").unwrap_or_default());
        format!("{place}:rsync{path}")
    }

    /// The path to request from the server: the content of a directory.
    pub(super) fn asked(&self) -> String {
        let path = match &self.way {
            Way::Daemon { module, path, .. } if path.is_empty() => module.clone(),
            Way::Daemon { module, path, .. } => format!("{module}/{path}"),
            Way::Shell { path } => path.clone(),
        };
        if path.ends_with('/') { path } else { path + "/" }
    }
}

fn wrong(text: &str, why: &str) -> CliError {
    CliError::Usage(format!("'{text}': {why}"))
}

fn split_user(text: &str) -> (Option<&str>, &str) {
    text.rsplit_once('@').map_or((None, text), |(user, host)| (Some(user), host))
}

fn split_port(text: &str) -> Option<(&str, u16)> {
    let end = text.rfind(']').map_or(0, |at| at + 1);
    match text[end..].split_once(':') {
        None => Some((text, PORT)),
        Some((host, port)) => Some((&text[..end + host.len()], port.parse().ok()?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let daemon =
            |port, module: &str, path: &str| Way::Daemon { port, module: module.into(), path: path.into() };
        let shell = |path: &str| Way::Shell { path: path.into() };
        for (text, user, host, way, asked) in [
            ("rsync://mirror/pub", None, "mirror", daemon(873, "pub", ""), "pub/"),
            (
                "rsync://joe@mirror:8730/pub/a//b/",
                Some("joe"),
                "mirror",
                daemon(8730, "pub", "a//b"),
                "pub/a//b/",
            ),
            ("rsync://[::1]:99/m/x", None, "::1", daemon(99, "m", "x"), "m/x/"),
            ("rsync://[fe80::1]/m", None, "fe80::1", daemon(873, "m", ""), "m/"),
            ("me@mirror::pub/a", Some("me"), "mirror", daemon(873, "pub", "a"), "pub/a/"),
            ("host:rsync:/srv/www", None, "host", shell("/srv/www"), "/srv/www/"),
            ("me@host:rsync:backup/", Some("me"), "host", shell("backup/"), "backup/"),
            ("[::1]:rsync:/", None, "::1", shell("/"), "/"),
        ] {
            let address = Address::parse(text).unwrap().unwrap();
            assert_eq!(
                (address.user.as_deref(), address.host.as_str(), &address.way, address.asked().as_str()),
                (user, host, &way, asked),
                "{text}"
            );
        }
        for text in
            ["tank/home", "host:tank/home", "host:/srv", "zfs:tank", "/rsync:", "./a::b", "a/b::c", "-"]
        {
            assert_eq!(Address::parse(text).unwrap(), None, "{text}");
        }
        let directory = Address::parse_directory("me@[::1]:/srv/www").unwrap().unwrap();
        assert_eq!((directory.host.as_str(), directory.asked().as_str()), ("::1", "/srv/www/"));
        assert_eq!(directory.explicit(), "me@[::1]:rsync:/srv/www");
        for text in ["host:tank/home", "host:rsync:/srv", "/a:/b", "./a:/b", "tank/home", "zfs:/x", "-"] {
            assert_eq!(Address::parse_directory(text).unwrap(), None, "{text}");
        }
        assert!(Address::parse_directory("-o:/srv").is_err());
        for text in [
            "rsync://",
            "rsync://host",
            "rsync://host/",
            "rsync://h:x/m",
            "host::",
            "host:rsync:",
            "rsync://-o/m",
            "rsync://h/a\nb",
        ] {
            assert!(Address::parse(text).is_err(), "{text}");
        }
    }
}
