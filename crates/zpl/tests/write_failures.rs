//! Tests of failures (no room, read-only, damage) and of concurrent operations.

#![allow(clippy::unwrap_used)]

#[path = "common/fsck.rs"]
mod fsck;
#[path = "common/writing.rs"]
mod writing;

use proptest::prelude::*;
use snowmelt_zpl::memory::MemoryObjset;
use snowmelt_zpl::{
    Cursor, FilesystemMut, NewKind, NewNode, RenameMode, SetAttributes, SetXattr, WriteOptions, ZplError,
};
use std::sync::Arc;
use writing::*;

type Operation = Box<dyn Fn(&Fs) -> Result<(), ZplError>>;

/// All operations that need room, for a filesystem created by [`furnished`].
fn operations() -> Vec<(&'static str, Operation)> {
    let root = |fs: &Fs| fs.root();
    let object = |fs: &Fs, name: &str| {
        let found = fs.lookup(fs.root(), name.as_bytes())?;
        found.map(|entry| entry.object).ok_or(ZplError::NoObject { object: 0 })
    };
    let new = |kind| NewNode { kind, permissions: 0o644 };
    let set = SetAttributes { permissions: Some(0o701), ..SetAttributes::default() };
    let operation = |name, run: Operation| (name, run);
    vec![
        operation(
            "create",
            Box::new(move |fs| fs.create(root(fs), b"n", new(NewKind::File), &at(20)).map(drop)),
        ),
        operation(
            "mkdir",
            Box::new(move |fs| fs.create(root(fs), b"n", new(NewKind::Directory), &at(20)).map(drop)),
        ),
        operation("unnamed", Box::new(move |fs| fs.create_unnamed(root(fs), 0o600, &at(20)).map(drop))),
        operation("link", Box::new(move |fs| fs.link(object(fs, "f")?, root(fs), b"n", &at(20)).map(drop))),
        operation(
            "rename",
            Box::new(move |fs| {
                fs.rename((root(fs), b"f"), (root(fs), b"g"), RenameMode::Replace, &at(20), unused).map(drop)
            }),
        ),
        operation("write", Box::new(move |fs| fs.write(object(fs, "f")?, 5000, b"data", &at(20)).map(drop))),
        operation("extend", Box::new(move |fs| fs.truncate(object(fs, "f")?, 1 << 40, &at(20)))),
        operation("chmod", Box::new(move |fs| fs.set_attributes(object(fs, "f")?, &set, &at(20)).map(drop))),
        operation(
            "xattr",
            Box::new(move |fs| fs.set_xattr(object(fs, "f")?, b"user.a", &[1; 999], SetXattr::Any, &at(20))),
        ),
        operation(
            "hidden",
            Box::new(move |fs| {
                fs.set_xattr(object(fs, "f")?, b"user.a", &[1; 40_000], SetXattr::Any, &at(20))
            }),
        ),
        operation("atime", Box::new(move |fs| fs.touch_atime(object(fs, "f")?, at(20).now))),
    ]
}

fn furnished() -> (Arc<MemoryObjset>, Fs) {
    let (objects, fs) = plain();
    let f = file(&fs, "f");
    fs.write(f, 0, &[1; 3000], &at(11)).unwrap();
    file(&fs, "g");
    let d = directory(&fs, "d");
    for n in 0..300 {
        create(&fs, d, &format!("a name that is longer than a micro ZAP would take it: {n}"), NewKind::File);
    }
    (objects, fs)
}

#[test]
fn without_room_nothing_is_done() {
    for (name, run) in operations() {
        let (objects, fs) = furnished();
        let before = format!("{:?}", objects.snapshot());
        objects.set_room(1000);
        assert_eq!(run(&fs).unwrap_err().errno(), ENOSPC, "{name}");
        assert_eq!(format!("{:?}", objects.snapshot()), before, "{name}");
        objects.set_room(u64::MAX);
        objects.set_read_only(true);
        assert_eq!(run(&fs).unwrap_err().errno(), EROFS, "{name}");
        assert_eq!(format!("{:?}", objects.snapshot()), before, "{name}");
        objects.set_read_only(false);
        run(&fs).unwrap();
        fsck::check(&objects.snapshot());
    }
}

#[test]
fn what_is_in_the_way_can_be_removed_from_a_full_pool() {
    let (objects, fs) = furnished();
    objects.set_room(0);
    let f = fs.lookup(fs.root(), b"f").unwrap().unwrap().object;
    fs.truncate(f, 10, &at(20)).unwrap();
    fs.unlink(fs.root(), b"f", &at(20), used).unwrap();
    fs.release(f).unwrap();
    let d = fs.lookup(fs.root(), b"d").unwrap().unwrap().object;
    for entry in fs.read_dir(d, Cursor::START, 1000).unwrap() {
        fs.unlink(d, &entry.name, &at(20), unused).unwrap();
    }
    fs.rmdir(fs.root(), b"d", &at(20), unused).unwrap();
    let tree = fsck::check(&objects.snapshot());
    assert_eq!(tree.names.len(), 1);
}

