//! Datasets, snapshots, clones, bookmarks, holds, properties and deadlists; send and receive.
//!
//! [`Datasets`] are the datasets of an open pool. A [`Catalog`] is their state at one moment, for reading. The content
//! of a snapshot is an [`objset::Objset`].

mod check;
mod codec;
mod datasets;
mod error;
pub mod head;
mod limits;
mod ops;
mod random;
#[cfg(test)]
mod simulation;

pub mod catalog;
pub mod diff;
#[doc(hidden)]
pub mod fuzzing;
mod listing;
pub mod name;
pub mod objset;
pub mod pool_features;
pub mod property;
pub mod receive;
pub mod send;
mod source;
mod staging;
pub mod text;

pub use catalog::{Bookmark, Catalog, Content, Dataset, DatasetId, Found, Kind, Snapshot, SnapshotId};
pub use datasets::Datasets;
pub use error::{DatasetError, NameError, Quota, ReceiveError, SendError};
pub use head::{Head, OpenHead};
pub use listing::ListingDigest;
pub use name::{Name, Subtree, Suffix};
pub use objset::Objset;
pub use ops::clone::CloneOptions;
pub use ops::create::CreateOptions;
pub use ops::damage::Damaged;
pub use ops::destroy::{DestroyPlan, snapshots_named};
pub use ops::filesystem::{new_filesystem_objects, write_options};
pub use ops::heal::{BlockName, Healing, Wanted};
pub use ops::rename::RenameOptions;
pub use ops::rollback::RollbackOptions;
pub use ops::volume::{
    NewVolume, VOLUME_BLOCK_DEFAULT, new_volume_objects, resized_reservation, volume_reservation,
};
pub use snowmelt_pool::{CheckOptions, CheckReport, CleanOptions, CleanReport, Finding, Severity};
pub use source::{SourceFile, SourceObject};
pub use staging::{StageOptions, Staging};
