//! Tests with hostile trees, which no real system creates: loops, impossible names, false information.

#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../../zpl/tests/common/build.rs"]
mod build;

use build::{Builder, ROOT, Znode};
use snowmelt_fs::manifest::manifest;
use snowmelt_fs::restore::{Failure, Observer, RestoreOptions, restore};
use snowmelt_fs::{Event, FsError, Walk, list, resolve};
use snowmelt_zpl::memory::MemoryObjects;
use snowmelt_zpl::{Endian, Filesystem};

#[derive(Default)]
struct Heard(Vec<Failure>);

impl Observer for Heard {
    fn failure(&mut self, failure: Failure) {
        self.0.push(failure);
    }
}

fn paths(fs: &Filesystem<MemoryObjects>) -> (Vec<String>, Vec<FsError>) {
    let (mut paths, mut errors) = (Vec::new(), Vec::new());
    for event in Walk::new(fs, fs.root()).unwrap() {
        match event {
            Ok(Event::Node(node)) => paths.push(String::from_utf8(node.path).unwrap()),
            Ok(_) => {}
            Err(error) => errors.push(error),
        }
    }
    (paths, errors)
}

#[test]
fn paths_come_in_the_order_of_whole_paths() {
    let mut builder = Builder::new(Endian::Little);
    builder.directory(ROOT, ROOT, &[(b"a", 10), (b"a.txt", 12), (b"a0", 13), (b"-x", 14)]);
    builder.directory(10, ROOT, &[(b"b", 11), (b"!", 15)]);
    builder.directory(11, 10, &[(b"deep", 16)]);
    builder.directory(14, ROOT, &[(b"in", 17)]);
    for file in [12, 13, 15, 16, 17] {
        builder.file(file, Znode::default(), b"x");
    }
    let fs = Filesystem::open(builder.objects).unwrap();
    let (found, errors) = paths(&fs);
    assert!(errors.is_empty(), "{errors:?}");
    let mut sorted = found.clone();
    sorted.sort();
    assert_eq!(found, sorted);
    assert_eq!(found, ["-x", "-x/in", ".", "a", "a.txt", "a/!", "a/b", "a/b/deep", "a0"]);
}

#[test]
fn every_enter_has_its_leave() {
    let mut builder = Builder::new(Endian::Big);
    builder.directory(ROOT, ROOT, &[(b"a", 10), (b"z", 11)]);
    builder.directory(10, ROOT, &[(b"b", 12)]);
    builder.directory(12, 10, &[(b"missing", 99)]);
    builder.directory(11, ROOT, &[]);
    let fs = Filesystem::open(builder.objects).unwrap();
    let (mut open, mut errors) = (Vec::new(), 0);
    for event in Walk::new(&fs, fs.root()).unwrap() {
        match event {
            Ok(Event::Enter(node)) => open.push(node.object),
            Ok(Event::Leave(node)) => assert_eq!(open.pop(), Some(node.object)),
            Ok(Event::Node(_)) => {}
            Err(_) => errors += 1,
        }
    }
    assert_eq!((open.len(), errors), (0, 1));
}

#[test]
fn loops_and_directories_linked_twice_end() {
    let mut builder = Builder::new(Endian::Little);
    builder.directory(ROOT, ROOT, &[(b"down", 10), (b"self", ROOT)]);
    builder.directory(10, ROOT, &[(b"up", ROOT), (b"one", 11), (b"two", 11)]);
    builder.directory(11, 10, &[(b"a", 12), (b"b", 12)]);
    builder.directory(12, 11, &[(b"f", 13)]);
    builder.file(13, Znode::default(), b"x");
    let fs = Filesystem::open(builder.objects).unwrap();
    let (found, errors) = paths(&fs);
    assert!(found.contains(&"down/one/a/f".to_owned()), "{found:?}");
    assert!(errors.iter().all(|error| matches!(error, FsError::DirectoryTwice { .. })));
    assert_eq!(errors.len(), 4);
    assert!(manifest(&fs, &mut Vec::new()).is_err());
}

