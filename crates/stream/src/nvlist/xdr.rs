//! XDR encoding of lists (`nvs_xdr_*`, RFC 4506): big-endian words of four bytes, with everything padded to words.
//!
//! A list is a version, flags, pairs, and eight zero bytes. A pair is its packed length, its length in memory, its
//! name, type and number of elements, and its value. Arrays repeat their number of elements, except those of strings,
//! bytes and lists.

use super::cursor::{Cursor, deeper};
use super::{NvError, NvList, NvValue, pair_memory_len, string};
use crate::byte_order::ByteOrder;

pub(super) fn unpack(body: &[u8]) -> Result<NvList, NvError> {
    list(&mut Cursor::new(body, ByteOrder::Big), 0)
}

fn list(c: &mut Cursor<'_>, depth: usize) -> Result<NvList, NvError> {
    let depth = deeper(depth)?;
    c.version()?;
    let flags = c.u32()?;
    let mut pairs = Vec::new();
    loop {
        let (_packed_len, memory_len) = (c.i32()?, c.i32()?);
        if memory_len == 0 {
            return Ok(NvList { flags, pairs });
        }
        c.pair()?;
        let name = bytes(c)?;
        let name = c.name(name)?;
        pairs.push((name, value(c, depth)?));
    }
}

/// A counted, padded string.
fn bytes<'a>(c: &mut Cursor<'a>) -> Result<&'a [u8], NvError> {
    let len = c.u32()?;
    opaque(c, len)
}

fn opaque<'a>(c: &mut Cursor<'a>, len: u32) -> Result<&'a [u8], NvError> {
    let len = usize::try_from(len).map_err(|_| c.bad("length"))?;
    let padded = len.checked_next_multiple_of(4).ok_or_else(|| c.bad("length"))?;
    Ok(&c.take(padded)?[..len])
}

fn text(c: &mut Cursor<'_>) -> Result<Vec<u8>, NvError> {
    let text = bytes(c)?;
    if text.contains(&0) { Err(c.bad("string")) } else { Ok(text.to_vec()) }
}

fn value(c: &mut Cursor<'_>, depth: usize) -> Result<NvValue, NvError> {
    let at = c.offset();
    let kind = c.i32()?;
    let count = c.u32()?;
    let single = count == 1;
    let n = usize::try_from(count).map_err(|_| c.bad("number of elements"))?;
    let counted =
        |c: &mut Cursor<'_>| if c.u32()? == count { Ok(()) } else { Err(c.bad("number of elements")) };
    Ok(match kind {
        1 if count == 0 => NvValue::Boolean,
        // Some machines sign-extend a char when they pack it, others do not. Only the low byte counts.
        2 if single => NvValue::Byte(c.u32()? as u8),
        3 if single => NvValue::Int16(c.u32()? as i16),
        4 if single => NvValue::Uint16(c.u32()? as u16),
        5 if single => NvValue::Int32(c.i32()?),
        6 if single => NvValue::Uint32(c.u32()?),
        7 if single => NvValue::Int64(c.u64()?.cast_signed()),
        8 if single => NvValue::Uint64(c.u64()?),
        9 if single => NvValue::String(text(c)?),
        10 => NvValue::ByteArray(opaque(c, count)?.to_vec()),
        11 => {
            counted(c)?;
            NvValue::Int16Array(c.items(n, 4, |c| Ok(c.u32()? as i16))?)
        }
        12 => {
            counted(c)?;
            NvValue::Uint16Array(c.items(n, 4, |c| Ok(c.u32()? as u16))?)
        }
        13 => {
            counted(c)?;
            NvValue::Int32Array(c.items(n, 4, Cursor::i32)?)
        }
        14 => {
            counted(c)?;
            NvValue::Uint32Array(c.items(n, 4, Cursor::u32)?)
        }
        15 => {
            counted(c)?;
            NvValue::Int64Array(c.items(n, 8, |c| Ok(c.u64()?.cast_signed()))?)
        }
        16 => {
            counted(c)?;
            NvValue::Uint64Array(c.items(n, 8, Cursor::u64)?)
        }
        17 => NvValue::StringArray(c.items(n, 4, text)?),
        18 if single => NvValue::Hrtime(c.u64()?.cast_signed()),
        19 if single => NvValue::List(list(c, depth)?),
        20 => NvValue::ListArray(c.items(n, 16, |c| list(c, depth))?),
        21 if single => {
            let v = c.u32()?;
            NvValue::BooleanValue(c.boolean(v)?)
        }
        22 if single => NvValue::Int8(c.u32()? as i8),
        23 if single => NvValue::Uint8(c.u32()? as u8),
        24 => {
            counted(c)?;
            NvValue::BooleanArray(c.items(n, 4, |c| {
                let v = c.u32()?;
                c.boolean(v)
            })?)
        }
        25 => {
            counted(c)?;
            NvValue::Int8Array(c.items(n, 4, |c| Ok(c.u32()? as i8))?)
        }
        26 => {
            counted(c)?;
            NvValue::Uint8Array(c.items(n, 4, |c| Ok(c.u32()? as u8))?)
        }
        27 if single => NvValue::Double(f64::from_bits(c.u64()?)),
        1..=27 => return Err(c.bad("number of elements")),
        kind => return Err(NvError::Type { offset: at, kind }),
    })
}

