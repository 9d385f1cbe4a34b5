//! Native encoding of lists (`nvs_native_*`): the memory image of a 64-bit machine, with pointers set to zero.
//!
//! A list is a version, flags, pairs, and a zero word. A pair is an `nvpair_t` (16 bytes: size, length of the name with
//! its NUL, a reserved word, number of elements, type), its name, and its value. Both are padded to 8 bytes. The value
//! of a nested list is its `nvlist_t`. The pairs and the zero word of a nested list follow the pair that holds it.

use super::cursor::{Cursor, deeper};
use super::{NvError, NvList, NvValue, pair_memory_len, string};
use crate::byte_order::ByteOrder;

/// `sizeof (nvpair_t)`.
const PAIR_LEN: usize = 16;
/// `sizeof (nvlist_t)`.
const LIST_LEN: usize = 24;

pub(super) fn unpack(body: &[u8], order: ByteOrder) -> Result<NvList, NvError> {
    let mut c = Cursor::new(body, order);
    c.version()?;
    let flags = c.u32()?;
    pairs(&mut c, order, flags, 0)
}

fn pairs(c: &mut Cursor<'_>, order: ByteOrder, flags: u32, depth: usize) -> Result<NvList, NvError> {
    let depth = deeper(depth)?;
    let mut pairs = Vec::new();
    loop {
        let size = c.i32()?;
        if size == 0 {
            return Ok(NvList { flags, pairs });
        }
        c.pair()?;
        let rest =
            usize::try_from(size).ok().and_then(|s| s.checked_sub(4)).ok_or_else(|| c.bad("pair size"))?;
        let mut pair = Pair::new(c.take(rest)?, order, c.offset())?;
        let value = match pair.kind {
            19 if pair.count == 1 => {
                let flags = pair.nested()?;
                NvValue::List(self::pairs(c, order, flags, depth)?)
            }
            20 => {
                let flags = pair.nested_array()?;
                let mut lists = Vec::with_capacity(flags.len());
                for flags in flags {
                    lists.push(self::pairs(c, order, flags, depth)?);
                }
                NvValue::ListArray(lists)
            }
            _ => pair.value()?,
        };
        pairs.push((pair.name, value));
    }
}

/// A pair's bytes after its size.
struct Pair<'a> {
    name: String,
    kind: i32,
    count: u32,
    value: Cursor<'a>,
    /// Offset of the pair's end in the packed list, for errors.
    end: usize,
}

impl<'a> Pair<'a> {
    fn new(bytes: &'a [u8], order: ByteOrder, end: usize) -> Result<Self, NvError> {
        let bad = |what| NvError::Bad { offset: end, what };
        let mut c = Cursor::new(bytes, order);
        let at_end = |e| locate(e, end);
        let name_len = usize::from(c.u16().map_err(at_end)?);
        let _reserved = c.u16().map_err(at_end)?;
        let count = c.u32().map_err(at_end)?;
        let kind = c.i32().map_err(at_end)?;
        let padded = (PAIR_LEN + name_len).next_multiple_of(8) - PAIR_LEN;
        let padded_name = c.take(padded).map_err(at_end)?;
        let name = match padded_name.get(..name_len).and_then(<[u8]>::split_last) {
            Some((0, name)) => c.name(name).map_err(at_end)?,
            _ => return Err(bad("name")),
        };
        Ok(Self { name, kind, count, value: c, end })
    }

    fn bad(&self, what: &'static str) -> NvError {
        NvError::Bad { offset: self.end, what }
    }

    /// The flags in a nested list's `nvlist_t`.
    fn nested(&mut self) -> Result<u32, NvError> {
        let end = self.end;
        nested_header(&mut self.value).map_err(|e| locate(e, end))
    }

    fn nested_array(&mut self) -> Result<Vec<u32>, NvError> {
        let end = self.end;
        let n = usize::try_from(self.count).map_err(|_| self.bad("number of elements"))?;
        let pointers = n.checked_mul(8).ok_or_else(|| self.bad("number of elements"))?;
        self.value.take(pointers).map_err(|e| locate(e, end))?;
        self.value.items(n, LIST_LEN, nested_header).map_err(|e| locate(e, end))
    }

