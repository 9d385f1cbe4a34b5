//! `receive`: a stream becomes a snapshot, or nothing.
//!
//! What arrives is written to a tree of its own, which becomes the dataset's head in the txg that also makes
//! the snapshot: nobody sees half a receive, and a crash leaves either the old head or the new one. With
//! `resumable` the tree and the last record applied are kept in every txg, so that the stream can be continued.
//!
//! - `begin`: where the stream goes, and whether it may
//! - `pipeline`: reading, checking and preparing records on several threads, applying them in order
//! - `apply`: what each record does to the tree
//! - `byteswap`: metadata from a machine of the other byte order
//! - `meaning`: metadata that no filesystem could be made of
//! - `finish`: END: the tree becomes head and snapshot
//! - `package`: compound streams
//! - `corrective`: a stream of what is here already mends what of it is damaged
//! - `resume`: tokens, and abandoned receives

mod apply;
mod begin;
mod budget;
pub(crate) mod byteswap;
pub(crate) mod corrective;
mod finish;
pub(crate) mod key_data;
pub(crate) mod meaning;
mod package;
mod pipeline;
pub(crate) mod prepare;
mod resume;

use std::io::Read;
use std::sync::atomic::AtomicBool;

use snowmelt_stream::reader::Reader;
use snowmelt_stream::record::{HeaderType, Record};

use crate::catalog::Dataset;
use crate::datasets::Datasets;
use crate::error::{DatasetError, ReceiveError};
use crate::name::{Name, Subtree};
use crate::property::{self, PeerProperties};

pub(crate) use begin::check_unmodified;
pub use corrective::Corrected;
pub use resume::resume_token;

/// How the destination's name follows from the stream's (`zfs receive`, `-d`, `-e`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Naming {
    /// The destination is the name given.
    #[default]
    Exact,
    /// `-d`: the sent name without its pool, below the name given.
    DiscardPool,
    /// `-e`: the last component of the sent name, below the name given.
    LastComponent,
}

/// How to receive.
#[derive(Debug, Clone, Default)]
pub struct ReceiveOptions {
    /// Roll the destination back, destroying what is newer than the stream's base (`-F`).
    pub force: bool,
    /// Keep what was received of a stream that is cut off (`-s`).
    pub resumable: bool,
    /// Only say what would happen (`-n`).
    pub dry_run: bool,
    /// How the destination is named.
    pub naming: Naming,
    /// The snapshot the stream is a clone of (`-o origin=`).
    pub origin: Option<String>,
    /// Properties set on the destination (`-o`), in canonical text.
    pub properties: Vec<(String, String)>,
    /// Properties of the stream that are not taken (`-x`).
    pub exclude: Vec<String>,
    /// Holds of the stream are not taken (`-h`).
    pub skip_holds: bool,
    /// Blocks are not copied: what the pool gets refers to them, as outside blocks of source 0 at their offset in the
    /// input. The pool has to [allow](snowmelt_pool::Pool::allow_outside) and [read](snowmelt_pool::Pool::set_outside) them.
    pub by_reference: bool,
    /// What the stream may reach and set, where it comes from somebody who is not trusted with the whole pool.
    pub confinement: Confinement,
}

impl ReceiveOptions {
    /// For what is below the first filesystem of a package: properties that are set there are inherited here, and those that
    /// nobody inherits are not set (zfs-receive(8), `-o`).
    fn leave_to_top(&mut self) {
        let is_inherited = |name: &str| property::find(name).is_none_or(|known| known.is_inheritable());
        for (name, _) in std::mem::take(&mut self.properties) {
            if is_inherited(&name) && !self.exclude.contains(&name) {
                self.exclude.push(name);
            }
        }
    }
}

/// What a stream may reach and set. The default restricts nothing.
#[derive(Debug, Clone, Default)]
pub struct Confinement {
    /// The snapshot that a clone is of is looked for here only. The target itself is
    /// for the caller to check.
    pub within: Option<Subtree>,
    /// A package may not rename or destroy what is there.
    pub only_adds: bool,
    /// The properties of the stream that are taken; without, all.
    pub properties: Option<PeerProperties>,
}

