//! The differences are those that `zfs diff` would print.

#![allow(clippy::unwrap_used)]

#[path = "../../zpl/tests/common/build.rs"]
mod build;
#[path = "../../zpl/tests/common/mod.rs"]
mod common;

use build::{Builder, ROOT, Znode, micro_zap};
use snowmelt_fs::diff::{Differ, Format};
use snowmelt_fs::{Event, FsError, Walk};
use snowmelt_zpl::memory::MemoryObjects;
use snowmelt_zpl::{Endian, FileKind, Filesystem};
use std::collections::{BTreeMap, BTreeSet};

/// Numbers of objects whose dnode, data or spill block differs.
fn changed(from: &MemoryObjects, to: &MemoryObjects) -> Vec<u64> {
    let all: BTreeSet<u64> = from.objects.keys().chain(to.objects.keys()).copied().collect();
    let differs = |object: &u64| match (from.objects.get(object), to.objects.get(object)) {
        (Some(from), Some(to)) => {
            from.dnode != to.dnode || from.blocks != to.blocks || from.spill != to.spill
        }
        _ => true,
    };
    all.into_iter().filter(differs).collect()
}

fn diff(from: &MemoryObjects, to: &MemoryObjects, format: &Format) -> String {
    let objects = changed(from, to);
    let (from, to) = (Filesystem::open(from).unwrap(), Filesystem::open(to).unwrap());
    let mut out = Vec::new();
    let objects = objects.into_iter().map(Ok::<u64, FsError>);
    Differ::new(&from, &to).write(objects, format, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn before() -> Builder {
    let mut builder = Builder::new(Endian::Little);
    let names: [(&[u8], u64); 6] = [
        (b"changed", 10),
        (b"gone", 11),
        (b"old name\xff", 12),
        (b"d", 13),
        (b"reused", 14),
        (b"touched", 16),
    ];
    builder.directory(ROOT, ROOT, &names);
    builder.directory(13, ROOT, &[(b"linked", 15)]);
    for object in [10, 11, 12, 14, 16] {
        builder.file(object, Znode::default(), b"one");
    }
    builder.file(15, Znode { parent: 13, ..Znode::default() }, b"one");
    builder
}

fn after() -> Builder {
    let mut builder = before();
    let names: [(&[u8], u64); 7] = [
        (b"changed", 10),
        (b"new", 17),
        (b"d", 13),
        (b"reused", 14),
        (b"touched", 16),
        (b"second", 15),
        (b"back\\slash", 12),
    ];
    builder.directory(ROOT, ROOT, &names);
    let later = Znode { ctime: 2000, ..Znode::default() };
    builder.file(10, later, b"two");
    builder.objects.objects.remove(&11);
    builder.file(12, later, b"one");
    builder.file(14, Znode { generation: 9, ..later }, b"another");
    builder.file(15, Znode { links: 2, parent: 13, ..later }, b"one");
    // A change that does not count, for example of the access time.
    builder.objects.objects.get_mut(&16).unwrap().dnode.bonus[0] ^= 1;
    builder.file(17, later, b"new");
    builder
}

#[test]
fn each_kind_of_change_has_its_line() {
    let found = diff(&before().objects, &after().objects, &Format::default());
    let expected = "M\t/changed\n-\t/gone\nR\t/old\\0040name\\0377 -> /back\\0134slash\n\
                    -\t/reused\n+\t/reused\nM\t/d/linked\t(+1)\n+\t/new\n";
    assert_eq!(found, expected);
    // The opposite direction. A file whose parent no longer contains it has no path.
    let back = diff(&after().objects, &before().objects, &Format::default());
    assert!(
        back.contains("+\t/gone\n") && back.contains("-\t/new\n") && back.contains("M\t/d/linked\t(-1)\n"),
        "{back}"
    );
}

#[test]
fn formats_are_those_of_zfs_diff() {
    let format = Format {
        prefix: b"/tank/a b".to_vec(),
        scripted: true,
        classify: true,
        timestamps: true,
        no_mangle: false,
    };
    let found = diff(&before().objects, &after().objects, &format);
    let rename =
        "      2000.000000000\tR\tF\t/tank/a\\0040b/old\\0040name\\0377\t/tank/a\\0040b/back\\0134slash\n";
    assert!(found.contains(rename), "{found}");
    let (from, to) = (before().objects, after().objects);
    let (from, to) = (Filesystem::open(from).unwrap(), Filesystem::open(to).unwrap());
    let mut out = Vec::new();
    let plain = Format { no_mangle: true, ..Format::default() };
    let objects = [Ok::<u64, FsError>(12)];
    Differ::new(&from, &to).write(objects, &plain, &mut out).unwrap();
    assert_eq!(out, b"R\t/old name\xff -> /back\\slash\n");
}

#[test]
fn files_removed_while_open_are_on_the_delete_queue() {
    let (from, mut to) = (before(), before());
    to.put(2, 22, 0, Vec::new(), &micro_zap(Endian::Little, &[(b"b", 11)]));
    to.file(11, Znode { links: 0, ctime: 2000, ..Znode::default() }, b"one");
    let found = diff(&from.objects, &to.objects, &Format::default());
    assert_eq!(found, "R\t/gone -> (on_delete_queue)\n");
    let mut gone = before();
    gone.objects.objects.remove(&11);
    assert_eq!(diff(&to.objects, &gone.objects, &Format::default()), "");
}

/// Every path that is in only one snapshot is listed, on its own line or as one side of a rename or link.
#[test]
fn real_snapshots_differ_as_their_paths_do() {
    for (case, full, increment) in
        [("07-special", "full.zstream", "inc.zstream"), ("05-names", "full.zstream", "inc.zstream")]
    {
        let Some(files) = common::case(case) else { continue };
        let mut received = common::Received::default();
        let from = received.receive(&files[full])[0];
        let to = received.receive(&files[increment])[0];
        let (from, to) = (&*received.snapshots[&from], &*received.snapshots[&to]);
        let format = Format { no_mangle: true, scripted: true, ..Format::default() };
        let objects = changed(from, to).into_iter().map(Ok::<u64, FsError>);
        let (from, to) = (Filesystem::open(from).unwrap(), Filesystem::open(to).unwrap());
        let mut out = Vec::new();
        Differ::new(&from, &to).write(objects, &format, &mut out).unwrap();
        let (old, new) = (paths(&from), paths(&to));
        let (mut added, mut removed) = (0, 0);
        let text = String::from_utf8_lossy(&out).into_owned();
        let lines: BTreeSet<&str> = text.lines().collect();
        for (path, object) in &new {
            if !old.contains_key(path) && !from.objects().objects.contains_key(object) {
                assert!(lines.contains(format!("+\t/{path}").as_str()), "{case}: {path} is new");
                added += 1;
            }
        }
        for (path, object) in &old {
            if !new.contains_key(path) && !to.objects().objects.contains_key(object) {
                assert!(lines.contains(format!("-\t/{path}").as_str()), "{case}: {path} is gone");
                removed += 1;
            }
        }
        assert!(added + removed > 0, "{case}: nothing to compare");
    }
}

/// Object numbers by path, for files with one name. For a file with several names, the directory decides which one is
/// listed.
fn paths(fs: &Filesystem<&MemoryObjects>) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for event in Walk::new(fs, fs.root()).unwrap() {
        if let Event::Node(node) = event.unwrap() {
            let plain = node.attributes.kind() == FileKind::Directory || node.attributes.links == 1;
            match String::from_utf8(node.path) {
                Ok(path) if plain && !path.contains('\n') => _ = found.insert(path, node.object),
                _ => {}
            }
        }
    }
    found
}
