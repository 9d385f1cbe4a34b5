//! Reads an objset as it was at one moment.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use snowmelt_pool::{Pool, View};

use super::key::{ObjsetKey, object_start};
use super::value::{Block, Dnode};
use crate::catalog::{Content, Kind};
use crate::error::DatasetError;
use snowmelt_stream::features::Features;

/// The dnode that was read last, because successive reads often use the same object.
type LastDnode = Mutex<Option<(u64, Arc<Dnode>)>>;

/// An immutable objset of a snapshot, or of a head at one moment. Cheap to clone.
#[derive(Clone)]
pub struct Objset {
    pool: Arc<Pool>,
    view: View,
    /// The full name, for messages.
    name: Arc<str>,
    kind: Kind,
    content: Content,
    /// Encryption root and key location, for messages.
    key: Arc<(String, String)>,
    last: Arc<LastDnode>,
}

impl Objset {
    pub(crate) fn new(pool: Arc<Pool>, view: View, name: &str, kind: Kind, content: Content) -> Self {
        Self {
            pool,
            view,
            name: name.into(),
            kind,
            content,
            key: Arc::new((name.split('@').next().unwrap_or(name).to_owned(), "prompt".to_owned())),
            last: Arc::default(),
        }
    }

    /// Adds the encryption root and its key location, for messages.
    #[must_use]
    pub(crate) fn with_key(mut self, root: &str, location: &str) -> Self {
        self.key = Arc::new((root.to_owned(), location.to_owned()));
        self
    }

    /// Full name of the snapshot or dataset.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Filesystem or volume.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What it contains, as announced in streams.
    pub fn content(&self) -> Content {
        self.content
    }

    /// Whether its blocks are encrypted, so that they cannot be read without a key.
    pub fn is_encrypted(&self) -> bool {
        self.content.features.contains(Features::RAW)
    }

    /// Whether data was omitted (`zfs send --redact`). Omitted data reads as zeros.
    pub fn is_redacted(&self) -> bool {
        self.content.features.contains(Features::REDACTED)
    }

    /// Checks that its content can be read.
    ///
    /// # Errors
    /// [`DatasetError::Encrypted`], which names the required key.
    pub fn require_readable(&self) -> Result<(), DatasetError> {
        const FIRST: u64 = 1;
        if self.is_encrypted() { Err(self.encrypted(FIRST)) } else { Ok(()) }
    }

