//! Builds the sender's file lists, and decides when they are sent.

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::time::Instant;

use super::{CHUNK, List, Sender};
use crate::checksum::FileSum;
use crate::error::{Result, RsyncError};
use crate::file_list::{self, FILES_FROM_MAX};
use crate::flist::{Entry, compare};
use crate::scan::{Below, IO_ERROR_GENERAL, clean, error_text};
use crate::wire::{Ndx, Tag};

/// The number of files in lists that are sent ahead of the receiver's present list.
const LOOKAHEAD: usize = 1000;

impl<R: Read, W: Write> Sender<'_, R, W> {
    /// Reads the names of `--files-from`: from the client, each with a zero byte at its end, or from a file here.
    fn files_from(&mut self) -> Result<Option<Vec<Vec<u8>>>> {
        let Some(file) = &self.options.files_from else { return Ok(None) };
        let mut text = Vec::new();
        let by_lines = file != b"-" && !self.options.from0;
        if file == b"-" {
            let mut byte = [0];
            self.writer.flush()?;
            // Two zero bytes in a row, or one at the start, end the list.
            while !(matches!(text.as_slice(), [0] | [.., 0, 0])) {
                match file_list::is_between_messages(self.agreed.protocol) {
                    true => self.reader.read_between(&mut byte)?,
                    false => self.reader.read_exact(&mut byte)?,
                }
                text.push(byte[0]);
                if text.len() as u64 > FILES_FROM_MAX {
                    return Err(RsyncError::protocol("too many names"));
                }
            }
        } else {
            let (path, _) = clean(file);
            let opened = match self.scan.is_hidden(&path, false) {
                true => Err(std::io::Error::from_raw_os_error(2)),
                false => self.view.source.open(&path, true),
            };
            let read = opened.and_then(|content| content.take(FILES_FROM_MAX).read_to_end(&mut text));
            if let Err(error) = read {
                return Err(file_list::not_opened(&self.scan.shown(&path), &error_text(&error)));
            }
        }
        let names = text
            .split(|byte| file_list::is_end(*byte, by_lines))
            .filter(|name| !name.is_empty())
            .filter(|name| !by_lines || !matches!(name[0], b'#' | b';'));
        Ok(Some(names.map(<[u8]>::to_vec).collect()))
    }

    /// Builds and sends the list of the arguments. Without incremental recursion it has everything below them too.
    pub(super) fn first_list(&mut self, paths: &[Vec<u8>]) -> Result<()> {
        let begun = Instant::now();
        let (mut entries, mut below) = (Vec::new(), Vec::new());
        match self.files_from()? {
            Some(names) => {
                // A mark in the path changes nothing, because names begin there in any case.
                let (root, _) = clean(paths.first().map(Vec::as_slice).unwrap_or_default());
                for name in names {
                    let has_mark = name.windows(3).any(|three| three == b"/./");
                    let path = [&root[..], if has_mark { b"/" } else { b"/./" }, &name].concat();
                    self.scan.argument(&path, &mut entries, &mut below)?;
                }
            }
            None => {
                let expanded: Result<Vec<_>> = paths.iter().map(|path| self.scan.expand(path)).collect();
                for path in expanded?.concat() {
                    self.scan.argument(&path, &mut entries, &mut below)?;
                }
            }
        }
        if self.agreed.incremental {
            // The content of "dir/" is in the first list.
            let roots: Vec<Below> = below.extract_if(.., |below| below.entry.name == b".").collect();
            for root in roots {
                self.scan.list(&root, &mut entries, &mut below)?;
            }
        } else {
            while let Some(next) = below.pop() {
                self.scan.list(&next, &mut entries, &mut below)?;
                self.report()?;
                self.writer.keep_alive()?;
            }
        }
        self.list_time += begun.elapsed();
        self.send_list(None, entries, below)
    }

    /// Sorts and sends a list, and records the directories whose lists follow.
    fn send_list(
        &mut self,
        directory: Option<Entry>,
        mut entries: Vec<Entry>,
        mut below: Vec<Below>,
    ) -> Result<()> {
        self.report()?;
        let begun = Instant::now();
        // Of several entries with the same name, one with content stays. Before version 29 names were in the order of
        // their bytes, including those of directories.
        let is_old = self.agreed.protocol < 29;
        let order = |a: &Entry, b: &Entry| if is_old { a.name.cmp(&b.name) } else { compare(a, b) };
        entries.sort_by(|a, b| order(a, b).then(b.has_content.cmp(&a.has_content)));
        entries.dedup_by(|b, a| a.name == b.name && (is_old || a.metadata.is_dir() == b.metadata.is_dir()));
        let first = self.next_index;
        let mut numbers = HashMap::new();
        for (at, entry) in entries.iter_mut().enumerate() {
            let index = first + at as u32;
            self.summary.size +=
                if entry.metadata.is_file() || entry.metadata.is_symlink() { entry.metadata.size } else { 0 };
            if entry.metadata.is_dir() {
                numbers.insert(entry.name.clone(), self.directory_count);
                self.directory_count += 1;
            }
            self.send_entry(entry, index, first)?;
        }
        self.report()?;
        let failed = if self.options.ignore_errors { 0 } else { self.scan.io_error };
        let is_first = first == u32::from(self.agreed.incremental);
        let told = if is_first || failed != self.told_error { failed } else { 0 };
        self.list_writer.end(told, self.writer)?;
        let can_tell = self.agreed.form.varint_flags || self.agreed.form.error_end;
        if told != 0 && !can_tell {
            self.writer.message_number(Tag::IoError, told)?;
        }
        self.told_error = failed;
        // In the order of the list, with the next one at the end.
        below.retain(|below| numbers.contains_key(&below.entry.name));
        below.sort_by_key(|below| std::cmp::Reverse(numbers.get(&below.entry.name).copied()));
        below.dedup_by(|a, b| a.entry.name == b.entry.name);
        if self.agreed.incremental {
            self.directories.extend(below.into_iter().map(|below| (numbers[&below.entry.name], below)));
        }
        self.next_index = first
            .checked_add(entries.len() as u32)
            .and_then(|next| next.checked_add(u32::from(self.agreed.incremental)))
            .filter(|next| *next < i32::MAX as u32)
            .ok_or_else(|| RsyncError::protocol("more files than the protocol can count"))?;
        self.lists.push_back(List { first, directory, entries });
        if !self.agreed.incremental {
            self.is_complete = true;
        } else if self.directories.is_empty() {
            self.answers.write(Ndx::FlistEof, self.writer)?;
            self.is_complete = true;
        }
        self.send_time += begun.elapsed();
        Ok(())
    }

    fn send_entry(&mut self, entry: &mut Entry, index: u32, first: u32) -> Result<()> {
        let (with_xattrs, with_acls) = (self.agreed.form.xattrs, self.agreed.form.acls);
        if self.options.checksum && entry.metadata.is_file() {
            entry.digest = Some(self.digest(entry)?);
        } else if self.options.checksum && self.agreed.protocol < 28 {
            // Other kinds of files had a digest too.
            entry.digest = Some(vec![0; self.agreed.list_sum.len()]);
        }
        let mut attributes = BTreeMap::new();
        if with_xattrs || with_acls && !entry.metadata.is_symlink() {
            match self.scan.attributes(entry) {
                Ok(found) => attributes = found,
                Err(error) if error.get_ref().is_some_and(|inner| inner.is::<RsyncError>()) => {
                    return Err(error.into());
                }
                Err(error) => {
                    self.scan.io_error |= IO_ERROR_GENERAL;
                    let shown = self.scan.shown(&entry.path());
                    let text =
                        format!("rsync: [sender] get_xattr_names: {shown} failed: {}\n", error_text(&error));
                    self.scan.reports.push((Tag::ErrorXfer, text));
                }
            }
        }
        self.list_writer.entry(entry, (index, first), &attributes, self.writer)?;
        Ok(())
    }

    /// The digest of a file's content. It is zero for a file that cannot be read.
    fn digest(&mut self, entry: &Entry) -> Result<Vec<u8>> {
        let algorithm = self.agreed.list_sum;
        let mut sum = FileSum::new(algorithm);
        let Ok(mut content) = self.view.source.open_listed(&entry.path(), &entry.metadata, entry.followed)
        else {
            return Ok(vec![0; algorithm.len()]);
        };
        let mut buffer = vec![0; CHUNK];
        loop {
            match content.read(&mut buffer) {
                Ok(0) => return Ok(sum.finish()),
                Ok(len) => sum.update(&buffer[..len]),
                Err(_) => return Ok(vec![0; algorithm.len()]),
            }
            self.writer.keep_alive()?;
        }
    }

    /// Sends lists until the receiver has enough files ahead.
    pub(super) fn send_lists(&mut self) -> Result<()> {
        while !self.is_complete {
            let ahead: usize = self
                .lists
                .iter()
                .filter(|list| list.first > self.current)
                .map(|list| list.entries.len() + 1)
                .sum();
            if ahead >= LOOKAHEAD {
                break;
            }
            let Some((number, directory)) = self.directories.pop() else { break };
            let (mut entries, mut below) = (Vec::new(), Vec::new());
            let begun = Instant::now();
            self.scan.list(&directory, &mut entries, &mut below)?;
            self.list_time += begun.elapsed();
            self.report()?;
            self.answers.write(Ndx::Flist(number), self.writer)?;
            self.send_list(Some(directory.entry), entries, below)?;
        }
        Ok(())
    }

    /// The entry with this index. For the index of a list's directory, requests are for attributes only.
    pub(super) fn entry(&mut self, index: u32) -> Result<Option<Entry>> {
        let after = self.lists.partition_point(|list| list.first <= index.saturating_add(1));
        if let Some(list) = after.checked_sub(1).and_then(|at| self.lists.get(at)) {
            self.current = self.current.max(list.first);
            if index + 1 == list.first && self.agreed.incremental {
                // The first list may be the content of ".", which is its first entry.
                let root = || list.entries.first().filter(|one| one.name == b".").cloned();
                return Ok(list.directory.clone().or_else(root));
            }
            let entry = index.checked_sub(list.first).and_then(|at| list.entries.get(at as usize));
            if let Some(entry) = entry {
                return Ok(Some(entry.clone()));
            }
        }
        Err(RsyncError::protocol(format!("a request of file {index}, which there is none of")))
    }
}
