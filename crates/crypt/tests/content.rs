//! Compares decrypted raw streams with the dataset: files have the content of the manifest, and blocks are the same as
//! in a stream that real OpenZFS sent decrypted.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;

use common::case;
use sha2::{Digest, Sha256};
use snowmelt_crypt::{BlockAuth, Decryptor, Dnode, Keep, MacTree, Shape};
use snowmelt_stream::{ByteOrder, Features, NvList, Object, ObjectRange, Reader, Record, decompress};
use snowmelt_zpl::memory::{MemoryObject, MemoryObjects};
use snowmelt_zpl::{FileKind, Filesystem, Objects};

/// The parts of a stream that describe one object.
#[derive(Default)]
struct Raw {
    range: ObjectRange,
    record: Object,
    bonus: Vec<u8>,
    blocks: BTreeMap<u64, (BlockAuth, Vec<u8>)>,
    spill: Option<(BlockAuth, Vec<u8>)>,
}

impl Raw {
    fn roots(&self) -> Vec<BlockAuth> {
        let Object { object_type, nlevels, nblkptr, indirect_block_shift: indirect_shift, .. } = self.record;
        let mut tree = MacTree::new(Shape { object_type, nlevels, nblkptr, indirect_shift }).unwrap();
        for (offset, (auth, _)) in &self.blocks {
            tree.insert(offset / u64::from(self.record.block_size), *auth, Keep::Open).unwrap();
        }
        tree.roots()
    }
}

fn plain(compression: u8, data: &[u8], len: u64) -> Vec<u8> {
    let mut out = vec![0; usize::try_from(len).unwrap()];
    decompress(compression, data, &mut out).unwrap();
    out
}

/// The objects of a full raw stream, decrypted with the parts of the library and not with its verifier.
fn decrypted(stream: &[u8], key: &[u8]) -> MemoryObjects {
    let (mut reader, mut payload) = (Reader::new(stream), Vec::new());
    let mut decryptor = None;
    let (mut raw, mut range) = (BTreeMap::<u64, Raw>::new(), ObjectRange::default());
    while let Some(at) = reader.next(&mut payload).unwrap() {
        match at.record {
            Record::Begin(_) => {
                let keydata = snowmelt_crypt::Keydata::of_begin(&NvList::unpack(&payload).unwrap()).unwrap();
                let wrapping = snowmelt_crypt::WrappingKey::from_material(&keydata, key).unwrap();
                let keys = snowmelt_crypt::Keys::unwrap(&keydata, &wrapping).unwrap();
                decryptor = Some(Decryptor::new(keys));
            }
            Record::ObjectRange(r) => range = r,
            Record::Object(record) => {
                let bonus = payload.clone();
                raw.insert(record.object, Raw { range, record, bonus, ..Raw::default() });
            }
            Record::Write(w) => {
                decryptor.as_ref().unwrap().block(w.object_type, &w.crypt, &mut payload).unwrap();
                let auth = BlockAuth::of_write(&w, ByteOrder::Little).unwrap();
                let data = plain(w.compression, &payload, w.logical_size);
                raw.get_mut(&w.object).unwrap().blocks.insert(w.offset, (auth, data));
            }
            Record::Spill(s) => {
                decryptor.as_ref().unwrap().block(44, &s.crypt, &mut payload).unwrap();
                let auth = BlockAuth::of_spill(&s, 44, ByteOrder::Little).unwrap();
                let data = plain(s.compression, &payload, s.length);
                raw.get_mut(&s.object).unwrap().spill = Some((auth, data));
            }
            _ => {}
        }
    }
    let decryptor = decryptor.unwrap();
    let ranges: BTreeMap<u64, ObjectRange> = raw.values().map(|one| (one.range.first, one.range)).collect();
    for (first, range) in ranges {
        let roots: Vec<_> = raw.range(first..first + 32).map(|(_, one)| one.roots()).collect();
        let mut dnodes: Vec<Dnode<'_>> = Vec::new();
        for ((_, one), blocks) in raw.range_mut(first..first + 32).zip(&roots) {
            let spill = one.spill.as_ref().map(|(auth, _)| *auth);
            dnodes.push(Dnode { record: &one.record, bonus: &mut one.bonus, blocks, spill });
        }
        decryptor.dnodes(&range, ByteOrder::Little, &mut dnodes).unwrap();
    }
    let objects = raw.into_iter().map(|(number, one)| (number, in_memory(one)));
    MemoryObjects { objects: objects.collect() }
}

