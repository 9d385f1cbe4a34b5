//! The formats on disk: everything that is encoded and decoded, without I/O.
//!
//! Bytes: `docs/format/pool.md`.

pub(crate) mod bytes_io;
pub(crate) mod compression;
pub(crate) mod outside;
pub mod prefix;
pub(crate) mod ptr;
pub(crate) mod seal;
pub(crate) mod segment;
pub(crate) mod tree_record;
pub(crate) mod uberblock;
