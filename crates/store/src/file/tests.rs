use std::os::unix::fs::{FileExt, MetadataExt};

use tempfile::TempDir;

use super::*;
use crate::Location;
use crate::conformance::{self, Harness};

const MIB: u64 = 1 << 20;

fn options(size: impl Into<Option<u64>>) -> CreateOptions {
    CreateOptions {
        label: PoolLabel { name: "tank".to_owned(), guid: 0xbeef },
        size: size.into(),
        force: false,
    }
}

fn forced(size: impl Into<Option<u64>>) -> CreateOptions {
    CreateOptions { force: true, ..options(size) }
}

/// Makes a pool of 64 MiB in a temporary file.
fn pool() -> (TempDir, PathBuf, FileStore) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("pool.img");
    let store = FileStore::create(&path, &options(64 * MIB)).unwrap();
    (dir, path, store)
}

fn poke(path: &Path, offset: u64, bytes: &[u8]) {
    File::options().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

struct Files(TempDir);

impl Harness for Files {
    fn fresh(&self) -> Box<dyn Store> {
        let path = tempfile::NamedTempFile::new_in(self.0.path()).unwrap().into_temp_path().keep().unwrap();
        Box::new(FileStore::create(&path, &options(64 * MIB)).unwrap())
    }
    fn reopen(&self, store: Box<dyn Store>) -> Option<Result<Box<dyn Store>>> {
        let path = store.describe();
        drop(store);
        Some(crate::open(&Location::File(path.into()), Access::ReadWrite))
    }
}

#[test]
fn conforms() {
    conformance::run(&Files(TempDir::new().unwrap()));
}

#[test]
fn new_files_are_sparse_and_private() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("big.img");
    let store = FileStore::create(&path, &options(1 << 40)).unwrap();
    let metadata = std::fs::metadata(&path).unwrap();
    assert_eq!((metadata.size(), metadata.mode() & 0o777), (1 << 40, 0o600));
    assert!(metadata.blocks() * 512 < 2 * MIB, "{} blocks", metadata.blocks());
    assert_eq!(store.segment_capacity(), 32 * MIB);
    // A pool of a terabyte opens quickly: holes in the table are skipped.
    store.create_segment(SegmentId(1)).unwrap();
    drop(store);
    let start = std::time::Instant::now();
    let store = FileStore::open(&path, Access::ReadWrite).unwrap();
    assert!(start.elapsed() < std::time::Duration::from_secs(1));
    assert_eq!(store.segments().unwrap().len(), 1);
}

#[test]
fn sizes_are_checked() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("pool.img");
    for size in [None, Some(0), Some(64 * MIB - 1)] {
        let error = FileStore::create(&path, &options(size)).unwrap_err();
        assert!(matches!(error, StoreError::Invalid { .. }), "{size:?}: {error:?}");
        assert!(!path.exists(), "a failed creation leaves no file");
    }
    File::create(&path).unwrap().set_len(100 * MIB).unwrap();
    let store = FileStore::create(&path, &options(None)).unwrap();
    assert_eq!(store.capacity().unwrap().total, Some(24 * 4 * MIB));
}

#[test]
fn only_one_owns_it() {
    let (_dir, path, store) = pool();
    let error = FileStore::open(&path, Access::ReadWrite).unwrap_err();
    assert!(matches!(error, StoreError::Locked { .. }), "{error:?}");
    let error = FileStore::create(&path, &forced(None)).unwrap_err();
    assert!(matches!(error, StoreError::Locked { .. }), "{error:?}");
    let reader = FileStore::open(&path, Access::ReadOnly).unwrap();
    assert!(matches!(reader.create_segment(SegmentId(1)), Err(StoreError::ReadOnly { .. })));
    drop(store);
    FileStore::open(&path, Access::ReadWrite).unwrap();
}

