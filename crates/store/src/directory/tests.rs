use std::os::unix::fs::{MetadataExt, PermissionsExt};

use tempfile::TempDir;

use super::*;
use crate::conformance::{self, Harness};
use crate::{Location, UBERBLOCK_RING};

fn options(name: &str) -> CreateOptions {
    CreateOptions { label: PoolLabel { name: name.to_owned(), guid: 0xfeed }, size: None, force: false }
}

fn forced(name: &str) -> CreateOptions {
    CreateOptions { force: true, ..options(name) }
}

struct Directories(TempDir);

impl Harness for Directories {
    fn fresh(&self) -> Box<dyn Store> {
        let path = tempfile::tempdir_in(self.0.path()).unwrap().keep();
        Box::new(DirectoryStore::create(&path, &options("tank")).unwrap())
    }
    fn reopen(&self, store: Box<dyn Store>) -> Option<Result<Box<dyn Store>>> {
        let path = store.describe();
        drop(store);
        Some(crate::open(&Location::Directory(path.into()), Access::ReadWrite))
    }
}

#[test]
fn conforms() {
    conformance::run(&Directories(TempDir::new().unwrap()));
}

#[test]
fn only_one_owns_it() {
    let dir = TempDir::new().unwrap();
    let store = DirectoryStore::create(dir.path(), &options("tank")).unwrap();
    let error = DirectoryStore::open(dir.path(), Access::ReadWrite).unwrap_err();
    assert!(matches!(error, StoreError::Locked { .. }), "{error:?}");
    let error = DirectoryStore::create(dir.path(), &forced("other")).unwrap_err();
    assert!(matches!(error, StoreError::Locked { .. }), "{error:?}");
    let reader = DirectoryStore::open(dir.path(), Access::ReadOnly).unwrap();
    assert!(matches!(reader.create_segment(SegmentId(1)), Err(StoreError::ReadOnly { .. })));
    assert!(matches!(reader.destroy(), Err(StoreError::ReadOnly { .. })));
    drop(store);
    DirectoryStore::open(dir.path(), Access::ReadWrite).unwrap();
}

#[test]
fn other_peoples_files_are_safe() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("thesis.tex");
    std::fs::write(&file, "mine").unwrap();
    let error = DirectoryStore::create(dir.path(), &options("tank")).unwrap_err();
    assert!(matches!(&error, StoreError::Foreign { what, .. } if what.contains("thesis.tex")), "{error:?}");
    // With `force`, a pool only adds files, and destroying it removes only these.
    let store = DirectoryStore::create(dir.path(), &forced("tank")).unwrap();
    store.create_segment(SegmentId(1)).unwrap();
    store.destroy().unwrap();
    drop(store);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_pool_is_replaced_only_by_force() {
    let dir = TempDir::new().unwrap();
    let store = DirectoryStore::create(dir.path(), &options("tank")).unwrap();
    store.create_segment(SegmentId(1)).unwrap();
    store.sync().unwrap();
    store.publish(1, b"old").unwrap();
    drop(store);
    let error = DirectoryStore::create(dir.path(), &options("new")).unwrap_err();
    assert!(error.to_string().contains("the pool 'tank'"), "{error}");
    let store = DirectoryStore::create(dir.path(), &forced("new")).unwrap();
    assert_eq!(store.segments().unwrap(), []);
    assert_eq!(store.uberblocks().unwrap(), []);
    assert_eq!(DirectoryStore::label(dir.path()).unwrap().name, "new");
}

#[test]
fn a_directory_that_was_made_goes_with_the_pool() {
    let dir = TempDir::new().unwrap();
    std::fs::create_dir(dir.path().join("mount")).unwrap();
    std::fs::create_dir(dir.path().join("mount/lost+found")).unwrap();
    for (name, stays) in [("made", false), ("mount", true)] {
        let path = dir.path().join(name);
        let store = DirectoryStore::create(&path, &options("tank")).unwrap();
        store.create_segment(SegmentId(0xffff)).unwrap();
        store.destroy().unwrap();
        assert_eq!(path.exists(), stays, "{name}");
    }
}

#[test]
fn nobody_else_may_look() {
    let dir = TempDir::new().unwrap();
    let root = dir.path().join("pool");
    let store = DirectoryStore::create(&root, &options("tank")).unwrap();
    store.create_segment(SegmentId(1)).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&root), 0o700);
    assert_eq!(mode(&root.join(layout::ring_name())), 0o600);
    let segment = root.join(layout::segment_name(SegmentId(1)));
    assert_eq!(mode(&segment), 0o600);
    assert_eq!(mode(segment.parent().unwrap()), 0o700);
}

