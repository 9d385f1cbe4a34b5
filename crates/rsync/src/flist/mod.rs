//! File lists: their entries, their order, and their form on the wire.

mod acl;
mod decode;
mod encode;
mod flags;
mod order;
mod xattr;

pub(crate) use acl::{from_attribute as acl_from_attribute, to_attribute as acl_to_attribute};
pub use decode::{List, ListReader, Received};
pub use encode::{ListForm, ListWriter};
pub use order::{Order, compare, compare_names};
pub use xattr::{VALUE_MAX as XATTR_SENT_WHOLE, Value as XattrValue, wire_attributes};

use std::sync::Arc;

use crate::source::Metadata;

/// An entry of a file list.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The path in the transfer. "." is its root.
    pub name: Vec<u8>,
    /// The path of the transfer's root in the source.
    pub root: Arc<[u8]>,
    /// The metadata.
    pub metadata: Metadata,
    /// The file was an argument of the client.
    pub is_top: bool,
    /// The content of this directory is sent too.
    pub has_content: bool,
    /// The file is reached through a symbolic link, which is followed.
    pub followed: bool,
    /// The target of a symbolic link.
    pub target: Option<Vec<u8>>,
    /// The digest of the content, for `--checksum`.
    pub digest: Option<Vec<u8>>,
}

impl Entry {
    /// The path in the source.
    pub fn path(&self) -> Vec<u8> {
        match (self.root.as_ref(), self.name.as_slice()) {
            (root, b".") => root.to_vec(),
            (b"", name) => name.to_vec(),
            (root, name) => [root, b"/", name].concat(),
        }
    }
}
