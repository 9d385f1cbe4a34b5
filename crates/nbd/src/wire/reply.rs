//! The replies of the transmission phase, and their encoding in each style.

use super::Style;
use super::consts::{
    BASE_ALLOCATION_ID, EXTENDED_REPLY_MAGIC, SIMPLE_REPLY_MAGIC, STATE_HOLE, STATE_ZERO,
    STRUCTURED_REPLY_MAGIC, chunk,
};
use crate::errno::Errno;
use crate::export::Extent;

/// Maximum length of messages to clients, in bytes. The protocol allows 4,096.
const MAX_MESSAGE: usize = 512;

/// The request to which a reply belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) style: Style,
    /// The request's cookie.
    pub(crate) cookie: u64,
    /// The request's offset.
    pub(crate) offset: u64,
}

/// The result of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Success without data.
    Done,
    Error(ReplyError),
    /// The data of a read: pieces in order, without gaps. In [`Style::Simple`] there is one piece of data.
    Read(Vec<Piece>),
    /// The extents of `base:allocation` from the request's offset on; at least one. In [`Style::Structured`], each is
    /// shorter than 4 GiB.
    Status(Vec<Extent>),
}

/// An error for the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReplyError {
    pub(crate) errno: Errno,
    /// A message for users.
    pub(crate) message: String,
    /// The offset in the export, if it is known more precisely than by the request.
    pub(crate) at: Option<u64>,
}

impl ReplyError {
    pub(crate) fn new(errno: Errno, message: impl Into<String>) -> Self {
        Self { errno, message: message.into(), at: None }
    }
}

/// A part of the data of a read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Data(Data),
    /// Zeros, which are not sent.
    Hole {
        offset: u64,
        length: u32,
    },
}

/// Bytes read from an export. The buffer has room for the head before them, so that they are sent without being copied.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Data {
    offset: u64,
    room: usize,
    buffer: Vec<u8>,
}

impl Data {
    /// A buffer of zeros to read into.
    pub(crate) fn new(style: Style, offset: u64, length: u32) -> Self {
        let room = match style {
            Style::Simple => SIMPLE_HEAD,
            Style::Structured => STRUCTURED_HEAD + 8,
            Style::Extended => EXTENDED_HEAD + 8,
        };
        Self { offset, room, buffer: vec![0; room + length as usize] }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.room..]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.room..]
    }

    fn into_frame(mut self, address: Address, flags: u16) -> Vec<u8> {
        let head = if address.style == Style::Simple {
            simple_head(address.cookie, 0).to_vec()
        } else {
            let length = self.buffer.len() - self.room + 8;
            let mut head = chunk_head(address, flags, chunk::OFFSET_DATA, length);
            head.extend_from_slice(&self.offset.to_be_bytes());
            head
        };
        self.buffer[..self.room].copy_from_slice(&head);
        self.buffer
    }
}

const SIMPLE_HEAD: usize = 16;
const STRUCTURED_HEAD: usize = 20;
const EXTENDED_HEAD: usize = 32;