impl Confinement {
    /// Whether a property of the stream is taken.
    pub(crate) fn takes(&self, property: &str) -> bool {
        self.properties.as_ref().is_none_or(|allowed| allowed.takes(property))
    }
}

/// What happens during a receive, for whoever shows it to people.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ReceiveEvent {
    /// A snapshot's stream begins.
    Begin {
        /// The snapshot's name at the sender.
        source: String,
        /// The snapshot that it becomes.
        target: String,
        /// Whether it is an incremental.
        incremental: bool,
    },
    /// So many bytes of stream have been applied.
    Progress {
        /// Bytes since the stream began.
        bytes: u64,
    },
    /// A snapshot is there.
    End {
        /// Its name.
        target: String,
        /// Bytes of its stream.
        bytes: u64,
    },
    /// A snapshot of a package is here already and was passed over.
    Skipped {
        /// Its name.
        target: String,
    },
    /// A property of the stream was not taken, since streams from this sender may not set it.
    PropertyLeftOut {
        /// Its name.
        name: String,
    },
    /// These are about to be destroyed, since the sender no longer has them: what is mounted of them keeps them from it.
    Destroying {
        /// With what is below them.
        datasets: Vec<Dataset>,
    },
    /// Something that the user should know and that does not fail the receive.
    Note(String),
}

/// A receive's way to the outside.
pub struct Observer<'a> {
    /// Called from the receiving thread.
    pub event: &'a dyn Fn(ReceiveEvent),
    /// Set from anywhere to stop the receive.
    pub cancelled: &'a AtomicBool,
}

/// What was received.
#[derive(Debug, Clone, Default)]
pub struct Received {
    /// Full names of the new snapshots.
    pub snapshots: Vec<String>,
    /// Bytes of stream read.
    pub bytes: u64,
}

impl Datasets {
    /// Receives one stream or package into `target` (`pool/fs` or `pool/fs@snap`).
    ///
    /// # Errors
    /// Why it was refused: nothing of it is visible then, but for state kept by `resumable`.
    pub fn receive(
        &self,
        target: &str,
        input: impl Read + Send,
        options: &ReceiveOptions,
        observer: &Observer<'_>,
    ) -> Result<Received, ReceiveError> {
        self.settle()?;
        let mut reader = Reader::new(input);
        let mut payload = Vec::new();
        let first = reader.next(&mut payload)?;
        self.check_target(target, options.naming)?;
        let mut received = Received::default();
        match first.map(|first| (first.record.clone(), first)) {
            Some((Record::Begin(begin), at)) => match begin.header_type {
                HeaderType::Substream => {
                    let destination = begin::Destination::resolve(target, &begin, options.naming)?;
                    let incoming = pipeline::Incoming { begin, payload, at };
                    self.receive_substream(
                        &mut reader,
                        incoming,
                        destination,
                        options,
                        observer,
                        &mut received,
                    )?;
                }
                HeaderType::Compound => {
                    self.receive_package(
                        &mut reader,
                        target,
                        &begin,
                        &payload,
                        options,
                        observer,
                        &mut received,
                    )?;
                }
            },
            Some((other, at)) => {
                return Err(ReceiveError::Record {
                    index: at.index,
                    kind: other.kind_name(),
                    offset: at.offset,
                    why: "a stream begins with BEGIN".to_owned(),
                });
            }
            None => return Err(ReceiveError::Package { why: "the input is empty".to_owned() }),
        }
        received.bytes = reader.bytes_read();
        Ok(received)
    }

    /// `-d` and `-e` make datasets below one that is there: one that is not was mistyped.
    fn check_target(&self, target: &str, naming: Naming) -> Result<(), ReceiveError> {
        if naming == Naming::Exact {
            return Ok(());
        }
        let name = Name::parse(target).map_err(DatasetError::from)?;
        match self.catalog().dataset(name.dataset()) {
            Err(DatasetError::NotFound { .. }) => Err(ReceiveError::NoTarget { name: target.to_owned() }),
            Err(other) => Err(other.into()),
            Ok(_) => Ok(()),
        }
    }
}
