//! What is asked and answered, as bytes.

use std::io::{self, Read, Write};

use snowmelt_zpl::Dnode;

/// Most bytes read at once.
pub(super) const READ_MAX: usize = 1 << 20;
/// Most numbers in one answer.
pub(super) const NUMBERS_MAX: usize = 16 * 1024;
/// Most bytes of an answer.
const ANSWER_MAX: usize = READ_MAX + 1024;
/// Bytes of a dnode before its bonus buffer.
const DNODE_LEN: usize = 10;
/// Largest bonus buffer: a dnode of 32 slots.
const BONUS_MAX: usize = 16 * 1024;

const QUERY_LEN: usize = 21;
const OFF_OBJECT: usize = 1; // u64 LE
const OFF_OFFSET: usize = OFF_OBJECT + 8; // u64 LE
const OFF_LEN: usize = OFF_OFFSET + 8; // u32 LE
const _: () = assert!(OFF_LEN + 4 == QUERY_LEN);

/// Added to the code of a query that is of the older of two snapshots (`bring`).
const OF_OLDER: u8 = 0x80;

/// What can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Query {
    Dnode { object: u64 },
    Data { object: u64, offset: u64, len: u32 },
    Spill { object: u64 },
    NextData { object: u64, offset: u64 },
    NextHole { object: u64, offset: u64 },
    ChangedObjects { from: u64 },
    ChangedBlocks { object: u64, from: u64 },
}

impl Query {
    pub(super) fn encode(self) -> [u8; QUERY_LEN] {
        let (code, object, offset, len) = match self {
            Self::Dnode { object } => (1, object, 0, 0),
            Self::Data { object, offset, len } => (2, object, offset, len),
            Self::Spill { object } => (3, object, 0, 0),
            Self::NextData { object, offset } => (4, object, offset, 0),
            Self::NextHole { object, offset } => (5, object, offset, 0),
            Self::ChangedObjects { from } => (6, from, 0, 0),
            Self::ChangedBlocks { object, from } => (7, object, from, 0),
        };
        let mut bytes = [0; QUERY_LEN];
        bytes[0] = code;
        bytes[OFF_OBJECT..OFF_OFFSET].copy_from_slice(&object.to_le_bytes());
        bytes[OFF_OFFSET..OFF_LEN].copy_from_slice(&offset.to_le_bytes());
        bytes[OFF_LEN..].copy_from_slice(&u32::to_le_bytes(len));
        bytes
    }

    /// As it is asked of one of two snapshots.
    pub(super) fn encode_of(self, is_of_older: bool) -> [u8; QUERY_LEN] {
        let mut bytes = self.encode();
        bytes[0] |= if is_of_older { OF_OLDER } else { 0 };
        bytes
    }

    /// The next query; `None` at the end, which may only come between two.
    pub(super) fn read(input: &mut dyn Read) -> io::Result<Option<Self>> {
        Self::read_bytes(input)?.map(Self::decode).transpose()
    }

    /// The next query of one of two snapshots, and whether that is the older one.
    pub(super) fn read_of(input: &mut dyn Read) -> io::Result<Option<(Self, bool)>> {
        let Some(mut bytes) = Self::read_bytes(input)? else { return Ok(None) };
        let is_of_older = bytes[0] & OF_OLDER != 0;
        bytes[0] &= !OF_OLDER;
        Ok(Some((Self::decode(bytes)?, is_of_older)))
    }

