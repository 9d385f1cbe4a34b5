//! The objects of a snapshot at the other side of a connection (docs/format/sync.md, "Reading").
//!
//! - `query`: what is asked and answered, as bytes
//! - `answer`: the side that has the snapshot
//! - `remote`: the side that asks
//! - `known`: what it knows, and has asked for
//! - `lend`: between the two: queries of one connection, answered through another

mod answer;
#[doc(hidden)]
pub mod fuzzing;
mod known;
mod lend;
mod query;
mod remote;

pub(crate) use answer::answer;
pub(crate) use lend::lend;
pub(crate) use remote::Lifeline;
pub use remote::RemoteSnapshot;
