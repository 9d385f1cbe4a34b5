//! Multiplexed messages: data and everything else on one connection.

use std::collections::VecDeque;
use std::io::{self, BufRead, IoSlice, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Patience, ReadWire, WriteWire};
use crate::client::Told;
use crate::error::RsyncError;

/// The number that is added to a message's tag on the wire.
const BASE: u32 = 7;
/// The most bytes of data in one message.
const DATA_MAX: usize = 32 << 10;
/// The most bytes of any other message.
const OTHER_MAX: usize = 16 << 10;
const HEADER_LEN: usize = 4;
/// The most notes that wait to be read.
const NOTES_MAX: usize = 1 << 16;
/// Without messages: the number of bytes after which the peer counts as alive. No keep-alive is shorter.
const HEARD_MIN: usize = 4;
/// The number of bytes that are read at once.
const READ_LEN: usize = 256 << 10;
/// The number of bytes that are sent at once while nobody waits for them. A system call costs as much as copying some
/// of them.
const SEND_LEN: usize = 128 << 10;
/// Data of at least this many bytes is sent without a copy.
const UNCOPIED_MIN: usize = 64 << 10;
/// The most pieces of data that are sent at once without a copy. With their headers they are far fewer than the system
/// allows (`IOV_MAX`).
const PIECES_MAX: usize = 64;

/// The kind of a message, with its number on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Tag {
    /// The bytes of the protocol.
    Data = 0,
    /// A file could not be transferred. The client continues, and ends with exit code 23.
    ErrorXfer = 1,
    /// Information for users.
    Info = 2,
    /// An error for users.
    Error = 3,
    /// A warning for users.
    Warning = 4,
    /// The errors so far, as bits.
    IoError = 22,
    /// The timeout of this side, in seconds.
    IoTimeout = 33,
    /// An empty message that shows the peer that this side is alive.
    Noop = 42,
    /// This side ends with an exit code.
    ErrorExit = 86,
    /// The receiver has a file, which the sender may remove.
    Success = 100,
    /// The receiver has deleted a file. The name of a directory ends with a zero byte.
    Deleted = 101,
    /// A requested file will not be sent.
    NoSend = 102,
}

impl Tag {
    /// Whether the message is for users only.
    fn is_shown(self) -> bool {
        matches!(self, Self::ErrorXfer | Self::Info | Self::Error | Self::Warning | Self::Deleted)
    }
}

/// Reads messages and returns their data.
pub struct MuxReader<R> {
    inner: R,
    buffer: Box<[u8]>,
    at: usize,
    end: usize,
    /// The bytes of data that are left in the present message.
    left: usize,
    /// The bytes that were received.
    total: u64,
    /// The notes that were received, each a tag with a number.
    notes: VecDeque<Note>,
    /// Where a client shows messages.
    told: Option<Arc<Told>>,
    /// The time limit, which each message renews.
    patience: Patience,
    /// Without messages: the bytes since the time limit was renewed.
    unheard: Option<usize>,
}

/// What a sender reports beside its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// The errors so far, as bits.
    IoError(u32),
    /// The file with this index will not be sent.
    NoSend(u32),
}

impl<R: Read> MuxReader<R> {
    /// Reads messages from `inner`.
    pub fn new(inner: R) -> Self {
        Self {
            inner,
            buffer: vec![0; READ_LEN].into(),
            at: 0,
            end: 0,
            left: 0,
            total: 0,
            notes: VecDeque::new(),
            told: None,
            patience: Patience::default(),
            unheard: None,
        }
    }

    /// Shows the messages of the other side.
    pub fn telling(mut self, told: Arc<Told>) -> Self {
        self.told = Some(told);
        self
    }

    /// Sets the time limit for the other side.
    pub fn patient(self, patience: Patience) -> Self {
        Self { patience, ..self }
    }

    /// Reads plain data without messages, as clients sent it before version 30.
    pub fn plain(inner: R) -> Self {
        // As one endless message.
        Self { left: usize::MAX, unheard: Some(0), ..Self::new(inner) }
    }

