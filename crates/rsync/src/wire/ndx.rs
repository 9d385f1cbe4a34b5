//! Indices of files, which are sent as differences to the previous one.

use std::io::{self, Read, Write};

use super::{ReadWire, WriteWire};

/// `NDX_DONE`: the end of a list or phase.
const DONE: i32 = -1;
/// `NDX_FLIST_EOF`: no further lists.
const FLIST_EOF: i32 = -2;
/// `NDX_DEL_STATS`: five counts of deleted files follow.
const DEL_STATS: i32 = -3;
/// `NDX_FLIST_OFFSET`: the list of directory 0 follows. For directory 1 it is one less, and so on.
const FLIST_OFFSET: i32 = -101;

/// An index of a file, or another value in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ndx {
    /// The index of a file.
    File(u32),
    /// The end of a list or phase.
    Done,
    /// No further file lists.
    FlistEof,
    /// Counts of deleted files follow.
    DelStats,
    /// The list of the directory with this number follows.
    Flist(u32),
    /// A value that no version of the protocol has.
    Unknown(i32),
}

impl Ndx {
    fn from_raw(raw: i32) -> Self {
        match raw {
            0.. => Self::File(raw.cast_unsigned()),
            DONE => Self::Done,
            FLIST_EOF => Self::FlistEof,
            DEL_STATS => Self::DelStats,
            ..=FLIST_OFFSET => Self::Flist(FLIST_OFFSET.abs_diff(raw)),
            _ => Self::Unknown(raw),
        }
    }

    fn raw(self) -> i32 {
        match self {
            Self::File(index) => index.cast_signed(),
            Self::Done => DONE,
            Self::FlistEof => FLIST_EOF,
            Self::DelStats => DEL_STATS,
            Self::Flist(directory) => FLIST_OFFSET.wrapping_sub_unsigned(directory),
            Self::Unknown(raw) => raw,
        }
    }
}

/// The previous values of each sign.
#[derive(Debug)]
struct Previous {
    positive: i32,
    negative: i32,
}

impl Default for Previous {
    fn default() -> Self {
        Self { positive: -1, negative: 1 }
    }
}

/// Reads indices.
#[derive(Debug, Default)]
pub struct NdxReader {
    previous: Previous,
    as_ints: bool,
}

impl NdxReader {
    /// A reader for a version of the protocol. Before version 30 indices were ints.
    pub fn of(protocol: u8) -> Self {
        Self { as_ints: protocol < 30, ..Self::default() }
    }

    /// Reads the next index.
    ///
    /// # Errors
    /// When it is invalid, or the connection fails.
    pub fn read(&mut self, from: &mut impl Read) -> io::Result<Ndx> {
        if self.as_ints {
            return from.read_i32().map(Ndx::from_raw);
        }
        let mut byte = from.read_u8()?;
        if byte == 0 {
            return Ok(Ndx::Done);
        }
        let negative = byte == 0xff;
        if negative {
            byte = from.read_u8()?;
        }
        let previous = if negative { &mut self.previous.negative } else { &mut self.previous.positive };
        let value = match byte {
            0xfe => {
                let high = from.read_u8()?;
                if high & 0x80 != 0 {
                    let mut low = [0; 3];
                    from.read_exact(&mut low)?;
                    Some(i32::from_le_bytes([low[0], low[1], low[2], high & 0x7f]))
                } else {
                    previous.checked_add(i32::from(high) << 8 | i32::from(from.read_u8()?))
                }
            }
            difference => previous.checked_add(i32::from(difference)),
        };
        let value = value.filter(|value| *value >= 0);
        let value =
            value.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "an index out of range"))?;
        *previous = value;
        Ok(Ndx::from_raw(if negative { -value } else { value }))
    }
}

/// Writes indices.
#[derive(Debug, Default)]
pub struct NdxWriter {
    previous: Previous,
    as_ints: bool,
}

impl NdxWriter {
    /// A writer for a version of the protocol.
    pub fn of(protocol: u8) -> Self {
        Self { as_ints: protocol < 30, ..Self::default() }
    }

    /// Writes an index.
    ///
    /// # Errors
    /// When the writer fails.
    pub fn write(&mut self, ndx: Ndx, to: &mut impl Write) -> io::Result<()> {
        if self.as_ints {
            return to.write_i32(ndx.raw());
        }
        if ndx == Ndx::Done {
            return to.write_u8(0);
        }
        let raw = ndx.raw();
        let (value, previous) = match raw {
            0.. => (raw, &mut self.previous.positive),
            _ => {
                to.write_u8(0xff)?;
                (raw.wrapping_neg(), &mut self.previous.negative)
            }
        };
        let difference = i64::from(value) - i64::from(*previous);
        *previous = value;
        match difference {
            1..0xfe => to.write_u8(difference as u8),
            0 | 0xfe..=0x7fff => to.write_all(&[0xfe, (difference >> 8) as u8, difference as u8]),
            _ => {
                let [a, b, c, high] = value.to_le_bytes();
                to.write_all(&[0xfe, high | 0x80, a, b, c])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_read_as_written() {
        let all = [
            Ndx::File(0),
            Ndx::File(1),
            Ndx::Done,
            Ndx::File(300),
            Ndx::File(300),
            Ndx::File(70_000),
            Ndx::File(5),
            Ndx::Flist(0),
            Ndx::Flist(1),
            Ndx::Flist(90_000),
            Ndx::FlistEof,
            Ndx::DelStats,
            Ndx::File(i32::MAX as u32),
        ];
        let (mut out, mut writer) = (Vec::new(), NdxWriter::default());
        all.iter().for_each(|ndx| writer.write(*ndx, &mut out).unwrap());
        let (mut from, mut reader) = (out.as_slice(), NdxReader::default());
        for ndx in all {
            assert_eq!(reader.read(&mut from).unwrap(), ndx);
        }
        assert!(from.is_empty());
    }

    #[test]
    fn forms_are_those_of_rsync() {
        let mut out = Vec::new();
        let mut writer = NdxWriter::default();
        for ndx in [Ndx::Flist(1), Ndx::Flist(2), Ndx::FlistEof] {
            writer.write(ndx, &mut out).unwrap();
        }
        assert_eq!(out, *b"\xffe\xff\x01\xff\xfe\x80\x02\0\0");
    }

    #[test]
    fn old_ones_are_ints() {
        let mut out = Vec::new();
        let mut writer = NdxWriter::of(29);
        [Ndx::File(5), Ndx::File(5), Ndx::Done].iter().for_each(|ndx| writer.write(*ndx, &mut out).unwrap());
        assert_eq!(out, *b"\x05\0\0\0\x05\0\0\0\xff\xff\xff\xff");
        let (mut from, mut reader) = (out.as_slice(), NdxReader::of(29));
        for ndx in [Ndx::File(5), Ndx::File(5), Ndx::Done] {
            assert_eq!(reader.read(&mut from).unwrap(), ndx);
        }
    }

    #[test]
    fn what_overflows_is_refused() {
        let mut reader = NdxReader::default();
        assert!(reader.read(&mut &b"\xfe\xff\xff\xff\xff"[..]).is_ok());
        assert!(reader.read(&mut &b"\x7f"[..]).is_err());
    }
}
