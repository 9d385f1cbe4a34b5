//! Changes of a dataset while its next snapshot is received or staged.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::io::{Cursor, Read};
use std::time::{Duration, Instant};

use common::{check, corpus, name, new_pool, receive, receive_from};
use snowmelt_dataset::receive::ReceiveOptions;
use snowmelt_dataset::{
    CloneOptions, DatasetError, Datasets, DestroyPlan, Kind, ReceiveError, StageOptions, Staging,
    new_filesystem_objects,
};
use snowmelt_pool::Syncer;
use snowmelt_zpl::{DMU_OT_PLAIN_FILE_CONTENTS, NewObject, Objects, ObjectsMut, Room};

/// A stream that runs a function in its middle.
struct Meanwhile<'a, F: FnMut()> {
    first: Cursor<&'a [u8]>,
    then: Cursor<&'a [u8]>,
    event: Option<F>,
}

impl<'a, F: FnMut()> Meanwhile<'a, F> {
    fn new(stream: &'a [u8], event: F) -> Self {
        let (first, then) = stream.split_at(stream.len() / 2);
        Self { first: Cursor::new(first), then: Cursor::new(then), event: Some(event) }
    }
}

impl<F: FnMut()> Read for Meanwhile<'_, F> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let len = self.first.read(buf)?;
        if len > 0 {
            return Ok(len);
        }
        if let Some(mut event) = self.event.take() {
            event();
        }
        self.then.read(buf)
    }
}

fn snapshots(datasets: &Datasets, dataset: &str) -> Vec<String> {
    let catalog = datasets.catalog();
    let dataset = catalog.dataset(dataset).unwrap();
    catalog.snapshots(&dataset).map(|snapshot| snapshot.unwrap().full_name()).collect()
}

fn take(datasets: &Datasets, snapshot: &str) {
    datasets.snapshot(&[name(snapshot)], &[]).unwrap();
}

fn stage<'a>(datasets: &'a Datasets, dataset: &str, options: &StageOptions) -> Staging<'a> {
    datasets.stage(dataset, Kind::Filesystem, new_filesystem_objects, options).unwrap()
}

#[test]
fn a_snapshot_taken_during_a_receive_is_not_destroyed() {
    let case = corpus().join("01-basic");
    let datasets = new_pool();
    receive(&datasets, "tank/x", &case.join("full-0.zstream"), false).unwrap();
    let before = snapshots(&datasets, "tank/x");
    let stream = std::fs::read(case.join("inc-0-1.zstream")).unwrap();
    let input = Meanwhile::new(&stream, || take(&datasets, "tank/x@meanwhile"));
    let received = receive_from(&datasets, "tank/x", input, &ReceiveOptions::default());
    assert!(matches!(received, Err(ReceiveError::NotNewest { .. })), "{received:?}");
    let now = snapshots(&datasets, "tank/x");
    assert_eq!(now, [before, vec!["tank/x@meanwhile".to_owned()]].concat());
    check(&datasets, "a receive that was refused at its end");
    // With -F, newer snapshots may be destroyed.
    let force = ReceiveOptions { force: true, ..ReceiveOptions::default() };
    let input = Meanwhile::new(&stream, || take(&datasets, "tank/x@again"));
    receive_from(&datasets, "tank/x", input, &force).unwrap();
    assert_eq!(snapshots(&datasets, "tank/x").len(), 2);
    check(&datasets, "a forced receive");
}

#[test]
fn no_clone_takes_the_base_away_during_a_receive() {
    let case = corpus().join("01-basic");
    let datasets = new_pool();
    receive(&datasets, "tank/x", &case.join("full-0.zstream"), false).unwrap();
    let base = snapshots(&datasets, "tank/x").remove(0);
    datasets.clone_snapshot(&name(&base), "tank/clone", &CloneOptions::default()).unwrap();
    let stream = std::fs::read(case.join("inc-0-1.zstream")).unwrap();
    let promote = || assert!(matches!(datasets.promote("tank/clone"), Err(DatasetError::Busy { .. })));
    receive_from(&datasets, "tank/x", Meanwhile::new(&stream, promote), &ReceiveOptions::default()).unwrap();
    check(&datasets, "a promotion that was refused");
}

/// Staged content on a clone without snapshots shares blocks with the clone's origin. The place of that snapshot is
/// tracked, also after a crash.
#[test]
fn no_clone_takes_away_what_another_one_is_staged_on() {
    let datasets = new_pool();
    take(&datasets, "tank@base");
    for clone in ["tank/a", "tank/b"] {
        datasets.clone_snapshot(&name("tank@base"), clone, &CloneOptions::default()).unwrap();
    }
    let staging = stage(&datasets, "tank/a", &StageOptions::default());
    for clone in ["tank/a", "tank/b"] {
        let promoted = datasets.promote(clone);
        assert!(matches!(promoted, Err(DatasetError::Busy { .. })), "{promoted:?}");
    }
    staging.finish("staged", &[]).unwrap();
    check(&datasets, "promotions that were refused");
    datasets.promote("tank/b").unwrap();
    datasets.promote("tank/a").unwrap();
    check(&datasets, "promotions");
}

/// Receives half of an incremental stream and keeps it.
fn half_received(datasets: &Datasets) -> String {
    let case = corpus().join("01-basic");
    receive(datasets, "tank/x", &case.join("full-0.zstream"), false).unwrap();
    let stream = std::fs::read(case.join("inc-0-1.zstream")).unwrap();
    let how = ReceiveOptions { resumable: true, ..ReceiveOptions::default() };
    receive_from(datasets, "tank/x", &stream[..stream.len() / 2], &how).unwrap_err();
    snapshots(datasets, "tank/x").remove(0)
}