#[test]
fn a_long_write_tells_how_far_it_came() {
    let (objects, fs) = plain();
    let f = file(&fs, "f");
    fs.write(f, 0, &[1; 200_000], &at(11)).unwrap();
    objects.set_room(5 << 20);
    assert_eq!(fs.write(f, 0, &vec![2; 6 << 20], &at(12)).unwrap(), 6 << 20);
    objects.set_room(1 << 20);
    assert_eq!(errno(fs.write(f, 0, &vec![3; 6 << 20], &at(12))), ENOSPC);
    assert_eq!(fs.write(f, (4 << 20) - 4096, &vec![4; 1 << 20], &at(12)).unwrap(), 4096);
    fsck::check(&objects.snapshot());
}

#[test]
fn many_at_once() {
    let (objects, fs) = plain();
    let shared = directory(&fs, "shared");
    std::thread::scope(|scope| {
        for thread in 0..6u64 {
            let (fs, objects) = (&fs, &objects);
            scope.spawn(move || {
                let own = directory(fs, &format!("own {thread}"));
                for n in 0..150u64 {
                    let name = format!("{thread} {n}");
                    let f = create(fs, shared, &name, NewKind::File);
                    fs.write(f, n * 100, &[thread as u8; 3000], &at(11)).unwrap();
                    fs.set_xattr(f, b"user.x", &vec![1; (n as usize) * 40], SetXattr::Any, &at(12)).unwrap();
                    let to = format!("moved {n}");
                    fs.rename(
                        (shared, name.as_bytes()),
                        (own, to.as_bytes()),
                        RenameMode::NoReplace,
                        &at(13),
                        unused,
                    )
                    .unwrap();
                    if n % 3 == 0 {
                        fs.unlink(own, to.as_bytes(), &at(14), |_| n % 2 == 0).unwrap();
                        fs.release(f).unwrap();
                    } else {
                        let set = SetAttributes { permissions: Some(0o600), ..SetAttributes::default() };
                        fs.set_attributes(f, &set, &at(15)).unwrap();
                        assert_eq!(fs.attributes(f).unwrap().size, n * 100 + 3000);
                    }
                    let _ = fs.read_dir_at(shared, 0, 50).unwrap();
                    let _ = objects;
                }
            });
        }
    });
    let tree = fsck::check(&objects.snapshot());
    assert_eq!(tree.names.len(), 7 + 6 * 100);
    assert_eq!(tree.nodes[&shared].size, 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn damage_never_panics(hits in proptest::collection::vec((any::<u16>(), any::<u16>(), any::<u8>()), 1..60)) {
        let (objects, fs) = furnished();
        for (_, run) in operations() {
            run(&fs).ok();
        }
        drop(fs);
        let mut damaged = objects.snapshot();
        for (number, place, byte) in hits {
            let count = damaged.objects.len();
            let Some(object) = damaged.objects.values_mut().nth(usize::from(number) % count) else { continue };
            let buf = match (place % 3, object.spill.as_mut(), object.blocks.values_mut().next()) {
                (0, Some(spill), _) => spill,
                (1, _, Some(block)) => block,
                _ => &mut object.dnode.bonus,
            };
            if !buf.is_empty() {
                let at = usize::from(place) % buf.len();
                buf[at] = byte;
            }
        }
        let numbers: Vec<u64> = damaged.objects.keys().copied().collect();
        let objects = Arc::new(MemoryObjset::new(damaged));
        let Ok(fs) = FilesystemMut::open(objects, WriteOptions::default(), 1) else { return Ok(()) };
        for (_, run) in operations() {
            run(&fs).ok();
        }
        for object in numbers {
            fs.write(object, 0, b"x", &at(30)).ok();
            fs.set_xattr(object, b"user.b", &[1; 40_000], SetXattr::Any, &at(30)).ok();
            fs.remove_xattr(object, b"user.a", &at(30)).ok();
            fs.truncate(object, 1, &at(30)).ok();
            let entries = fs.read_dir(object, Cursor::START, 20).unwrap_or_default();
            for entry in entries {
                fs.rename((object, &entry.name), (fs.root(), b"x"), RenameMode::Replace, &at(31), unused).ok();
                fs.unlink(object, &entry.name, &at(31), unused).ok();
                fs.rmdir(object, &entry.name, &at(31), unused).ok();
            }
            fs.release(object).ok();
        }
        fs.drain_unlinked().ok();
    }
}
