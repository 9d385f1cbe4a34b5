//! Tests of single operations and their results.

use super::*;
use crate::attributes::FileKind;
use crate::memory::{MemoryObjects, MemoryObjset};
use crate::source::Objects;
use crate::{CaseSensitivity, normalize::NormFlags};
use std::sync::Arc;

type Fs = FilesystemMut<Arc<MemoryObjset>>;

fn caller(now: i64) -> Caller {
    Caller { uid: 1000, gid: 100, umask: 0, now: Timestamp { seconds: now, nanoseconds: 5 } }
}

fn filesystem(new: NewFilesystem, options: WriteOptions) -> (Arc<MemoryObjset>, Fs) {
    let objects = Arc::new(MemoryObjset::default());
    create_filesystem(&*objects, &objects.begin(Room::Write(NewFilesystem::ROOM)).unwrap(), &new).unwrap();
    let fs = FilesystemMut::open(objects.clone(), options, 7).unwrap();
    (objects, fs)
}

fn plain() -> (Arc<MemoryObjset>, Fs) {
    filesystem(NewFilesystem::default(), WriteOptions::default())
}

fn node(kind: NewKind<'_>) -> NewNode<'_> {
    NewNode { kind, permissions: 0o644 }
}

fn unused(_: u64) -> bool {
    false
}

fn reader(objects: &MemoryObjset) -> Filesystem<MemoryObjects> {
    Filesystem::open(objects.snapshot()).unwrap()
}

fn content(fs: &Fs, object: u64) -> Vec<u8> {
    let mut buf = vec![0xaa; fs.attributes(object).unwrap().size as usize];
    assert_eq!(fs.read(object, 0, &mut buf).unwrap(), buf.len());
    buf
}

#[test]
fn all_kinds_are_made_and_read_back() {
    let (objects, fs) = plain();
    let root = fs.root();
    for (name, kind, expected) in [
        ("file", NewKind::File, FileKind::File),
        ("dir", NewKind::Directory, FileKind::Directory),
        ("link", NewKind::Symlink(b"some/where"), FileKind::Symlink),
        ("fifo", NewKind::Fifo, FileKind::Fifo),
        ("sock", NewKind::Socket, FileKind::Socket),
        ("chr", NewKind::CharDevice(5, 1), FileKind::CharDevice),
        ("blk", NewKind::BlockDevice(259, 70000), FileKind::BlockDevice),
    ] {
        let made = fs.create(root, name.as_bytes(), node(kind), &caller(50)).unwrap();
        assert_eq!((made.kind(), made.permissions(), made.uid, made.gid), (expected, 0o644, 1000, 100));
        assert_eq!((made.crtime.seconds, made.parent), (50, root));
        let again = fs.create(root, name.as_bytes(), node(kind), &caller(50));
        assert_eq!(again.unwrap_err().errno(), 17);
    }
    let read = reader(&objects);
    let attributes = read.attributes(root).unwrap();
    assert_eq!((attributes.size, attributes.links, attributes.mtime.seconds), (9, 3, 50));
    let link = read.lookup(root, b"link").unwrap().unwrap();
    assert_eq!(read.readlink(link.object).unwrap(), b"some/where");
    let blk = read.lookup(root, b"blk").unwrap().unwrap();
    assert_eq!(read.attributes(blk.object).unwrap().rdev, Some((259, 70000)));
    assert_eq!(read.nfs4_acl(blk.object).unwrap().len(), 3);
    let names = fs.read_dir(root, Cursor::START, 100).unwrap();
    assert_eq!(names.len(), 7);
    let mut offset = 0;
    for entry in &names {
        let some = fs.read_dir_at(root, offset, 1).unwrap();
        assert_eq!((&some[0].0, some.len()), (entry, 1));
        offset = some[0].1;
    }
    assert!(fs.read_dir_at(root, offset, 1).unwrap().is_empty());
}

#[test]
fn blocks_grow_to_the_record_size_and_no_further() {
    let (objects, fs) = plain();
    let size_of = |object| objects.dnode(object).unwrap().unwrap().block_size;
    let file = fs.create(fs.root(), b"f", node(NewKind::File), &caller(1)).unwrap().object;
    for (offset, len, expected) in
        [(0, 1, 512), (1, 600, 1024), (601, 4096, 5120), (4697, 200_000, 131_072), (204_697, 9, 131_072)]
    {
        assert_eq!(fs.write(file, offset, &vec![7; len], &caller(2)).unwrap(), len);
        assert_eq!(size_of(file), expected);
    }
    assert_eq!(content(&fs, file), vec![7; 204_706]);
    let sparse = fs.create(fs.root(), b"s", node(NewKind::File), &caller(1)).unwrap().object;
    fs.truncate(sparse, 1000, &caller(1)).unwrap();
    assert_eq!(size_of(sparse), 1024);
    fs.truncate(sparse, 10 << 30, &caller(1)).unwrap();
    assert_eq!(size_of(sparse), 131_072);
    assert_eq!(fs.next_extent(sparse, 0).unwrap(), None);
    fs.write(sparse, 5 << 30, b"x", &caller(1)).unwrap();
    assert_eq!(fs.next_extent(sparse, 0).unwrap(), Some((5 << 30, (5 << 30) + 131_072)));
    fs.truncate(sparse, i64::MAX as u64, &caller(1)).unwrap();
    assert_eq!(fs.truncate(sparse, 1 << 63, &caller(1)).unwrap_err().errno(), 27);
    assert_eq!(fs.write(sparse, i64::MAX as u64, b"x", &caller(1)).unwrap_err().errno(), 27);
    assert_eq!(fs.write(sparse, i64::MAX as u64 - 1, b"xy", &caller(1)).unwrap(), 1);
}

#[test]
fn case_and_form_of_names() {
    let names =
        NamePolicy { case: CaseSensitivity::Insensitive, normalization: NormFlags::NFD, utf8_only: true };
    let (objects, fs) =
        filesystem(NewFilesystem { names, ..NewFilesystem::default() }, WriteOptions::default());
    let root = fs.root();
    let file = fs.create(root, b"Caf\xc3\xa9", node(NewKind::File), &caller(1)).unwrap().object;
    let same = fs.create(root, "CAFE\u{301}".as_bytes(), node(NewKind::File), &caller(1));
    assert_eq!(same.unwrap_err().errno(), 17);
    assert_eq!(fs.create(root, b"\xff", node(NewKind::File), &caller(1)).unwrap_err().errno(), 84);
    fs.rename((root, b"caf\xc3\xa9"), (root, b"CAF\xc3\x89"), RenameMode::NoReplace, &caller(2), unused)
        .unwrap();
    let entry = reader(&objects).lookup(root, b"cafe\xcc\x81").unwrap().unwrap();
    assert_eq!((entry.name, entry.object), (b"CAF\xc3\x89".to_vec(), file));
    assert_eq!(fs.attributes(root).unwrap().size, 3);
    fs.unlink(root, b"caf\xc3\xa9", &caller(3), unused).unwrap();
    assert!(objects.dnode(file).unwrap().is_none());
}

/// Checks that lookups through `fs` and through a new reader agree for all `names`.
fn assert_found(objects: &MemoryObjset, fs: &Fs, directory: u64, names: impl IntoIterator<Item = Vec<u8>>) {
    let read = reader(objects);
    for name in names {
        let expected = read.lookup(directory, &name).unwrap();
        // The first lookup may find the directory kept without an index. The second one uses the index.
        assert_eq!(fs.lookup(directory, &name).unwrap(), expected, "{:?}", String::from_utf8_lossy(&name));
        assert_eq!(fs.lookup(directory, &name).unwrap(), expected);
    }
}

#[test]
fn directories_that_are_kept_are_as_they_are_stored() {
    let (objects, fs) = plain();
    let root = fs.root();
    let numbered = |number: u64| format!("name-{number}").into_bytes();
    let all = || (0..300).map(numbered);
    let directory = fs.create(root, b"d", node(NewKind::Directory), &caller(1)).unwrap().object;
    let salts = Salts::new(5);
    for round in 0..3000 {
        let (name, other) = (numbered(salts.next() % 300), numbered(salts.next() % 300));
        match salts.next() % 4 {
            0 | 1 => drop(fs.create(directory, &name, node(NewKind::File), &caller(round))),
            2 => drop(fs.unlink(directory, &name, &caller(round), unused)),
            _ => {
                let (from, to) = ((directory, &name[..]), (directory, &other[..]));
                drop(fs.rename(from, to, RenameMode::Replace, &caller(round), unused));
            }
        }
        if round % 500 == 0 {
            assert_found(&objects, &fs, directory, all());
        }
    }
    assert_found(&objects, &fs, directory, all());
    // A full micro ZAP becomes a fat ZAP.
    for number in 300..3000 {
        fs.create(directory, &numbered(number), node(NewKind::File), &caller(9)).unwrap();
    }
    assert_found(&objects, &fs, directory, (0..3000).step_by(7).map(numbered));
}

#[test]
fn a_directory_with_the_number_of_a_removed_one_is_another() {
    let (objects, fs) = plain();
    let root = fs.root();
    let first = fs.create(root, b"d", node(NewKind::Directory), &caller(1)).unwrap().object;
    for round in 0..3 {
        fs.create(first, b"f", node(NewKind::File), &caller(1)).unwrap();
        assert_found(&objects, &fs, first, [b"f".to_vec(), b"g".to_vec()]);
        fs.unlink(first, b"f", &caller(1), unused).unwrap();
        // Look up a name in the directory after its own name was removed.
        fs.rmdir(root, b"d", &caller(1), |_| true).unwrap();
        assert_eq!(fs.lookup(first, b"f").unwrap(), None);
        assert!(fs.release(first).unwrap());
        objects.give_next(first);
        let made = fs.create(root, b"d", node(NewKind::Directory), &caller(1)).unwrap();
        assert_eq!(made.object, first, "round {round}");
        assert_eq!(fs.lookup(first, b"f").unwrap(), None);
    }
    fs.create(first, b"f", node(NewKind::File), &caller(1)).unwrap();
    assert_found(&objects, &fs, first, [b"f".to_vec()]);
}

#[test]
fn more_directories_than_are_kept() {
    let (objects, fs) = plain();
    let root = fs.root();
    let directories: Vec<u64> = (0..40)
        .map(|number: u32| {
            let name = number.to_string().into_bytes();
            fs.create(root, &name, node(NewKind::Directory), &caller(1)).unwrap().object
        })
        .collect();
    let name = |number: u32| format!("a name that is long enough, {number}").into_bytes();
    for number in 0..1500 {
        for directory in &directories {
            fs.create(*directory, &name(number), node(NewKind::File), &caller(2)).unwrap();
        }
    }
    for directory in &directories {
        assert_found(&objects, &fs, *directory, (0..1600).step_by(100).map(name));
        assert_eq!(fs.attributes(*directory).unwrap().size, 1502);
    }
}

#[test]
fn a_file_made_at_once_is_as_one_made_step_by_step() {
    let (objects, fs) = plain();
    let root = fs.root();
    let time = |seconds| Timestamp { seconds, nanoseconds: 17 };
    for (at, len) in [0, 1, 511, 512, 513, 100_000, 131_072, 131_073, 1_000_000].into_iter().enumerate() {
        let content_of = vec![at as u8 + 1; len];
        let steps =
            fs.create(root, format!("steps-{at}").as_bytes(), node(NewKind::File), &caller(9)).unwrap();
        fs.write(steps.object, 0, &content_of, &caller(9)).unwrap();
        let set = SetAttributes {
            uid: Some(7),
            gid: Some(8),
            permissions: Some(0o4751),
            atime: Some(SetTime::To(time(3))),
            mtime: Some(SetTime::To(time(4))),
            ..SetAttributes::default()
        };
        let expected = fs.set_attributes(steps.object, &set, &caller(9)).unwrap();
        let new = NewFile {
            permissions: 0o4751,
            uid: Some(7),
            gid: Some(8),
            atime: Some(time(3)),
            mtime: Some(time(4)),
            content: &content_of,
        };
        let name = format!("once-{at}").into_bytes();
        let made = fs.create_file(root, &name, &new, &caller(9)).unwrap();
        assert_eq!(
            Attributes { object: expected.object, ..made },
            Attributes { generation: made.generation, ..expected }
        );
        assert_eq!(content(&fs, made.object), content_of);
        let dnode = |object| objects.dnode(object).unwrap().unwrap();
        let (one, other) = (dnode(made.object), dnode(steps.object));
        assert_eq!((one.block_size, one.bonus.len()), (other.block_size, other.bonus.len()));
        assert_eq!(fs.create_file(root, &name, &new, &caller(9)).unwrap_err().errno(), 17);
    }
    let large = vec![0; CONTENT_MAX + 1];
    let new = NewFile { permissions: 0o600, uid: None, gid: None, atime: None, mtime: None, content: &large };
    assert_eq!(fs.create_file(root, b"large", &new, &caller(9)).unwrap_err().errno(), 27);
    assert_eq!(fs.lookup(root, b"large").unwrap(), None);
    let new = NewFile { content: b"x", ..new };
    let made = fs.create_file(root, b"small", &new, &caller(9)).unwrap();
    assert_eq!((made.uid, made.gid, made.atime.seconds, made.mtime.seconds), (1000, 100, 9, 9));
}
