//! Entry points for fuzzing without a key: all code that reads bytes of a stream before their authentication. Not part
//! of the crate's API.

use snowmelt_stream::{ByteOrder, Free, FreeObjects, NvList, Object, ObjectRange, Record, Spill, Write};

use crate::auth::BlockAuth;
use crate::dataset::Dataset;
use crate::dnode::{Dnode, split};
use crate::error::TreeError;
use crate::keydata::{Keydata, Metadnode};
use crate::keys::WrappingKey;
use crate::tree::Keep;

/// A number of PBKDF2 iterations that does not slow down fuzzing.
const FEW: u32 = 4;

/// Reads arbitrary bytes as key data and as a key for it.
pub fn keydata(data: &[u8]) {
    let (material, packed) = data.split_at(data.len().min(40));
    let Ok(list) = NvList::unpack(packed) else { return };
    let Ok(mut keydata) = Keydata::of_begin(&list).or_else(|_| Keydata::parse(&list)) else { return };
    keydata.iterations = keydata.iterations.min(FEW);
    if let Ok(wrapping) = WrappingKey::from_material(&keydata, material) {
        let _ = crate::Keys::unwrap(&keydata, &wrapping);
    }
}

/// Reads arbitrary bytes as records and treats them as authentic: builds their trees of MACs and block of dnodes.
pub fn records(data: &[u8]) {
    let Some((&[mode, nlevels], data)) = data.split_first_chunk() else { return };
    let keep = if mode & 1 == 0 { Keep::All } else { Keep::Open };
    let order = if mode & 2 == 0 { ByteOrder::Little } else { ByteOrder::Big };
    let shape = Metadnode { checksum: 0, compress: 0, nlevels, indirect_shift: 12, nblkptr: 3, max_blkid: 0 };
    let Ok(mut dataset) = Dataset::new(shape) else { return };
    let mut open = None;
    let mut objects: Vec<Object> = Vec::new();
    for bytes in data.as_chunks().0 {
        let record = record(bytes);
        if let Record::ObjectRange(range) = &record {
            close(&dataset, open.take().unwrap_or_default(), order, &objects);
            objects.clear();
            open = Some(range.first);
        }
        let _ = take(&mut dataset, &record, (keep, order, open), &mut objects);
    }
    close(&dataset, open.unwrap_or_default(), order, &objects);
    let _ = dataset.metadnode.roots();
}

/// A record made from 28 bytes: its kind, four small fields, an object, and two numbers.
fn record(bytes: &[u8; 28]) -> Record {
    let [kind, a, b, c, d, rest @ ..] = *bytes;
    let number =
        |at: usize| rest.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes);
    // Mostly objects of a few dnode blocks.
    let object = number(0) & if d & 1 == 0 { 0x7f } else { 0xffff_ffff_ffff };
    let (x, y) = (number(7), number(15));
    match kind % 6 {
        0 => Record::Object(Object {
            object,
            object_type: u32::from(a),
            bonus_type: u32::from(b),
            block_size: u32::from(c) << 9,
            bonus_len: u32::from(b) << 4,
            dn_slots: d & 0x3f,
            raw_bonus_len: (x & 0x7fff) as u32,
            flags: d >> 5,
            indirect_block_shift: a & 0x1f,
            nlevels: b & 0xf,
            nblkptr: c & 3,
            max_blkid: y,
            ..Object::default()
        }),
        1 => Record::Write(Write {
            object,
            object_type: u32::from(a),
            offset: x,
            logical_size: u64::from(c) << 9,
            compressed_size: u64::from(b) << 9,
            flags: d & 3,
            ..Write::default()
        }),
        2 => Record::Spill(Spill { object, length: x, compressed_size: y, ..Spill::default() }),
        3 => Record::Free(Free { object, offset: x, length: y, to_guid: 0 }),
        4 => Record::FreeObjects(FreeObjects { first: object, count: x, to_guid: 0 }),
        _ => Record::ObjectRange(ObjectRange { first: object & !31, count: 32, ..ObjectRange::default() }),
    }
}

fn take(
    dataset: &mut Dataset,
    record: &Record,
    (keep, order, open): (Keep, ByteOrder, Option<u64>),
    objects: &mut Vec<Object>,
) -> Result<(), TreeError> {
    match record {
        Record::Object(object) => {
            dataset.object(object)?;
            objects.push(*object);
        }
        Record::Write(write) => {
            let auth = BlockAuth::of_write(write, order)?;
            dataset.write(write, auth, keep)?;
        }
        Record::Spill(spill) => {
            let auth = BlockAuth::of_spill(spill, spill.object_type, order)?;
            dataset.spill(spill.object, auth);
        }
        Record::Free(free) => {
            dataset.free(free)?;
        }
        Record::FreeObjects(freed) => {
            dataset.free_objects(freed, open)?;
        }
        Record::ObjectRange(range) => {
            let auth = BlockAuth::of_dnodes(range.crypt.mac, order);
            dataset.metadnode.insert(range.first / crate::dnode::SLOTS, auth, keep)?;
        }
        _ => {}
    }
    Ok(())
}

fn close(dataset: &Dataset, first: u64, order: ByteOrder, objects: &[Object]) {
    let trees: Vec<_> = objects.iter().filter_map(|o| Some((o, dataset.objects.get(&o.object)?))).collect();
    let roots: Vec<_> = trees.iter().map(|(_, tree)| tree.macs.roots()).collect();
    let mut bonuses: Vec<Vec<u8>> =
        trees.iter().map(|(record, _)| vec![1; (record.raw_bonus_len & 0x7fff) as usize]).collect();
    let dnodes: Vec<Dnode<'_>> = trees
        .iter()
        .zip(&roots)
        .zip(&mut bonuses)
        .map(|(((record, tree), blocks), bonus)| Dnode { record, bonus, blocks, spill: tree.spill })
        .collect();
    if let Ok(parts) = split(first, order, &dnodes) {
        assert!(parts.authenticated.len() + parts.encrypted.len() <= 32 * 512, "a block holds no more");
    }
}
