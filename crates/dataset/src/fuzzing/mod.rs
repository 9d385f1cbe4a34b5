//! Runs every decoder of this layer on arbitrary bytes, and tests forged pools, for fuzz targets. Not part of the API.

pub mod whole;

use std::fmt::Debug;

use snowmelt_stream::nvlist::NvList;

use crate::catalog::record::{BookmarkRecord, DatasetRecord, ReceiveState, SnapshotRecord};
use crate::error::DatasetError;
use crate::name::Name;
use crate::objset::value::{Block, BlockCrypt, Dnode};
use crate::objset::{ObjsetKey, view};
use crate::receive::{byteswap, key_data, meaning};

/// Decodes `data` as each kind of record. A record that decodes must encode to bytes that decode to the same record.
///
/// # Panics
/// When it does not.
pub fn decoders(data: &[u8]) {
    again(data, DatasetRecord::decode, DatasetRecord::encode);
    again(data, SnapshotRecord::decode, SnapshotRecord::encode);
    again(data, BookmarkRecord::decode, BookmarkRecord::encode);
    again(data, ReceiveState::decode, ReceiveState::encode);
    again(data, Dnode::decode, Dnode::encode);
    again(data, Block::decode, Block::encode);
    again(data, BlockCrypt::decode_range, BlockCrypt::encode_range);
    again(data, view::redaction_len, |len| view::encode_redaction(*len));
    if let Ok(key) = ObjsetKey::decode(data) {
        assert_eq!(key.encode(), data);
    }
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(name) = Name::parse(text)
    {
        assert_eq!(name.to_string(), text);
    }
    let _ = (key_data::ivset_guid(data), key_data::from_ivset_guid(data));
    if let Ok(payload) = NvList::unpack(data) {
        let _ = key_data::extract(Some(&payload));
    }
    // The first byte is a type, the rest is data of that type.
    if let Some((&object_type, bytes)) = data.split_first() {
        let _ = (meaning::bonus(object_type, bytes), meaning::generation(object_type, bytes));
        let _ = (meaning::block(object_type, 0, bytes), meaning::block(object_type, 1, bytes));
        let _ = (meaning::spill(bytes), view::volume_size(bytes));
    }
}

/// Swaps a big-endian block or bonus of this type to little-endian. Returns whether that was possible.
pub fn to_little_endian(object_type: u8, bytes: &mut [u8]) -> bool {
    byteswap::to_little_endian(object_type, bytes).is_ok()
}

fn again<T: PartialEq + Debug>(
    data: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, DatasetError>,
    encode: impl Fn(&T) -> Vec<u8>,
) {
    if let Ok(record) = decode(data) {
        assert_eq!(decode(&encode(&record)).ok(), Some(record));
    }
}

#[cfg(test)]
mod tests {
    use super::decoders;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_bytes_make_a_decoder_panic(first in 0u8..4, data in prop::collection::vec(any::<u8>(), 0..300)) {
            decoders(&data);
            decoders(&[&[first], &data[..]].concat());
        }

        #[test]
        fn nearly_right_bytes_neither(data in prop::collection::vec(0u8..4, 0..200)) {
            decoders(&data);
        }
    }
}
