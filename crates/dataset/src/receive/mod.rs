//! `receive`: makes a snapshot from a stream.
//!
//! The received records are written to a separate tree. It becomes the dataset's head in the txg that also creates the
//! snapshot. So a partial receive is never visible, and a crash leaves either the old head or the new one. With
//! `resumable`, the tree and the last applied record are kept in every txg, so that the stream can be continued.
//!
//! - `begin`: where the stream is received, and whether it may be
//! - `pipeline`: reads, checks and prepares records in several threads, and applies them in order
//! - `apply`: applies each record to the tree
//! - `byteswap`: metadata from a machine of the other byte order
//! - `meaning`: refuses metadata that no filesystem could use
//! - `finish`: after END, the tree becomes head and snapshot
//! - `package`: packages
//! - `corrective`: repairs damaged blocks from a stream of an existing snapshot
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

/// How the name of the destination is derived from the stream's (`zfs receive`, `-d`, `-e`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Naming {
    /// The destination is the given name.
    #[default]
    Exact,
    /// `-d`: the sent name without its pool, below the given name.
    DiscardPool,
    /// `-e`: the last component of the sent name, below the given name.
    LastComponent,
}

/// Options of a receive.
#[derive(Debug, Clone, Default)]
pub struct ReceiveOptions {
    /// Roll the destination back, and destroy snapshots newer than the stream's base (`-F`).
    pub force: bool,
    /// Keep the received part of an interrupted stream (`-s`).
    pub resumable: bool,
    /// Only report what would happen (`-n`).
    pub dry_run: bool,
    /// How the destination is named.
    pub naming: Naming,
    /// The origin of the received clone (`-o origin=`).
    pub origin: Option<String>,
    /// Properties set on the destination (`-o`), in canonical text.
    pub properties: Vec<(String, String)>,
    /// Properties of the stream that are ignored (`-x`).
    pub exclude: Vec<String>,
    /// Ignore the holds of the stream (`-h`).
    pub skip_holds: bool,
    /// Do not copy blocks. The pool then refers to them as external blocks of source 0, at their offset in the input.
    /// The pool must [allow](snowmelt_pool::Pool::allow_outside) and [read](snowmelt_pool::Pool::set_outside) them.
    pub by_reference: bool,
    /// What a stream from an untrusted sender may use and set.
    pub confinement: Confinement,
}

impl ReceiveOptions {
    /// Adapts the options for the descendants of a package's first filesystem: properties set there are inherited by
    /// them, and properties that cannot be inherited are not set (zfs-receive(8), `-o`).
    fn leave_to_top(&mut self) {
        let is_inherited = |name: &str| property::find(name).is_none_or(|known| known.is_inheritable());
        for (name, _) in std::mem::take(&mut self.properties) {
            if is_inherited(&name) && !self.exclude.contains(&name) {
                self.exclude.push(name);
            }
        }
    }
}

/// What a stream may use and set. The default has no restrictions.
#[derive(Debug, Clone, Default)]
pub struct Confinement {
    /// The origin of a clone is searched only in this subtree. The caller must check the target itself.
    pub within: Option<Subtree>,
    /// A package may not rename or destroy existing datasets.
    pub only_adds: bool,
    /// The properties of the stream that are accepted; `None` means all.
    pub properties: Option<PeerProperties>,
}

impl Confinement {
    /// Whether a property of the stream is accepted.
    pub(crate) fn takes(&self, property: &str) -> bool {
        self.properties.as_ref().is_none_or(|allowed| allowed.takes(property))
    }
}

/// Progress of a receive, for display.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ReceiveEvent {
    /// The stream of a snapshot begins.
    Begin {
        /// The snapshot's name at the sender.
        source: String,
        /// The snapshot that is created from it.
        target: String,
        /// Whether it is incremental.
        incremental: bool,
    },
    /// Progress of applying the stream.
    Progress {
        /// Applied bytes since the stream began.
        bytes: u64,
    },
    /// A snapshot was created.
    End {
        /// Its name.
        target: String,
        /// Bytes of its stream.
        bytes: u64,
    },
    /// A snapshot of a package already exists and was skipped.
    Skipped {
        /// Its name.
        target: String,
    },
    /// A property of the stream was ignored, because streams from this sender may not set it.
    PropertyLeftOut {
        /// Its name.
        name: String,
    },
    /// These datasets will be destroyed, because the sender no longer has them. Mounts of them must be removed first.
    Destroying {
        /// The datasets with their descendants.
        datasets: Vec<Dataset>,
    },
    /// A message for the user about something that does not fail the receive.
    Note(String),
}

/// Callbacks of a receive.
pub struct Observer<'a> {
    /// Called by the receiving thread.
    pub event: &'a dyn Fn(ReceiveEvent),
    /// Any thread can set it to stop the receive.
    pub cancelled: &'a AtomicBool,
}

/// The result of a receive.
#[derive(Debug, Clone, Default)]
pub struct Received {
    /// Full names of the new snapshots.
    pub snapshots: Vec<String>,
    /// Bytes of the stream that were read.
    pub bytes: u64,
}

impl Datasets {
    /// Receives one stream or package into `target` (`pool/fs` or `pool/fs@snap`).
    ///
    /// # Errors
    /// Why it was refused. Nothing of it is visible then, except the state kept by `resumable`.
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

    /// With `-d` and `-e`, checks that the target exists: datasets are created below it, so a missing one is probably a
    /// typo.
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
