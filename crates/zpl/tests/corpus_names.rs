//! Names in filesystems from real ZFS: every listed name is found, in every form in which ZFS would find it.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Received, case};
use snowmelt_zpl::memory::MemoryObjects;
use snowmelt_zpl::{CaseSensitivity, Cursor, FileKind, Filesystem};
use std::sync::Arc;

fn filesystem(
    files: &std::collections::BTreeMap<String, Vec<u8>>,
    streams: &[&str],
) -> Option<Filesystem<Arc<MemoryObjects>>> {
    let mut received = Received::default();
    let mut last = None;
    for stream in streams {
        last = received.receive(files.get(*stream)?).last().copied();
    }
    Some(Filesystem::open(received.snapshots[&last?].clone()).unwrap())
}

/// Calls `each` with every directory and every name in it.
fn names<O: snowmelt_zpl::Objects>(fs: &Filesystem<O>, mut each: impl FnMut(u64, &[u8], u64)) -> usize {
    let (mut left, mut count) = (vec![fs.root()], 0);
    while let Some(directory) = left.pop() {
        for entry in fs.read_dir(directory).unwrap().all() {
            let entry = entry.unwrap();
            count += 1;
            each(directory, &entry.name, entry.object);
            let kind = fs.attributes(entry.object).unwrap().kind();
            assert_eq!(kind, entry.kind, "{}", String::from_utf8_lossy(&entry.name));
            if kind == FileKind::Directory {
                left.push(entry.object);
            }
        }
    }
    count
}

#[test]
fn every_name_is_found_and_every_cursor_resumes() {
    for (name, streams) in [
        ("01-basic", &["full-0.zstream"][..]),
        ("05-names", &["full.zstream", "inc.zstream"]),
        ("06-xattr", &["sa-auto-full.zstream"]),
        ("07-special", &["full.zstream"]),
        ("16-newer", &["long-full.zstream", "long-inc.zstream"]),
        ("16-newer", &["micro-L.zstream"]),
    ] {
        let Some(fs) = case(name).and_then(|files| filesystem(&files, streams)) else { continue };
        let count = names(&fs, |directory, name, object| {
            let found = fs.lookup(directory, name).unwrap();
            assert_eq!(found.map(|entry| entry.object), Some(object), "{}", String::from_utf8_lossy(name));
        });
        assert!(count > 10, "{name}: {count} names");
        assert!(fs.lookup(fs.root(), b"surely not there").unwrap().is_none());
        resumes(&fs, fs.root());
    }
}

/// Lists a directory in batches. Each batch resumes from the last cursor in the form that a kernel keeps.
fn resumes<O: snowmelt_zpl::Objects>(fs: &Filesystem<O>, directory: u64) {
    let directory = fs.read_dir(directory).unwrap();
    let all: Vec<_> = directory.all().map(Result::unwrap).collect();
    assert_eq!(directory.count(), all.len() as u64);
    let (mut found, mut cursor) = (Vec::new(), Cursor::START);
    loop {
        let some: Vec<_> = directory.from(cursor).take(7).map(Result::unwrap).collect();
        let Some(last) = some.last() else { break };
        cursor = Cursor::deserialize(last.next.serialize(directory.hash_bits()), directory.hash_bits());
        found.extend(some);
        if found.len() > 2000 {
            break;
        }
    }
    assert_eq!(found[..], all[..found.len()]);
    assert!(found.len() == all.len() || found.len() > 2000);
}

