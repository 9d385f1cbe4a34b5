//! Filesystems of the kernel inside volumes, over `serve zvol` and over NBD.
//!
//! They are written while snapshots are taken, and while the server is killed. Needs root, FUSE, loop devices and
//! Debian's e2fsprogs, xfsprogs, fio and libnbd-bin (`nbdfuse`): `.ci/run clients` runs them.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::Scratch;

/// Maximum time for something that normally takes moments.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ext4,
    Xfs,
}

impl Kind {
    fn make(self, device: &str) {
        match self {
            Self::Ext4 => run("mkfs.ext4", &["-q", device]),
            Self::Xfs => run("mkfs.xfs", &["-q", device]),
        };
    }

    /// Checks that an unmounted filesystem has no errors, after it was cut off and mounted again.
    fn check(self, device: &str) {
        match self {
            Self::Ext4 => run("e2fsck", &["-fn", device]),
            Self::Xfs => run("xfs_repair", &["-n", device]),
        };
    }
}

/// How a volume is presented as a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Zvol,
    Nbd,
}

/// Runs a command that must succeed. Returns its output.
fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let output = output.unwrap_or_else(|error| panic!("{program} (see the packages above): {error}"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{program} {args:?}: {}\n{out}\n{said}", output.status);
    out
}

/// Runs a command that may fail, for cleaning up.
fn attempt(program: &str, args: &[&str]) -> bool {
    let done = Command::new(program).args(args).stdout(Stdio::null()).stderr(Stdio::null()).status();
    done.is_ok_and(|status| status.success())
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}: not so after {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// An export as a file, made by `nbdfuse`.
struct NbdFile {
    client: Child,
    directory: PathBuf,
}

impl NbdFile {
    fn new(directory: PathBuf, options: &[&str], socket: &Path, export: &str) -> Self {
        fs::create_dir_all(&directory).unwrap();
        let uri = format!("nbd+unix:///{export}?socket={}", socket.display());
        let client = Command::new("nbdfuse").args(options).arg(directory.join("v")).arg(uri).spawn();
        let file = Self { client: client.unwrap_or_else(|error| panic!("nbdfuse: {error}")), directory };
        wait_until("nbdfuse", || fs::metadata(file.path()).is_ok_and(|found| found.len() > 0));
        file
    }

    fn path(&self) -> PathBuf {
        self.directory.join("v")
    }
}

impl Drop for NbdFile {
    fn drop(&mut self) {
        attempt("umount", &["-l", self.directory.to_str().unwrap()]);
        let _ = self.client.kill();
        let _ = self.client.wait();
    }
}

/// The volumes of a pool as files.
struct Served {
    server: Child,
    /// Over NBD.
    client: Option<NbdFile>,
    directory: PathBuf,
    socket: PathBuf,
    way: Way,
}

impl Served {
    fn start(scratch: &Scratch, way: Way) -> Self {
        let directory = scratch.path().join("volumes");
        fs::create_dir_all(&directory).unwrap();
        let socket = scratch.path().join("nbd.sock");
        let line = match way {
            Way::Zvol => format!("serve zvol {} tank", directory.display()),
            Way::Nbd => format!("serve nbd --unix {} tank", socket.display()),
        };
        let mut server = scratch.command(&line).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let mut served = Self { server, client: None, directory, socket, way };
        if way == Way::Nbd {
            served.client = Some(NbdFile::new(served.directory.clone(), &[], &served.socket, "tank/v"));
        }
        served
    }

    fn file(&self, name: &str) -> PathBuf {
        match self.way {
            Way::Zvol => self.directory.join("tank").join(name),
            Way::Nbd => self.directory.join(name),
        }
    }

    /// Kills the server, like a power failure.
    fn kill(mut self) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.client = None;
        attempt("umount", &["-l", self.directory.to_str().unwrap()]);
        // `serve zvol` ends when it is unmounted. The NBD server needs a signal.
        if self.way == Way::Nbd {
            let pid = rustix::process::Pid::from_child(&self.server);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        }
        let _ = self.server.wait();
    }
}

/// A file as a loop device, and the filesystem mounted from it.
struct Attached {
    device: String,
    mount: PathBuf,
}

impl Attached {
    fn new(scratch: &Scratch, file: &Path) -> Self {
        Self::with(scratch, &[], file)
    }

    fn with(scratch: &Scratch, options: &[&str], file: &Path) -> Self {
        let words = [options, &["--find", "--show", file.to_str().unwrap()]].concat();
        let device = run("losetup", &words).trim().to_owned();
        let mount = scratch.path().join("guest");
        fs::create_dir_all(&mount).unwrap();
        Self { device, mount }
    }

    fn mount(&self) {
        self.mount_with("defaults");
    }

    fn mount_with(&self, options: &str) {
        run("mount", &["-o", options, &self.device, self.mount.to_str().unwrap()]);
    }

    fn unmount(&self) {
        run("umount", &[self.mount.to_str().unwrap()]);
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        attempt("umount", &[self.mount.to_str().unwrap()]);
        attempt("losetup", &["--detach", &self.device]);
    }
}

/// The content of file `number`. Its length depends on the number, and it differs from all others.
fn content(number: usize) -> Vec<u8> {
    let mut state = number as u64 + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as u8
    };
    (0..1 + number * 7919 % 60_000).map(|_| next()).collect()
}

