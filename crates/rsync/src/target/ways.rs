//! Follows symbolic links in paths of targets, where an option wants that (`--keep-dirlinks`).

use std::io;

use parking_lot::Mutex;

use super::Target;

/// The most symbolic links that are followed in a path, as in Linux.
const LINKS_MAX: usize = 40;

/// The last directory that was followed to: its path with links, and without.
#[derive(Debug, Default)]
pub struct Ways(Mutex<Option<(Vec<u8>, Vec<u8>)>>);

impl Ways {
    /// Forgets the directory, because the links may have changed.
    pub(super) fn forget(&self) {
        *self.0.lock() = None;
    }
}

impl dyn Target + '_ {
    /// The path of the directory that a path leads to, with symbolic links followed. Links, ".." and absolute targets
    /// end at the target's root, unless the target allows them to lead outside.
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

    /// The path that a client's path leads to, as far as it exists.
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

    /// A path with all symbolic links followed. The last component is followed only if it leads to a directory.
    pub fn followed(&self, path: &[u8]) -> Vec<u8> {
        let path = self.followed_above(path);
        match self.stat(&path) {
            Ok(Some(found)) if found.metadata.is_symlink() => {
                self.real_directory(&path).ok().flatten().unwrap_or(path)
            }
            _ => path,
        }
    }

    /// The same, without following the last component.
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
