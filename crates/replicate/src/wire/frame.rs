//! Greetings and frames.

use std::io::{Read, Write};

use super::WireError;

/// Version of the protocol.
pub const VERSION: u32 = 1;
/// The highest level of packing.
pub const LEVEL_MAX: u8 = 19;
/// Most channels at once.
pub const CHANNELS_MAX: usize = 64;

const MAGIC: [u8; 8] = *b"SNOWSYNC";
const HELLO_LEN: usize = 16;
const HEADER_LEN: usize = 12;
/// Most bytes in a DATA frame.
pub(super) const DATA_MAX: usize = 256 * 1024;
/// Most bytes of a request or a result.
pub(super) const MESSAGE_MAX: usize = 4 * 1024 * 1024;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Open,
    Data,
    Credit,
    End,
    Result,
    Cancel,
    Alive,
    Packed,
}

/// A frame, without its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) channel: u32,
    pub(super) len: usize,
}

impl Kind {
    fn code(self) -> u8 {
        match self {
            Self::Open => 1,
            Self::Data => 2,
            Self::Credit => 3,
            Self::End => 4,
            Self::Result => 5,
            Self::Cancel => 6,
            Self::Alive => 7,
            Self::Packed => 8,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        use Kind::{Alive, Cancel, Credit, Data, End, Open, Packed, Result};
        [Open, Data, Credit, End, Result, Cancel, Alive, Packed].into_iter().find(|kind| kind.code() == code)
    }

    fn accepts(self, len: usize) -> bool {
        match self {
            Self::Open | Self::Result => (1..=MESSAGE_MAX).contains(&len),
            Self::Data | Self::Packed => (1..=DATA_MAX).contains(&len),
            Self::Credit => len == 4,
            Self::End | Self::Cancel | Self::Alive => len == 0,
        }
    }
}

/// The features that a side has and wants, or that both sides have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Greeting {
    /// It gives signs of life.
    pub(super) shows_life: bool,
    /// It packs DATA, and takes it packed.
    pub(super) packs: bool,
    /// How the client wants DATA packed: a level of zstd, 0 for not at all.
    pub(super) level: u8,
}

impl Greeting {
    const SHOWS_LIFE: u16 = 1;
    const PACKS: u16 = 2;

    fn encode(self) -> [u8; 4] {
        let [a, b] = (u16::from(self.shows_life) * Self::SHOWS_LIFE + u16::from(self.packs) * Self::PACKS)
            .to_le_bytes();
        [a, b, self.level, 0]
    }

    fn decode([a, b, level, _]: [u8; 4]) -> Self {
        let features = u16::from_le_bytes([a, b]);
        let has = |feature| features & feature != 0;
        Self { shows_life: has(Self::SHOWS_LIFE), packs: has(Self::PACKS), level: level.min(LEVEL_MAX) }
    }

    /// What both can do. The level is the client's: a server wants none.
    pub(super) fn agree(self, other: Self) -> Self {
        Self {
            shows_life: self.shows_life && other.shows_life,
            packs: self.packs && other.packs,
            level: self.level.max(other.level),
        }
    }
}

pub(super) fn write_hello(out: &mut dyn Write, greeting: Greeting) -> Result<(), WireError> {
    let mut hello = [0; HELLO_LEN];
    hello[..8].copy_from_slice(&MAGIC);
    hello[8..12].copy_from_slice(&VERSION.to_le_bytes());
    hello[12..].copy_from_slice(&greeting.encode());
    out.write_all(&hello)?;
    out.flush()?;
    Ok(())
}

pub(super) fn read_hello(input: &mut dyn Read) -> Result<Greeting, WireError> {
    let mut hello = [0; HELLO_LEN];
    let mut read = 0;
    while read < HELLO_LEN {
        let more = match input.read(&mut hello[read..]) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            other => other?,
        };
        if more == 0 {
            break;
        }
        read += more;
        // The output of a shell can be shorter than a greeting, with nothing after it.
        let compared = read.min(MAGIC.len());
        if hello[..compared] != MAGIC[..compared] {
            return Err(WireError::NotSync { said: String::from_utf8_lossy(&hello[..read]).into_owned() });
        }
    }
    if read < HELLO_LEN {
        return Err(WireError::Closed);
    }
    let [.., a, b, c, d, e, f, g, h] = hello;
    match u32::from_le_bytes([a, b, c, d]) {
        VERSION => Ok(Greeting::decode([e, f, g, h])),
        theirs => Err(WireError::Version { theirs, ours: VERSION }),
    }
}

pub(super) fn encode_frame(kind: Kind, channel: u32, payload: &[u8]) -> Result<Vec<u8>, WireError> {
    let len = u32::try_from(payload.len())
        .ok()
        .filter(|_| kind.accepts(payload.len()))
        .ok_or_else(|| WireError::protocol(format!("a frame of {} bytes was to be sent", payload.len())))?;
    let mut frame = Vec::with_capacity(HEADER_LEN + payload.len());
    frame.extend_from_slice(&[kind.code(), 0, 0, 0]);
    frame.extend_from_slice(&channel.to_le_bytes());
    frame.extend_from_slice(&len.to_le_bytes());
    frame.extend_from_slice(payload);
    Ok(frame)
}

/// The next frame; `None` at the end, which may only come between frames.
pub(super) fn read_frame(input: &mut dyn Read, payload: &mut Vec<u8>) -> Result<Option<Header>, WireError> {
    let mut header = [0; HEADER_LEN];
    loop {
        match input.read(&mut header[..1]) {
            Ok(0) => return Ok(None),
            Ok(_) => break,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    input.read_exact(&mut header[1..])?;
    let [code, zeros @ .., c0, c1, c2, c3, l0, l1, l2, l3] = header;
    let kind = Kind::from_code(code)
        .filter(|_| zeros == [0; 3])
        .ok_or_else(|| WireError::protocol(format!("a frame of unknown kind {code}")))?;
    let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    if !kind.accepts(len) {
        return Err(WireError::protocol(format!("a frame of kind {code} with {len} bytes")));
    }
    payload.clear();
    // Memory is allocated for the bytes that have arrived, not for the announced length.
    let read = input.take(len as u64).read_to_end(payload)?;
    if read < len {
        return Err(WireError::Closed);
    }
    Ok(Some(Header { kind, channel: u32::from_le_bytes([c0, c1, c2, c3]), len }))
}
