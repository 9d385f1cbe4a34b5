//! Automatic mounting and unmounting by `zfs` and `zpool`, as in ZFS.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use common::mounting::{Mounting, mounted_below};
use common::{Said, Scratch};

/// A pool `tank` whose filesystems are mounted below `mnt`, and a shell with automatic mounting switched on.
struct World {
    world: Mounting,
}

impl World {
    fn new() -> Self {
        let world = Mounting::new(Scratch::with_pool());
        world.scratch.ok(&format!("set canmount=off mountpoint={} tank", world.dir().display()));
        Self { world }
    }

    fn command(&self, line: &str) -> Command {
        let mut command = self.world.scratch.command(line);
        command.env("SNOWMELT_AUTOMOUNT", "on");
        command
    }

    fn run(&self, line: &str) -> Said {
        Said::of(self.command(line))
    }

    fn ok(&self, line: &str) -> String {
        let said = self.run(line);
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{line}: {said:?}");
        said.out
    }

    fn fails(&self, line: &str) -> String {
        let said = self.run(line);
        assert_eq!((said.code, said.out.as_str()), (1, ""), "{line}: {said:?}");
        said.err
    }

    /// A path below the mountpoint of the pool.
    fn at(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.world.dir() } else { self.world.dir().join(path) }
    }

    /// The mountpoints below `mnt` that are in use, in order.
    fn mounted(&self) -> Vec<String> {
        let top = self.world.dir();
        let mut dirs: Vec<String> = mounted_below(&top)
            .into_iter()
            .map(|dir| dir.strip_prefix(&top).unwrap().to_str().unwrap().to_owned())
            .collect();
        dirs.sort();
        dirs
    }

    fn home(&self) -> &std::path::Path {
        self.world.scratch.path()
    }
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn what_is_created_is_mounted_and_what_is_destroyed_unmounted() {
    let world = World::new();
    world.ok("zfs create tank/a");
    assert_eq!(world.mounted(), ["a"]);
    // From here on there is a background process, which mounts by itself.
    world.ok("zfs create -p tank/a/b/c");
    assert_eq!(world.mounted(), ["a", "a/b", "a/b/c"]);
    fs::write(world.at("a/b/c/file"), b"content").unwrap();
    world.ok("zfs snapshot tank/a/b/c@s");
    world.ok("zfs clone tank/a/b/c@s tank/clone");
    assert_eq!(fs::read(world.at("clone/file")).unwrap(), b"content");
    world.ok("zfs create -u tank/u");
    world.ok("zfs create -o canmount=noauto tank/n");
    world.ok("zfs create -o mountpoint=none tank/none");
    world.ok("zfs create -s -V 1M tank/volume");
    assert_eq!(world.mounted(), ["a", "a/b", "a/b/c", "clone"]);
    assert_eq!(world.ok("zfs get -Ho value mounted tank/a/b"), "yes\n");
    world.ok("zfs destroy tank/clone");
    assert!(!world.at("clone").exists());
    let open = File::open(world.at("a/b/c/file")).unwrap();
    let busy = format!("cannot unmount '{}': pool or dataset is busy\n", world.at("a/b/c").display());
    assert_eq!(world.fails("zfs destroy -r tank/a"), busy);
    drop(open);
    assert_eq!(world.mounted(), ["a", "a/b", "a/b/c"]);
    world.ok("zfs destroy -r tank/a");
    assert_eq!(world.mounted(), [""; 0]);
    assert!(!world.at("a").exists());
    world.world.wait_until_closed();
    world.ok("check tank");
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn mounts_follow_names_and_properties() {
    let world = World::new();
    world.ok("zfs create -p tank/a/b");
    fs::write(world.at("a/b/file"), b"content").unwrap();
    world.ok("zfs rename tank/a tank/z");
    assert_eq!(world.mounted(), ["z", "z/b"]);
    assert_eq!(fs::read(world.at("z/b/file")).unwrap(), b"content");
    assert!(!world.at("a").exists());
    let open = File::open(world.at("z/b/file")).unwrap();
    let busy = format!("cannot unmount '{}': pool or dataset is busy\n", world.at("z/b").display());
    assert_eq!(world.fails("zfs rename tank/z tank/y"), busy);
    let elsewhere = format!("zfs set mountpoint={} tank/z", world.at("elsewhere").display());
    assert_eq!(world.fails(&elsewhere), busy);
    drop(open);
    assert_eq!(world.mounted(), ["z", "z/b"]);
    world.ok(&elsewhere);
    assert_eq!(world.mounted(), ["elsewhere", "elsewhere/b"]);
    assert_eq!(fs::read(world.at("elsewhere/b/file")).unwrap(), b"content");
    world.ok("zfs set canmount=off tank/z");
    assert_eq!(world.mounted(), ["elsewhere/b"]);
    world.ok("zfs set canmount=noauto tank/z/b");
    assert_eq!(world.mounted(), ["elsewhere/b"]);
    world.ok("zfs inherit mountpoint tank/z");
    assert_eq!(world.mounted(), ["z/b"]);
    world.ok("zfs set readonly=on tank/z/b");
    let refused = fs::write(world.at("z/b/new"), b"new").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    world.ok("zfs set mountpoint=none tank/z/b");
    assert_eq!(world.mounted(), [""; 0]);
    world.ok("zfs set canmount=on tank/z/b");
    world.ok("zfs inherit mountpoint tank/z/b");
    assert_eq!(world.mounted(), ["z/b"]);
    // Filesystems below it are unmounted too, wherever they are mounted.
    world.ok(&format!("zfs create -o mountpoint={} tank/z/b/c", world.at("apart").display()));
    assert_eq!(world.mounted(), ["apart", "z/b"]);
    world.ok("zfs unmount tank/z/b");
    assert_eq!(world.mounted(), [""; 0]);
    world.ok("zfs destroy tank/z/b/c");
    // A filesystem that was unmounted stays unmounted when its mountpoint changes.
    world.ok(&format!("zfs set mountpoint={} tank/z/b", world.at("another").display()));
    assert_eq!(world.mounted(), [""; 0]);
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn clones_that_go_with_their_snapshots_are_unmounted() {
    let world = World::new();
    world.ok("zfs create tank/a");
    world.ok("zfs snapshot tank/a@s");
    world.ok("zfs clone tank/a@s tank/clone");
    assert_eq!(world.mounted(), ["a", "clone"]);
    let open = File::create(world.at("clone/file")).unwrap();
    let busy = format!("cannot unmount '{}': pool or dataset is busy\n", world.at("clone").display());
    assert_eq!(world.fails("zfs destroy -R tank/a@s"), busy);
    drop(open);
    world.ok("zfs destroy -R tank/a@s");
    assert_eq!(world.mounted(), ["a"]);
    assert!(!world.at("clone").exists());
    let usage = world.run("zfs unmount -a tank/a");
    assert_eq!(usage.code, 2, "{usage:?}");
    world.ok("zfs unmount -a");
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn a_receive_mounts_what_it_makes_and_both_commands_end() {
    let world = World::new();
    world.ok("zfs create -u tank/a");
    world.ok("zfs snapshot tank/a@s");
    // The sender owns the pool during the receive. It must not keep running to serve what the receiver mounts.
    for (flags, mounted) in [("-u", vec![]), ("", vec!["copy"])] {
        let mut sender = world.command("zfs send tank/a@s").stdout(Stdio::piped()).spawn().unwrap();
        let target = if flags.is_empty() { "copy" } else { "hidden" };
        let mut receiver = world.command(&format!("zfs receive {flags} tank/{target}"));
        let received = receiver.stdin(sender.stdout.take().unwrap()).output().unwrap();
        assert!(received.status.success(), "{received:?}");
        assert!(sender.wait().unwrap().success());
        assert_eq!(world.mounted(), mounted);
    }
    // A mounted filesystem stays mounted.
    fs::write(world.at("copy/file"), b"file").unwrap();
    world.ok("zfs rollback tank/copy@s");
    assert!(!world.at("copy/file").exists());
    world.ok("zfs unmount tank/copy");
    // Without the ZFS commands nothing is mounted, and no process keeps running.
    world.world.wait_until_closed();
    world.ok("create tank/quiet");
    assert_eq!(world.mounted(), [""; 0]);
    assert!(world.world.owner().is_none());
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn overlay_off_wants_an_empty_directory() {
    let world = World::new();
    fs::create_dir(world.at("full")).unwrap();
    fs::write(world.at("full/file"), b"file").unwrap();
    let refused = format!(
        "cannot mount '{}': directory is not empty\nfilesystem successfully created, but not mounted\n",
        world.at("full").display()
    );
    world.ok("zfs create -u -o overlay=off tank/first");
    world.ok("zfs mount tank/first");
    assert_eq!(world.fails("zfs create -o overlay=off tank/full"), refused);
    let refused = format!("cannot mount '{}': directory is not empty\n", world.at("full").display());
    assert_eq!(world.fails("zfs mount tank/full"), refused);
    // A filesystem that fails to mount does not stop the others. The exit status reports it.
    world.ok("zfs unmount -a");
    world.world.wait_until_closed();
    assert_eq!(world.fails("zfs mount -a"), refused);
    assert!(world.mounted().contains(&"first".to_owned()));
    world.ok("zfs mount -O tank/full");
    assert!(world.mounted().contains(&"full".to_owned()));
    world.ok("zfs unmount -a");
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn pools_are_mounted_by_import_and_unmounted_by_export_and_destroy() {
    let world = World::new();
    world.ok("zfs create tank/a");
    fs::write(world.at("a/file"), b"content").unwrap();
    let open = File::open(world.at("a/file")).unwrap();
    let said = world.run("zpool export tank");
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.err.contains("pool or dataset is busy"), "{said:?}");
    drop(open);
    let pool = world.world.scratch.ok("pool list -Ho name");
    assert_eq!(pool, "tank\n");
    let image = world.home().join("other.img");
    File::create(&image).unwrap().set_len(256 << 20).unwrap();
    fs::set_permissions(&image, fs::Permissions::from_mode(0o600)).unwrap();
    let place = world.at("other");
    world.ok(&format!("zpool create -O mountpoint={} other {}", place.display(), image.display()));
    assert!(world.mounted().contains(&"other".to_owned()));
    world.ok("zfs create other/fs");
    fs::write(place.join("fs/file"), b"content").unwrap();
    world.ok("zpool export other");
    assert!(!world.mounted().iter().any(|dir| dir.starts_with("other")));
    world.ok(&format!("zpool import -N {}", image.display()));
    assert!(!world.mounted().iter().any(|dir| dir.starts_with("other")));
    world.ok("zpool export other");
    world.ok(&format!("zpool import {}", image.display()));
    assert_eq!(fs::read(place.join("fs/file")).unwrap(), b"content");
    world.ok("zpool destroy other");
    assert!(!world.mounted().iter().any(|dir| dir.starts_with("other")));
    world.ok("zfs unmount -a");
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn options_of_a_mount_are_temporary_values() {
    let world = World::new();
    world.ok("zfs create -o readonly=off tank/a");
    world.ok("zfs mount -o remount,noatime,ro tank/a");
    let shown = |name: &str| world.ok(&format!("zfs get -Ho value,source {name} tank/a"));
    assert_eq!(shown("atime"), "off\ttemporary\n");
    assert_eq!(shown("readonly"), "on\ttemporary\n");
    assert_eq!(shown("exec"), "on\tdefault\n");
    world.ok("zfs unmount tank/a");
    assert_eq!(shown("atime"), "on\tdefault\n");
    assert_eq!(shown("readonly"), "off\tlocal\n");
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn what_a_receive_destroys_is_unmounted() {
    let world = World::new();
    world.ok("zfs create -u -p tank/from/gone/below");
    world.ok("zfs snapshot -r tank/from@one");
    let stream = |line: &str, name: &str| world.world.scratch.to_file(line, name);
    let whole = stream("send -R tank/from@one", "whole.zstream");
    let receive = |stream: &PathBuf| {
        let mut command = world.command("zfs receive -F tank/to");
        let said = Said::of({
            command.stdin(File::open(stream).unwrap());
            command
        });
        assert_eq!(
            (said.code, said.err.lines().filter(|line| line.starts_with("cannot")).count()),
            (0, 0),
            "{said:?}"
        );
    };
    receive(&whole);
    assert_eq!(world.mounted(), ["to", "to/gone", "to/gone/below"]);
    world.ok("zfs destroy -r tank/from/gone");
    world.ok("zfs snapshot -r tank/from@two");
    receive(&stream("send -R -I @one tank/from@two", "next.zstream"));
    assert_eq!(world.mounted(), ["to"]);
    assert!(!world.at("to/gone").exists());
    world.ok("zfs unmount tank/to");
    world.world.wait_until_closed();
    world.ok("check tank");
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn what_is_in_use_is_not_unmounted_by_zfs_with_force() {
    let world = World::new();
    world.ok("zfs create tank/a");
    let open = File::create(world.at("a/file")).unwrap();
    let busy = format!("cannot unmount '{}': pool or dataset is busy\n", world.at("a").display());
    assert_eq!(world.fails("zfs unmount -f tank/a"), busy);
    assert_eq!(world.fails("zfs destroy -f tank/a"), busy);
    assert_eq!(world.mounted(), ["a"]);
    drop(open);
    world.ok("zfs unmount -f tank/a");
    world.world.wait_until_closed();
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn what_is_to_be_shared_has_to_be_mounted() {
    let world = World::new();
    world.ok("zfs create tank/other");
    fs::write(world.at("file"), b"").unwrap();
    world.ok("zfs create -u tank/a");
    world.ok("zfs set sharenfs=on tank/a");
    assert_eq!(world.mounted(), ["a", "other"]);
    world.ok("zfs unmount tank/a");
    world.ok("zfs create -u -o canmount=on tank/b");
    let failed = world.run(&format!("zfs set -u mountpoint={} tank/b", world.at("file").display()));
    assert_eq!(failed.code, 0, "{failed:?}");
    let failed = world.fails("zfs set sharenfs=on tank/b");
    assert!(failed.ends_with("unable to mount the filesystem that is to be shared\n"), "{failed}");
    world.ok("zfs unmount tank/other");
    world.world.wait_until_closed();
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn clones_that_go_with_a_rollback_are_unmounted() {
    let world = World::new();
    world.ok("zfs create tank/a");
    world.ok("zfs snapshot tank/a@1");
    world.ok("zfs snapshot tank/a@2");
    world.ok("zfs clone tank/a@2 tank/clone");
    world.ok("zfs rollback -R tank/a@1");
    assert_eq!(world.mounted(), ["a"]);
    assert!(!world.at("clone").exists());
    world.ok("zfs unmount tank/a");
    world.world.wait_until_closed();
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn sync_of_all_pools_reaches_the_one_that_is_mounted() {
    let world = World::new();
    world.ok("zfs create -o compression=off tank/a");
    let used = || world.ok("zfs get -Hpo value used tank/a").trim().parse::<u64>().unwrap();
    fs::write(world.at("a/file"), vec![7; 1 << 20]).unwrap();
    world.ok("zpool sync");
    assert!(used() >= 1 << 20, "{}", used());
    world.ok("zpool scrub -w -a");
    assert!(world.ok("zpool status tank").contains("scrub repaired"));
    world.ok("zfs unmount tank/a");
    world.world.wait_until_closed();
}

/// The same files in two places, one of them read-only, and a rename while a third place is in use.
#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn a_filesystem_may_be_mounted_more_than_once() {
    let world = World::new();
    world.ok("zfs create -o mountpoint=legacy tank/a");
    let [first, second, bound] = ["first", "second", "bound"].map(|name| world.at(name));
    for dir in [&first, &second, &bound] {
        fs::create_dir_all(dir).unwrap();
    }
    world.ok(&format!("zfs mount tank/a {}", first.display()));
    world.ok(&format!("zfs mount -o ro tank/a {}", second.display()));
    fs::write(first.join("file"), b"content").unwrap();
    assert_eq!(fs::read(second.join("file")).unwrap(), b"content");
    let refused = fs::write(second.join("file"), b"other").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    let mounted = "cannot mount 'tank/a': filesystem already mounted\n";
    assert_eq!(world.fails(&format!("zfs mount tank/a {}", second.display())), mounted);
    world.ok(&format!("zfs unmount {}", second.display()));
    assert!(!second.join("file").exists());
    assert_eq!(fs::read(first.join("file")).unwrap(), b"content");

    rustix::mount::mount_bind(&first, &bound).unwrap();
    let open = File::open(bound.join("file")).unwrap();
    world.ok(&format!("zfs set mountpoint={} tank/a", second.display()));
    assert!(!first.join("file").exists());
    world.ok("zfs rename tank/a tank/b");
    fs::write(second.join("file"), b"another").unwrap();
    assert_eq!(fs::read(bound.join("file")).unwrap(), b"another");
    drop(open);
    rustix::mount::unmount(&bound, rustix::mount::UnmountFlags::empty()).unwrap();
    assert_eq!(fs::read(second.join("file")).unwrap(), b"another");
    world.ok("zfs destroy tank/b");
    assert!(!second.join("file").exists());
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn destroy_with_all_below_destroys_what_it_can() {
    let world = World::new();
    world.ok("zfs create -p tank/a/used");
    world.ok("zfs create -p tank/a/other/below");
    world.ok("zfs snapshot -r tank/a@s");
    world.ok("zfs clone tank/a/other@s tank/clone");
    let open = File::create(world.at("a/used/file")).unwrap();
    let busy = format!("cannot unmount '{}': pool or dataset is busy\n", world.at("a/used").display());
    assert_eq!(world.fails("zfs destroy -R tank/a"), busy);
    assert_eq!(world.ok("zfs list -Hrt all -o name tank"), "tank\ntank/a\ntank/a/used\n");
    assert_eq!(world.mounted(), ["a", "a/used"]);
    // Without the words of ZFS it is all or nothing.
    world.ok("zfs create tank/a/third");
    world.ok("snapshot tank/a@t");
    assert_eq!(world.run("destroy -r tank/a").code, 1);
    assert_eq!(world.ok("zfs list -Hrt all -o name tank/a").lines().count(), 4);
    drop(open);
    world.ok("zfs destroy -r tank/a");
    assert_eq!(world.mounted(), [""; 0]);
    world.world.wait_until_closed();
    world.ok("check tank");
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn a_snapshot_that_somebody_works_in_is_not_destroyed() {
    let world = World::new();
    world.ok("zfs create tank/a");
    fs::write(world.at("a/file"), b"content").unwrap();
    for name in ["s", "t"] {
        world.ok(&format!("zfs snapshot tank/a@{name}"));
    }
    let inside = world.at("a/.zfs/snapshot/s");
    // One that works in it; its input keeps it there.
    let mut shell = Command::new("cat").current_dir(&inside).stdin(Stdio::piped()).spawn().unwrap();
    let busy = "cannot destroy snapshot tank/a@s: dataset is busy\n";
    assert_eq!(world.fails("zfs destroy tank/a@s"), "cannot destroy snapshot tank/a@s: dataset is busy\n");
    world.ok("zfs clone tank/a@s tank/clone");
    assert_eq!(world.fails("zfs destroy -R tank/a@s"), busy);
    assert_eq!(world.ok("zfs list -Ho name -t all -r tank/a"), "tank/a\ntank/a@s\ntank/a@t\n");
    drop(shell.stdin.take());
    shell.wait().unwrap();
    // A file of it that is open; what was only looked at is in nobody's way.
    let open = File::open(inside.join("file")).unwrap();
    assert_eq!(world.fails("zfs destroy tank/a@s"), busy);
    drop(open);
    assert_eq!(fs::read(world.at("a/.zfs/snapshot/t/file")).unwrap(), b"content");
    world.ok("zfs destroy tank/a@s,t");
    world.ok("zfs unmount tank/a");
    world.world.wait_until_closed();
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn what_was_renamed_while_mounted_is_listed_by_its_new_name() {
    let world = World::new();
    world.ok("zfs create -p tank/a/b");
    world.ok("zfs rename -u tank/a tank/z");
    // Other tests mount too.
    let own = || {
        let top = world.at("").to_str().unwrap().to_owned();
        let all = world.ok("zfs mount");
        all.lines().filter(|line| line.contains(&top)).map(|line| format!("{line}\n")).collect::<String>()
    };
    let listed = own();
    let lines: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    for (name, dir) in [("tank/z", "a"), ("tank/z/b", "a/b")] {
        let dir = world.at(dir);
        assert!(lines.contains(&vec![name, dir.to_str().unwrap()]), "{listed}");
    }
    assert!(!listed.contains("tank/a"), "{listed}");
    assert!(world.ok("zfs mount -j").contains("tank/z/b"));
    world.ok("zfs unmount tank/z");
    world.world.wait_until_closed();
    assert_eq!(own(), "");
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn zfs_sends_a_filesystem_as_it_is_only_if_it_is_not_mounted() {
    let world = World::new();
    world.ok("zfs create tank/a");
    let refused = world.run("zfs send tank/a");
    assert_eq!((refused.code, refused.out.as_str()), (1, ""));
    assert!(refused.err.contains("it must not be mounted"), "{refused:?}");
    world.world.scratch.to_file("send tank/a", "mounted.zstream");
    world.ok("zfs mount -o remount,ro tank/a");
    world.world.scratch.to_file("zfs send tank/a", "reading.zstream");
    world.ok("zfs unmount tank/a");
    world.world.scratch.to_file("zfs send tank/a", "unmounted.zstream");
    world.world.wait_until_closed();
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn a_full_stream_replaces_no_filesystem_that_is_in_use() {
    let world = World::new();
    world.ok("zfs create -u tank/from");
    world.ok("zfs snapshot tank/from@s");
    let stream = world.world.scratch.to_file("send tank/from@s", "full.zstream");
    world.ok("zfs create -p tank/to/below");
    let receive = || {
        let mut command = world.command("zfs receive -F tank/to");
        command.stdin(File::open(&stream).unwrap());
        Said::of(command)
    };
    let open = File::create(world.at("to/below/file")).unwrap();
    let busy = format!("cannot unmount '{}': pool or dataset is busy\n", world.at("to/below").display());
    let said = receive();
    assert_eq!((said.code, said.err), (1, busy));
    assert_eq!(world.ok("zfs list -Ht snapshot -o name"), "tank/from@s\n");
    drop(open);
    let said = receive();
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    assert_eq!(world.mounted(), ["to", "to/below"]);
    world.ok("zfs unmount tank/to");
    world.world.wait_until_closed();
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn what_a_mount_does_not_grant_is_temporarily_off() {
    let world = World::new();
    world.ok("zfs create tank/a");
    let shown = || world.ok("zfs get -Ho value,source setuid,devices tank/a");
    assert_eq!(shown(), "off\ttemporary\noff\ttemporary\n");
    world.ok("zfs set setuid=on tank/a");
    assert_eq!(shown(), "on\tlocal\noff\ttemporary\n");
    world.ok("zfs unmount tank/a");
    assert_eq!(shown(), "on\tlocal\non\tdefault\n");
    world.ok("zfs mount -o dev,nosuid tank/a");
    assert_eq!(shown(), "off\ttemporary\non\tdefault\n");
    world.ok("zfs unmount tank/a");
    world.world.wait_until_closed();
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn stat_has_the_size_of_a_files_own_blocks() {
    let world = World::new();
    world.ok("zfs create -o recordsize=16K tank/a");
    fs::write(world.at("a/file"), vec![7; 300 << 10]).unwrap();
    fs::write(world.at("a/small"), b"small").unwrap();
    world.ok("zfs set recordsize=1M tank/a");
    let size = |name: &str| fs::metadata(world.at(name)).unwrap().blksize();
    assert_eq!((size("a/file"), size("a/small")), (16 << 10, 1 << 20));
    world.ok("zfs unmount tank/a");
    world.world.wait_until_closed();
}