#[test]
fn the_base_of_what_is_half_received_stays() {
    let datasets = new_pool();
    let base = half_received(&datasets);
    let catalog = datasets.catalog();
    let plan =
        DestroyPlan::snapshots(&catalog, vec![catalog.snapshot(&name(&base)).unwrap()], false).unwrap();
    assert!(matches!(datasets.destroy(&plan), Err(DatasetError::Busy { .. })));
    datasets.clone_snapshot(&name(&base), "tank/clone", &CloneOptions::default()).unwrap();
    assert!(matches!(datasets.promote("tank/clone"), Err(DatasetError::Busy { .. })));
    check(&datasets, "a base that was kept");
    datasets.abort_receive("tank/x").unwrap();
    datasets.promote("tank/clone").unwrap();
    check(&datasets, "promoting when nothing is half received any more");
}

#[test]
fn a_deferred_destroy_waits_for_what_is_half_received() {
    let datasets = new_pool();
    let base = half_received(&datasets);
    datasets.destroy_deferred(&name(&base)).unwrap();
    assert_eq!(snapshots(&datasets, "tank/x"), [base]);
    check(&datasets, "a destroy that was deferred");
    datasets.abort_receive("tank/x").unwrap();
    assert_eq!(snapshots(&datasets, "tank/x"), [""; 0]);
    check(&datasets, "a deferred destroy");
}

#[test]
fn a_dataset_goes_with_what_is_half_received() {
    let datasets = new_pool();
    half_received(&datasets);
    let catalog = datasets.catalog();
    let plan = DestroyPlan::dataset(&catalog, &catalog.dataset("tank/x").unwrap(), true, false).unwrap();
    datasets.destroy(&plan).unwrap();
    check(&datasets, "destroying a dataset with a partial receive");
}

#[test]
fn a_snapshot_taken_while_another_is_staged_is_not_destroyed() {
    for force in [false, true] {
        let datasets = new_pool();
        take(&datasets, "tank@base");
        let options = StageOptions { force, ..StageOptions::default() };
        let staging = stage(&datasets, "tank", &options);
        take(&datasets, "tank@meanwhile");
        let staged = staging.finish("staged", &[]);
        assert!(matches!(staged, Err(ReceiveError::Modified { .. })), "{staged:?}");
        assert_eq!(snapshots(&datasets, "tank"), ["tank@base", "tank@meanwhile"]);
        check(&datasets, "a staging that came to nothing");
    }
}

#[test]
fn what_is_staged_on_a_clone_starts_from_its_origin() {
    let case = corpus().join("01-basic");
    let datasets = new_pool();
    receive(&datasets, "tank/x", &case.join("full-0.zstream"), false).unwrap();
    let base = snapshots(&datasets, "tank/x").remove(0);
    datasets.clone_snapshot(&name(&base), "tank/clone", &CloneOptions::default()).unwrap();
    let staging = stage(&datasets, "tank/clone", &StageOptions::default());
    assert_eq!(staging.base().map(|base| base.full_name()), Some(base.clone()));
    staging.finish("staged", &[]).unwrap();
    let catalog = datasets.catalog();
    let clone = catalog.dataset("tank/clone").unwrap();
    let origin = catalog.snapshot(&name(&base)).unwrap();
    assert_eq!(clone.record.origin, Some(origin.id));
    assert_eq!(
        catalog.snapshot_space(&catalog.snapshot(&name("tank/clone@staged")).unwrap()).unwrap().written,
        0
    );
    check(&datasets, "staging on a clone");
}

/// Large files use little memory, far less than the limit. The staged content is what is read, in whole blocks without
/// the cache.
#[test]
fn large_blocks_are_written_out_while_more_is_staged() {
    const BLOCK: usize = 128 << 10;
    let datasets = new_pool();
    let pool = datasets.pool();
    let _syncer = Syncer::start(pool.clone(), |error| panic!("{error}")).unwrap();
    let staging = stage(&datasets, "tank/x", &StageOptions::default());
    let mut state = 1_u64;
    let mut noise = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    let data: Vec<u8> = (0..64 * BLOCK).map(|_| noise()).collect();
    let before = pool.counters().bytes_written;
    let tx = staging.head().begin(Room::Write(2 * data.len() as u64)).unwrap();
    let new = NewObject {
        object_type: DMU_OT_PLAIN_FILE_CONTENTS,
        bonus_type: 0,
        block_size: BLOCK as u32,
        slots: 1,
        bonus: Vec::new(),
    };
    let object = staging.head().create(&tx, new).unwrap();
    staging.head().write(&tx, object, 0, &data).unwrap();
    drop(tx);
    let begun = Instant::now();
    while pool.counters().bytes_written - before < data.len() as u64 {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing is written out");
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut read = vec![0; data.len()];
    Objects::read(&**staging.head(), object, 0, &mut read).unwrap();
    assert!(read == data);
    let snapshot = staging.finish("staged", &[]).unwrap();
    let objset = datasets.catalog().objset(&snapshot);
    let cached = pool.cached_bytes().0;
    read.fill(0);
    objset.read(object, 0, &mut read).unwrap();
    assert!(read == data);
    assert_eq!(pool.cached_bytes().0, cached);
    let mut part = vec![0; 2 * BLOCK];
    objset.read(object, 100, &mut part).unwrap();
    assert!(part == data[100..][..2 * BLOCK], "parts of blocks at both ends");
    check(&datasets, "large blocks");
}