    fn value(&mut self) -> Result<NvValue, NvError> {
        let end = self.end;
        plain_value(&mut self.value, self.kind, self.count).map_err(|e| locate(e, end))
    }
}

/// Reports an error within a pair at the pair's end, because the pair's own cursor does not know its position.
fn locate(e: NvError, end: usize) -> NvError {
    match e {
        NvError::Truncated { wanted, left, .. } => NvError::Truncated { offset: end, wanted, left },
        NvError::Version { version, .. } => NvError::Version { offset: end, version },
        NvError::Type { kind, .. } => NvError::Type { offset: end, kind },
        NvError::Bad { what, .. } => NvError::Bad { offset: end, what },
        other => other,
    }
}

fn nested_header(c: &mut Cursor<'_>) -> Result<u32, NvError> {
    c.version()?;
    let flags = c.u32()?;
    c.take(LIST_LEN - 8)?;
    Ok(flags)
}

fn text(c: &mut Cursor<'_>) -> Result<Vec<u8>, NvError> {
    let mut out = Vec::new();
    loop {
        match c.array()? {
            [0] => return Ok(out),
            [b] => out.push(b),
        }
    }
}

fn plain_value(c: &mut Cursor<'_>, kind: i32, count: u32) -> Result<NvValue, NvError> {
    let single = count == 1;
    let n = usize::try_from(count).map_err(|_| c.bad("number of elements"))?;
    let signed16 = |c: &mut Cursor<'_>| Ok(c.u16()?.cast_signed());
    let signed64 = |c: &mut Cursor<'_>| Ok(c.u64()?.cast_signed());
    let byte = |c: &mut Cursor<'_>| c.array().map(|[b]: [u8; 1]| b);
    Ok(match kind {
        1 if count == 0 => NvValue::Boolean,
        2 if single => NvValue::Byte(byte(c)?),
        3 if single => NvValue::Int16(signed16(c)?),
        4 if single => NvValue::Uint16(c.u16()?),
        5 if single => NvValue::Int32(c.i32()?),
        6 if single => NvValue::Uint32(c.u32()?),
        7 if single => NvValue::Int64(signed64(c)?),
        8 if single => NvValue::Uint64(c.u64()?),
        9 if single => NvValue::String(text(c)?),
        10 => NvValue::ByteArray(c.take(n)?.to_vec()),
        11 => NvValue::Int16Array(c.items(n, 2, signed16)?),
        12 => NvValue::Uint16Array(c.items(n, 2, Cursor::u16)?),
        13 => NvValue::Int32Array(c.items(n, 4, Cursor::i32)?),
        14 => NvValue::Uint32Array(c.items(n, 4, Cursor::u32)?),
        15 => NvValue::Int64Array(c.items(n, 8, signed64)?),
        16 => NvValue::Uint64Array(c.items(n, 8, Cursor::u64)?),
        17 => {
            c.take(n.checked_mul(8).ok_or_else(|| c.bad("number of elements"))?)?;
            NvValue::StringArray(c.items(n, 1, text)?)
        }
        18 if single => NvValue::Hrtime(signed64(c)?),
        21 if single => {
            let v = c.u32()?;
            NvValue::BooleanValue(c.boolean(v)?)
        }
        22 if single => NvValue::Int8(byte(c)?.cast_signed()),
        23 if single => NvValue::Uint8(byte(c)?),
        24 => NvValue::BooleanArray(c.items(n, 4, |c| {
            let v = c.u32()?;
            c.boolean(v)
        })?),
        25 => NvValue::Int8Array(c.take(n)?.iter().map(|b| b.cast_signed()).collect()),
        26 => NvValue::Uint8Array(c.take(n)?.to_vec()),
        27 if single => NvValue::Double(f64::from_bits(c.u64()?)),
        1..=27 => return Err(c.bad("number of elements")),
        kind => return Err(NvError::Type { offset: c.offset(), kind }),
    })
}

pub(super) fn pack(list: &NvList, order: ByteOrder, out: &mut Vec<u8>) {
    let mut packer = Packer { order, out };
    packer.u32(0);
    packer.u32(list.flags);
    packer.pairs(list);
}

struct Packer<'a> {
    order: ByteOrder,
    out: &'a mut Vec<u8>,
}