    /// The tree.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// The pool that contains it.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// The dnode of an object; `None` if the object does not exist.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn dnode(&self, object: u64) -> Result<Option<Arc<Dnode>>, DatasetError> {
        if let Some((last, dnode)) = &*self.last.lock()
            && *last == object
        {
            return Ok(Some(dnode.clone()));
        }
        let Some(entry) = self.view.get(&ObjsetKey::Dnode { object }.encode())? else { return Ok(None) };
        let dnode = Arc::new(Dnode::decode(&entry.value)?);
        *self.last.lock() = Some((object, dnode.clone()));
        Ok(Some(dnode))
    }

    /// Object numbers from `from` on, in order.
    pub fn objects(&self, from: u64) -> impl Iterator<Item = Result<u64, DatasetError>> + '_ {
        let mut next = Some(from);
        std::iter::from_fn(move || {
            loop {
                let from = next?;
                let mut range = self.view.range(&object_start(from), None);
                let object = match range.next()? {
                    Ok((key, _)) => match ObjsetKey::decode(&key) {
                        Ok(key) => key.object(),
                        Err(error) => {
                            next = None;
                            return Some(Err(error));
                        }
                    },
                    Err(error) => {
                        next = None;
                        return Some(Err(error.into()));
                    }
                };
                next = object.checked_add(1);
                match self.dnode(object) {
                    Ok(None) => {}
                    Ok(Some(_)) => return Some(Ok(object)),
                    Err(error) => {
                        next = None;
                        return Some(Err(error));
                    }
                }
            }
        })
    }

    /// The record of a data block; `None` for a hole.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn block(&self, object: u64, blkid: u64) -> Result<Option<Block>, DatasetError> {
        match self.view.get(&ObjsetKey::Block { object, blkid }.encode())? {
            Some(entry) => Ok(Some(Block::decode(&entry.value)?)),
            None => Ok(None),
        }
    }

    /// The plain bytes of a block.
    ///
    /// # Errors
    /// [`DatasetError::Encrypted`] when a key is required; when the pool cannot be read.
    pub fn read_block(&self, object: u64, block: &Block) -> Result<Bytes, DatasetError> {
        if block.crypt.is_some() {
            return Err(self.encrypted(object));
        }
        Ok(self.pool.read(&block.ptr)?)
    }

    pub(crate) fn encrypted(&self, object: u64) -> DatasetError {
        DatasetError::Encrypted {
            dataset: self.name.to_string(),
            object,
            root: self.key.0.clone(),
            location: self.key.1.clone(),
        }
    }

    /// Fills `buf` from `offset` of an object. Holes, the part after the last block, and data omitted from a redacted
    /// dataset read as zeros, as ZFS shows a redacted dataset that is mounted by force.
    ///
    /// # Errors
    /// [`DatasetError::Encrypted`]; when there is no such object, or the pool cannot be read.
    pub fn read(&self, object: u64, offset: u64, buf: &mut [u8]) -> Result<(), DatasetError> {
        let dnode = self.dnode(object)?.ok_or_else(|| self.no_object(object))?;
        if self.is_encrypted() {
            return Err(self.encrypted(object));
        }
        let block_size = u64::from(dnode.block_size);
        let mut done = 0;
        while done < buf.len() {
            let at = offset.saturating_add(done as u64);
            let within = usize::try_from(at % block_size).unwrap_or(0);
            let len = (buf.len() - done).min(usize::try_from(block_size).unwrap_or(usize::MAX) - within);
            let target = &mut buf[done..done + len];
            match self.block(object, at / block_size)? {
                Some(block) if len as u64 == block_size && self.read_plain(&block, target)? => {}
                Some(block) => {
                    let data = self.read_block(object, &block)?;
                    let have = data.get(within..).unwrap_or_default();
                    let copied = have.len().min(len);
                    target[..copied].copy_from_slice(&have[..copied]);
                    target[copied..].fill(0);
                }
                None => target.fill(0),
            }
            done += len;
        }
        Ok(())
    }

    /// Reads a whole block directly into `buf` without the cache, if possible: readers of whole blocks seldom read them
    /// again.
    fn read_plain(&self, block: &Block, buf: &mut [u8]) -> Result<bool, DatasetError> {
        Ok(block.crypt.is_none() && self.pool.read_plain(&block.ptr, buf)?)
    }

    fn no_object(&self, object: u64) -> DatasetError {
        DatasetError::corrupt(format!("object {object} of {}", self.name), "it does not exist")
    }

    /// The plain bytes of an object's spill block.
    ///
    /// # Errors
    /// As [`Objset::read`].
    pub fn spill(&self, object: u64) -> Result<Option<Bytes>, DatasetError> {
        let Some(entry) = self.view.get(&ObjsetKey::Spill { object }.encode())? else { return Ok(None) };
        Ok(Some(self.read_block(object, &Block::decode(&entry.value)?)?))
    }

    /// First data at or after `offset`, in whole blocks, like `SEEK_DATA`.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn next_data(&self, object: u64, offset: u64) -> Result<Option<u64>, DatasetError> {
        let Some(dnode) = self.dnode(object)? else { return Ok(None) };
        let block_size = u64::from(dnode.block_size);
        let from = ObjsetKey::Block { object, blkid: offset / block_size }.encode();
        match self.view.range(&from, Some(&blocks_end(object))).next().transpose()? {
            Some((key, _)) => match ObjsetKey::decode(&key)? {
                ObjsetKey::Block { blkid, .. } => Ok(Some(blkid.saturating_mul(block_size).max(offset))),
                _ => Ok(None),
            },
            None => Ok(None),
        }
    }

    /// First hole at or after `offset`, in whole blocks, like `SEEK_HOLE`. The end of the last block counts as a hole.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn next_hole(&self, object: u64, offset: u64) -> Result<Option<u64>, DatasetError> {
        self.next_hole_before(object, offset, u64::MAX)
    }

    /// As [`next_hole`](Self::next_hole), but does not search past `end`. The result is then `end` or more.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn next_hole_before(&self, object: u64, offset: u64, end: u64) -> Result<Option<u64>, DatasetError> {
        let Some(dnode) = self.dnode(object)? else { return Ok(None) };
        let block_size = u64::from(dnode.block_size);
        let mut expected = offset / block_size;
        let from = ObjsetKey::Block { object, blkid: expected }.encode();
        for item in self.view.range(&from, Some(&blocks_end(object))) {
            if expected.saturating_mul(block_size) >= end {
                break;
            }
            match ObjsetKey::decode(&item?.0)? {
                ObjsetKey::Block { blkid, .. } if blkid == expected => expected = expected.saturating_add(1),
                _ => break,
            }
        }
        Ok(Some(expected.saturating_mul(block_size).max(offset)))
    }

    /// The highest block number with data.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn last_block(&self, object: u64) -> Result<Option<u64>, DatasetError> {
        last_block(&self.view, object)
    }

    /// Size of a volume in bytes, from its `zvol prop` object (`ZVOL_ZAP_OBJ` 2, name `size`).
    ///
    /// # Errors
    /// [`DatasetError::WrongType`] for a filesystem; when the object is damaged or encrypted.
    pub fn volume_size(&self) -> Result<u64, DatasetError> {
        if self.kind != Kind::Volume {
            return Err(DatasetError::WrongType { name: self.name.to_string() });
        }
        let dnode = self.dnode(VOLUME_PROPERTIES)?.ok_or_else(|| self.no_object(VOLUME_PROPERTIES))?;
        let mut block = vec![0; usize::try_from(dnode.block_size).unwrap_or(0).min(128 * 1024)];
        self.read(VOLUME_PROPERTIES, 0, &mut block)?;
        volume_size(&block)
    }

    /// Block size of a volume in bytes (from `ZVOL_OBJ` 1).
    ///
    /// # Errors
    /// As [`Objset::volume_size`].
    pub fn volume_block_size(&self) -> Result<u64, DatasetError> {
        if self.kind != Kind::Volume {
            return Err(DatasetError::WrongType { name: self.name.to_string() });
        }
        Ok(u64::from(self.dnode(VOLUME_DATA)?.ok_or_else(|| self.no_object(VOLUME_DATA))?.block_size))
    }
}

