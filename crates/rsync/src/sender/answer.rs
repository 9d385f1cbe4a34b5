//! Answers requests: attributes, and the content of files.

use std::io::{Read, Write};

use super::request::{BASIS_ITSELF, Request, item};
use super::{CHUNK, Sender, SentFile};
use crate::client::itemize;
use crate::delta::{self, Matching, Piece, Sums};
use crate::error::{Result, RsyncError};
use crate::flist::{Entry, XATTR_SENT_WHOLE, wire_attributes};
use crate::scan::{IO_ERROR_GENERAL, IO_ERROR_VANISHED, error_text};
use crate::source::Content;
use crate::token::LITERAL_MAX;
use crate::wire::{Ndx, Tag, WriteWire};

/// The basis is a file that an earlier transfer left (`FNAMECMP_PARTIAL_DIR`). It is written in place (compatibility
/// flag `I`).
const BASIS_PARTIAL: u8 = 0x81;

impl<R: Read, W: Write> Sender<'_, R, W> {
    pub(super) fn answer(&mut self, request: Request) -> Result<()> {
        let entry = self.entry(request.index)?;
        if let (Some(told), Some(entry)) = (&self.client, &entry) {
            let item = itemize(request.flags, entry.metadata.mode, '<');
            told.change(&item, &entry.name, entry.metadata.is_dir());
        }
        if request.flags & item::TRANSFER == 0 || self.options.dry_run {
            return self.write_head(&request, entry.as_ref());
        }
        let entry = entry.filter(|entry| entry.metadata.is_file());
        let entry = entry.ok_or_else(|| {
            RsyncError::protocol(format!("a request of the content of {}, which is no file", request.index))
        })?;
        // A file whose content was wrong is not appended to the second time.
        let append = if self.appended.contains(&request.index) { 0 } else { self.options.append };
        let before_sums = self.reader.total();
        let sums = Sums::read(self.reader, self.agreed.protocol, append == 0)?;
        let sums_len = self.reader.total() - before_sums;
        let path = entry.path();
        let mut content = match self.view.source.open_listed(&path, &entry.metadata, entry.followed) {
            Ok(content) => content,
            Err(error) => return self.not_sent(&request, &path, &error),
        };
        self.write_head(&request, Some(&entry))?;
        sums.write_head(self.writer)?;
        let before = self.writer.total();
        if append > 0 {
            self.appended.insert(request.index);
        }
        let digest = self.send_content((&request, append), &path, &sums, content.as_mut())?;
        self.summary.files += 1;
        let sent = self.writer.total() - before;
        let digest = entry.digest.as_deref().unwrap_or(&digest);
        (self.on_file)(SentFile { entry: &entry, flags: request.flags, bytes: sent, sums: sums_len, digest });
        Ok(())
    }

    fn not_sent(&mut self, request: &Request, path: &[u8], error: &std::io::Error) -> Result<()> {
        let shown = self.scan.shown(path);
        if error.raw_os_error() == Some(2) {
            self.scan.io_error |= IO_ERROR_VANISHED;
            self.writer.message(Tag::Warning, format!("file has vanished: {shown}\n").as_bytes())?;
        } else if error.raw_os_error() == Some(rustix::io::Errno::STALE.raw_os_error()) {
            // With an index, the file in the list does not exist any more.
            self.scan.io_error |= IO_ERROR_VANISHED;
            let text = format!("file has changed since it was indexed: {shown}\n");
            self.writer.message(Tag::Warning, text.as_bytes())?;
        } else {
            self.scan.io_error |= IO_ERROR_GENERAL;
            let text = format!("rsync: [sender] send_files failed to open {shown}: {}\n", error_text(error));
            self.writer.message(Tag::ErrorXfer, text.as_bytes())?;
        }
        self.writer.message_number(Tag::NoSend, request.index)?;
        Ok(())
    }

    /// Writes the header of an answer.
    fn write_head(&mut self, request: &Request, entry: Option<&Entry>) -> Result<()> {
        self.answers.write(Ndx::File(request.index), self.writer)?;
        if self.agreed.protocol < 29 {
            return Ok(());
        }
        self.writer.write_u16(request.flags)?;
        if request.flags & item::BASIS_FOLLOWS != 0 {
            self.writer.write_u8(request.basis)?;
        }
        if request.flags & item::NAME_FOLLOWS != 0 {
            self.writer.write_vstring(&request.name)?;
        }
        if self.asks_xattrs(request.flags) {
            self.send_xattrs(request, entry)?;
        }
        Ok(())
    }

    /// Sends the values that were too long for the list.
    fn send_xattrs(&mut self, request: &Request, entry: Option<&Entry>) -> Result<()> {
        let mut previous = 0;
        if let Some(entry) = entry.filter(|_| !request.xattrs.is_empty()) {
            let attributes = self.scan.attributes(entry).unwrap_or_default();
            let values: Vec<&Vec<u8>> = wire_attributes(&attributes).map(|(_, value)| value).collect();
            for number in &request.xattrs {
                let value = values.get(*number as usize - 1).filter(|value| value.len() > XATTR_SENT_WHOLE);
                let value = value.map_or(&[][..], |value| value.as_slice());
                self.writer.write_varint(number - previous)?;
                self.writer.write_varint(value.len() as u32)?;
                self.writer.write_all(value)?;
                previous = *number;
            }
        }
        Ok(self.writer.write_u8(0)?)
    }

    fn send_content(
        &mut self,
        (request, append): (&Request, u8),
        path: &[u8],
        sums: &Sums,
        content: &mut dyn Content,
    ) -> Result<Vec<u8>> {
        self.agreed.sums.begin(&mut self.sum);
        let mut failure = None;
        if append > 0 {
            let result = self.skip_to_append(append, sums, content);
            failure = self.note_failure(result)?;
        }
        let in_place = match request.basis {
            BASIS_ITSELF => self.options.inplace,
            basis => basis == BASIS_PARTIAL,
        };
        let matching = Matching { seeded: self.agreed.sums, in_place };
        self.tokens.begin();
        let (tokens, writer) = (&mut self.tokens, &mut *self.writer);
        let (mut literal, mut matched) = (0, 0);
        // Data that is appended during the transfer is left for the next one. So the end is known in advance.
        let left = content.size().saturating_sub(if append > 0 { sums.basis_len() } else { 0 });
        let mut limited = Reading { content: &mut *content, left, failure: None };
        let read = (&mut limited as &mut dyn Read, &mut self.buffer);
        let found = delta::find(read, sums, matching, &mut self.sum, &mut |piece| {
            match piece {
                Piece::Literal(data) => {
                    literal += data.len() as u64;
                    match tokens.is_simple() {
                        true => writer.write_counted(data, LITERAL_MAX)?,
                        false => tokens.literal(data, writer)?,
                    }
                }
                Piece::Block(index, data) => {
                    matched += data.len() as u64;
                    tokens.block(index, data, writer)?;
                }
            }
            Ok(())
        });
        failure = failure.or(limited.failure);
        found?;
        self.summary.literal += literal;
        self.summary.matched += matched;
        self.tokens.end(self.writer)?;
        let mut digest = self.sum.finish();
        if let Some(error) = failure {
            // The digest is made wrong, so that the receiver rejects the file.
            digest.iter_mut().for_each(|byte| *byte = !*byte);
            self.scan.io_error |= IO_ERROR_GENERAL;
            let shown = self.scan.shown(path);
            let text = format!("rsync: [sender] read errors mapping {shown}: {}\n", error_text(&error));
            self.writer.message(Tag::ErrorXfer, text.as_bytes())?;
        }
        self.writer.write_all(&digest)?;
        Ok(digest)
    }

    /// Returns an error of reading, and fails if the connection failed.
    fn note_failure(
        &mut self,
        result: std::result::Result<(), std::io::Error>,
    ) -> Result<Option<std::io::Error>> {
        self.writer.keep_alive()?;
        Ok(result.err())
    }

    /// Skips the part that the receiver has. Only `--append-verify` adds it to the digest.
    fn skip_to_append(&mut self, append: u8, sums: &Sums, content: &mut dyn Content) -> std::io::Result<()> {
        let have = sums.basis_len();
        if append < 2 {
            return content.seek_to(have);
        }
        let mut buffer = vec![0; CHUNK];
        let mut left = have;
        while left > 0 {
            let len = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let read = content.read(&mut buffer[..len])?;
            if read == 0 {
                break;
            }
            self.sum.update(&buffer[..read]);
            left -= read as u64;
            self.writer.keep_alive()?;
        }
        Ok(())
    }
}

/// Reads a file up to the size that it had when it was opened, or up to an error.
struct Reading<'c> {
    content: &'c mut dyn Content,
    left: u64,
    failure: Option<std::io::Error>,
}

impl Read for Reading<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let len = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if len == 0 {
            return Ok(0);
        }
        let read = self.content.read(&mut buffer[..len]).unwrap_or_else(|error| {
            self.failure = Some(error);
            self.left = 0;
            0
        });
        self.left = self.left.saturating_sub(read as u64);
        Ok(read)
    }
}
