//! Files in further directories (`--link-dest`, `--copy-dest`, `--compare-dest`), and files with similar names
//! (`--fuzzy`).

use std::io::{self, Read, Write};

use snowmelt_zpl::NewKind;

use super::generate::item;
use super::links::Leader;
use super::{Nearby, Receiver};
use crate::error::Result;
use crate::options::BasisUse;
use crate::target::{Found, Node, Tree};
use crate::wire::Tag;

/// The greatest difference between names that count as similar.
const DISTANCE_MAX: usize = 25;
const CHUNK: usize = 1 << 20;

/// The result of a search in the further directories.
pub(super) enum Elsewhere {
    /// Nothing useful was found.
    Nothing,
    /// The file is done.
    Settled,
    /// A file of the same kind was found that differs.
    Like(Found),
}

/// How much of a file in a further directory agrees with the list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Level {
    Kind,
    Content,
    Everything,
}

/// The differences of attributes that count.
const ATTRIBUTES: u16 =
    item::TIME | item::ATIME | item::PERMISSIONS | item::OWNER | item::GROUP | item::ACL | item::XATTRS;

impl<R: Read, W: Write> Receiver<'_, R, W> {
    /// Whether a link, device or similar file elsewhere agrees with the list, including its attributes.
    pub(super) fn is_all_the_same(&self, index: u32, other: &Found) -> bool {
        self.is_same_node(index, other) && self.differences(index, Some(other), 0) & ATTRIBUTES == 0
    }

    /// Finds the further directories that the client names.
    pub(super) fn find_basis_dirs(&mut self) -> Result<()> {
        let option = self.options.basis_use.name();
        for name in &self.options.basis_dirs {
            let place = match snapshot_path(&self.beside(name)) {
                (None, path) => Ok((Tree::Next, path.to_vec())),
                (Some(short), path) => self.into.target.snapshot(short).map(|tree| (tree, path.to_vec())),
            };
            let found = place.and_then(|place| Ok((self.in_basis(&place)?, place)));
            let shown = String::from_utf8_lossy(name);
            let text = match found.map(|(found, place)| (found.map(|found| found.is_dir()), place)) {
                Ok((Some(true), place)) => {
                    self.basis_dirs.push(place);
                    continue;
                }
                Ok((Some(false), _)) => format!("--{option} arg is not a dir: {shown}\n"),
                _ => format!("--{option} arg does not exist: {shown}\n"),
            };
            self.writer.message(Tag::Warning, text.as_bytes())?;
        }
        Ok(())
    }

    /// The file at a place. A file that the module hides does not count.
    fn in_basis(&self, (tree, path): &(Tree, Vec<u8>)) -> io::Result<Option<Found>> {
        let found = self.into.target.stat_in(*tree, path)?;
        Ok(found.filter(|found| !self.into.hidden.hides(path, found.is_dir())))
    }

    fn basis_places(&self, index: u32) -> Vec<(Tree, Vec<u8>)> {
        let name = match &self.single {
            Some(path) => path.rsplit(|byte| *byte == b'/').next().unwrap_or_default(),
            None => &self.list[index as usize].name,
        };
        let join = |directory: &[u8]| match (directory, name) {
            (directory, b".") => directory.to_vec(),
            (b"", name) => name.to_vec(),
            (directory, name) => [directory, b"/", name].concat(),
        };
        self.basis_dirs.iter().map(|(tree, directory)| (*tree, join(directory))).collect()
    }

    /// The files in the further directories at the place of a file.
    pub(super) fn elsewhere(&self, index: u32) -> impl Iterator<Item = Found> {
        self.basis_places(index).into_iter().filter_map(|place| self.in_basis(&place).ok()?)
    }

    /// The best match for a file in the further directories. Of equal ones the first.
    fn best(&mut self, index: u32) -> Result<Option<(Found, Level)>> {
        let mut best: Option<(Found, Level)> = None;
        for place in self.basis_places(index) {
            let wanted = self.list[index as usize].metadata;
            let Ok(Some(found)) = self.in_basis(&place) else { continue };
            if found.metadata.kind() != wanted.kind() {
                continue;
            }
            let has_content = match wanted.is_file() {
                true => self.is_unchanged(index, &found)?,
                false => wanted.is_dir() || self.is_same_node(index, &found),
            };
            let level = match has_content {
                false => Level::Kind,
                true if self.differences(index, Some(&found), 0) & ATTRIBUTES != 0 => Level::Content,
                true => Level::Everything,
            };
            if best.as_ref().is_none_or(|(_, before)| level > *before) {
                best = Some((found, level));
            }
        }
        Ok(best)
    }

    /// Looks for a file in the further directories.
    pub(super) fn file_elsewhere(
        &mut self,
        index: u32,
        path: &[u8],
        found: Option<&Found>,
    ) -> Result<Elsewhere> {
        if self.basis_dirs.is_empty() || found.is_some() && self.options.basis_use == BasisUse::Copy {
            return Ok(Elsewhere::Nothing);
        }
        let Some((other, level)) = self.best(index)? else { return Ok(Elsewhere::Nothing) };
        let how = self.basis_use(&other);
        if level == Level::Everything && how != BasisUse::Copy {
            if let Some(found) = found {
                if how == BasisUse::Link && found.node == other.node {
                    return Ok(Elsewhere::Nothing);
                }
                // A link replaces the file, so it need not be removed.
                let stays = how == BasisUse::Link && self.replaces(found);
                if !self.options.dry_run
                    && !stays
                    && let Err(error) = self.into.target.remove(path, false)
                {
                    self.failed("unlink", path, &error)?;
                    return Ok(Elsewhere::Nothing);
                }
            }
            return match how {
                BasisUse::Link => self.link_elsewhere(index, path, &other),
                _ => {
                    self.report(index, Some(&other), 0)?;
                    self.skip(index).map(|()| Elsewhere::Settled)
                }
            };
        }
        match (found, level) {
            (Some(_), _) => Ok(Elsewhere::Nothing),
            (None, Level::Kind) => Ok(Elsewhere::Like(other)),
            (None, _) => self.copy_elsewhere(index, path, &other),
        }
    }

    /// Looks for a directory, link, device or similar file in the further directories. Also returns whether the client
    /// is told of the file. It is not told of one that agrees completely, unless it wants that.
    pub(super) fn node_elsewhere(&mut self, index: u32, path: &[u8]) -> Result<(Elsewhere, bool)> {
        if self.basis_dirs.is_empty() {
            return Ok((Elsewhere::Nothing, true));
        }
        match self.best(index)? {
            None => Ok((Elsewhere::Nothing, true)),
            Some((other, Level::Everything)) if other.is_dir() => {
                Ok((Elsewhere::Like(other), self.tells_all()))
            }
            Some((other, Level::Everything)) => match self.basis_use(&other) {
                BasisUse::Link => Ok((self.link_elsewhere(index, path, &other)?, true)),
                BasisUse::Compare => {
                    self.report(index, Some(&other), 0)?;
                    self.skip(index)?;
                    Ok((Elsewhere::Settled, true))
                }
                BasisUse::Copy => Ok((Elsewhere::Like(other), self.tells_all())),
            },
            Some((other, _)) => Ok((Elsewhere::Like(other), true)),
        }
    }

    /// How a file elsewhere is used. A file in a snapshot cannot be linked to, so it is copied.
    fn basis_use(&self, other: &Found) -> BasisUse {
        match self.options.basis_use {
            BasisUse::Link if !self.into.target.can_be_linked(&other.node) => BasisUse::Copy,
            how => how,
        }
    }

    /// Whether the client is told of unchanged files too.
    pub(super) fn tells_all(&self) -> bool {
        self.options.verbosity > 1 || self.options.itemize > 1
    }

    /// The file that a name is compared with before it becomes a hard link, and whether the client is told. It is not
    /// told if another directory has the same link already.
    pub(super) fn link_elsewhere_too(&mut self, index: u32, node: &Node) -> Result<(Option<Found>, bool)> {
        if self.options.basis_use != BasisUse::Link {
            let best = self.best(index)?.filter(|(_, level)| *level >= Level::Content);
            return Ok((best.map(|(other, _)| other), true));
        }
        let same = self.elsewhere(index).find(|other| other.node == *node);
        let is_told = same.is_none() || self.tells_all();
        Ok((same, is_told))
    }

    fn link_elsewhere(&mut self, index: u32, path: &[u8], other: &Found) -> Result<Elsewhere> {
        if !self.options.dry_run
            && let Err(error) = self.link_to(&other.node, path)
        {
            self.check_room(path, &error)?;
            return self.copy_elsewhere(index, path, other);
        }
        if self.tells_all() {
            self.announce(index, item::LOCAL_CHANGE | item::NAME_FOLLOWS, Some(b""))?;
        }
        // rsync keeps the source of other kinds of files.
        if other.is_file() {
            self.came(index);
        }
        self.settle_links(index, Leader::Done(other.node.clone()))?;
        Ok(Elsewhere::Settled)
    }

    fn copy_elsewhere(&mut self, index: u32, path: &[u8], other: &Found) -> Result<Elsewhere> {
        if !other.is_file() {
            return Ok(Elsewhere::Like(other.clone()));
        }
        if self.options.dry_run {
            self.report(index, Some(other), item::LOCAL_CHANGE)?;
            self.skip(index)?;
            return Ok(Elsewhere::Settled);
        }
        let made = match self.copy(index, path, other) {
            Ok(made) => made,
            Err(error) => {
                self.failed("copy_file", path, &error)?;
                self.skip(index)?;
                return Ok(Elsewhere::Settled);
            }
        };
        self.report(index, Some(other), item::LOCAL_CHANGE)?;
        self.settle_attributes(index, path, &made, true)?;
        let mut node = made.node;
        if !self.into.target.is_staged() {
            node = match self.put_in_place(&node, path) {
                Ok(node) => node,
                Err(error) => {
                    self.failed("rename", path, &error)?;
                    self.skip(index)?;
                    return Ok(Elsewhere::Settled);
                }
            };
        }
        self.came(index);
        self.settle_links(index, Leader::Done(node))?;
        Ok(Elsewhere::Settled)
    }

    fn copy(&mut self, index: u32, path: &[u8], other: &Found) -> io::Result<Found> {
        let target = &*self.into.target;
        let mode = self.list[index as usize].metadata.mode & 0o7777;
        let made = match target.is_staged() {
            true => target.create(path, NewKind::File, mode)?,
            false => target.create_temporary(path, self.temp_dir.as_deref(), NewKind::File, 0)?,
        };
        if self.options.xattrs {
            for (name, value) in target.xattrs(&other.node)? {
                if !name.starts_with(b"system.") {
                    target.set_xattr(&made.node, &name, Some(&value))?;
                }
            }
        }
        let mut buffer = vec![0; CHUNK];
        let mut at = 0;
        while at < other.metadata.size {
            let len = target.read(&other.node, at, &mut buffer)?;
            if len == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            // Zeros of a new file need not be written.
            if buffer[..len].iter().any(|byte| *byte != 0) {
                target.write(&made.node, at, &buffer[..len])?;
            }
            at += len as u64;
            self.writer.keep_alive()?;
        }
        self.into.target.truncate(&made.node, other.metadata.size)?;
        let metadata = self.into.target.metadata(&made.node)?;
        Ok(Found { metadata, ..made })
    }

    /// A file that probably shares content with a new one: it has the same size and time, or else a similar name. Files
    /// in the same directory come first. With `-yy` those in the further directories follow.
    pub(super) fn similar(&mut self, path: &[u8], index: u32) -> Option<Found> {
        if self.options.fuzzy == 0 {
            return None;
        }
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let above = &path[..(path.len() - name.len()).saturating_sub(1)];
        if self.similar_in.as_ref().is_none_or(|nearby| nearby.directory != above) {
            let mut directories = vec![(Tree::Next, above.to_vec())];
            if self.options.fuzzy > 1 {
                let parent = |path: Vec<u8>| path[..path.len().saturating_sub(name.len() + 1)].to_vec();
                directories
                    .extend(self.basis_places(index).into_iter().map(|(tree, path)| (tree, parent(path))));
            }
            let all = directories.iter().flat_map(|directory| self.files_in(directory)).collect();
            self.similar_in = Some(Nearby { directory: above.to_vec(), files: all });
        }
        let files = &self.similar_in.as_ref()?.files;
        let wanted = &self.list[index as usize].metadata;
        let is_it = |found: &&(Vec<u8>, Found)| {
            found.1.metadata.size == wanted.size && found.1.metadata.mtime.seconds == wanted.mtime.seconds
        };
        let by_name = || {
            let near = files.iter().filter_map(|found| Some((distance(&found.0, name)?, found)));
            near.min_by_key(|(distance, _)| *distance).map(|(_, found)| found)
        };
        files.iter().find(is_it).or_else(by_name).map(|(_, found)| found.clone())
    }

    fn files_in(&self, directory: &(Tree, Vec<u8>)) -> Vec<(Vec<u8>, Found)> {
        let found = self.in_basis(directory).ok().flatten();
        let mut files = found.and_then(|found| self.into.target.list(&found.node).ok()).unwrap_or_default();
        files.retain(|(name, found)| {
            let path = [&directory.1[..], b"/", name].concat();
            let path = path.strip_prefix(b"/").unwrap_or(&path);
            found.is_file()
                && found.metadata.size > 0
                && self.into.target.is_old(&found.node)
                && !self.into.hidden.hides(path, false)
        });
        files
    }
}

