//! Resolving paths within a dataset, and listing directories.

use crate::error::FsError;
use snowmelt_zpl::{Attributes, FileKind, Filesystem, Objects};

/// Whether a real directory could contain this name.
pub fn is_safe_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.contains(&b'/') && !name.contains(&0)
}

/// The object at `path`, relative to the root directory. A leading "/", "." and ".." are supported.
///
/// Symbolic links are never followed. If the last name is a link, the link itself is returned.
///
/// # Errors
/// If the path does not exist or cannot be read.
pub fn resolve<O: Objects>(fs: &Filesystem<O>, path: &[u8]) -> Result<u64, FsError> {
    // The directories on the path so far, for "..".
    let mut way: Vec<u64> = Vec::new();
    let mut here = fs.root();
    let mut done = 0;
    for name in path.split(|byte| *byte == b'/') {
        let so_far = &path[..done + name.len()];
        done += name.len() + 1;
        match name {
            b"" | b"." => {}
            b".." => here = way.pop().unwrap_or(fs.root()),
            _ => {
                let kind = fs.attributes(here).map_err(FsError::zpl(so_far))?.kind();
                if kind != FileKind::Directory {
                    let parent = so_far[..so_far.len() - name.len()].trim_ascii_end();
                    let parent = parent.strip_suffix(b"/").unwrap_or(parent);
                    return Err(FsError::NotADirectory { path: parent.to_vec() });
                }
                let found = fs.lookup(here, name).map_err(FsError::zpl(so_far))?;
                way.push(here);
                here = found.ok_or_else(|| FsError::NotFound { path: so_far.to_vec() })?.object;
            }
        }
    }
    if path.ends_with(b"/") && fs.attributes(here).map_err(FsError::zpl(path))?.kind() != FileKind::Directory
    {
        return Err(FsError::NotADirectory { path: path.to_vec() });
    }
    Ok(here)
}

/// One line of `ls -l`.
#[derive(Debug, Clone)]
pub struct Listed {
    /// The name.
    pub name: Vec<u8>,
    /// Object number.
    pub object: u64,
    /// Attributes of the object.
    pub attributes: Attributes,
    /// The target of a symbolic link.
    pub target: Option<Vec<u8>>,
}

impl Listed {
    /// Type and permissions in the form of `ls -l`: `drwxr-xr-x`.
    pub fn mode_string(&self) -> String {
        let mode = self.attributes.mode;
        let kind = match self.attributes.kind() {
            FileKind::Directory => 'd',
            FileKind::Symlink => 'l',
            FileKind::BlockDevice => 'b',
            FileKind::CharDevice => 'c',
            FileKind::Fifo => 'p',
            FileKind::Socket => 's',
            FileKind::File => '-',
            FileKind::Unknown => '?',
        };
        let mut text = String::from(kind);
        for (shift, special, set, letter) in
            [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')]
        {
            let bits = mode >> shift;
            text.push(if bits & 4 != 0 { 'r' } else { '-' });
            text.push(if bits & 2 != 0 { 'w' } else { '-' });
            text.push(match (bits & 1 != 0, mode & special != 0) {
                (true, true) => set,
                (false, true) => letter,
                (true, false) => 'x',
                (false, false) => '-',
            });
        }
        text
    }
}

/// The listing of a directory or a single object.
#[derive(Debug, Default)]
pub struct Listing {
    /// The entries that could be read, sorted by name.
    pub entries: Vec<Listed>,
    /// Errors of the other entries, each with its path. If the directory itself is damaged, entries may be missing.
    pub failures: Vec<FsError>,
}

/// Lists a directory, or a single object if it is not a directory. Entries that cannot be read do not prevent the
/// listing of the others.
///
/// `path` is used in errors, and as the name of a single object.
///
/// # Errors
/// If the directory or the single object cannot be read at all.
pub fn list<O: Objects>(fs: &Filesystem<O>, path: &[u8], object: u64) -> Result<Listing, FsError> {
    let listed = |name: &[u8], object| {
        let attributes = fs.attributes(object)?;
        let target = match attributes.kind() {
            FileKind::Symlink => Some(fs.readlink(object)?),
            _ => None,
        };
        Ok(Listed { name: name.to_vec(), object, attributes, target })
    };
    let attributes = fs.attributes(object).map_err(FsError::zpl(path))?;
    if attributes.kind() != FileKind::Directory {
        let entries = vec![listed(path, object).map_err(FsError::zpl(path))?];
        return Ok(Listing { entries, failures: Vec::new() });
    }
    let mut listing = Listing::default();
    for entry in fs.read_dir(object).map_err(FsError::zpl(path))?.all() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                listing.failures.push(FsError::zpl(path)(error));
                // The listing of a damaged directory may be endless.
                break;
            }
        };
        let full = if path.is_empty() { entry.name.clone() } else { [path, b"/", &entry.name].concat() };
        match listed(&entry.name, entry.object).map_err(FsError::zpl(&full)) {
            Ok(found) => listing.entries.push(found),
            Err(error) => listing.failures.push(error),
        }
    }
    listing.entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(listing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_names_are_told() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0"] {
            assert!(!is_safe_name(bad));
        }
        for good in [&b"..."[..], b".a", b"\xff", b"a b\n"] {
            assert!(is_safe_name(good));
        }
    }
}
