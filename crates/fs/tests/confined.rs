//! Targets of syncs that other users can change. Nothing outside of them is read, created, changed or removed, and
//! nothing in a snapshot grants rights on this machine.

#![allow(clippy::unwrap_used)]

#[path = "../../zpl/tests/common/build.rs"]
mod build;

use build::{Builder, ROOT, Znode};
use rustix::fs::{CWD, FileType, Mode, OFlags, makedev, mkfifoat, mknodat};
use snowmelt_fs::beneath::Directory;
use snowmelt_fs::mirror::{Held, Image, Mirror, MirrorError, MirrorOptions, Move};
use snowmelt_fs::restore::{
    Failure, LeftOut, Observer, Owners, Privileges, RestoreOptions, Summary, restore,
};
use snowmelt_zpl::memory::MemoryObjects;
use snowmelt_zpl::{Endian, Filesystem};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

const RECORD: &str = ".snowmelt-sync";

struct Silent;

impl Observer for Silent {
    fn failure(&mut self, failure: Failure) {
        panic!("{failure}");
    }
}

/// A target directory, and a directory next to it that must not change.
struct World {
    _scratch: tempfile::TempDir,
    into: PathBuf,
    victim: PathBuf,
}

impl World {
    fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let [into, victim] = ["into", "victim"].map(|name| scratch.path().join(name));
        fs::create_dir(&victim).unwrap();
        fs::write(victim.join("file"), "mine").unwrap();
        Self { _scratch: scratch, into, victim }
    }

    fn open(&self) -> Mirror {
        Mirror::open(&self.into, "tank/t", true).unwrap()
    }

    /// Creates the copy of a child dataset, as a sync does.
    fn kid(&self, top: &mut Mirror) {
        let directory = Directory::named(&self.into).unwrap();
        let mut kid = Mirror::open_at(&directory.place(b"kid"), "tank/t/kid", false).unwrap();
        fill(&mut kid, Builder::new(Endian::Little).objects);
        top.nest(&["kid".to_owned()]).unwrap();
    }

    fn assert_victim_is_whole(&self) {
        let names: Vec<_> =
            fs::read_dir(&self.victim).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["file"]);
        assert_eq!(fs::read_to_string(self.victim.join("file")).unwrap(), "mine");
        assert_eq!(fs::metadata(self.victim.join("file")).unwrap().permissions().mode() & 0o7777, 0o644);
    }
}

