//! Writes dirty nodes, children first.

use snowmelt_stream::compress::Compression;
use std::sync::Arc;

use super::Tree;
use super::codec;
use super::node::{Link, Node};
use crate::block::Prepared;
use crate::error::Result;
use crate::format::ptr::StoredPtr;
use crate::format::segment::Kind;
use crate::ids::{TreeId, Txg};
use crate::io::{Io, Outgoing};

struct Flush<'a> {
    io: &'a Io,
    owner: TreeId,
    txg: Txg,
    written: Vec<StoredPtr>,
}

impl Tree {
    /// Writes all dirty nodes and returns the root. Views are not blocked meanwhile: the nodes are written from a
    /// second handle on the root, and the new root replaces the old one at the end. After an error nothing has changed.
    pub(crate) fn flush(&self, txg: Txg) -> Result<Option<StoredPtr>> {
        let _write = self.write.lock();
        let dirty = match &self.state.lock().root {
            None => return Ok(None),
            Some(Link::Disk(ptr)) => return Ok(Some(ptr.clone())),
            Some(Link::Dirty(node)) => node.clone(),
        };
        let mut flush = Flush { io: &self.io, owner: self.id, txg, written: Vec::new() };
        match flush.node(&dirty) {
            Ok(root) => {
                let mut state = self.state.lock();
                for ptr in &flush.written {
                    state.take_on(ptr.asize(), ptr.lsize);
                }
                state.root = Some(Link::Disk(root.clone()));
                Ok(Some(root))
            }
            Err(error) => {
                for ptr in &flush.written {
                    self.io.free(ptr.segment, ptr.asize(), self.meta(), txg)?;
                }
                Err(error)
            }
        }
    }
}

impl Flush<'_> {
    fn node(&mut self, node: &Arc<Node>) -> Result<StoredPtr> {
        let clean = match &**node {
            Node::Leaf(_) => node.clone(),
            Node::Inner(inner) => {
                let mut inner = inner.clone();
                for child in &mut inner.entries {
                    if let Link::Dirty(below) = &child.link {
                        child.link = Link::Disk(self.node(below)?);
                    }
                }
                Arc::new(Node::Inner(inner))
            }
        };
        // All nodes are compressed with lz4, as ZFS compresses its metadata.
        let mut block = Prepared::compress(codec::encode(&clean)?, Compression::Lz4);
        if block.psize() <= crate::format::ptr::EMBEDDED_MAX {
            // Nodes are never embedded, so the hash is needed that `Prepared` omits for small blocks.
            block.hash = *blake3::hash(&block.payload).as_bytes();
        }
        let out = Outgoing {
            kind: Kind::Node,
            owner: self.owner,
            object: u64::from(clean.level()),
            blkid: clean.len() as u64,
            block: &block,
        };
        let ptr = self.io.write(&out, self.txg)?;
        self.written.push(ptr.clone());
        self.io.remember_node(&ptr, clean);
        Ok(ptr)
    }
}