pub(super) fn pack(list: &NvList, out: &mut Vec<u8>) {
    put(out, 0);
    put(out, list.flags);
    for (name, value) in &list.pairs {
        let start = out.len();
        put(out, 0);
        put(out, pair_memory_len(name, value) as u32);
        put_bytes(out, name.as_bytes());
        put(out, value.kind().cast_unsigned());
        put(out, value.elements() as u32);
        pack_value(value, out);
        let len = (out.len() - start) as u32;
        out[start..start + 4].copy_from_slice(&len.to_be_bytes());
    }
    put(out, 0);
    put(out, 0);
}

fn put(out: &mut Vec<u8>, v: u32) {
    out.extend_from_slice(&v.to_be_bytes());
}

fn put_signed(out: &mut Vec<u8>, v: i32) {
    out.extend_from_slice(&v.to_be_bytes());
}

fn put_opaque(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(bytes);
    out.resize(out.len() + (bytes.len().next_multiple_of(4) - bytes.len()), 0);
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u32);
    put_opaque(out, bytes);
}

fn put_array<T: Copy>(out: &mut Vec<u8>, items: &[T], mut item: impl FnMut(&mut Vec<u8>, T)) {
    put(out, items.len() as u32);
    for i in items {
        item(out, *i);
    }
}

fn pack_value(value: &NvValue, out: &mut Vec<u8>) {
    let wide = |out: &mut Vec<u8>, v: u64| out.extend_from_slice(&v.to_be_bytes());
    // Integers of less than 32 bits are never sign-extended. The kernel refuses a word with more bits than the type has
    // (`xdrmem_dec_char`, `xdrmem_dec_ushort`). `libzfs` on x86 does sign-extend them, and reads both.
    let char = |out: &mut Vec<u8>, v: u8| put(out, u32::from(v));
    let short = |out: &mut Vec<u8>, v: i16| put(out, u32::from(v.cast_unsigned()));
    match value {
        NvValue::Boolean => {}
        NvValue::Byte(v) | NvValue::Uint8(v) => char(out, *v),
        NvValue::Int8(v) => char(out, v.cast_unsigned()),
        NvValue::Int16(v) => short(out, *v),
        NvValue::Uint16(v) => put(out, u32::from(*v)),
        NvValue::Int32(v) => put_signed(out, *v),
        NvValue::Uint32(v) => put(out, *v),
        NvValue::Int64(v) | NvValue::Hrtime(v) => wide(out, v.cast_unsigned()),
        NvValue::Uint64(v) => wide(out, *v),
        NvValue::Double(v) => wide(out, v.to_bits()),
        NvValue::BooleanValue(v) => put(out, u32::from(*v)),
        NvValue::String(v) => put_bytes(out, string(v)),
        NvValue::ByteArray(v) => put_opaque(out, v),
        NvValue::Int8Array(v) => put_array(out, v, |out, v| char(out, v.cast_unsigned())),
        NvValue::Uint8Array(v) => put_array(out, v, char),
        NvValue::Int16Array(v) => put_array(out, v, short),
        NvValue::Uint16Array(v) => put_array(out, v, |out, v| put(out, u32::from(v))),
        NvValue::Int32Array(v) => put_array(out, v, put_signed),
        NvValue::Uint32Array(v) => put_array(out, v, put),
        NvValue::BooleanArray(v) => put_array(out, v, |out, v| put(out, u32::from(v))),
        NvValue::Int64Array(v) => put_array(out, v, |out, v| wide(out, v.cast_unsigned())),
        NvValue::Uint64Array(v) => put_array(out, v, wide),
        NvValue::StringArray(v) => v.iter().for_each(|s| put_bytes(out, string(s))),
        NvValue::List(v) => pack(v, out),
        NvValue::ListArray(v) => v.iter().for_each(|l| pack(l, out)),
    }
}
