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
    /// What is there, parents before children; nothing if the dataset is not there.
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

    /// Takes in the directory or image that is served. Until the end is dropped nobody else can do so.
    ///
    /// # Errors
    /// When none is served, or it cannot be read. `Busy` when somebody else is at it.
    fn take_in(&self, _how: &TakeIn) -> Result<TakenIn, Failure> {
        Err(Failure::other("neither a directory nor an image is served"))
    }

    /// Says that what was taken in last has gone to `target`.
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

/// A stream that goes into a pool. Dropped before [`Sink::finish`], the receive is interrupted, and keeps what it has
/// stored.
pub trait Sink: Write {
    /// Says that the stream has ended and waits until what it holds is there; gives what a person should know of that. After
    /// a write has failed, this tells why.
    ///
    /// # Errors
    /// Why it was not received.
    fn finish(self: Box<Self>) -> Result<Vec<String>, Failure>;
}
