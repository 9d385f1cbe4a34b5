//! The arguments of `sync`.

use std::ffi::OsStr;
use std::path::PathBuf;

use snowmelt_dataset::Name;

use crate::app::{App, pool_of};
use crate::error::{CliError, Result};

/// One side of a sync.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::commands) enum Place {
    /// A dataset of snowmelt or ZFS.
    Dataset(Remote),
    /// A directory, a disk image, a block device, or a file with a stream.
    Path(PathBuf),
    /// A directory, a disk image or a block device of another machine.
    Elsewhere(Remote),
    /// A stream on standard input or output.
    Standard,
}

/// A dataset, here or elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::commands) struct Remote {
    /// `host` or `user@host`; nothing for this machine.
    pub(in crate::commands) host: Option<String>,
    /// It is in a pool of ZFS.
    pub(in crate::commands) is_zfs: bool,
    /// Its full name; nothing where there is a path.
    pub(in crate::commands) dataset: String,
    /// The directory or image of which it is the shadow.
    pub(super) path: Option<PathBuf>,
}

impl Remote {
    /// The name of its pool.
    pub(in crate::commands) fn pool(&self) -> &str {
        pool_of(&self.dataset)
    }

    /// A dataset of this machine.
    pub(in crate::commands) fn here(dataset: impl Into<String>) -> Self {
        Self { host: None, is_zfs: false, dataset: dataset.into(), path: None }
    }

    /// Whether it is in the pool of snowmelt that the other one is in.
    pub(super) fn is_in_pool_of(&self, other: &Self) -> bool {
        !self.is_zfs
            && self.path.is_none()
            && (&self.host, self.is_zfs, self.pool()) == (&other.host, other.is_zfs, other.pool())
    }

    /// The kind of file at this path.
    pub(super) fn of_path(host: Option<String>, path: PathBuf) -> Self {
        Self { host, is_zfs: false, dataset: String::new(), path: Some(path) }
    }

    /// What `serve sync` is to serve.
    pub(super) fn served(&self) -> &OsStr {
        self.path.as_ref().map_or(OsStr::new(self.pool()), |path| path.as_os_str())
    }
}

/// Understands a side of a sync.
pub(in crate::commands) fn parse(app: &App<'_>, text: &str) -> Result<Place> {
    if text == "-" {
        return Ok(Place::Standard);
    }
    if text.starts_with(['/', '.', '~']) {
        return Ok(Place::Path(app.context.path(text)));
    }
    if let Some((kind, _)) = text.split_once("://")
        && !kind.contains('/')
    {
        return Err(CliError::Usage(format!(
            "'{text}': '{kind}://' is not supported: use host:pool/dataset, host:/directory or rsync://"
        )));
    }
    let (host, rest) = split_host(text);
    let (is_zfs, dataset) = match rest.strip_prefix("zfs:") {
        Some(dataset) => (true, dataset),
        None => (false, rest),
    };
    if host.is_none() && !is_zfs && app.places.find(pool_of(dataset)).is_none() {
        let path = app.context.path(text);
        if path.exists() || text.contains('.') && !text.contains('/') {
            return Ok(Place::Path(path));
        }
    }
    if host.is_some_and(|host| host.starts_with('-')) {
        // ssh would take it for an option.
        return Err(CliError::Usage(format!("'{text}': this is not a valid host name")));
    }
    if let (Some(host), true) = (host, dataset.starts_with('/') && !is_zfs) {
        return Ok(Place::Elsewhere(Remote::of_path(Some(host.to_owned()), PathBuf::from(dataset))));
    }
    if dataset.starts_with(['/', '.', '~']) {
        return Err(CliError::Usage(format!(
            "'{text}': the path of a directory on another machine must be absolute (host:/srv/www)"
        )));
    }
    if dataset.contains(['@', '#']) {
        return Err(CliError::Failed(format!(
            "cannot sync '{text}': give the dataset, not a snapshot: all its snapshots are synced"
        )));
    }
    if dataset.is_empty() {
        return Err(CliError::Usage(format!("'{text}' is not a name of a dataset")));
    }
    Name::parse_dataset(dataset).map_err(|error| CliError::Failed(format!("cannot sync {error}")))?;
    Ok(Place::Dataset(Remote {
        host: host.map(str::to_owned),
        is_zfs,
        dataset: dataset.to_owned(),
        path: None,
    }))
}

/// Checks that the pool of a side exists, if it is on this machine.
///
/// # Errors
/// When there is none: perhaps a directory was meant.
pub(super) fn check_pool(app: &App<'_>, place: &Place, text: &str) -> Result<()> {
    let Place::Dataset(Remote { host: None, is_zfs: false, dataset, .. }) = place else { return Ok(()) };
    let pool = pool_of(dataset);
    match app.places.find(pool) {
        Some(_) => Ok(()),
        None => Err(CliError::Failed(format!(
            "cannot open '{pool}': no such pool\nif it was exported, 'snowmelt pool import' imports it again; for \
             a directory, an image or a file use ./{text}"
        ))),
    }
}

/// `host:rest`, without a slash before the colon. `zfs:` is not a host, and IPv6 addresses are in brackets.
pub(super) fn split_host(text: &str) -> (Option<&str>, &str) {
    let end = match text.find(']') {
        Some(at) if text.contains('[') => at,
        _ => 0,
    };
    let colon = text.get(end..).and_then(|rest| rest.find(':')).map(|at| at + end);
    match colon {
        Some(at) if !text[..at].contains('/') && &text[..at] != "zfs" && at > 0 => {
            (Some(&text[..at]), &text[at + 1..])
        }
        _ => (None, text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        for (text, expected) in [
            ("tank/home", (None, "tank/home")),
            ("host:tank/home", (Some("host"), "tank/home")),
            ("me@host:tank", (Some("me@host"), "tank")),
            ("tank/a:b", (None, "tank/a:b")),
            ("zfs:tank/home", (None, "zfs:tank/home")),
            ("me@host:zfs:tank/home", (Some("me@host"), "zfs:tank/home")),
            ("[::1]:tank/home", (Some("[::1]"), "tank/home")),
            ("me@[fe80::1]:tank/a:b", (Some("me@[fe80::1]"), "tank/a:b")),
            (":tank", (None, ":tank")),
        ] {
            assert_eq!(split_host(text), expected, "{text}");
        }
    }
}
