//! The bytes of the protocol: integers, multiplexed messages, file indices (docs/format/rsync.md, "Numbers").

mod int;
mod mux;
mod ndx;

pub use int::{ReadWire, WriteWire};
pub use mux::{MuxReader, MuxWriter, Tag};
pub use ndx::{Ndx, NdxReader, NdxWriter};
