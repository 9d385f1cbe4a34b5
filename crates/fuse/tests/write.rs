//! Changing a mounted filesystem as any program would.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use common::World;
use rustix::fs::{FallocateFlags, RenameFlags, SeekFrom as Whence};
use rustix::io::Errno;
use snowmelt_fs::vfs::{Atime, VfsOptions};
use snowmelt_fuse::MountError;

/// Unmounts and mounts again, so that everything is read anew.
fn remounted(world: &World, mount: &snowmelt_fuse::Mount) -> std::sync::Arc<snowmelt_fuse::Mount> {
    world.unmount(mount);
    world.mount()
}

/// Runs a shell command as another user.
fn as_nobody(command: &str, dir: &Path) -> bool {
    Command::new("sh")
        .args(["-c", command])
        .current_dir(dir)
        .uid(65_534)
        .gid(65_534)
        .status()
        .unwrap()
        .success()
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn what_is_written_is_there_after_a_remount() {
    let world = World::new();
    let mount = world.mount();
    let dir = world.dir();
    let big: Vec<u8> = (0..3_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(dir.join("big"), &big).unwrap();
    fs::create_dir_all(dir.join("a/b/c")).unwrap();
    fs::write(dir.join("a/b/c/small"), b"x").unwrap();
    fs::hard_link(dir.join("a/b/c/small"), dir.join("a/other")).unwrap();
    symlink("../big", dir.join("a/link")).unwrap();
    let ino = fs::metadata(dir.join("big")).unwrap().ino();
    let mount = remounted(&world, &mount);
    assert_eq!(fs::read(dir.join("a/link")).unwrap(), big);
    let small = fs::metadata(dir.join("a/other")).unwrap();
    assert_eq!((small.nlink(), small.size()), (2, 1));
    assert_eq!(fs::metadata(dir.join("big")).unwrap().ino(), ino);
    let file = OpenOptions::new().read(true).write(true).open(dir.join("big")).unwrap();
    file.write_all_at(b"changed", 1_000_000).unwrap();
    file.set_len(1_500_000).unwrap();
    drop(file);
    let mount = remounted(&world, &mount);
    let mut expected = big;
    expected.truncate(1_500_000);
    expected[1_000_000..1_000_007].copy_from_slice(b"changed");
    assert_eq!(fs::read(dir.join("big")).unwrap(), expected);
    world.unmount(&mount);
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn renames() {
    let world = World::new();
    let mount = world.mount();
    let dir = File::open(world.dir()).unwrap();
    let put = |name: &str| fs::write(world.dir().join(name), name).unwrap();
    let read = |name: &str| fs::read_to_string(world.dir().join(name));
    let rename = |from: &str, to: &str, flags| rustix::fs::renameat_with(&dir, from, &dir, to, flags);
    put("a");
    put("b");
    assert_eq!(rename("a", "b", RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename("a", "b", RenameFlags::EXCHANGE).unwrap();
    assert_eq!((read("a").unwrap(), read("b").unwrap()), ("b".to_owned(), "a".to_owned()));
    rename("a", "b", RenameFlags::empty()).unwrap();
    assert_eq!(read("b").unwrap(), "b");
    assert_eq!(read("a").unwrap_err().kind(), ErrorKind::NotFound);
    fs::create_dir(world.dir().join("d")).unwrap();
    assert_eq!(rename("d", "d/e", RenameFlags::empty()), Err(Errno::INVAL));
    rename("b", "d/b", RenameFlags::NOREPLACE).unwrap();
    rename("d", "e", RenameFlags::empty()).unwrap();
    assert_eq!(read("e/b").unwrap(), "b");
    drop(dir);
    world.unmount(&mount);
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn what_is_open_stays_without_a_name() {
    let world = World::new();
    let mount = world.mount();
    let path = world.dir().join("gone");
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all(b"still here").unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    // A new file with that name is a different one.
    fs::write(&path, b"new").unwrap();
    file.write_all(b", and growing").unwrap();
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "still here, and growing");
    assert_eq!(fs::read(&path).unwrap(), b"new");
    let referenced = || {
        let catalog = world.datasets.catalog();
        catalog.dataset_space(&catalog.dataset("tank/fs").unwrap()).unwrap().referenced.logical
    };
    let big = File::create(world.dir().join("big")).unwrap();
    (&big).write_all(&(0..1_000_000_u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>()).unwrap();
    fs::remove_file(world.dir().join("big")).unwrap();
    big.sync_all().unwrap();
    let with = referenced();
    drop((file, big));
    // Closing is asynchronous: the space is free soon.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while referenced() + 3_000_000 > with {
        assert!(std::time::Instant::now() < deadline, "the space of an unlinked file was not given back");
        File::open(world.dir()).unwrap().sync_all().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    world.unmount(&mount);
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn holes() {
    let world = World::new();
    let mount = world.mount();
    let path = world.dir().join("sparse");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all_at(&[1; 512 << 10], 0).unwrap();
    file.write_all_at(&[2; 128 << 10], 10 << 30).unwrap();
    let seek = |from| rustix::fs::seek(&file, from);
    assert_eq!(seek(Whence::Hole(0)), Ok(512 << 10));
    assert_eq!(seek(Whence::Data(512 << 10)), Ok(10 << 30));
    assert_eq!(seek(Whence::Hole(10 << 30)), Ok((10 << 30) + (128 << 10)));
    assert_eq!(seek(Whence::Data(11 << 30)), Err(Errno::NXIO));
    assert!(file.metadata().unwrap().blocks() < 4096);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 128 << 10, 128 << 10).unwrap();
    assert_eq!(seek(Whence::Hole(0)), Ok(128 << 10));
    assert_eq!(seek(Whence::Data(128 << 10)), Ok(256 << 10));
    let mut buf = vec![9; 384 << 10];
    file.read_exact_at(&mut buf, 0).unwrap();
    assert!(buf[..128 << 10].iter().all(|b| *b == 1) && buf[128 << 10..256 << 10].iter().all(|b| *b == 0));
    rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE, 1000, 1000).unwrap();
    file.read_exact_at(&mut buf[..3000], 0).unwrap();
    assert_eq!((buf[999], buf[1000], buf[1999], buf[2000]), (1, 0, 0, 1));
    let size = file.metadata().unwrap().len();
    rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, size, 5000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), size);
    rustix::fs::fallocate(&file, FallocateFlags::empty(), size, 5000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), size + 5000);
    assert_eq!(rustix::fs::fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096), Err(Errno::OPNOTSUPP));
    let copy = File::create(world.dir().join("copy")).unwrap();
    let mut from = 256 << 10;
    assert_eq!(rustix::fs::copy_file_range(&file, Some(&mut from), &copy, None, 1 << 20), Ok(1 << 20));
    assert_eq!(fs::read(world.dir().join("copy")).unwrap()[..1000], [1; 1000]);
    drop((file, copy));
    world.unmount(&mount);
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn attributes() {
    let world = World::with_properties(&[("acltype", "posix"), ("xattr", "sa")]);
    let mount = world.mount();
    let path = world.dir().join("file");
    fs::write(&path, b"").unwrap();
    let large = vec![7; 60_000];
    xattr::set(&path, "user.large", &large).unwrap();
    xattr::set(&path, "user.small", b"value").unwrap();
    xattr::set(&path, "trusted.t", b"secret").unwrap();
    assert_eq!(xattr::get(&path, "user.large").unwrap(), Some(large));
    xattr::remove(&path, "user.large").unwrap();
    assert_eq!(xattr::get(&path, "user.large").unwrap(), None);
    assert_eq!(xattr::set(&path, "system.nonsense", b"").unwrap_err().raw_os_error(), Some(95));
    // user::rw-, user:65534:r--, group::---, mask::r--, other::---
    let acl = [
        &[2, 0, 0, 0][..],
        &[1, 0, 6, 0, 255, 255, 255, 255],
        &[2, 0, 4, 0, 254, 255, 0, 0],
        &[4, 0, 0, 0, 255, 255, 255, 255],
        &[16, 0, 4, 0, 255, 255, 255, 255],
        &[32, 0, 0, 0, 255, 255, 255, 255],
    ]
    .concat();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    fs::write(&path, b"for some").unwrap();
    assert!(!as_nobody("cat file", &world.dir()));
    xattr::set(&path, "system.posix_acl_access", &acl).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
    assert!(as_nobody("cat file > /dev/null && ! echo x 2> /dev/null > file", &world.dir()));
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    assert!(!as_nobody("cat file 2> /dev/null", &world.dir()), "chmod takes the mask down");
    xattr::set(world.dir(), "system.posix_acl_default", &acl).unwrap();
    let made =
        OpenOptions::new().write(true).create_new(true).mode(0o666).open(world.dir().join("made")).unwrap();
    assert_eq!(made.metadata().unwrap().mode() & 0o777, 0o640, "the default ACL, not the umask");
    assert!(xattr::get(world.dir().join("made"), "system.posix_acl_access").unwrap().is_some());
    drop(made);
    let mount = remounted(&world, &mount);
    let names: Vec<_> = xattr::list(&path).unwrap().map(|name| name.into_string().unwrap()).collect();
    assert_eq!(names, ["system.posix_acl_access", "trusted.t", "user.small"]);
    world.unmount(&mount);
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn no_acls_unless_wanted() {
    let world = World::new();
    let mount = world.mount();
    let refused = xattr::set(world.dir(), "system.posix_acl_default", &[2, 0, 0, 0]).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(95));
    world.unmount(&mount);
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn setid_bits_go_when_others_write() {
    let world = World::new();
    let mount = world.mount();
    let path = world.dir().join("program");
    let mode = || fs::metadata(&path).unwrap().mode() & 0o7777;
    let set = |mode| {
        fs::write(&path, b"0123456789").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, mode);
    };
    set(0o6777);
    fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"x").unwrap();
    assert_eq!(mode(), 0o6777, "root keeps them");
    assert!(as_nobody("echo x >> program", &world.dir()));
    assert_eq!(mode(), 0o777);
    set(0o6777);
    assert!(as_nobody("truncate -s 3 program", &world.dir()));
    assert_eq!(mode(), 0o777);
    set(0o2767);
    assert!(as_nobody("echo x >> program", &world.dir()));
    assert_eq!(mode(), 0o2767, "setgid without group execution is no permission");
    set(0o6777);
    std::os::unix::fs::chown(&path, Some(1000), None).unwrap();
    assert_eq!(mode() & 0o6000, 0);
    world.unmount(&mount);
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn listings_go_on_while_names_go_and_come() {
    let world = World::new();
    let mount = world.mount();
    let dir = world.dir().join("many");
    fs::create_dir(&dir).unwrap();
    const COUNT: usize = 3000;
    for number in 0..COUNT {
        File::create(dir.join(format!("stays-{number}"))).unwrap();
        File::create(dir.join(format!("goes-{number}"))).unwrap();
    }
    // Lists the directory in small steps. Between them names are removed and added.
    let mut listing = rustix::fs::Dir::new(File::open(&dir).unwrap()).unwrap();
    let mut seen = std::collections::HashSet::new();
    let mut step = 0;
    while let Some(entry) = listing.read() {
        let name = entry.unwrap().file_name().to_str().unwrap().to_owned();
        assert!(seen.insert(name.clone()), "{name} is listed twice");
        if step < COUNT {
            fs::remove_file(dir.join(format!("goes-{step}"))).unwrap();
            File::create(dir.join(format!("comes-{step}"))).unwrap();
        }
        step += 1;
    }
    for number in 0..COUNT {
        assert!(seen.contains(&format!("stays-{number}")), "stays-{number} is not listed");
    }
    assert!(seen.contains(".") && seen.contains(".."));
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 2 * COUNT);
    drop(listing);
    fs::remove_dir_all(&dir).unwrap();
    world.unmount(&mount);
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn mapped_files() {
    let world = World::new();
    let mount = world.mount();
    // A separate program, because mapping a file needs unsafe code.
    let script = r#"
import mmap, os
f = os.open('mapped', os.O_RDWR | os.O_CREAT)
os.ftruncate(f, 1 << 20)
m = mmap.mmap(f, 1 << 20)
m[0:5] = b'begin'
m[(1 << 20) - 3:] = b'end'
m.flush()
os.pwrite(f, b'middle', 500000)
assert m[500000:500006] == b'middle'
m[700000:700004] = b'late'
m.close()
"#;
    assert!(
        Command::new("python3").args(["-c", script]).current_dir(world.dir()).status().unwrap().success()
    );
    let mount = remounted(&world, &mount);
    let content = fs::read(world.dir().join("mapped")).unwrap();
    assert_eq!(content.len(), 1 << 20);
    for (at, text) in [(0, "begin"), (500_000, "middle"), (700_000, "late"), ((1 << 20) - 3, "end")] {
        assert_eq!(&content[at..at + text.len()], text.as_bytes());
    }
    world.unmount(&mount);
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn names_of_all_bytes() {
    use std::os::unix::ffi::OsStrExt;
    let world = World::new();
    let mount = world.mount();
    let names: Vec<Vec<u8>> = (1..=255_u8)
        .filter(|byte| *byte != b'/' && *byte != b'.')
        .flat_map(|byte| [vec![byte], vec![byte; 255]])
        .collect();
    for name in &names {
        fs::write(world.dir().join(std::ffi::OsStr::from_bytes(name)), name).unwrap();
    }
    let too_long = fs::write(world.dir().join("x".repeat(256)), "").unwrap_err();
    assert_eq!(too_long.raw_os_error(), Some(36));
    let mount = remounted(&world, &mount);
    for name in &names {
        assert_eq!(&fs::read(world.dir().join(std::ffi::OsStr::from_bytes(name))).unwrap(), name);
    }
    assert_eq!(fs::read_dir(world.dir()).unwrap().count(), names.len());
    world.unmount(&mount);
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn a_dataset_is_mounted_once() {
    let world = World::new();
    let mount = world.mount();
    let other = tempfile::tempdir().unwrap();
    let catalog = world.datasets.catalog();
    let dataset = catalog.dataset("tank/fs").unwrap();
    let properties = snowmelt_fs::vfs::VfsOptions::default();
    let again =
        world.mounts.mount(&dataset, other.path(), properties, &snowmelt_fuse::MountOptions::default());
    assert!(matches!(again, Err(snowmelt_fuse::MountError::Mounted { .. })));
    let file = File::create(world.dir().join("open")).unwrap();
    assert!(matches!(mount.unmount(false), Err(snowmelt_fuse::MountError::Busy { .. })));
    drop(file);
    assert!(snowmelt_fuse::mounted().unwrap().iter().any(|mounted| mounted.dir == world.dir()));
    world.unmount(&mount);
    assert!(!snowmelt_fuse::mounted().unwrap().iter().any(|mounted| mounted.dir == world.dir()));
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn options_change_while_it_is_mounted() {
    let world = World::new();
    let mount = world.mount();
    let dir = world.dir();
    let first = VfsOptions { devices: true, ..mount.vfs().options() };
    let has = |option: &str| {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let line = mounts.lines().find(|line| line.split(' ').nth(1) == dir.to_str()).unwrap();
        line.split(' ').nth(3).unwrap().split(',').any(|word| word == option)
    };
    let open = File::create(dir.join("file")).unwrap();
    let read_only = VfsOptions { read_only: true, atime: Atime::Off, devices: false, ..first };
    assert!(matches!(mount.remount(read_only), Err(MountError::Busy { .. })));
    assert!(has("rw") && !mount.vfs().options().read_only);
    fs::write(dir.join("file"), b"one").unwrap();
    drop(open);
    mount.remount(read_only).unwrap();
    assert!(has("ro") && has("noatime") && has("nodev"));
    assert!(mount.vfs().is_read_only());
    let refused = fs::write(dir.join("file"), b"two").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    // A command that changes other properties keeps the options of the mount.
    world.mounts.refresh();
    assert_eq!(mount.vfs().options(), read_only);
    mount.remount(first).unwrap();
    assert!(has("rw") && has("relatime") && !has("nodev"));
    fs::write(dir.join("file"), b"two").unwrap();
    mount.remount(VfsOptions { atime: Atime::Strict, ..first }).unwrap();
    assert!(!has("relatime") && !has("noatime"));
    assert_eq!(fs::read(dir.join("file")).unwrap(), b"two");
    world.unmount(&mount);
}
