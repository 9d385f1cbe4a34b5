//! The owner's control socket: the owner of a pool runs the commands of other processes, with their arguments, working
//! directory, stdin, stdout and stderr.
//!
//! `docs/format/host.md` describes the protocol, and why no command is lost or run twice while an owner closes.
//!
//! - The owner [binds](Listener::bind) a [`Listener`] while it holds the pool's lock, and [closes](Listener::close) it
//!   before it releases the lock.
//! - A process that finds the pool locked [calls](Call::send) the owner. `Ok(None)` means that no owner listens: the
//!   process should try to become the owner. If the lock is still held, it should wait a moment and call again.

mod client;
mod listener;
#[cfg(test)]
mod tests;
mod wire;

use std::path::{Path, PathBuf};

pub use client::{Call, Done, open_directory};
pub use listener::{Listener, Request};

/// The result of a control socket operation.
pub type Result<T, E = ControlError> = std::result::Result<T, E>;

/// Errors between an owner and its callers.
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
        /// The system's error.
        source: std::io::Error,
    },
    /// The process at the other end belongs to another user.
    #[error(
        "the pool is in use by a process of user {uid}, which is given no files of this user ({}): \
         use 'sudo -u \\#{uid} snowmelt ...'", path.display()
    )]
    Stranger {
        /// The socket.
        path: PathBuf,
        /// The user of that process.
        uid: u32,
    },
    /// The owner refuses this caller, which is neither root nor the owner's user.
    #[error("the pool is in use by another user's process, which serves its own user and root only")]
    Refused,
    /// The two ends speak different versions of the protocol.
    #[error(
        "the process that owns the pool is of another version of snowmelt (its protocol is {theirs}, \
         ours is {ours}): end it and try again"
    )]
    Version {
        /// The version of the other end.
        theirs: u32,
        /// The version of this end.
        ours: u32,
    },
    /// The command line is longer than the protocol allows.
    #[error("the command line is {len} bytes long, more than the {max} that can be passed on")]
    TooLong {
        /// Its length in bytes.
        len: usize,
        /// Maximal length in bytes.
        max: usize,
    },
    /// The other end violated the protocol.
    #[error("the process at the control socket broke the protocol: {0}")]
    Protocol(&'static str),
    /// The owner ended while the command was running. How far the command got is unknown.
    #[error("the process that owned the pool ended before it finished the command")]
    OwnerDied,
}

impl ControlError {
    fn io(op: &'static str, path: &Path, source: impl Into<std::io::Error>) -> Self {
        Self::Io { op, path: path.to_owned(), source: source.into() }
    }
}
