//! Sync of datasets: descriptions of both ends, plans of what to send, and the transfer.
//!
//! - [`request`]: what can be asked of a pool, here or elsewhere, and the answers
//! - [`wire`]: many requests over one pair of byte streams (docs/format/sync.md)
//! - [`end`]: pools that can be asked: a pool of snowmelt through [`wire`], a pool of ZFS through its commands
//! - [`plan`]: from two descriptions to what has to be done; pure
//! - [`sync`]: a plan carried out, datasets side by side
//! - [`heal`]: damaged blocks of a copy, asked of another copy
//! - [`objects`]: a snapshot's objects, read through [`wire`]
//! - [`target`]: directories, images and files with streams that are kept equal to snapshots, here or elsewhere
//! - [`access`]: what a client may reach and do
//! - [`serve`]: the other side of [`wire`]: requests carried out on an open pool
//!
//! Everything here can be interrupted at any time and started again: the state is only in the pools.

pub mod access;
pub mod end;
pub mod error;
pub mod heal;
pub mod limit;
pub mod objects;
pub mod plan;
pub mod request;
pub mod serve;
pub mod sync;
pub mod target;
pub mod watcher;
pub mod wire;

pub use error::{Failure, FailureKind};
