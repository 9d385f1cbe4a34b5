//! Random calls to each store, compared with the same calls to the store in memory, which serves as the model.

use proptest::prelude::*;
use tempfile::TempDir;

use crate::{Access, CreateOptions, DirectoryStore, FaultStore, FileStore, MemoryStore, PoolLabel};
use crate::{Result, SegmentId, Store};

#[derive(Debug, Clone)]
pub(crate) enum Call {
    Create(u64),
    /// Segment, offset relative to its end, length.
    Append(u64, i64, usize),
    Read(u64, u64, usize),
    Reopen(u64, u64),
    Seal(u64),
    Delete(u64),
    Sync,
    Publish(u64, usize),
    Commit(u64, usize),
    Restart,
}

pub(crate) fn call() -> impl Strategy<Value = Call> {
    let id = || prop_oneof![0..6u64, 0x100..0x102u64];
    prop_oneof![
        3 => id().prop_map(Call::Create),
        6 => (id(), prop_oneof![4 => Just(0i64), 1 => -5000..5000i64], 0..20_000usize)
            .prop_map(|(id, difference, len)| Call::Append(id, difference, len)),
        4 => (id(), 0..40_000u64, 1..10_000usize).prop_map(|(id, offset, len)| Call::Read(id, offset, len)),
        2 => (id(), 0..20_000u64).prop_map(|(id, len)| Call::Reopen(id, len)),
        2 => id().prop_map(Call::Seal),
        2 => id().prop_map(Call::Delete),
        1 => Just(Call::Sync),
        2 => (0..50u64, 0..5000usize).prop_map(|(txg, len)| Call::Publish(txg, len)),
        2 => (0..50u64, 0..500usize).prop_map(|(txg, len)| Call::Commit(txg, len)),
        1 => Just(Call::Restart),
    ]
}

pub(crate) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(31).wrapping_add(seed * 7) % 251) as u8).collect()
}

/// Does the call and returns its outcome as text, without details in which stores may differ.
pub(crate) fn perform(store: &dyn Store, call: &Call) -> String {
    let outcome = |result: Result<()>| match result {
        Ok(()) => "ok".to_owned(),
        // Only the name of the variant.
        Err(error) => format!("{error:?}").split([' ', '{']).next().unwrap_or_default().to_owned(),
    };
    match *call {
        Call::Create(id) => outcome(store.create_segment(SegmentId(id))),
        Call::Append(id, difference, len) => {
            let end =
                store.segments().unwrap().iter().find(|info| info.id.0 == id).map_or(0, |info| info.len);
            outcome(store.append(SegmentId(id), end.saturating_add_signed(difference), &bytes(id + end, len)))
        }
        Call::Read(id, offset, len) => {
            let mut buf = vec![0; len];
            let result = outcome(store.read(SegmentId(id), offset, &mut buf));
            let sum: u64 =
                if result == "ok" { buf.iter().zip(1..).map(|(&b, i)| u64::from(b) * i).sum() } else { 0 };
            format!("{result} {sum}")
        }
        Call::Reopen(id, len) => outcome(store.reopen_segment(SegmentId(id), len)),
        Call::Seal(id) => outcome(store.seal_segment(SegmentId(id))),
        Call::Delete(id) => outcome(store.delete_segment(SegmentId(id))),
        Call::Sync => outcome(store.sync()),
        Call::Publish(txg, len) => outcome(store.publish(txg, &bytes(txg, len))),
        Call::Commit(txg, len) => outcome(store.commit(txg, &bytes(txg, len))),
        Call::Restart => unreachable!("done by the harness"),
    }
}

/// Compares a store with the model. `restart` closes the store, with all segments sealed, and opens it again.
pub(crate) fn follows_the_model(
    calls: &[Call],
    mut store: Box<dyn Store>,
    restart: impl Fn(Box<dyn Store>) -> Box<dyn Store>,
) {
    let mut model = MemoryStore::with_segment_capacity(store.segment_capacity());
    for (index, call) in calls.iter().enumerate() {
        if let Call::Restart = call {
            // After a restart, the store may not know the length of a segment that was open.
            for info in model.segments().unwrap() {
                store.seal_segment(info.id).unwrap();
            }
            (model, store) = (model.snapshot(), restart(store));
        } else {
            assert_eq!(perform(&*store, call), perform(&model, call), "call {index}: {call:?}");
        }
        assert_eq!(store.segments().unwrap(), model.segments().unwrap(), "after call {index}: {call:?}");
    }
    assert_eq!(store.uberblocks().unwrap(), model.uberblocks().unwrap());
}

pub(crate) fn options(size: Option<u64>) -> CreateOptions {
    CreateOptions { label: PoolLabel { name: "tank".to_owned(), guid: 1 }, size, force: false }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn directory_store(calls in prop::collection::vec(call(), 1..60)) {
        let dir = TempDir::new().unwrap();
        let store = DirectoryStore::create(dir.path(), &options(None)).unwrap();
        follows_the_model(&calls, Box::new(store), |store| {
            drop(store);
            Box::new(DirectoryStore::open(dir.path(), Access::ReadWrite).unwrap())
        });
    }

    #[test]
    fn file_store(calls in prop::collection::vec(call(), 1..60)) {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("pool.img");
        let store = FileStore::create(&path, &options(Some(64 << 20))).unwrap();
        follows_the_model(&calls, Box::new(store), |store| {
            drop(store);
            Box::new(FileStore::open(&path, Access::ReadWrite).unwrap())
        });
    }

    #[test]
    fn fault_store(calls in prop::collection::vec(call(), 1..60)) {
        let store = FaultStore::over(1, &MemoryStore::with_segment_capacity(1 << 40));
        let handle = store.clone();
        follows_the_model(&calls, Box::new(store), |store| {
            handle.restart();
            store
        });
    }

    #[test]
    fn labels_and_rings_take_any_bytes(noise: Vec<u8>, at in 0usize..4096, xor in 1u8..) {
        let _ = crate::label::Label::decode(&noise);
        let layout = crate::label::Layout::File { slot_len: 4 << 20, slot_count: 15, slot_base: 2 << 20 };
        let members = vec![(at as u64, "/a b".into()), (5, "/dev/sdb".into())];
        let mirror = (xor % 2 == 0).then_some(crate::MirrorLabel { member: 5, members });
        let pool = PoolLabel { name: "tank".into(), guid: 3 };
        let label = crate::label::Label { pool, seq: 9, layout, mirror };
        let mut page = label.encode();
        prop_assert_eq!(crate::label::Label::decode(&page).unwrap(), label);
        page[at] ^= xor;
        prop_assert!(crate::label::Label::decode(&page).is_err(), "a flipped byte went unnoticed");
    }
}
