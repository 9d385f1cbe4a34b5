//! Images are imported in full or not at all, and only changed blocks are written.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use snowmelt_dataset::{
    CheckOptions, DatasetError, Datasets, Kind, Name, NewVolume, ReceiveError, RollbackOptions, StageOptions,
    Staging, new_volume_objects,
};
use snowmelt_pool::{NewPool, Pool, PoolOptions};
use snowmelt_store::MemoryStore;
use snowmelt_volume::{ImportError, Imported, Volume, image_size, import_image};

const BLOCK: u32 = 16 << 10;

fn pool(store: &MemoryStore) -> Arc<Datasets> {
    let new = NewPool { name: "tank", guid: 1 };
    Datasets::create(Pool::create(Box::new(store.clone()), &new, PoolOptions::default()).unwrap()).unwrap()
}

fn stage<'d>(datasets: &'d Datasets, size: u64) -> Result<Staging<'d>, ReceiveError> {
    let first = |_: &[_]| Ok(new_volume_objects(&NewVolume { size, block_size: BLOCK }));
    datasets.stage("tank/v", Kind::Volume, first, &StageOptions::default())
}

fn import(datasets: &Datasets, image: &File, snapshot: &str) -> Imported {
    let staging = stage(datasets, u64::from(BLOCK)).unwrap();
    let imported = import_image(image, &staging, &mut |_| {}, &AtomicBool::new(false)).unwrap();
    staging.finish(snapshot, &[]).unwrap();
    check(datasets);
    imported
}

fn check(datasets: &Datasets) {
    let mut faults = Vec::new();
    datasets.check(CheckOptions { data: true }, &mut |finding| faults.push(format!("{finding:?}"))).unwrap();
    assert!(faults.is_empty(), "{faults:#?}");
}

fn content(datasets: &Datasets, name: &str) -> Vec<u8> {
    let volume = Volume::open(datasets, name).unwrap();
    let mut data = vec![0; volume.size().unwrap() as usize];
    volume.read(0, &mut data).unwrap();
    data
}

fn written(datasets: &Datasets, name: &str) -> u64 {
    let catalog = datasets.catalog();
    catalog.snapshot_space(&catalog.snapshot(&Name::parse(name).unwrap()).unwrap()).unwrap().written
}