/// First key after an object's data blocks.
pub(crate) fn blocks_end(object: u64) -> Vec<u8> {
    ObjsetKey::Redaction { object, offset: 0 }.encode()
}

pub(crate) fn last_block(view: &View, object: u64) -> Result<Option<u64>, DatasetError> {
    let Some((key, _)) = view.last_before(&blocks_end(object))? else { return Ok(None) };
    match ObjsetKey::decode(&key)? {
        ObjsetKey::Block { object: found, blkid } if found == object => Ok(Some(blkid)),
        _ => Ok(None),
    }
}

/// Length of a redaction entry.
pub(crate) fn redaction_len(value: &[u8]) -> Result<u64, DatasetError> {
    match value.split_first() {
        Some((1, rest)) => <[u8; 8]>::try_from(rest)
            .map(u64::from_le_bytes)
            .map_err(|_| DatasetError::corrupt("redaction record", "record is cut short")),
        _ => Err(DatasetError::corrupt("redaction record", "record version is not known to this build")),
    }
}

/// The value of a redaction entry.
pub(crate) fn encode_redaction(len: u64) -> Vec<u8> {
    let mut out = vec![1];
    out.extend_from_slice(&len.to_le_bytes());
    out
}

/// `ZVOL_OBJ`
pub const VOLUME_DATA: u64 = 1;
/// `ZVOL_ZAP_OBJ`
pub const VOLUME_PROPERTIES: u64 = 2;

/// Offset of the value of a name in a one-block micro ZAP (`mzap_phys_t`). The properties of a volume always have this
/// form.
pub(crate) fn micro_zap_entry(block: &[u8], name: &[u8]) -> Option<usize> {
    const MICRO: u64 = (1 << 63) + 3;
    const ENTRY: usize = 64;
    if u64::from_le_bytes(*block.first_chunk::<8>()?) != MICRO {
        return None;
    }
    let named = |entry: &[u8]| entry[14..].split(|&byte| byte == 0).next() == Some(name);
    let index = block.get(ENTRY..)?.chunks_exact(ENTRY).position(named)?;
    Some((index + 1) * ENTRY)
}

/// The size of a volume from its property block.
pub(crate) fn volume_size(block: &[u8]) -> Result<u64, DatasetError> {
    micro_zap_entry(block, b"size")
        .and_then(|at| block.get(at..)?.first_chunk::<8>())
        .map(|bytes| u64::from_le_bytes(*bytes))
        .ok_or_else(|| DatasetError::corrupt("volume properties", "no volume size"))
}