impl Packer<'_> {
    fn u16(&mut self, v: u16) {
        match self.order {
            ByteOrder::Little => self.out.extend_from_slice(&v.to_le_bytes()),
            ByteOrder::Big => self.out.extend_from_slice(&v.to_be_bytes()),
        }
    }

    fn u32(&mut self, v: u32) {
        match self.order {
            ByteOrder::Little => self.out.extend_from_slice(&v.to_le_bytes()),
            ByteOrder::Big => self.out.extend_from_slice(&v.to_be_bytes()),
        }
    }

    fn u64(&mut self, v: u64) {
        match self.order {
            ByteOrder::Little => self.out.extend_from_slice(&v.to_le_bytes()),
            ByteOrder::Big => self.out.extend_from_slice(&v.to_be_bytes()),
        }
    }

    fn zeros(&mut self, n: usize) {
        self.out.resize(self.out.len() + n, 0);
    }

    fn pad(&mut self, start: usize) {
        self.zeros((self.out.len() - start).next_multiple_of(8) - (self.out.len() - start));
    }

    fn pairs(&mut self, list: &NvList) {
        for (name, value) in &list.pairs {
            let start = self.out.len();
            self.u32(pair_memory_len(name, value) as u32);
            self.u16((name.len() + 1) as u16);
            self.u16(0);
            self.u32(value.elements() as u32);
            self.u32(value.kind().cast_unsigned());
            self.out.extend_from_slice(name.as_bytes());
            self.zeros(1);
            self.pad(start);
            self.value(value);
            self.pad(start);
            match value {
                NvValue::List(nested) => self.pairs(nested),
                NvValue::ListArray(nested) => nested.iter().for_each(|l| self.pairs(l)),
                _ => {}
            }
        }
        self.u32(0);
    }

    fn nested_header(&mut self, list: &NvList) {
        self.u32(0);
        self.u32(list.flags);
        self.zeros(LIST_LEN - 8);
    }

    fn text(&mut self, text: &[u8]) {
        self.out.extend_from_slice(string(text));
        self.zeros(1);
    }

    fn value(&mut self, value: &NvValue) {
        match value {
            NvValue::Boolean => {}
            NvValue::Byte(v) | NvValue::Uint8(v) => self.out.push(*v),
            NvValue::Int8(v) => self.out.push(v.cast_unsigned()),
            NvValue::Int16(v) => self.u16(v.cast_unsigned()),
            NvValue::Uint16(v) => self.u16(*v),
            NvValue::Int32(v) => self.u32(v.cast_unsigned()),
            NvValue::Uint32(v) => self.u32(*v),
            NvValue::BooleanValue(v) => self.u32(u32::from(*v)),
            NvValue::Int64(v) | NvValue::Hrtime(v) => self.u64(v.cast_unsigned()),
            NvValue::Uint64(v) => self.u64(*v),
            NvValue::Double(v) => self.u64(v.to_bits()),
            NvValue::String(v) => self.text(v),
            NvValue::ByteArray(v) | NvValue::Uint8Array(v) => self.out.extend_from_slice(v),
            NvValue::Int8Array(v) => self.out.extend(v.iter().map(|v| v.cast_unsigned())),
            NvValue::Int16Array(v) => v.iter().for_each(|v| self.u16(v.cast_unsigned())),
            NvValue::Uint16Array(v) => v.iter().for_each(|v| self.u16(*v)),
            NvValue::Int32Array(v) => v.iter().for_each(|v| self.u32(v.cast_unsigned())),
            NvValue::Uint32Array(v) => v.iter().for_each(|v| self.u32(*v)),
            NvValue::BooleanArray(v) => v.iter().for_each(|v| self.u32(u32::from(*v))),
            NvValue::Int64Array(v) => v.iter().for_each(|v| self.u64(v.cast_unsigned())),
            NvValue::Uint64Array(v) => v.iter().for_each(|v| self.u64(*v)),
            NvValue::StringArray(v) => {
                self.zeros(v.len() * 8);
                v.iter().for_each(|v| self.text(v));
            }
            NvValue::List(v) => self.nested_header(v),
            NvValue::ListArray(v) => {
                self.zeros(v.len() * 8);
                v.iter().for_each(|l| self.nested_header(l));
            }
        }
    }
}
