//! Destroy, clone, promote, rollback, hold, rename: after any operation the rest reads as before, and all blocks are
//! accounted for.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;

use common::{check, corpus, digest, listing, name, new_pool, new_pool_on, receive};
use snowmelt_dataset::{
    CloneOptions, CreateOptions, DatasetError, Datasets, DestroyPlan, RenameOptions, RollbackOptions,
};
use snowmelt_pool::Pool;
use snowmelt_store::MemoryStore;

/// A filesystem `tank/x` with the snapshots of a real chain.
fn chain(datasets: &Datasets) -> Vec<String> {
    let case = corpus().join("01-basic");
    for stream in ["full-0", "inc-0-1", "inc-1-2", "inc-2-3", "inc-3-4-empty"] {
        receive(datasets, "tank/x", &case.join(format!("{stream}.zstream")), false).unwrap();
    }
    snapshots(datasets, "tank/x")
}

fn snapshots(datasets: &Datasets, dataset: &str) -> Vec<String> {
    let catalog = datasets.catalog();
    let dataset = catalog.dataset(dataset).unwrap();
    catalog.snapshots(&dataset).map(|snapshot| snapshot.unwrap().full_name()).collect()
}

fn destroy_snapshots(datasets: &Datasets, names: &[&str]) -> Result<u64, DatasetError> {
    let catalog = datasets.catalog();
    let all = names.iter().map(|full| catalog.snapshot(&name(full))).collect::<Result<Vec<_>, _>>()?;
    let plan = DestroyPlan::snapshots(&catalog, all, false)?;
    datasets.destroy(&plan)?;
    Ok(plan.reclaim)
}

#[test]
fn any_snapshot_can_go() {
    let digests: BTreeMap<String, String> = {
        let datasets = new_pool();
        chain(&datasets)
            .into_iter()
            .map(|snapshot| (snapshot.clone(), digest(&datasets, &snapshot)))
            .collect()
    };
    for order in [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 1, 3, 0, 4], [1, 3, 0, 4, 2]] {
        let datasets = new_pool();
        let mut left = chain(&datasets);
        let names = left.clone();
        for index in order {
            destroy_snapshots(&datasets, &[&names[index]]).unwrap();
            left.retain(|snapshot| *snapshot != names[index]);
            check(&datasets, &format!("destroying {} of {order:?}", names[index]));
            for snapshot in &left {
                assert_eq!(digest(&datasets, snapshot), digests[snapshot], "{snapshot} in {order:?}");
            }
        }
        let plan = {
            let catalog = datasets.catalog();
            DestroyPlan::dataset(&catalog, &catalog.dataset("tank/x").unwrap(), false, false).unwrap()
        };
        datasets.destroy(&plan).unwrap();
        check(&datasets, "destroying everything");
        assert_eq!(listing(&datasets).len(), 1);
    }
}

#[test]
fn what_is_promised_is_freed() {
    let datasets = new_pool();
    let names = chain(&datasets);
    let used = |datasets: &Datasets| {
        let catalog = datasets.catalog();
        let space = catalog.dataset_space(&catalog.dataset("tank/x").unwrap()).unwrap();
        space.used_by_dataset + space.used_by_snapshots
    };
    let before = used(&datasets);
    let promised = destroy_snapshots(&datasets, &[&names[1], &names[2]]).unwrap();
    assert!(promised > 0);
    assert_eq!(before - used(&datasets), promised);
    check(&datasets, "destroying two at once");
}

#[test]
fn clones_and_promotion() {
    let store = MemoryStore::new();
    let datasets = new_pool_on(&store);
    let names = chain(&datasets);
    let digests: Vec<String> = names.iter().map(|snapshot| digest(&datasets, snapshot)).collect();
    datasets.clone_snapshot(&name(&names[2]), "tank/c", &CloneOptions::default()).unwrap();
    datasets.snapshot(&[name("tank/c@own")], &[]).unwrap();
    assert_eq!(digest(&datasets, "tank/c@own"), digests[2]);
    let catalog = datasets.catalog();
    let of_clone = catalog.dataset_space(&catalog.dataset("tank/c").unwrap()).unwrap();
    assert_eq!(of_clone.used_by_dataset, 0, "a clone costs nothing");
    assert!(of_clone.referenced.physical > 0);
    assert!(matches!(destroy_snapshots(&datasets, &[&names[2]]), Err(DatasetError::HasClones { .. })));
    check(&datasets, "cloning");

    datasets.promote("tank/c").unwrap();
    check(&datasets, "promoting");
    assert_eq!(snapshots(&datasets, "tank/c").len(), 4);
    assert_eq!(snapshots(&datasets, "tank/x").len(), 2);
    for (index, short) in ["s0", "s1", "s2"].iter().enumerate() {
        let moved = names[index].replace("tank/x", "tank/c");
        assert_eq!(digest(&datasets, &moved), digests[index], "{short}");
    }
    assert_eq!(digest(&datasets, &names[4]), digests[4]);
    assert!(matches!(datasets.promote("tank/c"), Err(DatasetError::NotAClone { .. })));
    datasets.promote("tank/x").unwrap();
    check(&datasets, "promoting back");
    assert_eq!(snapshots(&datasets, "tank/x"), names);

    // Everything again from the disk, then the clone is destroyed.
    drop(datasets);
    let pool = Pool::open(Box::new(store.snapshot()), common::options()).unwrap();
    let datasets = Datasets::open(pool).unwrap();
    let catalog = datasets.catalog();
    let plan = DestroyPlan::dataset(&catalog, &catalog.dataset("tank/c").unwrap(), true, false).unwrap();
    datasets.destroy(&plan).unwrap();
    check(&datasets, "destroying the clone");
    assert_eq!(snapshots(&datasets, "tank/x"), names);
    destroy_snapshots(&datasets, &[&names[2]]).unwrap();
    check(&datasets, "destroying the origin");
}

