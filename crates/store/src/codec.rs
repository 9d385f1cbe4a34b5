//! Reading and writing of little-endian fields, and the checksum of a store's records.

/// Length of a BLAKE3 checksum in bytes.
pub(crate) const SUM_LEN: usize = 32;

/// Returns the `N` bytes at `offset`, or `None` beyond the end of `buf`.
pub(crate) fn bytes_at<const N: usize>(buf: &[u8], offset: usize) -> Option<[u8; N]> {
    buf.get(offset..offset.checked_add(N)?)?.try_into().ok()
}

pub(crate) fn u16_at(buf: &[u8], offset: usize) -> Option<u16> {
    bytes_at(buf, offset).map(u16::from_le_bytes)
}

pub(crate) fn u32_at(buf: &[u8], offset: usize) -> Option<u32> {
    bytes_at(buf, offset).map(u32::from_le_bytes)
}

pub(crate) fn u64_at(buf: &[u8], offset: usize) -> Option<u64> {
    bytes_at(buf, offset).map(u64::from_le_bytes)
}

/// Writes `bytes` at `offset` of a record that is being built. Panics if they do not fit: the offsets are constants
/// of the format.
pub(crate) fn put(buf: &mut [u8], offset: usize, bytes: &[u8]) {
    buf[offset..offset + bytes.len()].copy_from_slice(bytes);
}

/// Returns the checksum of a record: BLAKE3 of its parts in order.
pub(crate) fn sum(parts: &[&[u8]]) -> [u8; SUM_LEN] {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}