/// The name of a snapshot in a path below `.zfs/snapshot`, as in ZFS, and the path in that snapshot.
fn snapshot_path(path: &[u8]) -> (Option<&str>, &[u8]) {
    let Some(rest) = path.strip_prefix(b".zfs/snapshot/") else { return (None, path) };
    let (name, rest) = match rest.iter().position(|byte| *byte == b'/') {
        Some(at) => (&rest[..at], &rest[at + 1..]),
        None => (rest, &b""[..]),
    };
    match std::str::from_utf8(name) {
        Ok(name) => (Some(name), rest),
        Err(_) => (None, path),
    }
}

/// The number of letters that must be replaced, added or removed to turn one name into another. `None` if it is too
/// large. A different suffix after the last dot adds to it.
fn distance(a: &[u8], b: &[u8]) -> Option<usize> {
    let suffix = |name: &[u8]| name.iter().rposition(|byte| *byte == b'.').map(|at| name[at..].to_vec());
    let other_suffix = usize::from(suffix(a) != suffix(b)) * DISTANCE_MAX;
    if a.len().abs_diff(b.len()) > DISTANCE_MAX {
        return None;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (at, letter) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (to, other) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != other);
            diagonal = row[to + 1];
            row[to + 1] = replaced.min(row[to] + 1).min(diagonal + 1);
        }
    }
    let distance = row[b.len()];
    (distance <= DISTANCE_MAX && distance < a.len().max(b.len())).then_some(distance + other_suffix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_where_zfs_shows_them() {
        for (path, snapshot, rest) in [
            ("a/b", None, "a/b"),
            (".zfs/snapshot/monday", Some("monday"), ""),
            (".zfs/snapshot/monday/a/b", Some("monday"), "a/b"),
            (".zfs/snapshot", None, ".zfs/snapshot"),
            ("a/.zfs/snapshot/monday", None, "a/.zfs/snapshot/monday"),
        ] {
            assert_eq!(snapshot_path(path.as_bytes()), (snapshot, rest.as_bytes()), "{path}");
        }
    }

    #[test]
    fn names_are_near_one_another_by_letters() {
        assert_eq!(distance(b"log-1.gz", b"log-2.gz"), Some(1));
        assert_eq!(distance(b"kitten", b"sitting"), Some(3));
        assert_eq!(distance(b"a.txt", b"a.gz"), Some(3 + DISTANCE_MAX));
        assert_eq!(distance(b"abc", b"xyz"), None);
        assert_eq!(distance(&[b'a'; 40], b"a"), None);
    }
}