#[test]
fn rollback_needs_to_be_meant() {
    let datasets = new_pool();
    let names = chain(&datasets);
    datasets.bookmark(&name(&names[3]), &name("tank/x#mark")).unwrap();
    assert!(matches!(
        datasets.rollback(&name(&names[1]), RollbackOptions::default()),
        Err(DatasetError::NotNewest { newer, .. }) if newer.len() == 4
    ));
    let options = RollbackOptions { newer: true, clones: false };
    datasets.rollback(&name(&names[1]), options).unwrap();
    assert_eq!(snapshots(&datasets, "tank/x"), names[..2]);
    assert!(datasets.catalog().bookmark(&name("tank/x#mark")).is_err());
    check(&datasets, "rolling back");
    // The chain continues from there.
    let case = corpus().join("01-basic");
    receive(&datasets, "tank/x", &case.join("inc-1-2.zstream"), false).unwrap();
    check(&datasets, "receiving after a rollback");
}

#[test]
fn receiving_with_force_rolls_back() {
    let datasets = new_pool();
    let names = chain(&datasets);
    let digests: Vec<String> = names.iter().map(|snapshot| digest(&datasets, snapshot)).collect();
    destroy_snapshots(&datasets, &[&names[4]]).unwrap();
    let case = corpus().join("01-basic");
    // s0 to s3, while s1 to s3 exist.
    destroy_snapshots(&datasets, &[&names[3]]).unwrap();
    let stream = case.join("inc-0-3.zstream");
    assert!(receive(&datasets, "tank/x", &stream, false).is_err());
    assert_eq!(snapshots(&datasets, "tank/x"), names[..3]);
    datasets.hold("keep", &[name(&names[1])]).unwrap();
    assert!(receive(&datasets, "tank/x", &stream, true).is_err());
    datasets.release("keep", &[name(&names[1])]).unwrap();
    receive(&datasets, "tank/x", &stream, true).unwrap();
    assert_eq!(snapshots(&datasets, "tank/x"), [names[0].clone(), names[3].clone()]);
    assert_eq!(digest(&datasets, &names[3]), digests[3]);
    check(&datasets, "a forced receive");
}

#[test]
fn holds_keep_snapshots() {
    let datasets = new_pool();
    let names = chain(&datasets);
    let held = [name(&names[1]), name(&names[2])];
    datasets.hold("a", &held).unwrap();
    assert!(matches!(datasets.hold("a", &held), Err(DatasetError::TagExists { .. })));
    assert!(matches!(destroy_snapshots(&datasets, &[&names[1]]), Err(DatasetError::Held { .. })));
    datasets.destroy_deferred(&held[0]).unwrap();
    assert_eq!(snapshots(&datasets, "tank/x").len(), 5);
    assert!(matches!(datasets.release("b", &held), Err(DatasetError::NoTag { .. })));
    datasets.release("a", &held).unwrap();
    assert_eq!(snapshots(&datasets, "tank/x").len(), 4, "the deferred one goes with its last hold");
    check(&datasets, "holds");
}

#[test]
fn renames_keep_everything() {
    let datasets = new_pool();
    let names = chain(&datasets);
    let digest_before = digest(&datasets, &names[3]);
    datasets.create_filesystem("tank/a/b", &CreateOptions { parents: true, ..Default::default() }).unwrap();
    datasets.rename(&name("tank/x"), &name("tank/a/b/y"), RenameOptions::default()).unwrap();
    let moved = names[3].replace("tank/x", "tank/a/b/y");
    assert_eq!(digest(&datasets, &moved), digest_before);
    let other = name("tank/a/b/y@other");
    datasets.rename(&name(&moved), &other, RenameOptions::default()).unwrap();
    assert_eq!(digest(&datasets, "tank/a/b/y@other"), digest_before);
    let below = datasets.rename(&name("tank/a"), &name("tank/a/b/c"), RenameOptions::default());
    assert!(below.is_err(), "a dataset cannot move below itself");
    check(&datasets, "renames");
}