/// Writes files and makes each durable, until `stop` is set or a write fails. Counts the durable files.
fn write_files(top: &Path, durable: &AtomicUsize, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let number = durable.load(Ordering::Acquire);
        let written = File::create(top.join(format!("f{number}"))).and_then(|mut file| {
            file.write_all(&content(number))?;
            file.sync_all()
        });
        if written.is_err() {
            return;
        }
        durable.store(number + 1, Ordering::Release);
    }
}

fn has_files(top: &Path, count: usize) {
    for number in 0..count {
        let held = fs::read(top.join(format!("f{number}")));
        assert!(held.is_ok_and(|held| held == content(number)), "f{number} of {count}");
    }
}

fn snapshots_while_writing(kind: Kind) {
    let scratch = Scratch::with_pool();
    scratch.ok("create -s -V 512M tank/v");
    let served = Served::start(&scratch, Way::Zvol);
    let guest = Attached::new(&scratch, &served.file("v"));
    kind.make(&guest.device);
    guest.mount();
    let (durable, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut taken = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| write_files(&guest.mount, &durable, &stop));
        for number in 0..4 {
            let wanted = durable.load(Ordering::Acquire) + 5;
            wait_until("files are written", || durable.load(Ordering::Acquire) >= wanted);
            let before = durable.load(Ordering::Acquire);
            scratch.ok(&format!("snapshot tank/v@{number}"));
            taken.push(before);
        }
        let fio = [
            "--name=verify",
            "--filename=fio",
            "--size=24m",
            "--rw=randwrite",
            "--bs=4k",
            "--verify=crc32c",
            "--fsync=64",
            "--ioengine=psync",
        ];
        let done = Command::new("fio").args(fio).current_dir(&guest.mount).output().expect("fio");
        assert!(done.status.success(), "{done:?}");
        stop.store(true, Ordering::Relaxed);
    });
    guest.unmount();
    kind.check(&guest.device);
    drop(guest);
    for (number, count) in taken.into_iter().enumerate() {
        scratch.ok(&format!("clone tank/v@{number} tank/c{number}"));
        let guest = Attached::new(&scratch, &served.file(&format!("c{number}")));
        // Mounting replays the journal.
        guest.mount();
        has_files(&guest.mount, count);
        guest.unmount();
        kind.check(&guest.device);
    }
    drop(served);
    scratch.ok("check tank");
}

