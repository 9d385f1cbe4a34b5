//! Restores snapshots from real ZFS to a local directory, and compares the result with the snapshot.

#![allow(clippy::unwrap_used)]

#[path = "../../zpl/tests/common/mod.rs"]
mod common;

use common::{Received, case, testdata};
use snowmelt_fs::restore::{
    Existing, Failure, Observer, Owners, Privileges, RestoreOptions, Summary, restore,
};
use snowmelt_fs::{Event, Walk, resolve};
use snowmelt_zpl::memory::MemoryObjects;
use snowmelt_zpl::{FileKind, Filesystem};
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// Options that restore everything in the snapshot.
fn complete() -> RestoreOptions {
    RestoreOptions { privileges: Privileges::ALL, ..RestoreOptions::default() }
}

#[derive(Default)]
struct Heard {
    failures: Vec<Failure>,
    paths: usize,
}

impl Observer for Heard {
    fn progress(&mut self, _path: &[u8], _so_far: &Summary) {
        self.paths += 1;
    }

    fn failure(&mut self, failure: Failure) {
        self.failures.push(failure);
    }
}

fn snapshots(case_name: &str, streams: &[&str]) -> Vec<Arc<MemoryObjects>> {
    let files = case(case_name).unwrap();
    let mut received = Received::default();
    let guids: Vec<u64> = streams.iter().flat_map(|stream| received.receive(&files[*stream])).collect();
    guids.iter().map(|guid| received.snapshots[guid].clone()).collect()
}

fn demo() -> Arc<MemoryObjects> {
    let mut received = Received::default();
    let guid = received.receive(&testdata::demo("full.zstream"))[0];
    received.snapshots[&guid].clone()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether a failure is a limit of the machine that runs the test: device nodes, trusted and security attributes, inode
/// flags.
fn is_local_limit(failure: &Failure) -> bool {
    let Failure::Local { step, source, .. } = failure else { return false };
    let refused = matches!(source.raw_os_error(), Some(1 | 13 | 22 | 25 | 28 | 34 | 95));
    refused && ["make the node", "set an extended attribute", "set the inode flags"].contains(step)
}

/// Compares everything below `target` with the snapshot, except for paths with `failures`.
fn compare(fs: &Filesystem<Arc<MemoryObjects>>, root: u64, target: &Path, failures: &[Failure]) {
    let excused = |path: &[u8], wanted: &str| {
        failures.iter().any(|failure| {
            matches!(failure, Failure::Local { path: failed, step, .. } if failed == path && *step == wanted)
        })
    };
    let mut seen = 0;
    for event in Walk::new(fs, root).unwrap() {
        let Event::Node(node) = event.unwrap() else { continue };
        let path = target.join(OsStr::from_bytes(&node.path));
        let shown = path.display();
        if excused(&node.path, "make the node") {
            continue;
        }
        let found = std::fs::symlink_metadata(&path).unwrap_or_else(|e| panic!("{shown}: {e}"));
        let at = &node.attributes;
        seen += 1;
        assert_eq!(found.mode() & 0o170_000, at.kind().mode_bits(), "type of {shown}");
        if at.kind() != FileKind::Symlink {
            let lent = if is_root() { 0 } else { 0o6000 };
            assert_eq!(found.mode() & 0o7777 & !lent, at.permissions() & !lent, "mode of {shown}");
        }
        if is_root() {
            assert_eq!((found.uid(), found.gid()), (at.uid, at.gid), "owner of {shown}");
        }
        // ext4, on which the tests usually run, supports times from 1901 to 2446.
        if (-0x7fff_ffff..0x3_7fff_ffff).contains(&at.mtime.seconds) {
            let expected = (at.mtime.seconds, i64::from(at.mtime.nanoseconds));
            assert_eq!((found.mtime(), found.mtime_nsec()), expected, "{shown}");
        }
        if at.kind() == FileKind::File {
            assert_eq!(found.nlink(), at.links, "links of {shown}");
            assert_eq!(found.size(), at.size, "size of {shown}");
            let mut expected = vec![0; at.size as usize];
            fs.read(node.object, at.size, 0, &mut expected).unwrap();
            assert!(std::fs::read(&path).unwrap() == expected, "content of {shown}");
        }
        if at.kind() == FileKind::Symlink {
            assert_eq!(
                std::fs::read_link(&path).unwrap().into_os_string().into_vec(),
                fs.readlink(node.object).unwrap()
            );
        }
        if let Some((major, minor)) = at.rdev {
            assert_eq!(found.rdev(), rustix::fs::makedev(major, minor), "{shown}");
        }
        if !excused(&node.path, "set an extended attribute") {
            for (name, value) in fs.xattrs(node.object).unwrap() {
                let got = xattr::get(&path, OsStr::from_bytes(&name)).unwrap();
                assert_eq!(got, Some(value), "{} of {shown}", String::from_utf8_lossy(&name));
            }
        }
    }
    assert!(seen > 3, "only {seen} paths compared");
}

fn restores(objects: Arc<MemoryObjects>) {
    let fs = Filesystem::open(objects).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("out");
    let mut heard = Heard::default();
    let summary = restore(&fs, fs.root(), b"", &target, complete(), &mut heard).unwrap();
    let unexpected: Vec<_> = heard.failures.iter().filter(|failure| !is_local_limit(failure)).collect();
    assert!(unexpected.is_empty(), "{unexpected:?}");
    assert_eq!(summary.failures, heard.failures.len() as u64);
    compare(&fs, fs.root(), &target, &heard.failures);
    let made = summary.directories + summary.files + summary.hardlinks + summary.symlinks + summary.specials;
    assert!(made as usize + heard.failures.len() >= heard.paths);
    // No temporary file is left.
    let leftover = walk_local(&target).into_iter().find(|path| path.to_string_lossy().contains(".snowmelt"));
    assert_eq!(leftover, None);
}

fn walk_local(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            found.extend(walk_local(&entry.path()));
        }
        found.push(entry.path());
    }
    found
}

