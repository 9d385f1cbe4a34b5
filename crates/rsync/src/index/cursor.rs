//! Reads and writes numbers and lengths in an index (docs/format/index.md, "Numbers").

use super::IndexError;

/// A reader at a position. Reading beyond the end is an error.
#[derive(Debug, Clone, Copy)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// A reader of `bytes` from the position `at` on. `bytes` are the file from its start to where reading must end, so
    /// that positions are offsets in the file.
    pub fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    /// The position in the file.
    pub fn at(&self) -> usize {
        self.at
    }

    pub fn corrupt(&self, what: &'static str) -> IndexError {
        IndexError::Corrupt { offset: self.at, what }
    }

    /// The next `len` bytes.
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], IndexError> {
        let end = self.at.checked_add(len);
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or_else(|| self.corrupt("it ends too early"))?;
        self.at += len;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], IndexError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub fn u8(&mut self) -> Result<u8, IndexError> {
        self.array().map(|[byte]| byte)
    }

    pub fn u32(&mut self) -> Result<u32, IndexError> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, IndexError> {
        self.array().map(u64::from_le_bytes)
    }

    /// A varint: seven bits in each byte, the lowest first.
    pub fn varint(&mut self) -> Result<u64, IndexError> {
        let mut value = 0_u64;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.corrupt("a number too large"))
    }

    pub fn varint32(&mut self) -> Result<u32, IndexError> {
        u32::try_from(self.varint()?).map_err(|_| self.corrupt("a number too large"))
    }

    pub fn signed(&mut self) -> Result<i64, IndexError> {
        let value = self.varint()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// A length of at most `most`, and this number of bytes.
    pub fn bytes(&mut self, most: usize) -> Result<&'a [u8], IndexError> {
        let len = usize::try_from(self.varint()?).ok().filter(|len| *len <= most);
        let len = len.ok_or_else(|| self.corrupt("a length too large"))?;
        self.take(len)
    }
}

pub fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Writes a signed number. Small numbers of either sign are short.
pub fn put_signed(value: i64, out: &mut Vec<u8>) {
    put_varint((value << 1 ^ value >> 63).cast_unsigned(), out);
}

pub fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    put_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_come_back(value: u64, signed: i64) {
            let mut out = Vec::new();
            put_varint(value, &mut out);
            put_signed(signed, &mut out);
            let mut cursor = Cursor::new(&out, 0);
            prop_assert_eq!(cursor.varint().unwrap(), value);
            prop_assert_eq!(cursor.signed().unwrap(), signed);
            prop_assert_eq!(cursor.at(), out.len());
        }
    }

    #[test]
    fn numbers_that_are_none_are_refused() {
        for bytes in [&[0x80_u8][..], &[0xff; 10], &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 2]]
        {
            assert!(Cursor::new(bytes, 0).varint().is_err(), "{bytes:?}");
        }
        assert!(Cursor::new(&[5, 1, 2], 0).bytes(10).is_err());
        assert!(Cursor::new(&[3, 1, 2, 3], 0).bytes(2).is_err());
    }
}
