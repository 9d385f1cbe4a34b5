//! A small model of a receiver, after `module/zfs/dmu_recv.c`, and of its expected result.

use std::collections::BTreeMap;

use snowmelt_stream::compress::decompress;
use snowmelt_stream::record::{Crypt, Free, Object, Record, Redact, Spill};

use super::super::step::Step;
use super::world::Parsed;
use crate::objset::key::ObjsetKey;
use crate::objset::value::{Block, BlockCrypt, Dnode};

/// Bytes and their encryption.
type Data = (Vec<u8>, Option<Crypt>);

#[derive(Clone, Debug, PartialEq, Default)]
pub(super) struct ModelObject {
    object_type: u32,
    bonus_type: u32,
    slots: u8,
    block_size: u32,
    bonus: Vec<u8>,
    max_blkid: u64,
    /// By offset.
    blocks: BTreeMap<u64, Data>,
    spill: Option<Data>,
}

#[derive(Clone, Debug, PartialEq, Default)]
pub(super) struct Model {
    objects: BTreeMap<u64, ModelObject>,
    ranges: BTreeMap<u64, Crypt>,
}

impl Model {
    /// The final state of a receiver of `step`.
    pub(super) fn of(step: &Step) -> Self {
        let target = &step.target;
        let mut model = Self::default();
        let wire = |crypt: BlockCrypt| Crypt { salt: crypt.salt, iv: crypt.iv, mac: crypt.mac };
        let data = |value: &[u8]| -> Data {
            let block = Block::decode(value).unwrap();
            let bytes = if step.style.raw {
                target.pool.read_stored(&block.ptr).unwrap()
            } else {
                target.pool.read(&block.ptr).unwrap()
            };
            (bytes.to_vec(), block.crypt.map(wire))
        };
        for item in target.view.range(&[], None) {
            let (key, entry) = item.unwrap();
            let key = ObjsetKey::decode(&key).unwrap();
            if let ObjsetKey::Range { object } = key {
                model.ranges.insert(object, wire(BlockCrypt::decode_range(&entry.value).unwrap()));
                continue;
            }
            let object = model.objects.entry(key.object()).or_default();
            match key {
                ObjsetKey::Dnode { .. } => {
                    let dnode = Dnode::decode(&entry.value).unwrap();
                    object.object_type = dnode.object_type.into();
                    object.bonus_type = dnode.bonus_type.into();
                    object.slots = dnode.slots;
                    object.block_size = dnode.block_size;
                    object.max_blkid = dnode.raw.map_or(0, |raw| raw.max_blkid);
                    object.bonus = dnode.bonus;
                }
                ObjsetKey::Spill { .. } => object.spill = Some(data(&entry.value)),
                ObjsetKey::Block { blkid, .. } => {
                    let offset = blkid * u64::from(object.block_size);
                    object.blocks.insert(offset, data(&entry.value));
                }
                // Omitted data reads as zeros, like a hole.
                ObjsetKey::Redaction { .. } | ObjsetKey::Range { .. } => {}
            }
        }
        model
    }

    pub(super) fn receive(&mut self, records: &[Parsed]) {
        self.receive_from(records, None);
    }

