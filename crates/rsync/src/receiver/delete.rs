//! Deletes what the sender does not have.

use std::io::{Read, Write};
use std::sync::Arc;

use snowmelt_zpl::{SetAttributes, SetTime};

use super::attributes::timestamp;
use super::{OWNER, Receiver};
use crate::daemon::{DELETED, Event};
use crate::error::Result;
use crate::filter::{Scope, Subject};
use crate::options::Delete;
use crate::scan::IO_ERROR_GENERAL;
use crate::target::{AsSource, Found, Node};
use crate::wire::Tag;

impl<R: Read, W: Write> Receiver<'_, R, W> {
    /// Deletes in all directories whose content was sent.
    pub(super) fn delete_pass(&mut self) -> Result<()> {
        if self.single.is_some() {
            return Ok(());
        }
        let with_content = self.list.counting().filter(|(_, one)| one.has_content && one.metadata.is_dir());
        for index in with_content.map(|(index, _)| index).collect::<Vec<_>>() {
            self.delete_in(index)?;
        }
        Ok(())
    }

    /// Deletes in one directory. With `--delete-delay` only records what to delete.
    pub(super) fn delete_in(&mut self, index: u32) -> Result<()> {
        if self.io_error & IO_ERROR_GENERAL != 0 && !self.options.ignore_errors {
            if !std::mem::replace(&mut self.told_deletes_off, true) {
                self.writer.message(Tag::Info, b"IO error encountered -- skipping file deletion\n")?;
            }
            return Ok(());
        }
        let name = self.list[index as usize].name.clone();
        let path = self.directory_below(&name);
        let found = match self.into.target.stat(&path) {
            Ok(Some(found)) if found.is_dir() => found,
            _ => return Ok(()),
        };
        for (child, attributes) in self.deletable(&name, &found.node)? {
            let is_dir = attributes.is_dir();
            if self.list.has(index, &child) {
                continue;
            }
            if self.options.delete == Delete::Delay {
                self.doomed.push((child, is_dir));
            } else if !self.options.dry_run || !is_dir {
                self.delete(&child, &attributes)?;
            } else {
                self.empty(&child, &attributes.node)?;
                self.deleted_one(&child, &attributes)?;
            }
        }
        self.writer.keep_alive()?;
        Ok(())
    }

    pub(super) fn delete_doomed(&mut self) -> Result<()> {
        for (name, _) in std::mem::take(&mut self.doomed) {
            let path = self.path_below(&name);
            let Ok(Some(found)) = self.into.target.stat(&path) else { continue };
            // With incremental recursion, the directory has its final time already and is not in the list any more. So
            // its time is restored here.
            let above = path.iter().rposition(|byte| *byte == b'/').map_or(&b""[..], |at| &path[..at]);
            let before = self.into.target.stat(above).ok().flatten();
            self.delete(&name, &found)?;
            if let Some(before) = before.filter(|_| self.keeps_dir_times()) {
                let mtime = Some(SetTime::To(timestamp(before.metadata.mtime)));
                let set = SetAttributes { mtime, ..SetAttributes::default() };
                if let Err(error) = self.into.target.set_attributes(&before.node, &set) {
                    self.failed("set times on", above, &error)?;
                }
            }
        }
        Ok(())
    }

    /// The name in the transfer of a path in the target.
    pub(super) fn name_of(&self, path: &[u8]) -> Vec<u8> {
        match path.strip_prefix(&self.root[..]) {
            Some([b'/', rest @ ..]) => rest.to_vec(),
            Some(rest) if self.root.is_empty() => rest.to_vec(),
            _ => path.to_vec(),
        }
    }

    /// The content of a directory in reverse order, without what the rules protect.
    fn deletable(&mut self, directory: &[u8], node: &Node) -> Result<Vec<(Vec<u8>, Found)>> {
        let scope = self.scope(directory)?;
        let mut found = match self.into.target.list(node) {
            Ok(found) => found,
            Err(error) => {
                self.failed("opendir", &self.directory_below(directory), &error)?;
                return Ok(Vec::new());
            }
        };
        found.sort_by(|a, b| b.0.cmp(&a.0));
        let names = found.into_iter().map(|(name, attributes)| {
            let child = if directory == b"." { name } else { [directory, b"/", &name].concat() };
            (child, attributes)
        });
        let mut deletable = Vec::new();
        for (child, attributes) in names {
            let full = self.path_below(&child);
            let is_dir = attributes.is_dir();
            let subject = Subject { path: &child, full: &full, is_dir };
            let is_hidden = match self.into.target.is_staged() {
                true => self.into.hidden.hides(&full, is_dir),
                false => self.hides_named(&child, is_dir),
            };
            if !self.filter.excludes(subject, scope.as_ref())? && !is_hidden {
                deletable.push((child, attributes));
            }
        }
        Ok(deletable)
    }

    /// The rules in the files of a directory and of its parents.
    fn scope(&mut self, directory: &[u8]) -> Result<Option<Arc<Scope>>> {
        if !self.filter.has_merges() {
            return Ok(None);
        }
        if let Some(known) = self.scopes.get(directory) {
            return Ok(known.clone());
        }
        let full = self.directory_below(directory);
        let parent = match directory.iter().rposition(|byte| *byte == b'/') {
            _ if directory == b"." => self.filter.enter_above(&AsSource(&*self.into.target), &full)?,
            Some(at) => self.scope(&directory[..at])?,
            None => self.scope(b".")?,
        };
        let scope = self.filter.enter(parent.as_ref(), &AsSource(&*self.into.target), &full)?;
        self.scopes.insert(directory.to_vec(), scope.clone());
        Ok(scope)
    }

    /// Deletes a file, or a directory with everything in it that may be deleted. Returns whether it is gone.
    pub(super) fn delete(&mut self, name: &[u8], attributes: &Found) -> Result<bool> {
        let is_dir = attributes.is_dir();
        if is_dir && !self.empty(name, &attributes.node)? {
            return Ok(false);
        }
        let count = u64::from(self.deleted.files)
            + u64::from(self.deleted.dirs)
            + u64::from(self.deleted.links)
            + u64::from(self.deleted.devices)
            + u64::from(self.deleted.specials);
        if self.options.max_delete.is_some_and(|most| count >= most) {
            self.spared += 1;
            return Ok(false);
        }
        if !self.options.dry_run {
            let path = self.path_below(name);
            let removed = match !is_dir && self.keeps_deleted(name) {
                true => self.back_up(&path).map(drop),
                false => self.into.target.remove(&path, is_dir),
            };
            if let Err(error) = removed {
                let what = if is_dir { "delete_file: rmdir" } else { "delete_file: unlink" };
                self.failed(what, &path, &error)?;
                return Ok(false);
            }
        }
        self.deleted_one(name, attributes)?;
        Ok(true)
    }

    /// Deletes the content of a directory. Returns whether nothing is left.
    pub(super) fn empty(&mut self, name: &[u8], node: &Node) -> Result<bool> {
        self.open_to_empty(node);
        let all = self.into.target.list(node).map_or(0, |all| all.len());
        let deletable = self.deletable(name, node)?;
        let mut is_empty = deletable.len() == all;
        for (child, attributes) in deletable {
            is_empty &= self.delete(&child, &attributes)?;
        }
        // The directory may have backups now.
        if is_empty && self.options.backup && !self.options.dry_run {
            is_empty = self.into.target.list(node).is_ok_and(|all| all.is_empty());
        }
        if !is_empty {
            let text = format!("cannot delete non-empty directory: {}\n", String::from_utf8_lossy(name));
            self.writer.message(Tag::Info, text.as_bytes())?;
        }
        Ok(is_empty)
    }

    /// Gives the owner all permissions of a directory. Users other than root need them to empty it.
    fn open_to_empty(&self, node: &Node) {
        if !self.opens_directories() || self.options.dry_run {
            return;
        }
        // If that fails, removing the content fails too, and that is reported.
        let mode = self.into.target.metadata(node).map_or(OWNER, |found| found.mode & 0o7777);
        if mode & OWNER != OWNER {
            let set = SetAttributes { permissions: Some(mode | OWNER), ..SetAttributes::default() };
            let _ = self.into.target.set_attributes(node, &set);
        }
    }

    fn deleted_one(&mut self, name: &[u8], attributes: &Found) -> Result<()> {
        let it = attributes.metadata;
        let count = match () {
            () if it.is_dir() => &mut self.deleted.dirs,
            () if it.is_symlink() => &mut self.deleted.links,
            () if it.is_device() => &mut self.deleted.devices,
            () if it.is_special() => &mut self.deleted.specials,
            () => &mut self.deleted.files,
        };
        *count += 1;
        let (path, metadata) = (&self.path_below(name), attributes.metadata);
        if let Some(on_event) = self.into.terms.on_event {
            let (bytes, sums, digest, flags) = (0, 0, &[][..], 0);
            on_event(&Event { operation: DELETED, path, name, metadata, bytes, sums, digest, flags });
        }
        self.summary.deleted += 1;
        let mut told = name.to_vec();
        if attributes.is_dir() {
            told.push(0);
        }
        Ok(self.writer.message(Tag::Deleted, &told)?)
    }
}
