//! Handles the sender's answers: attributes, and the content of files.

use std::io::{self, Read, Write};

use snowmelt_zpl::NewKind;

use super::aside::{Placed, write_piece};
use super::gathered::Gathered;
use super::generate::item;
use super::links::Leader;
use super::sums::Blocks;
use super::{Asked, Pending, Receiver, TOGETHER, Was, Writing};
use crate::checksum::FileSum;
use crate::daemon::Event;
use crate::error::{Result, RsyncError};
use crate::flist::{Received, XattrValue};
use crate::target::{Found, Node};
use crate::token::Token;
use crate::wire::{Ndx, Note, ReadWire, Tag};

/// The longest value of an extended attribute that is accepted, in bytes. It is the limit of ZFS.
const VALUE_MAX: usize = 64 << 10;
/// The longest name in an answer, in bytes.
const NAME_MAX: usize = 4096;

/// A new file up to this size is created only when its content is complete.
const HELD_MAX: u64 = 128 << 10;

/// The result of receiving a file's content.
enum Arrived {
    /// The content is correct. The node still has these attributes.
    Right(Found),
    /// The content differs from what was sent.
    Wrong,
    /// The file could not be written and was skipped.
    Lost,
}

/// The basis file that blocks are copied from, and its size.
type Basis<'p> = (&'p Node, u64);

/// Where the content of a file is written.
#[derive(Clone, PartialEq, Eq)]
enum Opened {
    /// Into memory. The file does not exist yet and is created when its content is complete.
    Held,
    /// Into this node, which may be the file at the path itself.
    Into { node: Node, is_itself: bool },
    /// Nowhere, because the file could not be opened.
    Nowhere,
}

/// The content of a file that is being received.
struct Content {
    opened: Opened,
    /// The number of bytes so far.
    at: u64,
    sum: FileSum,
    gathered: Gathered,
}

impl Content {
    /// Adds the next bytes of the content.
    fn take(&mut self, data: &[u8], write: impl Fn(&Node, u64, &[u8]) -> io::Result<()>) -> io::Result<()> {
        self.sum.update(data);
        match &self.opened {
            Opened::Held => self.gathered.hold(data),
            Opened::Into { node, .. } => {
                self.gathered.take(self.at, data, |at, data| write(node, at, data))?;
            }
            Opened::Nowhere => {}
        }
        self.at += data.len() as u64;
        Ok(())
    }

    /// Adds the next bytes of the content, which are in the file already.
    fn pass(&mut self, data: &[u8]) {
        self.sum.update(data);
        self.at += data.len() as u64;
    }
}

