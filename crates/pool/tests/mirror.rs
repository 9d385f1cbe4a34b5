//! A pool on a mirror: a wrong copy is read from another member, and repaired.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use common::{Mini, MiniRoots, Model, key, small};
use snowmelt_pool::{
    CheckOptions, FRAME_HEADER, Pool, PoolOptions, ScrubOptions, ScrubState, ScrubStatus, Severity, Txg, scan,
};
use snowmelt_store::{
    Access, CreateOptions, FaultKind, FaultStore, Location, MemberState, MemoryStore, MirrorMember,
    MirrorStore, PoolLabel, SegmentId, SegmentInfo, Store, create_mirror, open,
};

/// No caches: every read comes from the store.
fn uncached() -> PoolOptions {
    PoolOptions { data_cache_bytes: 0, node_cache_bytes: 0, ..small() }
}

fn scrub(pool: &Pool) -> ScrubStatus {
    let options = ScrubOptions { rate: None, batch_bytes: 64 << 10, cancelled: &|| false, progress: &|_| {} };
    pool.scrub(&MiniRoots, &options, &mut |_| {}).unwrap()
}

/// The errors and warnings that `check` finds.
fn findings(pool: &Pool) -> Vec<(Severity, String)> {
    let mut found = Vec::new();
    pool.check(&MiniRoots, CheckOptions { data: true }, &mut |finding| {
        found.push((finding.severity, format!("{}: {}", finding.place, finding.what)));
    })
    .unwrap();
    found
}

fn mirror_of(stores: Vec<Box<dyn Store>>) -> Box<dyn Store> {
    let member = |(store, guid): (Box<dyn Store>, u64)| MirrorMember {
        guid,
        path: PathBuf::from(format!("/disk{guid}")),
        store: Ok(store),
    };
    let members = stores.into_iter().zip(1..).map(member).collect();
    Box::new(MirrorStore::assemble(members, Access::ReadWrite).unwrap())
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_add(1);
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u8
        })
        .collect()
}

fn filled(store: Box<dyn Store>, options: PoolOptions) -> Mini {
    let mut mini = Mini::create(store, options).unwrap();
    for round in 0..3 {
        for n in 0..40u16 {
            mini.put(&key(n), &noise(u64::from(n) + round * 100, 900 + usize::from(n) * 7)).unwrap();
        }
        mini.snapshot().unwrap();
    }
    mini.commit().unwrap();
    mini
}

fn errors(pool: &Pool) -> Vec<(u64, u64, u64)> {
    let members = pool.store().mirror().unwrap().members();
    members.iter().map(|m| (m.read_errors, m.write_errors, m.checksum_errors)).collect()
}

#[test]
fn wrong_bytes_are_read_from_the_other_copy_and_put_right() {
    let (a, b) = (MemoryStore::new(), MemoryStore::new());
    let mini = filled(mirror_of(vec![Box::new(a.clone()), Box::new(b.clone())]), uncached());
    assert!(findings(&mini.pool).is_empty());
    // Every frame of one member, header and payload.
    let mut frames = 0;
    for info in a.segments().unwrap() {
        let found: Vec<_> = scan(&a, info).map(Result::unwrap).collect();
        for frame in found {
            frames += 1;
            a.corrupt(frame.segment, u64::from(frame.offset) + 20, 0x10).unwrap();
            a.corrupt(frame.segment, u64::from(frame.offset) + FRAME_HEADER as u64, 0x01).unwrap();
        }
    }
    assert!(
        findings(&mini.pool)
            .iter()
            .any(|(severity, what)| { *severity == Severity::Error && what.contains("on /disk1") })
    );
    mini.verify().unwrap();
    let status = scrub(&mini.pool);
    assert_eq!((status.state, status.errors), (ScrubState::Finished, 0));
    assert!(status.repaired > 0);
    assert_eq!(findings(&mini.pool), []);
    let [(_, _, wrong), other] = errors(&mini.pool)[..] else { panic!("two members") };
    assert!(wrong > 0 && wrong <= frames + 10, "{wrong} of {frames}");
    assert_eq!(other, (0, 0, 0));
    assert_eq!(mini.pool.damage().unwrap(), []);
    // Bytes that are wrong in both members are damage, and are not overwritten.
    let frame = scan(&a, a.segments().unwrap()[0]).map(Result::unwrap).find(|f| f.payload.is_some()).unwrap();
    let at = u64::from(frame.offset) + FRAME_HEADER as u64;
    let mut before = [0];
    b.corrupt(frame.segment, at, 2).unwrap();
    a.corrupt(frame.segment, at, 4).unwrap();
    b.read(frame.segment, at, &mut before).unwrap();
    scrub(&mini.pool);
    let mut after = [0];
    b.read(frame.segment, at, &mut after).unwrap();
    assert_eq!(before, after);
}

