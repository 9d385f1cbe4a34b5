//! The sender: sends the file lists, then answers the requests of the receiver (docs/format/rsync.md, "The transfer").

mod answer;
mod lists;
mod request;

use std::collections::{HashSet, VecDeque};
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use crate::checksum::{Algorithm, FileSum, Seeded};
use crate::client::Told;
use crate::error::{ExitCode, Result, RsyncError};
use crate::filter::Filter;
use crate::flist::{Entry, ListForm, ListWriter};
use crate::names::Names;
use crate::options::Options;
use crate::receiver::IO_ERROR_DELETE_LIMIT;
use crate::scan::{Below, IO_ERROR_VANISHED, Scan, View};
use crate::token::TokenWriter;
use crate::wire::{MuxReader, MuxWriter, Ndx, NdxReader, NdxWriter, Tag, WriteWire};

/// The number of bytes of a file that are read at once for a digest.
const CHUNK: usize = 256 << 10;

/// The result of the negotiation.
pub struct Agreed {
    /// The version of the protocol.
    pub protocol: u8,
    /// Incremental recursion: lists are sent for each directory.
    pub incremental: bool,
    /// The form of entries.
    pub form: ListForm,
    /// The block and file checksums of transfers.
    pub sums: Seeded,
    /// The checksum of files in lists.
    pub list_sum: Algorithm,
    /// With hard links and local changes, values of attributes are never requested (the compatibility flag `x` is
    /// unknown).
    pub xattr_shortcut: bool,
}

/// The statistics of a transfer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Bytes that were read from the connection.
    pub read: u64,
    /// Bytes that were written to the connection.
    pub written: u64,
    /// The size of all files, in bytes.
    pub size: u64,
    /// The number of files whose content was sent.
    pub files: u64,
    /// Bytes of their content that were sent as data.
    pub literal: u64,
    /// Bytes of their content that the receiver had.
    pub matched: u64,
    /// The number of deleted files.
    pub deleted: u64,
    /// The errors, as bits.
    pub io_error: u32,
}

impl Summary {
    /// The exit code for these errors, if there are any.
    pub fn shortcoming(&self) -> Option<ExitCode> {
        match self.io_error {
            0 => None,
            IO_ERROR_DELETE_LIMIT => Some(ExitCode::DeleteLimit),
            IO_ERROR_VANISHED => Some(ExitCode::Vanished),
            _ => Some(ExitCode::Partial),
        }
    }
}

/// A list that the receiver has not finished.
struct List {
    first: u32,
    /// The directory of the list. The index before the first one stands for it too.
    directory: Option<Entry>,
    entries: Vec<Entry>,
}

/// A file that was sent.
#[derive(Debug, Clone, Copy)]
pub struct SentFile<'e> {
    /// The entry of the file.
    pub entry: &'e Entry,
    /// The changes, as bits of the request.
    pub flags: u16,
    /// Bytes on the wire for the file, and for the block checksums before it.
    pub bytes: u64,
    /// See `bytes`.
    pub sums: u64,
    /// The digest of its content.
    pub digest: &'e [u8],
}

/// Called for each file that was sent.
pub type OnFile<'a> = dyn FnMut(SentFile<'_>) + 'a;

/// The sender of one connection.
pub struct Sender<'a, R, W> {
    reader: &'a mut MuxReader<R>,
    writer: &'a mut MuxWriter<W>,
    view: View<'a>,
    options: &'a Options,
    agreed: Agreed,
    scan: Scan<'a>,
    lists: VecDeque<List>,
    /// Files that were appended to.
    appended: HashSet<u32>,
    /// The list of the newest request.
    current: u32,
    /// Directories that are not listed yet, with their numbers. The next one is at the end.
    directories: Vec<(u32, Below)>,
    directory_count: u32,
    next_index: u32,
    is_complete: bool,
    list_writer: ListWriter,
    requests: NdxReader,
    answers: NdxWriter,
    tokens: TokenWriter,
    /// The buffer for reading files, and the state of their digest.
    buffer: Vec<u8>,
    sum: FileSum,
    summary: Summary,
    told_error: u32,
    list_time: Duration,
    send_time: Duration,
    on_file: &'a mut OnFile<'a>,
    /// Set if this side is the client, which shows changes.
    client: Option<Arc<Told>>,
}

