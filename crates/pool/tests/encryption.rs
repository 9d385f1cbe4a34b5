//! Encrypted pools: nothing stored is readable, nothing is accepted that was not made with the key, and the tests of
//! other pools hold too. (With `SNOWMELT_TEST_ENCRYPT=xchacha20-poly1305` the other tests here also use encrypted
//! pools.)
#![allow(clippy::unwrap_used)]

mod common;

use common::{Mini, MiniRoots, RAW_KEY, golden, key, keys, raw, small};
use snowmelt_pool::{
    BLOCK_MAX, BlockId, BlockPtr, CheckOptions, FRAME_HEADER, KeyError, Keys, NewPool, Pool, PoolError,
    PoolOptions, Prepared, Rewind, Salvage, ScrubOptions, ScrubState, ScrubStatus, StoredPtr, Suite, TreeId,
};
use snowmelt_store::{Access, FaultStore, MemoryStore, MirrorMember, MirrorStore, Store};
use snowmelt_stream::compress::Compression;

const ID: BlockId = BlockId { object: 1, blkid: 2 };
const MARKER: &[u8] = b"Plaintext-That-Must-Not-Be-Stored";

fn options(keys: &Keys) -> PoolOptions {
    PoolOptions { keys: Some(keys.clone()), data_cache_bytes: 0, node_cache_bytes: 0, ..small() }
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Some txgs with all kinds of blocks: embedded, compressed, incompressible.
fn filled(store: Box<dyn Store>, options: PoolOptions) -> Mini {
    let mut mini = Mini::create(store, options).unwrap();
    for round in 0..4u64 {
        for at in 0..40u16 {
            let seed = u64::from(at) + round * 100;
            let data = match at % 3 {
                0 => noise(seed, 60),
                1 => vec![at as u8; 3000],
                _ => noise(seed, 1500),
            };
            mini.put(&key(at), &data).unwrap();
        }
        mini.snapshot().unwrap();
    }
    mini.destroy_snapshot(1).unwrap();
    mini.commit().unwrap();
    mini
}

/// All bytes of a store.
fn bytes_of(store: &dyn Store) -> Vec<u8> {
    let mut out = Vec::new();
    for info in store.segments().unwrap() {
        let mut bytes = vec![0; usize::try_from(info.len).unwrap()];
        store.read(info.id, 0, &mut bytes).unwrap();
        out.extend(bytes);
    }
    store.uberblocks().unwrap().iter().for_each(|raw| out.extend(&raw.bytes));
    out
}

fn has(bytes: &[u8], what: &[u8]) -> bool {
    bytes.windows(what.len()).any(|window| window == what)
}

fn scrub(mini: &Mini) -> ScrubStatus {
    let options = ScrubOptions { rate: None, batch_bytes: 1 << 20, cancelled: &|| false, progress: &|_| {} };
    mini.pool.scrub(&MiniRoots, &options, &mut |_| {}).unwrap()
}

fn pointer(mini: &Mini, at: u16) -> StoredPtr {
    let entry = mini.head.get(&key(at)).unwrap().unwrap();
    match BlockPtr::decode(&mut &entry.value[..]).unwrap() {
        BlockPtr::Stored(ptr) => ptr,
        other => panic!("{other:?}"),
    }
}

fn open(store: &MemoryStore, options: PoolOptions) -> Result<std::sync::Arc<Pool>, PoolError> {
    Pool::open(Box::new(store.clone()), options)
}

/// Verifies that everything is unchanged, and that `check` finds nothing.
fn is_whole(store: &MemoryStore, mini_options: PoolOptions, was: &Mini) {
    let again = Mini::open(Box::new(store.clone()), mini_options, &was.committed).unwrap().unwrap();
    assert_eq!(again.model, was.model);
    again.verify().unwrap();
    again.check().unwrap();
}

#[test]
fn nothing_readable_is_stored() {
    for suite in Suite::ALL {
        let (plain, sealed) = (MemoryStore::new(), MemoryStore::new());
        for (store, keys) in [(&plain, None), (&sealed, Some(keys(suite)))] {
            let mut mini = Mini::create(Box::new(store.clone()), PoolOptions { keys, ..small() }).unwrap();
            // As a key, embedded in a pointer, in an incompressible block, in a compressible one, and as a property.
            mini.put(&[b"key", MARKER].concat(), MARKER).unwrap();
            mini.put(&key(1), &[&noise(1, 700), MARKER, &noise(2, 700)].concat()).unwrap();
            mini.put(&key(2), &[MARKER, &[0; 4000]].concat()).unwrap();
            let hold = mini.pool.begin().unwrap();
            mini.pool.set_property(&hold, "comment", MARKER).unwrap();
            drop(hold);
            mini.snapshot().unwrap();
            mini.clean().unwrap();
        }
        assert!(has(&bytes_of(&plain), MARKER), "or this test tests nothing");
        let stored = bytes_of(&sealed);
        assert!(!has(&stored, MARKER) && !has(&stored, &MARKER[..12]));
        assert!(!has(&stored, &RAW_KEY) && !has(&stored, b"comment"));
    }
}

#[test]
fn a_pool_opens_with_its_key_alone() {
    for suite in Suite::ALL {
        let keys = keys(suite);
        let store = MemoryStore::new();
        let mini = filled(Box::new(store.clone()), options(&keys));
        let record = Pool::key_record_of(&store).unwrap().unwrap();
        assert_eq!((record.suite(), record.location()), (suite, "file:///keys/tank"));
        assert_eq!(mini.pool.key_record().as_ref(), Some(&record));
        let before = bytes_of(&store);
        assert!(matches!(open(&store, small_plain()), Err(PoolError::KeyNeeded { .. })));
        assert!(matches!(Keys::open(&record, &[8; 32]), Err(KeyError::Incorrect)));
        // The key of another pool with the same guid is wrong for everything.
        let other = common::keys(suite);
        let refused = open(&store, options(&other)).unwrap_err();
        assert!(refused.to_string().contains("was not made with the pool's key"), "{refused}");
        assert_eq!(before, bytes_of(&store), "and nothing was touched");
        let again = Keys::open(&record, &RAW_KEY).unwrap();
        is_whole(&store, options(&again), &mini);
        // A pool without encryption has no key.
        let plain = MemoryStore::new();
        filled(Box::new(plain.clone()), small_plain());
        assert!(Pool::key_record_of(&plain).unwrap().is_none());
        assert!(open(&plain, options(&keys)).is_err());
        open(&plain, small_plain()).unwrap();
    }
}

fn small_plain() -> PoolOptions {
    PoolOptions { keys: None, ..small() }
}

#[test]
fn uberblocks_that_the_key_did_not_make_are_passed_over() {
    let keys = keys(Suite::default());
    let store = MemoryStore::new();
    let mini = filled(Box::new(store.clone()), options(&keys));
    let newest = store.uberblocks().unwrap().pop().unwrap();
    // A forged uberblock with another txg, a later owner, and a correct checksum.
    const TXG_AT: usize = 8 + 4 + 3 * 8 + 8;
    let mut forged = newest.bytes[..newest.bytes.len() - 32].to_vec();
    let txg = newest.txg + 9;
    forged[TXG_AT..TXG_AT + 8].copy_from_slice(&txg.to_le_bytes());
    forged[TXG_AT + 16..TXG_AT + 24].copy_from_slice(&99u64.to_le_bytes());
    let sum = *blake3::hash(&forged).as_bytes();
    store.publish(txg, &[&forged[..], &sum].concat()).unwrap();
    let pool = open(&store, PoolOptions { rewind: Rewind::Recent, ..options(&keys) }).unwrap();
    assert_eq!(pool.open_report().txg, newest.txg);
    drop(pool);
    // A forged uberblock that declares the pool as not encrypted does not help.
    let (plain, txg) = (MemoryStore::new(), txg + 9);
    let other = Mini::create(Box::new(plain.clone()), small_plain()).unwrap();
    drop(other);
    let mut without = plain.uberblocks().unwrap().pop().unwrap().bytes;
    without.truncate(without.len() - 32);
    without[TXG_AT..TXG_AT + 8].copy_from_slice(&txg.to_le_bytes());
    let sum = *blake3::hash(&without).as_bytes();
    store.publish(txg, &[&without[..], &sum].concat()).unwrap();
    let pool = open(&store, PoolOptions { rewind: Rewind::Recent, ..options(&keys) }).unwrap();
    assert_eq!(pool.open_report().txg, newest.txg);
    drop(mini);
}

#[test]
fn blocks_that_changed_places_are_refused() {
    let keys = keys(Suite::default());
    let store = MemoryStore::new();
    let mini = filled(Box::new(store.clone()), options(&keys));
    let (a, b) = (pointer(&mini, 2), pointer(&mini, 5));
    assert_eq!(a.psize, b.psize, "both of the same length, stored and logical");
    let frame = |ptr: &StoredPtr| {
        let mut bytes = vec![0; FRAME_HEADER + ptr.psize as usize];
        store.read(ptr.segment, ptr.offset.into(), &mut bytes).unwrap();
        bytes
    };
    let put = |ptr: &StoredPtr, new: &[u8]| {
        for (at, (old, new)) in frame(ptr).iter().zip(new).enumerate() {
            store.corrupt(ptr.segment, u64::from(ptr.offset) + at as u64, old ^ new).unwrap();
        }
    };
    let (of_a, of_b) = (frame(&a), frame(&b));
    put(&a, &of_b);
    put(&b, &of_a);
    for ptr in [&a, &b] {
        assert!(matches!(mini.pool.read(&BlockPtr::Stored(ptr.clone())), Err(PoolError::Corrupt { .. })));
    }
    // A forged pointer does not help: the block is bound to its birth and size.
    let fitted = StoredPtr { hash: b.hash, birth: a.birth + 1, ..a };
    assert!(mini.pool.read(&BlockPtr::Stored(fitted)).is_err());
    let fitted = StoredPtr { hash: b.hash, ..pointer(&mini, 2) };
    assert!(mini.pool.read(&BlockPtr::Stored(fitted)).is_ok(), "births and sizes are equal");
}

#[test]
fn damage_is_found_and_mended_without_the_plain_bytes() {
    for suite in Suite::ALL {
        let keys = keys(suite);
        let store = MemoryStore::new();
        let mini = filled(Box::new(store.clone()), options(&keys));
        let ptr = pointer(&mini, 2);
        for at in [0, 30, u64::from(ptr.psize) - 1] {
            store.corrupt(ptr.segment, u64::from(ptr.offset) + FRAME_HEADER as u64 + at, 1).unwrap();
        }
        assert!(mini.pool.read(&BlockPtr::Stored(ptr.clone())).is_err());
        let scrubbed = scrub(&mini);
        assert_eq!((scrubbed.state, scrubbed.errors), (ScrubState::Finished, 1));
        // A replica or a stream with the plain block can repair it, but only with the original bytes.
        let mut mending = mini.pool.mending();
        let offer = |seed| Prepared::stored(noise(seed, 1500), 1500, 2);
        assert!(!mending.offer(&ptr, mini.head.id(), ID, &offer(1)).unwrap());
        assert!(mending.offer(&ptr, mini.head.id(), ID, &offer(302)).unwrap());
        assert_eq!(mending.finish().unwrap().blocks, 1);
        mini.verify().unwrap();
        mini.check().unwrap();
        let same = Prepared::stored(noise(302, 1500), 1500, 2);
        assert!(mini.pool.is_at(&same, ID, &BlockPtr::Stored(ptr.clone())), "as nopwrite asks");
        assert!(!mini.pool.is_at(&offer(303), ID, &BlockPtr::Stored(ptr)));
    }
}

#[test]
fn a_mirror_and_parity_mend_what_is_sealed() {
    let keys = keys(Suite::default());
    let stores = [MemoryStore::new(), MemoryStore::new()];
    let members = stores.iter().zip(1..).map(|(store, guid)| MirrorMember {
        guid,
        path: format!("/disk{guid}").into(),
        store: Ok(Box::new(store.clone()) as Box<dyn Store>),
    });
    let mirror = MirrorStore::assemble(members.collect(), Access::ReadWrite).unwrap();
    let mini = filled(Box::new(mirror), options(&keys));
    let ptr = pointer(&mini, 2);
    stores[0].corrupt(ptr.segment, u64::from(ptr.offset) + FRAME_HEADER as u64 + 50, 1).unwrap();
    assert!(!bytes_of(&stores[0]).eq(&bytes_of(&stores[1])));
    assert_eq!(scrub(&mini).errors, 0);
    mini.verify().unwrap();
    mini.check().unwrap();

    let store = MemoryStore::new();
    let options = PoolOptions { segment_bytes: 4 << 20, ..options(&keys) };
    let mut mini = Mini::create(Box::new(store.clone()), options).unwrap();
    mini.pool.set_parity(10).unwrap();
    for at in 0..30 {
        mini.put(&key(at), &noise(at.into(), 60_000)).unwrap();
    }
    mini.commit().unwrap();
    for at in [0, 7, 29] {
        let ptr = pointer(&mini, at);
        store.corrupt(ptr.segment, u64::from(ptr.offset) + FRAME_HEADER as u64 + 999, 0x40).unwrap();
    }
    mini.verify().unwrap();
    mini.check().unwrap();
}

#[test]
fn the_largest_block_and_the_smallest_segment() {
    let keys = keys(Suite::default());
    let options = PoolOptions { keys: Some(keys.clone()), ..PoolOptions::default() };
    let new = NewPool { name: "tank", guid: 42 };
    let pool = Pool::create(Box::new(MemoryStore::new()), &new, options).unwrap();
    let data = noise(1, BLOCK_MAX as usize);
    let hold = pool.begin().unwrap();
    let ptr = hold.write(TreeId(1), ID, Prepared::stored(data.clone(), BLOCK_MAX, 2)).unwrap();
    drop(hold);
    assert_eq!((ptr.psize(), ptr.compression()), (BLOCK_MAX, 2), "as streams have it");
    let mut bytes = Vec::new();
    ptr.encode(&mut bytes);
    assert_eq!(BlockPtr::decode(&mut &bytes[..]).unwrap(), ptr);
    assert!(pool.read_stored(&ptr).unwrap() == data);
    let mut plain = vec![0; data.len()];
    assert!(pool.read_plain(&ptr, &mut plain).unwrap() && plain == data);
    // Nobody may write a block that claims to be sealed.
    let hold = pool.begin().unwrap();
    assert!(hold.write(TreeId(1), ID, Prepared::stored(vec![0; 600], 560, 0x42)).is_err());
    drop(hold);
    // A segment has less room for blocks, because it begins with the key frame.
    let store = MemoryStore::new();
    let mini = Mini::create(Box::new(store), common_options(&keys)).unwrap();
    let hold = mini.pool.begin().unwrap();
    let block = |len: usize| Prepared::compress(noise(2, len), Compression::Off);
    assert!(matches!(hold.write(TreeId(1), ID, block(65_300)), Err(PoolError::Size { .. })));
    let largest = hold.write(TreeId(1), ID, block(65_000)).unwrap();
    assert!(mini.pool.read(&largest).unwrap() == noise(2, 65_000));
}

fn common_options(keys: &Keys) -> PoolOptions {
    PoolOptions { keys: Some(keys.clone()), ..small() }
}

#[test]
fn every_crash_leaves_a_committed_state() {
    for (seed, suite) in [(1, Suite::XChaCha20Poly1305), (2, Suite::Aes256GcmSiv)] {
        let keys = keys(suite);
        let store = FaultStore::new(seed);
        let mut mini = filled(Box::new(store.clone()), options(&keys));
        mini.clean().unwrap();
        mini.put(&key(3), &noise(9, 2000)).unwrap();
        mini.commit().unwrap();
        let committed = mini.committed.clone();
        drop(mini);
        for image in store.crash_points(.., 2) {
            match Mini::open(Box::new(image.store.clone()), options(&keys), &committed) {
                Ok(Some(mut mini)) => {
                    assert!(image.published.is_none_or(|txg| mini.pool.open_report().txg >= txg));
                    mini.verify().unwrap();
                    mini.check().unwrap();
                    // An offset that is written a second time is read with its new content.
                    mini.put(&key(200), &noise(77, 900)).unwrap();
                    mini.commit().unwrap();
                    mini.verify().unwrap();
                }
                Ok(None) => {}
                Err(PoolError::NoUberblock { .. }) => assert_eq!(image.published, None),
                Err(error) => panic!("a crash made the pool unreadable: {error:?}"),
            }
        }
    }
}

#[test]
fn a_changed_key_is_the_old_or_the_new_at_every_crash() {
    const NEW: [u8; 32] = [8; 32];
    let keys = keys(Suite::default());
    let store = FaultStore::new(3);
    let mut mini = filled(Box::new(store.clone()), options(&keys));
    let before = store.position();
    mini.pool.change_key(&raw(&NEW)).unwrap();
    let after = store.position();
    mini.put(&key(3), b"later").unwrap();
    mini.commit().unwrap();
    let (mut old, mut new) = (0, 0);
    for image in store.crash_points(before.., 3) {
        let record = Pool::key_record_of(&image.store).unwrap().unwrap();
        let opened = match (Keys::open(&record, &RAW_KEY), Keys::open(&record, &NEW)) {
            (Ok(keys), Err(KeyError::Incorrect)) => (keys, old += 1).0,
            (Err(KeyError::Incorrect), Ok(keys)) => (keys, new += 1).0,
            other => panic!("one of the two, not {other:?}"),
        };
        let pool = open(&image.store, options(&opened)).unwrap();
        let report = pool.check(&MiniRoots, CheckOptions { data: true }, &mut |_| {}).unwrap();
        assert_eq!(report.errors, 0);
    }
    assert!(old > 0 && new > 0, "{old} with the old key, {new} with the new");
    // After the change, the old key opens none of the txgs that an ordinary open can choose, and it does not match the
    // key frames of segments.
    for image in store.crash_points(after.., 1) {
        let mut ring = image.store.uberblocks().unwrap();
        for raw in ring.split_off(ring.len() - 4) {
            let one = MemoryStore::new();
            one.publish(raw.txg, &raw.bytes).unwrap();
            let record = Pool::key_record_of(&one).unwrap().unwrap();
            assert!(Keys::open(&record, &RAW_KEY).is_err() && Keys::open(&record, &NEW).is_ok());
        }
    }
    let salvage = Salvage::find(&without_ring(&store.snapshot()), 42, &mut |_, _| true).unwrap().unwrap();
    assert!(Keys::open(salvage.key_record().unwrap(), &NEW).is_ok());
    // A pool without encryption has no key to change.
    let plain = Mini::create(Box::new(MemoryStore::new()), small_plain()).unwrap();
    assert!(matches!(plain.pool.change_key(&raw(&NEW)), Err(PoolError::Misuse(_))));
    assert!(matches!(mini.pool.change_key(&raw(b"short")), Err(PoolError::Key(KeyError::Form(_)))));
}

fn without_ring(store: &MemoryStore) -> MemoryStore {
    let bare = MemoryStore::new();
    for info in store.segments().unwrap() {
        let mut bytes = vec![0; usize::try_from(info.len).unwrap()];
        store.read(info.id, 0, &mut bytes).unwrap();
        bare.create_segment(info.id).unwrap();
        bare.append(info.id, 0, &bytes).unwrap();
    }
    bare
}

#[test]
fn a_pool_without_uberblocks_is_salvaged_by_its_key() {
    let keys = keys(Suite::Aes256GcmSiv);
    let store = MemoryStore::new();
    let mini = filled(Box::new(store.clone()), options(&keys));
    let txg = mini.pool.committed_txg();
    let (model, committed) = (mini.model.clone(), mini.committed.clone());
    drop(mini);
    let bare = without_ring(&store);
    assert!(Pool::key_record_of(&bare).unwrap().is_none());
    let salvage = Salvage::find(&bare, 42, &mut |_, _| true).unwrap().unwrap();
    let state = salvage.states.iter().find(|state| state.txg() == txg).unwrap();
    let open = |keys| {
        let options = PoolOptions { keys, ..small_plain() };
        Pool::open_lost(Box::new(bare.clone()), &salvage, state, options)
    };
    assert!(matches!(open(None), Err(PoolError::KeyNeeded { .. })));
    assert!(open(Some(common::keys(Suite::Aes256GcmSiv))).is_err(), "another key");
    let found = Keys::open(salvage.key_record().unwrap(), &RAW_KEY).unwrap();
    let mut mini = Mini::of(open(Some(found.clone())).unwrap(), &committed).unwrap().unwrap();
    assert_eq!(mini.model, model);
    mini.verify().unwrap();
    mini.put(&key(3), b"again").unwrap();
    mini.commit().unwrap();
    mini.check().unwrap();
    let was = mini;
    is_whole(&bare, options(&found), &was);
}

fn is_golden(store: &MemoryStore) {
    let record = Pool::key_record_of(store).unwrap().unwrap();
    let keys = Keys::open(&record, &RAW_KEY).unwrap();
    let pool = open(store, options(&keys)).unwrap();
    assert_eq!(pool.property("comment").unwrap().unwrap(), MARKER);
    let report = pool.check(&MiniRoots, CheckOptions { data: true }, &mut |_| {}).unwrap();
    assert_eq!(report.errors, 0);
    assert!(!has(&bytes_of(store), MARKER));
}

#[test]
fn the_golden_pool_opens() {
    is_golden(&golden::of("encrypted-1.pool"));
}

/// The content of a golden pool. Another version has another one, and that of version 1 never changes.
#[test]
fn a_pool_made_as_the_golden_one_was_is_one() {
    let store = MemoryStore::new();
    let keys = keys(Suite::default());
    let mut mini = Mini::create(Box::new(store.clone()), options(&keys)).unwrap();
    for at in 0..9u16 {
        mini.put(&key(at), &noise(at.into(), 50 + 40 * usize::from(at))).unwrap();
    }
    let hold = mini.pool.begin().unwrap();
    mini.pool.set_property(&hold, "comment", MARKER).unwrap();
    drop(hold);
    mini.snapshot().unwrap();
    is_golden(&golden::unpacked(&golden::packed(&store)));
}
