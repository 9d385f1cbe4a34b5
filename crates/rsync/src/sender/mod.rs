//! The sender: lists, then whatever the receiver asks for, until it is done (docs/format/rsync.md, "The transfer").

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

/// Bytes of a file read at once where only its sum is wanted.
const CHUNK: usize = 256 << 10;

/// What was agreed on.
pub struct Agreed {
    /// Version of the protocol.
    pub protocol: u8,
    /// Lists come directory by directory.
    pub incremental: bool,
    /// How entries are sent.
    pub form: ListForm,
    /// Of transfers.
    pub sums: Seeded,
    /// Of whole files in lists.
    pub list_sum: Algorithm,
    /// Values of attributes are never asked for with hard links and local changes (no compatibility flag `x` known).
    pub xattr_shortcut: bool,
}

/// What was done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Bytes that came and went.
    pub read: u64,
    /// Likewise.
    pub written: u64,
    /// Bytes of all files.
    pub size: u64,
    /// Files whose content was sent.
    pub files: u64,
    /// Bytes of these that were sent, and that the receiver had.
    pub literal: u64,
    /// Likewise.
    pub matched: u64,
    /// Names that were deleted.
    pub deleted: u64,
    /// What failed, as bits.
    pub io_error: u32,
}

impl Summary {
    /// What was not all well, as the exit code of the whole.
    pub fn shortcoming(&self) -> Option<ExitCode> {
        match self.io_error {
            0 => None,
            IO_ERROR_DELETE_LIMIT => Some(ExitCode::DeleteLimit),
            IO_ERROR_VANISHED => Some(ExitCode::Vanished),
            _ => Some(ExitCode::Partial),
        }
    }
}

/// A list that the receiver has not done with.
struct List {
    first: u32,
    /// The directory that it is of; the index before the first one stands for that too.
    directory: Option<Entry>,
    entries: Vec<Entry>,
}

/// How a file was sent.
#[derive(Debug, Clone, Copy)]
pub struct SentFile<'e> {
    /// What was sent.
    pub entry: &'e Entry,
    /// What changed, as bits of requests.
    pub flags: u16,
    /// Bytes that it took, and those of the sums of blocks that came before.
    pub bytes: u64,
    /// See `bytes`.
    pub sums: u64,
    /// Of its content.
    pub digest: &'e [u8],
}

/// Is told of each file sent.
pub type OnFile<'a> = dyn FnMut(SentFile<'_>) + 'a;

/// One connection's sender.
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
    /// Directories not yet listed, the next one last, with their numbers.
    directories: Vec<(u32, Below)>,
    directory_count: u32,
    next_index: u32,
    is_complete: bool,
    list_writer: ListWriter,
    requests: NdxReader,
    answers: NdxWriter,
    tokens: TokenWriter,
    /// What files are read through, and summed up with.
    buffer: Vec<u8>,
    sum: FileSum,
    summary: Summary,
    told_error: u32,
    list_time: Duration,
    send_time: Duration,
    on_file: &'a mut OnFile<'a>,
    /// This side is the client, and shows what changes.
    client: Option<Arc<Told>>,
}

impl<'a, R: Read, W: Write> Sender<'a, R, W> {
    /// For one connection, the client's rules having been read.
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

    /// The same of the client, which shows what changes.
    pub fn for_client(mut self, told: Arc<Told>) -> Self {
        self.client = Some(told);
        self
    }

    /// Does everything.
    ///
    /// # Errors
    /// When the connection fails, or the receiver breaks the rules. What fails with single files is told to it.
    pub fn run(mut self, paths: &[Vec<u8>]) -> Result<Summary> {
        self.first_list(paths)?;
        if self.lists.iter().all(|list| list.entries.is_empty()) {
            // The receiver asks for nothing, and over a remote shell waits for this side to end.
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

    /// Answers requests until the receiver has ended its last phase.
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
                        // It may have nothing to ask of a list.
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

    /// The last words of both sides.
    fn finish(mut self) -> Result<Summary> {
        if self.scan.io_error != self.told_error {
            self.writer.message_number(Tag::IoError, self.scan.io_error)?;
        }
        self.answers.write(Ndx::Done, self.writer)?;
        let counts = [self.reader.total(), self.writer.total(), self.summary.size];
        let times = [self.list_time, self.send_time].map(|time| time.as_millis() as u64);
        let times = if self.agreed.protocol < 29 { &[][..] } else { &times };
        // A client has nobody to tell them to.
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
