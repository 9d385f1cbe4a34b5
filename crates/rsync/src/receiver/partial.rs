//! Partly received files after the connection broke (`--partial`, `--partial-dir`, `--inplace`, `--append`).

use std::io::{self, Read, Write};

use snowmelt_zpl::{NewKind, SetAttributes, SetTime};

use super::{Receiver, Was, Writing};
use crate::scan::clean;
use crate::target::{Found, Node};

/// Permissions of a file in a partial directory, and of that directory: private.
const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;
const CHUNK: usize = 1 << 20;
/// The default directory for files that wait until all were received.
pub(crate) const DELAYED_DIR: &[u8] = b".~tmp~";

/// The directory of a path, and its last component.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

impl<R: Read, W: Write> Receiver<'_, R, W> {
    /// Keeps a partly received file, as the options say. Otherwise the previous file is restored.
    pub(super) fn keep_partial(&mut self, writing: &Writing) -> io::Result<()> {
        if self.options.inplace || self.options.append > 0 {
            return self.mark(&writing.node);
        }
        if !self.options.partial || !writing.has_literal {
            return self.undo(writing);
        }
        match self.partial_dir() {
            None if matches!(writing.was, Was::Aside) => {
                self.into.target.truncate(&writing.node, writing.end)?;
                self.dress_partial(writing)?;
                self.mark(&writing.node)?;
                self.put_in_place(&writing.node, &writing.path).map(drop)
            }
            None => {
                // Only the received part stays, so that it can be appended to.
                self.into.target.truncate(&writing.node, writing.end)?;
                self.mark(&writing.node)
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

    /// The directory for partly received files, and for files that wait until all were received.
    fn partial_dir(&self) -> Option<&[u8]> {
        let delays = self.options.delay_updates && self.writes_aside();
        self.options.partial_dir.as_deref().or(delays.then_some(DELAYED_DIR))
    }

    /// The path where a received file waits (`--delay-updates`).
    pub(super) fn delayed_path(&self, path: &[u8]) -> Option<Vec<u8>> {
        if self.options.delay_updates { self.partial_path(path) } else { None }
    }

    /// Creates the directory of such a path.
    pub(super) fn make_partial_dir(&self, partial: &[u8]) -> io::Result<()> {
        let (directory, _) = split(partial);
        if self.into.target.stat(directory)?.is_none() {
            self.into.target.create(directory, NewKind::Directory, DIRECTORY_MODE)?;
        }
        Ok(())
    }

    /// Gives a partly received file its attributes, except the time. Failures are ignored.
    fn dress_partial(&mut self, writing: &Writing) -> io::Result<()> {
        let metadata = self.into.target.metadata(&writing.node)?;
        let has = Found { node: writing.node.clone(), metadata };
        if self.list.get(writing.index).is_some() {
            // The client is gone, so failures cannot be reported.
            let _ = self.settle_attributes(writing.index, &writing.path, &has, false);
        }
        Ok(())
    }

    /// Sets the time to 1970, so that the file does not count as complete.
    fn mark(&self, node: &Node) -> io::Result<()> {
        let set = SetAttributes { mtime: Some(SetTime::To(<_>::default())), ..SetAttributes::default() };
        self.into.target.set_attributes(node, &set)
    }

    /// The path for a partly received file, if it is not kept in place. It is in a directory beside the file, or in one
    /// for the whole target. `None` if the module hides the path.
    fn partial_path(&self, path: &[u8]) -> Option<Vec<u8>> {
        let (above, name) = split(path);
        let directory = match self.partial_dir()? {
            absolute @ [b'/', ..] => self.beside(absolute),
            beside => clean(&[above, b"/", beside].concat()).0,
        };
        let partial =
            if directory.is_empty() { name.to_vec() } else { [&directory, &b"/"[..], name].concat() };
        let named = match self.partial_dir()? {
            absolute @ [b'/', ..] if !self.into.target.is_staged() => self.named_beside(absolute),
            _ => directory.clone(),
        };
        let is_hidden = self.hides_path(&named, true) || self.hides_path(&super::below(&named, name), false);
        (!is_hidden && partial != path).then_some(partial)
    }

    /// The part of a file that an earlier transfer left.
    pub(super) fn partial_of(&self, path: &[u8]) -> Option<Found> {
        let found = self.into.target.stat(&self.partial_path(path)?).ok().flatten();
        found.filter(|found| found.is_file())
    }

    /// Moves a partly received file to the directory for such files, and restores the previous file.
    fn move_aside(&mut self, writing: &Writing) -> io::Result<()> {
        let Some(partial) = self.partial_path(&writing.path) else { return self.undo(writing) };
        self.make_partial_dir(&partial)?;
        if matches!(writing.was, Was::Aside) {
            self.into.target.truncate(&writing.node, writing.end)?;
            self.dress_partial(writing)?;
            return self.into.target.publish(&writing.node, &partial, false).map(drop);
        }
        let target = &*self.into.target;
        if matches!(writing.was, Was::Nothing) {
            target.rename(&writing.path, &partial)?;
            return target.truncate(&writing.node, writing.end);
        }
        if target.stat(&partial)?.is_some() {
            target.remove(&partial, false)?;
        }
        let made = target.create(&partial, NewKind::File, FILE_MODE)?;
        let mut buffer = vec![0; CHUNK];
        let mut at = 0;
        while at < writing.end {
            let len = CHUNK.min(usize::try_from(writing.end - at).unwrap_or(CHUNK));
            let read = target.read(&writing.node, at, &mut buffer[..len])?;
            if read == 0 {
                break;
            }
            target.write(&made.node, at, &buffer[..read])?;
            at += read as u64;
        }
        target.truncate(&made.node, writing.end)?;
        self.undo(writing)
    }

    /// Removes what earlier transfers left of a file that is complete now, and the directory if it is empty.
    pub(super) fn drop_partial(&self, path: &[u8]) {
        if self.partial_of(path).is_none() {
            return;
        }
        let Some(partial) = self.partial_path(path) else { return };
        match self.into.target.remove(&partial, false) {
            Ok(()) => self.drop_partial_dir(&partial),
            Err(error) => tracing::warn!(%error, "what came of a file before is left"),
        }
    }

    /// Removes the directory for partly received files after a file in it is gone, if it is empty.
    pub(super) fn drop_partial_dir(&self, partial: &[u8]) {
        let (directory, _) = split(partial);
        if self.partial_dir().is_none_or(|name| name.starts_with(b"/")) {
            return;
        }
        let left = self.into.target.stat(directory).ok().flatten();
        if left.is_some_and(|found| self.into.target.list(&found.node).is_ok_and(|left| left.is_empty()))
            && let Err(error) = self.into.target.remove(directory, true)
        {
            tracing::warn!(%error, "the directory for what came of files is left");
        }
    }
}
