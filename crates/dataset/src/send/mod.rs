//! `send`: makes streams from snapshots, like OpenZFS's `zfs send`.
//!
//! A [`SendPlan`] contains what is sent, in order. It is made from a [`Catalog`](crate::Catalog) and holds views of
//! everything that it sends, so that nothing of it is freed while it runs. Running it uses two threads: one walks the
//! trees and reads blocks, the other computes checksums and writes. A queue of limited size connects them.
//!
//! - `plan`: what is sent, for each kind of request
//! - `package`, `properties`: the list of filesystems in the head of a package
//! - `begin`: features, and the BEGIN record of each snapshot
//! - `full`, `delta`, `since`: walks of a whole tree, of two trees, and of changes since a txg
//! - `objects`: the common part of these walks: object by object, raw or plain
//! - `recorder`: makes records from entries
//! - `fetch`, `queue`, `run`: read payloads ahead and write
//! - `estimate`: walks without reading or writing data
//!
//! The behaviour follows `module/zfs/dmu_send.c` and `lib/libzfs/libzfs_sendrecv.c` of OpenZFS 2.3.

mod begin;
mod delta;
mod entries;
mod estimate;
mod fetch;
mod full;
mod objects;
mod package;
mod plan;
mod properties;
mod queue;
mod recorder;
mod resume;
mod run;
mod since;
mod step;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::catalog::{Bookmark, Snapshot};
use crate::name::Subtree;

pub use estimate::StepSize;
pub use run::{Progress, Sent};

use package::Package;
use step::Step;

/// Options of a send, as those of `zfs send`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SendFlags {
    /// Send blocks of more than 128 KiB whole (`-L`).
    pub large_blocks: bool,
    /// Send very small blocks as WRITE_EMBEDDED (`-e`).
    pub embed: bool,
    /// Send compressed blocks as they are stored (`-c`).
    pub compressed: bool,
    /// Send encrypted datasets encrypted, and other datasets as with `-Lec` (`-w`).
    pub raw: bool,
    /// Include properties (`-p`).
    pub properties: bool,
    /// Include received properties instead of local ones (`-b`).
    pub backup: bool,
    /// Include holds (`-h`).
    pub holds: bool,
    /// Send the dataset with all its descendants (`-R`).
    pub replicate: bool,
    /// Skip descendants that do not have the snapshot, instead of failing (`-s`).
    pub skip_missing: bool,
    /// Full names of datasets that `-R` omits, with all their descendants (`-X`).
    pub exclude: Vec<String>,
    /// Send the state of an interrupted receive (`-S`).
    pub saved: bool,
    /// If set, an origin outside this subtree is not named in the stream.
    pub within: Option<Subtree>,
}

impl SendFlags {
    /// Whether the stream is a package even for a single snapshot.
    fn needs_package(&self) -> bool {
        self.properties || self.backup || self.holds || self.replicate
    }
}

/// The base of an incremental stream (`-i`). It may also be in the history before a clone's origin.
#[derive(Debug, Clone)]
pub enum Source {
    /// No base: a full stream.
    None,
    /// An earlier snapshot of the dataset or of a dataset that it was cloned from.
    Snapshot(Snapshot),
    /// A bookmark of such a snapshot.
    Bookmark(Bookmark),
}

/// What will be sent, in order.
///
/// Cheap to clone. It reads only the catalog until it is estimated or run.
#[derive(Clone)]
pub struct SendPlan {
    steps: Vec<Step>,
    package: Option<Package>,
    /// What was left out, for the user.
    warnings: Vec<String>,
    cancelled: Arc<AtomicBool>,
}

impl SendPlan {
    /// A plan of one stream.
    fn of(steps: Vec<Step>, package: Option<Package>) -> Self {
        Self { steps, package, warnings: Vec::new(), cancelled: Arc::default() }
    }

    /// Full names of the snapshots that will be sent, in order.
    pub fn snapshots(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().map(|step| step.target.name.as_str())
    }

    /// Whether the stream is a package of substreams.
    #[must_use]
    pub fn is_package(&self) -> bool {
        self.package.is_some()
    }

    /// What was left out (`-s`, or datasets without the snapshot), one line each, like the warnings of `zfs send`.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// A flag that ends [`SendPlan::run`] with [`DatasetError::Interrupted`] when any thread sets it.
    ///
    /// [`DatasetError::Interrupted`]: crate::DatasetError::Interrupted
    #[must_use]
    pub fn cancel_flag(&self) -> Arc<AtomicBool> {
        self.cancelled.clone()
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for SendPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SendPlan")
            .field("snapshots", &self.snapshots().collect::<Vec<_>>())
            .field("package", &self.is_package())
            .finish_non_exhaustive()
    }
}