    /// The bytes that were received, including headers of messages.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Whether data or a note was received. Other messages are skipped. A caller that would wait for data after them
    /// must first send what the other side waits for.
    pub fn has_buffered(&self) -> bool {
        if self.left > 0 {
            return self.at < self.end;
        }
        if !self.notes.is_empty() {
            return true;
        }
        let mut rest = &self.buffer[self.at..self.end];
        while let Some((header, after)) = rest.split_first_chunk::<HEADER_LEN>() {
            let header = u32::from_le_bytes(*header);
            let len = (header & 0x00ff_ffff) as usize;
            if len > 0 && header >> 24 == BASE + u32::from(Tag::Data as u8) {
                return !after.is_empty();
            }
            rest = after.get(len..).unwrap_or_default();
        }
        false
    }

    /// Waits for data or a note. A note is returned as soon as it arrives, before the data after it.
    ///
    /// # Errors
    /// When the connection fails, or the peer ends.
    pub fn next_note(&mut self) -> io::Result<Option<Note>> {
        while self.left == 0 && self.notes.is_empty() {
            self.next_message()?;
        }
        Ok(self.notes.pop_front())
    }

    /// Reads bytes between messages, as names were sent before version 31.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn read_between(&mut self, out: &mut [u8]) -> io::Result<()> {
        match self.left {
            0 => self.raw(out),
            // The bytes belong to a message: the endless one, or one that is not finished.
            _ => self.read_exact(out),
        }
    }

    fn fill(&mut self) -> io::Result<()> {
        if self.at == self.end {
            self.at = 0;
            self.end = self.inner.read(&mut self.buffer)?;
            self.total += self.end as u64;
            if self.end == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(unheard) = &mut self.unheard {
                *unheard += self.end;
                if *unheard >= HEARD_MIN {
                    *unheard = 0;
                    self.patience.renew();
                }
            }
        }
        Ok(())
    }

    fn raw(&mut self, mut out: &mut [u8]) -> io::Result<()> {
        while !out.is_empty() {
            self.fill()?;
            let len = out.len().min(self.end - self.at);
            let (now, later) = out.split_at_mut(len);
            now.copy_from_slice(&self.buffer[self.at..self.at + len]);
            self.at += len;
            out = later;
        }
        Ok(())
    }

    /// Reads messages up to one with data.
    fn next_data(&mut self) -> io::Result<()> {
        while self.left == 0 {
            self.next_message()?;
        }
        Ok(())
    }

    fn next_message(&mut self) -> io::Result<()> {
        // The previous message is complete. A peer that was silent gets the full time for its next message.
        self.patience.renew();
        let mut header = [0; HEADER_LEN];
        self.raw(&mut header)?;
        self.patience.renew();
        let header = u32::from_le_bytes(header);
        let len = (header & 0x00ff_ffff) as usize;
        let tag = (header >> 24).checked_sub(BASE).ok_or_else(|| bad("a message of no kind"))?;
        if tag == u32::from(Tag::Data as u8) {
            self.left = len;
            return Ok(());
        }
        if len > OTHER_MAX {
            return Err(bad("a message too long"));
        }
        let mut body = vec![0; len];
        self.raw(&mut body)?;
        if let Some(told) = &self.told {
            told.message(tag, &body);
        }
        let number = body.as_slice().read_i32().map(i32::cast_unsigned);
        if tag == u32::from(Tag::ErrorExit as u8) {
            // A peer that ends in the middle has failed, whatever code it sends.
            let error = match number {
                Ok(code) if code != 0 => RsyncError::PeerExit { code },
                _ => RsyncError::protocol("the peer ended before its time"),
            };
            return Err(io::Error::other(error));
        }
        let note = match number {
            Ok(bits) if tag == u32::from(Tag::IoError as u8) => Some(Note::IoError(bits)),
            Ok(index) if tag == u32::from(Tag::NoSend as u8) => Some(Note::NoSend(index)),
            // Other messages of a receiver mean nothing to a sender.
            _ => None,
        };
        if self.notes.len() >= NOTES_MAX {
            return Err(bad("too many messages"));
        }
        self.notes.extend(note);
        Ok(())
    }
}

