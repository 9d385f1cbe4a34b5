//! Reading and writing integers in byte slices, in either byte order, with checked bounds.

/// Byte order of a structure, found from its magic number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endian {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

impl Endian {
    /// The 16-bit integer at byte `at`, if `buf` reaches that far.
    pub fn u16(self, buf: &[u8], at: usize) -> Option<u16> {
        let raw = *buf.get(at..)?.first_chunk()?;
        Some(match self {
            Self::Little => u16::from_le_bytes(raw),
            Self::Big => u16::from_be_bytes(raw),
        })
    }

    /// The 32-bit integer at byte `at`, if `buf` reaches that far.
    pub fn u32(self, buf: &[u8], at: usize) -> Option<u32> {
        let raw = *buf.get(at..)?.first_chunk()?;
        Some(match self {
            Self::Little => u32::from_le_bytes(raw),
            Self::Big => u32::from_be_bytes(raw),
        })
    }

    /// The 64-bit integer at byte `at`, if `buf` reaches that far.
    pub fn u64(self, buf: &[u8], at: usize) -> Option<u64> {
        let raw = *buf.get(at..)?.first_chunk()?;
        Some(match self {
            Self::Little => u64::from_le_bytes(raw),
            Self::Big => u64::from_be_bytes(raw),
        })
    }
}

/// Writes a little-endian integer at byte `at`. The caller has checked that `buf` is long enough.
pub(crate) fn put_u16(buf: &mut [u8], at: usize, value: u16) {
    put(buf, at, value.to_le_bytes());
}

/// Like [`put_u16`], for 32 bits.
pub(crate) fn put_u32(buf: &mut [u8], at: usize, value: u32) {
    put(buf, at, value.to_le_bytes());
}

/// Like [`put_u16`], for 64 bits.
pub(crate) fn put_u64(buf: &mut [u8], at: usize, value: u64) {
    put(buf, at, value.to_le_bytes());
}

fn put<const N: usize>(buf: &mut [u8], at: usize, bytes: [u8; N]) {
    let target = buf.get_mut(at..).and_then(|rest| rest.first_chunk_mut());
    debug_assert!(target.is_some(), "byte {at} is out of bounds");
    if let Some(target) = target {
        *target = bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_orders_and_stays_inside() {
        let buf = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        assert_eq!(Endian::Little.u16(&buf, 0), Some(0x0201));
        assert_eq!(Endian::Big.u32(&buf, 1), Some(0x0203_0405));
        assert_eq!(Endian::Big.u64(&buf, 1), Some(0x0203_0405_0607_0809));
        assert_eq!(Endian::Little.u64(&buf, 2), None);
        assert_eq!(Endian::Little.u16(&buf, usize::MAX), None);
    }

    #[test]
    fn writes_what_it_reads() {
        let mut buf = [0; 16];
        put_u16(&mut buf, 1, 0x0201);
        put_u32(&mut buf, 3, 0x0605_0403);
        put_u64(&mut buf, 8, u64::MAX - 1);
        assert_eq!(buf[..8], [0, 1, 2, 3, 4, 5, 6, 0]);
        assert_eq!(Endian::Little.u64(&buf, 8), Some(u64::MAX - 1));
    }
}
