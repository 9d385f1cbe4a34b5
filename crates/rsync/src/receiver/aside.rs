//! Targets whose changes are visible at once (directories): a file is written under a temporary name, and then replaces
//! the present file in one step.

use std::io::{self, Read, Write};

use snowmelt_zpl::NewKind;

use super::links::Leader;
use super::{Receiver, Was, Writing};
use crate::error::Result;
use crate::target::{Found, Node, Target};

/// Holes are made in pieces of this many bytes of zeros.
const HOLE: usize = 4096;

/// The state of a file that was received.
pub(super) enum Placed {
    /// It is at its path.
    There(Node),
    /// It is moved to its path after all files were received.
    Delayed,
}

/// A file that is moved to its path after all files were received.
pub(super) struct Delayed {
    index: u32,
    path: Vec<u8>,
    node: Node,
}

impl<R: Read, W: Write> Receiver<'_, R, W> {
    /// Whether files are written under temporary names.
    pub(super) fn writes_aside(&self) -> bool {
        !self.into.target.is_staged() && !self.is_in_place()
    }

    /// Whether the client wants files to be written in place.
    pub(super) fn is_in_place(&self) -> bool {
        self.options.inplace || self.options.append > 0
    }

    /// Whether a new file can replace the present one without its removal.
    pub(super) fn replaces(&self, found: &Found) -> bool {
        !self.into.target.is_staged() && !found.is_dir()
    }

    /// Creates a temporary file for the content of a file.
    pub(super) fn temporary_file(&self, index: u32, path: &[u8]) -> io::Result<Node> {
        let directory = self.temp_dir.as_deref();
        let made = self.into.target.create_temporary(path, directory, NewKind::File, 0)?.node;
        let size = self.list[index as usize].metadata.size;
        if self.options.preallocate && size > 0 {
            self.into.target.preallocate(&made, size)?;
        }
        Ok(made)
    }

    /// Moves a temporary file to its final path. If there are backups, the present file is kept as one. It stays at the
    /// path until the new one replaces it.
    pub(super) fn put_in_place(&self, made: &Node, path: &[u8]) -> io::Result<Node> {
        let done = self.keep_replaced(path).and_then(|()| {
            let sync = self.options.fsync;
            self.into.target.publish(made, path, sync)
        });
        if done.is_err()
            && let Some(way) = made.way()
        {
            // The temporary file is of no use any more.
            let _ = self.into.target.remove(way, false);
        }
        done
    }

    /// Gives a file a further name. If there are backups, the present file of that name is kept as one.
    pub(super) fn link_to(&self, node: &Node, path: &[u8]) -> io::Result<()> {
        match self.into.target.is_staged() {
            true => self.into.target.link(node, path),
            false => {
                self.keep_replaced(path)?;
                self.into.target.link_over(node, path)
            }
        }
    }

    /// Keeps the file that is about to be replaced, if there are backups.
    fn keep_replaced(&self, path: &[u8]) -> io::Result<()> {
        if !self.options.backup {
            return Ok(());
        }
        match self.into.target.stat(path)?.filter(|found| !found.is_dir()) {
            Some(found) => self.back_up_linked(&found, path),
            None => Ok(()),
        }
    }

    /// Whether zeros in files become holes.
    pub(super) fn leaves_holes(&self) -> bool {
        self.options.sparse && self.writes_aside()
    }

    /// Sets the attributes of a received file and moves it to its path. `None` if it could not be moved there.
    pub(super) fn finish_file(&mut self, index: u32, path: &[u8], has: Found) -> Result<Option<Placed>> {
        let is_aside = matches!(self.writing.take(), Some(Writing { was: Was::Aside, .. }));
        if !is_aside {
            self.settle_attributes(index, path, &has, true)?;
            self.settle_xattrs(index, path, &has.node, None)?;
            return Ok(Some(Placed::There(has.node)));
        }
        // The present file has the values that the sender did not send.
        let old = self.into.target.stat(path).ok().flatten().filter(Found::is_file).map(|found| found.node);
        // Root sets the owner first, because a change of owner clears some extended attributes. Other users cannot
        // change it, but may not be able to set extended attributes once a file is read-only.
        match self.into.target.is_privileged() {
            true => {
                self.settle_attributes(index, path, &has, true)?;
                self.settle_xattrs(index, path, &has.node, old.as_ref())?;
            }
            false => {
                self.settle_xattrs(index, path, &has.node, old.as_ref())?;
                self.settle_attributes(index, path, &has, true)?;
            }
        }
        if let Some(delayed) = self.delayed_path(path) {
            return self.delay(index, path, (&has.node, delayed));
        }
        match self.put_in_place(&has.node, path) {
            Ok(node) => Ok(Some(Placed::There(node))),
            Err(error) => self.failed("rename", path, &error).map(|()| None),
        }
    }

    /// Keeps a received file until all were received.
    fn delay(
        &mut self,
        index: u32,
        path: &[u8],
        (made, delayed): (&Node, Vec<u8>),
    ) -> Result<Option<Placed>> {
        let kept = self.make_partial_dir(&delayed).and_then(|()| {
            let sync = self.options.fsync;
            self.into.target.publish(made, &delayed, sync)
        });
        match kept {
            Ok(node) => {
                self.delayed.push(Delayed { index, path: path.to_vec(), node });
                Ok(Some(Placed::Delayed))
            }
            Err(error) => self.failed("rename", &delayed, &error).map(|()| None),
        }
    }

    /// Moves the files that were kept to their paths, after all were received (`--delay-updates`).
    pub(super) fn place_delayed(&mut self) -> Result<()> {
        for Delayed { index, path, node } in std::mem::take(&mut self.delayed) {
            let kept = node.way().unwrap_or_default().to_vec();
            match self.put_in_place(&node, &path) {
                Ok(node) => {
                    self.drop_partial_dir(&kept);
                    self.came(index);
                    self.settle_links(index, Leader::Done(node))?;
                }
                Err(error) => {
                    self.failed("rename", &path, &error)?;
                    self.skip(index)?;
                }
            }
            self.writer.keep_alive()?;
        }
        Ok(())
    }
}

/// Writes to a file, and leaves out zeros if it is to have holes.
pub(super) fn write_piece(
    target: &dyn Target,
    is_sparse: bool,
    node: &Node,
    offset: u64,
    data: &[u8],
) -> io::Result<()> {
    if !is_sparse {
        return target.write(node, offset, data);
    }
    let is_hole = |piece: &[u8]| piece.iter().all(|byte| *byte == 0);
    let pieces: Vec<&[u8]> = data.chunks(HOLE).collect();
    let mut at = 0;
    for run in pieces.chunk_by(|a, b| is_hole(a) == is_hole(b)) {
        let len: usize = run.iter().map(|piece| piece.len()).sum();
        if !run.first().is_some_and(|piece| is_hole(piece)) {
            target.write(node, offset + at as u64, &data[at..at + len])?;
        }
        at += len;
    }
    Ok(())
}
