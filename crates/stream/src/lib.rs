//! The OpenZFS replication stream: records, nvlists, resume tokens, checksums and compression framings.
//!
//! What `zfs send` writes is a sequence of [`Record`]s, each followed by its payload. A [`Reader`] takes such a
//! stream apart, verifies every checksum and every rule that can be checked without a pool, and hands out records
//! whose payloads are known to be intact; a [`Writer`] makes a stream from records, byte for byte as OpenZFS would.
//! [`verify()`] does a reader's work without keeping anything.
//!
//! ```
//! use snowmelt_stream::{Begin, BeginFlags, End, Features, HeaderType, Reader, Record, ToName, Writer};
//!
//! let begin = Begin {
//!     header_type: HeaderType::Substream,
//!     features: Features::NONE,
//!     creation_time: 1_700_000_000,
//!     objset_type: 3,
//!     flags: BeginFlags::default(),
//!     to_guid: 7,
//!     from_guid: 0,
//!     to_name: ToName::new(b"tank/vol@one").unwrap(),
//!     payload_len: 0,
//! };
//! let mut writer = Writer::new(Vec::new());
//! writer.record(&Record::Begin(begin), &[])?;
//! writer.record(&Record::End(End { to_guid: 7, ..End::default() }), &[])?;
//!
//! let stream = writer.into_inner()?;
//! let (mut reader, mut payload) = (Reader::new(stream.as_slice()), Vec::new());
//! while let Some(positioned) = reader.next(&mut payload)? {
//!     println!("{} at {}", positioned.record.kind_name(), positioned.offset);
//! }
//! # Ok::<(), snowmelt_stream::StreamError>(())
//! ```
//!
//! The crate does no I/O of its own, starts no threads, logs nothing, and trusts no byte it is given. The format's
//! source is OpenZFS (read as a specification): `include/sys/zfs_ioctl.h`, `module/zfs/dmu_send.c`, `dmu_recv.c`.

pub mod byte_order;
pub mod compress;
pub mod dump;
pub mod error;
pub mod features;
pub mod filter;
pub mod fletcher;
pub mod grammar;
pub mod nvlist;
pub mod reader;
pub mod record;
pub mod token;
pub mod validate;
pub mod verify;
pub mod wire;
pub mod writer;

pub use byte_order::ByteOrder;
pub use compress::{CompressError, Compression, compress, decompress};
pub use error::{ChecksumKind, StreamError, Violation};
pub use features::Features;
pub use fletcher::Fletcher4;
pub use nvlist::{NvError, NvList, NvValue};
pub use reader::{Limits, Positioned, Reader};
pub use record::{
    Begin, BeginFlags, Crypt, DedupKey, End, Free, FreeObjects, HeaderType, Object, ObjectRange, RECORD_LEN,
    Record, Redact, Spill, ToName, Write, WriteByRef, WriteEmbedded,
};
pub use token::{ResumeToken, TokenError};
pub use validate::{BeginContext, validate};
pub use verify::{Summary, verify};
pub use writer::Writer;