impl<R: Read, W: Write> Receiver<'_, R, W> {
    /// Handles the next answer. Returns `false` when the sender has ended a phase.
    pub(super) fn take_answer(&mut self) -> Result<bool> {
        if self.unsent >= TOGETHER || !self.reader.has_buffered() {
            self.unsent = 0;
            self.writer.flush()?;
        }
        while let Some(note) = self.reader.next_note()? {
            match note {
                Note::IoError(_) if self.options.ignore_errors => {}
                Note::IoError(bits) => self.io_error |= bits,
                Note::NoSend(index) => {
                    let is_it = |asked: &Asked| matches!(asked, Asked::Request(one) if one.index == index && one.flags & item::TRANSFER != 0);
                    let at = self.pending.iter().position(is_it);
                    if let Some(at) = at {
                        self.pending.remove(at);
                        self.skip(index)?;
                        self.list.release(index);
                        return Ok(true);
                    }
                }
            }
        }
        let ndx = self.answers.read(self.reader)?;
        if ndx == Ndx::File(self.list.next_index()) && self.agreed.protocol == 29 {
            return self.take_sign_of_life();
        }
        if self.agreed.protocol < 30 {
            self.pass_over(ndx)?;
        }
        let wanted = match ndx {
            Ndx::Flist(number) => {
                let directory = self.list.take_directory(number)?;
                return self.receive_list(Some(directory)).map(|()| true);
            }
            Ndx::FlistEof => return self.list.complete().map(|()| true),
            ndx => match (ndx, self.pending.pop_front()) {
                (Ndx::Done, Some(Asked::Done)) => return Ok(false),
                (Ndx::Done, Some(Asked::ListDone)) => return Ok(true),
                (Ndx::Done, None) if self.agreed.incremental && !self.list.is_complete() => {
                    // The words are rsync's, where it has any for such a message.
                    let what = match self.answers.read(self.reader)? {
                        Ndx::Flist(_) => "refusing sub-flist after final flist was freed".to_owned(),
                        next => format!("an end before all lists came, and then {next:?}"),
                    };
                    return Err(RsyncError::protocol(what));
                }
                (Ndx::File(index), Some(Asked::Request(wanted))) if wanted.index == index => wanted,
                (Ndx::File(index), _) if self.list.get(index).is_some() && !self.list.counts(index) => {
                    return Err(RsyncError::protocol(format!(
                        "refusing transfer of cleared file index {index}: another one of its name counts"
                    )));
                }
                (other, _) => {
                    return Err(RsyncError::protocol(format!(
                        "an answer of {other:?}, which was not asked for"
                    )));
                }
            },
        };
        self.take_file(&wanted)?;
        self.list.release(wanted.index);
        Ok(true)
    }

    /// Handles the answer to a request.
    fn take_file(&mut self, wanted: &Pending) -> Result<()> {
        let index = wanted.index;
        let flags = if self.agreed.protocol < 29 { wanted.flags } else { self.reader.read_u16()? };
        // The other flags are the sender's own business.
        if (flags ^ wanted.flags) & (item::TRANSFER | item::XATTRS) != 0 {
            return Err(RsyncError::protocol(format!(
                "an answer about file {index} of {flags:#x}, not {:#x}",
                wanted.flags
            )));
        }
        if flags & item::BASIS_FOLLOWS != 0 {
            self.reader.read_u8()?;
        }
        if flags & item::NAME_FOLLOWS != 0 {
            self.reader.read_vstring(NAME_MAX)?;
        }
        if self.sends_xattrs(flags) {
            self.read_xattrs(index)?;
        }
        let path = self.path_of(index);
        if flags & item::TRANSFER == 0 {
            let has_xattrs = flags & item::XATTRS != 0 && !self.options.dry_run;
            if let (true, Ok(Some(found))) = (has_xattrs, self.into.target.stat(&path)) {
                self.settle_xattrs(index, &path, &found.node, None)?;
            }
            return Ok(());
        }
        if self.options.dry_run {
            return self.settle_links(index, Leader::Supposed);
        }
        self.content(wanted, &path)
    }

    /// A sign of life in version 29: the sender is there, but has nothing to send yet.
    fn take_sign_of_life(&mut self) -> Result<bool> {
        match self.reader.read_u16()? {
            item::NEW => Ok(true),
            flags => Err(RsyncError::protocol(format!("an answer of nothing with {flags:#x}"))),
        }
    }

    /// Before version 30 the sender did not answer a request for a file that it could not send. Gives up the requests
    /// before this answer.
    fn pass_over(&mut self, answer: Ndx) -> Result<()> {
        loop {
            match (self.pending.front(), answer) {
                (Some(Asked::Request(first)), Ndx::File(index)) if first.index == index => return Ok(()),
                (Some(Asked::Request(first)), Ndx::File(_) | Ndx::Done) => {
                    let (index, flags) = (first.index, first.flags);
                    self.pending.pop_front();
                    if flags & item::TRANSFER != 0 {
                        self.skip(index)?;
                    }
                    self.list.release(index);
                }
                _ => return Ok(()),
            }
        }
    }

    fn read_xattrs(&mut self, index: u32) -> Result<()> {
        let set = self.list[index as usize].xattrs;
        let mut number = 0_u32;
        loop {
            let by = self.reader.read_varint()?.cast_unsigned();
            if by == 0 {
                return Ok(());
            }
            number = number.wrapping_add(by);
            let len = self.reader.read_varint()?.cast_unsigned() as usize;
            let value = self.reader.read_bytes(len, VALUE_MAX)?;
            self.lists.keep(len as u64)?;
            let asked =
                set.and_then(|set| self.lists.xattrs_mut(set).iter_mut().find(|one| one.number == number));
            match asked {
                Some(one) if matches!(one.value, XattrValue::Asked(_)) => {
                    (one.len, one.value) = (value.len(), XattrValue::Whole(value));
                }
                _ => return Err(RsyncError::protocol(format!("a value {number} that was not asked for"))),
            }
        }
    }

    fn content(&mut self, wanted: &Pending, path: &[u8]) -> Result<()> {
        let index = wanted.index;
        let blocks = wanted.basis.as_ref().map_or(Blocks::default(), |(.., blocks)| *blocks);
        let head = [blocks.count, blocks.len, blocks.digest_len, blocks.remainder];
        for value in head {
            if self.reader.read_i32()?.cast_unsigned() != value {
                return Err(RsyncError::protocol(format!("sums of file {index} that were not sent")));
            }
        }
        self.summary.files += 1;
        let before = self.reader.total();
        match self.receive(wanted, path)? {
            Arrived::Right(has) => {
                let Some(placed) = self.finish_file(index, path, has)? else { return self.skip(index) };
                let bytes = self.reader.total() - before;
                let Received { name, metadata, digest, .. } = &self.list[index as usize];
                if let Some(on_event) = self.into.terms.on_event {
                    on_event(&Event {
                        operation: "recv",
                        path,
                        name,
                        metadata: *metadata,
                        bytes,
                        sums: 0,
                        digest: digest.as_ref().unwrap_or(&self.digest),
                        flags: wanted.flags,
                    });
                }
                match placed {
                    Placed::There(node) => {
                        self.drop_partial(path);
                        self.came(index);
                        self.settle_links(index, Leader::Done(node))
                    }
                    Placed::Delayed => Ok(()),
                }
            }
            Arrived::Wrong => {
                if let Some(writing) = self.writing.take()
                    && let Err(error) = self.undo(&writing)
                {
                    self.failed("restore", path, &error)?;
                }
                let shown = String::from_utf8_lossy(&self.list[index as usize].name).into_owned();
                if wanted.is_second {
                    self.has_failed = true;
                    let text = format!("ERROR: {shown} failed verification -- update discarded.\n");
                    self.writer.message(Tag::ErrorXfer, text.as_bytes())?;
                    return self.skip(index);
                }
                let text =
                    format!("WARNING: {shown} failed verification -- update discarded (will try again).\n");
                self.writer.message(Tag::Warning, text.as_bytes())?;
                self.list.hold(index);
                self.redo.push(index);
                Ok(())
            }
            Arrived::Lost => self.skip(index),
        }
    }

    /// The node for the content of a file. It is the present file, unless that must be kept, or has hard links that
    /// must not change.
    fn open(&mut self, index: u32, flags: u16, path: &[u8]) -> io::Result<(Node, Was)> {
        let mode = self.list[index as usize].metadata.mode & 0o7777;
        if flags & item::NEW != 0 && !self.writes_aside() {
            // In most cases nothing was created at the path since the request.
            match self.into.target.create(path, NewKind::File, mode) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => return Ok((made?.node, Was::Nothing)),
            }
        }
        if self.writes_aside() {
            return Ok((self.temporary_file(index, path)?, Was::Aside));
        }
        let found = self.into.target.stat(path)?.filter(|found| found.is_file());
        let mut was = Was::Nothing;
        if let Some(found) = &found {
            if self.options.backup && !self.into.target.is_staged() {
                self.back_up_copy(found, path)?;
                return Ok((found.node.clone(), Was::Itself));
            } else if self.options.backup {
                was = Was::At(self.back_up(path)?);
            } else if found.metadata.links <= 1
                || self.options.inplace
                || self.are_all_names(index, &found.node, found.metadata.links)
            {
                return Ok((found.node.clone(), Was::Itself));
            } else {
                self.into.target.remove(path, false)?;
                was = Was::Name(found.node.clone());
            }
        }
        Ok((self.into.target.create(path, NewKind::File, mode)?.node, was))
    }

    /// Whether all names of the file at a node belong to the same group of hard links in the list.
    fn are_all_names(&self, index: u32, node: &Node, links: u64) -> bool {
        let group = self.list[index as usize].group.and_then(|group| self.links.groups.get(&group));
        let Some(group) = group else { return false };
        let is_name = |index: &&u32| {
            let found = self.list.get(**index).map(|_| self.into.target.stat(&self.path_of(**index)));
            matches!(found, Some(Ok(Some(found))) if found.node == *node)
        };
        group.members.iter().filter(is_name).count() as u64 == links
    }

    fn receive(&mut self, wanted: &Pending, path: &[u8]) -> Result<Arrived> {
        let is_new = wanted.flags & item::NEW != 0 && wanted.basis.is_none() && self.into.target.is_staged();
        let mut file = Content {
            opened: if is_new { Opened::Held } else { self.open_content(wanted, path)? },
            at: 0,
            sum: self.agreed.sums.file(),
            gathered: Gathered::default(),
        };
        let literal = self.summary.literal;
        let mut digest = vec![0; self.agreed.sums.algorithm.len()];
        let came = self.take_content(wanted, path, &mut file);
        let came = came.and_then(|()| Ok(self.reader.read_exact(&mut digest)?));
        let is_right = came.is_ok() && file.sum.finish() == digest;
        self.digest = digest;
        if file.opened == Opened::Held {
            if came.is_ok() && !is_right {
                return Ok(Arrived::Wrong);
            }
            if is_right && let Some(made) = self.make(wanted.index, path, file.gathered.held())? {
                return Ok(made);
            }
            file.opened = self.open_content(wanted, path)?;
        }
        // The content before a failure may be kept.
        let is_sparse = self.leaves_holes();
        let written = match &file.opened {
            Opened::Into { node, .. } => {
                file.gathered.flush(|at, data| write_piece(&*self.into.target, is_sparse, node, at, data))
            }
            Opened::Held | Opened::Nowhere => Ok(()),
        };
        let written = written.map_err(|error| self.no_room(path, &error));
        if let Some(writing) = &mut self.writing {
            (writing.end, writing.has_literal) = (file.at, self.summary.literal > literal);
        }
        came?;
        written?;
        let Opened::Into { node, .. } = file.opened else { return Ok(Arrived::Lost) };
        let look = || self.into.target.metadata(&node).map_err(|error| self.no_room(path, &error));
        let mut metadata = look()?;
        if metadata.size != file.at {
            let cut = self.into.target.truncate(&node, file.at);
            cut.map_err(|error| self.no_room(path, &error))?;
            metadata = look()?;
        }
        Ok(if is_right { Arrived::Right(Found { node, metadata }) } else { Arrived::Wrong })
    }

    /// Creates a file whose content is complete. `None` if something was created at the path meanwhile.
    fn make(&mut self, index: u32, path: &[u8], content: &[u8]) -> Result<Option<Arrived>> {
        let error = match self.into.target.create_file(path, &self.whole(index, content)) {
            Ok(has) => return Ok(Some(Arrived::Right(has))),
            Err(error) => error,
        };
        match error.kind() {
            io::ErrorKind::AlreadyExists => Ok(None),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Err(self.no_room(path, &error)),
            _ => {
                self.failed("open", path, &error)?;
                Ok(Some(Arrived::Lost))
            }
        }
    }

    /// Opens the node for the content of a file. Writing to it begins now.
    fn open_content(&mut self, wanted: &Pending, path: &[u8]) -> Result<Opened> {
        match self.open(wanted.index, wanted.flags, path) {
            Ok((node, was)) => {
                let is_itself = matches!(was, Was::Itself);
                let (path, of) = (path.to_vec(), node.clone());
                let index = wanted.index;
                self.writing = Some(Writing { index, path, node: of, was, end: 0, has_literal: false });
                Ok(Opened::Into { node, is_itself })
            }
            Err(error) => {
                self.failed("open", path, &error)?;
                Ok(Opened::Nowhere)
            }
        }
    }

    /// Receives the content of a file to its end. The last bytes that were gathered are not written yet.
    fn take_content(&mut self, wanted: &Pending, path: &[u8], file: &mut Content) -> Result<()> {
        if self.options.append > 0
            && !wanted.is_second
            && let Some((node, size, _)) = &wanted.basis
        {
            if self.options.append > 1 {
                self.sum_up((node, *size), &mut file.sum)?;
            }
            file.at = *size;
        }
        let is_sparse = self.leaves_holes();
        let mut buffer = Vec::new();
        self.tokens.begin();
        loop {
            if file.opened == Opened::Held && file.at > HELD_MAX {
                file.opened = self.open_content(wanted, path)?;
            }
            match self.tokens.next(self.reader)? {
                Token::End => return Ok(()),
                Token::Literal => {
                    let data = self.tokens.literal(self.reader)?;
                    self.summary.literal += data.len() as u64;
                    let taken = file.take(data, |node, at, data| {
                        write_piece(&*self.into.target, is_sparse, node, at, data)
                    });
                    taken.map_err(|error| self.no_room(path, &error))?;
                }
                Token::Block(number) => {
                    let (basis, (offset, len)) = self.block(wanted, number)?;
                    buffer.resize(len, 0);
                    if let Err(error) = self.into.target.read_old(basis, offset, &mut buffer) {
                        // The digest will not match.
                        tracing::debug!(%error, "reading what was there before");
                        buffer.fill(0);
                    }
                    self.tokens.see(&buffer)?;
                    self.summary.matched += len as u64;
                    // Data at its old place is in the file already.
                    let is_there = offset == file.at
                        && matches!(&file.opened, Opened::Into { node, is_itself: true } if node == basis.0);
                    if is_there {
                        file.pass(&buffer);
                    } else {
                        let taken = file.take(&buffer, |node, at, data| {
                            write_piece(&*self.into.target, is_sparse, node, at, data)
                        });
                        taken.map_err(|error| self.no_room(path, &error))?;
                    }
                }
            }
            self.writer.keep_alive()?;
        }
    }

    fn no_room(&self, path: &[u8], error: &io::Error) -> RsyncError {
        let text = format!(
            "rsync: [receiver] write failed on {}: {}",
            self.shown(path),
            crate::scan::error_text(error)
        );
        RsyncError::refused(crate::error::ExitCode::FileIo, text)
    }

    fn block<'p>(&self, wanted: &'p Pending, number: u32) -> Result<(Basis<'p>, (u64, usize))> {
        let basis = wanted.basis.as_ref();
        let found = basis.and_then(|(node, size, blocks)| Some(((node, *size), blocks.place(number)?)));
        found.ok_or_else(|| {
            RsyncError::protocol(format!("block {number} of file {}, which has none", wanted.index))
        })
    }

    /// Adds the part of a file that is only appended to, to the digest.
    fn sum_up(&mut self, file: Basis<'_>, sum: &mut FileSum) -> Result<()> {
        let mut buffer = vec![0; 256 << 10];
        let mut at = 0;
        while at < file.1 {
            let len = buffer.len().min(usize::try_from(file.1 - at).unwrap_or(usize::MAX));
            if self.into.target.read_old(file, at, &mut buffer[..len]).is_err() {
                buffer[..len].fill(0);
            }
            sum.update(&buffer[..len]);
            at += len as u64;
            self.writer.keep_alive()?;
        }
        Ok(())
    }
}
