//! Opens paths below a directory that cannot lead out of it (`openat2(2)`).
//!
//! Kernels before Linux 5.6, and some sandboxes, do not have that call. There the path is walked component by
//! component. Each component is opened relative to the descriptor of its directory, and never through a symbolic link.
//! Links are read, and their targets are walked in the same way.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, Result};

/// The most lookups of a path while others rename files.
const TRIES: usize = 1000;
/// The most symbolic links in one path, as in the kernel.
const LINKS_MAX: usize = 40;
/// The most components of one path with all its links. Each holds a descriptor open during the walk.
const NAMES_MAX: usize = 512;

/// The kernel does not have the call.
static IS_MISSING: AtomicBool = AtomicBool::new(false);

/// Which symbolic links in a path are followed. With `NOFOLLOW` in the flags, the last component is never followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Follow {
    /// None: the path has no "..", and a link is an error (`ELOOP`).
    Nothing,
    /// All, as if the directory were the root directory.
    InRoot,
    /// All, wherever they lead. Used where the operator wants that.
    Anywhere,
}

/// Opens the file at a path.
///
/// # Errors
/// As `openat(2)`.
pub(crate) fn open_inside(root: &impl AsFd, path: &[u8], flags: OFlags, follow: Follow) -> Result<OwnedFd> {
    let path = if path.is_empty() { b"." } else { path };
    let flags = flags | OFlags::CLOEXEC;
    if follow == Follow::Anywhere {
        return rustix::fs::openat(root, path, flags, Mode::empty());
    }
    if !IS_MISSING.load(Ordering::Relaxed) {
        match ask_kernel(root, path, flags, follow) {
            Err(Errno::NOSYS) => IS_MISSING.store(true, Ordering::Relaxed),
            // Older sandboxes return this for unknown calls.
            Err(Errno::PERM) if is_forbidden(root) => {
                IS_MISSING.store(true, Ordering::Relaxed);
            }
            done => return done,
        }
    }
    walk(root, path, flags, follow)
}

/// Calls the kernel. It gives up on a path with ".." while any file is renamed, and must be called again (`EAGAIN`).
fn ask_kernel(root: &impl AsFd, path: &[u8], flags: OFlags, follow: Follow) -> Result<OwnedFd> {
    let resolve = ResolveFlags::NO_MAGICLINKS
        | match follow {
            Follow::Nothing => ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
            Follow::InRoot => ResolveFlags::IN_ROOT,
            Follow::Anywhere => ResolveFlags::empty(),
        };
    let mut tries = 1;
    loop {
        match rustix::fs::openat2(root, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN) if tries < TRIES => tries += 1,
            done => return done,
        }
    }
}

/// Whether the call fails even for the directory itself.
fn is_forbidden(root: &impl AsFd) -> bool {
    let asked = ask_kernel(root, b".", OFlags::PATH | OFlags::CLOEXEC, Follow::InRoot);
    matches!(asked, Err(Errno::PERM))
}

/// Opens the file at a path without this call.
fn walk(root: &impl AsFd, path: &[u8], flags: OFlags, follow: Follow) -> Result<OwnedFd> {
    const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
    // The directories from the root to the present one, so that ".." goes back and never out.
    let mut above: Vec<OwnedFd> = Vec::new();
    // The remaining components, with the next one at the end.
    let mut left: Vec<Vec<u8>> = names(path);
    // A slash at the end requires a directory.
    let mut must_be_dir = path.ends_with(b"/");
    let mut links = 0;
    while let Some(name) = left.pop() {
        if above.len() > NAMES_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        match name.as_slice() {
            b"." => continue,
            b".." if follow == Follow::Nothing => return Err(Errno::XDEV),
            b".." => {
                above.pop();
                continue;
            }
            _ => {}
        }
        let here = above.last().map_or(root.as_fd(), AsFd::as_fd);
        let is_last = left.is_empty();
        let found = rustix::fs::openat(here, name.as_slice(), DIRECTORY, Mode::empty())?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode);
        if kind == FileType::Symlink && !(is_last && flags.contains(OFlags::NOFOLLOW) && !must_be_dir) {
            links += 1;
            if links > LINKS_MAX || follow == Follow::Nothing {
                return Err(Errno::LOOP);
            }
            let target = rustix::fs::readlinkat(&found, c"", Vec::new())?.into_bytes();
            if target.starts_with(b"/") {
                above.clear();
            }
            must_be_dir |= is_last && target.ends_with(b"/");
            left.extend(names(&target));
            continue;
        }
        if !is_last || kind == FileType::Directory {
            if kind != FileType::Directory {
                return Err(Errno::NOTDIR);
            }
            above.push(found);
            continue;
        }
        if must_be_dir {
            return Err(Errno::NOTDIR);
        }
        // A link that replaces the file now is not followed.
        return rustix::fs::openat(here, name.as_slice(), flags | OFlags::NOFOLLOW, Mode::empty());
    }
    let here = above.last().map_or(root.as_fd(), AsFd::as_fd);
    rustix::fs::openat(here, c".", flags, Mode::empty())
}

