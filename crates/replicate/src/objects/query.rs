//! Queries and answers as bytes.

use std::io::{self, Read, Write};

use snowmelt_zpl::Dnode;

/// Most bytes read at once.
pub(super) const READ_MAX: usize = 1 << 20;
/// Most bytes of data that an answer about an object has with it.
pub(super) const OBJECT_DATA_MAX: u32 = 512 * 1024;
/// Most extents of such data.
pub(super) const EXTENTS_MAX: usize = 4096;
/// Largest spill block.
const SPILL_MAX: usize = 128 * 1024;
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

/// The queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Query {
    /// An object, with its data if this is no longer than `len`. For objects that are not files, the data is always
    /// included, unless it is too long.
    Object {
        object: u64,
        len: u32,
    },
    Data {
        object: u64,
        offset: u64,
        len: u32,
    },
    /// The next object of a walk from `root` down; another `round` begins from the start.
    Walk {
        root: u64,
        round: u64,
    },
    NextData {
        object: u64,
        offset: u64,
    },
    NextHole {
        object: u64,
        offset: u64,
    },
    ChangedObjects {
        from: u64,
    },
    ChangedBlocks {
        object: u64,
        from: u64,
    },
}

impl Query {
    pub(super) fn encode(self) -> [u8; QUERY_LEN] {
        let (code, object, offset, len) = match self {
            Self::Object { object, len } => (1, object, 0, len),
            Self::Data { object, offset, len } => (2, object, offset, len),
            Self::Walk { root, round } => (3, root, round, 0),
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
            1 if len <= OBJECT_DATA_MAX => Self::Object { object, len },
            2 if len as usize <= READ_MAX => Self::Data { object, offset, len },
            3 => Self::Walk { root: object, round: offset },
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

/// Where there is data, ascending and apart, and the data.
pub(super) type Extents = Vec<(u64, Vec<u8>)>;

/// The part of an object in one answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Whole {
    /// Nothing if there is no such object.
    pub(super) dnode: Option<Dnode>,
    pub(super) spill: Option<Vec<u8>>,
    /// All its data; nothing if that was too long or not asked for.
    pub(super) data: Option<Extents>,
}

impl Whole {
    /// Flags: there is a spill block; the data is there.
    const SPILL: u8 = 1;
    const DATA: u8 = 2;

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let Some(dnode) = &self.dnode else { return };
        let len = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(0).to_le_bytes();
        let has = |is_there: bool, flag| if is_there { flag } else { 0 };
        out.push(has(self.spill.is_some(), Self::SPILL) | has(self.data.is_some(), Self::DATA));
        let mut bytes = Vec::with_capacity(DNODE_LEN + dnode.bonus.len());
        encode_dnode(dnode, &mut bytes);
        for bytes in [Some(&bytes), self.spill.as_ref()].into_iter().flatten() {
            out.extend_from_slice(&len(bytes));
            out.extend_from_slice(bytes);
        }
        for (offset, bytes) in self.data.iter().flatten() {
            out.extend_from_slice(&offset.to_le_bytes());
            out.extend_from_slice(&len(bytes));
            out.extend_from_slice(bytes);
        }
    }

    pub(super) fn decode(object: u64, mut bytes: &[u8]) -> io::Result<Self> {
        let Some((flags, rest)) = bytes.split_first() else { return Ok(Self::default()) };
        if *flags > Self::SPILL | Self::DATA {
            return Err(invalid("an object that cannot be"));
        }
        bytes = rest;
        let dnode = decode_dnode(object, take_run(&mut bytes)?)?;
        let mut spill = None;
        if flags & Self::SPILL != 0 {
            let run = take_run(&mut bytes)?;
            if run.len() > SPILL_MAX {
                return Err(invalid("a spill block that is too long"));
            }
            spill = Some(run.to_vec());
        }
        let mut extents = Vec::new();
        let mut least = 0;
        while !bytes.is_empty() {
            let offset = u64::from_le_bytes(*take(&mut bytes)?);
            let run = take_run(&mut bytes)?;
            let end = offset.checked_add(run.len() as u64).filter(|end| *end > offset && offset >= least);
            least = end.ok_or_else(|| invalid("extents out of order"))?;
            extents.push((offset, run.to_vec()));
        }
        let has_data = flags & Self::DATA != 0;
        if !has_data && !extents.is_empty() || extents.len() > EXTENTS_MAX {
            return Err(invalid("extents that cannot be"));
        }
        Ok(Self { dnode: Some(dnode), spill, data: has_data.then_some(extents) })
    }

    /// Bytes in memory, roughly.
    pub(super) fn size(&self) -> usize {
        let data: usize = self.data.iter().flatten().map(|(_, bytes)| bytes.len() + 64).sum();
        let bonus = self.dnode.as_ref().map_or(0, |dnode| dnode.bonus.len());
        256 + bonus + self.spill.as_ref().map_or(0, Vec::len) + data
    }
}

fn take<'b, const LEN: usize>(bytes: &mut &'b [u8]) -> io::Result<&'b [u8; LEN]> {
    let (taken, rest) = bytes.split_first_chunk().ok_or_else(|| invalid("an answer that is too short"))?;
    *bytes = rest;
    Ok(taken)
}

