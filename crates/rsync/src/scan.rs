//! Finds the files that a client asked for.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use crate::error::Result;
use crate::filter::{Filter, Pattern, Scope, Subject, Work, base_name};
use crate::flist::Entry;
use crate::options::Options;
use crate::source::{Metadata, Source};
use crate::wire::Tag;

/// Something could not be read.
pub const IO_ERROR_GENERAL: u32 = 1;
/// A file in the list has vanished.
pub const IO_ERROR_VANISHED: u32 = 2;
/// The greatest depth of directories. A tree that links to itself has no end.
const DEPTH_MAX: usize = 1024;
/// The work that a lookup of one path and of one name in a directory counts for, in steps of the matcher.
const LOOK_WORK: u64 = 1000;
const NAME_WORK: u64 = 200;
/// The prefix of munged targets of symbolic links (`munge symlinks`).
pub const MUNGED: &[u8] = b"/rsyncd-munged/";

/// The state of finding files, with errors and messages for the client.
pub struct Scan<'a> {
    source: &'a dyn Source,
    options: &'a Options,
    /// The rules of the client.
    filter: &'a Filter,
    /// The rules of the module.
    hidden: &'a Filter,
    called: Called<'a>,
    munged: bool,
    keeps_outward_links: bool,
    /// The errors so far, as bits.
    pub io_error: u32,
    /// Messages for the client.
    pub reports: Vec<(Tag, String)>,
    /// The filesystem of the first argument, for `-x`.
    device: Option<u64>,
}

/// A directory that is still to be listed.
#[derive(Debug, Clone)]
pub struct Below {
    /// The entry of the directory.
    pub entry: Entry,
    scope: Option<Arc<Scope>>,
    device: u64,
}

/// How paths are shown in messages.
#[derive(Debug, Clone, Copy)]
pub enum Called<'a> {
    /// With the name of a module: `"a/b" (in module)`.
    Module(&'a str),
    /// With a prefix: `"/a/b"`.
    After(&'a str),
}

/// The tree of a module, with the rules for hidden files.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// The tree.
    pub source: &'a dyn Source,
    /// The rules for files that clients cannot see.
    pub hidden: &'a Filter,
    /// How paths are shown in messages.
    pub called: Called<'a>,
    /// Whether munged targets of symbolic links are sent in their original form.
    pub munged: bool,
    /// With `--copy-dirlinks`, whether a link that leads out of the tree is left out instead of sent as a link.
    pub keeps_outward_links: bool,
}

/// An error in rsync's form: `Permission denied (13)`.
pub fn error_text(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => {
            let text = error.to_string();
            let end = format!(" (os error {number})");
            format!("{} ({number})", text.strip_suffix(&end).unwrap_or(&text))
        }
        None => error.to_string(),
    }
}

/// A path without empty components and ".". ".." ends at the root. The flag is true if the path can only be a
/// directory.
pub fn clean(path: &[u8]) -> (Vec<u8>, bool) {
    let mut names: Vec<&[u8]> = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => drop(names.pop()),
            _ => names.push(name),
        }
    }
    let as_directory = matches!(base_name(path), b"" | b"." | b"..");
    (names.join(&b'/'), as_directory)
}

/// Whether a path is a pattern.
pub fn is_pattern(path: &[u8]) -> bool {
    path.iter().any(|byte| matches!(byte, b'*' | b'?' | b'['))
}

fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match directory {
        b"" | b"." => name.to_vec(),
        _ => [directory, b"/", name].concat(),
    }
}

fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// Whether a link leads out of the tree, by its target and its own name.
pub fn is_unsafe(target: &[u8], name: &[u8]) -> bool {
    if target.is_empty() || target.starts_with(b"/") {
        return true;
    }
    let mut depth =
        name.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")).count() as i64 - 1;
    for part in target.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => depth -= 1,
            _ => depth += 1,
        }
        if depth < 0 {
            return true;
        }
    }
    false
}

impl<'a> Scan<'a> {
    /// The state for one connection.
    pub fn new(view: View<'a>, options: &'a Options, filter: &'a Filter) -> Self {
        let View { source, hidden, called, munged, keeps_outward_links } = view;
        let munged = munged || options.munge_links;
        let reports = Vec::new();
        Self {
            source,
            options,
            filter,
            hidden,
            called,
            munged,
            keeps_outward_links,
            io_error: 0,
            reports,
            device: None,
        }
    }

