//! Replays streams into memory, for tests with streams from real ZFS.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::panic, missing_docs)]

use snowmelt_stream::{Begin, HeaderType, Object, Reader, Record, decompress};
use snowmelt_zpl::Dnode;
use snowmelt_zpl::memory::{MemoryObject, MemoryObjects};
use std::collections::BTreeMap;
use std::sync::Arc;

#[path = "../../../../testdata/unpack.rs"]
pub mod testdata;

/// Snapshots received, by guid.
#[derive(Default)]
pub struct Received {
    pub snapshots: BTreeMap<u64, Arc<MemoryObjects>>,
}

/// The files of a test case. If `SNOWMELT_CORPUS` names a directory, they come from the whole corpus there, otherwise
/// from the repository. `None` if the repository has no files of the case.
pub fn case(name: &str) -> Option<BTreeMap<String, Vec<u8>>> {
    if let Some(corpus) = std::env::var_os("SNOWMELT_CORPUS") {
        let root = std::path::Path::new(&corpus).join(name);
        let mut files = BTreeMap::new();
        for directory in [root.clone(), root.join("manifest")] {
            for entry in
                std::fs::read_dir(&directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()))
            {
                let path = entry.unwrap().path();
                if path.is_file() {
                    let key = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
                    files.insert(key, std::fs::read(&path).unwrap());
                }
            }
        }
        return Some(files);
    }
    let kept = testdata::root().join("streams").join(format!("{name}.tar.zst"));
    kept.exists().then(|| testdata::case(name))
}

fn content(compression: u8, logical: usize, payload: &[u8]) -> Vec<u8> {
    let mut data = vec![0; logical];
    match compression {
        0 => data.copy_from_slice(&payload[..logical]),
        id => decompress(id, payload, &mut data).unwrap(),
    }
    data
}

fn put_object(objects: &mut MemoryObjects, record: &Object, bonus: &[u8]) {
    let found = objects.objects.entry(record.object).or_default();
    if found.dnode.block_size != record.block_size || found.dnode.slots != record.slots() {
        *found = MemoryObject::default();
    }
    let has_spill = record.flags & Object::SPILL != 0;
    if !has_spill {
        found.spill = None;
    }
    found.dnode = Dnode {
        object: record.object,
        object_type: record.object_type as u8,
        bonus_type: record.bonus_type as u8,
        block_size: record.block_size,
        slots: record.slots(),
        has_spill,
        checksum: record.checksum_type,
        compress: record.compress,
        bonus: bonus[..record.bonus_len as usize].to_vec(),
    };
}

impl Received {
    /// Receives a stream or a package. Returns the guids of its snapshots in order.
    pub fn receive(&mut self, stream: &[u8]) -> Vec<u64> {
        let mut reader = Reader::new(stream);
        let mut payload = Vec::new();
        let mut open: Option<(Begin, MemoryObjects)> = None;
        let mut guids = Vec::new();
        while let Some(positioned) = reader.next(&mut payload).unwrap() {
            match (&positioned.record, &mut open) {
                (Record::Begin(begin), None) if begin.header_type == HeaderType::Substream => {
                    let base = match begin.from_guid {
                        0 => MemoryObjects::default(),
                        guid => (**self
                            .snapshots
                            .get(&guid)
                            .unwrap_or_else(|| panic!("{:?} is from {guid}", begin.to_name)))
                        .clone(),
                    };
                    open = Some((begin.clone(), base));
                }
                (Record::End(_), open) => {
                    if let Some((begin, objects)) = open.take() {
                        self.snapshots.insert(begin.to_guid, Arc::new(objects));
                        guids.push(begin.to_guid);
                    }
                }
                (record, Some((_, objects))) => apply(objects, record, &payload),
                _ => {}
            }
        }
        guids
    }
}

fn apply(objects: &mut MemoryObjects, record: &Record, payload: &[u8]) {
    let object = |objects: &mut MemoryObjects, number, change: &mut dyn FnMut(&mut MemoryObject)| {
        change(objects.objects.get_mut(&number).unwrap_or_else(|| panic!("no object {number}")));
    };
    match record {
        Record::Object(record) => put_object(objects, record, payload),
        Record::FreeObjects(record) => {
            objects
                .objects
                .retain(|number, _| *number < record.first || *number - record.first >= record.count);
        }
        Record::Write(record) => {
            let data = content(record.compression, record.logical_size as usize, payload);
            object(objects, record.object, &mut |found| found.write(record.offset, &data));
        }
        Record::WriteEmbedded(record) => {
            let data = content(record.compression, record.lsize as usize, &payload[..record.psize as usize]);
            object(objects, record.object, &mut |found| {
                found.free(record.offset, record.length);
                found.write(record.offset, &data);
            });
        }
        Record::Spill(record) => {
            let data = content(record.compression, record.length as usize, payload);
            object(objects, record.object, &mut |found| {
                found.spill = Some(data.clone());
                found.dnode.has_spill = true;
            });
        }
        Record::Free(record) => {
            if let Some(found) = objects.objects.get_mut(&record.object) {
                found.free(record.offset, record.length);
            }
        }
        Record::Redact(record) => {
            object(objects, record.object, &mut |found| found.free(record.offset, record.length));
        }
        other => panic!("{} is not replayed", other.kind_name()),
    }
}

/// One line of `chains.tsv`: a chain, its next stream, and the snapshots that are expected after it.
pub struct Step {
    pub chain: String,
    pub stream: String,
    pub snapshots: Vec<String>,
}

fn fields(file: &[u8]) -> impl Iterator<Item = Vec<&str>> {
    std::str::from_utf8(file).unwrap().lines().map(|line| line.split('\t').collect())
}

pub fn chains(case: &BTreeMap<String, Vec<u8>>) -> Vec<Step> {
    fields(&case["chains.tsv"])
        .map(|line| Step {
            chain: line[0].into(),
            stream: line[1].into(),
            snapshots: line.get(2).map_or(Vec::new(), |all| all.split(' ').map(str::to_owned).collect()),
        })
        .collect()
}

/// The manifest of each snapshot, by guid.
pub fn manifests(case: &BTreeMap<String, Vec<u8>>) -> BTreeMap<u64, &[u8]> {
    fields(&case["snapshots.tsv"])
        .filter_map(|line| Some((line[0].parse().unwrap(), case.get(*line.get(3)?)?.as_slice())))
        .collect()
}