fn the_plug_is_pulled(kind: Kind, way: Way) {
    let scratch = Scratch::with_pool();
    scratch.ok("create -s -V 512M tank/v");
    let (durable, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    for round in 1..=3 {
        let served = Served::start(&scratch, way);
        let guest = Attached::new(&scratch, &served.file("v"));
        if round == 1 {
            kind.make(&guest.device);
        }
        guest.mount();
        has_files(&guest.mount, durable.load(Ordering::Acquire));
        std::thread::scope(|scope| {
            scope.spawn(|| write_files(&guest.mount, &durable, &stop));
            let wanted = durable.load(Ordering::Acquire) + 10 * round;
            wait_until("files are written", || durable.load(Ordering::Acquire) >= wanted);
            served.kill();
        });
        drop(guest);
        scratch.ok("check tank");
    }
    let served = Served::start(&scratch, way);
    let guest = Attached::new(&scratch, &served.file("v"));
    guest.mount();
    has_files(&guest.mount, durable.load(Ordering::Acquire));
    guest.unmount();
    kind.check(&guest.device);
    drop(guest);
    drop(served);
    scratch.ok("check tank");
}

#[test]
#[ignore = "needs root, FUSE, loop devices, e2fsprogs, fio: .ci/run clients"]
fn ext4_in_a_volume_while_snapshots_are_taken() {
    snapshots_while_writing(Kind::Ext4);
}

#[test]
#[ignore = "needs root, FUSE, loop devices, xfsprogs, fio: .ci/run clients"]
fn xfs_in_a_volume_while_snapshots_are_taken() {
    snapshots_while_writing(Kind::Xfs);
}

#[test]
#[ignore = "needs root, FUSE, loop devices, e2fsprogs: .ci/run clients"]
fn ext4_in_a_volume_survives_the_server() {
    the_plug_is_pulled(Kind::Ext4, Way::Zvol);
}

#[test]
#[ignore = "needs root, FUSE, loop devices, xfsprogs: .ci/run clients"]
fn xfs_in_a_volume_survives_the_server() {
    the_plug_is_pulled(Kind::Xfs, Way::Zvol);
}

#[test]
#[ignore = "needs root, FUSE, loop devices, e2fsprogs, libnbd-bin: .ci/run clients"]
fn ext4_over_nbd_survives_the_server() {
    the_plug_is_pulled(Kind::Ext4, Way::Nbd);
}

#[test]
#[ignore = "needs root, FUSE, loop devices, xfsprogs, libnbd-bin: .ci/run clients"]
fn xfs_over_nbd_survives_the_server() {
    the_plug_is_pulled(Kind::Xfs, Way::Nbd);
}

/// Reads a snapshot of a frozen guest through its own export. No journal is replayed.
#[test]
#[ignore = "needs root, FUSE, loop devices, e2fsprogs, libnbd-bin: .ci/run clients"]
fn ext4_in_a_snapshot_is_read_over_nbd() {
    let scratch = Scratch::with_pool();
    scratch.ok("create -s -V 256M tank/v");
    let served = Served::start(&scratch, Way::Nbd);
    let guest = Attached::new(&scratch, &served.file("v"));
    Kind::Ext4.make(&guest.device);
    guest.mount();
    let top = guest.mount.to_str().unwrap();
    for number in 0..30 {
        fs::write(guest.mount.join(format!("f{number}")), content(number)).unwrap();
    }
    run("fsfreeze", &["--freeze", top]);
    scratch.ok("snapshot tank/v@monday");
    run("fsfreeze", &["--unfreeze", top]);
    for number in 0..30 {
        fs::write(guest.mount.join(format!("f{number}")), content(number + 100)).unwrap();
    }
    fs::write(guest.mount.join("f30"), b"later").unwrap();
    guest.unmount();
    drop(guest);

    let snapshot =
        NbdFile::new(scratch.path().join("monday"), &["--readonly"], &served.socket, "tank/v@monday");
    let guest = Attached::with(&scratch, &["--read-only"], &snapshot.path());
    Kind::Ext4.check(&guest.device);
    guest.mount_with("ro,noload");
    has_files(&guest.mount, 30);
    assert!(!guest.mount.join("f30").exists());
    guest.unmount();
    drop((guest, snapshot, served));
    scratch.ok("check tank");
}

/// Volumes as files: names, sizes, holes, limits.
#[test]
#[ignore = "needs FUSE: .ci/run clients"]
fn volumes_are_files() {
    use std::os::unix::fs::{FileExt, MetadataExt};
    let scratch = Scratch::with_pool();
    scratch.ok("create -s -V 8M -b 4K tank/v");
    scratch.ok("create tank/none");
    scratch.ok("create -p -V 1M tank/a/b/w");
    let served = Served::start(&scratch, Way::Zvol);
    let names = |below: &str| {
        let entries = fs::read_dir(served.directory.join(below)).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names(""), ["tank"]);
    assert_eq!(names("tank"), ["a", "v"]);
    assert_eq!(names("tank/a/b"), ["w"]);
    let path = served.file("v");
    let found = fs::metadata(&path).unwrap();
    assert_eq!((found.len(), found.is_file(), found.mode() & 0o777), (8 << 20, true, 0o600));

    let file = File::options().read(true).write(true).open(&path).unwrap();
    file.write_all_at(&[7; 10_000], 4000).unwrap();
    file.write_all_at(&[8; 10], (8 << 20) - 10).unwrap();
    assert_eq!(file.write_at(&[9; 20], (8 << 20) - 10).unwrap(), 10, "cut off at the end");
    let full = file.write_at(&[9; 20], 8 << 20).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(rustix::io::Errno::NOSPC.raw_os_error()));
    file.sync_all().unwrap();
    scratch.ok("snapshot tank/v@s");
    let mut back = vec![0; 20_000];
    assert_eq!(file.read_at(&mut back, 0).unwrap(), 20_000);
    assert!(back[..4000].iter().chain(&back[14_000..]).all(|byte| *byte == 0));
    assert!(back[4000..14_000].iter().all(|byte| *byte == 7));
    assert_eq!(file.read_at(&mut back, 8 << 20).unwrap(), 0);
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)).unwrap(), 16_384);
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(16_384)).unwrap(), (8 << 20) - 4096);

    // Opening with truncation has no effect, as with a block device.
    drop(File::create(&path).unwrap());
    assert_eq!(fs::metadata(&path).unwrap().len(), 8 << 20);
    use rustix::fs::FallocateFlags;
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 0, 8192).unwrap();
    assert_eq!(file.read_at(&mut back[..8193], 0).unwrap(), 8193);
    assert!(back[..8192].iter().all(|byte| *byte == 0) && back[8192] == 7);

    let snapshot = served.file("v@s");
    assert!(File::options().write(true).open(&snapshot).is_err());
    let frozen = File::open(&snapshot).unwrap();
    assert_eq!(frozen.read_at(&mut back[..5000], 0).unwrap(), 5000);
    assert_eq!((back[3999], back[4000]), (0, 7));

    file.set_len(16 << 20).unwrap();
    assert_eq!(scratch.ok("get -Hpo value volsize tank/v"), "16777216\n");
    assert_eq!(scratch.ok("get -Hpo value refreservation tank/v"), "0\n");
    // The reservation is the same as that of `refreservation=auto`.
    let whole = served.directory.join("tank/a/b/w");
    File::options().write(true).open(whole).unwrap().set_len(64 << 20).unwrap();
    let reserved = scratch.ok("get -Hpo value refreservation tank/a/b/w");
    scratch.ok("set refreservation=auto tank/a/b/w");
    assert_eq!(scratch.ok("get -Hpo value refreservation tank/a/b/w"), reserved);
    // `dd seek=` truncates like this. It must not destroy the data after that offset.
    file.write_all_at(&[9; 512], 12 << 20).unwrap();
    for size in [8 << 20, 100, 0] {
        file.set_len(size).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 16 << 20);
    }
    assert_eq!(file.read_at(&mut back[..512], 12 << 20).unwrap(), 512);
    assert!(back[..512].iter().all(|byte| *byte == 9));
    assert_eq!(scratch.ok("get -Hpo value volsize tank/v"), "16777216\n");
    scratch.ok("set volsize=4M tank/v");
    assert_eq!(file.metadata().unwrap().len(), 4 << 20);
    assert_eq!(fs::metadata(&snapshot).unwrap().len(), 8 << 20);

    assert!(scratch.fails(1, "destroy -r tank/v").contains("busy"));
    drop((file, frozen));
    assert!(fs::remove_file(&path).is_err() && fs::write(served.file("new"), "x").is_err());
    assert!(fs::metadata(served.file("nothing")).is_err());
    drop(served);
    scratch.ok("check tank");
}