    /// A path in the form for messages.
    pub fn shown(&self, path: &[u8]) -> String {
        let path = String::from_utf8_lossy(path);
        match self.called {
            Called::Module(name) => format!("\"{path}\" (in {name})"),
            Called::After(before) => format!("\"{before}{path}\""),
        }
    }

    fn failed(&mut self, what: &str, path: &[u8], error: &io::Error) {
        let text = format!("rsync: [sender] {what} {} failed: {}\n", self.shown(path), error_text(error));
        self.reports.push((Tag::ErrorXfer, text));
    }

    /// The paths that match a pattern of the client, or the pattern itself if none does. The mark of `--relative`
    /// (`/./`) stays.
    ///
    /// # Errors
    /// When that takes too much work.
    pub fn expand(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        if !self.options.patterns || !is_pattern(path) {
            return Ok(vec![path.to_vec()]);
        }
        let mut found = match path.windows(3).position(|three| three == b"/./") {
            None => self.expand_below(b"", path)?,
            Some(at) => {
                let mut found = Vec::new();
                for root in self.expand_below(b"", &path[..at])? {
                    let paths = self.expand_below(&root, &path[at + 3..])?.into_iter();
                    found.extend(paths.map(|path| [&root[..], b"/./", &path[root.len()..]].concat()));
                }
                found
            }
        };
        found.sort();
        if found.is_empty() {
            return Ok(vec![path.to_vec()]);
        }
        if path.ends_with(b"/") {
            found.iter_mut().for_each(|path| path.push(b'/'));
        }
        Ok(found)
    }