fn in_memory(raw: Raw) -> MemoryObject {
    let mut object = MemoryObject::default();
    let record = raw.record;
    object.dnode.object = record.object;
    object.dnode.object_type = u8::try_from(record.object_type).unwrap();
    object.dnode.bonus_type = u8::try_from(record.bonus_type).unwrap();
    object.dnode.block_size = record.block_size;
    object.dnode.slots = record.slots();
    object.dnode.has_spill = raw.spill.is_some();
    object.dnode.bonus = raw.bonus[..record.bonus_len as usize].to_vec();
    object.spill = raw.spill.map(|(_, data)| data);
    for (offset, (_, data)) in raw.blocks {
        object.write(offset, &data);
    }
    object
}

/// Path and SHA-256 of every regular file.
fn hashes(fs: &Filesystem<MemoryObjects>, directory: u64, prefix: &str, out: &mut BTreeMap<String, String>) {
    for entry in fs.read_dir(directory).unwrap().all() {
        let entry = entry.unwrap();
        let path = format!("{prefix}{}", String::from_utf8_lossy(&entry.name));
        let attributes = fs.attributes(entry.object).unwrap();
        match attributes.kind() {
            FileKind::Directory => hashes(fs, entry.object, &format!("{path}/"), out),
            FileKind::File => {
                let mut data = vec![0; usize::try_from(attributes.size).unwrap()];
                fs.objects().read(entry.object, 0, &mut data).unwrap();
                let hash = Sha256::digest(&data).iter().map(|byte| format!("{byte:02x}")).collect();
                out.insert(path, hash);
            }
            _ => {}
        }
    }
}

#[test]
fn files_are_what_the_manifest_says() {
    let files = case("11-raw");
    let mut tested = 0;
    for name in ["gcmraw", "gcmpass", "ccmraw", "ccmpass"] {
        let Some(stream) = files.get(&format!("{name}-w-full.zstream")) else { continue };
        let objects = decrypted(stream, &files[&format!("keys/{name}.key")]);
        let fs = Filesystem::open(objects).unwrap();
        let mut found = BTreeMap::new();
        hashes(&fs, fs.root(), "", &mut found);
        let manifest = std::str::from_utf8(&files[&format!("manifest/tank+{name}@a.jsonl")]).unwrap();
        let expected: BTreeMap<String, String> = manifest
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
            .filter_map(|line| Some((line["path"].as_str()?.to_owned(), line["sha256"].as_str()?.to_owned())))
            .collect();
        assert!(expected.len() > 10, "{name}: {} files", expected.len());
        assert_eq!(found, expected, "{name}");
        tested += 1;
    }
    assert!(tested > 0);
}

#[test]
fn blocks_are_those_that_openzfs_decrypted() {
    let files = case("11-raw");
    let Some(sent) = files.get("gcmraw-decrypted-full.zstream") else {
        return eprintln!("skipped: the decrypted stream is in the whole corpus only (SNOWMELT_CORPUS)");
    };
    let ours = decrypted(&files["gcmraw-w-full.zstream"], &files["keys/gcmraw.key"]);
    let (mut reader, mut payload, mut compared) = (Reader::new(&sent[..]), Vec::new(), 0);
    while let Some(at) = reader.next(&mut payload).unwrap() {
        match at.record {
            Record::Begin(begin) => assert!(!begin.features.contains(Features::RAW)),
            Record::Object(o) => {
                assert_eq!(
                    ours.objects[&o.object].dnode.bonus,
                    payload[..o.bonus_len as usize],
                    "{}",
                    o.object
                );
            }
            Record::Write(w) => {
                let mut data = vec![0; payload.len()];
                ours.read(w.object, w.offset, &mut data).unwrap();
                assert!(data == payload, "object {} at {}", w.object, w.offset);
                compared += 1;
            }
            Record::Spill(s) => assert_eq!(ours.spill(s.object).unwrap().as_ref(), Some(&payload)),
            _ => {}
        }
    }
    assert!(compared > 40, "{compared} blocks");
}
