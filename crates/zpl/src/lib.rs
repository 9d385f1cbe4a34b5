//! The content of a ZFS filesystem: ZAP, SA, directories, attributes, ACLs.
//!
//! [`Filesystem`] reads through the trait [`Objects`], which supplies objects and blocks. [`FilesystemMut`] writes
//! through the trait [`ObjectsMut`], which also changes them. This crate has no I/O, threads or logging, and knows
//! nothing of pools or streams. All input is treated as hostile. No input makes this crate panic, allocate without
//! limit or run endlessly.
//!
//! The formats are those of OpenZFS. Each module names the source files and structures that it follows.

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