/// Bytes after their length.
fn take_run<'b>(bytes: &mut &'b [u8]) -> io::Result<&'b [u8]> {
    let len = u32::from_le_bytes(*take(bytes)?) as usize;
    let (run, rest) = bytes.split_at_checked(len).ok_or_else(|| invalid("an answer that is too short"))?;
    *bytes = rest;
    Ok(run)
}

fn encode_dnode(dnode: &Dnode, out: &mut Vec<u8>) {
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

fn decode_dnode(object: u64, bytes: &[u8]) -> io::Result<Dnode> {
    let (head, bonus) =
        bytes.split_at_checked(DNODE_LEN).ok_or_else(|| invalid("a dnode that is too short"))?;
    let &[object_type, bonus_type, slots, has_spill @ (0 | 1), checksum, compress, b0, b1, b2, b3] = head
    else {
        return Err(invalid("a dnode that cannot be"));
    };
    if bonus.len() > BONUS_MAX {
        return Err(invalid("a bonus buffer that is too long"));
    }
    Ok(Dnode {
        object,
        object_type,
        bonus_type,
        block_size: u32::from_le_bytes([b0, b1, b2, b3]),
        slots,
        has_spill: has_spill == 1,
        checksum,
        compress,
        bonus: bonus.to_vec(),
    })
}

/// An object on a walk, and its number.
pub(super) fn encode_step(object: u64, whole: &Whole, out: &mut Vec<u8>) {
    out.extend_from_slice(&object.to_le_bytes());
    whole.encode(out);
}

/// The next object on a walk; nothing at its end.
pub(super) fn decode_step(mut bytes: &[u8]) -> io::Result<Option<(u64, Whole)>> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let object = u64::from_le_bytes(*take(&mut bytes)?);
    Ok(Some((object, Whole::decode(object, bytes)?)))
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
            Query::Object { object, len: OBJECT_DATA_MAX },
            Query::Data { object, offset, len: READ_MAX as u32 },
            Query::Walk { root: object, round: offset },
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
    fn objects_and_numbers_survive_their_bytes_and_lies_are_refused() {
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
        let dnode = Some(dnode);
        for whole in [
            Whole { dnode: dnode.clone(), ..Whole::default() },
            Whole { dnode: dnode.clone(), spill: Some(vec![1; 512]), data: None },
            Whole { dnode: dnode.clone(), spill: Some(vec![1; 512]), data: Some(Vec::new()) },
            Whole {
                dnode,
                spill: None,
                data: Some(vec![(0, vec![2; 512]), (512, vec![3]), (4096, vec![4; 9])]),
            },
        ] {
            let mut bytes = Vec::new();
            whole.encode(&mut bytes);
            assert_eq!(Whole::decode(7, &bytes).unwrap(), whole);
            (1..bytes.len())
                .for_each(|len| assert_ne!(Whole::decode(7, &bytes[..len]).ok(), Some(whole.clone())));
            let mut step = Vec::new();
            encode_step(7, &whole, &mut step);
            assert_eq!(decode_step(&step).unwrap(), Some((7, whole)));
        }
        assert_eq!(Whole::decode(7, &[]).unwrap(), Whole::default());
        assert_eq!(decode_step(&[]).unwrap(), None);
        let mut out_of_order = Vec::new();
        let data = Some(vec![(512, vec![1; 512]), (1000, vec![1])]);
        Whole { dnode: Some(Dnode::default()), spill: None, data }.encode(&mut out_of_order);
        assert!(Whole::decode(7, &out_of_order).is_err());
        assert!(decode_step(&[1; 7]).is_err());
        assert_eq!(decode_numbers(&encode_numbers([1, u64::MAX])).unwrap(), [1, u64::MAX]);
        assert!(decode_numbers(&[0; 9]).is_err());
    }
}
