//! Converts streams of little-endian machines to those of a big-endian one. It uses descriptions of the fields of each
//! structure, which is another method than that of the tested code.

use snowmelt_dataset::{Datasets, Objset};
use snowmelt_stream::nvlist::NvList;
use snowmelt_stream::{
    ByteOrder, Compression, Features, Object, Reader, Record, Write, Writer, compress, decompress,
};
use snowmelt_zpl::sa::{Attr, SaTable};
use snowmelt_zpl::zap::Zap;
use snowmelt_zpl::{Dnode, MASTER_NODE};

/// Offset and length of a number.
type Field = (usize, usize);

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn turn(bytes: &mut [u8], fields: &[Field]) {
    for &(at, len) in fields {
        bytes[at..at + len].reverse();
    }
}

fn whole(len: usize, width: usize) -> Vec<Field> {
    (0..len / width).map(|index| (index * width, width)).collect()
}

/// The fields of a little-endian ZAP block.
pub fn zap_fields(block: &[u8]) -> Vec<Field> {
    const LEAF: u64 = 0x8000_0000_0000_0000;
    const MICRO: u64 = 0x8000_0000_0000_0003;
    match u64_at(block, 0) {
        MICRO => {
            let entries = (1..block.len() / 64).flat_map(|entry| [(entry * 64, 8), (entry * 64 + 8, 4)]);
            [(0, 8), (8, 8), (16, 8)].into_iter().chain(entries).collect()
        }
        LEAF => {
            let mut fields = vec![(0, 8), (16, 8), (24, 4), (28, 2), (30, 2), (32, 2), (34, 2)];
            let chunks = 48 + block.len() / 16;
            fields.extend((48..chunks).step_by(2).map(|at| (at, 2)));
            for at in (chunks..=block.len() - 24).step_by(24) {
                match block[at] {
                    252 => {
                        fields.extend([2, 4, 6, 8, 10].map(|within| (at + within, 2)));
                        fields.extend([(at + 12, 4), (at + 16, 8)]);
                    }
                    251 | 253 => fields.push((at + 22, 2)),
                    other => panic!("chunk of type {other}"),
                }
            }
            fields
        }
        _ => whole(block.len(), 8),
    }
}

/// The fields of little-endian ACL entries.
fn acl_fields(entries: &[u8]) -> Vec<Field> {
    let (mut fields, mut at) = (Vec::new(), 0);
    while at + 8 <= entries.len() {
        fields.extend([(at, 2), (at + 2, 2), (at + 4, 4)]);
        match u16_at(entries, at + 2) & 0x7040 {
            0x1000 | 0x4000 | 0x2040 => at += 8,
            _ => {
                fields.push((at + 8, 8));
                at += 16;
            }
        }
    }
    fields
}

/// The registry and layouts of a filesystem's attributes.
pub struct Attributes(SaTable);

const ATTRIBUTES: [Attr; 23] = [
    Attr::Atime,
    Attr::Mtime,
    Attr::Ctime,
    Attr::Crtime,
    Attr::Gen,
    Attr::Mode,
    Attr::Size,
    Attr::Parent,
    Attr::Links,
    Attr::Xattr,
    Attr::Rdev,
    Attr::Flags,
    Attr::Uid,
    Attr::Gid,
    Attr::Pad,
    Attr::ZnodeAcl,
    Attr::DaclCount,
    Attr::Symlink,
    Attr::Scanstamp,
    Attr::DaclAces,
    Attr::Dxattr,
    Attr::Projid,
    Attr::Seq,
];

impl Attributes {
    pub fn of(objset: &Objset) -> Option<Self> {
        let master = Zap::open(objset, MASTER_NODE).ok()?.lookup_u64("SA_ATTRS").unwrap()?;
        Some(Self(SaTable::load(objset, master).unwrap()))
    }

    /// Swaps a little-endian bonus or spill block.
    pub fn turn(&self, bytes: &mut [u8]) {
        if bytes.is_empty() || bytes[..4] == [0; 4] {
            return;
        }
        let dnode = Dnode { bonus_type: 44, bonus: bytes.to_vec(), ..Dnode::default() };
        let header = usize::from(u16_at(bytes, 4) >> 10) * 8;
        let mut fields = vec![(0, 4), (4, 2)];
        fields.extend((6..header).step_by(2).map(|at| (at, 2)));
        let values = self.0.parse(&dnode, None).unwrap();
        for attr in ATTRIBUTES {
            let Some((_, value)) = values.bytes(attr) else { continue };
            let start = value.as_ptr().addr() - dnode.bonus.as_ptr().addr();
            let within = match attr {
                Attr::ZnodeAcl | Attr::Symlink | Attr::Scanstamp | Attr::Dxattr => Vec::new(),
                Attr::DaclAces => acl_fields(value),
                _ => whole(value.len(), 8),
            };
            fields.extend(within.into_iter().map(|(at, len)| (start + at, len)));
        }
        turn(bytes, &fields);
    }
}

