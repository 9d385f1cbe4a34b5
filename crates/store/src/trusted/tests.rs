use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};

use super::*;
use crate::{Access, CreateOptions, DirectoryStore, FileStore, Location, PoolLabel, SegmentId, Store, open};

/// A user that is neither root nor the one that runs the tests.
const STRANGER: u32 = 54_321;

fn options() -> CreateOptions {
    let label = PoolLabel { name: "tank".to_owned(), guid: 7 };
    CreateOptions { label, size: None, force: false }
}

/// A pool in a directory with one sealed segment, and a file of a victim next to it.
fn pool() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let root = std::fs::canonicalize(dir.path()).unwrap().join("pool");
    let store = DirectoryStore::create(&root, &options()).unwrap();
    store.create_segment(SegmentId(1)).unwrap();
    store.append(SegmentId(1), 0, b"content").unwrap();
    store.seal_segment(SegmentId(1)).unwrap();
    store.sync().unwrap();
    let victim = dir.path().join("victim");
    std::fs::write(&victim, b"a victim's precious text").unwrap();
    (dir, root, victim)
}

fn segment(root: &Path) -> PathBuf {
    root.join("segments/00/0000000000000001.seg")
}

/// Whether a test can change the owner of files.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn a_segment_that_is_a_link_is_neither_read_nor_written() {
    let (_dir, root, victim) = pool();
    std::fs::remove_file(segment(&root)).unwrap();
    symlink(&victim, segment(&root)).unwrap();
    let store = DirectoryStore::open(&root, Access::ReadWrite).unwrap();
    store.reopen_segment(SegmentId(1), 4).unwrap_err();
    store.rewrite(SegmentId(1), 0, b"X").unwrap_err();
    store.read(SegmentId(1), 0, &mut [0; 4]).unwrap_err();
    assert_eq!(std::fs::read(&victim).unwrap(), b"a victim's precious text");
    // Deleting removes the link, not its target.
    store.delete_segment(SegmentId(1)).unwrap();
    assert!(victim.exists());
}

#[test]
fn a_directory_of_segments_that_is_a_link_is_not_entered() {
    let (dir, root, _) = pool();
    let elsewhere = dir.path().join("elsewhere");
    std::fs::rename(root.join("segments/00"), &elsewhere).unwrap();
    symlink(&elsewhere, root.join("segments/00")).unwrap();
    let store = DirectoryStore::open(&root, Access::ReadWrite).unwrap();
    store.create_segment(SegmentId(2)).unwrap_err();
    store.delete_segment(SegmentId(1)).unwrap_err();
    store.segments().unwrap_err();
    assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 1);
}

#[test]
fn every_fixed_file_of_a_pool_must_be_a_regular_file() {
    for name in ["label", "lock", "uberblocks"] {
        let (_dir, root, victim) = pool();
        std::fs::rename(root.join(name), root.join("away")).unwrap();
        std::fs::copy(root.join("away"), &victim).unwrap();
        let before = std::fs::read(&victim).unwrap();
        symlink(&victim, root.join(name)).unwrap();
        DirectoryStore::open(&root, Access::ReadWrite).unwrap_err();
        std::fs::remove_file(root.join(name)).unwrap();
        // Opening a FIFO must not block.
        rustix::fs::mknodat(CWD, root.join(name), FileType::Fifo, Mode::RWXU, 0).unwrap();
        DirectoryStore::open(&root, Access::ReadWrite).unwrap_err();
        assert_eq!(std::fs::read(&victim).unwrap(), before, "{name}");
    }
}

#[test]
fn a_new_label_is_not_written_through_a_link() {
    let (_dir, root, victim) = pool();
    symlink(&victim, root.join("label.new")).unwrap();
    let store = DirectoryStore::open(&root, Access::ReadWrite).unwrap();
    store.set_label(&PoolLabel { name: "other".to_owned(), guid: 7 }).unwrap();
    assert_eq!(std::fs::read(&victim).unwrap(), b"a victim's precious text");
    assert_eq!(DirectoryStore::label(&root).unwrap().name, "other");
}

#[test]
fn a_file_with_another_hard_link_is_not_written() {
    let (_dir, root, victim) = pool();
    std::fs::remove_file(segment(&root)).unwrap();
    std::fs::hard_link(&victim, segment(&root)).unwrap();
    let store = DirectoryStore::open(&root, Access::ReadWrite).unwrap();
    let error = store.reopen_segment(SegmentId(1), 4).unwrap_err();
    assert!(error.to_string().contains("hard links"), "{error}");
    assert_eq!(std::fs::read(&victim).unwrap(), b"a victim's precious text");
}