/// Bytes that do not compress.
fn noise(len: usize, mut seed: u64) -> Vec<u8> {
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as u8
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn only_what_changed_is_written() {
    let datasets = pool(&MemoryStore::new());
    let image = tempfile::tempfile().unwrap();
    let size = (8 << 20) + 100;
    image.set_len(size).unwrap();
    image.write_all_at(&noise(3 << 20, 1), 1 << 20).unwrap();
    let first = import(&datasets, &image, "a");
    assert_eq!(first.size, size);
    assert!(first.read < 4 << 20, "{} bytes read of 3 MiB of data", first.read);
    let expected = |image: &File| {
        let mut data = vec![0; (size as usize).next_multiple_of(BLOCK as usize)];
        image.read_exact_at(&mut data[..size as usize], 0).unwrap();
        data
    };
    assert!(content(&datasets, "tank/v@a") == expected(&image));
    assert!(written(&datasets, "tank/v@a") > 3 << 20);

    import(&datasets, &image, "b");
    assert_eq!(written(&datasets, "tank/v@b"), 0, "nothing changed");

    image.write_all_at(b"x", 2 << 20).unwrap();
    import(&datasets, &image, "c");
    assert!(content(&datasets, "tank/v@c") == expected(&image));
    assert!(written(&datasets, "tank/v@c") < 64 << 10, "one block changed");

    image.set_len(2 << 20).unwrap();
    import(&datasets, &image, "d");
    assert_eq!(content(&datasets, "tank/v@d").len(), 2 << 20);
    assert!(content(&datasets, "tank/v@a") != content(&datasets, "tank/v@c"));
}

#[test]
fn what_is_not_finished_never_was() {
    let store = MemoryStore::new();
    let datasets = pool(&store);
    let image = tempfile::tempfile().unwrap();
    image.write_all_at(&noise(1 << 20, 2), 0).unwrap();
    // A staging that is dropped leaves nothing.
    let staging = stage(&datasets, 1 << 20).unwrap();
    import_image(&image, &staging, &mut |_| {}, &AtomicBool::new(false)).unwrap();
    assert!(matches!(stage(&datasets, 1 << 20), Err(ReceiveError::Busy { .. })));
    drop(staging);
    assert!(matches!(datasets.catalog().dataset("tank/v"), Err(DatasetError::NotFound { .. })));
    check(&datasets);
    // A dropped import into an existing volume leaves it unchanged.
    import(&datasets, &image, "a");
    let before = content(&datasets, "tank/v@a");
    image.write_all_at(&noise(1 << 20, 3), 0).unwrap();
    let staging = stage(&datasets, 1 << 20).unwrap();
    import_image(&image, &staging, &mut |_| {}, &AtomicBool::new(false)).unwrap();
    drop(staging);
    assert!(content(&datasets, "tank/v") == before);
    check(&datasets);
    // A crash loses an import, although half of it was committed.
    let staging = stage(&datasets, 1 << 20).unwrap();
    import_image(&image, &staging, &mut |_| {}, &AtomicBool::new(false)).unwrap();
    datasets.pool().commit().unwrap();
    let crashed = Pool::open(Box::new(store.snapshot()), PoolOptions::default()).unwrap();
    let crashed = Datasets::open(crashed).unwrap();
    assert!(content(&crashed, "tank/v") == before);
    check(&crashed);
}

#[test]
fn what_was_written_meanwhile_is_not_lost() {
    let datasets = pool(&MemoryStore::new());
    let image = tempfile::tempfile().unwrap();
    image.write_all_at(&noise(1 << 20, 2), 0).unwrap();
    import(&datasets, &image, "a");
    let volume = Volume::open(&datasets, "tank/v").unwrap();
    volume.write(5, b"mine").unwrap();
    assert!(matches!(stage(&datasets, 1 << 20), Err(ReceiveError::Modified { .. })));
    datasets.rollback(&Name::parse("tank/v@a").unwrap(), RollbackOptions::default()).unwrap();
    let staging = stage(&datasets, 1 << 20).unwrap();
    volume.write(9, b"mine").unwrap();
    assert!(matches!(staging.finish("b", &[]), Err(ReceiveError::Modified { .. })));
    let mut data = [0; 4];
    volume.read(9, &mut data).unwrap();
    assert_eq!(&data, b"mine");
    check(&datasets);
}

#[test]
fn images_in_a_format_of_their_own_are_refused_by_its_name() {
    let vdi =
        [&b"<<< Oracle VM VirtualBox Disk Image >>>\n"[..], &[0; 24], &[0x7f, 0x10, 0xda, 0xbe]].concat();
    let heads: [(&str, &[u8]); 5] = [
        ("qcow2", b"QFI\xfb\0\0\0\x03"),
        ("vmdk", b"KDMV\x01\0\0\0"),
        ("vhdx", b"vhdxfile"),
        ("vpc", b"conectix"),
        ("vdi", &vdi),
    ];
    for (format, head) in heads {
        let image = tempfile::tempfile().unwrap();
        image.write_all_at(head, 0).unwrap();
        image.set_len(1 << 20).unwrap();
        match image_size(&image, BLOCK) {
            Err(ImportError::Container { format: found }) => assert_eq!(found, format),
            other => panic!("{format}: {other:?}"),
        }
    }
}

#[test]
fn raw_images_are_images_however_short() {
    for bytes in [&b"Q"[..], b"QFI", &[0; 300]] {
        let image = tempfile::tempfile().unwrap();
        image.write_all_at(bytes, 0).unwrap();
        assert_eq!(image_size(&image, BLOCK).unwrap(), (bytes.len() as u64, u64::from(BLOCK)));
    }
}
