//! Integers and strings of the protocol.

use std::io::{self, Read, Write};

/// The number of bytes after the first byte of a variable integer: the number of its leading ones.
fn extra_bytes(first: u8) -> usize {
    first.leading_ones().min(6) as usize
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Reads the protocol's integers and strings.
pub trait ReadWire: Read {
    /// One byte.
    ///
    /// # Errors
    /// When there is none.
    fn read_u8(&mut self) -> io::Result<u8> {
        let mut byte = [0];
        self.read_exact(&mut byte)?;
        Ok(byte[0])
    }

    /// Two bytes, little-endian.
    ///
    /// # Errors
    /// When there are fewer.
    fn read_u16(&mut self) -> io::Result<u16> {
        let mut bytes = [0; 2];
        self.read_exact(&mut bytes)?;
        Ok(u16::from_le_bytes(bytes))
    }

    /// Four bytes, little-endian, signed.
    ///
    /// # Errors
    /// When there are fewer.
    fn read_i32(&mut self) -> io::Result<i32> {
        let mut bytes = [0; 4];
        self.read_exact(&mut bytes)?;
        Ok(i32::from_le_bytes(bytes))
    }

    /// A *varint*. The number of leading ones in the first byte is the number of bytes that follow, in little-endian
    /// order. The rest of the first byte has the highest bits.
    ///
    /// # Errors
    /// When it is longer than 32 bits.
    fn read_varint(&mut self) -> io::Result<i32> {
        let first = self.read_u8()?;
        let extra = extra_bytes(first);
        if extra > 4 {
            return Err(invalid("a varint of more than 32 bits"));
        }
        let mut bytes = [0; 8];
        self.read_exact(&mut bytes[..extra])?;
        bytes[extra] = if extra < 7 { first & (0x7f_u8 >> extra) } else { 0 };
        let value = u64::from_le_bytes(bytes);
        u32::try_from(value).map(u32::cast_signed).map_err(|_| invalid("a varint of more than 32 bits"))
    }

    /// A *longint* as an unsigned number: see [`WriteWire::write_longint`].
    ///
    /// # Errors
    /// When it is negative.
    fn read_longint(&mut self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        let value = match self.read_i32()? {
            -1 => {
                self.read_exact(&mut bytes)?;
                i64::from_le_bytes(bytes)
            }
            value => i64::from(value),
        };
        u64::try_from(value).map_err(|_| invalid("a negative number"))
    }

    /// A signed *varlong* of at least `min` bytes: see [`WriteWire::write_varlong`].
    ///
    /// # Errors
    /// When it is longer than 64 bits.
    fn read_varlong(&mut self, min: usize) -> io::Result<i64> {
        let mut head = [0; 8];
        self.read_exact(&mut head[..min])?;
        let extra = extra_bytes(head[0]);
        let mut bytes = [0; 16];
        bytes[..min - 1].copy_from_slice(&head[1..min]);
        self.read_exact(&mut bytes[min - 1..min - 1 + extra])?;
        bytes[min - 1 + extra] = head[0] & (0xff_u8 >> (extra + usize::from(extra > 0)));
        let (low, high) = bytes.split_at(8);
        if high.iter().any(|byte| *byte != 0) {
            return Err(invalid("a varlong of more than 64 bits"));
        }
        Ok(i64::from_le_bytes(low.try_into().unwrap_or_default()))
    }

    /// `len` bytes, at most `most`.
    ///
    /// # Errors
    /// When `len` is greater than `most`, or there are fewer bytes.
    fn read_bytes(&mut self, len: usize, most: usize) -> io::Result<Vec<u8>> {
        if len > most {
            return Err(invalid("a string longer than anything has use for"));
        }
        let mut bytes = vec![0; len];
        self.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// A *vstring*: a length and the bytes. The length has one byte, or two bytes of which the first has its highest
    /// bit set.
    ///
    /// # Errors
    /// When it is longer than `most`.
    fn read_vstring(&mut self, most: usize) -> io::Result<Vec<u8>> {
        let first = self.read_u8()?;
        let len = match first & 0x80 {
            0 => usize::from(first),
            _ => usize::from(first & 0x7f) << 8 | usize::from(self.read_u8()?),
        };
        self.read_bytes(len, most)
    }
}

impl<R: Read + ?Sized> ReadWire for R {}

/// Writes the protocol's integers and strings.
pub trait WriteWire: Write {
    /// One byte.
    ///
    /// # Errors
    /// When the writer fails.
    fn write_u8(&mut self, value: u8) -> io::Result<()> {
        self.write_all(&[value])
    }

    /// Two bytes, little-endian.
    ///
    /// # Errors
    /// When the writer fails.
    fn write_u16(&mut self, value: u16) -> io::Result<()> {
        self.write_all(&value.to_le_bytes())
    }

    /// Four bytes, little-endian.
    ///
    /// # Errors
    /// When the writer fails.
    fn write_i32(&mut self, value: i32) -> io::Result<()> {
        self.write_all(&value.to_le_bytes())
    }

    /// A varint: see [`ReadWire::read_varint`].
    ///
    /// # Errors
    /// When the writer fails.
    fn write_varint(&mut self, value: u32) -> io::Result<()> {
        self.write_varlong(u64::from(value), 1)
    }

    /// A *varlong*: like a varint, of at least `min` bytes.
    ///
    /// # Errors
    /// When the writer fails.
    fn write_varlong(&mut self, value: u64, min: usize) -> io::Result<()> {
        let bytes = value.to_le_bytes();
        let used = (8 - value.leading_zeros() as usize / 8).max(min);
        let extra = used - min;
        // The highest byte shares the first byte with the leading ones, if it fits there.
        let highest = bytes[used - 1];
        let mut out = [0; 10];
        let (count, first) = match highest.checked_shr(7 - extra as u32) {
            Some(0) if extra < 7 => (used - 1, ones(extra) | highest),
            _ => (used, ones(extra + 1)),
        };
        out[0] = first;
        out[1..=count].copy_from_slice(&bytes[..count]);
        self.write_all(&out[..=count])
    }

    /// A *longint*: an int, or an int of -1 and eight bytes if the value does not fit into an int.
    ///
    /// # Errors
    /// When the writer fails.
    fn write_longint(&mut self, value: u64) -> io::Result<()> {
        match i32::try_from(value) {
            Ok(value) => self.write_i32(value),
            Err(_) => {
                self.write_i32(-1)?;
                self.write_all(&value.to_le_bytes())
            }
        }
    }

    /// A vstring: see [`ReadWire::read_vstring`].
    ///
    /// # Errors
    /// When it is longer than 32767 bytes, or the writer fails.
    fn write_vstring(&mut self, value: &[u8]) -> io::Result<()> {
        match u16::try_from(value.len()) {
            Ok(len @ 0..=0x7f) => self.write_u8(len as u8)?,
            Ok(len @ 0x80..=0x7fff) => self.write_all(&[(len >> 8) as u8 | 0x80, len as u8])?,
            _ => return Err(invalid("a string too long to be sent")),
        }
        self.write_all(value)
    }
}

impl<W: Write + ?Sized> WriteWire for W {}

/// A byte with `count` leading ones.
fn ones(count: usize) -> u8 {
    !(0xff_u8.checked_shr(count as u32).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn varlong(value: u64, min: usize) -> Vec<u8> {
        let mut out = Vec::new();
        out.write_varlong(value, min).unwrap();
        out
    }

    #[test]
    fn varints_are_read_as_written() {
        for value in [0, 1, 0x7f, 0x80, 0x1ff, 0x3fff, 0x4000, 0x1f_ffff, 0x20_0000, 0x0fff_ffff, u32::MAX] {
            let mut out = Vec::new();
            out.write_varint(value).unwrap();
            assert_eq!(out.as_slice().read_varint().unwrap().cast_unsigned(), value, "{out:x?}");
        }
    }

    /// The bytes that stock rsync 3.5 wrote.
    #[test]
    fn forms_are_those_of_rsync() {
        assert_eq!(varlong(0x1ff, 1), [0x81, 0xff]);
        assert_eq!(varlong(0x2c01, 1), [0xac, 0x01]);
        assert_eq!(varlong(4096, 3), [0, 0, 0x10]);
        assert_eq!(varlong(200_000, 3), [3, 0x40, 0x0d]);
        assert_eq!(varlong(0x6bc0_f804, 4), [0x6b, 0x04, 0xf8, 0xc0]);
        assert_eq!(varlong(0x25c4_3a22, 1), [0xf0, 0x22, 0x3a, 0xc4, 0x25]);
    }

    #[test]
    fn longints_are_short_where_they_can_be() {
        let longint = |value: u64| {
            let mut out = Vec::new();
            out.write_longint(value).unwrap();
            out
        };
        assert_eq!(longint(0x7fff_ffff), [0xff, 0xff, 0xff, 0x7f]);
        assert_eq!(longint(0x8000_0000), [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0x80, 0, 0, 0, 0]);
    }

    #[test]
    fn long_forms_have_room_for_all_bits() {
        assert_eq!(varlong(u64::MAX, 3), [&[0xfc_u8][..], &[0xff; 8]].concat());
        assert_eq!(varlong(1 << 24, 3), [0x81, 0, 0, 0]);
    }

    #[test]
    fn varlongs_are_read_as_written() {
        for value in [
            0,
            1,
            4096,
            200_000,
            0x6bc0_f804,
            1 << 24,
            1 << 40,
            1 << 55,
            1 << 62,
            i64::MAX,
            -1,
            -5000,
            i64::MIN,
        ] {
            for min in [3, 4] {
                let out = varlong(value.cast_unsigned(), min);
                assert_eq!(out.as_slice().read_varlong(min).unwrap(), value, "{out:x?}");
            }
        }
        assert!([0xff_u8; 12].as_slice().read_varlong(4).is_err());
    }

    #[test]
    fn too_long_ones_are_refused() {
        assert!([0xff_u8; 9].as_slice().read_varint().is_err());
        assert!([0xf7_u8, 1, 1, 1, 1].as_slice().read_varint().is_err());
        assert!([0x81_u8, 0].as_slice().read_vstring(100).is_err());
    }
}
