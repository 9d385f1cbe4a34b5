//! Trees with all kinds of files, and their comparison.
#![allow(dead_code, clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{AtFlags, FileType, Mode, Timespec, Timestamps};

/// A generator of pseudo-random numbers, always the same for a seed.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 24
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

pub fn set_time(path: &Path, seconds: i64, nanoseconds: i64) {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// Makes a tree with all kinds of files.
pub fn grow(root: &Path, seed: u64) {
    let mut random = Random(seed);
    let mut directories = vec![root.to_path_buf()];
    fs::create_dir_all(root).unwrap();
    let mut files: Vec<PathBuf> = Vec::new();
    for number in 0..120 {
        let parent = directories[random.below(directories.len() as u64) as usize].clone();
        let odd = ["", " b", ".c", "-d", "\u{e4}", "*", "\n", "\\"][random.below(8) as usize];
        let name = match number {
            7 => "x".repeat(255),
            _ => format!("{}{odd}", [number, number % 10 * 1000][random.below(2) as usize]),
        };
        let path = parent.join(name);
        if path.symlink_metadata().is_ok() {
            continue;
        }
        match random.below(12) {
            0..=2 => {
                fs::create_dir(&path).unwrap();
                directories.push(path.clone());
            }
            3 => symlink(["a", "/b/c", "../d", "x/../y"][random.below(4) as usize], &path).unwrap(),
            4 if !files.is_empty() => {
                fs::hard_link(&files[random.below(files.len() as u64) as usize], &path).unwrap();
                continue;
            }
            5 => {
                let (kind, device) = match random.below(4) {
                    0 => (FileType::BlockDevice, rustix::fs::makedev(7, random.below(300) as u32)),
                    1 => (FileType::CharacterDevice, rustix::fs::makedev(259, 70_000)),
                    2 => (FileType::Socket, 0),
                    _ => (FileType::Fifo, 0),
                };
                rustix::fs::mknodat(rustix::fs::CWD, &path, kind, Mode::RUSR, device).unwrap();
            }
            6 => fs::write(&path, b"").unwrap(),
            7 => {
                let file = fs::File::create(&path).unwrap();
                file.set_len(3_000_000).unwrap();
                std::os::unix::fs::FileExt::write_all_at(&file, b"data", 1_500_000).unwrap();
                files.push(path.clone());
            }
            kind => {
                let len = [10, 700, 33_000, 200_000][random.below(4) as usize] + random.below(90) as usize;
                let content = if kind == 8 { b"text ".repeat(len / 5) } else { random.bytes(len) };
                fs::write(&path, content).unwrap();
                files.push(path.clone());
            }
        }
        let is_link = path.is_symlink();
        let owner = [0, 1, 33, 4_000_000][random.below(4) as usize];
        std::os::unix::fs::lchown(&path, Some(owner), Some([0, 5, 99_999][random.below(3) as usize]))
            .unwrap();
        if !is_link {
            let mode = [0o644, 0o755, 0o600, 0o4755, 0o2750, 0o1777, 0o000][random.below(7) as usize];
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
        if random.below(3) == 0 && (path.is_file() || path.is_dir()) {
            for count in 0..=random.below(3) {
                let len = [0, 5, 32, 33, 900][random.below(5) as usize];
                let value = random.bytes(len);
                let name = ["user.a", "user.bb", "trusted.c", "security.d"][count as usize];
                xattr::set(&path, name, &value).unwrap();
            }
        }
    }
    // Some files get ACLs.
    for (at, directory) in directories.iter().enumerate().skip(1) {
        let acl = if at % 2 == 0 { "u:33:rwx,g:5:r-x,d:u:1:rw-,d:o::---" } else { "g:7:--x" };
        assert!(Command::new("setfacl").args(["-m", acl]).arg(directory).status().unwrap().success());
    }
    for (at, file) in files.iter().enumerate().filter(|(at, _)| at % 3 == 0) {
        let acl = if at % 2 == 0 { "u:33:rw,u:5:r" } else { "m::r,u:9:rwx" };
        assert!(Command::new("setfacl").args(["-m", acl]).arg(file).status().unwrap().success());
    }
    // No file has a time within the present second, which is the time of files that the client makes.
    for (at, path) in manifest(root).into_keys().enumerate() {
        let seconds = [1_700_000_000, 0, -5_000, 5_000_000_000][at % 4] + at as i64;
        set_time(&root.join(path), seconds, [0, 1, 999_999_999][at % 3]);
    }
}

/// Everything that must be equal in two trees, by path.
pub fn manifest(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut links: BTreeMap<u64, PathBuf> = BTreeMap::new();
    let mut left = vec![root.to_path_buf()];
    while let Some(path) = left.pop() {
        let it = path.symlink_metadata().unwrap();
        let name = path.strip_prefix(root).unwrap().to_path_buf();
        let kind = it.file_type();
        let mut text = format!(
            "mode {:o} owner {}:{} time {}.{} ",
            it.mode(),
            it.uid(),
            it.gid(),
            it.mtime(),
            it.mtime_nsec()
        );
        if kind.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            text += &format!("size {} links {} ", it.size(), it.nlink());
        }
        if kind.is_symlink() {
            text += &format!("target {:?} ", fs::read_link(&path).unwrap());
        }
        if kind.is_block_device() || kind.is_char_device() {
            text += &format!("device {:x} ", it.rdev());
        }
        if kind.is_file() {
            let content = fs::read(&path).unwrap();
            let sum =
                content.iter().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
            text += &format!("sum {sum:x} ");
        }
        if kind.is_file() || kind.is_dir() {
            let mut names: Vec<_> = xattr::list(&path).unwrap().collect();
            names.sort();
            for name in names {
                text += &format!("{name:?}={:?} ", xattr::get(&path, &name).unwrap());
            }
        }
        if !kind.is_dir() && it.nlink() > 1 {
            // Which hard link comes first depends on the order of reading, so the smallest name stands for all.
            let first = links.entry(it.ino()).or_insert_with(|| name.clone());
            if name < *first {
                first.clone_from(&name);
            }
        }
        found.insert(name, text);
    }
    for (path, text) in &mut found {
        let it = root.join(path).symlink_metadata().unwrap();
        if let Some(first) = links.get(&it.ino()).filter(|_| !it.is_dir()) {
            *text += &format!("is {first:?}");
        }
    }
    found
}

pub fn assert_same(a: &Path, b: &Path, what: &str) {
    compare(&manifest(a), &manifest(b), what);
}

/// Compares two trees without fractions of seconds, which version 30 of the protocol does not have.
pub fn assert_same_but_for_nanoseconds(a: &Path, b: &Path, what: &str) {
    let whole = |text: &String| {
        let mut words: Vec<&str> = text.split(' ').collect();
        let at = words.iter().position(|word| *word == "time").unwrap() + 1;
        words[at] = words[at].split('.').next().unwrap();
        words.join(" ")
    };
    let seconds = |root| manifest(root).iter().map(|(path, text)| (path.clone(), whole(text))).collect();
    compare(&seconds(a), &seconds(b), what);
}

fn compare(a: &BTreeMap<PathBuf, String>, b: &BTreeMap<PathBuf, String>, what: &str) {
    for (path, text) in a {
        assert_eq!(Some(text), b.get(path), "{what}: {path:?}");
    }
    assert_eq!(a.len(), b.len(), "{what}");
}

/// Makes a tree without what versions before 30 cannot send.
pub fn grow_old(root: &Path, seed: u64) {
    grow(root, seed);
    for path in manifest(root).keys().map(|path| root.join(path)) {
        // These versions have 32 bits for seconds since 1970.
        if !(0..1 << 32).contains(&path.symlink_metadata().unwrap().mtime()) {
            set_time(&path, 1_000_000, 0);
        }
        if path.is_symlink() {
            continue;
        }
        for name in xattr::list(&path).unwrap() {
            xattr::remove(&path, name).unwrap();
        }
    }
    fs::write(root.join("long".repeat(60)), b"a name that is long").unwrap();
    fs::create_dir_all(root.join("d".repeat(200)).join("e".repeat(200))).unwrap();
    fs::write(root.join("-first"), b"before the dot").unwrap();
    for name in ["-first".to_owned(), "long".repeat(60), format!("{}/{}", "d".repeat(200), "e".repeat(200))] {
        set_time(&root.join(name), 1_111_111_111, 0);
    }
    set_time(&root.join("d".repeat(200)), 1_111_111_112, 0);
    set_time(root, 1_111_111_113, 0);
}

/// Changes some files of a tree.
pub fn disturb(root: &Path, seed: u64) {
    let mut random = Random(seed);
    for path in manifest(root).into_keys().map(|name| root.join(name)) {
        if path.is_symlink() || !path.is_file() || random.below(3) > 0 {
            continue;
        }
        let mut content = fs::read(&path).unwrap();
        match random.below(4) {
            0 => content.truncate(content.len() / 2),
            1 => content.splice(content.len() / 3..content.len() / 3, *b"inserted").for_each(drop),
            2 => content.extend(random.bytes(1000)),
            _ => content.iter_mut().skip(100).step_by(5000).for_each(|byte| *byte = !*byte),
        }
        fs::write(&path, content).unwrap();
        set_time(&path, 1_000_000_000 + seed as i64, 0);
    }
    fs::write(root.join("superfluous"), b"x").unwrap();
    // No time is within the present second.
    set_time(&root.join("superfluous"), 1_100_000_000, 1);
    set_time(root, 1_200_000_000, 2);
}