#[test]
fn a_segment_of_another_user_is_not_opened() {
    if !is_root() {
        return;
    }
    let (_dir, root, _) = pool();
    lchown(segment(&root), Some(STRANGER), None).unwrap();
    let store = DirectoryStore::open(&root, Access::ReadWrite).unwrap();
    let error = store.read(SegmentId(1), 0, &mut [0; 4]).unwrap_err();
    assert!(error.to_string().contains("belongs to user 54321"), "{error}");
    store.reopen_segment(SegmentId(1), 4).unwrap_err();
}

#[test]
fn root_opens_no_pool_of_another_user_and_says_what_to_do() {
    if !is_root() {
        return;
    }
    let (dir, root, _) = pool();
    lchown(&root, Some(STRANGER), None).unwrap();
    let image = dir.path().join("pool.img");
    FileStore::create(&image, &CreateOptions { size: Some(64 << 20), ..options() }).unwrap();
    lchown(&image, Some(STRANGER), None).unwrap();
    for location in [Location::Directory(root.clone()), Location::File(image)] {
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let error = open(&location, access).unwrap_err();
            assert!(matches!(error, StoreError::OtherUser { uid: STRANGER, .. }), "{error:?}");
            let text = error.to_string();
            assert!(text.contains("sudo -u \\#54321 snowmelt") && text.contains(TRUST_VARIABLE), "{text}");
        }
        // The pool's name can be read, because only the pool's own files are opened.
        assert_eq!(crate::label(&location).unwrap().name, "tank");
    }
    let error = DirectoryStore::create(&root, &CreateOptions { force: true, ..options() }).unwrap_err();
    assert!(matches!(error, StoreError::OtherUser { .. }), "{error:?}");
}

#[test]
fn links_of_trusted_users_lead_to_a_pool_and_others_do_not() {
    let (dir, root, _) = pool();
    let link = dir.path().join("link");
    let far = dir.path().join("far");
    symlink(dir.path(), &far).unwrap();
    symlink("far/pool", &link).unwrap();
    let place = Place::find(&link).unwrap();
    assert_eq!(place.path(), root);
    assert_eq!(Place::find(&root.join("../pool/segments/..")).unwrap().path(), root);
    assert_eq!(DirectoryStore::label(&link).unwrap().name, "tank");
    if is_root() {
        lchown(&far, Some(STRANGER), None).unwrap();
        let error = DirectoryStore::label(&link).unwrap_err();
        assert!(
            matches!(&error, StoreError::Link { uid: STRANGER, path } if path.ends_with("far")),
            "{error:?}"
        );
    }
    crate::check_way(&dir.path().join("new/er")).unwrap();
    assert_eq!(crate::check_way(&link.join("new/er")).is_err(), is_root());
    let turning = dir.path().join("turning");
    symlink("turning", &turning).unwrap();
    Place::find(&turning).unwrap_err();
}

#[test]
fn what_is_made_is_for_the_owner_alone() {
    let (dir, root, _) = pool();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&root), mode(&root.join("label")), mode(&segment(&root))), (0o700, 0o600, 0o600));
    let image = dir.path().join("pool.img");
    FileStore::create(&image, &CreateOptions { size: Some(64 << 20), ..options() }).unwrap();
    assert_eq!(mode(&image), 0o600);
    assert_eq!(std::fs::metadata(&image).unwrap().nlink(), 1);
}

#[test]
fn neither_a_device_nor_a_fifo_is_opened_as_a_pools_file() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo.img");
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
    for path in [fifo.as_path(), Path::new("/dev/null")] {
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let error = FileStore::open(path, access).unwrap_err();
            assert!(matches!(error, StoreError::Invalid { .. }), "{error:?}");
        }
    }
}

#[test]
fn steps_without_openat2_follow_no_link_either() {
    let (dir, root, victim) = pool();
    let directory = Place::find(&root).unwrap().directory().unwrap();
    let name = Path::new("segments/00/0000000000000001.seg");
    let flags = QUIET | OFlags::RDONLY;
    directory.open_by_steps(name, flags, Mode::empty()).unwrap();
    for name in ["../victim", "segments/../../victim", "..", "segments/.."] {
        directory.open_by_steps(Path::new(name), flags, Mode::empty()).unwrap_err();
        directory.read(Path::new(name)).unwrap_err();
    }
    std::fs::remove_file(segment(&root)).unwrap();
    symlink(&victim, segment(&root)).unwrap();
    directory.open_by_steps(name, flags, Mode::empty()).unwrap_err();
    std::fs::rename(root.join("segments"), dir.path().join("moved")).unwrap();
    symlink(dir.path().join("moved"), root.join("segments")).unwrap();
    directory.open_by_steps(name, flags, Mode::empty()).unwrap_err();
}
