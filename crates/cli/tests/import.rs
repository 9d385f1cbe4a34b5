//! Importing directories and images: completely or not at all, and reading and writing only the changes.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use common::Scratch;
use serde_json::Value;

fn source(scratch: &Scratch) -> PathBuf {
    let top = scratch.path().join("src");
    fs::create_dir_all(top.join("docs/deep")).unwrap();
    fs::write(top.join("docs/a.txt"), "alpha\n").unwrap();
    fs::write(top.join("docs/deep/big.bin"), noise(700_000, 1)).unwrap();
    fs::hard_link(top.join("docs/a.txt"), top.join("docs/link.txt")).unwrap();
    symlink("../elsewhere", top.join("docs/deep/sym")).unwrap();
    fs::set_permissions(top.join("docs/deep"), fs::Permissions::from_mode(0o2751)).unwrap();
    top
}

/// Incompressible bytes.
fn noise(len: usize, mut seed: u64) -> Vec<u8> {
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn import(scratch: &Scratch, line: &str) -> Value {
    serde_json::from_str(&scratch.ok(&format!("import --json {line}"))).unwrap()
}

/// Path, type, mode, size and link count of every entry, and the content of regular files.
fn described(top: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut pending = vec![top.to_owned()];
    while let Some(path) = pending.pop() {
        let stat = fs::symlink_metadata(&path).unwrap();
        let name = path.strip_prefix(top).unwrap().display().to_string();
        let size = if stat.is_dir() { 0 } else { stat.len() };
        let content = if stat.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        let times = (stat.mtime(), stat.mtime_nsec());
        found.push(format!("{name} {:o} {size} {} {times:?} {content:?}", stat.mode(), stat.nlink()));
        if stat.is_dir() {
            pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    found.sort();
    found
}

fn same(scratch: &Scratch, snapshot: &str, top: &Path) {
    let back = scratch.path().join("back");
    let _ = fs::remove_dir_all(&back);
    scratch.ok(&format!("restore {snapshot} {}", back.display()));
    assert_eq!(described(&back), described(top), "{snapshot}");
}

#[test]
fn what_did_not_change_is_not_read_and_what_was_renamed_costs_nothing() {
    let scratch = Scratch::with_pool();
    let top = source(&scratch);
    let first = import(&scratch, "src tank/x@1");
    assert_eq!(first["snapshot"], "tank/x@1");
    assert_eq!(first["bytes_read"], 700_006);
    assert_eq!(first["failures"], 0);
    same(&scratch, "tank/x@1", &top);

    let again = import(&scratch, "src tank/x@2");
    assert_eq!((&again["files_read"], &again["written"]), (&0.into(), &0.into()));

    fs::rename(top.join("docs"), top.join("papers")).unwrap();
    fs::rename(top.join("papers/a.txt"), top.join("b.txt")).unwrap();
    let renamed = import(&scratch, "src tank/x@3");
    assert_eq!(renamed["files_read"], 0);
    assert!(renamed["written"].as_u64().unwrap() < 16_384, "{renamed}");
    same(&scratch, "tank/x@3", &top);

    // One block of the large file.
    let big = top.join("papers/deep/big.bin");
    let mut data = fs::read(&big).unwrap();
    data[300_000] ^= 1;
    fs::write(&big, data).unwrap();
    let changed = import(&scratch, "src tank/x@4");
    assert_eq!(changed["files_read"], 1);
    let written = changed["written"].as_u64().unwrap();
    assert!((131_072..200_000).contains(&written), "{changed}");
    same(&scratch, "tank/x@4", &top);

    // Editors save like this: a new file replaces the old one. Only the difference is written.
    let mut data = fs::read(&big).unwrap();
    data[5] ^= 1;
    let new = top.join("papers/deep/.big.tmp");
    fs::write(&new, data).unwrap();
    fs::rename(&new, &big).unwrap();
    let replaced = import(&scratch, "src tank/x@5");
    assert!(replaced["written"].as_u64().unwrap() < 200_000, "{replaced}");
    same(&scratch, "tank/x@5", &top);

    // Log rotation: the old file continues under another name.
    fs::rename(&big, top.join("papers/deep/big.bin.1")).unwrap();
    fs::write(&big, "fresh\n").unwrap();
    let rotated = import(&scratch, "src tank/x@6");
    assert_eq!(rotated["bytes_read"], 6);
    same(&scratch, "tank/x@6", &top);

    fs::remove_dir_all(top.join("papers")).unwrap();
    let removed = import(&scratch, "src tank/x@7");
    assert_eq!(removed["removed"], 1);
    same(&scratch, "tank/x@7", &top);
    same(&scratch, "tank/x@7", &top);
    assert_eq!(scratch.ok("list -Ho name -t snapshot tank/x").lines().count(), 7);
    scratch.ok("check tank");
}

/// The import's record of the source is valid only while the dataset is unchanged since then.
#[test]
fn what_the_dataset_lost_since_is_taken_again() {
    let scratch = Scratch::with_pool();
    let top = source(&scratch);
    import(&scratch, "src tank/x@1");
    fs::write(top.join("docs/b.txt"), "beta\n").unwrap();
    fs::write(top.join("docs/a.txt"), "ALPHA\n").unwrap();
    import(&scratch, "src tank/x@2");

    scratch.ok("rollback -r tank/x@1");
    let again = import(&scratch, "src tank/x@3");
    assert_eq!((&again["created"], &again["files_read"]), (&1.into(), &2.into()));
    same(&scratch, "tank/x@3", &top);
    assert_eq!(import(&scratch, "src tank/x@4")["files_read"], 0);

    // A dry run does not change the record, and another source is imported completely.
    fs::write(top.join("docs/b.txt"), "gamma\n").unwrap();
    scratch.ok("import -n src tank/x");
    import(&scratch, "src tank/x@5");
    same(&scratch, "tank/x@5", &top);
    let other = scratch.path().join("other");
    fs::create_dir_all(other.join("docs")).unwrap();
    fs::write(other.join("docs/b.txt"), "delta\n").unwrap();
    import(&scratch, "other tank/x@6");
    same(&scratch, "tank/x@6", &other);
    import(&scratch, "src tank/x@7");
    same(&scratch, "tank/x@7", &top);

    // A clone has no record yet.
    scratch.ok("clone tank/x@3 tank/y");
    scratch.ok("snapshot tank/y@0");
    let into_clone = import(&scratch, "src tank/y@1");
    assert_eq!(into_clone["files_read"], 1);
    same(&scratch, "tank/y@1", &top);
    scratch.ok("destroy -r tank/y");
    scratch.ok("check tank");
}

#[test]
fn directories_and_files_change_places() {
    let scratch = Scratch::with_pool();
    let top = scratch.path().join("src");
    for (dir, file) in [("a", "1"), ("b", "2"), ("c/d", "3")] {
        fs::create_dir_all(top.join(dir)).unwrap();
        fs::write(top.join(dir).join(file), noise(50_000, file.parse().unwrap())).unwrap();
    }
    fs::write(top.join("f"), noise(50_000, 9)).unwrap();
    fs::write(top.join("g"), noise(50_000, 10)).unwrap();
    import(&scratch, "src tank/x@1");
    let swap = |a: &str, b: &str| {
        fs::rename(top.join(a), top.join("tmp")).unwrap();
        fs::rename(top.join(b), top.join(a)).unwrap();
        fs::rename(top.join("tmp"), top.join(b)).unwrap();
    };
    swap("a", "b");
    swap("f", "g");
    // A child becomes the parent of its former parent.
    fs::rename(top.join("c/d"), top.join("d")).unwrap();
    fs::rename(top.join("c"), top.join("d/c")).unwrap();
    let moved = import(&scratch, "src tank/x@2");
    assert_eq!(moved["files_read"], 0, "{moved}");
    assert!(moved["written"].as_u64().unwrap() < 16_384, "{moved}");
    same(&scratch, "tank/x@2", &top);
    // A directory becomes a file, and a file becomes a directory.
    fs::remove_dir_all(top.join("a")).unwrap();
    fs::write(top.join("a"), "file").unwrap();
    fs::remove_file(top.join("g")).unwrap();
    fs::create_dir(top.join("g")).unwrap();
    fs::remove_file(top.join("f")).unwrap();
    symlink("target", top.join("f")).unwrap();
    import(&scratch, "src tank/x@3");
    same(&scratch, "tank/x@3", &top);
    fs::remove_file(top.join("f")).unwrap();
    symlink("other", top.join("f")).unwrap();
    import(&scratch, "src tank/x@4");
    same(&scratch, "tank/x@4", &top);
    assert!(!scratch.ok("ls -a tank/x@4").contains("snowmelt"));
    scratch.ok("check tank");
}

#[test]
fn dry_runs_filters_and_refusals() {
    let scratch = Scratch::with_pool();
    let top = source(&scratch);
    fs::write(top.join("docs/x.o"), "object").unwrap();
    fs::write(scratch.path().join("patterns"), "deep/\n").unwrap();
    let said = scratch.ok("import -n src tank/x@1");
    assert_eq!(
        said,
        "tank/x@1: 8 entries; would be 7 created, 0 changed, 0 renamed, 0 removed; 684K would be read\n"
    );
    assert_eq!(scratch.ok("list -Ho name -r tank"), "tank\n");
    // Holes are not read.
    let sparse = scratch.path().join("sparse");
    fs::create_dir(&sparse).unwrap();
    let file = fs::File::create(sparse.join("file")).unwrap();
    file.set_len(10 << 30).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &noise(1 << 20, 2), 5 << 30).unwrap();
    assert_eq!(
        scratch.ok("import -n sparse tank/x@1"),
        "tank/x@1: 2 entries; would be 1 created, 0 changed, 0 renamed, 0 removed; 1M would be read\n"
    );
    scratch.ok("import --exclude *.o --exclude-from patterns src tank/x@1");
    assert_eq!(scratch.ok("find tank/x@1"), ".\ndocs\ndocs/a.txt\ndocs/link.txt\n");
    for (line, message) in [
        ("import src tank/x@1", "cannot import into 'tank/x': dataset already exists\n"),
        ("import nowhere tank/x@2", "cannot import 'nowhere': No such file or directory (os error 2)\n"),
        ("import src nopool/x@2", "cannot import into 'nopool/x': no such pool 'nopool'\n"),
        ("import src tank/y/z@2", "cannot import into 'tank/y/z': parent does not exist\n"),
        (
            "import patterns tank/x@2",
            "cannot import into 'tank/x': a disk image can only be imported into a volume\n",
        ),
    ] {
        assert_eq!(scratch.fails(1, line), message, "{line}");
    }
    scratch.ok("import -p src tank/y/z@2");
    let snapshot = scratch.ok("import -v patterns tank/v");
    assert!(snapshot.starts_with("tank/v@import_2"), "{snapshot}");
    assert_eq!(scratch.ok("get -Ho value volsize tank/v"), "16K\n");
    // Data that was received or written since is not overwritten without an option.
    scratch.ok("create tank/new");
    scratch.ok("import src tank/new@1");
    scratch.ok("check tank");
}

#[test]
fn a_replica_is_overwritten_only_if_forced() {
    let scratch = Scratch::with_pool();
    scratch.receive("receive tank/r", &common::demo("full.zstream"));
    fs::create_dir(scratch.path().join("www")).unwrap();
    fs::write(scratch.path().join("www/page"), "text").unwrap();
    let before = scratch.ok("list -H -t all -o name,used -r tank");
    for line in ["import www tank/r", "import -n www tank/r", "sync www tank/r"] {
        let refused = scratch.fails(1, line);
        let option = if line.starts_with("sync") { "'--force'" } else { "'-F'" };
        assert!(refused.contains("was received") && refused.contains(option), "{line}: {refused}");
    }
    assert_eq!(scratch.ok("list -H -t all -o name,used -r tank"), before);
    assert!(!scratch.ok("get -H all tank/r").contains("$received"));
    scratch.ok("import -F www tank/r@mine");
    assert_eq!(scratch.ok("cat tank/r@mine:page"), "text");
    // From then on the dataset belongs to imports.
    scratch.ok("import www tank/r@again");
}

#[test]
fn what_cannot_be_read_stays_as_it_was() {
    let scratch = Scratch::with_pool();
    let top = source(&scratch);
    import(&scratch, "src tank/x@1");
    // A socket at a new name, and names with every byte.
    let odd = std::ffi::OsString::from_vec((1..=255u8).filter(|byte| *byte != b'/').take(200).collect());
    fs::write(top.join(odd), "odd").unwrap();
    std::os::unix::net::UnixListener::bind(top.join("sock")).unwrap();
    import(&scratch, "src tank/x@2");
    same(&scratch, "tank/x@2", &top);
    scratch.ok("check tank");
}

use std::os::unix::ffi::OsStringExt;

/// Inode flags, if the filesystem of temporary files has them.
#[test]
#[ignore = "needs root, chattr (e2fsprogs), and a filesystem with inode flags: .ci/run clients"]
fn inode_flags_are_taken_and_do_not_hinder() {
    let scratch = Scratch::with_pool();
    let top = source(&scratch);
    let chattr = |flags: &str, path: &str| {
        let path = top.join(path);
        let done = std::process::Command::new("chattr").arg(flags).arg(&path).output().expect("chattr");
        assert!(done.status.success(), "{done:?}");
    };
    let flags_of = |snapshot: &str| {
        let lines = scratch.ok(&format!("manifest {snapshot}"));
        let flagged = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let flagged = flagged.filter(|line| line.get("flags").is_some());
        flagged.map(|line| format!("{} {}", line["path"], line["flags"])).collect::<Vec<_>>()
    };
    fs::write(top.join("docs/only.txt"), "only\n").unwrap();
    chattr("+i", "docs/a.txt");
    chattr("+i", "docs/only.txt");
    chattr("+a", "docs/deep/big.bin");
    chattr("+d", "docs/deep");
    chattr("+i", "docs");
    import(&scratch, "src tank/x@1");
    let first = flags_of("tank/x@1");
    assert_eq!(first.len(), 6, "{first:?}");
    assert_eq!(import(&scratch, "src tank/x@2")["changed"], 0);
    // A file with the immutable flag still gets its further names.
    same_but_flags(&scratch, "tank/x@1", &top);

    // Immutable files are renamed, changed and removed in the dataset, just like in the source while its flags were
    // off.
    for path in ["docs", "docs/a.txt", "docs/only.txt"] {
        chattr("-i", path);
    }
    chattr("-a", "docs/deep/big.bin");
    fs::rename(top.join("docs/only.txt"), top.join("b.txt")).unwrap();
    fs::write(top.join("docs/deep/big.bin"), "short").unwrap();
    fs::write(top.join("docs/new"), "new").unwrap();
    chattr("+i", "b.txt");
    chattr("+i", "docs");
    import(&scratch, "src tank/x@3");
    same_but_flags(&scratch, "tank/x@3", &top);
    chattr("-i", "docs");
    chattr("-i", "b.txt");
    fs::remove_dir_all(top.join("docs")).unwrap();
    fs::remove_file(top.join("b.txt")).unwrap();
    import(&scratch, "src tank/x@4");
    assert_eq!(scratch.ok("find tank/x@4"), ".\n");
    assert_eq!(flags_of("tank/x@1"), first);
    scratch.ok("check tank");
}

/// Like [`same`], but clears the flags of the restored files so that they can be removed.
fn same_but_flags(scratch: &Scratch, snapshot: &str, top: &Path) {
    let back = scratch.path().join(snapshot.replace('/', "-"));
    scratch.ok(&format!("restore {snapshot} {}", back.display()));
    assert_eq!(described(&back), described(top), "{snapshot}");
    // For symbolic links chattr reports that they have no flags, and continues.
    let _ = std::process::Command::new("chattr").args(["-R", "-f", "-i", "-a"]).arg(&back).output();
}

/// An XFS filesystem, which has projects, in a file. It is unmounted when dropped.
struct Projects(PathBuf);

impl Projects {
    fn new(scratch: &Scratch) -> Self {
        let (image, top) = (scratch.path().join("xfs.img"), scratch.path().join("src"));
        let run = |program: &str, words: &[&std::ffi::OsStr]| {
            let done = std::process::Command::new(program).args(words).output().expect(program);
            assert!(done.status.success(), "{program}: {done:?}");
        };
        fs::File::create(&image).and_then(|file| file.set_len(512 << 20)).unwrap();
        fs::create_dir(&top).unwrap();
        run("mkfs.xfs", &["-q".as_ref(), image.as_ref()]);
        run("mount", &["-o".as_ref(), "loop".as_ref(), image.as_ref(), top.as_ref()]);
        Self(top)
    }

    fn set(&self, path: &str, id: u32) {
        let done = std::process::Command::new("chattr")
            .args(["-p", &id.to_string()])
            .arg(self.0.join(path))
            .output();
        assert!(done.as_ref().is_ok_and(|done| done.status.success()), "{done:?}");
    }
}

impl Drop for Projects {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).status();
    }
}

