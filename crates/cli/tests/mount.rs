//! Mounting with the real binary: the background process, other commands at the same time, and sudden death.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::mounting::{Mounting, mounted_below, wait_for};
use common::{Scratch, demo};

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn a_mount_lives_in_the_background() {
    let world = Mounting::new(Scratch::with_pool());
    let scratch = &world.scratch;
    scratch.ok("create tank/fs");
    assert_eq!(scratch.ok("get -Ho value mounted tank/fs"), "no\n");
    assert_eq!(scratch.ok("mount tank/fs mnt"), "");
    assert!(world.owner().is_some());
    let line = format!("{:<30}  {}\n", "tank/fs", world.dir().display());
    assert!(scratch.ok("mount").contains(&line));
    assert_eq!(scratch.ok("get -Ho value mounted tank/fs"), "yes\n");
    assert_eq!(scratch.ok("list -Ho name,mounted tank/fs"), "tank/fs\tyes\n");
    fs::write(world.dir().join("file"), b"content").unwrap();
    // The process that serves the mount executes the other commands.
    scratch.ok("snapshot tank/fs@one");
    assert_eq!(fs::read(world.dir().join(".zfs/snapshot/one/file")).unwrap(), b"content");
    assert_eq!(scratch.ok("cat tank/fs@one:file"), "content");
    assert_eq!(scratch.fails(1, "mount tank/fs mnt"), "cannot mount 'tank/fs': filesystem already mounted\n");
    assert_eq!(scratch.fails(1, "destroy -r tank/fs"), "cannot destroy 'tank/fs': dataset is busy\n");
    let busy = scratch.fails(1, "pool export tank");
    let owner = format!("cannot export 'tank': pool is busy\nprocess {} uses it: ", world.owner().unwrap());
    assert!(busy.starts_with(&owner), "{busy}");
    let open = File::open(world.dir().join("file")).unwrap();
    let busy = format!("cannot unmount '{}': pool or dataset is busy\n", world.dir().display());
    assert_eq!(scratch.fails(1, "unmount tank/fs"), busy);
    drop(open);
    assert_eq!(scratch.ok("unmount tank/fs"), "");
    world.wait_until_closed();
    assert!(!world.dir().join("file").exists());
    assert_eq!(scratch.fails(1, "unmount tank/fs"), "cannot unmount 'tank/fs': not currently mounted\n");
    scratch.ok("check tank");
    assert_eq!(scratch.run("pool export tank").code, 0);
}

