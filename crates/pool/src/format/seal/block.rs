//! Seals and unseals blocks.

use bytes::{Bytes, BytesMut};

use super::context;
use super::keys::Keys;
use super::record::KeyRecord;
use super::suite::{Cipher, Suite, TAG_LEN};
use crate::format::segment::Kind;
use crate::ids::{BlockId, TreeId, Txg};

/// The class of a block. A reader knows it without the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Data,
    Node,
    /// A node of the meta tree. A node of another tree cannot replace it.
    MetaNode,
}

impl Class {
    pub(crate) fn of(kind: Kind, owner: TreeId) -> Self {
        match kind {
            Kind::Data => Class::Data,
            Kind::Node => Class::of_node(owner == TreeId::META),
        }
    }

    pub(crate) fn of_node(meta: bool) -> Self {
        if meta { Class::MetaNode } else { Class::Node }
    }

    fn id(self) -> u8 {
        match self {
            Class::Data => 1,
            Class::Node => 2,
            Class::MetaNode => 3,
        }
    }
}

/// What a sealed block is bound to: everything its pointer says about the content.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seal {
    pub(crate) class: Class,
    /// Compression and suite, as in pointers.
    pub(crate) compression: u8,
    /// Logical length, bytes.
    pub(crate) lsize: u32,
    pub(crate) birth: Txg,
}

/// Length of the additional authenticated data of a block, bytes.
const AD_LEN: usize = 8 + 1 + 1 + 4 + 8;

/// The ciphers and subkeys derived from the pool's key.
pub(crate) struct Sealer {
    suite: Suite,
    guid: u64,
    cipher: Cipher,
    nonces: zeroize::Zeroizing<[u8; 32]>,
    record: KeyRecord,
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealer").field("suite", &self.suite).finish_non_exhaustive()
    }
}

impl Sealer {
    pub(crate) fn new(keys: &Keys) -> Self {
        let suite = keys.suite();
        let cipher = Cipher::new(suite, &keys.derive(context::BLOCKS));
        let nonces = keys.derive(context::NONCES);
        Sealer { suite, guid: keys.guid(), cipher, nonces, record: keys.record().clone() }
    }

    pub(crate) fn suite(&self) -> Suite {
        self.suite
    }

    /// The record of the pool's key.
    pub(crate) fn record(&self) -> &KeyRecord {
        &self.record
    }

    fn ad(&self, seal: &Seal) -> [u8; AD_LEN] {
        let mut out = [0; AD_LEN];
        out[..8].copy_from_slice(&self.guid.to_le_bytes());
        out[8] = seal.class.id();
        out[9] = seal.compression;
        out[10..14].copy_from_slice(&seal.lsize.to_le_bytes());
        out[14..].copy_from_slice(&seal.birth.to_le_bytes());
        out
    }

    /// Seals a payload whose BLAKE3 is `hash`. The result is nonce, ciphertext and tag. The same payload, seal, object
    /// and block number always give the same bytes, so an offered block can be compared with a pointer's hash. Any
    /// difference gives another nonce.
    pub(crate) fn seal(&self, seal: &Seal, id: BlockId, payload: &[u8], hash: &[u8; 32]) -> Option<Bytes> {
        let ad = self.ad(seal);
        let mut hasher = blake3::Hasher::new_keyed(&self.nonces);
        hasher.update(&ad).update(&id.object.to_le_bytes()).update(&id.blkid.to_le_bytes()).update(hash);
        let derived = hasher.finalize();
        let nonce = derived.as_bytes().get(..self.suite.nonce_len())?;
        let mut out = Vec::with_capacity(payload.len() + self.suite.overhead() as usize);
        out.extend_from_slice(nonce);
        out.extend_from_slice(payload);
        let tag = self.cipher.seal(nonce, &ad, out.get_mut(nonce.len()..)?)?;
        out.extend_from_slice(&tag);
        Some(out.into())
    }

    /// Opens a sealed block and returns its payload; `None` if the block is not authentic.
    pub(crate) fn open(&self, seal: &Seal, stored: Bytes) -> Option<Bytes> {
        let nonce_len = self.suite.nonce_len();
        let end = stored.len().checked_sub(TAG_LEN).filter(|end| *end >= nonce_len)?;
        let mut buf = stored.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
        let (nonce, rest) = buf.split_at_mut(nonce_len);
        let (data, tag) = rest.split_last_chunk_mut::<TAG_LEN>()?;
        if !self.cipher.open(nonce, &self.ad(seal), data, tag) {
            return None;
        }
        Some(buf.freeze().slice(nonce_len..end))
    }
}