    /// The paths below a directory that match a pattern.
    fn expand_below(&self, directory: &[u8], pattern: &[u8]) -> Result<Vec<Vec<u8>>> {
        let (pattern, _) = clean(pattern);
        let mut found = vec![directory.to_vec()];
        for part in pattern.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
            let mut further = Vec::new();
            for directory in &found {
                further.extend(self.filter.charge(|work| self.expand_one(directory, part, work))?);
            }
            found = further;
        }
        Ok(found)
    }

    /// The names in a directory that match a component of a pattern. The work counts by the number of names.
    fn expand_one(&self, directory: &[u8], part: &[u8], work: &mut Work) -> Vec<Vec<u8>> {
        work.spend(LOOK_WORK);
        if !is_pattern(part) {
            let path = join(directory, part);
            return if self.source.metadata(&path, false).is_ok() { vec![path] } else { Vec::new() };
        }
        let Ok(names) = self.source.read_dir(directory) else { return Vec::new() };
        work.spend(names.len() as u64 * NAME_WORK);
        let pattern = Pattern::new(part);
        let is_like = |name: &[u8], work: &mut Work| {
            (!name.starts_with(b".") || part.starts_with(b".")) && pattern.matches(name, work)
        };
        let wanted = names.into_iter().filter(|(name, _)| is_like(name, work));
        let paths = wanted.map(|(name, metadata)| (join(directory, &name), metadata));
        let is_dir = |metadata: &io::Result<Metadata>| metadata.as_ref().is_ok_and(Metadata::is_dir);
        let seen = paths.filter(|(path, metadata)| !self.is_hidden(path, is_dir(metadata)));
        seen.map(|(path, _)| path).collect()
    }

    /// Adds the entries of one argument, and the directories among them whose content follows.
    ///
    /// # Errors
    /// When the rules are invalid. Failures of single files are reported to the client.
    pub fn argument(&mut self, path: &[u8], entries: &mut Vec<Entry>, below: &mut Vec<Below>) -> Result<()> {
        if self.options.relative || self.options.files_from.is_some() {
            return self.relative(path, entries, below);
        }
        let (path, as_directory) = clean(path);
        let (root, name) = match as_directory || path.is_empty() {
            true => (path.as_slice(), &b"."[..]),
            false => split(&path),
        };
        // An argument is sent whatever the rules in files of the directories say. They apply to its content.
        let before = below.len();
        self.top(root.into(), name, None, (entries, below))?;
        if let Some(directory) = below.get_mut(before) {
            directory.scope = self.filter.enter_above(self.source, &path)?;
        }
        Ok(())
    }

    /// Adds the entry of an argument. `around` are the rules of its parent directories. The caller adds the rules that
    /// its content begins with.
    fn top(
        &mut self,
        root: Arc<[u8]>,
        name: &[u8],
        around: Option<&Arc<Scope>>,
        (entries, below): (&mut Vec<Entry>, &mut Vec<Below>),
    ) -> Result<()> {
        let as_directory = name == b".";
        let path = if as_directory { root.to_vec() } else { join(&root, name) };
        let follow = as_directory || self.options.copy_links;
        let mut followed = follow;
        let found = self.source.metadata(&path, follow).map(|found| {
            let is_link = found.is_symlink() && self.options.copy_dirlinks;
            match self.source.metadata(&path, true) {
                Ok(target) if is_link && target.is_dir() => {
                    followed = true;
                    target
                }
                _ => found,
            }
        });
        let metadata = match found {
            Ok(metadata) if !self.is_argument_hidden(&root, name, metadata.is_dir()) => metadata,
            Ok(_) => {
                self.missing(&path, &io::Error::from_raw_os_error(2));
                return Ok(());
            }
            Err(error) => {
                self.missing(&path, &error);
                return Ok(());
            }
        };
        if metadata.is_dir()
            && !self.options.recursive
            && !self.options.dirs
            && self.options.files_from.is_none()
        {
            let text = format!("skipping directory {}\n", String::from_utf8_lossy(name));
            self.reports.push((Tag::Info, text));
            return Ok(());
        }
        if !as_directory
            && self.filter.excludes(Subject { path: name, full: &path, is_dir: metadata.is_dir() }, around)?
        {
            return Ok(());
        }
        let has_content = metadata.is_dir() && (self.options.recursive || as_directory);
        let Some(entry) = self.entry(name.to_vec(), root, metadata, followed) else { return Ok(()) };
        let device = *self.device.get_or_insert(entry.metadata.id.0);
        // A directory without content is sent as in a listing. Otherwise the receiver would treat it as a parent of
        // another argument.
        let is_top = has_content || self.options.relative || self.options.files_from.is_some();
        let entry = Entry { is_top, has_content, ..entry };
        if has_content {
            below.push(Below { entry: entry.clone(), scope: None, device });
        }
        entries.push(entry);
        Ok(())
    }

    fn missing(&mut self, path: &[u8], error: &io::Error) {
        if !(self.options.ignore_missing_args && error.raw_os_error() == Some(2)) {
            self.failed("link_stat", path, error);
        }
    }

    /// Adds an argument with `--relative` or `--files-from`: its path is kept, with its parent directories.
    fn relative(&mut self, path: &[u8], entries: &mut Vec<Entry>, below: &mut Vec<Below>) -> Result<()> {
        let marker = path.windows(3).position(|three| three == b"/./");
        let (root, path) = match marker {
            Some(at) => (&path[..at], &path[at + 3..]),
            None => (&b""[..], path),
        };
        let (root, _) = clean(root);
        let (name, as_directory) = clean(path);
        let root: Arc<[u8]> = root.into();
        let before = (entries.len(), below.len());
        if name.is_empty() {
            self.top(root.clone(), b".", None, (entries, below))?;
            if let Some(directory) = below.get_mut(before.1) {
                directory.scope = self.filter.enter_above(self.source, &root)?;
            }
            return Ok(());
        }
        let around = self.on_the_way(None, &root, &name)?;
        self.top(root.clone(), &name, around.as_ref(), (entries, below))?;
        if entries.len() == before.0 {
            return Ok(());
        }
        if let Some(entry) = entries.last_mut()
            && entry.metadata.is_dir()
            && !entry.has_content
            && as_directory
        {
            entry.has_content = true;
            let device = entry.metadata.id.0;
            below.push(Below { entry: entry.clone(), scope: None, device });
        }
        if let Some(directory) = below.get_mut(before.1) {
            let above = self.filter.enter_above(self.source, &join(&root, b"."))?;
            directory.scope = self.on_the_way(above, &root, &name)?;
        }
        // Also with --no-implied-dirs: the receiver knows which of their attributes to ignore.
        let ends = name.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        for end in ends {
            let name = &name[..end];
            if let Ok(metadata) = self.source.metadata(&join(&root, name), true) {
                let entry = self.entry(name.to_vec(), root.clone(), metadata, true);
                entries.extend(entry.map(|entry| Entry { is_top: true, ..entry }));
            }
        }
        Ok(())
    }

    /// The rules in the directories from the transfer's root to a name. The names of `--files-from` are sent regardless
    /// of them.
    fn on_the_way(&self, above: Option<Arc<Scope>>, root: &[u8], name: &[u8]) -> Result<Option<Arc<Scope>>> {
        let mut scope = above;
        if self.options.files_from.is_some() {
            return Ok(scope);
        }
        for end in name.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at) {
            scope = self.filter.enter(scope.as_ref(), self.source, &join(root, &name[..end]))?;
        }
        Ok(scope)
    }

    /// Whether the module's rules hide a path or one of its parents.
    pub fn is_hidden(&self, path: &[u8], is_dir: bool) -> bool {
        self.hidden.hides(path, is_dir)
    }

    /// Whether the module's rules hide an argument. Where the request begins counts as a path in the module, the rest
    /// as a path in the transfer.
    fn is_argument_hidden(&self, root: &[u8], name: &[u8], is_dir: bool) -> bool {
        self.is_hidden(root, true) || (name != b"." && self.hidden.hides_below(root, name, is_dir))
    }

    fn entry(&mut self, name: Vec<u8>, root: Arc<[u8]>, metadata: Metadata, followed: bool) -> Option<Entry> {
        let mut entry = Entry {
            name,
            root,
            metadata,
            is_top: false,
            has_content: false,
            followed,
            target: None,
            digest: None,
        };
        if !metadata.is_symlink() {
            return Some(entry);
        }
        let path = entry.path();
        match self.source.read_link(&path) {
            Ok(target) => {
                let target = match target.strip_prefix(MUNGED).filter(|_| self.munged) {
                    Some(original) => original.to_vec(),
                    None => target,
                };
                if self.options.copy_unsafe_links && is_unsafe(&target, &entry.name) {
                    entry.followed = true;
                    entry.metadata = self.referent(&path)?;
                } else {
                    // The size of the entry is that of the target as it is sent.
                    entry.metadata.size = target.len() as u64;
                    entry.target = Some(target);
                }
                Some(entry)
            }
            Err(error) => {
                self.io_error |= IO_ERROR_GENERAL;
                self.failed("readlink_stat", &path, &error);
                None
            }
        }
    }

    fn referent(&mut self, path: &[u8]) -> Option<Metadata> {
        match self.source.metadata(path, true) {
            Ok(metadata) => Some(metadata),
            Err(_) => {
                self.io_error |= IO_ERROR_GENERAL;
                let text = format!("symlink has no referent: {}\n", self.shown(path));
                self.reports.push((Tag::ErrorXfer, text));
                None
            }
        }
    }

    /// Lists a directory in any order: its entries, and the directories among them. With `-x`, a directory on another
    /// filesystem has no entries.
    ///
    /// # Errors
    /// When its rules are invalid. Failures of reading are reported to the client.
    pub fn list(
        &mut self,
        directory: &Below,
        entries: &mut Vec<Entry>,
        below: &mut Vec<Below>,
    ) -> Result<()> {
        let (at, full) = (&directory.entry, directory.entry.path());
        if !at.has_content {
            return Ok(());
        }
        if at.name.iter().filter(|byte| **byte == b'/').count() > DEPTH_MAX {
            self.io_error |= IO_ERROR_GENERAL;
            self.failed("opendir", &full, &rustix::io::Errno::LOOP.into());
            return Ok(());
        }
        let names = match self.source.read_dir(&full) {
            Ok(names) => names,
            Err(error) if error.raw_os_error() == Some(2) => {
                self.io_error |= IO_ERROR_VANISHED;
                let text = format!("directory has vanished: {}\n", self.shown(&full));
                self.reports.push((Tag::Warning, text));
                return Ok(());
            }
            Err(error) => {
                self.io_error |= IO_ERROR_GENERAL;
                self.failed("opendir", &full, &error);
                return Ok(());
            }
        };
        let scope = self.filter.enter(directory.scope.as_ref(), self.source, &full)?;
        for (name, metadata) in names {
            let path = join(&full, &name);
            let name = join(&at.name, &name);
            let (metadata, followed) = match metadata {
                Ok(metadata) if metadata.is_symlink() => match self.followed(&path, metadata) {
                    Some(found) => found,
                    None => continue,
                },
                Ok(metadata) => (metadata, false),
                Err(error) => {
                    self.io_error |=
                        if error.raw_os_error() == Some(2) { IO_ERROR_VANISHED } else { IO_ERROR_GENERAL };
                    self.failed("readlink_stat", &path, &error);
                    continue;
                }
            };
            let is_dir = metadata.is_dir();
            let subject = Subject { path: &name, full: &path, is_dir };
            // The content of a hidden directory is not listed.
            if self.filter.excludes(subject, scope.as_ref())? || self.hidden.hides_it(subject) {
                continue;
            }
            let is_elsewhere =
                is_dir && metadata.id.0 != directory.device && self.options.one_file_system > 0;
            if is_elsewhere && self.options.one_file_system > 1 {
                continue;
            }
            let Some(entry) = self.entry(name, at.root.clone(), metadata, followed) else { continue };
            let is_dir = entry.metadata.is_dir();
            let has_content = is_dir && self.options.recursive && !is_elsewhere;
            let entry = Entry { has_content, ..entry };
            if is_dir && self.options.recursive {
                let (scope, device) = (scope.clone(), directory.device);
                below.push(Below { entry: entry.clone(), scope, device });
            }
            entries.push(entry);
        }
        Ok(())
    }

    /// The extended attributes of a file that are sent, including its ACLs.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn attributes(&self, entry: &Entry) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let found = self.source.xattrs_listed(&entry.path(), &entry.metadata, entry.followed)?;
        let mut kept = BTreeMap::new();
        for (name, value) in found {
            if name.starts_with(b"system.") || !self.filter.excludes_xattr(&name).map_err(io::Error::other)? {
                kept.insert(name, value);
            }
        }
        Ok(kept)
    }

    /// A link, or the file that it leads to if it is followed.
    fn followed(&mut self, path: &[u8], link: Metadata) -> Option<(Metadata, bool)> {
        if self.options.copy_links {
            return self.referent(path).map(|metadata| (metadata, true));
        }
        if self.options.copy_dirlinks {
            match self.source.metadata(path, true) {
                Ok(metadata) if metadata.is_dir() => return Some((metadata, true)),
                Err(_) if self.keeps_outward_links && self.leads_out(path) => {
                    self.io_error |= IO_ERROR_GENERAL;
                    let text = format!("symlink leads out of the module: {}\n", self.shown(path));
                    self.reports.push((Tag::ErrorXfer, text));
                    return None;
                }
                _ => {}
            }
        }
        Some((link, false))
    }

    /// Whether the target of a link leads out of the tree.
    fn leads_out(&self, path: &[u8]) -> bool {
        self.source.read_link(path).is_ok_and(|target| is_unsafe(&target, path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_end_at_the_top() {
        for (path, clean_path, is_dir) in [
            ("", "", true),
            ("a//b/./c", "a/b/c", false),
            ("../../etc/passwd", "etc/passwd", false),
            ("a/..", "", true),
            ("a/b/", "a/b", true),
            ("a/../../b", "b", false),
            ("/", "", true),
        ] {
            assert_eq!(clean(path.as_bytes()), (clean_path.as_bytes().to_vec(), is_dir), "{path}");
        }
    }

    #[test]
    fn links_out_of_the_tree_are_unsafe() {
        for (target, name, is_out) in [
            ("a", "b", false),
            ("../a", "b", true),
            ("../a", "d/b", false),
            ("/a", "b", true),
            ("a/../../c", "b", true),
        ] {
            assert_eq!(is_unsafe(target.as_bytes(), name.as_bytes()), is_out, "{target}");
        }
    }
}