#[test]
fn impossible_names_are_never_restored() {
    let outer = tempfile::tempdir().unwrap();
    let target = outer.path().join("in/here");
    std::fs::create_dir(outer.path().join("in")).unwrap();
    let mut builder = Builder::new(Endian::Little);
    builder.directory(
        ROOT,
        ROOT,
        &[(b"..", 10), (b".", 11), (b"a/b", 12), (b"../../up", 12), (b"good", 12), (b"ln", 13)],
    );
    builder.directory(10, ROOT, &[(b"escaped", 12)]);
    builder.directory(11, ROOT, &[(b"also", 12)]);
    builder.file(12, Znode { links: 7, ..Znode::default() }, b"payload");
    builder.symlink(13, b"/etc/passwd");
    let fs = Filesystem::open(builder.objects).unwrap();
    let mut heard = Heard::default();
    let summary = restore(&fs, ROOT, b"", &target, RestoreOptions::default(), &mut heard).unwrap();
    assert_eq!((summary.files, summary.symlinks, summary.failures), (1, 1, 4), "{:?}", heard.0);
    assert!(heard.0.iter().all(|failure| matches!(failure, Failure::Source(FsError::BadName { .. }))));
    assert_eq!(std::fs::read(target.join("good")).unwrap(), b"payload");
    assert_eq!(std::fs::read_link(target.join("ln")).unwrap().to_str(), Some("/etc/passwd"));
    let count = |path: &std::path::Path| std::fs::read_dir(path).unwrap().count();
    assert_eq!((count(outer.path()), count(&outer.path().join("in")), count(&target)), (1, 1, 2));
}

#[test]
fn deep_trees_are_walked_and_restored() {
    const DEPTH: u64 = 400;
    let mut builder = Builder::new(Endian::Little);
    builder.directory(ROOT, ROOT, &[(b"d", 10)]);
    for object in 10..10 + DEPTH {
        builder.directory(object, object - 1, &[(b"d", object + 1), (b"f", 5000)]);
    }
    builder.directory(10 + DEPTH, 9 + DEPTH, &[]);
    builder.file(5000, Znode { links: DEPTH, ..Znode::default() }, b"x");
    let fs = Filesystem::open(builder.objects).unwrap();
    let target = tempfile::tempdir().unwrap();
    let mut heard = Heard::default();
    let summary = restore(&fs, ROOT, b"", target.path(), RestoreOptions::default(), &mut heard).unwrap();
    assert!(heard.0.is_empty(), "{:?}", heard.0);
    assert_eq!((summary.directories, summary.files, summary.hardlinks), (DEPTH + 1, 1, DEPTH - 1));
}

#[test]
fn paths_are_resolved_without_following_links() {
    let mut builder = Builder::new(Endian::Big);
    builder.directory(ROOT, ROOT, &[(b"a", 10), (b"link", 13), (b"file", 12)]);
    builder.directory(10, ROOT, &[(b"b", 12)]);
    builder.file(12, Znode::default(), b"x");
    builder.symlink(13, b"a");
    let fs = Filesystem::open(builder.objects).unwrap();
    for (path, object) in [
        ("", ROOT),
        ("/", ROOT),
        ("a", 10),
        ("/a/", 10),
        ("a//b", 12),
        ("./a/../a/./b", 12),
        ("link", 13),
        ("../..", ROOT),
    ] {
        assert_eq!(resolve(&fs, path.as_bytes()).unwrap(), object, "{path}");
    }
    assert!(matches!(resolve(&fs, b"a/x"), Err(FsError::NotFound { path }) if path == b"a/x"));
    assert!(matches!(resolve(&fs, b"link/b"), Err(FsError::NotADirectory { path }) if path == b"link"));
    assert!(matches!(resolve(&fs, b"file/"), Err(FsError::NotADirectory { .. })));
    let listed = list(&fs, b"", ROOT).unwrap().entries;
    assert_eq!(
        listed.iter().map(|entry| entry.mode_string()).collect::<Vec<_>>(),
        ["drwxr-xr-x", "-rw-r--r--", "lrwxrwxrwx"]
    );
    assert_eq!(listed[2].target.as_deref(), Some(&b"a"[..]));
}

#[test]
fn entries_that_cannot_be_read_do_not_hide_the_others() {
    let mut builder = Builder::new(Endian::Little);
    builder.directory(ROOT, ROOT, &[(b"a", 12), (b"bad\x1b[2J\nfile", 99), (b"z", 12)]);
    builder.file(12, Znode::default(), b"x");
    let fs = Filesystem::open(builder.objects).unwrap();
    let listing = list(&fs, b"", ROOT).unwrap();
    let names: Vec<&[u8]> = listing.entries.iter().map(|entry| &entry.name[..]).collect();
    assert_eq!(names, [b"a", b"z"]);
    let [failure] = &listing.failures[..] else { panic!("{:?}", listing.failures) };
    // The message is on one line and contains no terminal control characters.
    let told = failure.to_string();
    assert!(told.contains("bad\\033[2J\\nfile") && !told.contains(char::is_control), "{told}");
}
