//! Operations on a filesystem dataset: walking, reading, listing, importing a directory, restoring to local disk,
//! comparing two snapshots, keeping a directory equal to it, and writing a manifest of its content.
//!
//! Everything works on [`snowmelt_zpl::Filesystem`], so on any source of objects: a snapshot in a pool, or a stream
//! replayed into memory. Names and trees are treated as hostile.

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