#[test]
fn names_are_found_in_other_case_and_form() {
    let files = case("13-quota-names").unwrap();
    let upper = |name: &str| name.to_uppercase();
    for (dataset, sensitivity) in [
        ("n1", CaseSensitivity::Insensitive),
        ("n2", CaseSensitivity::Mixed),
        ("n6", CaseSensitivity::Insensitive),
    ] {
        let Some(fs) = filesystem(&files, &[&format!("{dataset}-full.zstream")]) else { continue };
        assert_eq!(fs.name_policy().case, sensitivity);
        let mut folded = 0;
        names(&fs, |directory, name, object| {
            let Ok(name) = std::str::from_utf8(name) else { return };
            let found = fs.lookup(directory, name.as_bytes()).unwrap().map(|entry| entry.object);
            assert_eq!(found, Some(object), "{dataset}: {name}");
            // If the upper case has another length, ZFS's simple mapping differs from it.
            if upper(name).chars().count() == name.chars().count() && upper(name) != name {
                let found = fs.lookup(directory, upper(name).as_bytes()).unwrap().map(|entry| entry.object);
                let expected = (sensitivity == CaseSensitivity::Insensitive).then_some(object);
                if sensitivity == CaseSensitivity::Insensitive {
                    assert_eq!(found, expected, "{dataset}: {name} in capitals");
                } else {
                    assert_ne!(found, Some(object), "{dataset}: {name} in capitals");
                }
                folded += 1;
            }
        });
        assert!(folded > 5, "{dataset}: {folded} names folded");
    }
    for dataset in ["n3", "n4"] {
        let Some(fs) = filesystem(&files, &[&format!("{dataset}-full.zstream")]) else { continue };
        assert!(!fs.name_policy().normalization.is_none());
        let mut composed = 0;
        names(&fs, |directory, name, object| {
            for form in [snowmelt_zpl::normalize::NormFlags::NFC, snowmelt_zpl::normalize::NormFlags::NFD] {
                let other = form.apply(name);
                composed += usize::from(*other != *name);
                let found = fs.lookup(directory, &other).unwrap().map(|entry| entry.object);
                assert_eq!(found, Some(object), "{dataset}: {}", String::from_utf8_lossy(name));
            }
        });
        assert!(composed > 0, "{dataset}");
    }
}

#[test]
fn single_xattrs_are_those_of_the_list() {
    let files = case("06-xattr").unwrap();
    for stream in ["sa-legacy-full.zstream", "sa-auto-full.zstream", "dir-legacy-full.zstream"] {
        let Some(fs) = filesystem(&files, &[stream]) else { continue };
        let mut compared = 0;
        names(&fs, |_, _, object| {
            for (name, value) in fs.xattrs(object).unwrap() {
                assert_eq!(fs.xattr(object, &name).unwrap(), Some(value));
                compared += 1;
            }
            assert_eq!(fs.xattr(object, b"user.surely not there").unwrap(), None);
            assert!(!fs.nfs4_acl(object).unwrap().is_empty());
        });
        assert!(compared > 10, "{stream}: {compared} attributes");
    }
}

/// Attributes that ZFS never writes are refused or read, but never cause a panic.
#[test]
fn damaged_bonus_buffers_and_blocks_never_panic() {
    let files = case("06-xattr").unwrap();
    let mut received = Received::default();
    let guid = received.receive(&files["sa-auto-full.zstream"])[0];
    let whole = received.snapshots[&guid].clone();
    let mut random = 0x1234_5678_9abc_def1u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for _ in 0..60 {
        let mut objects = (*whole).clone();
        for _ in 0..30 {
            let number = *objects.objects.keys().nth(next() as usize % objects.objects.len()).unwrap();
            let object = objects.objects.get_mut(&number).unwrap();
            let at = next();
            match (at % 3, object.spill.as_mut()) {
                (0, Some(spill)) if !spill.is_empty() => {
                    let len = spill.len();
                    spill[next() as usize % len] = next() as u8;
                }
                (1, _) if !object.dnode.bonus.is_empty() => {
                    let len = object.dnode.bonus.len();
                    object.dnode.bonus[next() as usize % len] = next() as u8;
                }
                _ => object.write(next() % u64::from(object.dnode.block_size), &[next() as u8]),
            }
        }
        let Ok(fs) = Filesystem::open(&objects) else { continue };
        for object in objects.objects.keys() {
            let _ = (fs.attributes(*object), fs.xattrs(*object), fs.nfs4_acl(*object), fs.readlink(*object));
            if let Ok(directory) = fs.read_dir(*object) {
                let _ = directory.all().take(10_000).count();
            }
        }
    }
}
