//! Mounts made by the real binary, and the processes that serve them.
#![allow(clippy::unwrap_used, clippy::panic)]
#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Scratch;

/// Pools and a directory to mount on. All mounts are removed at the end of a test.
pub struct Mounting {
    pub scratch: Scratch,
}

impl Drop for Mounting {
    fn drop(&mut self) {
        let top = self.scratch.path().canonicalize().unwrap();
        for _ in 0..2 {
            for dir in mounted_below(&top) {
                let _ = rustix::mount::unmount(&dir, rustix::mount::UnmountFlags::DETACH);
            }
        }
        wait_for("the end of the background process", || !processes().contains(&top));
    }
}

pub fn mounted_below(top: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let dirs = table.lines().map(|line| PathBuf::from(line.split(' ').nth(1).unwrap()));
    dirs.filter(|dir| dir.starts_with(top)).collect()
}

/// Home directories of the background processes. They tell the processes of different tests apart.
fn processes() -> Vec<PathBuf> {
    background().into_iter().map(|(_, home)| home).collect()
}

pub fn background() -> Vec<(u32, PathBuf)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let read = |file| fs::read(entry.path().join(file)).unwrap_or_default();
        if !read("cmdline").split(|byte| *byte == 0).any(|word| word == b"--detached") {
            continue;
        }
        let environment = read("environ");
        let home = environment.split(|byte| *byte == 0).find_map(|variable| variable.strip_prefix(b"HOME="));
        if let Some(home) = home {
            found.push((pid, PathBuf::from(String::from_utf8_lossy(home).into_owned())));
        }
    }
    found
}

pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Mounting {
    pub fn new(scratch: Scratch) -> Self {
        assert!(rustix::process::geteuid().is_root(), "these tests must be run by root");
        assert!(Path::new("/dev/fuse").exists(), "there is no /dev/fuse: these tests need FUSE");
        fs::create_dir(scratch.path().join("mnt")).unwrap();
        Self { scratch }
    }

    pub fn dir(&self) -> PathBuf {
        self.scratch.path().canonicalize().unwrap().join("mnt")
    }

    /// Process id of the background process.
    pub fn owner(&self) -> Option<u32> {
        let home = self.scratch.path();
        background().into_iter().find(|(_, other)| other == home).map(|(pid, _)| pid)
    }

    pub fn wait_until_closed(&self) {
        wait_for("the end of the background process", || self.owner().is_none());
    }
}