    fn read_bytes(input: &mut dyn Read) -> io::Result<Option<[u8; QUERY_LEN]>> {
        let mut bytes = [0; QUERY_LEN];
        let mut have = 0;
        while have < QUERY_LEN {
            match input.read(&mut bytes[have..]) {
                Ok(0) if have == 0 => return Ok(None),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(more) => have += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Some(bytes))
    }

    fn decode(bytes: [u8; QUERY_LEN]) -> io::Result<Self> {
        let [code, o0, o1, o2, o3, o4, o5, o6, o7, f0, f1, f2, f3, f4, f5, f6, f7, len @ ..] = bytes;
        let object = u64::from_le_bytes([o0, o1, o2, o3, o4, o5, o6, o7]);
        let offset = u64::from_le_bytes([f0, f1, f2, f3, f4, f5, f6, f7]);
        let len = u32::from_le_bytes(len);
        Ok(match code {
            1 => Self::Dnode { object },
            2 if len as usize <= READ_MAX => Self::Data { object, offset, len },
            3 => Self::Spill { object },
            4 => Self::NextData { object, offset },
            5 => Self::NextHole { object, offset },
            6 => Self::ChangedObjects { from: object },
            7 => Self::ChangedBlocks { object, from: offset },
            _ => return Err(invalid("a query that is not known")),
        })
    }
}

pub(super) fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Why something cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unread {
    /// One block is damaged; others can be read.
    Block(String),
    Other(String),
}

pub(super) fn write_answer(out: &mut dyn Write, answer: Result<&[u8], &Unread>) -> io::Result<()> {
    let (code, bytes) = match answer {
        Ok(bytes) => (0, bytes),
        Err(Unread::Block(why)) => (1, why.as_bytes()),
        Err(Unread::Other(why)) => (2, why.as_bytes()),
    };
    let bytes = bytes.get(..bytes.len().min(ANSWER_MAX)).unwrap_or_default();
    let mut header = [0; 5];
    header[0] = code;
    header[1..].copy_from_slice(&u32::try_from(bytes.len()).unwrap_or(0).to_le_bytes());
    out.write_all(&header)?;
    out.write_all(bytes)?;
    out.flush()
}

pub(super) fn read_answer(input: &mut dyn Read) -> io::Result<Result<Vec<u8>, Unread>> {
    let mut header = [0; 5];
    input.read_exact(&mut header)?;
    let [code, len @ ..] = header;
    let len = u32::from_le_bytes(len) as usize;
    if len > ANSWER_MAX {
        return Err(invalid("an answer that is too long"));
    }
    let mut bytes = Vec::new();
    if input.take(len as u64).read_to_end(&mut bytes)? < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    match code {
        0 => Ok(Ok(bytes)),
        1 => Ok(Err(Unread::Block(text(bytes)))),
        2 => Ok(Err(Unread::Other(text(bytes)))),
        _ => Err(invalid("an answer that is not known")),
    }
}

/// A dnode; nothing for an object that is not there.
pub(super) fn encode_dnode(dnode: Option<&Dnode>, out: &mut Vec<u8>) {
    let Some(dnode) = dnode else { return };
    out.extend_from_slice(&[
        dnode.object_type,
        dnode.bonus_type,
        dnode.slots,
        u8::from(dnode.has_spill),
        dnode.checksum,
        dnode.compress,
    ]);
    out.extend_from_slice(&dnode.block_size.to_le_bytes());
    out.extend_from_slice(&dnode.bonus);
}

pub(super) fn decode_dnode(object: u64, bytes: &[u8]) -> io::Result<Option<Dnode>> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let (head, bonus) =
        bytes.split_at_checked(DNODE_LEN).ok_or_else(|| invalid("a dnode that is too short"))?;
    let &[object_type, bonus_type, slots, has_spill @ (0 | 1), checksum, compress, b0, b1, b2, b3] = head
    else {
        return Err(invalid("a dnode that cannot be"));
    };
    if bonus.len() > BONUS_MAX {
        return Err(invalid("a bonus buffer that is too long"));
    }
    Ok(Some(Dnode {
        object,
        object_type,
        bonus_type,
        block_size: u32::from_le_bytes([b0, b1, b2, b3]),
        slots,
        has_spill: has_spill == 1,
        checksum,
        compress,
        bonus: bonus.to_vec(),
    }))
}

pub(super) fn encode_numbers(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    numbers.into_iter().flat_map(u64::to_le_bytes).collect()
}

pub(super) fn decode_numbers(bytes: &[u8]) -> io::Result<Vec<u64>> {
    let (numbers, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() || numbers.len() > NUMBERS_MAX {
        return Err(invalid("numbers that cannot be"));
    }
    Ok(numbers.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_survive_their_bytes() {
        let (object, offset) = (u64::MAX - 1, 1 << 40);
        for query in [
            Query::Dnode { object },
            Query::Data { object, offset, len: READ_MAX as u32 },
            Query::Spill { object },
            Query::NextData { object, offset },
            Query::NextHole { object, offset },
            Query::ChangedObjects { from: object },
            Query::ChangedBlocks { object, from: offset },
        ] {
            let bytes = query.encode();
            assert_eq!(Query::read(&mut &bytes[..]).unwrap(), Some(query));
            assert!(Query::read(&mut &bytes[..20]).is_err());
            for is_of_older in [false, true] {
                let bytes = query.encode_of(is_of_older);
                assert_eq!(Query::read_of(&mut &bytes[..]).unwrap(), Some((query, is_of_older)));
                assert_eq!(Query::read(&mut &bytes[..]).is_err(), is_of_older);
            }
        }
        assert_eq!(Query::read(&mut &[][..]).unwrap(), None);
        assert!(Query::read(&mut &[9; QUERY_LEN][..]).is_err());
        let too_long = Query::Data { object, offset, len: READ_MAX as u32 + 1 }.encode();
        assert!(Query::read(&mut &too_long[..]).is_err());
    }

    #[test]
    fn answers_survive_their_bytes_and_lies_are_refused() {
        for answer in [Ok(vec![1, 2, 3]), Err(Unread::Block("a".into())), Err(Unread::Other(String::new()))] {
            let mut bytes = Vec::new();
            write_answer(&mut bytes, answer.as_ref().map(Vec::as_slice)).unwrap();
            assert_eq!(read_answer(&mut &bytes[..]).unwrap(), answer);
        }
        for bad in [&[3, 0, 0, 0, 0][..], &[0, 255, 255, 255, 255], &[0, 2, 0, 0, 0, 1]] {
            assert!(read_answer(&mut &bad[..]).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn dnodes_and_numbers_survive_their_bytes() {
        let dnode = Dnode {
            object: 7,
            object_type: 19,
            bonus_type: 44,
            block_size: 131_072,
            slots: 2,
            has_spill: true,
            checksum: 3,
            compress: 4,
            bonus: vec![9; 300],
        };
        let mut bytes = Vec::new();
        encode_dnode(Some(&dnode), &mut bytes);
        assert_eq!(decode_dnode(7, &bytes).unwrap(), Some(dnode));
        assert_eq!(decode_dnode(7, &[]).unwrap(), None);
        assert!(decode_dnode(7, &bytes[..9]).is_err());
        assert_eq!(decode_numbers(&encode_numbers([1, u64::MAX])).unwrap(), [1, u64::MAX]);
        assert!(decode_numbers(&[0; 9]).is_err());
    }
}
