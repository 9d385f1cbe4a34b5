//! `send`: a snapshot becomes a stream, as OpenZFS's `zfs send` makes it.
//!
//! A [`SendPlan`] says what goes out in which order; it is made from a [`Catalog`] and holds views of all it will
//! send, so that nothing of it disappears while it runs. Running it takes two threads: one walks the trees and reads
//! blocks, the other checksums and writes; between them is a queue of bounded size.
//!
//! - `plan`: what is sent, for each way to ask for it
//! - `package`, `properties`: the list of filesystems at the head of a package
//! - `begin`: features, and the BEGIN record of each snapshot
//! - `full`, `delta`, `since`: walks of a whole tree, of two trees, and of what changed since a txg
//! - `objects`: what the three have in common: object by object, raw or plain
//! - `recorder`: entries become records
//! - `fetch`, `queue`, `run`: payloads are read ahead and written
//! - `estimate`: the same, with nothing read and nothing written
//!
//! Behaviour follows `module/zfs/dmu_send.c` and `lib/libzfs/libzfs_sendrecv.c` of OpenZFS 2.3.

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

/// How to send: the options of `zfs send`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SendFlags {
    /// Blocks of more than 128 KiB go out whole (`-L`).
    pub large_blocks: bool,
    /// Very small blocks go out as WRITE_EMBEDDED (`-e`).
    pub embed: bool,
    /// Compressed blocks go out as they are stored (`-c`).
    pub compressed: bool,
    /// Encrypted datasets go out encrypted; others with `-Lec` (`-w`).
    pub raw: bool,
    /// Properties go along (`-p`).
    pub properties: bool,
    /// Received properties go along, not local ones (`-b`).
    pub backup: bool,
    /// Holds go along (`-h`).
    pub holds: bool,
    /// The dataset with all that is below it (`-R`).
    pub replicate: bool,
    /// Datasets below that lack the snapshot are left out instead of failing the send (`-s`).
    pub skip_missing: bool,
    /// Full names of datasets left out of `-R`, with all below them (`-X`).
    pub exclude: Vec<String>,
    /// What a cut-off receive left is sent (`-S`).
    pub saved: bool,
    /// With a subtree: what a dataset was cloned from is not named where that is outside.
    pub within: Option<Subtree>,
}

impl SendFlags {
    /// Whether the stream is a package even for a single snapshot.
    fn needs_package(&self) -> bool {
        self.properties || self.backup || self.holds || self.replicate
    }
}

/// What a stream is incremental from (`-i`), also across a clone's origin.
#[derive(Debug, Clone)]
pub enum Source {
    /// Nothing: a full stream.
    None,
    /// An earlier snapshot of the dataset or of one that it was cloned from.
    Snapshot(Snapshot),
    /// A bookmark of one.
    Bookmark(Bookmark),
}

/// What will be sent, in order.
///
/// Cheap to clone; it reads nothing but the catalog until it is estimated or run.
#[derive(Clone)]
pub struct SendPlan {
    steps: Vec<Step>,
    package: Option<Package>,
    /// Things left out that the user should know of.
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

    /// What was left out (`-s`, or datasets without the snapshot), one line each, as `zfs send` warns.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// A flag that, once set from anywhere, ends [`SendPlan::run`] with [`DatasetError::Interrupted`].
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