#[test]
fn a_pool_is_replaced_only_by_force() {
    let (_dir, path, store) = pool();
    store.create_segment(SegmentId(1)).unwrap();
    store.sync().unwrap();
    store.publish(1, b"old").unwrap();
    drop(store);
    let error = FileStore::create(&path, &options(None)).unwrap_err();
    assert!(error.to_string().contains("the pool 'tank'"), "{error}");
    let store = FileStore::create(&path, &forced(None)).unwrap();
    assert_eq!((store.segments().unwrap().len(), store.uberblocks().unwrap().len()), (0, 0));
}

#[test]
fn either_label_will_do() {
    let (_dir, path, store) = pool();
    store.set_label(&PoolLabel { name: "dozer".to_owned(), guid: 0xbeef }).unwrap();
    drop(store);
    let image = std::fs::read(&path).unwrap();
    for lost in [geometry::LABEL_A, geometry::LABEL_B] {
        std::fs::write(&path, &image).unwrap();
        poke(&path, lost, &[0xff; 4096]);
        assert_eq!(FileStore::label(&path).unwrap().name, "dozer");
        FileStore::open(&path, Access::ReadWrite).unwrap();
    }
    poke(&path, geometry::LABEL_A, &[0xff; 4096]);
    assert!(matches!(FileStore::label(&path), Err(StoreError::NotAPool { .. })));
}

#[test]
fn the_newer_label_counts() {
    let (_dir, path, store) = pool();
    let mut old = vec![0; 4096];
    store.file.read_exact_at(&mut old, geometry::LABEL_B).unwrap();
    store.set_label(&PoolLabel { name: "dozer".to_owned(), guid: 0xbeef }).unwrap();
    drop(store);
    // The state after a crash between the writes of the two copies.
    poke(&path, geometry::LABEL_B, &old);
    assert_eq!(FileStore::label(&path).unwrap().name, "dozer");
}

#[test]
fn a_file_cut_short_is_refused() {
    let (_dir, path, store) = pool();
    drop(store);
    File::options().write(true).open(&path).unwrap().set_len(40 * MIB).unwrap();
    let error = FileStore::open(&path, Access::ReadWrite).unwrap_err();
    assert!(matches!(&error, StoreError::NotAPool { why, .. } if why.contains("cut short")), "{error}");
    File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
    assert!(matches!(FileStore::open(&path, Access::ReadWrite), Err(StoreError::NotAPool { .. })));
}

#[test]
fn deleted_segments_leave_holes() {
    let (_dir, path, store) = pool();
    let blocks = || std::fs::metadata(&path).unwrap().blocks();
    store.create_segment(SegmentId(1)).unwrap();
    store.append(SegmentId(1), 0, &vec![7; 3 << 20]).unwrap();
    store.sync().unwrap();
    let full = blocks();
    store.delete_segment(SegmentId(1)).unwrap();
    store.sync().unwrap();
    assert!(blocks() + (2 << 20) / 512 < full, "{} of {full} blocks are still taken", blocks());
}

#[test]
fn holes_wait_for_a_trim_where_they_are_told_to() {
    let (_dir, path, store) = pool();
    let blocks = || std::fs::metadata(&path).unwrap().blocks();
    let id = SegmentId;
    store.set_autotrim(false);
    for n in 1..=2 {
        store.create_segment(id(n)).unwrap();
        store.append(id(n), 0, &vec![7; 3 << 20]).unwrap();
    }
    store.sync().unwrap();
    let full = blocks();
    store.delete_segment(id(1)).unwrap();
    store.sync().unwrap();
    assert_eq!(blocks(), full);
    let free = store.capacity().unwrap().free;
    assert_eq!(store.trim().unwrap(), free);
    assert!(blocks() + (2 << 20) / 512 < full, "{} of {full} blocks are still taken", blocks());
    // Segments keep their data, and trimmed slots can be used again.
    let mut kept = vec![0; 3 << 20];
    store.read(id(2), 0, &mut kept).unwrap();
    assert!(kept.iter().all(|&byte| byte == 7));
    assert_eq!(store.capacity().unwrap().free, free);
    store.create_segment(id(3)).unwrap();
    drop(store);
    assert!(matches!(
        FileStore::open(&path, Access::ReadOnly).unwrap().trim(),
        Err(StoreError::ReadOnly { .. })
    ));
}