/// The projects of files, and a file that moves from one project to another.
#[test]
#[ignore = "needs root, loop devices, mkfs.xfs (xfsprogs) and chattr (e2fsprogs): .ci/run clients"]
fn projects_are_taken() {
    let scratch = Scratch::with_pool();
    let source = Projects::new(&scratch);
    let top = source.0.clone();
    fs::create_dir(top.join("seven")).unwrap();
    for path in ["seven/a", "seven/b", "none"] {
        fs::write(top.join(path), path).unwrap();
    }
    source.set("seven", 7);
    source.set("seven/a", 7);
    source.set("seven/b", 4_000_000_000);
    let projects = |snapshot: &str| -> Vec<String> {
        let lines = scratch.ok(&format!("manifest {snapshot}"));
        let lines = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let told =
            lines.filter_map(|line| Some(format!("{} {}", line["path"].as_str()?, line["projid"].as_u64()?)));
        told.filter(|line| !line.ends_with(" 0")).collect()
    };
    import(&scratch, "src tank/x@1");
    assert_eq!(projects("tank/x@1"), ["seven 7", "seven/a 7", "seven/b 4000000000"]);
    let again = import(&scratch, "src tank/x@2");
    assert_eq!((&again["changed"], &again["files_read"]), (&Value::from(0), &Value::from(0)));

    source.set("seven/a", 8);
    source.set("none", 9);
    source.set("seven/b", 0);
    import(&scratch, "src tank/x@3");
    assert_eq!(projects("tank/x@3"), ["none 9", "seven 7", "seven/a 8"]);
    assert_eq!(projects("tank/x@1").len(), 3);
    scratch.ok("check tank");
}