fn fill(mirror: &mut Mirror, objects: MemoryObjects) -> Summary {
    let to = Held { guid: 7, name: "tank/t@1".to_owned() };
    let options = MirrorOptions {
        force: true,
        owners: Owners::Never,
        privileges: Privileges::default(),
        children: &[],
        cancelled: &AtomicBool::new(false),
    };
    mirror.fill(&Filesystem::open(objects).unwrap(), &to, &options, &mut Silent).unwrap()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A snapshot with records at several depths, which refer to other places.
fn with_records(victim: &Path) -> MemoryObjects {
    let victim = victim.to_str().unwrap().as_bytes();
    let mut builder = Builder::new(Endian::Little);
    builder.directory(ROOT, ROOT, &[(b"sub", 10), (b".snowmelt-sync", 20)]);
    builder.directory(
        10,
        ROOT,
        &[(b".snowmelt-sync", 11), (b".Snowmelt-SYNC", 12), (b"f", 13), (b"deep", 14)],
    );
    builder.symlink(11, victim);
    builder.directory(12, 10, &[(b"nested", 13)]);
    builder.file(13, Znode { parent: 10, ..Znode::default() }, b"../../victim/vm.img\n");
    builder.directory(14, 10, &[(b".snowmelt-sync", 15)]);
    builder.directory(15, 14, &[(b"record", 13)]);
    builder.directory(20, ROOT, &[(b"record", 13)]);
    builder.objects
}

#[test]
fn records_in_a_snapshot_are_brought_at_no_depth() {
    let world = World::new();
    let mut mirror = world.open();
    let summary = fill(&mut mirror, with_records(&world.victim));
    // The record at the top does not count.
    assert_eq!(summary.left_out, LeftOut { records: 3, ..LeftOut::default() });
    let names = |path: &str| -> Vec<String> {
        let entries = fs::read_dir(world.into.join(path)).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names("sub"), ["deep", "f"]);
    assert!(names("sub/deep").is_empty());
    assert_eq!(names(""), [RECORD, "sub"]);

    let out = tempfile::tempdir().unwrap();
    let fs = Filesystem::open(with_records(&world.victim)).unwrap();
    let restored = restore(&fs, ROOT, b"", out.path(), RestoreOptions::default(), &mut Silent).unwrap();
    assert_eq!(restored.left_out.records, 4);
    assert!(!out.path().join(RECORD).exists() && !out.path().join("sub/deep").join(RECORD).exists());
    world.assert_victim_is_whole();
}

#[test]
fn records_that_an_earlier_version_brought_go_when_everything_is_compared() {
    let world = World::new();
    let mut mirror = world.open();
    fill(&mut mirror, with_records(&world.victim));
    symlink(&world.victim, world.into.join("sub").join(RECORD)).unwrap();
    fill(&mut mirror, with_records(&world.victim));
    assert!(fs::symlink_metadata(world.into.join("sub").join(RECORD)).is_err());
    world.assert_victim_is_whole();
}

#[test]
fn a_link_in_place_of_a_record_leads_nowhere() {
    let world = World::new();
    let mut mirror = world.open();
    world.kid(&mut mirror);
    fs::create_dir(world.into.join("sub")).unwrap();
    symlink(&world.victim, world.into.join("sub").join(RECORD)).unwrap();
    let to = vec!["sub".to_owned(), "30 17 23 11 1 root true".to_owned()];
    let moves = [Move { from: vec!["kid".to_owned()], to, source: "tank/t/sub/x".to_owned() }];
    let outcomes = mirror.relocate(&moves).unwrap();
    assert!(outcomes[0].is_err());
    world.assert_victim_is_whole();

    let sub = Directory::named(&world.into).unwrap().place(b"sub");
    assert!(Mirror::open_at(&sub, "tank/t/sub", true).is_err());
    world.assert_victim_is_whole();
}

#[test]
fn a_directory_on_the_way_of_a_move_that_is_a_link_is_not_followed() {
    let world = World::new();
    let mut mirror = world.open();
    world.kid(&mut mirror);
    symlink(&world.victim, world.into.join("sub")).unwrap();
    let to = vec!["sub".to_owned(), "kid".to_owned()];
    let moves = [Move { from: vec!["kid".to_owned()], to, source: "tank/t/sub/kid".to_owned() }];
    assert!(matches!(mirror.relocate(&moves).unwrap()[..], [Err(MirrorError::InTheWay { .. })]));
    world.assert_victim_is_whole();
    assert!(world.into.join("kid").join(RECORD).exists());
}

#[test]
fn names_that_lead_up_are_refused_in_what_is_noted_of_copies() {
    let world = World::new();
    fill(&mut world.open(), with_records(&world.victim));
    fs::write(world.victim.join(".vm.img.snowmelt-sync"), "a record").unwrap();
    let own = world.into.join("sub").join(RECORD);
    fs::create_dir(&own).unwrap();
    fs::write(own.join("nested"), "../../victim/vm.img\n").unwrap();
    let sub = Directory::named(&world.into).unwrap().place(b"sub");
    assert!(matches!(Mirror::open_at(&sub, "tank/t/sub", true), Err(MirrorError::Record { .. })));
    assert!(world.victim.join(".vm.img.snowmelt-sync").exists());
}

#[test]
fn only_a_regular_file_is_opened_as_an_image_below() {
    let world = World::new();
    drop(world.open());
    let at = |name: &str| world.into.join(name);
    symlink(world.victim.join("file"), at("link")).unwrap();
    symlink(world.victim.join("new"), at("dangling")).unwrap();
    mkfifoat(CWD, at("fifo"), Mode::RWXU).unwrap();
    let _socket = UnixListener::bind(at("socket")).unwrap();
    fs::create_dir(at("directory")).unwrap();
    let top = Directory::named(&world.into).unwrap();
    for name in ["link", "dangling", "fifo", "socket", "directory"] {
        let opened = Image::open_at(&top.place(name.as_bytes()), "tank/t/vol", true);
        let Err(MirrorError::Local { source, .. }) = opened else { panic!("{name}") };
        assert_eq!(source.kind(), ErrorKind::Unsupported, "{name}: {source}");
    }
    world.assert_victim_is_whole();
    assert!(Image::open_at(&top.place(b"new"), "tank/t/vol", false).is_ok());
}

/// The same for a name that the user gives, where devices are also images.
#[test]
#[ignore = "needs root"]
fn a_device_node_below_is_never_opened() {
    let world = World::new();
    drop(world.open());
    // No driver has this number, so opening it would fail with another error.
    mknodat(CWD, world.into.join("disk"), FileType::BlockDevice, Mode::RWXU, makedev(240, 240)).unwrap();
    mknodat(CWD, world.into.join("null"), FileType::CharacterDevice, Mode::RWXU, makedev(1, 3)).unwrap();
    let top = Directory::named(&world.into).unwrap();
    for name in ["disk", "null"] {
        let opened = Image::open_at(&top.place(name.as_bytes()), "tank/t/vol", true);
        let Err(MirrorError::Local { source, .. }) = opened else { panic!("{name}") };
        assert_eq!(source.kind(), ErrorKind::Unsupported, "{name}: {source}");
    }
    let named = Image::open(&world.into.join("disk"), &world.victim, "tank/t/vol", true);
    let Err(MirrorError::Local { source, .. }) = named else { panic!() };
    assert_eq!(source.raw_os_error(), Some(rustix::io::Errno::NXIO.raw_os_error()), "{source}");
}

#[test]
fn a_file_that_turns_into_a_link_is_never_opened_through_it() {
    let world = World::new();
    drop(world.open());
    let (file, spare, link) = (world.into.join("r"), world.into.join("spare"), world.into.join("l"));
    fs::write(&file, "image").unwrap();
    let victim = fs::metadata(world.victim.join("file")).unwrap().ino();
    let top = Directory::named(&world.into).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                symlink(world.victim.join("file"), &link).unwrap();
                fs::rename(&file, &spare).unwrap();
                fs::rename(&link, &file).unwrap();
                fs::rename(&spare, &file).unwrap();
            }
        });
        for _ in 0..3000 {
            if let Ok(Some(opened)) = top.open_file(b"r", OFlags::RDWR) {
                assert_ne!(opened.metadata().unwrap().ino(), victim);
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    world.assert_victim_is_whole();
}

/// A snapshot with a setuid and a setgid program, a setgid directory and a device.
fn with_privileges() -> MemoryObjects {
    let mut builder = Builder::new(Endian::Little);
    builder.directory(ROOT, ROOT, &[(b"suid", 10), (b"sgid", 11), (b"plain", 12), (b"disk", 13), (b"d", 14)]);
    builder.file(10, Znode { mode: 0o104_755, ..Znode::default() }, b"program");
    builder.file(11, Znode { mode: 0o102_755, ..Znode::default() }, b"program");
    builder.file(12, Znode { mode: 0o100_755, ..Znode::default() }, b"program");
    builder.file(13, Znode { mode: 0o060_666, ..Znode::default() }, b"");
    let directory = builder.znode(Znode { mode: 0o042_775, size: 2, links: 2, ..Znode::default() });
    builder.put(14, 20, 17, directory, &build::micro_zap(Endian::Little, &[]));
    builder.objects
}

fn modes(path: &Path) -> [u32; 4] {
    ["suid", "sgid", "plain", "d"]
        .map(|name| fs::metadata(path.join(name)).unwrap().permissions().mode() & 0o7777)
}

#[test]
fn what_gives_rights_is_left_out_unless_asked_for() {
    let left_out = LeftOut { setuid: 2, devices: 1, ..LeftOut::default() };
    let world = World::new();
    let summary = fill(&mut world.open(), with_privileges());
    assert_eq!(summary.left_out, left_out);
    // Without the right owner, the bits of a directory are removed too.
    assert_eq!(modes(&world.into), [0o755, 0o755, 0o755, 0o775]);
    assert!(!world.into.join("disk").exists());
    assert_eq!(
        left_out.to_string(),
        "left out: 2 setuid or setgid bits (--setuid), 1 device nodes (--devices)"
    );

    let out = tempfile::tempdir().unwrap();
    let fs = Filesystem::open(with_privileges()).unwrap();
    let restored = restore(&fs, ROOT, b"", out.path(), RestoreOptions::default(), &mut Silent).unwrap();
    assert_eq!(restored.left_out, left_out);
    let directory = if is_root() { 0o2775 } else { 0o775 };
    assert_eq!(modes(out.path()), [0o755, 0o755, 0o755, directory]);
}

#[test]
#[ignore = "needs root"]
fn what_gives_rights_is_restored_when_asked_for() {
    assert!(is_root());
    let out = tempfile::tempdir().unwrap();
    let fs = Filesystem::open(with_privileges()).unwrap();
    let options = RestoreOptions { privileges: Privileges::ALL, ..RestoreOptions::default() };
    let restored = restore(&fs, ROOT, b"", out.path(), options, &mut Silent).unwrap();
    assert_eq!(restored.left_out, LeftOut::default());
    assert_eq!(modes(out.path()), [0o4755, 0o2755, 0o755, 0o2775]);
    assert!(fs::metadata(out.path().join("disk")).unwrap().file_type().is_block_device());
}

/// A record of another user could contain anything, also about waiting copies and nested copies.
#[test]
#[ignore = "needs root"]
fn a_record_of_another_user_is_refused() {
    let world = World::new();
    fill(&mut world.open(), with_privileges());
    std::os::unix::fs::chown(&world.into, Some(1000), Some(1000)).unwrap();
    // Only the owner of the record matters, not the owner of the directory.
    drop(Mirror::open(&world.into, "tank/t", false).unwrap());
    let own = world.into.join(RECORD);
    std::os::unix::fs::chown(own.join("record"), Some(1000), Some(1000)).unwrap();
    let opened = Mirror::open(&world.into, "tank/t", false);
    assert!(matches!(opened, Err(MirrorError::NotOurs { owner: 1000, .. })));
    std::os::unix::fs::chown(own.join("record"), Some(0), Some(0)).unwrap();
    std::os::unix::fs::chown(&own, Some(1000), Some(1000)).unwrap();
    let opened = Mirror::open(&world.into, "tank/t", true);
    assert!(matches!(opened, Err(MirrorError::NotOurs { owner: 1000, .. })));
    // The check leaves no temporary file.
    assert!(fs::read_dir(&world.into).unwrap().all(|entry| {
        let name = entry.unwrap().file_name();
        !name.to_string_lossy().starts_with(".snowmelt-owner")
    }));
}

/// The owner of the directory replaces the record's directory while root works in it.
#[test]
fn what_is_made_stays_in_the_directory_that_was_opened() {
    let world = World::new();
    let mut mirror = world.open();
    let away = world.into.parent().unwrap().join("away");
    fs::rename(world.into.join(RECORD), &away).unwrap();
    fs::create_dir(world.into.join(RECORD)).unwrap();
    symlink(&world.victim, world.into.join(RECORD).join("staging")).unwrap();
    symlink(world.victim.join("file"), world.into.join(RECORD).join("record")).unwrap();
    fill(&mut mirror, with_privileges());
    world.assert_victim_is_whole();
    let record = fs::read_to_string(away.join("record")).unwrap();
    assert!(record.contains("held 7 tank/t@1"), "{record}");
}

#[test]
#[ignore = "mounts a tmpfs: needs root"]
fn a_mount_point_below_is_entered_only_if_it_holds_a_copy() {
    let world = World::new();
    let mut mirror = world.open();
    world.kid(&mut mirror);
    let disk = world.into.join("disk");
    fs::create_dir(&disk).unwrap();
    let run = |program: &str, args: &[&str]| {
        assert!(std::process::Command::new(program).args(args).status().unwrap().success());
    };
    let path = disk.to_str().unwrap();
    run("mount", &["-t", "tmpfs", "none", path]);
    let place = Directory::named(&world.into).unwrap().place(b"disk");
    let refused = Mirror::open_at(&place, "tank/t/disk", true);
    // As a target of its own, the user has named it.
    let by_itself =
        Mirror::open(&disk, "tank/t/disk", false).map(|mut mirror| fill(&mut mirror, with_privileges()));
    let again = Mirror::open_at(&place, "tank/t/disk", false).map(drop);
    run("umount", &[path]);
    let Err(MirrorError::Local { source, .. }) = refused else { panic!() };
    assert_eq!(source.kind(), ErrorKind::CrossesDevices);
    by_itself.unwrap();
    again.unwrap();
}
