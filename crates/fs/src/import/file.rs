//! Importing one file: content, attributes, extended attributes.

use std::io;

use snowmelt_zpl::{
    Attributes, Caller, FileKind, FilesystemMut, ObjectsMut, SetAttributes, SetTime, SetXattr, ZfsFlags,
    ZplError,
};

use super::content::{self, CopyError, Sink};
use super::scan::{SourcePath, SourceStat};
use super::tree::{Arrival, is_unchanged};
use super::{ImportError, ImportEvent, Importer};

/// Maximum number of attempts to read a file that changes meanwhile.
const ATTEMPTS: usize = 3;

/// The result of reading a file.
enum Content {
    /// The content is in the dataset, as it was at one moment.
    Steady(SourceStat),
    /// The content is in the dataset, but it changed while it was read.
    Unsteady(SourceStat),
    /// The content could not be read.
    Failed(io::Error),
}

/// Writes to a file of the dataset.
struct Target<'a, O> {
    fs: &'a FilesystemMut<O>,
    object: u64,
    caller: Caller,
}

impl<O: ObjectsMut> Sink for Target<'_, O> {
    type Error = ZplError;

    fn data(&mut self, offset: u64, data: &[u8]) -> Result<(), ZplError> {
        let mut done = 0;
        while done < data.len() {
            let written = self.fs.write(self.object, offset + done as u64, &data[done..], &self.caller)?;
            if written == 0 {
                let no_space = snowmelt_zpl::SourceError::NoSpace;
                return Err(ZplError::Source { object: self.object, source: no_space });
            }
            done += written;
        }
        Ok(())
    }

    fn hole(&mut self, from: u64, to: u64) -> Result<(), ZplError> {
        self.fs.punch_hole(self.object, from, to - from, &self.caller)
    }
}

