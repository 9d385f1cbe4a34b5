//! Tests of attribute buffers that are built by hand.

use super::*;
use proptest::prelude::*;

/// Attribute numbers of a real filesystem, in the order of `zfs_attr_table`.
const MODE: u16 = 5;
const SIZE: u16 = 6;
const SYMLINK: u16 = 17;
const DXATTR: u16 = 19;
const FOREIGN: u16 = 40;

fn table() -> SaTable {
    let mut table = SaTable::legacy();
    table.registry.insert(SYMLINK, Registered { attr: Some(Attr::Symlink), len: 0 });
    table.registry.insert(DXATTR, Registered { attr: Some(Attr::Dxattr), len: 0 });
    table.registry.insert(FOREIGN, Registered { attr: None, len: 0 });
    table.put_layout(2, vec![MODE, SYMLINK, FOREIGN, SIZE]);
    table.put_layout(3, vec![DXATTR]);
    table
}

/// Builds a buffer of `layout`. `lengths` are the lengths of its variable attributes.
fn buffer(endian: Endian, layout: u16, lengths: &[u16], attributes: &[&[u8]]) -> Vec<u8> {
    let order = |little: Vec<u8>| match endian {
        Endian::Little => little,
        Endian::Big => little.into_iter().rev().collect(),
    };
    let header_len = (HEADER_LEN + 2 * lengths.len()).next_multiple_of(8) as u16;
    let mut buf = order(MAGIC.to_le_bytes().to_vec());
    buf.extend(order((layout | (header_len / 8) << 10).to_le_bytes().to_vec()));
    for len in lengths {
        buf.extend(order(len.to_le_bytes().to_vec()));
    }
    for attribute in attributes {
        buf.resize(buf.len().next_multiple_of(8), 0);
        buf.extend_from_slice(attribute);
    }
    buf
}

fn dnode(bonus: Vec<u8>) -> Dnode {
    Dnode { object: 9, bonus_type: DMU_OT_SA, bonus, ..Dnode::default() }
}

fn word(endian: Endian, value: u64) -> [u8; 8] {
    match endian {
        Endian::Little => value.to_le_bytes(),
        Endian::Big => value.to_be_bytes(),
    }
}

#[test]
fn variable_attributes_lie_between_fixed_ones() {
    for endian in [Endian::Little, Endian::Big] {
        let (mode, size) = (word(endian, 0o120_777), word(endian, 5));
        let bonus = buffer(endian, 2, &[5, 11], &[&mode, b"there", b"hello world", &size]);
        let spill = buffer(endian, 3, &[3], &[b"xyz"]);
        let dnode = dnode(bonus);
        let table = table();
        let values = table.parse(&dnode, Some(&spill)).unwrap();
        assert_eq!(values.required(Attr::Mode).unwrap(), 0o120_777);
        assert_eq!(values.word(Attr::Size, 0), Some(5));
        assert_eq!(values.bytes(Attr::Symlink), Some((endian, &b"there"[..])));
        assert_eq!(values.bytes(Attr::Dxattr), Some((endian, &b"xyz"[..])));
        assert!(values.required(Attr::Links).is_err());
    }
}

#[test]
fn short_buffers_and_unknown_layouts_are_told() {
    let endian = Endian::Little;
    let whole = buffer(endian, 2, &[5, 11], &[&[0; 8], b"there", b"hello world", &[0; 8]]);
    for len in 4..whole.len() {
        assert!(table().parse(&dnode(whole[..len].to_vec()), None).is_err(), "{len} bytes");
    }
    assert!(table().parse(&dnode(whole.clone()), None).is_ok());
    assert!(table().parse(&dnode(buffer(endian, 7, &[], &[])), None).is_err());
    assert!(table().parse(&dnode(vec![1; 64]), None).is_err());
    assert!(table().parse(&Dnode { bonus_type: 5, ..dnode(whole) }, None).is_err());
    // A buffer without attributes is empty, but valid.
    assert!(table().parse(&dnode(vec![0; 64]), None).unwrap().required(Attr::Mode).is_err());
}

proptest! {
    #[test]
    fn any_bytes_are_parsed_or_refused(
        mut bonus in proptest::collection::vec(any::<u8>(), 0..400),
        layout in 0u16..5,
        znode: bool,
    ) {
        if bonus.len() > 8 {
            bonus[..4].copy_from_slice(&MAGIC.to_le_bytes());
            bonus[4..6].copy_from_slice(&layout.to_le_bytes());
        }
        let bonus_type = if znode { DMU_OT_ZNODE } else { DMU_OT_SA };
        let dnode = Dnode { bonus_type, ..dnode(bonus) };
        if let Ok(values) = table().parse(&dnode, None) {
            let _ = crate::attributes::Attributes::new(9, &values);
        }
    }
}
