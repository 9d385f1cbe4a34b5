//! Tests of names: links, removal, renaming, and names that must be refused.

#![allow(clippy::unwrap_used)]

#[path = "common/fsck.rs"]
mod fsck;
#[path = "common/writing.rs"]
mod writing;

use snowmelt_zpl::{
    Caller, FilesystemMut, NewFilesystem, NewKind, NewNode, Objects, RenameMode, SetAttributes, WriteOptions,
    ZfsFlags,
};
use writing::*;

fn rename(fs: &Fs, from: (u64, &str), to: (u64, &str), mode: RenameMode) -> Result<bool, i32> {
    let removed = fs.rename((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()), mode, &at(50), unused);
    removed.map(|removed| removed.is_some()).map_err(|error| error.errno())
}

#[test]
fn what_is_open_outlives_its_name() {
    let (objects, fs) = plain();
    let open = file(&fs, "open");
    fs.write(open, 0, b"still there", &at(11)).unwrap();
    let removed = fs.unlink(fs.root(), b"open", &at(12), used).unwrap();
    assert_eq!((removed.object, removed.links, removed.kept), (open, 0, true));
    fs.write(open, 11, b", and more", &at(13)).unwrap();
    assert_eq!(content(&objects, open), b"still there, and more");
    assert!(fsck::check(&objects.snapshot()).unlinked.contains(&open));
    assert!(fs.release(open).unwrap());
    assert!(objects.dnode(open).unwrap().is_none());
    assert!(!fs.release(open).unwrap());
    assert!(!fs.release(fs.root()).unwrap());
    fsck::check(&objects.snapshot());

    // The same is true for a directory. Both are removed after a crash.
    let (kept, dir) = (file(&fs, "kept"), directory(&fs, "dir"));
    fs.set_xattr(kept, b"user.large", &[1; 40_000], Default::default(), &at(13)).unwrap();
    fs.unlink(fs.root(), b"kept", &at(14), used).unwrap();
    fs.rmdir(fs.root(), b"dir", &at(14), used).unwrap();
    assert_eq!(errno(fs.create(dir, b"x", NewNode { kind: NewKind::File, permissions: 0 }, &at(15))), ENOENT);
    let again = FilesystemMut::open(objects.clone(), WriteOptions::default(), 1).unwrap();
    assert_eq!(fsck::check(&objects.snapshot()).unlinked, [kept, dir].into());
    assert_eq!(again.drain_unlinked().unwrap(), 2);
    assert_eq!(again.drain_unlinked().unwrap(), 0);
    fsck::check(&objects.snapshot());
}

#[test]
fn what_was_made_without_a_name_may_get_one() {
    let (objects, fs) = plain();
    let first = fs.create_unnamed(fs.root(), 0o600, &at(11)).unwrap();
    assert_eq!((first.links, first.permissions()), (0, 0o600));
    fs.write(first.object, 0, b"data", &at(12)).unwrap();
    assert_eq!(fs.link(first.object, fs.root(), b"named", &at(13)).unwrap().links, 1);
    let second = fs.create_unnamed(fs.root(), 0o600, &at(11)).unwrap();
    fsck::check(&objects.snapshot());
    assert!(!fs.release(first.object).unwrap());
    assert!(fs.release(second.object).unwrap());
    let tree = fsck::check(&objects.snapshot());
    assert_eq!(tree.names.len(), 1);
}

