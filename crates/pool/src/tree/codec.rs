//! Encodes and decodes nodes. Bytes: `docs/format/pool.md`, "Tree node".

use bytes::Bytes;

use super::key::{KEY_MAX, Key, VALUE_MAX, common_prefix};
use super::node::{Child, Inner, LEVEL_MAX, Leaf, LeafEntry, Link, Node};
use crate::error::{PoolError, Result};
use crate::format::bytes_io::Fields;
use crate::format::ptr::StoredPtr;
use crate::ids::Txg;

const VERSION: u8 = 1;
const NODE: &str = "tree node";

/// Maximal length of a decoded node, bytes. A node is split above the pool's node size (at most [`NODE_BYTES_MAX`]),
/// and may exceed that by one largest entry.
pub(crate) const NODE_LSIZE_MAX: u32 = 256 << 10;
/// Maximal node size that a pool can be configured to use, bytes.
pub(crate) const NODE_BYTES_MAX: usize = 128 << 10;

const _: () = assert!(NODE_BYTES_MAX + KEY_MAX + VALUE_MAX + 4096 < NODE_LSIZE_MAX as usize);

/// Encodes a node. Every child must already be on disk.
///
/// # Errors
/// `Misuse` when a child is not on disk.
pub(crate) fn encode(node: &Node) -> Result<Vec<u8>> {
    let (first, last) = match node {
        Node::Leaf(leaf) => (leaf.entries.first().map(|e| &e.key), leaf.entries.last().map(|e| &e.key)),
        Node::Inner(inner) => (inner.entries.first().map(|c| &c.key), inner.entries.last().map(|c| &c.key)),
    };
    let prefix = match (first, last) {
        (Some(first), Some(last)) => {
            let first = first.as_slice();
            first.get(..common_prefix(first, last.as_slice())).unwrap_or_default()
        }
        _ => &[],
    };
    let mut out = Vec::with_capacity(8 + prefix.len() + node.bytes());
    out.push(VERSION);
    out.push(node.level());
    out.extend_from_slice(&length16(prefix.len()));
    out.extend_from_slice(&u32::try_from(node.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(prefix);
    match node {
        Node::Leaf(leaf) => {
            for entry in &leaf.entries {
                let suffix = entry.key.as_slice().get(prefix.len()..).unwrap_or_default();
                out.extend_from_slice(&length16(suffix.len()));
                out.extend_from_slice(&length16(entry.value.len()));
                out.extend_from_slice(&entry.birth.to_le_bytes());
                out.extend_from_slice(suffix);
                out.extend_from_slice(&entry.value);
            }
        }
        Node::Inner(inner) => {
            for child in &inner.entries {
                let suffix = child.key.as_slice().get(prefix.len()..).unwrap_or_default();
                out.extend_from_slice(&length16(suffix.len()));
                out.extend_from_slice(suffix);
                match &child.link {
                    Link::Disk(ptr) => ptr.encode(&mut out),
                    Link::Dirty(_) => {
                        return Err(PoolError::Misuse("a node was encoded before its children"));
                    }
                }
            }
        }
    }
    Ok(out)
}

/// A length as 16 bits. Lengths of keys and values were checked earlier and are far smaller.
fn length16(len: usize) -> [u8; 2] {
    u16::try_from(len).unwrap_or(u16::MAX).to_le_bytes()
}

/// Decodes the node of a pointer born in `birth`, and checks everything that can be checked in the node alone.
///
/// # Errors
/// `Record` when the bytes are not such a node.
pub(crate) fn decode(bytes: &Bytes, birth: Txg) -> Result<Node> {
    let mut fields = Fields::new(NODE, bytes);
    let version = fields.u8()?;
    if version != VERSION {
        return fields.fail(format!("unknown version {version}"));
    }
    let level = fields.u8()?;
    let prefix_len = usize::from(fields.u16()?);
    let count = fields.u32()? as usize;
    if level > LEVEL_MAX || prefix_len > KEY_MAX {
        return fields.fail(format!("level {level} or prefix length {prefix_len} out of range"));
    }
    let prefix = fields.take(prefix_len)?;
    if level == 0 {
        decode_leaf(bytes, fields, prefix, count, birth)
    } else {
        decode_inner(fields, level, prefix, count, birth)
    }
}

fn decode_leaf(
    bytes: &Bytes,
    mut fields: Fields<'_>,
    prefix: &[u8],
    count: usize,
    birth: Txg,
) -> Result<Node> {
    // Every entry takes at least its fixed fields, so a wrong count cannot make us allocate more than the node's
    // length.
    let mut leaf =
        Leaf { entries: Vec::with_capacity(count.min(bytes.len() / super::node::LEAF_OVERHEAD)), bytes: 0 };
    for _ in 0..count {
        let suffix_len = usize::from(fields.u16()?);
        let value_len = usize::from(fields.u16()?);
        let born = fields.u64()?;
        let key = join(&mut fields, prefix, suffix_len)?;
        if value_len > VALUE_MAX || key.len() == 0 {
            return fields.fail(format!("value of {value_len} bytes, key of {}", key.len()));
        }
        if born == 0 || born > birth {
            return fields.fail(format!("entry born in txg {born} in a leaf born in {birth}"));
        }
        if leaf.entries.last().is_some_and(|last| last.key >= key) {
            return fields.fail(format!("key {key:?} is not above the one before it"));
        }
        let value = bytes.slice_ref(fields.take(value_len)?);
        let entry = LeafEntry { key, birth: born, value };
        leaf.bytes += entry.encoded_len();
        leaf.entries.push(entry);
    }
    fields.end()?;
    Ok(Node::Leaf(leaf))
}

fn decode_inner(mut fields: Fields<'_>, level: u8, prefix: &[u8], count: usize, birth: Txg) -> Result<Node> {
    if count == 0 {
        return fields.fail("inner node without children");
    }
    let most = fields.rest().len() / super::node::CHILD_OVERHEAD;
    let mut inner = Inner { level, entries: Vec::with_capacity(count.min(most)), bytes: 0 };
    for _ in 0..count {
        let suffix_len = usize::from(fields.u16()?);
        let key = join(&mut fields, prefix, suffix_len)?;
        let ptr = StoredPtr::decode(&mut fields)?;
        if ptr.birth > birth {
            return fields.fail(format!("child born in txg {} in a node born in {birth}", ptr.birth));
        }
        if inner.entries.last().is_some_and(|last| last.key >= key) {
            return fields.fail(format!("key {key:?} is not above the one before it"));
        }
        let child = Child { key, link: Link::Disk(ptr) };
        inner.bytes += child.encoded_len();
        inner.entries.push(child);
    }
    fields.end()?;
    Ok(Node::Inner(inner))
}

fn join(fields: &mut Fields<'_>, prefix: &[u8], suffix_len: usize) -> Result<Key> {
    if prefix.len() + suffix_len > KEY_MAX {
        return fields.fail(format!("key of {} bytes", prefix.len() + suffix_len));
    }
    Ok(Key::joined(prefix, fields.take(suffix_len)?))
}