#[test]
fn special_files_links_and_times() {
    for objects in snapshots("07-special", &["full.zstream", "inc.zstream"]) {
        restores(objects);
    }
}

#[test]
fn extended_attributes_and_acls() {
    restores(snapshots("06-xattr", &["sa-auto-full.zstream"]).remove(0));
    restores(snapshots("06-xattr", &["dir-legacy-full.zstream"]).remove(0));
}

#[test]
fn a_small_home_directory() {
    restores(demo());
}

#[test]
fn one_file_of_many() {
    let fs = Filesystem::open(demo()).unwrap();
    let file = Walk::new(&fs, fs.root()).unwrap().find_map(|event| match event.unwrap() {
        Event::Node(node) if node.attributes.kind() == FileKind::File => Some(node),
        _ => None,
    });
    let file = file.unwrap();
    assert_eq!(resolve(&fs, &file.path).unwrap(), file.object);
    let target = tempfile::tempdir().unwrap();
    let mut heard = Heard::default();
    let summary = restore(&fs, file.object, b"one", target.path(), complete(), &mut heard).unwrap();
    assert_eq!((summary.files, summary.failures), (1, 0), "{:?}", heard.failures);
    assert_eq!(std::fs::metadata(target.path().join("one")).unwrap().len(), file.attributes.size);
    assert_eq!(std::fs::read_dir(target.path()).unwrap().count(), 1);
}