#[test]
fn a_recursive_rename_of_snapshots_is_all_or_nothing() {
    let datasets = new_pool();
    for dataset in ["tank/a", "tank/a/b", "tank/a/c"] {
        datasets.create_filesystem(dataset, &CreateOptions::default()).unwrap();
    }
    datasets.snapshot(&[name("tank/a@old"), name("tank/a/b@old"), name("tank/a/c@old")], &[]).unwrap();
    datasets.snapshot(&[name("tank/a/c@new")], &[]).unwrap();
    let before = listing(&datasets);
    let options = RenameOptions { recursive: true, ..RenameOptions::default() };
    let refused = datasets.rename(&name("tank/a@old"), &name("tank/a@new"), options).unwrap_err();
    assert!(matches!(&refused, DatasetError::Exists { name } if name == "tank/a/c@new"), "{refused:?}");
    assert_eq!(listing(&datasets), before);
    // A name that becomes too long in a descendant.
    let long = format!("tank/a@{}", "n".repeat(247));
    assert!(datasets.rename(&name("tank/a@old"), &name(&long), options).is_err());
    assert_eq!(listing(&datasets), before);
}

#[test]
fn a_rename_keeps_everything_within_the_levels_that_names_may_have() {
    let datasets = new_pool();
    let deep = |top: &str, levels: usize| format!("{top}{}", "/d".repeat(levels));
    let all = CreateOptions { parents: true, ..CreateOptions::default() };
    datasets.create_filesystem(&deep("tank/x", 20), &all).unwrap();
    datasets.create_filesystem(&deep("tank/y", 28), &all).unwrap();
    let move_below = |parent: &str| {
        datasets.rename(&name("tank/x"), &name(&format!("{parent}/x")), RenameOptions::default())
    };
    // 30 levels, and 21 more.
    let refused = move_below(&deep("tank/y", 28));
    assert!(matches!(refused, Err(DatasetError::Name(_))), "{refused:?}");
    assert!(datasets.catalog().dataset("tank/x").is_ok());
    move_below(&deep("tank/y", 27)).unwrap();
    let longest = format!("{}/x{}", deep("tank/y", 27), "/d".repeat(20));
    assert!(datasets.catalog().dataset(&longest).is_ok());
}

#[test]
fn one_snapshot_of_a_dataset_at_a_time() {
    let datasets = new_pool();
    let names = chain(&datasets);
    let both = [name("tank/x@one"), name("tank/x@two")];
    assert!(matches!(datasets.snapshot(&both, &[]), Err(DatasetError::Refused { .. })));
    assert_eq!(snapshots(&datasets, "tank/x"), names);
    check(&datasets, "a refused snapshot");
}

#[test]
fn everything_in_a_pool_can_go_but_its_root() {
    let datasets = new_pool();
    let names = chain(&datasets);
    datasets.clone_snapshot(&name(&names[1]), "tank/clone", &CloneOptions::default()).unwrap();
    datasets.snapshot(&[name("tank@own")], &[]).unwrap();
    datasets.clone_snapshot(&name("tank@own"), "tank/clone/of-root", &CloneOptions::default()).unwrap();
    let plan = |recursive| {
        let catalog = datasets.catalog();
        DestroyPlan::dataset(&catalog, &catalog.root().unwrap(), recursive, false)
    };
    let refused = plan(false).unwrap_err().to_string();
    assert!(refused.contains("operation does not apply to pools"), "{refused}");
    datasets.hold("keep", &[name("tank@own")]).unwrap();
    assert!(matches!(plan(true), Err(DatasetError::Held { .. })));
    datasets.release("keep", &[name("tank@own")]).unwrap();
    let all = plan(true).unwrap();
    assert_eq!((all.datasets.len(), all.snapshots.len()), (3, names.len() + 1));
    datasets.destroy(&all).unwrap();
    assert_eq!(listing(&datasets).len(), 1, "only the root is left");
    check(&datasets, "destroying everything");
}

#[test]
fn snapshots_are_named_by_lists_and_ranges() {
    let datasets = new_pool();
    let names = chain(&datasets);
    let short: Vec<&str> = names.iter().map(|name| name.split_once('@').unwrap().1).collect();
    let named = |spec: &str| {
        let (found, missing) =
            snowmelt_dataset::snapshots_named(&datasets.catalog(), "tank/x", spec, false).unwrap();
        (found.iter().map(|found| found.full_name()).collect::<Vec<_>>(), missing)
    };
    // By age, whatever the order of the names, and each once.
    let spec = format!("{},{}%{},{},nosuch", short[4], short[0], short[2], short[1]);
    let (found, missing) = named(&spec);
    assert_eq!(found, [0, 1, 2, 4].map(|at| names[at].clone()));
    assert_eq!(missing, ["tank/x@nosuch"]);
    assert_eq!(named(&format!("%{}", short[1])).0, names[..2]);
    assert_eq!(named(&format!("{}%", short[3])).0, names[3..]);
}
