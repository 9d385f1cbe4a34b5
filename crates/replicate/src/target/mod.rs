//! Targets that are no datasets: directories, images and block devices, files with a stream.
//!
//! Directories and images have a record of their snapshot (`snowmelt_fs::mirror`). The source keeps this snapshot, so
//! that the next sync finds the changes. The side with the target finds the differences, and requests them.
//!
//! - `here`: what is on this machine
//! - `opened`: a directory or an image at work
//! - `stream_file`: a file with a stream
//! - `there`: what is at the other side of a connection
//! - `server`: that other side
//! - `explain`: what went wrong, for people

mod explain;
mod here;
mod opened;
mod server;
mod stream_file;
mod there;

pub use here::{Here, is_stream, is_stream_name};
pub use server::{Teller, serve_target};
pub use stream_file::copy;
pub use there::There;

use crate::end::Source;
use crate::error::Failure;
use crate::objects::RemoteSnapshot;
use crate::request::{Bring, Brought, OpenTarget, Relocation, TargetState};
pub use crate::watcher::Watcher;

/// A directory, an image or device, or a file with a stream; or a tree of such.
pub trait Target {
    /// Opens the target, or something below it. The previously opened one is closed.
    ///
    /// # Errors
    /// When it holds something else or is in use; when it cannot be opened.
    fn open(&mut self, what: &OpenTarget) -> Result<TargetState, Failure>;

    /// Moves copies below the opened directory, independently of each other. Returns the reasons of failed moves, in
    /// the order of `moves`.
    ///
    /// # Errors
    /// When no directory was opened, or it cannot be read.
    fn relocate(&mut self, moves: &[Relocation]) -> Result<Vec<Result<(), Failure>>, Failure>;

    /// Updates the opened target to a snapshot.
    ///
    /// # Errors
    /// When it was changed by others, or something cannot be read or written. The completed part is kept, and the next
    /// update continues from there.
    fn bring(
        &mut self,
        how: &Bring,
        material: Material,
        watcher: &mut dyn Watcher,
    ) -> Result<Brought, Failure>;

    /// Whether the connection to it is gone.
    fn is_lost(&self) -> bool {
        false
    }
}

/// The data that a target is made from.
pub enum Material {
    /// The snapshot, and the one that the target holds.
    Snapshots {
        /// The snapshot.
        new: RemoteSnapshot,
        /// The one that the target holds.
        old: Option<RemoteSnapshot>,
    },
    /// A stream of the snapshot.
    Stream(Box<dyn Source>),
}