#[test]
fn links_are_counted() {
    let (objects, fs) = plain();
    let (one, dir) = (file(&fs, "one"), directory(&fs, "dir"));
    assert_eq!(fs.link(one, dir, b"two", &at(20)).unwrap().links, 2);
    assert_eq!(fs.attributes(one).unwrap().ctime.seconds, 20);
    assert_eq!(errno(fs.link(one, dir, b"two", &at(20))), EEXIST);
    assert_eq!(errno(fs.link(dir, fs.root(), b"three", &at(20))), EPERM);
    assert_eq!(errno(fs.link(one, one, b"three", &at(20))), ENOTDIR);
    assert_eq!(errno(fs.link(999, dir, b"three", &at(20))), ENOENT);
    let removed = fs.unlink(fs.root(), b"one", &at(21), unused).unwrap();
    assert_eq!((removed.links, removed.kept), (1, false));
    assert_eq!(fs.attributes(one).unwrap().ctime.seconds, 21);
    assert_eq!(errno(fs.unlink(fs.root(), b"dir", &at(21), unused)), EISDIR);
    assert_eq!(errno(fs.rmdir(fs.root(), b"dir", &at(21), unused)), ENOTEMPTY);
    assert_eq!(errno(fs.rmdir(dir, b"two", &at(21), unused)), ENOTDIR);
    fs.unlink(dir, b"two", &at(22), unused).unwrap();
    fs.rmdir(fs.root(), b"dir", &at(22), unused).unwrap();
    assert_eq!(errno(fs.unlink(fs.root(), b"dir", &at(22), unused)), ENOENT);
    let tree = fsck::check(&objects.snapshot());
    assert_eq!((tree.nodes.len(), tree.nodes[&fs.root()].links), (1, 2));
}

#[test]
fn impossible_names_are_refused() {
    let (_, fs) = plain();
    let new = NewNode { kind: NewKind::File, permissions: 0o644 };
    for (name, expected) in [
        (&b""[..], EINVAL),
        (b".", EINVAL),
        (b"..", EINVAL),
        (b"a/b", EINVAL),
        (b"a\0b", EINVAL),
        (&[b'x'; 256], ENAMETOOLONG),
    ] {
        assert_eq!(errno(fs.create(fs.root(), name, new, &at(1))), expected, "{name:?}");
        assert_eq!(
            errno(fs.rename((fs.root(), b"x"), (fs.root(), name), RenameMode::Replace, &at(1), unused)),
            expected
        );
    }
    let every: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
    for name in [&[b'x'; 255][..], &every, b"\xff", b" ", b"\n", b"..."] {
        fs.create(fs.root(), name, new, &at(1)).unwrap();
        assert!(fs.lookup(fs.root(), name).unwrap().is_some());
    }
    let long = [b'x'; 4096];
    let link = |len: usize| NewNode { kind: NewKind::Symlink(&long[..len]), permissions: 0o777 };
    assert_eq!(errno(fs.create(fs.root(), b"link", link(4096), &at(1))), ENAMETOOLONG);
    assert_eq!(errno(fs.create(fs.root(), b"link", link(0), &at(1))), EINVAL);
}

#[test]
fn symbolic_links_of_every_length() {
    for slots in [1, 2] {
        let options = WriteOptions { dnode_slots: slots, ..WriteOptions::default() };
        let (objects, fs) = make(NewFilesystem::default(), options);
        let target: Vec<u8> = (0..4095u32).map(|n| b'a' + (n % 26) as u8).collect();
        let lengths = (1..700).chain((700..4095).step_by(97)).chain([4094, 4095]);
        let mut spilled = Vec::new();
        for len in lengths {
            let object = create(&fs, fs.root(), &format!("l{len}"), NewKind::Symlink(&target[..len]));
            assert_eq!(fs.readlink(object).unwrap(), &target[..len]);
            assert_eq!(fs.attributes(object).unwrap().size, len as u64);
            if objects.dnode(object).unwrap().unwrap().has_spill {
                spilled.push(len);
            }
        }
        // The first length that does not fit the bonus buffer, with 160 bytes of attributes and two lengths.
        let room = 512 * usize::from(slots) - 192;
        assert_eq!(spilled.first(), Some(&(room - 16 - 160 + 1)));
        fsck::check(&objects.snapshot());
    }
}