#[test]
fn a_copy_that_cannot_be_read_is_read_elsewhere() {
    let (a, b) = (FaultStore::new(1), FaultStore::new(2));
    let mini = filled(mirror_of(vec![Box::new(a.clone()), Box::new(b.clone())]), uncached());
    for n in 0..20 {
        a.fail_after(n % 3, FaultKind::Read);
        b.fail_after(n * 50, FaultKind::Read);
        mini.verify().unwrap();
        a.clear_faults();
        b.clear_faults();
    }
    let found = errors(&mini.pool);
    assert!(found[0].0 >= 20, "{found:?}");
    assert_eq!(findings(&mini.pool), []);
    // The counters are published, and reset when they are cleared.
    mini.pool.commit().unwrap();
    let member = |guid: u64, store: &FaultStore| MirrorMember {
        guid,
        path: "/".into(),
        store: Ok(Box::new(store.snapshot())),
    };
    let again = MirrorStore::assemble(vec![member(1, &a), member(2, &b)], Access::ReadOnly).unwrap();
    assert_eq!(again.members()[0].read_errors, found[0].0);
}

#[test]
fn a_segment_that_one_member_has_lost_comes_back() {
    let (a, b) = (MemoryStore::new(), MemoryStore::new());
    let mini = filled(mirror_of(vec![Box::new(a.clone()), Box::new(b.clone())]), uncached());
    // If an open segment vanished, the member would fail, so only sealed ones are removed.
    let is_sealed = |info: &SegmentInfo| a.append(info.id, info.len, &[]).is_err();
    let sealed = a.segments().unwrap().into_iter().filter(is_sealed).map(|info| info.id);
    let lost: Vec<SegmentId> = sealed.step_by(2).collect();
    assert!(!lost.is_empty());
    lost.iter().for_each(|id| a.delete_segment(*id).unwrap());
    mini.verify().unwrap();
    let status = scrub(&mini.pool);
    assert_eq!(status.errors, 0);
    assert_eq!(findings(&mini.pool), []);
    assert!(lost.iter().all(|id| a.segments().unwrap().iter().any(|info| info.id == *id)));
}

/// The files of the two members of a pool.
struct Disks {
    directory: PathBuf,
    file: PathBuf,
}

impl Disks {
    fn locations(&self) -> [Location; 2] {
        [Location::Directory(self.directory.clone()), Location::File(self.file.clone())]
    }

    /// The places of the segments in the file, read from its label and slot table (docs/format/store.md).
    fn slots(&self) -> Vec<(SegmentId, u64, u64)> {
        let file = File::open(&self.file).unwrap();
        let number = |at: u64| {
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, at).unwrap();
            u64::from_le_bytes(bytes)
        };
        let (len, count, base) = (number(40), number(48), number(56));
        (0..count)
            .map(|slot| ((1 << 20) + slot * 8192, base + slot * len))
            .filter(|(header, _)| number(*header) == u64::from_le_bytes(*b"SNOWSLOT"))
            .map(|(header, data)| (SegmentId(number(header + 16)), header, data))
            .collect()
    }

    fn segment(&self, id: SegmentId) -> PathBuf {
        self.directory.join(format!("segments/{:02x}/{id}.seg", (id.0 >> 8) & 0xff))
    }
}

fn flip(path: &Path, offset: u64, bit: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ (1 << (bit % 8))], offset).unwrap();
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n.max(1)
    }
}