#[test]
fn names_can_be_changed_and_guids_cannot() {
    let dir = TempDir::new().unwrap();
    let location = Location::Directory(dir.path().to_owned());
    let store = crate::create(&location, &options("tank")).unwrap();
    store.publish(1, b"x").unwrap();
    let renamed = PoolLabel { name: "dozer".to_owned(), guid: 0xfeed };
    assert!(matches!(crate::set_label(&location, &renamed), Err(StoreError::Locked { .. })));
    drop(store);
    crate::set_label(&location, &renamed).unwrap();
    assert_eq!(crate::label(&location).unwrap(), renamed);
    let other = PoolLabel { guid: 1, ..renamed };
    assert!(matches!(crate::set_label(&location, &other), Err(StoreError::Invalid { .. })));
    for name in ["", "a/b", &"x".repeat(256)] {
        let bad = PoolLabel { name: name.to_owned(), guid: 0xfeed };
        assert!(matches!(crate::set_label(&location, &bad), Err(StoreError::Invalid { .. })), "{name}");
    }
    assert_eq!(crate::open(&location, Access::ReadOnly).unwrap().uberblocks().unwrap().len(), 1);
}

#[test]
fn what_is_no_pool_is_refused() {
    let dir = TempDir::new().unwrap();
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let error = DirectoryStore::open(dir.path(), access).unwrap_err();
        assert!(matches!(error, StoreError::NotAPool { .. }), "{error:?}");
    }
    let store = DirectoryStore::create(dir.path(), &options("tank")).unwrap();
    drop(store);
    let label = dir.path().join("label");
    let good = std::fs::read(&label).unwrap();
    for (offset, why) in [(0, "no label"), (8, "version"), (100, "damaged"), (4095, "damaged")] {
        let mut bad = good.clone();
        bad[offset] ^= 0x40;
        std::fs::write(&label, bad).unwrap();
        let error = DirectoryStore::open(dir.path(), Access::ReadWrite).unwrap_err();
        assert!(matches!(&error, StoreError::NotAPool { why: text, .. } if text.contains(why)), "{error}");
    }
    std::fs::write(&label, [&good[..], &[0]].concat()).unwrap();
    assert!(matches!(DirectoryStore::label(dir.path()), Err(StoreError::NotAPool { .. })));
}

#[test]
fn torn_uberblocks_are_left_out() {
    let dir = TempDir::new().unwrap();
    let store = DirectoryStore::create(dir.path(), &options("tank")).unwrap();
    for txg in 1..=100 {
        store.publish(txg, &[txg as u8; 600]).unwrap();
    }
    drop(store);
    // Overwrite one sector in the slot of the newest uberblock.
    let path = dir.path().join(layout::ring_name());
    let mut ring = std::fs::read(&path).unwrap();
    let slot = (99 % 64) * 8192;
    ring[slot + 512..slot + 1024].fill(0);
    std::fs::write(&path, &ring).unwrap();
    let store = DirectoryStore::open(dir.path(), Access::ReadWrite).unwrap();
    let txgs = |store: &DirectoryStore| store.uberblocks().unwrap().iter().map(|u| u.txg).collect::<Vec<_>>();
    assert_eq!(txgs(&store), (68..=99).collect::<Vec<_>>());
    // The next uberblock is written to the slot of the torn one.
    store.publish(100, b"again").unwrap();
    assert_eq!(txgs(&store).len(), UBERBLOCK_RING);
    assert_eq!(store.uberblocks().unwrap().last().unwrap().bytes, b"again");
    // A ring that was cut short or filled with garbage does not prevent opening.
    drop(store);
    std::fs::write(&path, &ring[..20_000]).unwrap();
    DirectoryStore::open(dir.path(), Access::ReadWrite).unwrap().uberblocks().unwrap();
    std::fs::write(&path, vec![0x5a; 1000]).unwrap();
    assert_eq!(DirectoryStore::open(dir.path(), Access::ReadWrite).unwrap().uberblocks().unwrap(), []);
}

#[test]
fn few_files_stay_open() {
    let dir = TempDir::new().unwrap();
    let store = DirectoryStore::create(dir.path(), &options("tank")).unwrap();
    for id in 0..400 {
        store.create_segment(SegmentId(id)).unwrap();
        store.append(SegmentId(id), 0, &id.to_le_bytes()).unwrap();
        store.seal_segment(SegmentId(id)).unwrap();
    }
    store.sync().unwrap();
    assert!(store.dirty.lock().segments.is_empty() && store.open.read().is_empty());
    for id in (0..400).chain(0..400) {
        let mut buf = [0; 8];
        store.read(SegmentId(id), 0, &mut buf).unwrap();
        assert_eq!(buf, id.to_le_bytes());
    }
    assert_eq!(store.handles.len(), 256);
}