#[test]
fn files_already_there_stay_unless_told() {
    let fs = Filesystem::open(demo()).unwrap();
    let target = tempfile::tempdir().unwrap();
    let options = RestoreOptions { owners: Owners::Never, ..complete() };
    let first = restore(&fs, fs.root(), b"", target.path(), options, &mut Heard::default()).unwrap();
    assert_eq!(first.failures, 0);

    let mut heard = Heard::default();
    let kept = restore(&fs, fs.root(), b"", target.path(), options, &mut heard).unwrap();
    assert_eq!(kept.files, 0);
    assert!(kept.failures >= first.files);
    assert!(heard.failures.iter().all(|failure| {
        matches!(failure, Failure::Local { source, .. } if source.kind() == std::io::ErrorKind::AlreadyExists)
    }));

    let options = RestoreOptions { existing: Existing::Replace, ..options };
    let mut heard = Heard::default();
    let replaced = restore(&fs, fs.root(), b"", target.path(), options, &mut heard).unwrap();
    assert_eq!((replaced.files, replaced.failures), (first.files, 0), "{:?}", heard.failures);
    compare_content(&fs, target.path());
}

fn compare_content(fs: &Filesystem<Arc<MemoryObjects>>, target: &Path) {
    let mut out = Vec::new();
    for event in Walk::new(fs, fs.root()).unwrap() {
        let Event::Node(node) = event.unwrap() else { continue };
        if node.attributes.kind() == FileKind::File {
            out.clear();
            snowmelt_fs::cat(fs, &node.path, node.object, &mut out).unwrap();
            assert!(std::fs::read(target.join(OsStr::from_bytes(&node.path))).unwrap() == out);
        }
    }
}

#[test]
fn planted_links_are_not_followed() {
    let fs = Filesystem::open(demo()).unwrap();
    let outside = tempfile::tempdir().unwrap();
    let target = tempfile::tempdir().unwrap();
    let directories: Vec<_> = Walk::new(&fs, fs.root())
        .unwrap()
        .filter_map(|event| match event.unwrap() {
            Event::Node(node) if node.attributes.kind() == FileKind::Directory && node.path != b"." => {
                Some(node)
            }
            _ => None,
        })
        .filter(|node| !node.path.contains(&b'/'))
        .collect();
    assert!(!directories.is_empty());
    for node in &directories {
        std::os::unix::fs::symlink(outside.path(), target.path().join(OsStr::from_bytes(&node.path)))
            .unwrap();
    }
    let mut heard = Heard::default();
    restore(&fs, fs.root(), b"", target.path(), complete(), &mut heard).unwrap();
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0, "written outside the target");
    assert!(heard.failures.len() >= directories.len());
}

#[test]
fn holes_stay_holes() {
    let Some(files) = case("12-redact") else { return };
    let (name, stream) = files.iter().find(|(name, _)| name.starts_with("redacted")).map_or_else(
        || ("demo".to_owned(), testdata::demo("full.zstream")),
        |(name, stream)| (name.clone(), stream.clone()),
    );
    let mut received = Received::default();
    let guid = received.receive(&stream)[0];
    let fs = Filesystem::open(received.snapshots[&guid].clone()).unwrap();
    let target = tempfile::tempdir().unwrap();
    let mut heard = Heard::default();
    let summary = restore(&fs, fs.root(), b"", target.path(), complete(), &mut heard).unwrap();
    assert_eq!(summary.failures, 0, "{name}: {:?}", heard.failures);
    let mut held = 0;
    for event in Walk::new(&fs, fs.root()).unwrap() {
        let Event::Node(node) = event.unwrap() else { continue };
        let mut at = 0;
        while let Some((from, to)) = fs.next_extent(node.object, node.attributes.size, at).unwrap() {
            if node.attributes.kind() == FileKind::File {
                held += to - from;
            }
            at = to;
        }
    }
    assert!(summary.bytes <= held, "{} bytes written for {held} of data", summary.bytes);
}

