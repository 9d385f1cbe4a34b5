//! Paths with symbolic links in them, where an option says that links are followed (`--keep-dirlinks`).

use std::io;

use parking_lot::Mutex;

use super::Target;

/// Symbolic links followed on the way to a directory, as Linux has it.
const LINKS_MAX: usize = 40;

/// The directory last followed to: its path with links in it, and without.
#[derive(Debug, Default)]
pub struct Ways(Mutex<Option<(Vec<u8>, Vec<u8>)>>);

impl Ways {
    /// What is known may be wrong from now on.
    pub(super) fn forget(&self) {
        *self.0.lock() = None;
    }
}

impl dyn Target + '_ {
    /// The path of a directory that a path leads to, through symbolic links too. These end at the target's root, as do ".." and
    /// slashes in them, unless the target says that they lead anywhere.
    fn real_directory(&self, path: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let mut way: Vec<Vec<u8>> = Vec::new();
        let mut left: Vec<Vec<u8>> = path.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec).collect();
        let mut links = 0;
        while let Some(name) = left.pop() {
            match name.as_slice() {
                b"" | b"." => continue,
                b".." => {
                    let is_inside = way.last().is_some_and(|last| last != b"..");
                    match self.depth_for_links() {
                        Some(depth) if !is_inside && way.len() < depth => way.push(name),
                        Some(_) if !is_inside => {}
                        _ => drop(way.pop()),
                    }
                    continue;
                }
                _ => way.push(name),
            }
            let Some(found) = self.stat(&way.join(&b'/'))? else { return Ok(None) };
            if found.metadata.is_symlink() && links < LINKS_MAX {
                links += 1;
                let target = self.read_link(&found.node)?;
                way.pop();
                if target.starts_with(b"/") {
                    way.clear();
                    way.resize(self.depth_for_links().unwrap_or(0), b"..".to_vec());
                }
                left.extend(target.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec));
            } else if !found.is_dir() {
                return Ok(None);
            }
        }
        Ok(Some(way.join(&b'/')))
    }

    /// Where a path leads that somebody names, as far as it is there.
    pub fn named(&self, path: &[u8]) -> Vec<u8> {
        let ends = path.iter().enumerate().rev().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        for end in std::iter::once(path.len()).chain(ends) {
            if let Ok(Some(mut real)) = self.real_directory(&path[..end]) {
                let rest = path[end..].strip_prefix(b"/").unwrap_or(&path[end..]);
                if !real.is_empty() && !rest.is_empty() {
                    real.push(b'/');
                }
                real.extend_from_slice(rest);
                return real;
            }
        }
        path.to_vec()
    }

    /// A path with the symbolic links followed that are on its way, and the one at its end if that leads to a directory. What
    /// leads to none stays as it is.
    pub fn followed(&self, path: &[u8]) -> Vec<u8> {
        let path = self.followed_above(path);
        match self.stat(&path) {
            Ok(Some(found)) if found.metadata.is_symlink() => {
                self.real_directory(&path).ok().flatten().unwrap_or(path)
            }
            _ => path,
        }
    }

    /// The same, but for a link at its end.
    pub fn followed_above(&self, path: &[u8]) -> Vec<u8> {
        let Some(at) = path.iter().rposition(|byte| *byte == b'/') else { return path.to_vec() };
        let (above, rest) = path.split_at(at);
        let join = |real: &[u8]| match real {
            [] => rest[1..].to_vec(),
            real => [real, rest].concat(),
        };
        if let Some((_, real)) = self.ways().0.lock().as_ref().filter(|(known, _)| known == above) {
            return join(real);
        }
        let Ok(Some(real)) = self.real_directory(above) else { return path.to_vec() };
        let joined = join(&real);
        *self.ways().0.lock() = Some((above.to_vec(), real));
        joined
    }
}
