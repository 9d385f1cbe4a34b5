//! File lists: what is in them, their order, and how they are sent.

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

/// A file of a list.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Path in the transfer; "." is its root.
    pub name: Vec<u8>,
    /// Where the transfer's root is in the source.
    pub root: Arc<[u8]>,
    /// What it is.
    pub metadata: Metadata,
    /// It was asked for by name.
    pub is_top: bool,
    /// A directory whose content is sent too.
    pub has_content: bool,
    /// A symbolic link is taken for what it leads to.
    pub followed: bool,
    /// The target of a symbolic link.
    pub target: Option<Vec<u8>>,
    /// The digest of its content, for `--checksum`.
    pub digest: Option<Vec<u8>>,
}

impl Entry {
    /// Path in the source.
    pub fn path(&self) -> Vec<u8> {
        match (self.root.as_ref(), self.name.as_slice()) {
            (root, b".") => root.to_vec(),
            (b"", name) => name.to_vec(),
            (root, name) => [root, b"/", name].concat(),
        }
    }
}