fn bad(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl<R: Read> Read for MuxReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        let data = self.fill_buf()?;
        let len = out.len().min(data.len());
        out[..len].copy_from_slice(&data[..len]);
        self.consume(len);
        Ok(len)
    }
}

/// Data of a message can be read without a copy.
impl<R: Read> BufRead for MuxReader<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.next_data()?;
        self.fill()?;
        let len = self.left.min(self.end - self.at);
        Ok(&self.buffer[self.at..self.at + len])
    }

    fn consume(&mut self, len: usize) {
        self.at += len;
        self.left -= len;
    }
}

/// Writes data and messages.
pub struct MuxWriter<W> {
    inner: W,
    /// Messages that were not sent yet, then an unfinished data message: room for its header, and its data so far.
    buffer: Vec<u8>,
    /// The start of the unfinished message.
    open: usize,
    total: u64,
    last_sent: Instant,
    /// The longest silence towards the peer: half of its timeout.
    quiet_max: Option<Duration>,
    pace: Option<Pace>,
    /// Where a client shows messages that a server would send.
    told: Option<Arc<Told>>,
    /// The version of the protocol, which decides what the peer understands.
    protocol: u8,
    /// Length of a message's header. 0 if there are no messages, only data.
    header_len: usize,
}

/// A limit of bytes per second.
struct Pace {
    bytes_per_second: u64,
    began: Instant,
    sent: u64,
}

/// Time without data is made up for by at most this much.
const BURST: Duration = Duration::from_millis(250);

impl Pace {
    fn wait(&mut self, len: usize) {
        self.sent += len as u64;
        let due = Duration::from_secs_f64(self.sent as f64 / self.bytes_per_second as f64);
        let elapsed = self.began.elapsed();
        match due.checked_sub(elapsed) {
            Some(early) => std::thread::sleep(early),
            None if elapsed - due > BURST => (self.began, self.sent) = (Instant::now(), 0),
            None => {}
        }
    }
}

/// The header of a message of `len` bytes.
fn header(tag: Tag, len: usize) -> [u8; HEADER_LEN] {
    ((BASE + u32::from(tag as u8)) << 24 | len as u32).to_le_bytes()
}

/// A message with the length of a piece of data, and the header of the message with that piece.
fn counted_head(piece: &[u8]) -> [u8; 3 * HEADER_LEN] {
    let words =
        [header(Tag::Data, HEADER_LEN), (piece.len() as u32).to_le_bytes(), header(Tag::Data, piece.len())];
    let mut head = [0; 3 * HEADER_LEN];
    head.as_chunks_mut::<HEADER_LEN>().0.copy_from_slice(&words);
    head
}

