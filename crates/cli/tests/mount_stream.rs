//! Mounting stream files without receiving them.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::path::Path;

use common::mounting::Mounting;
use common::{Scratch, demo};

/// Names of the existing indexes.
fn indexes(scratch: &Scratch) -> Vec<String> {
    let Ok(entries) = fs::read_dir(scratch.path().join(".cache/snowmelt/streams")) else { return Vec::new() };
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A copy of a demonstration stream.
fn copied(scratch: &Scratch, stream: &str, name: &str) {
    fs::copy(demo(stream), scratch.path().join(name)).unwrap();
}

#[test]
fn what_cannot_be_mounted_says_why_and_leaves_nothing() {
    let scratch = Scratch::new();
    let refused = |file: &str, why: &str| {
        let said = scratch.fails(1, &format!("mount {file} mnt"));
        assert!(said.contains(why), "{file}: {said}");
        assert_eq!(indexes(&scratch), Vec::<String>::new(), "{file}");
    };
    copied(&scratch, "incremental.zstream", "incremental");
    refused("incremental", "it is an incremental stream of tank/home@tuesday, whose base has the guid");
    let bytes = fs::read(demo("full.zstream")).unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(scratch.path().join(name), bytes).unwrap();
    write("cut", &bytes[..bytes.len() / 2]);
    refused("./cut", "incomplete stream");
    let mut bad = bytes.clone();
    bad[bytes.len() / 2] ^= 1;
    write("damaged", &bad);
    refused("damaged", "checksum mismatch at record");
    write("packed.zst", &[0x28, 0xb5, 0x2f, 0xfd, 0, 0]);
    refused("packed.zst", "it is compressed: uncompress it first, with 'zstd -d'");
    write("text", b"no stream at all, whatever its length may be; it goes on and on and on");
    refused("text", "it is neither a dataset nor a stream");
    write("empty", b"");
    refused("empty", "cannot mount 'empty': it is neither a dataset nor a stream");
    write("full", &bytes);
    assert!(scratch.fails(2, "mount full").contains("a stream file needs a directory to be mounted on"));
    scratch.ok("pool create tank");
    assert!(scratch.fails(2, "mount --dataset a tank").contains("--dataset is only for stream files"));
    assert!(scratch.fails(1, "mount nothing mnt").contains("cannot open 'nothing'"));
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn a_stream_is_mounted_without_a_pool() {
    let world = Mounting::new(Scratch::new());
    let scratch = &world.scratch;
    copied(scratch, "full.zstream", "home.zstream");
    scratch.ok("mount home.zstream mnt");
    let [index, note] = &indexes(scratch)[..] else { panic!("{:?}", indexes(scratch)) };
    assert_eq!(*note, format!("{index}.file"));
    assert!(scratch.ok("mount").contains(&format!("{index}/home")));
    assert_eq!(scratch.ok("pool list -H"), "", "it is no pool of anybody");
    let expected = scratch.path().join("expected");
    let told = |dir: &Path| fs::read(dir.join("documents/thesis.tex")).unwrap();
    assert_eq!(told(&world.dir()), told(&world.dir().join(".zfs/snapshot/monday")));
    let error = fs::write(world.dir().join("new"), b"x").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    // A second mount elsewhere: the process that has the index makes it, or reports that it is already mounted.
    fs::create_dir(scratch.path().join("other")).unwrap();
    assert!(scratch.fails(1, "mount home.zstream other").contains("already mounted"));
    scratch.ok("mount --dataset @monday home.zstream other");
    assert_eq!(told(&scratch.path().join("other")), told(&world.dir()));
    scratch.ok("unmount ./other");
    let content = told(&world.dir());
    scratch.ok("unmount ./mnt");
    world.wait_until_closed();
    // The mount has the same contents as a pool that received the stream.
    scratch.ok("pool create tank");
    scratch.receive("receive tank/home", &demo("full.zstream"));
    scratch.ok(&format!("restore tank/home@monday {}", expected.display()));
    assert_eq!(told(&expected), content);
    // The index is reused, and not made again.
    let made =
        fs::metadata(scratch.path().join(".cache/snowmelt/streams").join(index).join("label")).unwrap();
    scratch.ok("mount home.zstream mnt");
    let again =
        fs::metadata(scratch.path().join(".cache/snowmelt/streams").join(index).join("label")).unwrap();
    assert_eq!(made.modified().unwrap(), again.modified().unwrap());
    assert_eq!(told(&world.dir()), content);
    scratch.ok("unmount ./mnt");
    world.wait_until_closed();
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn a_file_that_changed_is_indexed_anew() {
    let world = Mounting::new(Scratch::new());
    let scratch = &world.scratch;
    copied(scratch, "full.zstream", "stream");
    scratch.ok("mount stream mnt");
    scratch.ok("unmount ./mnt");
    world.wait_until_closed();
    let before = indexes(scratch);
    let mut bytes = fs::read(demo("full.zstream")).unwrap();
    bytes.extend_from_slice(b"behind the end");
    fs::write(scratch.path().join("stream"), &bytes).unwrap();
    let said = scratch.run("mount stream mnt");
    assert_eq!((said.code, said.out.as_str()), (0, ""));
    assert_eq!(said.err, "stream: 14 bytes after the end of the stream are ignored\n");
    let after = indexes(scratch);
    assert!(after.len() == 2 && after != before, "the old one went: {after:?}");
    scratch.ok("unmount ./mnt");
    world.wait_until_closed();
    // Indexes of removed files and the remains of a killed indexing are deleted when the next index is made.
    fs::create_dir_all(scratch.path().join(".cache/snowmelt/streams/stream-0123456789abcdef.new/segments"))
        .unwrap();
    fs::write(scratch.path().join(".cache/snowmelt/streams/stream-0123456789abcdef.file"), b"").unwrap();
    fs::remove_file(scratch.path().join("stream")).unwrap();
    copied(scratch, "full.zstream", "third");
    scratch.ok("mount third mnt");
    let third = indexes(scratch);
    assert!(third.len() == 2 && third.iter().all(|name| !after.contains(name)), "{third:?}");
    // The file is truncated while it is mounted: reading fails, and no wrong data is read.
    fs::write(scratch.path().join("third"), b"").unwrap();
    let error = fs::read(world.dir().join("disk.img")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
    scratch.ok("unmount ./mnt");
    world.wait_until_closed();
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn datasets_of_a_package_are_named() {
    let world = Mounting::new(Scratch::with_pool());
    let scratch = &world.scratch;
    for name in ["a", "b"] {
        let dir = scratch.path().join(name);
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("file"), name.repeat(300_000)).unwrap();
    }
    scratch.ok("import -p a tank/top@one");
    scratch.ok("import b tank/top/below@one");
    scratch.ok("create -V 1M tank/top/volume");
    scratch.ok("snapshot -r tank/top@two");
    scratch.to_file("send -R tank/top@two", "package");
    let read = || fs::read_to_string(world.dir().join("file")).unwrap();
    scratch.ok("mount package mnt");
    assert_eq!(read(), "a".repeat(300_000));
    assert!(world.dir().join(".zfs/snapshot/two/file").exists());
    scratch.ok("unmount ./mnt");
    scratch.ok("mount --dataset below package mnt");
    assert_eq!(read(), "b".repeat(300_000));
    scratch.ok("unmount ./mnt");
    scratch.ok("mount --dataset below@one package mnt");
    assert_eq!(read(), "b".repeat(300_000));
    scratch.ok("unmount ./mnt");
    world.wait_until_closed();
    let refused = scratch.fails(1, "mount --dataset nothing package mnt");
    assert!(refused.contains("it has no dataset 'nothing': it has below, volume"), "{refused}");
    let refused = scratch.fails(1, "mount --dataset volume package mnt");
    assert!(refused.contains("it is a volume\nserve it as a block device"), "{refused}");
    world.wait_until_closed();
    scratch.ok("check tank");
}
