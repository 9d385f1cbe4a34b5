//! Confines the server process: `daemon chroot`, `daemon uid`, `daemon gid`.
//!
//! The whole process is confined once, before it serves anybody. Files that were opened before stay open: sockets and
//! log files. Everything else is opened in the new root directory, by the new user.

use std::io;
use std::path::PathBuf;

use crate::names::Names;

/// The rights that a server gives up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Confinement {
    /// The new root directory.
    pub chroot: Option<PathBuf>,
    /// The new user, by name or number.
    pub uid: Option<String>,
    /// The only group of the process then, by name or number. Without it, the user's own group.
    pub gid: Option<String>,
}

/// Why a server cannot be confined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfineError {
    /// The server is not root.
    #[error("'daemon chroot', 'daemon uid' and 'daemon gid' need a server that root starts")]
    NotRoot,
    /// There is no such user.
    #[error("daemon uid: there is no user '{0}'")]
    User(String),
    /// There is no such group.
    #[error("daemon gid: there is no group '{0}'")]
    Group(String),
    /// The user has no group of its own.
    #[error("daemon uid: user '{0}' has no group: set 'daemon gid' too")]
    NoGroup(String),
    /// The system refused.
    #[error("{what} failed")]
    System {
        /// The step that failed.
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

impl Confinement {
    /// Whether there is nothing to confine.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the process gets a new root directory, so that other files of this machine are out of reach.
    pub fn has_root(&self) -> bool {
        self.chroot.is_some()
    }

    /// Confines this process for good. `names` are those outside the new root directory.
    ///
    /// # Errors
    /// When it fails. The process may be partly confined then and must exit.
    pub fn enter(&self, names: &Names) -> Result<(), ConfineError> {
        if self.is_none() {
            return Ok(());
        }
        if !rustix::process::geteuid().is_root() {
            return Err(ConfineError::NotRoot);
        }
        let (uid, gid) = self.ids(names)?;
        if let Some(root) = &self.chroot {
            rustix::process::chroot(root).map_err(system("daemon chroot"))?;
            rustix::process::chdir("/").map_err(system("daemon chroot"))?;
        }
        if let Some(gid) = gid {
            become_group(gid).map_err(system("daemon gid"))?;
        }
        if let Some(uid) = uid {
            become_user(uid).map_err(system("daemon uid"))?;
        }
        Ok(())
    }

    fn ids(&self, names: &Names) -> Result<(Option<u32>, Option<u32>), ConfineError> {
        let uid = match &self.uid {
            Some(name) => Some(names.uid(name).ok_or_else(|| ConfineError::User(name.clone()))?),
            None => None,
        };
        let gid = match (&self.gid, uid) {
            (Some(name), _) => Some(names.gid(name).ok_or_else(|| ConfineError::Group(name.clone()))?),
            (None, None) => None,
            (None, Some(uid)) => {
                let user = names.user(uid).map(|user| String::from_utf8_lossy(&user).into_owned());
                let own = user.and_then(|user| names.primary_gid(&user));
                Some(own.ok_or_else(|| ConfineError::NoGroup(self.uid.clone().unwrap_or_default()))?)
            }
        };
        // This number would mean "leave it unchanged".
        if uid == Some(u32::MAX) || gid == Some(u32::MAX) {
            return Err(ConfineError::User(u32::MAX.to_string()));
        }
        Ok((uid, gid))
    }
}

/// Puts all threads of this process into one group only. The kernel sets users and groups for single threads. The C
/// library sets them for all threads, including those of the allocator.
#[allow(unsafe_code)]
fn become_group(gid: u32) -> io::Result<()> {
    // SAFETY: the pointer is to one group, and the length is one.
    ended(unsafe { libc::setgroups(1, &raw const gid) })?;
    // SAFETY: the arguments are numbers only.
    ended(unsafe { libc::setresgid(gid, gid, gid) })
}

/// Changes the user of all threads of this process in the same way. When root becomes another user, it loses its
/// capabilities.
#[allow(unsafe_code)]
fn become_user(uid: u32) -> io::Result<()> {
    // SAFETY: the arguments are numbers only.
    ended(unsafe { libc::setresuid(uid, uid, uid) })
}

fn ended(status: libc::c_int) -> io::Result<()> {
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn system<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> ConfineError {
    move |source| ConfineError::System { what, source: source.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_are_found_or_are_errors() {
        let names = Names::parse(b"joe:x:7:9::/:\nann:x:8::::\n", b"g:x:9:\nh:x:10:joe\n");
        let ids = |uid: Option<&str>, gid: Option<&str>| {
            let confinement =
                Confinement { uid: uid.map(str::to_owned), gid: gid.map(str::to_owned), chroot: None };
            confinement.ids(&names).map_err(|error| error.to_string())
        };
        assert_eq!(ids(Some("joe"), None), Ok((Some(7), Some(9))));
        assert_eq!(ids(Some("7"), Some("h")), Ok((Some(7), Some(10))));
        assert_eq!(ids(None, Some("10")), Ok((None, Some(10))));
        assert!(ids(Some("nobody-here"), None).unwrap_err().contains("there is no user 'nobody-here'"));
        assert!(ids(None, Some("none")).unwrap_err().contains("there is no group 'none'"));
        assert!(ids(Some("ann"), None).unwrap_err().contains("set 'daemon gid' too"));
        assert!(ids(Some("4294967295"), Some("9")).is_err() && ids(None, Some("4294967295")).is_err());
    }
}
