//! Pools as files with every segment and uberblock. Those in `tests/golden` have fixed versions and must always open.

use std::path::Path;

use snowmelt_store::{MemoryStore, SegmentId, Store};

/// The pool in a file of `tests/golden`.
pub(crate) fn of(name: &str) -> MemoryStore {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    unpacked(&std::fs::read(path).unwrap())
}

pub(crate) fn unpacked(bytes: &[u8]) -> MemoryStore {
    let store = MemoryStore::new();
    let mut rest = bytes;
    while let Some((head, tail)) = rest.split_first_chunk::<13>() {
        let id = u64::from_le_bytes(head[1..9].try_into().unwrap());
        let len = u32::from_le_bytes(head[9..].try_into().unwrap()) as usize;
        let (body, tail) = tail.split_at(len);
        match head[0] {
            0 => {
                store.create_segment(SegmentId(id)).unwrap();
                store.append(SegmentId(id), 0, body).unwrap();
            }
            _ => store.publish(id, body).unwrap(),
        }
        rest = tail;
    }
    store
}

pub(crate) fn packed(store: &MemoryStore) -> Vec<u8> {
    let mut out = Vec::new();
    let mut add = |tag: u8, id: u64, body: &[u8]| {
        out.push(tag);
        out.extend(id.to_le_bytes());
        out.extend((body.len() as u32).to_le_bytes());
        out.extend(body);
    };
    for info in store.segments().unwrap() {
        let mut bytes = vec![0; usize::try_from(info.len).unwrap()];
        store.read(info.id, 0, &mut bytes).unwrap();
        add(0, info.id.0, &bytes);
    }
    store.uberblocks().unwrap().iter().for_each(|raw| add(1, raw.txg, &raw.bytes));
    out
}
