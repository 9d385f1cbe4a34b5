//! Snapshots and rollbacks of filesystems that are mounted and in use.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, Ordering};

use common::World;
use snowmelt_dataset::{CloneOptions, DestroyPlan, RenameOptions};

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn snapshots_show_below_dot_zfs_while_files_are_written() {
    let world = World::new();
    let mount = world.mount();
    let dir = world.dir();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Two files with the same number. They are written one after the other, so in a snapshot they may differ by
        // one.
        scope.spawn(|| {
            let first = File::create(dir.join("first")).unwrap();
            let second = File::create(dir.join("second")).unwrap();
            let mut number: u64 = 0;
            while !stop.load(Ordering::Relaxed) {
                first.write_all_at(&number.to_le_bytes(), 0).unwrap();
                second.write_all_at(&number.to_le_bytes(), 0).unwrap();
                number += 1;
            }
        });
        while !dir.join("second").exists() {
            std::thread::yield_now();
        }
        for round in 0..8 {
            world.snapshot(&format!("s{round}"));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let number = |path: String| {
        let bytes = fs::read(dir.join(path)).unwrap();
        bytes.try_into().map_or(0, u64::from_le_bytes)
    };
    let mut last = 0;
    for round in 0..8 {
        let first = number(format!(".zfs/snapshot/s{round}/first"));
        let second = number(format!(".zfs/snapshot/s{round}/second"));
        assert!(first == second || first == second + 1, "round {round}: {first} and {second}");
        assert!(first >= last);
        last = first;
    }
    let names: Vec<_> =
        fs::read_dir(dir.join(".zfs/snapshot")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, (0..8).map(|round| format!("s{round}").into()).collect::<Vec<std::ffi::OsString>>());
    world.unmount(&mount);
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn dot_zfs_is_there_for_those_who_know() {
    let world = World::new();
    let mount = world.mount();
    let dir = world.dir();
    fs::write(dir.join("file"), b"old").unwrap();
    world.snapshot("monday");
    fs::write(dir.join("file"), b"new").unwrap();
    let listed = || fs::read_dir(&dir).unwrap().any(|entry| entry.unwrap().file_name() == ".zfs");
    assert!(!listed());
    let old = dir.join(".zfs/snapshot/monday/file");
    assert_eq!(fs::read(&old).unwrap(), b"old");
    assert_ne!(fs::metadata(&old).unwrap().ino(), fs::metadata(dir.join("file")).unwrap().ino());
    for refused in [
        fs::write(&old, b"x"),
        fs::remove_file(&old),
        fs::create_dir(dir.join(".zfs/x")),
        fs::create_dir(dir.join(".zfs/snapshot/x")),
        fs::rename(&old, dir.join("file")),
    ] {
        let error = refused.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::ReadOnlyFilesystem | ErrorKind::CrossesDevices), "{error}");
    }
    assert_eq!(fs::create_dir(dir.join(".zfs")).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs::read_dir(dir.join(".zfs/snapshot/tuesday")).unwrap_err().kind(), ErrorKind::NotFound);
    // A destroyed snapshot disappears from here too.
    let catalog = world.datasets.catalog();
    let monday = catalog.snapshot(&common::pools::name("tank/fs@monday")).unwrap();
    world.datasets.destroy(&DestroyPlan::snapshots(&catalog, vec![monday], false).unwrap()).unwrap();
    world.mounts.refresh();
    assert_eq!(fs::metadata(&old).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(fs::read_dir(dir.join(".zfs/snapshot")).unwrap().count(), 0);
    world.unmount(&mount);
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn dot_zfs_as_snapdir_says() {
    let world = World::with_properties(&[("snapdir", "visible")]);
    let mount = world.mount();
    assert!(fs::read_dir(world.dir()).unwrap().any(|entry| entry.unwrap().file_name() == ".zfs"));
    world.unmount(&mount);
    let world = World::with_properties(&[("snapdir", "disabled")]);
    let mount = world.mount();
    assert_eq!(fs::metadata(world.dir().join(".zfs")).unwrap_err().kind(), ErrorKind::NotFound);
    world.unmount(&mount);
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn a_rollback_shows_at_once() {
    let world = World::new();
    let mount = world.mount();
    let dir = world.dir();
    fs::create_dir(dir.join("d")).unwrap();
    fs::write(dir.join("d/stays"), b"as it was").unwrap();
    fs::write(dir.join("d/removed"), b"comes back").unwrap();
    world.snapshot("before");
    let open = OpenOptions::new().read(true).write(true).open(dir.join("d/stays")).unwrap();
    open.write_all_at(b"is another thing now", 0).unwrap();
    fs::remove_file(dir.join("d/removed")).unwrap();
    fs::create_dir(dir.join("new")).unwrap();
    let mut new = File::create(dir.join("new/file")).unwrap();
    new.write_all(b"new").unwrap();
    world.rollback("before");
    assert_eq!(fs::read(dir.join("d/stays")).unwrap(), b"as it was");
    assert_eq!(fs::read(dir.join("d/removed")).unwrap(), b"comes back");
    assert_eq!(fs::metadata(dir.join("new")).unwrap_err().kind(), ErrorKind::NotFound);
    let names: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["d"]);
    // A file that is open and existed at the time of the snapshot stays usable. A file that did not exist becomes
    // stale.
    let mut buf = [0; 9];
    open.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!((&buf, open.metadata().unwrap().len()), (b"as it was", 9));
    open.write_all_at(b"AS", 0).unwrap();
    assert_eq!(fs::read(dir.join("d/stays")).unwrap(), b"AS it was");
    // Before a partial write to a page, the kernel reads the rest of the page and gets its EIO.
    let is_stale = |error: std::io::Error| matches!(error.raw_os_error(), Some(5 | 116));
    assert_eq!(new.metadata().unwrap_err().raw_os_error(), Some(116));
    assert!(is_stale(new.write_all(b"more").unwrap_err()));
    // A reused object number is a different file.
    for number in 0..64 {
        fs::write(dir.join(format!("again-{number}")), b"other").unwrap();
    }
    assert!(is_stale(new.write_all(b"more").unwrap_err()));
    assert!(is_stale(new.metadata().unwrap_err()));
    for number in 0..64 {
        assert_eq!(fs::read(dir.join(format!("again-{number}"))).unwrap(), b"other");
    }
    drop((open, new));
    world.unmount(&mount);
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn rollbacks_beside_writers_leave_a_sound_filesystem() {
    let world = World::new();
    let mount = world.mount();
    let dir = world.dir();
    fs::write(dir.join("kept"), b"kept").unwrap();
    world.snapshot("base");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for worker in 0..3 {
            let (dir, stop) = (&dir, &stop);
            scope.spawn(move || {
                let mut turn = 0;
                while !stop.load(Ordering::Relaxed) {
                    // A rollback may undo all of this at any time.
                    let own = dir.join(format!("w{worker}"));
                    let _ = fs::create_dir(&own);
                    let _ = fs::write(own.join(format!("f{}", turn % 40)), vec![turn as u8; 5000 * worker]);
                    let _ =
                        fs::rename(own.join(format!("f{}", turn % 40)), own.join(format!("g{}", turn % 7)));
                    let _ = fs::remove_file(own.join(format!("g{}", turn % 5)));
                    turn += 1;
                }
            });
        }
        for _ in 0..6 {
            std::thread::sleep(std::time::Duration::from_millis(150));
            world.rollback("base");
        }
        stop.store(true, Ordering::Relaxed);
    });
    world.rollback("base");
    assert_eq!(fs::read(dir.join("kept")).unwrap(), b"kept");
    let names: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["kept"]);
    world.unmount(&mount);
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn a_snapshot_taken_again_under_its_name_is_another_one() {
    let world = World::new();
    let mount = world.mount();
    let dir = world.dir();
    let inside = dir.join(".zfs/snapshot/again");
    fs::write(dir.join("file"), b"old").unwrap();
    world.snapshot("again");
    assert_eq!(fs::read(inside.join("file")).unwrap(), b"old");
    let number = fs::metadata(&inside).unwrap().ino();
    let open = File::open(inside.join("file")).unwrap();
    let directory = File::open(&inside).unwrap();
    world.destroy_snapshot("again");
    assert!(!inside.exists());
    assert_eq!(open.metadata().unwrap_err().raw_os_error(), Some(116));
    assert_eq!(directory.metadata().unwrap_err().raw_os_error(), Some(116));
    fs::write(dir.join("file"), b"new content").unwrap();
    fs::write(dir.join("more"), b"more").unwrap();
    world.snapshot("again");
    assert_eq!(fs::read(inside.join("file")).unwrap(), b"new content");
    assert_eq!(fs::read_dir(&inside).unwrap().count(), 2);
    assert_ne!(fs::metadata(&inside).unwrap().ino(), number);
    drop((open, directory));
    world.unmount(&mount);
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn renamed_and_promoted_snapshots_leave_their_old_place_at_once() {
    let world = World::new();
    let mount = world.mount();
    let dir = world.dir();
    fs::write(dir.join("file"), b"content").unwrap();
    world.snapshot("before");
    assert!(dir.join(".zfs/snapshot/before/file").exists());
    let name = |text: &str| common::pools::name(text);
    let options = RenameOptions::default();
    world.datasets.rename(&name("tank/fs@before"), &name("tank/fs@after"), options).unwrap();
    world.mounts.refresh();
    assert!(!dir.join(".zfs/snapshot/before").exists());
    assert!(dir.join(".zfs/snapshot/after/file").exists());
    world.datasets.clone_snapshot(&name("tank/fs@after"), "tank/clone", &CloneOptions::default()).unwrap();
    world.datasets.promote("tank/clone").unwrap();
    world.mounts.refresh();
    assert!(!dir.join(".zfs/snapshot/after").exists());
    world.unmount(&mount);
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn a_rollback_takes_back_names_without_waiting() {
    let world = World::new();
    let mount = world.mount();
    let dir = world.dir();
    for path in ["moved", "d/inner"] {
        fs::create_dir_all(dir.join("d")).unwrap();
        fs::write(dir.join(path), path).unwrap();
    }
    world.snapshot("before");
    // The inode number stays, and leads to the same file under another name.
    fs::rename(dir.join("moved"), dir.join("elsewhere")).unwrap();
    fs::rename(dir.join("d"), dir.join("e")).unwrap();
    fs::write(dir.join("new"), b"new").unwrap();
    assert!(dir.join("elsewhere").exists() && dir.join("e/inner").exists());
    let begun = std::time::Instant::now();
    world.rollback("before");
    let took = begun.elapsed();
    for gone in ["elsewhere", "e/inner", "e", "new"] {
        assert!(!dir.join(gone).exists(), "{gone} is still there");
    }
    for path in ["moved", "d/inner"] {
        assert_eq!(fs::read(dir.join(path)).unwrap(), path.as_bytes());
    }
    // Faster than the time for which the kernel caches names.
    assert!(took < std::time::Duration::from_millis(900), "{took:?}");
    world.unmount(&mount);
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn properties_that_change_how_it_is_mounted_count_at_once() {
    let world = World::new();
    let mount = world.mount();
    let dir = world.dir();
    let set = |name: &str, value: &str| {
        let pair = [(name.to_owned(), value.to_owned())];
        world.datasets.set_properties(&common::pools::name("tank/fs"), &pair).unwrap();
        world.mounts.refresh();
    };
    let options = || {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let at = format!(" {} ", dir.display());
        let line = table.lines().find(|line| line.contains(&at)).unwrap().to_owned();
        line.split(' ').nth(5).unwrap().split(',').map(str::to_owned).collect::<Vec<_>>()
    };
    let has = |option: &str| options().iter().any(|other| other == option);
    let open = File::create(dir.join("open")).unwrap();
    set("readonly", "on");
    // The kernel does not make the mount read-only while a file is open for writing. Each write is refused anyway.
    let refused = |error: std::io::Error| error.kind() == ErrorKind::ReadOnlyFilesystem;
    assert!(refused(fs::write(dir.join("x"), b"x").unwrap_err()));
    assert!(refused(open.write_all_at(b"x", 0).unwrap_err()));
    drop(open);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !has("ro") {
        assert!(std::time::Instant::now() < deadline, "{:?}", options());
        world.mounts.refresh();
    }
    set("readonly", "off");
    assert!(has("rw"));
    fs::write(dir.join("x"), b"x").unwrap();
    for (property, value, option) in [
        ("exec", "off", "noexec"),
        ("setuid", "off", "nosuid"),
        ("devices", "off", "nodev"),
        ("atime", "off", "noatime"),
    ] {
        set(property, "on");
        assert!(!has(option));
        set(property, value);
        assert!(has(option), "{option}: {:?}", options());
        set(property, "on");
        assert!(!has(option), "{option}: {:?}", options());
    }
    world.unmount(&mount);
}

/// Otherwise, with a thousand mounts, each command would read tens of thousands of properties.
#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn mounts_read_properties_again_only_after_a_change() {
    let world = World::new();
    let mount = world.mount();
    world.mounts.refresh();
    assert_eq!(world.mounts.refresh(), 0);
    fs::write(world.dir().join("file"), b"content").unwrap();
    world.datasets.record_history("a line").unwrap();
    assert_eq!(world.mounts.refresh(), 0);
    world.snapshot("one");
    assert_eq!((world.mounts.refresh(), world.mounts.refresh()), (1, 0));
    fs::write(world.dir().join("file"), b"other").unwrap();
    world.rollback("one");
    assert_eq!(world.mounts.refresh(), 0);
    assert_eq!(fs::read(world.dir().join("file")).unwrap(), b"content");
    world.unmount(&mount);
}