#[test]
fn renaming_by_kind_of_source_and_target() {
    let kinds = [NewKind::File, NewKind::Directory, NewKind::Symlink(b"target")];
    for source in kinds {
        for target in [None, Some(kinds[0]), Some(kinds[1]), Some(kinds[2])] {
            for mode in [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange] {
                for same_directory in [true, false] {
                    let (objects, fs) = plain();
                    let from = directory(&fs, "from");
                    let to = if same_directory { from } else { directory(&fs, "to") };
                    let moved = create(&fs, from, "s", source);
                    let other = target.map(|target| create(&fs, to, "t", target));
                    let is_directory = |kind| kind == NewKind::Directory;
                    let expected = match (mode, target) {
                        (RenameMode::NoReplace, Some(_)) => Err(EEXIST),
                        (RenameMode::Exchange, None) => Err(ENOENT),
                        (RenameMode::Replace, Some(target)) => {
                            match (is_directory(source), is_directory(target)) {
                                (true, false) => Err(ENOTDIR),
                                (false, true) => Err(EISDIR),
                                _ => Ok(true),
                            }
                        }
                        _ => Ok(false),
                    };
                    let got = rename(&fs, (from, "s"), (to, "t"), mode);
                    assert_eq!(got, expected, "{source:?} {target:?} {mode:?}");
                    let tree = fsck::check(&objects.snapshot());
                    let find = |directory, name: &[u8]| tree.names.get(&(directory, name.to_vec())).copied();
                    let (new_s, new_t) = match (expected, mode) {
                        (Err(_), _) => (Some(moved), other),
                        (Ok(_), RenameMode::Exchange) => (other, Some(moved)),
                        _ => (None, Some(moved)),
                    };
                    assert_eq!((find(from, b"s"), find(to, b"t")), (new_s, new_t));
                    if expected.is_ok() {
                        assert_eq!(fs.attributes(moved).unwrap().parent, to);
                        assert_eq!(fs.attributes(from).unwrap().mtime.seconds, 50);
                        assert_eq!(fs.attributes(to).unwrap().mtime.seconds, 50);
                    }
                }
            }
        }
    }
}

#[test]
fn directories_do_not_get_below_themselves() {
    let (objects, fs) = plain();
    let a = directory(&fs, "a");
    let b = create(&fs, a, "b", NewKind::Directory);
    let c = create(&fs, b, "c", NewKind::Directory);
    let root = fs.root();
    assert_eq!(rename(&fs, (root, "a"), (c, "x"), RenameMode::Replace), Err(EINVAL));
    assert_eq!(rename(&fs, (root, "a"), (a, "x"), RenameMode::Replace), Err(EINVAL));
    assert_eq!(rename(&fs, (root, "a"), (b, "c"), RenameMode::Exchange), Err(EINVAL));
    assert_eq!(rename(&fs, (b, "c"), (root, "a"), RenameMode::Exchange), Err(EINVAL));
    assert_eq!(rename(&fs, (b, "c"), (root, "a"), RenameMode::Replace), Err(ENOTEMPTY));
    assert_eq!(rename(&fs, (a, "b"), (root, "a"), RenameMode::Replace), Err(ENOTEMPTY));
    assert_eq!(rename(&fs, (b, "c"), (root, "c"), RenameMode::Replace), Ok(false));
    assert_eq!(rename(&fs, (root, "a"), (c, "a"), RenameMode::NoReplace), Ok(false));
    let tree = fsck::check(&objects.snapshot());
    assert_eq!((tree.nodes[&c].parent, tree.nodes[&a].parent), (root, c));
}

#[test]
fn names_of_one_object_are_left_alone() {
    let (_, fs) = plain();
    let one = file(&fs, "one");
    fs.link(one, fs.root(), b"two", &at(20)).unwrap();
    let root = fs.root();
    for mode in [RenameMode::Replace, RenameMode::Exchange] {
        assert_eq!(rename(&fs, (root, "one"), (root, "two"), mode), Ok(false));
        assert_eq!(rename(&fs, (root, "one"), (root, "one"), mode), Ok(false));
    }
    assert_eq!(rename(&fs, (root, "one"), (root, "one"), RenameMode::NoReplace), Err(EEXIST));
    assert!(exists(&fs, root, "one") && exists(&fs, root, "two"));
    assert_eq!(fs.attributes(one).unwrap().ctime.seconds, 20);
}

