//! The key data of a raw stream: the nvlist `crypt_keydata` in BEGIN's payload.
//!
//! It is stored and sent unchanged: wrapped keys, the portable MAC of the objset, and the guids of the IV sets of the
//! stream's base and snapshot (`dsl_crypto_populate_key_nvlist` of `module/zfs/dsl_crypt.c`).

use snowmelt_stream::nvlist::NvList;

/// Name of the nvlist in BEGIN's payload.
pub(crate) const CRYPT_KEYDATA: &str = "crypt_keydata";

/// The packed key data of a BEGIN payload.
pub(crate) fn extract(payload: Option<&NvList>) -> Result<Vec<u8>, &'static str> {
    let key_data =
        payload.and_then(|payload| payload.get_list(CRYPT_KEYDATA)).ok_or("it carries no key data")?;
    for key in ["DSL_CRYPTO_CRYPTO_KEY_GUID", "DSL_CRYPTO_GUID"] {
        if key_data.get_u64(key).is_some() {
            return Ok(key_data.pack_xdr());
        }
    }
    Err("its key data names no key")
}

/// The guid of the snapshot's IV set.
pub(crate) fn ivset_guid(packed: &[u8]) -> Option<u64> {
    NvList::unpack(packed).ok()?.get_u64("to_ivset_guid")
}

/// The guid of the IV set that an incremental stream starts from.
pub(crate) fn from_ivset_guid(packed: &[u8]) -> Option<u64> {
    NvList::unpack(packed).ok()?.get_u64("from_ivset_guid")
}
