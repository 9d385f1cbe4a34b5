//! Decrypting and authenticating the contents of raw records (`zio_do_crypt_data`, `spa_do_crypt_mac_abd`,
//! `zio_crypt_do_objset_hmacs`).

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use snowmelt_stream::{ByteOrder, Crypt, ObjectRange, Write};
use subtle::ConstantTimeEq;
use zeroize::Zeroize;

use crate::auth::{BlockAuth, OT_DNODE, block_order, is_encrypted};
use crate::dnode::{self, Core, Dnode};
use crate::error::BlockError;
use crate::keydata::{DNODE_BLOCK, Keydata, OBJSET_MAC_LEN};
use crate::keys::{Keys, SALT_LEN};
use crate::suite::Cipher;

/// Number of ciphers that are cached. A dataset has one salt for each time it was opened for writing, and blocks from
/// the same time are close together.
const CACHED: usize = 16;

/// Decrypts a dataset's blocks. Can be used by many threads at once.
#[derive(Debug)]
pub struct Decryptor {
    keys: Keys,
    /// By salt, most recently used first.
    ciphers: Mutex<VecDeque<([u8; SALT_LEN], Arc<Cipher>)>>,
}

impl Decryptor {
    /// Decrypts with these keys.
    #[must_use]
    pub fn new(keys: Keys) -> Self {
        Self { keys, ciphers: Mutex::new(VecDeque::with_capacity(CACHED)) }
    }

    /// The keys.
    #[must_use]
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    fn cipher(&self, salt: &[u8; SALT_LEN]) -> Arc<Cipher> {
        let mut ciphers = self.ciphers.lock();
        if let Some(at) = ciphers.iter().position(|(of, _)| of == salt)
            && let Some(found) = ciphers.remove(at)
        {
            let cipher = found.1.clone();
            ciphers.push_front(found);
            return cipher;
        }
        // Derived under the lock, because other threads need the same cipher.
        let cipher = Arc::new(self.keys.cipher(salt));
        ciphers.truncate(CACHED - 1);
        ciphers.push_front((*salt, cipher.clone()));
        cipher
    }

    /// Authenticates the payload of a raw WRITE or SPILL. Decrypts it in place if blocks of its type are encrypted. The
    /// result is still compressed if the record says so.
    ///
    /// `object_type` is that of the WRITE, or the type of the bonus buffer for a spill block.
    ///
    /// # Errors
    /// [`BlockError::Unauthentic`]. Encrypted `data` is then set to zeros.
    pub fn block(&self, object_type: u32, crypt: &Crypt, data: &mut [u8]) -> Result<(), BlockError> {
        if is_encrypted(object_type) {
            self.cipher(&crypt.salt).open(&crypt.iv, &[], data, &crypt.mac)
        } else {
            self.keys.check_hmac(data, &crypt.mac)
        }
    }

    /// Authenticates a block of dnodes, and decrypts the bonus buffers in place.
    ///
    /// `dnodes` are those of the range, in order of their numbers. Slots without a dnode are free. `stream` is the byte
    /// order of the stream with the records.
    ///
    /// # Errors
    /// [`BlockError::Unauthentic`], or the dnodes do not form a block. The bonus buffers are then unchanged.
    pub fn dnodes(
        &self,
        range: &ObjectRange,
        stream: ByteOrder,
        dnodes: &mut [Dnode<'_>],
    ) -> Result<(), BlockError> {
        let order = block_order(stream, range.flags & Write::RAW_BYTESWAP != 0);
        let mut split = dnode::split(range.first, order, dnodes)?;
        let Crypt { salt, iv, mac } = &range.crypt;
        self.cipher(salt).open(iv, &split.authenticated, &mut split.encrypted, mac)?;
        dnode::join(&split.encrypted, dnodes);
        split.encrypted.zeroize();
        Ok(())
    }

    /// Authenticates the object set. `roots` are those of the tree of all its dnode blocks. `objset_type` is that of
    /// BEGIN.
    ///
    /// Success proves that no dnode block is missing, in a wrong place or from another snapshot.
    ///
    /// # Errors
    /// [`BlockError::Unauthentic`].
    pub fn objset(&self, keydata: &Keydata, objset_type: u32, roots: &[BlockAuth]) -> Result<(), BlockError> {
        let found = self.portable_mac(keydata, objset_type, roots);
        if bool::from(found.ct_eq(&keydata.portable_mac)) { Ok(()) } else { Err(BlockError::Unauthentic) }
    }

    fn portable_mac(&self, keydata: &Keydata, objset_type: u32, roots: &[BlockAuth]) -> [u8; OBJSET_MAC_LEN] {
        let shape = keydata.metadnode;
        let core = Core {
            object_type: OT_DNODE.to_le_bytes()[0],
            indirect_shift: shape.indirect_shift,
            nlevels: shape.nlevels,
            nblkptr: shape.nblkptr,
            checksum: shape.checksum,
            compress: shape.compress,
            block_sectors: (DNODE_BLOCK >> 9) as u16,
            max_blkid: shape.max_blkid,
            ..Core::default()
        };
        // Big-endian on every machine, unlike all other fields: OpenZFS swaps `os_type` where it should not.
        let objset_type = u64::from(objset_type).to_be_bytes();
        // None of the existing flags is portable (`OBJSET_CRYPT_PORTABLE_FLAGS_MASK`).
        let flags = 0_u64.to_le_bytes();
        let core = core.to_bytes(ByteOrder::Little);
        let roots: Vec<u8> = roots.iter().flat_map(|root| root.to_bytes()).collect();
        let full = self.keys.hmac([&objset_type[..], &flags, &core, &roots]);
        let mut mac = [0; OBJSET_MAC_LEN];
        mac.copy_from_slice(&full[..OBJSET_MAC_LEN]);
        mac
    }
}

impl std::fmt::Debug for Cipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cipher")
    }
}