#[test]
fn immutable_and_append_only() {
    let (objects, fs) = plain();
    let root = fs.root();
    let (fixed, growing, dir) = (file(&fs, "fixed"), file(&fs, "growing"), directory(&fs, "dir"));
    create(&fs, dir, "inside", NewKind::File);
    fs.write(growing, 0, b"abc", &at(11)).unwrap();
    let flags = |object, flags| {
        let set = SetAttributes { fs_ioc_flags: Some(flags), ..SetAttributes::default() };
        fs.set_attributes(object, &set, &at(12)).unwrap()
    };
    assert_eq!(flags(fixed, 0x10).flags.fs_ioc_flags(), 0x10);
    flags(growing, 0x20);
    for (object, name) in [(fixed, "fixed"), (growing, "growing")] {
        assert_eq!(errno(fs.unlink(root, name.as_bytes(), &at(13), unused)), EPERM);
        assert_eq!(rename(&fs, (root, name), (root, "x"), RenameMode::Replace), Err(EPERM));
        assert_eq!(rename(&fs, (dir, "inside"), (root, name), RenameMode::Replace), Err(EPERM));
        assert_eq!(errno(fs.link(object, root, b"x", &at(13))), EPERM);
        assert_eq!(errno(fs.truncate(object, 1, &at(13))), EPERM);
        assert_eq!(errno(fs.write(object, 0, b"x", &at(13))), EPERM);
        assert_eq!(errno(fs.set_xattr(object, b"user.x", b"", Default::default(), &at(13))), EPERM);
        let set = SetAttributes { permissions: Some(0), ..SetAttributes::default() };
        assert_eq!(errno(fs.set_attributes(object, &set, &at(13))), EPERM);
    }
    assert_eq!(fs.append(growing, b"def", &at(14)).unwrap(), (3, 3));
    assert_eq!(content(&objects, growing), b"abcdef");
    let new = NewNode { kind: NewKind::File, permissions: 0o644 };
    flags(dir, 0x20);
    fs.create(dir, b"another", new, &at(15)).unwrap();
    assert_eq!(errno(fs.unlink(dir, b"another", &at(15), unused)), EPERM);
    assert_eq!(rename(&fs, (dir, "inside"), (root, "x"), RenameMode::Replace), Err(EPERM));
    flags(dir, 0x10);
    assert_eq!(errno(fs.create(dir, b"third", new, &at(15))), EPERM);
    flags(dir, 0);
    fs.unlink(dir, b"another", &at(16), unused).unwrap();
    flags(fixed, 0x40);
    fs.unlink(root, b"fixed", &at(16), unused).unwrap();
    fsck::check(&objects.snapshot());
}