#[test]
fn a_torn_header_is_a_free_slot() {
    let (_dir, path, store) = pool();
    for id in 1..=3 {
        store.create_segment(SegmentId(id)).unwrap();
        store.append(SegmentId(id), 0, &[id as u8; 100]).unwrap();
        store.seal_segment(SegmentId(id)).unwrap();
    }
    let geometry = store.geometry;
    let free = store.capacity().unwrap().free;
    drop(store);
    poke(&path, geometry.header_offset(1) + 20, &[0xff]);
    // A seal with another segment's id is ignored.
    let mut seal = vec![0; 4096];
    File::open(&path).unwrap().read_exact_at(&mut seal, geometry.seal_offset(0)).unwrap();
    poke(&path, geometry.seal_offset(2), &seal);
    let store = FileStore::open(&path, Access::ReadWrite).unwrap();
    let infos = [SegmentInfo { id: SegmentId(1), len: 100 }, SegmentInfo { id: SegmentId(3), len: 4 * MIB }];
    assert_eq!(store.segments().unwrap(), infos);
    assert_eq!(store.capacity().unwrap().free, free + 4 * MIB);
    store.create_segment(SegmentId(4)).unwrap();
    assert_eq!(store.table.read().get(SegmentId(4)).unwrap().slot, 1);
}

#[test]
fn of_two_headers_for_one_segment_the_newer_counts() {
    let (_dir, path, store) = pool();
    store.create_segment(SegmentId(1)).unwrap();
    let geometry = store.geometry;
    let mut old = vec![0; 4096];
    store.file.read_exact_at(&mut old, geometry.header_offset(0)).unwrap();
    // The first slot is still in use, so the segment is created again in the second.
    store.delete_segment(SegmentId(1)).unwrap();
    store.create_segment(SegmentId(2)).unwrap();
    store.create_segment(SegmentId(1)).unwrap();
    store.delete_segment(SegmentId(2)).unwrap();
    store.append(SegmentId(1), 0, b"new").unwrap();
    store.seal_segment(SegmentId(1)).unwrap();
    drop(store);
    // A crash undoes only the first deletion.
    poke(&path, geometry.header_offset(0), &old);
    let store = FileStore::open(&path, Access::ReadWrite).unwrap();
    assert_eq!(store.segments().unwrap(), [SegmentInfo { id: SegmentId(1), len: 3 }]);
    let mut buf = [0; 3];
    store.read(SegmentId(1), 0, &mut buf).unwrap();
    assert_eq!(&buf, b"new");
    store.create_segment(SegmentId(3)).unwrap();
    assert_eq!(store.table.read().get(SegmentId(3)).unwrap().slot, 0);
}

#[test]
fn destroying_leaves_nothing_behind() {
    let (_dir, path, store) = pool();
    store.create_segment(SegmentId(1)).unwrap();
    store.append(SegmentId(1), 0, b"secret").unwrap();
    store.sync().unwrap();
    store.publish(1, b"uber").unwrap();
    store.destroy().unwrap();
    drop(store);
    assert!(matches!(FileStore::open(&path, Access::ReadWrite), Err(StoreError::NotAPool { .. })));
    let image = std::fs::read(&path).unwrap();
    assert_eq!(image.len() as u64, 64 * MIB);
    assert!(image.iter().all(|&b| b == 0));
    // The file can be used for a new pool without `force`.
    FileStore::create(&path, &options(None)).unwrap();
}

