//! The list of pools that are not in the usual place: one path a line, in `$XDG_CONFIG_HOME/snowmelt/pools`
//! (`/etc/snowmelt/pools` for root). For one in an object store the line says more (see [`entry`]). Blank lines and those that begin with `#` mean nothing.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::entry;

/// Larger lists are not ours.
const LENGTH_MAX: u64 = 1 << 20;

/// The list, by its path.
#[derive(Debug, Clone)]
pub struct Registry {
    path: PathBuf,
}

impl Registry {
    pub fn new(path: PathBuf) -> Self {
        Self { path }
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

    /// Adds a path, if it is not listed. The line of a pool in an object store takes the place of the one it had.
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
            let place = entry::parse(pool).map(|known| known.location.path().to_owned());
            paths.retain(|path| place.as_ref().is_none_or(|place| !entry::is_of(path, place)));
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

    /// Reads, changes and replaces the list, alone; the file is always whole. Comments do not survive.
    fn change(&self, change: impl FnOnce(&mut Vec<PathBuf>) -> bool) -> io::Result<()> {
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(directory)?;
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(self.path.with_extension("lock"))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        let mut paths = self.read()?;
        if !change(&mut paths) {
            return Ok(());
        }
        let mut content =
            b"# Pools of snowmelt, one path a line. Written by 'pool create', 'import' and 'export'.\n"
                .to_vec();
        for path in paths {
            content.extend_from_slice(&path.into_os_string().into_vec());
            content.push(b'\n');
        }
        let temporary = self.path.with_extension("new");
        let mut file = File::create(&temporary)?;
        file.write_all(&content)?;
        file.sync_all()?;
        fs::rename(&temporary, &self.path)?;
        File::open(directory)?.sync_all()
    }
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
        assert!(registry.add(Path::new("/x\ny")).is_err());
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
