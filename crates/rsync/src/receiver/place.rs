//! The destination of a transfer: rsync(1)'s rules for paths that exist or not, and for slashes at their end.

use std::io::{Read, Write};

use snowmelt_zpl::NewKind;

use super::Receiver;
use crate::error::{ExitCode, Result, RsyncError};
use crate::scan::{Called, clean, error_text};
use crate::wire::Tag;

/// Permissions of a directory that is not in the client's list.
pub(super) const DIRECTORY_MODE: u32 = 0o755;

impl<R: Read, W: Write> Receiver<'_, R, W> {
    pub(super) fn place(&mut self) -> Result<()> {
        let refuse = |code, text: String| Err(RsyncError::refused(code, text));
        let (path, as_directory) = clean(&self.into.path);
        let count = self.list.counting().take(2).count();
        self.refuse_hidden_directories(&path)?;
        // In a hidden directory not even the existence of a file is revealed.
        self.refuse_hidden(&path, as_directory || count > 1)?;
        let named = path.clone();
        let path = self.named(path);
        let found = match self.into.target.stat(&path) {
            Ok(found) => found,
            Err(error) => {
                let text =
                    format!("ERROR: cannot stat destination {}: {}", self.shown(&path), error_text(&error));
                return refuse(ExitCode::FileSelect, text);
            }
        };
        let found = found.map(|found| found.metadata);
        self.refuse_hidden(&named, found.is_some_and(|found| found.is_dir()))?;
        match found {
            Some(found) if found.is_dir() => (self.root, self.named_root) = (path, named),
            Some(_) if count > 1 || as_directory => {
                let text = "ERROR: destination must be a directory when copying more than 1 file";
                return refuse(ExitCode::FileSelect, text.to_owned());
            }
            Some(_) if self.list.counting().any(|(_, one)| one.metadata.is_dir()) => {
                let text = "ERROR: cannot overwrite non-directory with a directory";
                return refuse(ExitCode::FileSelect, text.to_owned());
            }
            None if count > 1 || as_directory => {
                let made = if self.options.dry_run { 1 } else { self.make_destination(&path)? };
                if self.options.verbosity > 0 || self.options.itemize > 0 {
                    self.tell_of_destination(made)?;
                }
                (self.root, self.named_root) = (path, named);
            }
            _ => (self.single, self.single_named) = (Some(path), Some(named)),
        }
        Ok(())
    }

    /// The path that a client's path leads to. In a directory it may have symbolic links, which do not lead outside.
    pub(super) fn named(&self, path: Vec<u8>) -> Vec<u8> {
        if self.into.target.is_staged() {
            return path;
        }
        let mut known = self.named.borrow_mut();
        known.entry(path).or_insert_with_key(|path| self.into.target.named(path)).clone()
    }

    /// Finds the directory for temporary files, if it is not that of each file.
    pub(super) fn find_temp_dir(&mut self) -> Result<()> {
        let Some(name) = self.options.temp_dir.as_deref().or(self.into.terms.temp_dir) else { return Ok(()) };
        if !self.writes_aside() || self.options.dry_run {
            return Ok(());
        }
        let path = self.beside(name);
        match self.into.target.stat(&path) {
            Ok(Some(found)) if found.is_dir() => {
                self.temp_dir = Some(path);
                Ok(())
            }
            _ => {
                let text = format!("The temp-dir does not exist: {}", self.shown(&path));
                Err(RsyncError::refused(ExitCode::Syntax, text))
            }
        }
    }

    /// Refuses a destination that the module hides.
    fn refuse_hidden(&self, path: &[u8], is_dir: bool) -> Result<()> {
        if !self.hides_path(path, is_dir) {
            return Ok(());
        }
        let shown = String::from_utf8_lossy(&self.into.path);
        let text = format!("ERROR: daemon has excluded destination \"{shown}\"");
        Err(RsyncError::refused(ExitCode::FileSelect, text))
    }

    /// Refuses options that name directories which the module hides.
    fn refuse_hidden_directories(&mut self, destination: &[u8]) -> Result<()> {
        let before = std::mem::replace(&mut self.named_root, destination.to_vec());
        let temporary = self.options.temp_dir.as_deref().or(self.into.terms.temp_dir);
        let named = [self.options.backup_dir.as_deref(), temporary];
        let [backup, temporary] = named.map(|named| named.map(|directory| self.named_beside(directory)));
        self.named_root = before;
        match backup.iter().chain(&temporary).any(|directory| self.hides_path(directory, true)) {
            true => Err(RsyncError::refused(
                ExitCode::Unsupported,
                "Your options have been rejected by the server.",
            )),
            false => Ok(()),
        }
    }

    fn tell_of_destination(&mut self, made: usize) -> Result<()> {
        let before = match self.into.called {
            Called::Module(_) => "",
            Called::After(before) => before,
        };
        let (path, _) = clean(&self.into.path);
        let path = String::from_utf8_lossy(&path);
        let text = match (self.options.mkpath, made) {
            (false, _) => format!("created directory {before}{path}\n"),
            (true, 1) => format!("created 1 directory for {before}{path}\n"),
            (true, made) => format!("created {made} directories for {before}{path}\n"),
        };
        Ok(self.writer.message(Tag::Info, text.as_bytes())?)
    }

    /// Creates the destination. Returns the number of directories that were created.
    fn make_destination(&mut self, path: &[u8]) -> Result<usize> {
        if !self.options.mkpath {
            // The client is told that the directory is new, although it exists by then.
            self.made_early.insert(b".".to_vec());
        }
        let made = match self.options.mkpath {
            true => self.make_way(path).and_then(|made| self.make_directory(path).map(|()| made + 1)),
            false => self.make_directory(path).map(|()| 1),
        };
        made.map_err(|error| {
            let text = format!("rsync: [receiver] mkdir {} failed: {}", self.shown(path), error_text(&error));
            RsyncError::refused(ExitCode::FileIo, text)
        })
    }

    fn make_directory(&self, path: &[u8]) -> std::io::Result<()> {
        let mode = match self.into.target.is_staged() {
            true => DIRECTORY_MODE,
            // The umask of this process applies.
            false => 0o777,
        };
        self.into.target.create(path, NewKind::Directory, mode).map(drop)
    }

    /// Creates the missing parent directories of a path. Returns their number.
    pub(super) fn make_way(&self, path: &[u8]) -> std::io::Result<usize> {
        let mut made = 0;
        for (at, _) in path.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
            if self.into.target.stat(&path[..at])?.is_none() {
                self.make_directory(&path[..at])?;
                made += 1;
            }
        }
        Ok(made)
    }
}