/// Like `Write::write_all`, for several pieces.
fn write_all_slices(to: &mut impl Write, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match to.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(len) => IoSlice::advance_slices(&mut slices, len),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl<W: Write> MuxWriter<W> {
    /// Writes messages to `inner`.
    pub fn new(inner: W) -> Self {
        Self {
            inner,
            buffer: vec![0; HEADER_LEN],
            open: 0,
            total: 0,
            last_sent: Instant::now(),
            quiet_max: None,
            pace: None,
            told: None,
            protocol: u8::MAX,
            header_len: HEADER_LEN,
        }
    }

    /// Writes plain data without messages, as clients sent it before version 30.
    pub fn plain(inner: W) -> Self {
        Self { header_len: 0, buffer: Vec::new(), ..Self::new(inner) }
    }

    /// Shows messages here instead of sending them.
    pub fn telling(mut self, told: Arc<Told>) -> Self {
        self.told = Some(told);
        self
    }

    /// Sets the version of the protocol. Before version 30 there were two kinds of messages besides data, errors and
    /// text. In version 29 there were also those for deleted files and for files that may be removed.
    pub fn set_protocol(&mut self, protocol: u8) {
        self.protocol = protocol;
    }

    /// Limits the bytes per second. 0 is no limit.
    pub fn limit(&mut self, bytes_per_second: u64) {
        self.pace = (bytes_per_second > 0).then(|| Pace { bytes_per_second, began: Instant::now(), sent: 0 });
    }

    /// Sets the time without data after which the peer gives up.
    pub fn set_peer_timeout(&mut self, timeout: Option<Duration>) {
        self.quiet_max = timeout.map(|timeout| timeout / 2);
    }

    /// The bytes that were sent, including headers of messages.
    pub fn total(&self) -> u64 {
        self.total + (self.buffer.len() - self.header_len) as u64
    }

    /// Finishes the open message with this tag, and begins another.
    fn end(&mut self, tag: Tag) {
        if self.header_len > 0 {
            let len = self.buffer.len() - self.open - HEADER_LEN;
            self.buffer[self.open..][..HEADER_LEN].copy_from_slice(&header(tag, len));
        }
        self.open = self.buffer.len();
        self.buffer.resize(self.open + self.header_len, 0);
    }

    fn end_data(&mut self) {
        if self.buffer.len() > self.open + self.header_len {
            self.end(Tag::Data);
        }
    }

    /// Writes data in pieces of `piece_len` bytes, each after its length. Large data is not copied.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn write_counted(&mut self, data: &[u8], piece_len: usize) -> io::Result<()> {
        if data.len() < UNCOPIED_MIN || piece_len > DATA_MAX || self.header_len == 0 || self.pace.is_some() {
            for piece in data.chunks(piece_len) {
                self.write_i32(piece.len() as i32)?;
                self.write_all(piece)?;
            }
            return Ok(());
        }
        self.end_data();
        for data in data.chunks(piece_len * PIECES_MAX) {
            // For each piece, a message with its length and the header of its own message.
            let heads: Vec<[u8; 12]> = data.chunks(piece_len).map(counted_head).collect();
            let pieces = heads.iter().zip(data.chunks(piece_len));
            let mut slices = vec![IoSlice::new(&self.buffer[..self.open])];
            slices.extend(pieces.flat_map(|(head, piece)| [IoSlice::new(head), IoSlice::new(piece)]));
            let len: usize = slices.iter().map(|slice| slice.len()).sum();
            write_all_slices(&mut self.inner, &mut slices)?;
            self.sent(len);
        }
        Ok(())
    }

    /// Sends all finished messages.
    fn send(&mut self) -> io::Result<()> {
        if self.open == 0 {
            return Ok(());
        }
        if let Some(pace) = &mut self.pace {
            pace.wait(self.open);
        }
        self.inner.write_all(&self.buffer[..self.open])?;
        self.sent(self.open);
        Ok(())
    }

    /// Records that the finished messages were sent. `len` includes what was sent with them.
    fn sent(&mut self, len: usize) {
        self.total += len as u64;
        self.buffer.drain(..self.open);
        self.open = 0;
        self.last_sent = Instant::now();
    }

    /// Sends a message, after all data before it.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn message(&mut self, tag: Tag, body: &[u8]) -> io::Result<()> {
        if let Some(told) = self.told.as_ref().filter(|_| tag.is_shown()) {
            told.message(u32::from(tag as u8), body);
            return Ok(());
        }
        if self.header_len == 0 {
            return Ok(());
        }
        self.end_data();
        let tag = match tag {
            _ if self.protocol >= 30 => tag,
            Tag::Success | Tag::Deleted if self.protocol == 29 => tag,
            Tag::Data | Tag::Noop => Tag::Data,
            Tag::ErrorXfer | Tag::Error => Tag::ErrorXfer,
            Tag::Info | Tag::Warning => Tag::Info,
            // Messages that the peer does not know are left out.
            Tag::IoError | Tag::IoTimeout | Tag::ErrorExit | Tag::Success | Tag::Deleted | Tag::NoSend => {
                return self.send();
            }
        };
        self.buffer.extend_from_slice(&body[..body.len().min(OTHER_MAX / 4)]);
        self.end(tag);
        self.send()
    }

    /// Sends data between messages, as names were sent before version 31.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn write_between(&mut self, data: &[u8]) -> io::Result<()> {
        self.end_data();
        self.send()?;
        self.inner.write_all(data)?;
        self.total += data.len() as u64;
        Ok(())
    }

    /// Sends a message with a number.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn message_number(&mut self, tag: Tag, number: u32) -> io::Result<()> {
        self.message(tag, &number.to_le_bytes())
    }

    /// Shows the peer that this side is alive. To be called during long work.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn keep_alive(&mut self) -> io::Result<()> {
        if self.quiet_max.is_some_and(|most| self.last_sent.elapsed() >= most) {
            if self.buffer.len() == self.header_len {
                self.message(Tag::Noop, &[])?;
            }
            self.flush()?;
        }
        Ok(())
    }
}