/// Closes the pool. The commit of the close changes no content.
fn close(mini: Mini) -> BTreeMap<Txg, Model> {
    let Mini { pool, model, mut committed, .. } = mini;
    let open = pool.open_txg();
    (open - 1..open + 16).for_each(|txg| drop(committed.insert(txg, model.clone())));
    pool.close().unwrap();
    committed
}

/// Bits flip in labels, rings, slot table and segments while the pool is read and written. Each flip hits only one
/// member. No wrong byte is ever returned, everything is repaired, and `check` finds nothing afterwards.
#[test]
fn a_thousand_flipped_bits_are_healed() {
    let dir = tempfile::tempdir().unwrap();
    let disks = Disks { directory: dir.path().join("a"), file: dir.path().join("b.img") };
    let label = PoolLabel { name: "tank".to_owned(), guid: 42 };
    let options = CreateOptions { label, size: Some(256 << 20), force: false };
    let store = create_mirror(&disks.locations(), &options).unwrap();
    let options = PoolOptions { segment_bytes: 1 << 20, ..uncached() };
    let mut mini = filled(store, options.clone());
    let mut rng = Rng(7);
    let (mut flips, mut repaired, mut in_segments) = (0, 0, 0);
    for round in 0..40u64 {
        let slots = disks.slots();
        for _ in 0..25 {
            flips += 1;
            let bit = rng.below(8);
            match (rng.below(10), round % 2) {
                // Labels: one of the two copies in a member.
                (0, 0) => flip(&disks.directory.join("label"), rng.below(4096), bit),
                (0, _) => flip(&disks.file, rng.below(4096), bit),
                // Rings: the content of any slot.
                (1, 0) => {
                    flip(&disks.directory.join("uberblocks"), rng.below(64) * 8192 + rng.below(600), bit)
                }
                (1, _) => flip(&disks.file, (64 << 10) + rng.below(64) * 8192 + rng.below(600), bit),
                (2, _) => {
                    let (_, header, _) = slots[rng.below(slots.len() as u64) as usize];
                    flip(&disks.file, header + rng.below(64), bit);
                }
                _ => {
                    let (id, _, data) = slots[rng.below(slots.len() as u64) as usize];
                    let len = std::fs::metadata(disks.segment(id)).unwrap().len();
                    if len == 0 {
                        continue;
                    }
                    in_segments += 1;
                    // A segment is hit in only one member until the next scrub.
                    match (id.0 + round) % 2 {
                        0 => flip(&disks.segment(id), rng.below(len), bit),
                        _ => flip(&disks.file, data + rng.below(len), bit),
                    }
                }
            }
        }
        // Everything is read, and some of it is written.
        for n in 0..6 {
            let at = rng.below(40) as u16;
            mini.put(&key(at), &noise(round * 1000 + n, 500 + rng.below(900) as usize)).unwrap();
        }
        mini.verify().unwrap();
        mini.commit().unwrap();
        let status = scrub(&mini.pool);
        assert_eq!((status.state, status.errors), (ScrubState::Finished, 0), "round {round}");
        repaired += status.repaired;
        assert_eq!(findings(&mini.pool), [], "round {round}");
        mini.verify().unwrap();
        if round % 8 == 7 {
            // Damage is also found at the next open.
            let committed = close(mini);
            if round % 16 == 7 {
                flip(&disks.file, 100, 1);
                flip(&disks.directory.join("uberblocks"), 8192 * 3 + 80, 1);
            }
            let store = open(&disks.locations()[(round / 8 % 2) as usize], Access::ReadWrite).unwrap();
            mini = Mini::open(store, options.clone(), &committed).unwrap().unwrap();
        }
    }
    assert_eq!(flips, 1000);
    assert!(in_segments > 500 && repaired > 0, "{in_segments} in segments, {repaired} bytes repaired");
    let members = mini.pool.store().mirror().unwrap().members();
    assert!(members.iter().all(|m| m.state == MemberState::Online && !m.is_stale && m.checksum_errors > 0));
    assert_eq!(mini.pool.damage().unwrap(), []);
    let committed = close(mini);
    // Each member alone is complete.
    for location in disks.locations() {
        let store = open(&location, Access::ReadOnly).unwrap();
        let options = PoolOptions { read_only: true, ..options.clone() };
        Mini::open(store, options, &committed).unwrap().unwrap().verify().unwrap();
    }
}