#[test]
fn groups_and_projects_are_passed_on() {
    let (objects, fs) = plain();
    let dir = directory(&fs, "dir");
    let set = SetAttributes {
        permissions: Some(0o2775),
        gid: Some(77),
        project_id: Some(5),
        fs_ioc_flags: Some(0x2000_0000),
        ..SetAttributes::default()
    };
    fs.set_attributes(dir, &set, &at(11)).unwrap();
    let node = |kind, permissions| NewNode { kind, permissions };
    let sub = fs.create(dir, b"sub", node(NewKind::Directory, 0o755), &at(12)).unwrap();
    let leaf = fs.create(dir, b"leaf", node(NewKind::File, 0o2755), &at(12)).unwrap();
    let link = fs.create(dir, b"link", node(NewKind::Symlink(b"x"), 0o777), &at(12)).unwrap();
    assert_eq!((sub.gid, sub.permissions(), sub.project_id), (77, 0o2755, 5));
    assert_eq!((leaf.gid, leaf.permissions(), leaf.project_id), (77, 0o2755, 5));
    assert_eq!((link.gid, link.permissions(), link.project_id), (77, 0o777, 0));
    for made in [&sub, &leaf] {
        assert!(made.flags.contains(ZfsFlags::PROJINHERIT | ZfsFlags::PROJID));
    }
    let other = file(&fs, "other");
    assert_eq!(errno(fs.link(other, dir, b"x", &at(13))), EXDEV);
    assert_eq!(rename(&fs, (fs.root(), "other"), (dir, "x"), RenameMode::Replace), Err(EXDEV));
    assert_eq!(rename(&fs, (dir, "leaf"), (dir, "x"), RenameMode::Replace), Ok(false));
    assert_eq!(rename(&fs, (dir, "link"), (dir, "y"), RenameMode::Replace), Ok(false));
    let set = SetAttributes { project_id: Some(5), ..SetAttributes::default() };
    fs.set_attributes(other, &set, &at(14)).unwrap();
    assert_eq!(rename(&fs, (fs.root(), "other"), (dir, "z"), RenameMode::Replace), Ok(false));
    fsck::check(&objects.snapshot());
}

#[test]
fn listings_go_on_while_names_come_and_go() {
    let (_, fs) = plain();
    let dir = directory(&fs, "dir");
    let name = |n: usize| format!("name {n}");
    for n in 0..1500 {
        create(&fs, dir, &name(n), NewKind::Fifo);
    }
    let (mut seen, mut offset, mut next) = (std::collections::BTreeSet::new(), 0, 1500);
    loop {
        let some = fs.read_dir_at(dir, offset, 60).unwrap();
        let Some((_, last)) = some.last() else { break };
        offset = *last;
        for (entry, _) in some {
            assert!(seen.insert(entry.name), "told twice");
        }
        // The directory becomes a fat ZAP during this, and its leaves are split.
        for _ in 0..200 {
            create(&fs, dir, &name(next), NewKind::Fifo);
            fs.unlink(dir, name(next - 1000).as_bytes(), &at(20), unused).unwrap();
            next += 1;
        }
        if next > 6000 {
            break;
        }
    }
    let rest = fs.read_dir_at(dir, offset, usize::MAX).unwrap();
    seen.extend(rest.into_iter().map(|(entry, _)| entry.name));
    // Names that existed all the time are listed.
    for n in 0..500 {
        assert!(seen.contains(name(n).as_bytes()), "{n}");
    }
}

#[test]
fn a_rolled_back_objset_is_read_again() {
    let (objects, fs) = plain();
    let f = file(&fs, "f");
    let before = std::sync::Arc::new(snowmelt_zpl::memory::MemoryObjset::new(objects.snapshot()));
    let replaced = FilesystemMut::open(before.clone(), WriteOptions::default(), 3).unwrap();
    // Uses a layout that exists only in the later state.
    replaced.set_xattr(f, b"user.x", b"1", Default::default(), &at(20)).unwrap();
    before.replace(objects.snapshot());
    assert!(replaced.reload().unwrap());
    replaced.set_xattr(f, b"user.x", b"2", Default::default(), &at(21)).unwrap();
    fsck::check(&before.snapshot());
    let (other, _) =
        make(NewFilesystem { dnode_slots: 3, ..NewFilesystem::default() }, WriteOptions::default());
    before.replace(other.snapshot());
    assert!(replaced.reload().unwrap());
}

#[test]
fn one_filesystem_serves_many_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Fs>();
}

#[test]
fn umask_and_generation() {
    let (_, fs) = plain();
    let caller = Caller { umask: 0o027, ..at(5) };
    let new = NewNode { kind: NewKind::File, permissions: 0o666 };
    let first = fs.create(fs.root(), b"a", new, &caller).unwrap();
    let second = fs.create(fs.root(), b"b", new, &caller).unwrap();
    assert_eq!(first.permissions(), 0o640);
    assert!(first.generation > 0 && second.generation > first.generation);
}