impl<'a, R: Read, W: Write> Sender<'a, R, W> {
    /// The sender of one connection. The client's filter rules were read before.
    pub fn new(
        (reader, writer): (&'a mut MuxReader<R>, &'a mut MuxWriter<W>),
        view: View<'a>,
        (options, filter): (&'a Options, &'a Filter),
        agreed: Agreed,
        (names, tokens): (Names, TokenWriter),
        on_file: &'a mut OnFile<'a>,
    ) -> Self {
        Self {
            reader,
            writer,
            view,
            options,
            scan: Scan::new(view, options, filter),
            lists: VecDeque::new(),
            appended: HashSet::new(),
            current: 0,
            directories: Vec::new(),
            directory_count: 0,
            next_index: u32::from(agreed.incremental),
            is_complete: false,
            list_writer: ListWriter::new(agreed.form.clone(), names),
            requests: NdxReader::of(agreed.protocol),
            answers: NdxWriter::of(agreed.protocol),
            tokens,
            buffer: Vec::new(),
            sum: agreed.sums.file(),
            summary: Summary::default(),
            told_error: 0,
            list_time: Duration::ZERO,
            send_time: Duration::ZERO,
            agreed,
            on_file,
            client: None,
        }
    }

    /// Makes this side the client, which shows changes.
    pub fn for_client(mut self, told: Arc<Told>) -> Self {
        self.client = Some(told);
        self
    }

    /// Runs the transfer.
    ///
    /// # Errors
    /// When the connection fails, or the receiver violates the protocol. Failures of single files are reported to the
    /// receiver.
    pub fn run(mut self, paths: &[Vec<u8>]) -> Result<Summary> {
        self.first_list(paths)?;
        if self.lists.iter().all(|list| list.entries.is_empty()) {
            // The receiver requests nothing. Over a remote shell it waits for this side to end.
            self.writer.flush()?;
            return Ok(self.summarize());
        }
        self.serve()?;
        self.finish()
    }

    fn summarize(mut self) -> Summary {
        self.summary.io_error = self.scan.io_error;
        (self.summary.read, self.summary.written) = (self.reader.total(), self.writer.total());
        self.summary
    }

    fn report(&mut self) -> Result<()> {
        for (tag, text) in std::mem::take(&mut self.scan.reports) {
            self.writer.message(tag, text.as_bytes())?;
        }
        Ok(())
    }

    /// Answers requests until the receiver has ended the last phase.
    fn serve(&mut self) -> Result<()> {
        let phases = if self.agreed.protocol < 29 { 1 } else { 2 };
        let mut phase = 0;
        loop {
            self.send_lists()?;
            match self.next_request()? {
                Some(request) => self.answer(request)?,
                None => {
                    let had_list = self.agreed.incremental && self.lists.pop_front().is_some();
                    if let Some(next) = self.lists.front().filter(|_| had_list) {
                        // The receiver may have no requests for a list.
                        self.current = self.current.max(next.first);
                        self.answers.write(Ndx::Done, self.writer)?;
                        continue;
                    }
                    phase += 1;
                    if phase > phases {
                        return Ok(());
                    }
                    self.answers.write(Ndx::Done, self.writer)?;
                }
            }
        }
    }

    /// Ends the transfer: sends errors and statistics.
    fn finish(mut self) -> Result<Summary> {
        if self.scan.io_error != self.told_error {
            self.writer.message_number(Tag::IoError, self.scan.io_error)?;
        }
        self.answers.write(Ndx::Done, self.writer)?;
        let counts = [self.reader.total(), self.writer.total(), self.summary.size];
        let times = [self.list_time, self.send_time].map(|time| time.as_millis() as u64);
        let times = if self.agreed.protocol < 29 { &[][..] } else { &times };
        // A client has nobody to send them to.
        for number in counts.iter().chain(times).filter(|_| self.client.is_none()) {
            match self.agreed.protocol {
                ..30 => self.writer.write_longint(*number)?,
                _ => self.writer.write_varlong(*number, 3)?,
            }
        }
        self.writer.flush()?;
        self.goodbye()?;
        if self.agreed.protocol >= 31 {
            self.answers.write(Ndx::Done, self.writer)?;
            self.writer.flush()?;
            self.goodbye()?;
        }
        Ok(self.summarize())
    }

    fn goodbye(&mut self) -> Result<()> {
        match self.next_request()? {
            None => Ok(()),
            Some(request) => {
                Err(RsyncError::protocol(format!("a request of {} after the end", request.index)))
            }
        }
    }
}
