//! `crypt_keydata`: the key data in the BEGIN of a raw stream (`dsl_crypto_populate_key_nvlist` in
//! `module/zfs/dsl_crypt.c`; the names are in `include/sys/dsl_crypt.h`). Checked like `dsl_crypto_recv_raw_key_check`
//! and `_objset_check`.

use snowmelt_stream::NvList;

use crate::error::KeyError;
use crate::key_format::KeyFormat;
use crate::suite::{IV_LEN, MAC_LEN, MAX_KEY_LEN, Suite};

/// Length of the key of HMACs (`SHA512_HMAC_KEYLEN`), in bytes.
pub const HMAC_KEY_LEN: usize = 64;
/// Length of an object set's MAC (`ZIO_OBJSET_MAC_LEN`), in bytes.
pub const OBJSET_MAC_LEN: usize = 32;
/// Maximum number of PBKDF2 iterations for a stream. Otherwise a hostile stream could keep a machine busy for years.
pub const MAX_ITERATIONS: u32 = 1 << 28;
/// `ZIO_CRYPT_KEY_CURRENT_VERSION`.
pub(crate) const VERSION: u64 = 1;
/// Size of a block of dnodes, in bytes (`DNODE_BLOCK_SHIFT`). All blocks of the metadnode have this size.
pub const DNODE_BLOCK: u64 = 16 << 10;

/// Shape of the metadnode, and so of the tree of dnode blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Metadnode {
    /// `enum zio_checksum`.
    pub checksum: u8,
    /// `enum zio_compress`.
    pub compress: u8,
    /// Levels of the block tree.
    pub nlevels: u8,
    /// log2 of the indirect block size.
    pub indirect_shift: u8,
    /// Block pointers: always 3.
    pub nblkptr: u8,
    /// Highest block.
    pub max_blkid: u64,
}

/// The key data of one snapshot: wrapped keys, and the parameters of the wrapping key. None of it is secret.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Keydata {
    /// The suite.
    pub suite: Suite,
    /// Guid of the key: the same in all snapshots and clones of a dataset.
    pub guid: u64,
    /// The encrypted master key, with length `MAX_KEY_LEN` whatever the suite.
    pub master_key: [u8; MAX_KEY_LEN],
    /// The encrypted key of HMACs.
    pub hmac_key: [u8; HMAC_KEY_LEN],
    /// Initialisation vector of both.
    pub iv: [u8; IV_LEN],
    /// MAC of both.
    pub mac: [u8; MAC_LEN],
    /// The format of the wrapping key.
    pub format: KeyFormat,
    /// Number of PBKDF2 iterations. 0 unless the format is a passphrase.
    pub iterations: u32,
    /// Salt of PBKDF2. 0 unless the format is a passphrase.
    pub salt: u64,
    /// MAC of the portable parts of the object set.
    pub portable_mac: [u8; OBJSET_MAC_LEN],
    /// Shape of the metadnode.
    pub metadnode: Metadnode,
}

impl Keydata {
    /// The name of this list within BEGIN's list.
    pub const NAME: &'static str = "crypt_keydata";

    /// Reads the key data from the payload of a raw stream's BEGIN.
    ///
    /// # Errors
    /// There is none, or it is invalid.
    pub fn of_begin(begin: &NvList) -> Result<Self, KeyError> {
        let list = begin.get_list(Self::NAME);
        Self::parse(list.ok_or(KeyError::Field { field: Self::NAME, expected: "a list" })?)
    }

    /// Reads the key data from its list.
    ///
    /// # Errors
    /// A field is missing or invalid.
    pub fn parse(list: &NvList) -> Result<Self, KeyError> {
        let suite = number(list, "DSL_CRYPTO_SUITE")?;
        let suite = Suite::from_id(suite).ok_or(KeyError::Suite { found: suite })?;
        let version = number(list, "DSL_CRYPTO_VERSION")?;
        if version != VERSION {
            return Err(KeyError::Version { found: version });
        }
        let format = match number(list, "keyformat")? {
            1 => KeyFormat::Raw,
            2 => KeyFormat::Hex,
            3 => KeyFormat::Passphrase,
            found => return Err(KeyError::Range { field: "keyformat", found, min: 1, max: 3 }),
        };
        let (iterations, salt) = pbkdf2(list, format)?;
        Ok(Self {
            suite,
            guid: number(list, "DSL_CRYPTO_GUID")?,
            master_key: bytes(list, "DSL_CRYPTO_MASTER_KEY_1", "32 bytes")?,
            hmac_key: bytes(list, "DSL_CRYPTO_HMAC_KEY_1", "64 bytes")?,
            iv: bytes(list, "DSL_CRYPTO_IV", "12 bytes")?,
            mac: bytes(list, "DSL_CRYPTO_MAC", "16 bytes")?,
            format,
            iterations,
            salt,
            portable_mac: bytes(list, "portable_mac", "32 bytes")?,
            metadnode: metadnode(list)?,
        })
    }
}

/// Iterations and salt: both set for a passphrase, both zero for other formats.
fn pbkdf2(list: &NvList, format: KeyFormat) -> Result<(u32, u64), KeyError> {
    let max = if format == KeyFormat::Passphrase { (u64::from(MAX_ITERATIONS), u64::MAX) } else { (0, 0) };
    let min = u64::from(format == KeyFormat::Passphrase);
    let iterations = within(list, "pbkdf2iters", min, max.0)?;
    let salt = within(list, "pbkdf2salt", min, max.1)?;
    Ok((u32::try_from(iterations).unwrap_or(MAX_ITERATIONS), salt))
}

fn metadnode(list: &NvList) -> Result<Metadnode, KeyError> {
    within(list, "mdn_blksz", DNODE_BLOCK, DNODE_BLOCK)?;
    Ok(Metadnode {
        // Below `ZIO_CHECKSUM_LEGACY_FUNCTIONS` and `ZIO_COMPRESS_LEGACY_FUNCTIONS`, as in the kernel, or newer.
        checksum: small(list, "mdn_checksum", 0, 127)?,
        compress: small(list, "mdn_compress", 0, 127)?,
        nlevels: small(list, "mdn_nlevels", 1, 12)?,
        indirect_shift: small(list, "mdn_indblkshift", 12, 17)?,
        nblkptr: small(list, "mdn_nblkptr", 3, 3)?,
        max_blkid: number(list, "mdn_maxblkid")?,
    })
}

fn number(list: &NvList, field: &'static str) -> Result<u64, KeyError> {
    list.get_u64(field).ok_or(KeyError::Field { field, expected: "a number" })
}

fn within(list: &NvList, field: &'static str, min: u64, max: u64) -> Result<u64, KeyError> {
    let found = number(list, field)?;
    if (min..=max).contains(&found) { Ok(found) } else { Err(KeyError::Range { field, found, min, max }) }
}

fn small(list: &NvList, field: &'static str, min: u8, max: u8) -> Result<u8, KeyError> {
    let found = within(list, field, u64::from(min), u64::from(max))?;
    Ok(u8::try_from(found).unwrap_or(max))
}

fn bytes<const N: usize>(
    list: &NvList,
    field: &'static str,
    expected: &'static str,
) -> Result<[u8; N], KeyError> {
    let found = list.get_u8_array(field).and_then(|found| found.try_into().ok());
    found.ok_or(KeyError::Field { field, expected })
}
