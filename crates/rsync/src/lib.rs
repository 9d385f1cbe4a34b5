//! rsync's protocol, versions 27 to 32: a daemon, a sender for anything that can be read like a tree of files, and a receiver
//! into datasets and directories.
//!
//! Layers, each of which knows only those above it: numbers and messages (`wire`), sums and content (`checksum`,
//! `delta`, `token`), trees that are served ([`source`]), rules (`filter`), file lists (`flist`), a client's wishes
//! (`options`), the sender, what is received into ([`target`]) and the receiver, a session from its arguments on, and the ways in: the [`daemon`] and a [`remote`] shell. The bytes are those of
//! docs/format/rsync.md.
//!
//! Everything that a client sends is taken to be hostile: lengths, counts and depths are bounded, paths end at the module's
//! root, and what is kept for a connection grows only with what was sent on it.

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