/// If the target has projects, the IDs are set. Otherwise this is reported once, not for every file.
#[test]
fn project_ids_are_set_or_missed_once() {
    let files = case("13-quota-names").unwrap();
    let mut received = Received::default();
    let guid = received.receive(&files["acct-full.zstream"])[0];
    let fs = Filesystem::open(received.snapshots[&guid].clone()).unwrap();
    let with_project = Walk::new(&fs, fs.root()).unwrap().map(Result::unwrap).filter(|event| match event {
        Event::Node(node) => {
            let kind = node.attributes.kind();
            node.attributes.project_id != 0 && matches!(kind, FileKind::File | FileKind::Directory)
        }
        _ => false,
    });
    let with_project = with_project.count();
    assert!(with_project > 1, "only {with_project} nodes have a project");
    let target = tempfile::tempdir().unwrap();
    let mut heard = Heard::default();
    let summary = restore(&fs, fs.root(), b"", target.path(), complete(), &mut heard).unwrap();
    assert!(summary.files > 1);
    let told = heard.failures.iter().filter(|failure| failure.to_string().contains("project id")).count();
    assert!(told <= 1, "{:?}", heard.failures);
    assert_eq!(heard.failures.len(), told, "{:?}", heard.failures);
}

#[test]
fn volumes_become_sparse_images() {
    use snowmelt_fs::restore::{VolumeOptions, restore_volume};
    let files = case("08-zvol").unwrap();
    let (name, stream) = files
        .iter()
        .find(|(name, _)| name.contains("full") && name.ends_with(".zstream"))
        .expect("a full stream of a volume");
    let mut received = Received::default();
    let guid = received.receive(stream)[0];
    let objects = &received.snapshots[&guid];
    let info = snowmelt_fs::volume_info(objects).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("vol.img");
    let mut far = 0;
    let written =
        restore_volume(objects, info, &image, VolumeOptions::default(), &mut |at| far = at).unwrap();
    assert_eq!(far, info.size);
    let mut expected = vec![0; info.size as usize];
    snowmelt_zpl::Objects::read(objects, info.object, 0, &mut expected).unwrap();
    assert!(std::fs::read(&image).unwrap() == expected, "{name}");
    assert!(written > 0 && std::fs::metadata(&image).unwrap().blocks() * 512 <= written + (1 << 20));
    let again = restore_volume(objects, info, &image, VolumeOptions::default(), &mut |_| {});
    assert!(
        matches!(again, Err(Failure::Local { source, .. }) if source.kind() == std::io::ErrorKind::AlreadyExists)
    );
    let replace = VolumeOptions { existing: Existing::Replace };
    assert_eq!(restore_volume(objects, info, &image, replace, &mut |_| {}).unwrap(), written);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn nothing_gives_rights_unless_asked_for() {
    let mut all = snapshots("07-special", &["full.zstream"]);
    all.extend(snapshots("06-xattr", &["sa-auto-full.zstream"]));
    let mut left_out = (0, 0);
    for objects in all {
        let fs = Filesystem::open(objects).unwrap();
        let target = tempfile::tempdir().unwrap();
        let mut heard = Heard::default();
        let summary =
            restore(&fs, fs.root(), b"", target.path(), RestoreOptions::default(), &mut heard).unwrap();
        let (mut lending, mut devices) = (0, 0);
        for event in Walk::new(&fs, fs.root()).unwrap() {
            let Event::Node(node) = event.unwrap() else { continue };
            let kind = node.attributes.kind();
            // A character device (0, 0) is a marker of overlay filesystems.
            let is_mark = kind == FileKind::CharDevice && node.attributes.rdev == Some((0, 0));
            let is_device = !is_mark && matches!(kind, FileKind::BlockDevice | FileKind::CharDevice);
            let path = target.path().join(OsStr::from_bytes(&node.path));
            let Ok(found) = std::fs::symlink_metadata(&path) else {
                assert!(is_device, "{}", path.display());
                devices += 1;
                continue;
            };
            assert!(!is_device, "{}", path.display());
            if kind == FileKind::File {
                lending += u64::from(node.attributes.permissions() & 0o6000 != 0);
                assert_eq!(found.mode() & 0o6000, 0, "{}", path.display());
            }
            assert_eq!(xattr::get(&path, "security.capability").unwrap_or_default(), None);
        }
        assert_eq!((summary.left_out.setuid, summary.left_out.devices), (lending, devices));
        left_out = (left_out.0 + lending, left_out.1 + devices);
    }
    assert!(left_out.0 > 2 && left_out.1 > 0, "{left_out:?}");
}
