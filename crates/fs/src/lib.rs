//! What people do with a filesystem dataset once they have it: walk it, read it, list it, restore it to local disk,
//! compare two snapshots of it, keep a directory equal to it, and write down all that it holds.
//!
//! Everything works on [`snowmelt_zpl::Filesystem`], so over any source of objects: a snapshot in a pool, a stream
//! replayed into memory. Names and trees are taken to be hostile.

mod ahead;
mod alike;
pub mod beneath;
pub mod diff;
mod error;
mod fsxattr;
pub mod import;
mod json;
pub mod manifest;
pub mod mirror;
mod names;
mod objects;
mod paths;
mod read;
mod reserved;
pub mod restore;
pub mod shadow;
pub mod vfs;

mod walk;

pub use error::FsError;
pub use objects::{path_of, paths_within};
pub use paths::{Listed, Listing, is_safe_name, list, resolve};
pub use read::{FileReader, ObjectReader, VolumeInfo, cat, volume_info};
pub use walk::{Event, Node, Walk};
