//! The FUID table: the domains (Windows SIDs) of owners and groups. Source: `module/zfs/zfs_fuid.c`.
//!
//! An owner is stored as a 64-bit FUID. The low half is the ID. The high half is the index of a domain in this table,
//! or 0 for a plain POSIX ID.

use crate::bytes::Endian;
use crate::error::ZplError;
use crate::source::Objects;
use crate::xdr::{self, BadNvlist, TYPE_NVLIST_ARRAY};
use std::collections::BTreeMap;

/// Limit on the size of a packed table. Real tables are much smaller.
const PACKED_MAX: u64 = 1 << 20;

/// Domain names by index.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FuidTable {
    domains: BTreeMap<u32, String>,
}

impl FuidTable {
    /// Reads the table from its object (`FUID` of the master node).
    ///
    /// # Errors
    /// If the object cannot be read or has no valid packed table.
    pub fn load<O: Objects + ?Sized>(objects: &O, object: u64) -> Result<Self, ZplError> {
        let dnode =
            objects.dnode(object).map_err(ZplError::source(object))?.ok_or(ZplError::NoObject { object })?;
        // The bonus buffer holds the packed size in the byte order of its writer.
        let little = Endian::Little.u64(&dnode.bonus, 0).unwrap_or(0);
        let size = little.min(little.swap_bytes());
        if size > PACKED_MAX {
            return Err(ZplError::corrupt(object, format!("a FUID table of {size} bytes")));
        }
        if size == 0 {
            return Ok(Self::default());
        }
        let mut packed = vec![0; size as usize];
        objects.read(object, 0, &mut packed).map_err(ZplError::source(object))?;
        Self::unpack(&packed).map_err(|bad| ZplError::corrupt(object, format!("FUID table: {}", bad.0)))
    }

    fn unpack(packed: &[u8]) -> Result<Self, BadNvlist> {
        let mut domains = BTreeMap::new();
        let mut pairs = xdr::unpack(packed)?;
        while let Some(pair) = pairs.pair()? {
            if pair.name != b"fuid_nvlist" || pair.kind != TYPE_NVLIST_ARRAY {
                continue;
            }
            let mut list = pair.value;
            for _ in 0..pair.count {
                list.embedded()?;
                let (mut index, mut domain) = (None, None);
                while let Some(pair) = list.pair()? {
                    match pair.name {
                        b"fuid_idx" => index = Some(pair.uint64()?),
                        b"fuid_domain" => domain = Some(String::from_utf8_lossy(pair.str()?).into_owned()),
                        _ => {}
                    }
                }
                if let (Some(index), Some(domain)) =
                    (index.and_then(|index| u32::try_from(index).ok()), domain)
                {
                    domains.insert(index, domain);
                }
            }
        }
        Ok(Self { domains })
    }

    /// The domain of a FUID. `None` for a plain POSIX ID or an index that is not in the table.
    pub fn domain(&self, fuid: u64) -> Option<&str> {
        self.domains.get(&((fuid >> 32) as u32)).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn string(out: &mut Vec<u8>, text: &str) {
        out.extend((text.len() as u32).to_be_bytes());
        out.extend(text.as_bytes());
        out.resize(out.len().next_multiple_of(4), 0);
    }

    fn pair(name: &str, kind: u32, count: u32, value: &[u8]) -> Vec<u8> {
        let mut body = Vec::new();
        string(&mut body, name);
        body.extend(kind.to_be_bytes());
        body.extend(count.to_be_bytes());
        body.extend(value);
        let len = (body.len() + 8) as u32;
        [&len.to_be_bytes()[..], &len.to_be_bytes(), &body].concat()
    }

    #[test]
    fn reads_domains_and_survives_truncation() {
        let mut domain = Vec::new();
        string(&mut domain, "S-1-5-21-1-2-3");
        let inner = [
            &[0; 8][..],
            &pair("fuid_idx", 8, 1, &7u64.to_be_bytes()),
            &pair("fuid_offset", 8, 1, &0u64.to_be_bytes()),
            &pair("fuid_domain", 9, 1, &domain),
            &[0; 8],
        ]
        .concat();
        let list = pair("fuid_nvlist", TYPE_NVLIST_ARRAY, 1, &inner);
        let packed = [&[1, 1, 0, 0][..], &[0; 8], &list, &[0; 8]].concat();
        let table = FuidTable::unpack(&packed).unwrap();
        assert_eq!(table.domain(7 << 32 | 1000), Some("S-1-5-21-1-2-3"));
        assert_eq!(table.domain(1000), None);
        for len in 0..packed.len() {
            let _ = FuidTable::unpack(&packed[..len]);
        }
        assert!(FuidTable::unpack(&packed[..packed.len() - 9]).is_err());
    }
}