/// The components of a path, with the first one at the end.
fn names(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|byte| *byte == b'/').rev().filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A tree with links that lead everywhere, and a file outside beside it.
    fn tree() -> (tempfile::TempDir, OwnedFd) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("d/e/f")).unwrap();
        fs::write(root.join("file"), "x").unwrap();
        fs::write(root.join("d/file"), "y").unwrap();
        fs::write(dir.path().join("outside"), "z").unwrap();
        for (target, name) in [
            ("file", "link"),
            ("../file", "d/up"),
            ("../../../../outside", "d/out"),
            ("/d/file", "absolute"),
            ("/", "top"),
            ("d/e/", "slash"),
            ("file/", "wrong"),
            ("loop", "loop"),
            ("nothing", "broken"),
            ("..", "d/e/back"),
            ("link", "twice"),
        ] {
            symlink(target, root.join(name)).unwrap();
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let fd = rustix::fs::open(&root, flags, Mode::empty()).unwrap();
        (dir, fd)
    }

    #[test]
    fn walking_leads_where_the_kernel_leads() {
        let (_dir, root) = tree();
        let paths = [
            ".",
            "file",
            "file/",
            "d",
            "d/",
            "d/e/f",
            "d/e/f/../../file",
            "../outside",
            "d/../../outside",
            "link",
            "link/",
            "d/up",
            "d/out",
            "absolute",
            "top",
            "top/file",
            "slash",
            "slash/f",
            "wrong",
            "loop",
            "broken",
            "d/e/back/file",
            "twice",
            "nothing",
            "nothing/x",
            "file/x",
            "d/e/back/../file",
            "top/top/d/up",
            "loop/x",
            "d//e/./f",
        ];
        let kinds = [
            OFlags::PATH,
            OFlags::PATH | OFlags::NOFOLLOW,
            OFlags::RDONLY,
            OFlags::RDONLY | OFlags::NOFOLLOW,
        ];
        let more =
            [OFlags::RDONLY | OFlags::DIRECTORY, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW];
        let identity = |opened: Result<OwnedFd>| opened.map(|fd| rustix::fs::fstat(fd).unwrap().st_ino);
        for path in paths {
            for flags in kinds.into_iter().chain(more) {
                let flags = flags | OFlags::CLOEXEC;
                for follow in [Follow::InRoot, Follow::Nothing] {
                    let walked = identity(walk(&root, path.as_bytes(), flags, follow));
                    let expected = identity(ask_kernel(&root, path.as_bytes(), flags, follow));
                    let is_dotted = follow == Follow::Nothing && path.contains("..");
                    if !is_dotted {
                        assert_eq!(walked, expected, "{path} {flags:?} {follow:?}");
                    }
                    assert!(!is_dotted || walked.is_err());
                }
            }
        }
    }

    #[test]
    fn a_path_of_many_names_ends() {
        let (_dir, root) = tree();
        let path = "d/../".repeat(2000) + "file";
        assert!(walk(&root, path.as_bytes(), OFlags::PATH, Follow::InRoot).is_ok());
    }
}