#[test]
fn files_that_moved_say_where_they_are() {
    let scratch = Scratch::with_pool();
    let src = scratch.path().join("src");
    fs::create_dir_all(src.join("a")).unwrap();
    fs::create_dir_all(src.join("b")).unwrap();
    fs::write(src.join("a/one"), b"one").unwrap();
    fs::write(src.join("a/two"), b"two").unwrap();
    fs::hard_link(src.join("a/two"), src.join("b/two")).unwrap();
    scratch.ok("import src tank/d@1");
    fs::rename(src.join("a/one"), src.join("b/one")).unwrap();
    fs::remove_file(src.join("a/two")).unwrap();
    scratch.ok("import src tank/d@2");
    // The rename is found through the parent directory that each file records.
    let said = scratch.ok("diff tank/d@1 tank/d@2");
    assert!(said.contains("R\t/tank/d/a/one -> /tank/d/b/one\n"), "{said}");
    assert!(said.contains("M\t/tank/d/b/two\t(-1)\n"), "{said}");
}

/// A directory that has the same times as the last entry made in it. Its times seem to need no change, but its birth
/// time must be set, because that identifies it later.
#[test]
fn directories_that_were_made_in_one_moment_are_known_again() {
    let scratch = Scratch::with_pool();
    let src = scratch.path().join("src");
    fs::create_dir(&src).unwrap();
    let in_one_moment = || {
        let _ = fs::remove_dir_all(src.join("a"));
        fs::create_dir(src.join("a")).unwrap();
        let made = fs::metadata(src.join("a")).unwrap().created().ok();
        std::thread::sleep(std::time::Duration::from_millis(20));
        fs::write(src.join("a/file"), b"").unwrap();
        let (directory, file) =
            (fs::metadata(src.join("a")).unwrap(), fs::metadata(src.join("a/file")).unwrap());
        assert_ne!(made, directory.modified().ok(), "no time has passed");
        (directory.ctime(), directory.ctime_nsec()) == (file.ctime(), file.ctime_nsec())
    };
    assert!((0..1000).any(|_| in_one_moment()), "two changes never have one time here");
    scratch.ok("import src tank/d@1");
    fs::rename(src.join("a"), src.join("z")).unwrap();
    scratch.ok("import src tank/d@2");
    let said = scratch.ok("diff tank/d@1 tank/d@2");
    assert_eq!(said, "M\t/tank/d/\nR\t/tank/d/a -> /tank/d/z\n");
}
