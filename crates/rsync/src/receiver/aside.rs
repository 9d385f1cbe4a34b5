//! Targets that everybody sees while they are written to: what comes is made under a temporary name, and takes the place of what
//! is there in one moment.

use std::io::{self, Read, Write};

use snowmelt_zpl::NewKind;

use super::links::Leader;
use super::{Receiver, Was, Writing};
use crate::error::Result;
use crate::target::{Found, Node, Target};

/// Zeros of a file that has holes are left out in pieces of so many bytes.
const HOLE: usize = 4096;

/// Where a file is that has come.
pub(super) enum Placed {
    /// In its place.
    There(Node),
    /// It gets there when all have come.
    Delayed,
}

/// A file that gets its place when all have come.
pub(super) struct Delayed {
    index: u32,
    path: Vec<u8>,
    node: Node,
}

impl<R: Read, W: Write> Receiver<'_, R, W> {
    /// Whether files are written beside those that they replace.
    pub(super) fn writes_aside(&self) -> bool {
        !self.into.target.is_staged() && !self.is_in_place()
    }

    /// Whether the client wants files to be written as they are.
    pub(super) fn is_in_place(&self) -> bool {
        self.options.inplace || self.options.append > 0
    }

    /// Whether what is there need not be removed before something new gets its name.
    pub(super) fn replaces(&self, found: &Found) -> bool {
        !self.into.target.is_staged() && !found.is_dir()
    }

    /// A temporary file for the content of a file.
    pub(super) fn temporary_file(&self, index: u32, path: &[u8]) -> io::Result<Node> {
        let directory = self.temp_dir.as_deref();
        let made = self.into.target.create_temporary(path, directory, NewKind::File, 0)?.node;
        let size = self.list[index as usize].metadata.size;
        if self.options.preallocate && size > 0 {
            self.into.target.preallocate(&made, size)?;
        }
        Ok(made)
    }

    /// Gives what has a temporary name its own. What has that is kept as a backup, if there are any; it has its name until the
    /// new one has it.
    pub(super) fn put_in_place(&self, made: &Node, path: &[u8]) -> io::Result<Node> {
        let done = self.keep_replaced(path).and_then(|()| {
            let sync = self.options.fsync;
            self.into.target.publish(made, path, sync)
        });
        if done.is_err()
            && let Some(way) = made.way()
        {
            // It is no use under its temporary name.
            let _ = self.into.target.remove(way, false);
        }
        done
    }

    /// Gives a file another name. What has that is kept as a backup, if there are any.
    pub(super) fn link_to(&self, node: &Node, path: &[u8]) -> io::Result<()> {
        match self.into.target.is_staged() {
            true => self.into.target.link(node, path),
            false => {
                self.keep_replaced(path)?;
                self.into.target.link_over(node, path)
            }
        }
    }

    /// Keeps what is about to be replaced, if there are to be backups.
    fn keep_replaced(&self, path: &[u8]) -> io::Result<()> {
        if !self.options.backup {
            return Ok(());
        }
        match self.into.target.stat(path)?.filter(|found| !found.is_dir()) {
            Some(found) => self.back_up_linked(&found, path),
            None => Ok(()),
        }
    }

    /// Whether zeros are left out of files, which then have holes.
    pub(super) fn leaves_holes(&self) -> bool {
        self.options.sparse && self.writes_aside()
    }

    /// A file has come: gives it its attributes, and its name. `None` if it could not get that.
    pub(super) fn finish_file(&mut self, index: u32, path: &[u8], has: Found) -> Result<Option<Placed>> {
        let is_aside = matches!(self.writing.take(), Some(Writing { was: Was::Aside, .. }));
        if !is_aside {
            self.settle_attributes(index, path, &has, true)?;
            self.settle_xattrs(index, path, &has.node, None)?;
            return Ok(Some(Placed::There(has.node)));
        }
        // Values that the sender has not sent because they are here.
        let old = self.into.target.stat(path).ok().flatten().filter(Found::is_file).map(|found| found.node);
        // A change of owner takes some attributes away, and only root makes one; who is not root may not set attributes of a file
        // that cannot be written.
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

    /// Keeps a file that has come until all have.
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

    /// All has come: what was kept gets its place (`--delay-updates`).
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

/// Writes to a file. Where it is to have holes, zeros are left out.
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
