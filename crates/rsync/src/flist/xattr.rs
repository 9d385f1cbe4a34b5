//! Extended attributes in file lists: each different set is sent once; of long values only a digest is sent, and the value
//! when it is asked for.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use md5::{Digest, Md5};
use sha2::Sha256;

use crate::wire::WriteWire;

/// Longest value that is sent in a list (`MAX_FULL_DATUM`).
pub const VALUE_MAX: usize = 32;

/// Those that are sent: all but the system's own, of which ACLs are sent as such. The number by which a value is asked for
/// counts in their order, from one.
pub fn wire_attributes(
    attributes: &BTreeMap<Vec<u8>, Vec<u8>>,
) -> impl Iterator<Item = (&Vec<u8>, &Vec<u8>)> {
    attributes.iter().filter(|(name, _)| !name.starts_with(b"system."))
}

/// The sets sent so far, by digest.
#[derive(Debug, Default)]
pub(super) struct XattrCache(HashMap<[u8; 32], u32>);

impl XattrCache {
    pub(super) fn write(
        &mut self,
        attributes: &BTreeMap<Vec<u8>, Vec<u8>>,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let mut digest = Sha256::new();
        for (name, value) in wire_attributes(attributes) {
            digest.update((name.len() as u64).to_le_bytes());
            digest.update(name);
            digest.update((value.len() as u64).to_le_bytes());
            digest.update(value);
        }
        let next = self.0.len() as u32;
        let number = *self.0.entry(digest.finalize().into()).or_insert(next);
        if number != next {
            return out.write_varint(number + 1);
        }
        out.write_varint(0)?;
        out.write_varint(wire_attributes(attributes).count() as u32)?;
        for (name, value) in wire_attributes(attributes) {
            out.write_varint(name.len() as u32 + 1)?;
            out.write_varint(value.len() as u32)?;
            out.write_all(name)?;
            out.write_u8(0)?;
            if value.len() > VALUE_MAX {
                out.write_all(&Md5::digest(value))?;
            } else {
                out.write_all(value)?;
            }
        }
        Ok(())
    }
}
