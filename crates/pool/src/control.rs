//! The owner's control socket: how every other invocation of the program has its command done by the process that
//! owns the pool, with its own arguments, directory, stdin, stdout and stderr.
//!
//! The protocol, and why no command is lost or done twice while an owner closes: `docs/format/control.md`.
//!
//! - The owner [binds](Listener::bind) a [`Listener`] while it holds the pool's lock, and [closes](Listener::close)
//!   it before it lets go of the lock.
//! - Who finds the pool locked [calls](call). `Ok(None)` means that nobody serves (any more): try to become the owner,
//!   and if the lock is still held, wait a moment and call again.

mod client;
mod listener;
#[cfg(test)]
mod tests;
mod wire;

use std::path::{Path, PathBuf};

pub use client::{Call, PASSED_VARIABLES, call, open_directory};
pub use listener::{Listener, Request, Watch};

/// The result of a control socket operation.
pub type Result<T, E = ControlError> = std::result::Result<T, E>;

/// What may go wrong between an owner and its callers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The operating system reported an error.
    #[error("cannot {op} the control socket {}: {source}", path.display())]
    Io {
        /// What was attempted.
        op: &'static str,
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The process at the other end belongs to another user.
    #[error(
        "the pool is in use by a process of user {uid}, which is given no files of this user ({}): use 'sudo -u \\#{uid} \
         snowmelt ...'", path.display()
    )]
    Stranger {
        /// The socket.
        path: PathBuf,
        /// Whose process it is.
        uid: u32,
    },
    /// The owner will not serve this caller, which is not root and not the owner's user.
    #[error("the pool is in use by another user's process, which serves its own user and root only")]
    Refused,
    /// The two ends speak different versions of the protocol.
    #[error(
        "the process that owns the pool is of another version of snowmelt (its protocol is {theirs}, ours is {ours}): end it and try again"
    )]
    Version {
        /// What the other end speaks.
        theirs: u32,
        /// What this end speaks.
        ours: u32,
    },
    /// More arguments, or longer ones, than the protocol carries.
    #[error("the command line is {len} bytes long, more than the {max} that can be passed on")]
    TooLong {
        /// Bytes it takes.
        len: usize,
        /// Bytes it may take.
        max: usize,
    },
    /// The other end broke the protocol.
    #[error("the process at the control socket broke the protocol: {0}")]
    Protocol(&'static str),
    /// The owner ended while it was doing the command, so how far it got is unknown.
    #[error("the process that owned the pool ended before it finished the command")]
    OwnerDied,
}

impl ControlError {
    fn io(op: &'static str, path: &Path, source: impl Into<std::io::Error>) -> Self {
        Self::Io { op, path: path.to_owned(), source: source.into() }
    }
}
