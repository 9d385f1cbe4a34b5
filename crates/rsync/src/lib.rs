//! rsync's protocol, versions 27 to 32: a daemon, a sender for anything that can be read as a tree of files, and a
//! receiver into datasets and directories.
//!
//! The layers, each of which uses only those before it:
//!
//! - numbers and messages (`wire`),
//! - checksums and file content (`checksum`, `delta`, `token`),
//! - trees that are served ([`source`]),
//! - filter rules (`filter`),
//! - file lists (`flist`),
//! - the client's options (`options`),
//! - the sender, trees that are received into ([`target`]), and the receiver,
//! - a session, from its arguments on,
//! - the ways in: the [`daemon`] and a [`remote`] shell.
//!
//! The format of all bytes is in docs/format/rsync.md.
//!
//! Clients are untrusted. Lengths, counts and depths are bounded, and paths end at the module's root. The memory of a
//! connection grows only with the bytes that were sent on it.

mod budget;
mod checksum;
mod chmod;
pub mod client;
pub mod daemon;
mod delta;
mod error;
mod file_list;
mod filter;
mod flist;
#[doc(hidden)]
pub mod fuzzing;
pub mod history;
mod idmap;
pub mod index;
mod name_converter;
mod names;
mod options;
mod receiver;
pub mod remote;
mod scan;
mod sender;
mod session;
mod shell;
pub mod source;
pub mod target;
mod token;
mod wire;

pub use error::{ExitCode, Result, RsyncError};
pub use names::Names;
pub use sender::Summary;
pub use wire::Prompt;