impl<O: ObjectsMut> Importer<'_, O> {
    /// Updates `object` from the source's file at `path`, and claims it. `before` is the object's previous state.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn update(
        &mut self,
        path: &SourcePath,
        directory: u64,
        name: &[u8],
        listed: &SourceStat,
        object: u64,
        before: Option<&Attributes>,
        arrival: Arrival,
    ) -> Result<(), ImportError> {
        let mut stat = *listed;
        if stat.kind == FileKind::File
            && (self.must_read(before, &stat, arrival) || self.hints.is_suspect(object))
        {
            self.unlock(object)?;
            self.hints.reading(object, &stat, before.is_none());
            match self.content(path, &stat, object)? {
                Content::Steady(read) => stat = read,
                Content::Unsteady(read) => {
                    stat = read;
                    self.summary.failures += 1;
                    self.observer.event(path, ImportEvent::Unsteady);
                }
                Content::Failed(error) => {
                    self.fail(path, &error);
                    let gone = error.kind() == io::ErrorKind::NotFound;
                    // For a suspect, the dataset has no readable content to keep.
                    if arrival == Arrival::New || gone || self.hints.is_suspect(object) {
                        return self.take_back(directory, name, &stat);
                    }
                    // The dataset keeps the old content and times. The next import tries again.
                    let now = self.fs.attributes(object)?;
                    return self.claim(&stat, object, now.generation);
                }
            }
        }
        self.is_as_listed &= stat.is_unchanged(listed);
        // The attributes of a directory are set after its entries.
        let changed = match stat.kind {
            FileKind::Directory => false,
            _ => self.attributes(path, object, &stat, before.filter(|_| arrival == Arrival::Same))?,
        };
        match arrival {
            Arrival::New => {
                self.summary.created += 1;
                self.observer.event(path, ImportEvent::Created);
            }
            Arrival::Moved => {
                self.summary.renamed += 1;
                self.observer.event(path, ImportEvent::Renamed);
            }
            Arrival::Same if changed => {
                self.summary.changed += 1;
                self.observer.event(path, ImportEvent::Changed);
            }
            Arrival::Same => {}
        }
        let generation = match before {
            Some(before) => before.generation,
            None => self.fs.attributes(object)?.generation,
        };
        self.claim(&stat, object, generation)
    }

    /// Whether a file's content may differ. Renaming changes only the ctime of a file. So a moved file is read only if
    /// it may be another file to which the inode number was given.
    fn must_read(&self, before: Option<&Attributes>, stat: &SourceStat, arrival: Arrival) -> bool {
        let Some(before) = before else { return true };
        let same = before.size == stat.size && before.mtime == stat.mtime;
        let ctime_tells = arrival == Arrival::Same && !self.options.ignore_ctime;
        let is_another = arrival == Arrival::Moved && stat.born.is_none();
        !same || is_another || (ctime_tells && before.ctime != stat.ctime)
    }

    fn content(&mut self, path: &SourcePath, stat: &SourceStat, object: u64) -> Result<Content, ImportError> {
        self.summary.files_read += 1;
        if self.options.dry_run {
            let opened = content::open_file(self.scan, path);
            match opened.and_then(|(file, now)| content::data_len(&file, now.size)) {
                Ok(len) => self.summary.bytes_read += len,
                Err(error) => return Ok(Content::Failed(error)),
            }
            self.fs.truncate(object, stat.size, &Self::caller(stat))?;
            return Ok(Content::Steady(*stat));
        }
        let mut last = *stat;
        for _ in 0..ATTEMPTS {
            if self.observer.is_cancelled() {
                return Err(ImportError::Interrupted);
            }
            let (file, before) = match content::open_file(self.scan, path) {
                Ok(opened) => opened,
                Err(error) => return Ok(Content::Failed(error)),
            };
            let mut target = Target { fs: self.fs, object, caller: Self::caller(&before) };
            let whole = self.options.whole_blocks;
            if whole != 0 && self.fs.attributes(object)?.size > before.size {
                // A partial last block could not be truncated later without reading it.
                self.fs.truncate(object, before.size, &Self::caller(&before))?;
            }
            let copied = content::copy(&file, before.size, whole, &mut self.buf, &mut target);
            let read = match copied {
                Ok(read) => read,
                Err(CopyError::Source(error)) => return Ok(Content::Failed(error)),
                Err(CopyError::Sink(source)) => {
                    return Err(ImportError::Content { path: path.to_vec(), source });
                }
            };
            self.summary.bytes_read += read;
            if self.fs.attributes(object)?.size != before.size {
                self.fs.truncate(object, before.size, &Self::caller(&before))?;
            }
            let after = match SourceStat::of(&file) {
                Ok(after) => after,
                Err(error) => return Ok(Content::Failed(error)),
            };
            if after.is_unchanged(&before) {
                return Ok(Content::Steady(after));
            }
            last = after;
        }
        last.size = self.fs.attributes(object)?.size;
        Ok(Content::Unsteady(last))
    }

    /// Copies the attributes of the source's file to an object, including extended attributes. `before` is the object's
    /// state before the import, which shows whether they can differ. (Writing the content has changed the times since.)
    /// With `None`, they may differ.
    ///
    /// Returns whether anything was changed.
    pub(super) fn attributes(
        &mut self,
        path: &[u8],
        object: u64,
        stat: &SourceStat,
        before: Option<&Attributes>,
    ) -> Result<bool, ImportError> {
        let was_same = before.is_some_and(|before| is_unchanged(before, stat));
        let now = self.fs.attributes(object)?;
        if was_same && is_unchanged(&now, stat) && before.is_some_and(|before| before.flags == now.flags) {
            return Ok(false);
        }
        self.unlock(object)?;
        // The old flags stay, unless the source has others.
        let (mut fs_ioc_flags, mut project_id) = (before.map(|before| before.flags.fs_ioc_flags()), None);
        if !was_same && (object == self.fs.root() || !path.is_empty()) {
            self.xattrs(path, object, stat)?;
            match content::inode_flags(self.scan, path, stat.kind) {
                Ok(Some(found)) => {
                    (fs_ioc_flags, project_id) = (Some(found.flags), Some(found.project_id));
                }
                Ok(None) => {}
                Err(error) => self.fail(path, &error),
            }
        }
        let set = SetAttributes {
            permissions: (stat.kind != FileKind::Symlink).then_some(stat.mode),
            uid: Some(stat.uid),
            gid: Some(stat.gid),
            atime: Some(SetTime::To(stat.atime)),
            mtime: Some(SetTime::To(stat.mtime)),
            ctime: Some(stat.ctime),
            crtime: stat.born,
            fs_ioc_flags,
            project_id,
            ..SetAttributes::default()
        };
        self.fs.set_attributes(object, &set, &Self::caller(stat))?;
        self.unlocked = None;
        Ok(!was_same)
    }

    /// Clears flags that forbid further changes. They are set again with the other attributes.
    pub(super) fn unlock(&mut self, object: u64) -> Result<(), ImportError> {
        if self.unlocked == Some(object) {
            return Ok(());
        }
        let found = self.fs.attributes(object)?;
        let forbids = [ZfsFlags::IMMUTABLE, ZfsFlags::APPENDONLY, ZfsFlags::PROJINHERIT];
        if forbids.iter().any(|flag| found.flags.contains(*flag)) {
            let set = SetAttributes { fs_ioc_flags: Some(0), ..SetAttributes::default() };
            let caller = Caller { now: found.ctime, ..Caller::default() };
            self.fs.set_attributes(object, &set, &caller)?;
        }
        self.unlocked = Some(object);
        Ok(())
    }

    fn xattrs(&mut self, path: &[u8], object: u64, stat: &SourceStat) -> Result<(), ImportError> {
        let wanted = match content::xattrs(self.scan, path) {
            Ok(found) => found,
            Err(error) => {
                self.fail(path, &error);
                return Ok(());
            }
        };
        let present = self.fs.xattrs(object)?;
        let caller = Self::caller(stat);
        for name in present.keys().filter(|name| !wanted.contains_key(*name)) {
            self.fs.remove_xattr(object, name, &caller)?;
        }
        for (name, value) in &wanted {
            if present.get(name) == Some(value) {
                continue;
            }
            match self.fs.set_xattr(object, name, value, SetXattr::Any, &caller) {
                // Attributes of other kinds of filesystem, such as those that Linux uses internally.
                Err(error @ (ZplError::Unsupported { .. } | ZplError::Invalid { .. })) => {
                    self.fail(path, &io::Error::other(error));
                }
                other => other?,
            }
        }
        Ok(())
    }
}