#[test]
fn the_control_socket_is_beside_the_file() {
    let (_dir, path, store) = pool();
    let socket = store.control_socket().unwrap();
    assert_eq!(socket.file_name().unwrap(), "pool.img.sock");
    assert_eq!(crate::control_socket(&Location::detect(&path).unwrap()), Some(socket));
}

/// A loop device that is detached at the end. Needs root.
struct Loop(PathBuf);

impl Loop {
    fn attach(file: &Path) -> Option<Self> {
        let output = std::process::Command::new("losetup").args(["-f", "--show"]).arg(file).output().ok()?;
        let path = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        output.status.success().then(|| Self(path.into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

struct Devices(PathBuf);

impl Harness for Devices {
    fn fresh(&self) -> Box<dyn Store> {
        Box::new(FileStore::create(&self.0, &forced(None)).unwrap())
    }
    fn reopen(&self, store: Box<dyn Store>) -> Option<Result<Box<dyn Store>>> {
        drop(store);
        Some(crate::open(&Location::detect(&self.0).unwrap(), Access::ReadWrite))
    }
}

#[test]
fn a_block_device_will_do() {
    let dir = TempDir::new().unwrap();
    let backing = dir.path().join("disk");
    File::create(&backing).unwrap().set_len(64 * MIB).unwrap();
    let Some(device) = Loop::attach(&backing) else {
        eprintln!("SKIPPED: no loop device can be attached here (needs root and losetup)");
        return;
    };
    conformance::run(&Devices(device.0.clone()));
    let store = FileStore::create(&device.0, &options(None)).unwrap();
    let error = FileStore::open(&device.0, Access::ReadWrite).unwrap_err();
    assert!(matches!(error, StoreError::Locked { .. }), "{error:?}");
    assert_eq!(store.control_socket(), crate::control_socket(&Location::File(device.0.clone())));
    assert!(!store.control_socket().unwrap().starts_with("/dev"));
    // The device passes the space of deleted segments back to its file.
    let blocks = || std::fs::metadata(&backing).unwrap().blocks();
    store.create_segment(SegmentId(1)).unwrap();
    store.append(SegmentId(1), 0, &vec![7; 3 << 20]).unwrap();
    store.sync().unwrap();
    let full = blocks();
    store.delete_segment(SegmentId(1)).unwrap();
    store.sync().unwrap();
    assert!(blocks() + (2 << 20) / 512 < full, "{} of {full} blocks are still taken", blocks());
    drop(store);
    let error =
        FileStore::create(&device.0, &CreateOptions { size: Some(1 << 40), ..forced(None) }).unwrap_err();
    assert!(matches!(&error, StoreError::Invalid { why, .. } if why.contains("fewer")), "{error}");
}

#[test]
fn a_mounted_device_is_refused() {
    let dir = TempDir::new().unwrap();
    let (backing, mount) = (dir.path().join("disk"), dir.path().join("mnt"));
    File::create(&backing).unwrap().set_len(64 * MIB).unwrap();
    std::fs::create_dir(&mount).unwrap();
    let run = |command: &mut std::process::Command| command.status().is_ok_and(|status| status.success());
    let made = run(std::process::Command::new("/sbin/mkfs.ext4").arg("-q").arg(&backing));
    let Some(device) = Loop::attach(&backing).filter(|_| made) else {
        eprintln!("SKIPPED: no file system can be made and attached here");
        return;
    };
    let error = FileStore::create(&device.0, &options(None)).unwrap_err();
    assert!(matches!(&error, StoreError::Foreign { what, .. } if what.contains("ext4")), "{error}");
    if !run(std::process::Command::new("mount").arg(&device.0).arg(&mount)) {
        eprintln!("SKIPPED: nothing can be mounted here");
        return;
    }
    let error = FileStore::create(&device.0, &forced(None)).map(|store| store.describe());
    let unmounted = run(std::process::Command::new("umount").arg(&mount));
    assert!(matches!(&error, Err(StoreError::Foreign { what, .. }) if what.contains("using")), "{error:?}");
    assert!(unmounted);
}
