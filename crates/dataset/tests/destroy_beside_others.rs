//! `destroy` while other threads read the pool, commit, or have datasets open.
#![allow(clippy::unwrap_used)]

mod common;

use std::cell::Cell;

use common::{check, files, name, new_pool};
use snowmelt_dataset::{Catalog, CreateOptions, DatasetError, Datasets, DestroyPlan};
use snowmelt_pool::PoolError;

/// A filesystem with snapshots `s0` to `s3`. Each has blocks of its own, so they have deadlists.
fn chain() -> std::sync::Arc<Datasets> {
    let datasets = new_pool();
    datasets.create_filesystem("tank/x", &CreateOptions::default()).unwrap();
    let head = files::open(&datasets, "tank/x");
    for number in 0..4 {
        files::write_file(&head, &format!("file{number}"), 300_000);
        datasets.snapshot(&[name(&format!("tank/x@s{number}"))], &[]).unwrap();
    }
    datasets
}

fn plan(catalog: &Catalog, snapshot: &str) -> Result<DestroyPlan, DatasetError> {
    DestroyPlan::snapshots(catalog, vec![catalog.snapshot(&name(snapshot))?], false)
}

fn destroy(datasets: &Datasets, snapshot: &str) {
    datasets.destroy(&plan(&datasets.catalog(), snapshot).unwrap()).unwrap();
}

#[test]
fn a_plan_is_made_again_when_another_destroy_was_quicker() {
    let datasets = chain();
    let old = datasets.catalog();
    destroy(&datasets, "tank/x@s1");
    destroy(&datasets, "tank/x@s3");
    let error = plan(&old, "tank/x@s2").unwrap_err();
    assert!(matches!(error, DatasetError::Pool(PoolError::NoTree(_))), "{error}");
    drop(old);
    // The same within one call: a dataset is destroyed after the call took its view.
    let datasets = chain();
    let turns = Cell::new(0);
    let made = datasets.read(|catalog| {
        if turns.replace(turns.get() + 1) == 0 {
            destroy(&datasets, "tank/x@s1");
            destroy(&datasets, "tank/x@s3");
        }
        plan(catalog, "tank/x@s2")
    });
    datasets.destroy(&made.unwrap()).unwrap();
    assert_eq!(turns.get(), 2);
    check(&datasets, "three destroys");
}

#[test]
fn an_error_that_stays_is_returned() {
    let datasets = chain();
    let turns = Cell::new(0_u32);
    let read = datasets.read(|catalog| {
        turns.set(turns.get() + 1);
        plan(catalog, "tank/x@none")
    });
    assert!(matches!(read, Err(DatasetError::NotFound { .. })), "{read:?}");
    assert_eq!(turns.get(), 1);
}

#[test]
fn only_openers_keep_a_dataset_from_being_destroyed() {
    let datasets = chain();
    let dataset = datasets.catalog().dataset("tank/x").unwrap();
    let all = DestroyPlan::dataset(&datasets.catalog(), &dataset, true, false).unwrap();
    let opened = datasets.open_head(&dataset).unwrap();
    assert!(datasets.is_open(dataset.id));
    assert!(matches!(datasets.destroy(&all), Err(DatasetError::Busy { .. })));
    // A commit in another thread has such a reference for a moment, and so does a mount that has just ended.
    let reference = opened.head().clone();
    files::write_file(&opened, "last", 300_000);
    drop(opened);
    assert!(!datasets.is_open(dataset.id));
    datasets.destroy(&all).unwrap();
    drop(reference);
    datasets.pool().commit().unwrap();
    check(&datasets, "a destroy of a dataset with changes in memory");
}
