//! The list of pools that are not in the usual place: one path in each line of `$XDG_CONFIG_HOME/snowmelt/pools`
//! (`/etc/snowmelt/pools` for root). The line of a pool in an object store has more (see [`entry`]). Blank lines and
//! lines that begin with `#` are ignored.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::entry;

/// Larger lists are not ours.
const LENGTH_MAX: u64 = 1 << 20;

/// The list, by its path.
#[derive(Debug, Clone)]
pub struct Registry {
    path: PathBuf,
    header: &'static str,
}

const HEADER: &str = "Pools of snowmelt, one path a line. Written by 'pool create', 'import' and 'export'.";

impl Registry {
    /// The list in this file.
    pub fn new(path: PathBuf) -> Self {
        Self::with_header(path, HEADER)
    }

    /// Another list of lines, which begins with this comment.
    pub fn with_header(path: PathBuf, header: &'static str) -> Self {
        Self { path, header }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The paths listed; none if there is no list.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(&self) -> io::Result<Vec<PathBuf>> {
        let length = match fs::metadata(&self.path) {
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        if length > LENGTH_MAX {
            return Err(io::Error::other(format!("a list of {length} bytes is not a list of pools")));
        }
        let content = fs::read(&self.path)?;
        let lines =
            content.split(|&byte| byte == b'\n').filter(|line| !line.is_empty() && !line.starts_with(b"#"));
        Ok(lines.map(|line| PathBuf::from(OsStr::from_bytes(line))).collect())
    }

    /// Adds a line, if it is not listed. It takes the place of the one that its pool had.
    ///
    /// # Errors
    /// When the list cannot be written.
    pub fn add(&self, pool: &Path) -> io::Result<()> {
        if pool.as_os_str().as_bytes().contains(&b'\n') {
            return Err(io::Error::other("a path with a line break cannot be listed"));
        }
        self.change(|paths| {
            if paths.iter().any(|path| path == pool) {
                return false;
            }
            let place = entry::place(pool);
            paths.retain(|path| !entry::is_of(path, &place));
            paths.push(pool.to_owned());
            true
        })
    }

    /// Removes a path, if it is listed.
    ///
    /// # Errors
    /// When the list cannot be written.
    pub fn remove(&self, pool: &Path) -> io::Result<()> {
        if !self.read()?.iter().any(|path| entry::is_of(path, pool)) {
            return Ok(());
        }
        self.change(|paths| {
            let before = paths.len();
            paths.retain(|path| !entry::is_of(path, pool));
            paths.len() != before
        })
    }

    /// Adds a line, and removes those before it that it is `instead_of`.
    ///
    /// # Errors
    /// When the list cannot be written.
    pub fn replace(&self, line: &Path, instead_of: impl Fn(&Path) -> bool) -> io::Result<()> {
        if line.as_os_str().as_bytes().contains(&b'\n') {
            return Err(io::Error::other("a path with a line break cannot be listed"));
        }
        self.change(|lines| {
            lines.retain(|line| !instead_of(line));
            lines.push(line.to_owned());
            true
        })
    }

    /// Removes lines.
    ///
    /// # Errors
    /// When the list cannot be written.
    pub fn remove_all(&self, is_of: impl Fn(&Path) -> bool) -> io::Result<()> {
        self.change(|lines| {
            let before = lines.len();
            lines.retain(|line| !is_of(line));
            lines.len() != before
        })
    }

    /// Reads, changes and replaces the list, alone; the file is always whole. Comments do not survive.
    fn change(&self, change: impl FnOnce(&mut Vec<PathBuf>) -> bool) -> io::Result<()> {
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        make_config_dir(directory)?;
        let mut options = File::options();
        options.create(true).truncate(false).write(true).mode(0o600);
        let lock = options.open(self.path.with_extension("lock"))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        let mut paths = self.read()?;
        if !change(&mut paths) {
            return Ok(());
        }
        let mut content = format!("# {}\n", self.header).into_bytes();
        for path in paths {
            content.extend_from_slice(&path.into_os_string().into_vec());
            content.push(b'\n');
        }
        let temporary = self.path.with_extension("new");
        let mut file = create_private(&temporary)?;
        file.write_all(&content)?;
        file.sync_all()?;
        fs::rename(&temporary, &self.path)?;
        File::open(directory)?.sync_all()
    }
}

/// Creates a directory for configuration, and its parents, with access only for this user. The directory of the
/// system is readable for all users, like the rest of `/etc`.
pub fn make_config_dir(directory: &Path) -> io::Result<()> {
    let mode = if directory.starts_with("/etc") { 0o755 } else { 0o700 };
    fs::DirBuilder::new().recursive(true).mode(mode).create(directory)
}

/// A new, empty file that only this user can read. It replaces an existing file of this name.
///
/// # Errors
/// When it cannot be made.
pub fn create_private(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::options().write(true).create_new(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_come_and_go() {
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry::new(directory.path().join("deep/pools"));
        assert!(registry.read().unwrap().is_empty());
        registry.remove(Path::new("/a")).unwrap();
        assert!(!registry.path().exists());
        registry.add(Path::new("/a b")).unwrap();
        registry.add(Path::new("/c")).unwrap();
        registry.add(Path::new("/a b")).unwrap();
        assert_eq!(registry.read().unwrap(), [PathBuf::from("/a b"), PathBuf::from("/c")]);
        registry.remove(Path::new("/a b")).unwrap();
        assert_eq!(registry.read().unwrap(), [PathBuf::from("/c")]);
        let read_only = entry::path_line(Path::new("/c"), true);
        registry.add(&read_only).unwrap();
        assert_eq!(registry.read().unwrap(), std::slice::from_ref(&read_only));
        registry.add(Path::new("/c")).unwrap();
        assert_eq!(registry.read().unwrap(), [PathBuf::from("/c")]);
        registry.add(&read_only).unwrap();
        registry.remove(Path::new("/c")).unwrap();
        assert!(registry.read().unwrap().is_empty());
        registry.add(Path::new("/c")).unwrap();
        assert!(registry.add(Path::new("/x\ny")).is_err());
    }

    #[test]
    fn nobody_else_can_read_the_list() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry::new(directory.path().join("deep/er/pools"));
        registry.add(Path::new("/a")).unwrap();
        let mode =
            |path: &str| fs::metadata(directory.path().join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("deep"), mode("deep/er")), (0o700, 0o700));
        assert_eq!((mode("deep/er/pools"), mode("deep/er/pools.lock")), (0o600, 0o600));
    }

    #[test]
    fn many_writers_lose_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry::new(directory.path().join("pools"));
        std::thread::scope(|scope| {
            for number in 0..16 {
                let registry = &registry;
                scope.spawn(move || registry.add(&PathBuf::from(format!("/{number}"))).unwrap());
            }
        });
        assert_eq!(registry.read().unwrap().len(), 16);
    }
}
