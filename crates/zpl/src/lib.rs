//! What the bytes of a ZFS filesystem mean: ZAP, SA, directories, attributes, ACLs.
//!
//! Reading ([`Filesystem`]) over a trait ([`Objects`]) that supplies objects and blocks, and writing ([`FilesystemMut`])
//! over one ([`ObjectsMut`]) that also changes them: no I/O policy, no threads, no logging, nothing of pools or streams.
//! Everything read is taken to be hostile: no input makes this crate panic, allocate without bound or run without end.
//!
//! The formats are those of OpenZFS; each module names the files and structures it follows.

pub mod acl;
mod attributes;
mod bytes;
mod crc64;
mod error;
mod filesystem;
mod fuid;
pub mod memory;
mod names;
pub mod nfs4;
pub mod normalize;
pub mod sa;
mod source;
mod write;
mod xattr;
mod xdr;
pub mod zap;

pub use attributes::{Attributes, FileKind, Timestamp, ZfsFlags};
pub use bytes::Endian;
pub use error::ZplError;
pub use filesystem::{DirEntries, DirEntry, Filesystem, MASTER_NODE};
pub use fuid::FuidTable;
pub use names::{CaseSensitivity, NamePolicy};
pub use source::{
    DMU_OT_DIRECTORY_CONTENTS, DMU_OT_MASTER_NODE, DMU_OT_PLAIN_FILE_CONTENTS, DMU_OT_SA,
    DMU_OT_UNLINKED_SET, DMU_OT_ZNODE, Dnode, NewObject, Objects, ObjectsMut, Room, SourceError,
};
pub use write::{
    CONTENT_MAX, Caller, FilesystemMut, NewFile, NewFilesystem, NewKind, NewNode, Removed, RenameMode,
    SetAttributes, SetTime, SetXattr, WriteOptions, XattrStore, create_filesystem,
};
pub use zap::Cursor;
