//! The bytes of the protocol: integers, multiplexed messages, file indices (docs/format/rsync.md, "Numbers").

mod int;
mod mux;
mod ndx;
mod patience;
mod prompt;
mod queue;

pub use int::{ReadWire, WriteWire};
pub use mux::{MuxReader, MuxWriter, Note, Tag};
pub use ndx::{Ndx, NdxReader, NdxWriter};
pub use patience::Patience;
pub use prompt::Prompt;
pub use queue::{QueueWriter, drain};
