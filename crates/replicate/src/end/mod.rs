//! Pools that can be asked, wherever they are.
//!
//! - `described`: whether a description that another machine gave can be what it says
//! - `peer`: a pool of snowmelt, through [`crate::wire`]
//! - `zfs`: a pool of ZFS, through its commands

mod described;
mod peer;
mod zfs;

use std::io::{Read, Write};

pub use peer::Peer;
pub(crate) use peer::confused;
pub use zfs::Zfs;

use crate::error::Failure;
use crate::objects::RemoteSnapshot;
use crate::request::{
    Action, DatasetInfo, Describe, ReadRequest, ReceiveRequest, SendRequest, TakeIn, TakenIn,
};

/// A pool that can be asked. All calls may be made side by side.
pub trait End: Send + Sync {
    /// The existing datasets, parents before children; empty if the dataset does not exist.
    ///
    /// # Errors
    /// When the pool cannot be asked or read.
    fn describe(&self, what: &Describe) -> Result<Vec<DatasetInfo>, Failure>;

    /// Begins to send.
    ///
    /// # Errors
    /// When the pool cannot be asked.
    fn send(&self, request: &SendRequest) -> Result<Box<dyn Source>, Failure>;

    /// Begins to receive.
    ///
    /// # Errors
    /// When the pool cannot be asked.
    fn receive(&self, request: &ReceiveRequest) -> Result<Box<dyn Sink>, Failure>;

    /// Begins to read a snapshot object by object.
    ///
    /// # Errors
    /// When the pool cannot be asked, or be read so.
    fn read(&self, request: &ReadRequest) -> Result<RemoteSnapshot, Failure>;

    /// Whether the connection to it is gone.
    fn is_lost(&self) -> bool;

    /// Bytes of the stream of each of these.
    ///
    /// # Errors
    /// When the pool cannot be asked.
    fn sizes(&self, sends: &[SendRequest]) -> Result<Vec<Result<u64, Failure>>, Failure>;

    /// Carries out each of these, in order.
    ///
    /// # Errors
    /// When the pool cannot be asked.
    fn apply(&self, actions: &[Action]) -> Result<Vec<Result<(), Failure>>, Failure>;

    /// Reads the served directory or image into its shadow. Until the end is dropped, no other process can do this.
    ///
    /// # Errors
    /// When none is served, or it cannot be read. `Busy` when another process is reading it.
    fn take_in(&self, _how: &TakeIn) -> Result<TakenIn, Failure> {
        Err(Failure::other("neither a directory nor an image is served"))
    }

    /// Records that the last state in the shadow was sent to `target`.
    ///
    /// # Errors
    /// When that cannot be noted.
    fn sent(&self, _target: &str) -> Result<(), Failure> {
        Ok(())
    }
}

/// A stream that comes from a pool. Dropped before its end, the send is stopped.
pub trait Source: Read {
    /// To be called when the stream has ended: whether it was whole.
    ///
    /// # Errors
    /// Why it was cut off.
    fn finish(self: Box<Self>) -> Result<(), Failure>;
}

/// A stream to a pool. If it is dropped before [`Sink::finish`], the receive is interrupted, and keeps the data that
/// it has stored.
pub trait Sink: Write {
    /// Ends the stream, and waits until its content is stored. Returns the notes for the user. After a failed write,
    /// this returns the reason.
    ///
    /// # Errors
    /// Why it was not received.
    fn finish(self: Box<Self>) -> Result<Vec<String>, Failure>;
}