impl<W: Write> Write for MuxWriter<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let room = DATA_MAX + self.header_len + self.open - self.buffer.len();
        let len = data.len().min(room);
        self.buffer.extend_from_slice(&data[..len]);
        if len == room {
            self.end_data();
            // With a limit of bytes per second, data is sent as evenly as possible.
            if self.open >= SEND_LEN || self.pace.is_some() {
                self.send()?;
            }
        }
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.end_data();
        self.send()?;
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_read_as_written_whatever_is_between() {
        let mut wire = Vec::new();
        let mut writer = MuxWriter::new(&mut wire);
        let data: Vec<u8> = (0..100_000_u32).map(|i| i as u8).collect();
        writer.write_all(&data[..70_000]).unwrap();
        writer.message(Tag::Info, b"hello\n").unwrap();
        writer.write_all(&data[70_000..]).unwrap();
        writer.flush().unwrap();
        let total = writer.total();
        drop(writer);
        assert_eq!(total, wire.len() as u64);
        let mut read = vec![0; data.len()];
        let mut reader = MuxReader::new(wire.as_slice());
        reader.read_exact(&mut read).unwrap();
        assert_eq!(read, data);
        assert_eq!(reader.total(), total);
    }

    #[test]
    fn data_is_sent_before_there_is_much_of_it() {
        let mut writer = MuxWriter::new(Vec::new());
        let mut sent = 0;
        for _ in 0..100 {
            writer.write_all(&[7; 10_000]).unwrap();
            assert!(writer.buffer.len() < SEND_LEN + DATA_MAX + 4 * HEADER_LEN);
            sent += 10_000;
            let headers = sent / DATA_MAX * HEADER_LEN;
            assert_eq!(writer.total(), (sent + headers) as u64);
        }
        assert!(writer.inner.len() > sent - SEND_LEN - DATA_MAX);
        writer.limit(1 << 40);
        writer.write_all(&[7; DATA_MAX]).unwrap();
        assert!(writer.buffer.len() < DATA_MAX + HEADER_LEN);
    }

    /// A writer that accepts only a few bytes at a time, from several pieces.
    #[derive(Default)]
    struct Reluctant(Vec<u8>);

    impl Write for Reluctant {
        fn write(&mut self, data: &[u8]) -> io::Result<usize> {
            self.write_vectored(&[IoSlice::new(data)])
        }
        fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
            let before = self.0.len();
            for slice in slices.iter().take(3) {
                self.0.extend_from_slice(&slice[..slice.len().min(10_007)]);
                if slice.len() > 10_007 {
                    break;
                }
            }
            Ok(self.0.len() - before)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_is_not_copied_arrives_as_what_is() {
        let data: Vec<u8> = (0..5_000_000_u32).map(|i| (i >> 4) as u8).collect();
        let sizes = [1, 100, UNCOPIED_MIN, UNCOPIED_MIN + 1, 256 << 10, 4 << 20, 5];
        for plain in [false, true] {
            let mut wire = Reluctant::default();
            let mut writer = if plain { MuxWriter::plain(&mut wire) } else { MuxWriter::new(&mut wire) };
            let mut rest = &data[..];
            let mut expected = Vec::new();
            for size in sizes {
                let (now, later) = rest.split_at(size);
                rest = later;
                writer.write_all(b"between").unwrap();
                expected.extend_from_slice(b"between");
                writer.write_counted(now, 32 << 10).unwrap();
                for piece in now.chunks(32 << 10) {
                    expected.extend_from_slice(&(piece.len() as u32).to_le_bytes());
                    expected.extend_from_slice(piece);
                }
            }
            writer.flush().unwrap();
            let total = writer.total();
            drop(writer);
            assert_eq!(total, wire.0.len() as u64);
            let mut reader =
                if plain { MuxReader::plain(wire.0.as_slice()) } else { MuxReader::new(wire.0.as_slice()) };
            let mut read = vec![0; expected.len()];
            reader.read_exact(&mut read).unwrap();
            assert!(read == expected && !reader.has_buffered());
        }
    }

    #[test]
    fn messages_without_data_are_nothing_that_has_come() {
        let data = b"\x02\0\0\x07ab";
        let text = b"\x01\0\0\x09w";
        let (none, noop, part) = (b"\0\0\0\x07", b"\0\0\0\x31", b"\x05\0");
        for (after, expected) in [
            (vec![&none[..]], false),
            (vec![&noop[..], &none[..]], false),
            (vec![&text[..], &part[..]], false),
            (vec![&text[..], &none[..], &data[..]], true),
            (vec![&none[..], &data[..5]], true),
            (vec![&data[..4]], false),
            (vec![], false),
        ] {
            let wire = [&data[..], &after.concat()].concat();
            let mut reader = MuxReader::new(wire.as_slice());
            let mut read = [0; 2];
            reader.read_exact(&mut read[..1]).unwrap();
            assert!(reader.has_buffered(), "of the message that is read");
            reader.read_exact(&mut read[1..]).unwrap();
            assert_eq!((&read, reader.has_buffered()), (b"ab", expected), "{after:?}");
        }
    }

    #[test]
    fn data_alone_has_no_headers() {
        let data: Vec<u8> = (0..1_000_000_u32).map(|i| (i >> 3) as u8).collect();
        let mut writer = MuxWriter::plain(Vec::new());
        for piece in data.chunks(70_001) {
            writer.write_all(piece).unwrap();
            writer.message(Tag::Info, b"nobody hears this").unwrap();
        }
        writer.flush().unwrap();
        assert_eq!((writer.total(), writer.inner == data), (data.len() as u64, true));
    }

    #[test]
    fn old_peers_hear_what_they_know() {
        let mut wire = Vec::new();
        let mut writer = MuxWriter::new(&mut wire);
        writer.set_protocol(29);
        writer.message(Tag::Error, b"e").unwrap();
        writer.message_number(Tag::NoSend, 7).unwrap();
        writer.message(Tag::Warning, b"w").unwrap();
        writer.message(Tag::Deleted, b"d").unwrap();
        writer.set_protocol(28);
        writer.message(Tag::Deleted, b"d").unwrap();
        writer.message(Tag::Noop, b"").unwrap();
        drop(writer);
        assert_eq!(wire, *b"\x01\0\0\x08e\x01\0\0\x09w\x01\0\0\x6cd\0\0\0\x07");
        let mut read = [0; 12];
        MuxReader::plain(wire.as_slice()).read_exact(&mut read).unwrap();
        assert_eq!(read, wire[..12]);
    }

    #[test]
    fn impossible_messages_are_refused() {
        for wire in [&[0, 0, 0, 1][..], &[0xff, 0xff, 0xff, 9], &[1, 0, 0, 7], &[4, 0, 0, 93, 7, 0, 0, 0]] {
            assert!(MuxReader::new(wire).read_u8().is_err(), "{wire:x?}");
        }
    }
}