/// Swaps a data block according to the type of its object.
fn turn_block(object_type: u32, block: &mut [u8]) {
    let fields = match object_type {
        // Directories and similar objects, the volume's properties, and types that are known as ZAPs.
        20..=22 | 24 | 27 | 39 | 40 | 45..=47 | 0xc4 | 0xe4 => zap_fields(block),
        36 => whole(block.len(), 8),
        33 => acl_fields(block),
        19 | 23 | 35 | 44 => return,
        other => panic!("data of type {other}"),
    };
    turn(block, &fields);
}

fn turn_bonus(object: &Object, attributes: Option<&Attributes>, bonus: &mut [u8]) {
    let len = object.bonus_len as usize;
    match object.bonus_type {
        0 => {}
        44 => attributes.expect("a filesystem with attributes").turn(&mut bonus[..len]),
        36 => turn(bonus, &whole(len, 8)),
        other => panic!("a bonus of type {other}"),
    }
}

/// The stream as a big-endian machine would have sent it. `twin` has received the original stream.
pub fn to_big_endian(stream: &[u8], twin: &Datasets) -> Vec<u8> {
    let mut reader = Reader::new(stream);
    let mut out = Writer::with_order(Vec::new(), ByteOrder::Big);
    let (mut payload, mut attributes, mut raw) = (Vec::new(), None, false);
    let mut object_type = 0;
    while let Some(at) = reader.next(&mut payload).unwrap() {
        let mut record = at.record;
        match &mut record {
            Record::Begin(begin) => {
                attributes = attributes_of(twin, begin.to_guid);
                raw = begin.features.contains(Features::RAW);
                if !payload.is_empty() {
                    payload = NvList::unpack(&payload).unwrap().pack_native(ByteOrder::Big);
                    payload.resize(payload.len().next_multiple_of(8), 0);
                    begin.payload_len = payload.len() as u32;
                }
            }
            // A big-endian machine that passes on encrypted data of a little-endian one sets this flag.
            Record::Object(object) if raw => object.flags ^= Object::RAW_BYTESWAP,
            Record::Write(write) if raw => write.flags ^= Write::RAW_BYTESWAP,
            Record::Spill(spill) if raw => spill.flags ^= Write::RAW_BYTESWAP,
            Record::ObjectRange(range) if raw => range.flags ^= Write::RAW_BYTESWAP,
            Record::Object(object) => {
                object_type = object.object_type;
                turn_bonus(object, attributes.as_ref(), &mut payload);
            }
            Record::Write(write) if write.compression == 0 => turn_block(write.object_type, &mut payload),
            Record::Write(write) => assert!(matches!(write.object_type, 19 | 23), "{write:?}"),
            Record::Spill(_) => attributes.as_ref().unwrap().turn(&mut payload),
            Record::WriteEmbedded(embedded) if !matches!(object_type, 19 | 23) => {
                let mut plain = vec![0; embedded.lsize as usize];
                let packed = &payload[..embedded.psize as usize];
                decompress(embedded.compression, packed, &mut plain).unwrap();
                turn_block(object_type, &mut plain);
                let mut packed = Vec::new();
                match compress(Compression::Lz4, 0, &plain, &mut packed) {
                    Some(len) if len <= 112 => {
                        packed.truncate(len);
                        embedded.compression = Compression::Lz4.id();
                        embedded.psize = len as u32;
                        payload = packed;
                    }
                    _ => {
                        let write = Write {
                            object: embedded.object,
                            object_type,
                            offset: embedded.offset,
                            logical_size: embedded.length,
                            to_guid: embedded.to_guid,
                            ..Write::default()
                        };
                        (record, payload) = (Record::Write(write), plain);
                    }
                }
            }
            _ => {}
        }
        out.record(&record, &payload).unwrap();
    }
    out.into_inner().unwrap()
}

/// The attributes of the snapshot with this guid, from a readable copy: it may also exist encrypted.
fn attributes_of(datasets: &Datasets, guid: u64) -> Option<Attributes> {
    let catalog = datasets.catalog();
    let snapshots = catalog.snapshots_by_guid(guid).unwrap();
    snapshots.iter().find_map(|snapshot| Attributes::of(&catalog.objset(snapshot)))
}