fn simple_head(cookie: u64, errno: u32) -> [u8; SIMPLE_HEAD] {
    let mut head = [0; SIMPLE_HEAD];
    head[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    head[4..8].copy_from_slice(&errno.to_be_bytes());
    head[8..].copy_from_slice(&cookie.to_be_bytes());
    head
}

/// `length` is at most a few bytes more than the largest request.
fn chunk_head(address: Address, flags: u16, kind: u16, length: usize) -> Vec<u8> {
    let mut head = Vec::with_capacity(EXTENDED_HEAD + 8);
    let extended = address.style == Style::Extended;
    let magic = if extended { EXTENDED_REPLY_MAGIC } else { STRUCTURED_REPLY_MAGIC };
    head.extend_from_slice(&magic.to_be_bytes());
    head.extend_from_slice(&flags.to_be_bytes());
    head.extend_from_slice(&kind.to_be_bytes());
    head.extend_from_slice(&address.cookie.to_be_bytes());
    if extended {
        head.extend_from_slice(&address.offset.to_be_bytes());
        head.extend_from_slice(&(length as u64).to_be_bytes());
    } else {
        let length = u32::try_from(length).expect("chunks are not longer than the largest request");
        head.extend_from_slice(&length.to_be_bytes());
    }
    head
}

fn whole_chunk(address: Address, flags: u16, kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = chunk_head(address, flags, kind, payload.len());
    out.extend_from_slice(payload);
    out
}

impl Reply {
    /// The encoded reply, in frames that must be sent in this order without other bytes between them.
    pub(crate) fn into_frames(self, address: Address) -> Vec<Vec<u8>> {
        if address.style == Style::Simple {
            return vec![self.into_simple(address)];
        }
        match self {
            Self::Done => vec![whole_chunk(address, chunk::FLAG_DONE, chunk::NONE, &[])],
            Self::Error(error) => vec![error_chunk(address, &error)],
            Self::Status(extents) => vec![status_chunk(address, &extents)],
            Self::Read(pieces) => {
                let last = pieces.len().saturating_sub(1);
                let frame = |(index, piece)| {
                    let flags = if index == last { chunk::FLAG_DONE } else { 0 };
                    match piece {
                        Piece::Data(data) => Data::into_frame(data, address, flags),
                        Piece::Hole { offset, length } => hole_chunk(address, flags, offset, length),
                    }
                };
                pieces.into_iter().enumerate().map(frame).collect()
            }
        }
    }

    fn into_simple(self, address: Address) -> Vec<u8> {
        match self {
            Self::Done => simple_head(address.cookie, 0).to_vec(),
            Self::Error(error) => simple_head(address.cookie, error.errno.code()).to_vec(),
            Self::Read(mut pieces) => match pieces.pop() {
                Some(Piece::Data(data)) if pieces.is_empty() => data.into_frame(address, 0),
                _ => unreachable!("a simple reply to a read is one piece of data"),
            },
            Self::Status(_) => unreachable!("block status needs chunks"),
        }
    }
}

fn hole_chunk(address: Address, flags: u16, offset: u64, length: u32) -> Vec<u8> {
    let mut payload = offset.to_be_bytes().to_vec();
    payload.extend_from_slice(&length.to_be_bytes());
    whole_chunk(address, flags, chunk::OFFSET_HOLE, &payload)
}

fn error_chunk(address: Address, error: &ReplyError) -> Vec<u8> {
    let message = &error.message[..error.message.floor_char_boundary(MAX_MESSAGE)];
    let length = u16::try_from(message.len()).expect("messages are cut");
    let mut payload = error.errno.code().to_be_bytes().to_vec();
    payload.extend_from_slice(&length.to_be_bytes());
    payload.extend_from_slice(message.as_bytes());
    let kind = match error.at {
        None => chunk::ERROR,
        Some(offset) => {
            payload.extend_from_slice(&offset.to_be_bytes());
            chunk::ERROR_OFFSET
        }
    };
    whole_chunk(address, chunk::FLAG_DONE, kind, &payload)
}

fn status_chunk(address: Address, extents: &[Extent]) -> Vec<u8> {
    let flags = |e: &Extent| if e.hole { STATE_HOLE } else { 0 } | if e.zero { STATE_ZERO } else { 0 };
    let mut payload = BASE_ALLOCATION_ID.to_be_bytes().to_vec();
    if address.style == Style::Extended {
        let count = u32::try_from(extents.len()).expect("the count of extents is bounded");
        payload.extend_from_slice(&count.to_be_bytes());
        for extent in extents {
            payload.extend_from_slice(&extent.length.to_be_bytes());
            payload.extend_from_slice(&u64::from(flags(extent)).to_be_bytes());
        }
        whole_chunk(address, chunk::FLAG_DONE, chunk::BLOCK_STATUS_EXT, &payload)
    } else {
        for extent in extents {
            let length = u32::try_from(extent.length).expect("no longer than the request");
            payload.extend_from_slice(&length.to_be_bytes());
            payload.extend_from_slice(&flags(extent).to_be_bytes());
        }
        whole_chunk(address, chunk::FLAG_DONE, chunk::BLOCK_STATUS, &payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COOKIE: u64 = 0x1112_1314_1516_1718;

    fn frames(style: Style, reply: Reply) -> Vec<Vec<u8>> {
        reply.into_frames(Address { style, cookie: COOKIE, offset: 0x2000 })
    }

    fn bytes(style: Style, reply: Reply) -> Vec<u8> {
        frames(style, reply).concat()
    }

    fn data(style: Style, offset: u64, content: &[u8]) -> Piece {
        let mut data = Data::new(style, offset, u32::try_from(content.len()).unwrap());
        data.bytes_mut().copy_from_slice(content);
        Piece::Data(data)
    }

    fn structured_head(flags: u8, kind: [u8; 2], length: u8) -> Vec<u8> {
        let mut head = vec![0x66, 0x8e, 0x33, 0xef, 0, flags, kind[0], kind[1]];
        head.extend_from_slice(&COOKIE.to_be_bytes());
        head.extend_from_slice(&[0, 0, 0, length]);
        head
    }

    fn extended_head(flags: u8, kind: [u8; 2], length: u8) -> Vec<u8> {
        let mut head = vec![0x6e, 0x8a, 0x27, 0x8c, 0, flags, kind[0], kind[1]];
        head.extend_from_slice(&COOKIE.to_be_bytes());
        head.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, length]);
        head
    }

    #[test]
    fn simple_replies() {
        let head = |error: u8| {
            let mut head = vec![0x67, 0x44, 0x66, 0x98, 0, 0, 0, error];
            head.extend_from_slice(&COOKIE.to_be_bytes());
            head
        };
        assert_eq!(bytes(Style::Simple, Reply::Done), head(0));
        let error = Reply::Error(ReplyError::new(Errno::NoSpc, "full"));
        assert_eq!(bytes(Style::Simple, error), head(28));
        let read = Reply::Read(vec![data(Style::Simple, 0x2000, b"abc")]);
        assert_eq!(bytes(Style::Simple, read), [head(0), b"abc".to_vec()].concat());
    }

    #[test]
    fn read_replies_in_chunks() {
        let pieces = |style| {
            Reply::Read(vec![data(style, 0x2000, b"abc"), Piece::Hole { offset: 0x2003, length: 0x10000 }])
        };
        let first = [&[0, 0, 0, 0, 0, 0, 0x20, 0][..], b"abc"].concat();
        let second = [0, 0, 0, 0, 0, 0, 0x20, 3, 0, 1, 0, 0];
        let expected =
            [&structured_head(0, [0, 1], 11)[..], &first, &structured_head(1, [0, 2], 12), &second].concat();
        assert_eq!(bytes(Style::Structured, pieces(Style::Structured)), expected);
        let expected =
            [&extended_head(0, [0, 1], 11)[..], &first, &extended_head(1, [0, 2], 12), &second].concat();
        assert_eq!(bytes(Style::Extended, pieces(Style::Extended)), expected);
        // one frame for each piece in every style, so nothing is copied
        assert_eq!(frames(Style::Extended, pieces(Style::Extended)).len(), 2);
    }

    #[test]
    fn errors_in_chunks() {
        let plain = Reply::Error(ReplyError::new(Errno::Perm, "no"));
        let expected = [&structured_head(1, [0x80, 1], 8)[..], &[0, 0, 0, 1, 0, 2], b"no"].concat();
        assert_eq!(bytes(Style::Structured, plain), expected);
        let placed = Reply::Error(ReplyError { at: Some(0x2004), ..ReplyError::new(Errno::Io, "no") });
        let expected =
            [&extended_head(1, [0x80, 2], 16)[..], &[0, 0, 0, 5, 0, 2], b"no", &[0, 0, 0, 0, 0, 0, 0x20, 4]]
                .concat();
        assert_eq!(bytes(Style::Extended, placed), expected);
        let long = Reply::Error(ReplyError::new(Errno::Io, "ä".repeat(4000)));
        assert_eq!(bytes(Style::Structured, long).len(), STRUCTURED_HEAD + 6 + MAX_MESSAGE);
    }

    #[test]
    fn status_in_chunks() {
        let extents = || {
            Reply::Status(vec![
                Extent { length: 16, hole: true, zero: true },
                Extent { length: 32, hole: false, zero: false },
            ])
        };
        let expected = [
            &structured_head(1, [0, 5], 20)[..],
            &[0, 0, 0, 1, 0, 0, 0, 16, 0, 0, 0, 3, 0, 0, 0, 32, 0, 0, 0, 0],
        ];
        assert_eq!(bytes(Style::Structured, extents()), expected.concat());
        let mut expected = extended_head(1, [0, 6], 40);
        expected.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 2]);
        for word in [16u64, 3, 32, 0] {
            expected.extend_from_slice(&word.to_be_bytes());
        }
        assert_eq!(bytes(Style::Extended, extents()), expected);
    }
}