#[test]
fn strange_files_are_no_segments() {
    let dir = TempDir::new().unwrap();
    let store = DirectoryStore::create(dir.path(), &options("tank")).unwrap();
    store.create_segment(SegmentId(0x1234)).unwrap();
    let shard = dir.path().join("segments/12");
    // Other extension; no number; wrong directory; a sign; too short.
    for name in
        ["note.txt", "zzzzzzzzzzzzzzzz.seg", "0000000000000034.seg", "+000000000001234.seg", "1234.seg"]
    {
        std::fs::write(shard.join(name), b"x").unwrap();
    }
    assert_eq!(store.segments().unwrap(), [SegmentInfo { id: SegmentId(0x1234), len: 0 }]);
}

#[test]
fn bytes_of_a_failed_append_do_not_count() {
    let dir = TempDir::new().unwrap();
    let store = DirectoryStore::create(dir.path(), &options("tank")).unwrap();
    store.create_segment(SegmentId(1)).unwrap();
    store.append(SegmentId(1), 0, b"good").unwrap();
    // What a write leaves that was cut short.
    let path = dir.path().join(layout::segment_name(SegmentId(1)));
    std::fs::write(&path, b"good and more").unwrap();
    assert!(matches!(store.read(SegmentId(1), 4, &mut [0]), Err(StoreError::OutOfRange { end: 4, .. })));
    assert_eq!(store.segments().unwrap()[0].len, 4);
    store.seal_segment(SegmentId(1)).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().size(), 4);
}

#[test]
fn permission_is_reported_with_place() {
    if rustix::process::geteuid().is_root() {
        // Root may write everywhere. A path that cannot exist gives a similar error.
        let error = DirectoryStore::create(Path::new("/proc/nowhere/pool"), &options("tank")).unwrap_err();
        assert!(error.to_string().starts_with("cannot find /proc/nowhere/pool"), "{error}");
        return;
    }
    let dir = TempDir::new().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o500)).unwrap();
    let error = DirectoryStore::create(&dir.path().join("pool"), &options("tank")).unwrap_err();
    assert!(
        matches!(&error, StoreError::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
    );
}

#[test]
fn the_control_socket_is_inside_or_in_a_private_place() {
    let dir = TempDir::new().unwrap();
    let store = DirectoryStore::create(dir.path(), &options("tank")).unwrap();
    let socket = store.control_socket().unwrap();
    assert_eq!(socket, std::fs::canonicalize(dir.path()).unwrap().join("control.sock"));
    assert_eq!(crate::control_socket(&Location::Directory(dir.path().to_owned())), Some(socket));
    let deep = dir.path().join("d".repeat(100));
    let store = DirectoryStore::create(&deep, &options("tank")).unwrap();
    let socket = store.control_socket().unwrap();
    assert!(socket.as_os_str().len() < 108 && !socket.starts_with(dir.path()), "{}", socket.display());
    let place = std::fs::metadata(socket.parent().unwrap()).unwrap();
    assert_eq!((place.mode() & 0o077, place.uid()), (0, rustix::process::geteuid().as_raw()));
}

#[test]
fn a_full_file_system_is_no_catastrophe() {
    let dir = TempDir::new().unwrap();
    let mut mount = std::process::Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"]).arg(dir.path());
    if !mount.status().is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: no tmpfs can be mounted here (needs root)");
        return;
    }
    let outcome = std::panic::catch_unwind(|| {
        let store = DirectoryStore::create(dir.path(), &options("tank")).unwrap();
        store.create_segment(SegmentId(1)).unwrap();
        let mut end = 0;
        let error = loop {
            match store.append(SegmentId(1), end, &[7; 100_000]) {
                Ok(()) => end += 100_000,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
        // The incomplete append does not count. When there is space again, it succeeds.
        assert_eq!(store.segments().unwrap()[0].len, end);
        store.sync().unwrap();
        store.publish(1, b"full").unwrap();
        store.seal_segment(SegmentId(1)).unwrap();
        store.delete_segment(SegmentId(1)).unwrap();
        store.create_segment(SegmentId(2)).unwrap();
        store.append(SegmentId(2), 0, &[7; 100_000]).unwrap();
    });
    let unmounted = std::process::Command::new("umount").arg(dir.path()).status();
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
    assert!(unmounted.is_ok_and(|status| status.success()));
}
