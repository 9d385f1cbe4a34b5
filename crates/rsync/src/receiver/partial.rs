//! What came of a file when the connection broke (`--partial`, `--partial-dir`, `--inplace`, `--append`).

use std::io::{self, Read, Write};

use snowmelt_zpl::{Attributes, FileKind, NewKind, SetAttributes, SetTime};

use super::{Receiver, Was, Writing};
use crate::scan::clean;

/// Permissions of what is kept in a directory, and of that: nobody else's business.
const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;
const CHUNK: usize = 1 << 20;

/// A path's directory, and its last name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

impl<R: Read, W: Write> Receiver<'_, R, W> {
    /// Keeps what came of a file, as far as the client wishes; otherwise the file is as it was before.
    pub(super) fn keep_partial(&self, writing: &Writing) -> io::Result<()> {
        if self.options.inplace || self.options.append > 0 {
            return self.mark(writing.object);
        }
        if !self.options.partial || !writing.has_literal {
            return self.undo(writing);
        }
        match &self.options.partial_dir {
            None => {
                // No more than what came, so that it can be appended to.
                self.into.target.truncate(writing.object, writing.end)?;
                self.mark(writing.object)
            }
            Some(_) => {
                let kept = self.move_aside(writing);
                kept.or_else(|error| {
                    tracing::warn!(%error, "what came of a file is given up");
                    self.undo(writing)
                })
            }
        }
    }

    /// So that it is not taken for what it was to become.
    fn mark(&self, object: u64) -> io::Result<()> {
        let set = SetAttributes { mtime: Some(SetTime::To(<_>::default())), ..SetAttributes::default() };
        self.into.target.set_attributes(object, &set)
    }

    /// Where what came of a file is kept, if not in its place: in a directory beside it, or in one of the dataset. Not where the module hides that.
    fn partial_path(&self, path: &[u8]) -> Option<Vec<u8>> {
        let (above, name) = split(path);
        let directory = match self.options.partial_dir.as_deref()? {
            absolute @ [b'/', ..] => clean(absolute).0,
            beside => clean(&[above, b"/", beside].concat()).0,
        };
        let partial =
            if directory.is_empty() { name.to_vec() } else { [&directory, &b"/"[..], name].concat() };
        let is_hidden = self.into.hidden.hides(&directory, true) || self.into.hidden.hides(&partial, false);
        (!is_hidden && partial != path).then_some(partial)
    }

    /// What came of a file in an earlier transfer.
    pub(super) fn partial_of(&self, path: &[u8]) -> Option<Attributes> {
        let found = self.into.target.stat(&self.partial_path(path)?).ok().flatten();
        found.filter(|found| found.kind() == FileKind::File)
    }

    /// Keeps what came in the directory for that; the file is as it was before.
    fn move_aside(&self, writing: &Writing) -> io::Result<()> {
        let target = &self.into.target;
        let Some(partial) = self.partial_path(&writing.path) else { return self.undo(writing) };
        let (directory, _) = split(&partial);
        if target.stat(directory)?.is_none() {
            target.create(directory, NewKind::Directory, DIRECTORY_MODE)?;
        }
        if matches!(writing.was, Was::Nothing) {
            target.rename(&writing.path, &partial)?;
            return target.truncate(writing.object, writing.end);
        }
        if target.stat(&partial)?.is_some() {
            target.remove(&partial, false)?;
        }
        let made = target.create(&partial, NewKind::File, FILE_MODE)?;
        let mut buffer = vec![0; CHUNK];
        let mut at = 0;
        while at < writing.end {
            let len = CHUNK.min(usize::try_from(writing.end - at).unwrap_or(CHUNK));
            let read = target.read(writing.object, at, &mut buffer[..len])?;
            if read == 0 {
                break;
            }
            target.write(made.object, at, &buffer[..read])?;
            at += read as u64;
        }
        target.truncate(made.object, writing.end)?;
        self.undo(writing)
    }

    /// The file has come: what came of it before is of no more use, nor is a directory that had nothing else.
    pub(super) fn drop_partial(&self, path: &[u8]) {
        if self.partial_of(path).is_none() {
            return;
        }
        let Some(partial) = self.partial_path(path) else { return };
        let (directory, _) = split(&partial);
        let dropped = self.into.target.remove(&partial, false).and_then(|()| {
            let is_ours = self.options.partial_dir.as_ref().is_some_and(|name| !name.starts_with(b"/"));
            let left = self.into.target.stat(directory)?.map(|found| self.into.target.list(found.object));
            match left.transpose()? {
                Some(left) if is_ours && left.is_empty() => self.into.target.remove(directory, true),
                _ => Ok(()),
            }
        });
        if let Err(error) = dropped {
            tracing::warn!(%error, "what came of a file before is left");
        }
    }
}