/// The owner already accepts commands when `mount` returns.
#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn the_owner_serves_when_mount_returns() {
    let world = Mounting::new(Scratch::with_pool());
    let socket = world.scratch.path().join("data/snowmelt/tank/control.sock");
    for _ in 0..5 {
        world.scratch.ok(&format!("mount tank {}", world.dir().display()));
        assert!(socket.exists());
        world.scratch.ok("unmount tank");
        world.wait_until_closed();
    }
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn pools_of_one_name_are_told_apart() {
    let (first, second) = (Mounting::new(Scratch::with_pool()), Mounting::new(Scratch::with_pool()));
    for world in [&first, &second] {
        world.scratch.ok("create tank/fs");
    }
    first.scratch.ok("mount tank/fs mnt");
    assert_eq!(second.scratch.ok("get -Ho value mounted tank/fs"), "no\n");
    let refused = "cannot unmount 'tank/fs': not currently mounted\n";
    assert_eq!(second.scratch.fails(1, "unmount tank/fs"), refused);
    second.scratch.ok("unmount -a");
    second.scratch.ok("mount tank/fs mnt");
    first.scratch.ok("unmount -a");
    first.wait_until_closed();
    assert_eq!(first.scratch.ok("get -Ho value mounted tank/fs"), "no\n");
    assert_eq!(second.scratch.ok("get -Ho value mounted tank/fs"), "yes\n");
    second.scratch.ok("rename tank/fs tank/renamed");
    assert_eq!(second.scratch.ok("get -Ho value mounted tank/renamed"), "yes\n");
    second.scratch.ok("unmount tank/renamed");
    second.wait_until_closed();
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn umount_ends_it_too() {
    let world = Mounting::new(Scratch::with_pool());
    let scratch = &world.scratch;
    scratch.ok("create tank/fs");
    scratch.ok("create tank/other");
    scratch.ok("mount tank/fs mnt");
    fs::create_dir(world.dir().join("inside")).unwrap();
    let owner = world.owner();
    scratch.ok("mount tank/other mnt/inside");
    assert_eq!(world.owner(), owner, "one process has the pool");
    fs::write(world.dir().join("inside/file"), b"x").unwrap();
    let umount = |dir: PathBuf| assert!(Command::new("umount").arg(dir).status().unwrap().success());
    umount(world.dir().join("inside"));
    fs::write(world.dir().join("file"), b"y").unwrap();
    umount(world.dir());
    world.wait_until_closed();
    // The last write was committed.
    scratch.ok("mount tank/other mnt");
    assert_eq!(fs::read(world.dir().join("file")).unwrap(), b"x");
    scratch.ok("unmount -a");
    world.wait_until_closed();
    scratch.ok("check tank");
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn properties_say_where_and_how() {
    let world = Mounting::new(Scratch::with_pool());
    let scratch = &world.scratch;
    let top = world.dir();
    scratch.ok("create -o canmount=off tank/top");
    scratch.ok(&format!("set mountpoint={} tank/top", top.join("deep/at").display()));
    scratch.ok("create tank/top/a");
    scratch.ok("create -o readonly=on tank/top/b");
    scratch.ok("create -o mountpoint=none tank/none");
    scratch.ok("create -o mountpoint=legacy tank/legacy");
    assert_eq!(scratch.fails(1, "mount tank/none"), "cannot mount 'tank/none': no mountpoint set\n");
    assert!(
        scratch.fails(1, "mount tank/legacy").starts_with("cannot mount 'tank/legacy': legacy mountpoint\n")
    );
    assert_eq!(
        scratch.fails(1, "mount tank/top"),
        "cannot mount 'tank/top': 'canmount' property is set to 'off'\n"
    );
    scratch.ok("set canmount=noauto tank");
    assert_eq!(scratch.ok("mount -a"), "");
    let mounted: Vec<_> = mounted_below(&top);
    assert_eq!(mounted, [top.join("deep/at/a"), top.join("deep/at/b")]);
    fs::write(top.join("deep/at/a/file"), b"x").unwrap();
    assert!(fs::write(top.join("deep/at/b/file"), b"x").is_err());
    assert_eq!(scratch.ok("mount -a"), "", "what is mounted already is passed over");
    scratch.ok(&format!("unmount {}", top.join("deep/at/b").display()));
    scratch.ok("mount -o rw,noexec tank/top/b");
    fs::write(top.join("deep/at/b/file"), b"x").unwrap();
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = table.lines().find(|line| line.contains("deep/at/b")).unwrap();
    assert!(line.contains("noexec") && line.contains("rw,"), "{line}");
    assert!(scratch.fails(2, "mount -o zap tank/top/a").starts_with("unknown mount option 'zap'\n"));
    scratch.ok("unmount -a");
    world.wait_until_closed();
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn snapshots_are_mounted_for_reading() {
    let world = Mounting::new(Scratch::with_home());
    let scratch = &world.scratch;
    scratch.ok("mount tank/home@monday mnt");
    let names = |dir: PathBuf| {
        let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let listed = scratch.ok("ls tank/home@monday");
    let mut expected: Vec<_> = listed.lines().map(std::ffi::OsString::from).collect();
    expected.sort();
    assert_eq!(names(world.dir()), expected);
    assert!(fs::write(world.dir().join("x"), b"").is_err());
    scratch.ok("unmount tank/home@monday");
    world.wait_until_closed();
    assert!(
        scratch
            .fails(2, "mount tank/home@monday")
            .starts_with("a snapshot needs a directory to be mounted on")
    );
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn a_rollback_beside_it_shows_at_once() {
    let world = Mounting::new(Scratch::with_home());
    let scratch = &world.scratch;
    scratch.ok("mount tank/home mnt");
    scratch.ok("snapshot tank/home@before");
    let before: Vec<_> = fs::read_dir(world.dir()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    fs::write(world.dir().join("made later"), b"x").unwrap();
    fs::remove_file(
        fs::read_dir(world.dir())
            .unwrap()
            .flatten()
            .find(|e| e.file_type().unwrap().is_file())
            .unwrap()
            .path(),
    )
    .unwrap();
    scratch.ok("rollback tank/home@before");
    let after: Vec<_> = fs::read_dir(world.dir()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(after, before);
    // A changed property takes effect at once too.
    assert!(!after.iter().any(|name| name == ".zfs"));
    scratch.ok("set snapdir=visible tank/home");
    assert!(fs::read_dir(world.dir()).unwrap().any(|entry| entry.unwrap().file_name() == ".zfs"));
    scratch.ok("unmount tank/home");
    world.wait_until_closed();
    scratch.ok("check tank");
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn what_was_synced_survives_a_kill() {
    let world = Mounting::new(Scratch::with_pool());
    let scratch = &world.scratch;
    scratch.ok("create tank/fs");
    let mut rounds = Vec::new();
    for round in 0..4 {
        scratch.ok("mount tank/fs mnt");
        let dir = world.dir();
        for (name, content) in &rounds {
            assert_eq!(&fs::read(dir.join(name)).unwrap(), content, "{name}");
        }
        // Synced by fsync, by O_DSYNC, and by syncing the directory.
        let content: Vec<u8> =
            (0..200_000_u32 + round).map(|n| (n.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
        let mut file = File::create(dir.join(format!("fsync-{round}"))).unwrap();
        file.write_all(&content).unwrap();
        file.sync_all().unwrap();
        rounds.push((format!("fsync-{round}"), content.clone()));
        let dsync = OpenOptions::new()
            .write(true)
            .create_new(true)
            .custom_flags(rustix::fs::OFlags::DSYNC.bits() as i32)
            .open(dir.join(format!("dsync-{round}")))
            .unwrap();
        dsync.write_all_at(&content[..5000], 0).unwrap();
        rounds.push((format!("dsync-{round}"), content[..5000].to_vec()));
        fs::write(dir.join(format!("name-{round}")), b"named").unwrap();
        fs::rename(dir.join(format!("name-{round}")), dir.join(format!("renamed-{round}"))).unwrap();
        File::open(&dir).unwrap().sync_all().unwrap();
        rounds.push((format!("renamed-{round}"), b"named".to_vec()));
        // A file that was unlinked while open must not stay for ever.
        let unlinked = File::create(dir.join("unlinked")).unwrap();
        unlinked.write_all_at(&content, 0).unwrap();
        fs::remove_file(dir.join("unlinked")).unwrap();
        unlinked.sync_all().unwrap();
        // While more is being written.
        let owner = world.owner().unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for number in 0.. {
                    if fs::write(dir.join(format!("more-{round}-{number}")), &content[..number % 20_000])
                        .is_err()
                    {
                        break;
                    }
                }
            });
            std::thread::sleep(Duration::from_millis(150 + 100 * u64::from(round)));
            let pid = rustix::process::Pid::from_raw(owner as i32).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            writer.join().unwrap();
        });
        drop((file, dsync, unlinked));
        world.wait_until_closed();
        assert!(fs::read_dir(&dir).is_err(), "the mount is dead");
        scratch.ok("check tank");
    }
    // The next mount replaces a dead one, and unmount removes it.
    scratch.ok("mount tank/fs mnt");
    for (name, content) in &rounds {
        assert_eq!(&fs::read(world.dir().join(name)).unwrap(), content, "{name}");
    }
    let pid = rustix::process::Pid::from_raw(world.owner().unwrap() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    world.wait_until_closed();
    scratch.ok("unmount tank/fs");
    assert_eq!(mounted_below(&world.dir()), Vec::<PathBuf>::new());
    // The same holds for dead mounts inside each other. The inner one cannot even be reached.
    scratch.ok("create tank/inner");
    scratch.ok("mount tank/fs mnt");
    fs::create_dir(world.dir().join("inner")).unwrap();
    scratch.ok("mount tank/inner mnt/inner");
    let pid = rustix::process::Pid::from_raw(world.owner().unwrap() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    world.wait_until_closed();
    scratch.ok("unmount -a");
    assert_eq!(mounted_below(&world.dir()), Vec::<PathBuf>::new());
    scratch.ok("check tank");
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn in_the_foreground_an_interrupt_unmounts() {
    let world = Mounting::new(Scratch::with_pool());
    let scratch = &world.scratch;
    scratch.ok("create tank/fs");
    let mut child = scratch.command("mount --foreground tank/fs mnt").stderr(Stdio::piped()).spawn().unwrap();
    wait_for("the mount", || !mounted_below(&world.dir()).is_empty());
    fs::write(world.dir().join("file"), b"x").unwrap();
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(mounted_below(&world.dir()).is_empty());
    scratch.ok("mount tank/fs mnt");
    assert_eq!(fs::read(world.dir().join("file")).unwrap(), b"x");
    // A mount with `--foreground` in another process's pool ends with the command that waits.
    fs::create_dir(scratch.path().join("mnt/inner")).unwrap();
    scratch.ok("create tank/second");
    let mut child = scratch.command("mount --foreground tank/second mnt/inner").spawn().unwrap();
    wait_for("the mount", || mounted_below(&world.dir()).len() == 2);
    assert_ne!(
        fs::metadata(world.dir().join("inner")).unwrap().dev(),
        fs::metadata(world.dir()).unwrap().dev()
    );
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    child.wait().unwrap();
    wait_for("the unmount", || mounted_below(&world.dir()).len() == 1);
    scratch.ok("unmount tank/fs");
    world.wait_until_closed();
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn an_unmount_names_the_namespace_that_keeps_the_mount_and_can_be_interrupted() {
    let world = Mounting::new(Scratch::with_pool());
    let scratch = &world.scratch;
    scratch.ok("create tank/fs");
    scratch.ok("mount tank/fs mnt");
    let mut other = Command::new("unshare");
    // The namespace keeps this mount, but no mounts of other tests.
    let keep =
        "grep fuse.snowmelt /proc/self/mounts | grep -v \" $0 \" | cut -d ' ' -f 2 | xargs -r umount -l
        echo; exec sleep 1000";
    other.args(["--mount", "--propagation", "private", "sh", "-c", keep]).arg(world.dir());
    let mut other = other.stdout(Stdio::piped()).spawn().unwrap();
    other.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
    let unmount = || scratch.command("unmount tank/fs").stderr(Stdio::piped()).spawn().unwrap();
    let mut first = unmount();
    let mut said = BufReader::new(first.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let user = format!("' is still mounted elsewhere, by process {} (sleep 1000)\n", other.id());
    assert!(line.ends_with(&user), "{line}");
    let signal = |child: &Child| {
        let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    };
    signal(&first);
    line.clear();
    said.read_line(&mut line).unwrap();
    assert!(line.contains("interrupted: it is unmounted here"), "{line}");
    assert_eq!(first.wait().unwrap().code(), Some(1));
    // A waiting unmount ends when another command forces the unmount.
    let mut second = unmount();
    let mut said = BufReader::new(second.stderr.take().unwrap());
    said.read_line(&mut line).unwrap();
    scratch.ok("unmount -f tank/fs");
    assert!(second.wait().unwrap().success());
    other.kill().unwrap();
    other.wait().unwrap();
    world.wait_until_closed();
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn mount_8_calls_it_as_a_helper() {
    let world = Mounting::new(Scratch::with_pool());
    let scratch = &world.scratch;
    scratch.ok("create -o mountpoint=legacy tank/fs");
    let helper = |line: &str| {
        let output = scratch.command(line).arg0("/sbin/mount.zfs").output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let dir = world.dir();
    let at = |options: &str| format!("tank/fs {} {options}", dir.display());
    assert_eq!(helper(&at("-f")), (Some(0), String::new()));
    assert!(mounted_below(&dir).is_empty());
    let (status, said) = helper(&at("-o rw,bogus"));
    assert_eq!((status, said.starts_with("unknown mount option 'bogus'\n")), (Some(1), true), "{said}");
    let (status, said) = helper(&at("-x"));
    assert_eq!((status, said.starts_with("invalid option -- 'x'\n")), (Some(1), true), "{said}");
    let (status, said) = helper(&format!("tank/none {}", dir.display()));
    assert_eq!((status, said.as_str()), (Some(32), "cannot open 'tank/none': dataset does not exist\n"));
    assert_eq!(helper(&at("-s -o ro,bogus,x-systemd.automount,noauto -t zfs")), (Some(0), String::new()));
    assert_eq!(mounted_below(&dir), std::slice::from_ref(&dir));
    assert!(fs::write(dir.join("file"), b"").is_err());
    assert_eq!(helper(&at("")).0, Some(32), "it is mounted");
    scratch.ok("unmount tank/fs");
    world.wait_until_closed();
    // A filesystem with its own mountpoint is mounted elsewhere only with `zfsutil`.
    scratch.ok("inherit mountpoint tank/fs");
    let (status, said) = helper(&at("-o ro"));
    let refusal = "filesystem 'tank/fs' cannot be mounted using 'mount'.\n";
    assert_eq!((status, said.starts_with(refusal)), (Some(32), true), "{said}");
    assert!(mounted_below(&dir).is_empty());
    assert_eq!(helper(&at("-o ro,zfsutil")), (Some(0), String::new()));
    assert_eq!(mounted_below(&dir), std::slice::from_ref(&dir));
    scratch.ok("unmount tank/fs");
    world.wait_until_closed();
}

/// Options change while it stays mounted and files stay open.
#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn remounts() {
    let world = Mounting::new(Scratch::with_pool());
    let (scratch, dir) = (&world.scratch, world.dir());
    scratch.ok("create tank/fs");
    assert_eq!(scratch.fails(1, "mount -o remount,ro tank/fs"), "cannot remount 'tank/fs': not mounted\n");
    scratch.ok("mount tank/fs mnt");
    let options = || {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let of_dir = |line: &&str| line.split(' ').nth(1) == dir.to_str();
        mounts.lines().find(of_dir).unwrap().split(' ').nth(3).unwrap().to_owned()
    };
    let has = |option: &str| options().split(',').any(|word| word == option);
    // The origin of the data is unknown, so these options are set.
    assert!(has("nosuid") && has("nodev"), "{}", options());
    let mut open = File::create(dir.join("file")).unwrap();
    open.write_all(b"one").unwrap();
    let busy = scratch.fails(1, "mount -o remount,ro tank/fs");
    assert!(busy.starts_with("cannot remount 'tank/fs': ") && busy.contains("in use"), "{busy}");
    assert!(has("rw"));
    open.write_all(b", two").unwrap();
    drop(open);
    let reader = File::open(dir.join("file")).unwrap();
    let helper = |line: &str| {
        let line = format!("tank/fs {} -o {line}", dir.display());
        let output = scratch.command(&line).arg0("/sbin/mount.fuse.snowmelt").output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(helper("remount,ro,noatime,nodev"), (Some(0), String::new()));
    assert!(has("ro") && has("noatime") && has("nodev"), "{}", options());
    // The kernel may let writes through because of another mount of the same filesystem. They are refused anyway.
    assert_eq!(fs::write(dir.join("file"), b"").unwrap_err().raw_os_error(), Some(30));
    let read = |from: &File| from.metadata().unwrap().atime_nsec();
    let before = read(&reader);
    scratch.ok("set compression=off tank/fs");
    assert_eq!(fs::read(dir.join("file")).unwrap(), b"one, two");
    assert_eq!(read(&reader), before);
    drop(reader);
    assert_eq!(helper("remount,rw"), (Some(0), String::new()));
    assert!(has("rw") && !has("noatime") && has("nodev"), "{}", options());
    assert_eq!(helper("remount,rw,suid,dev"), (Some(0), String::new()));
    assert!(!has("nosuid") && !has("nodev"), "{}", options());
    fs::write(dir.join("file"), b"three").unwrap();
    scratch.ok("snapshot tank/fs@s");
    fs::create_dir(scratch.path().join("snap")).unwrap();
    scratch.ok("mount tank/fs@s snap");
    assert!(scratch.fails(1, "mount -o remount,rw tank/fs@s").starts_with("cannot remount 'tank/fs@s': "));
    scratch.ok("mount -o remount,noexec tank/fs@s");
    scratch.ok("unmount tank/fs@s");
    scratch.ok("unmount tank/fs");
    world.wait_until_closed();
    scratch.ok("check tank");
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn what_cannot_be_mounted_is_told() {
    let world = Mounting::new(Scratch::with_pool());
    let scratch = &world.scratch;
    scratch.ok("create tank/fs");
    scratch.ok("create -V 1M tank/vol");
    assert_eq!(scratch.fails(1, "mount tank/none mnt"), "cannot open 'tank/none': dataset does not exist\n");
    assert_eq!(
        scratch.fails(1, "mount tank/vol mnt"),
        "cannot mount 'tank/vol': operation not applicable to datasets of this type\n"
    );
    let missing = scratch.fails(1, "mount tank/fs nowhere");
    assert!(
        missing.starts_with("cannot mount 'tank/fs': ") && missing.contains("No such file or directory"),
        "{missing}"
    );
    fs::write(scratch.path().join("file"), b"").unwrap();
    assert!(scratch.fails(1, "mount tank/fs file").starts_with("cannot mount 'tank/fs': "));
    let refused = scratch.fails(1, "mount ./file mnt");
    assert!(
        refused.starts_with("cannot mount './file': it is neither a dataset nor a stream: "),
        "{refused}"
    );
    assert!(world.owner().is_none());
    scratch.receive("receive tank/home", &demo("full.zstream"));
    scratch.ok("mount tank/home mnt");
    scratch.ok("unmount tank/home");
    world.wait_until_closed();
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn a_mountpoint_that_came_with_a_stream_is_not_mounted_until_it_is_confirmed() {
    let world = Mounting::new(Scratch::with_pool());
    let scratch = &world.scratch;
    let place = scratch.path().join("like-cron.d");
    fs::create_dir(&place).unwrap();
    for name in ["tank/theirs", "tank/theirs/below"] {
        scratch.ok(&format!("create {name}"));
    }
    scratch.ok(&format!("set mountpoint={} tank/theirs", place.display()));
    scratch.ok("snapshot -r tank/theirs@s");
    let stream = scratch.to_file("send -R tank/theirs@s", "stream");
    scratch.ok("destroy -r tank/theirs");
    scratch.receive("receive tank/theirs", &stream);
    scratch.ok("set canmount=noauto tank");
    let shown = format!("{}\treceived\n", place.display());
    assert_eq!(scratch.ok("get -H -o value,source mountpoint tank/theirs"), shown);
    let said = scratch.run("mount -a");
    assert_eq!(said.code, 0, "{said:?}");
    for name in ["'tank/theirs' is not mounted", "'tank/theirs/below' is not mounted"] {
        assert!(said.err.contains(name), "{said:?}");
    }
    assert!(mounted_below(&place).is_empty());
    scratch.ok(&format!("set mountpoint={} tank/theirs", place.display()));
    assert_eq!(scratch.ok("mount -a"), "");
    assert_eq!(mounted_below(&place).len(), 2);
    scratch.ok("unmount -a");
    world.wait_until_closed();
}