    /// Receives a stream that is resumed at an object. The dnode block of that object is sent only from there on.
    pub(super) fn receive_from(&mut self, records: &[Parsed], resumed: Option<u64>) {
        let mut resumed = resumed;
        let mut range: Option<(u64, u64)> = None;
        let complete = matches!(records.last(), Some((Record::End(_), _)));
        for (record, payload) in records {
            match record {
                Record::Begin(_) | Record::End(_) => {}
                Record::ObjectRange(r) => {
                    if let Some((first, next)) = range {
                        assert_eq!(next, first + 32, "the dnode block of {first} is not whole");
                    }
                    range = Some((r.first, resumed.take().unwrap_or(r.first.max(1))));
                    self.ranges.insert(r.first, r.crypt);
                }
                Record::Object(o) => {
                    self.object(o, payload);
                    cover(&mut range, o.object, o.object + u64::from(o.slots()));
                }
                Record::FreeObjects(f) => {
                    let end = f.first.saturating_add(f.count);
                    self.objects.retain(|object, _| !(f.first..end).contains(object));
                    cover(&mut range, f.first, end);
                }
                Record::Free(Free { object, offset, length, .. })
                | Record::Redact(Redact { object, offset, length, .. }) => {
                    let object = self.objects.get_mut(object).expect("FREE of no object");
                    let end = offset.saturating_add(*length);
                    object.blocks.retain(|at, _| !(*offset..end).contains(at));
                }
                Record::Write(w) => {
                    let mut data = payload.clone();
                    let mut crypt = None;
                    if w.crypt.salt != [0; 8] {
                        crypt = Some(w.crypt);
                    } else if w.compression != 0 {
                        data = vec![0; usize::try_from(w.logical_size).unwrap()];
                        decompress(w.compression, payload, &mut data).unwrap();
                    }
                    self.write(w.object, w.offset, w.logical_size, (data, crypt));
                }
                Record::WriteEmbedded(w) => {
                    let mut data = vec![0; usize::try_from(w.lsize).unwrap()];
                    decompress(w.compression, payload, &mut data).unwrap();
                    self.write(w.object, w.offset, w.length, (data, None));
                }
                Record::Spill(s) => {
                    let object = self.objects.get_mut(&s.object).expect("SPILL of no object");
                    let data = (payload.clone(), (s.crypt.salt != [0; 8]).then_some(s.crypt));
                    if s.flags & Spill::UNMODIFIED != 0 {
                        assert_eq!(
                            object.spill.as_ref(),
                            Some(&data),
                            "an unmodified spill block is another"
                        );
                    }
                    object.spill = Some(data);
                }
                Record::WriteByRef(_) => panic!("{record:?} was sent"),
            }
        }
        if complete && let Some((first, next)) = range {
            assert_eq!(next, first + 32, "the last dnode block, of {first}, is not whole");
        }
        // The parameters of a block without dnodes encrypt nothing.
        let objects = &self.objects;
        self.ranges.retain(|first, _| objects.range(first..&(first + 32)).next().is_some());
    }

    fn write(&mut self, object: u64, offset: u64, size: u64, data: Data) {
        let object = self.objects.get_mut(&object).expect("WRITE of no object");
        assert_eq!(offset % u64::from(object.block_size), 0);
        assert_eq!(size, u64::from(object.block_size));
        object.blocks.insert(offset, data);
    }

    fn object(&mut self, o: &Object, bonus: &[u8]) {
        let slots = u64::from(o.slots());
        for slot in o.object + 1..o.object + slots {
            self.objects.remove(&slot);
        }
        let inside = self.objects.range(..o.object).next_back();
        assert!(
            inside.is_none_or(|(at, before)| at + u64::from(before.slots) <= o.object),
            "inside another object"
        );
        let object = self.objects.entry(o.object).or_default();
        if object.block_size != o.block_size || object.slots != o.slots() {
            object.blocks.clear();
        }
        if o.flags & Object::SPILL == 0 {
            object.spill = None;
        }
        object.object_type = o.object_type;
        object.bonus_type = o.bonus_type;
        object.slots = o.slots();
        object.block_size = o.block_size;
        object.max_blkid = o.max_blkid;
        object.bonus = bonus.to_vec();
    }
}

/// Notes that the slots `[first, end)` of the current dnode block were sent.
fn cover(range: &mut Option<(u64, u64)>, first: u64, end: u64) {
    if let Some((start, next)) = range
        && first < *start + 32
        && end > *start
        && *next < *start + 32
    {
        assert_eq!(first, *next, "slots of a dnode block are left out, or come twice");
        *next = end.min(*start + 32);
    }
}

/// Where a receiver would resume that got exactly these records.
pub(super) fn reached(records: &[Parsed]) -> Option<(u64, u64)> {
    records
        .iter()
        .filter_map(|(record, _)| match record {
            Record::Object(o) => Some((o.object, 0)),
            Record::Write(w) => Some((w.object, w.offset)),
            Record::WriteEmbedded(w) => Some((w.object, w.offset)),
            _ => None,
        })
        .max()
}
