//! A client that sends exactly what the test specifies and shows exactly what the server sends. It follows proto.md and
//! shares no code with the server.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use snowmelt_nbd::Endpoint;

pub const OPT_EXPORT_NAME: u32 = 1;
pub const OPT_ABORT: u32 = 2;
pub const OPT_LIST: u32 = 3;
pub const OPT_STARTTLS: u32 = 5;
pub const OPT_INFO: u32 = 6;
pub const OPT_GO: u32 = 7;
pub const OPT_STRUCTURED: u32 = 8;
pub const OPT_LIST_META: u32 = 9;
pub const OPT_SET_META: u32 = 10;
pub const OPT_EXTENDED: u32 = 11;

pub const ACK: u32 = 1;
pub const SERVER: u32 = 2;
pub const INFO: u32 = 3;
pub const META: u32 = 4;
pub const ERR_UNSUP: u32 = 0x8000_0001;
pub const ERR_POLICY: u32 = 0x8000_0002;
pub const ERR_INVALID: u32 = 0x8000_0003;
pub const ERR_TLS_REQD: u32 = 0x8000_0005;
pub const ERR_UNKNOWN: u32 = 0x8000_0006;
pub const ERR_TOO_BIG: u32 = 0x8000_0009;
pub const ERR_EXT_HEADER_REQD: u32 = 0x8000_000a;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const WRITE_ZEROES: u16 = 6;
pub const BLOCK_STATUS: u16 = 7;

pub const FUA: u16 = 1;
pub const NO_HOLE: u16 = 2;
pub const DF: u16 = 4;
pub const REQ_ONE: u16 = 8;
pub const FAST_ZERO: u16 = 16;
pub const PAYLOAD_LEN: u16 = 32;

pub const EPERM: u32 = 1;
pub const EIO: u32 = 5;
pub const EINVAL: u32 = 22;
pub const ENOSPC: u32 = 28;
pub const EOVERFLOW: u32 = 75;
pub const ENOTSUP: u32 = 95;

/// The transport of a client.
pub trait Wire: Read + Write + Send {}
impl<T: Read + Write + Send> Wire for T {}

/// How requests and replies are framed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Simple,
    Structured,
    Extended,
}

/// A reply to an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionReply {
    pub option: u32,
    pub kind: u32,
    pub data: Vec<u8>,
}

/// A reply to a request, assembled from its chunks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reply {
    pub cookie: u64,
    pub error: u32,
    pub message: String,
    /// The offset of the error, for errors that have one.
    pub at: Option<u64>,
    /// Offset and content.
    pub data: Vec<(u64, Vec<u8>)>,
    /// Offset and length.
    pub holes: Vec<(u64, u32)>,
    /// Length and flags.
    pub extents: Vec<(u64, u64)>,
}

/// A connection.
pub struct Client {
    pub wire: Box<dyn Wire>,
    pub style: Style,
    /// Length of each read request in flight, by cookie. It is needed to parse simple replies.
    reads: Vec<(u64, u32)>,
}

pub fn connect(endpoint: &Endpoint) -> Box<dyn Wire> {
    let limit = Some(Duration::from_secs(20));
    match endpoint {
        Endpoint::Tcp(address) => {
            let stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(limit).unwrap();
            stream.set_write_timeout(limit).unwrap();
            Box::new(stream)
        }
        Endpoint::Unix(path) => {
            let stream = UnixStream::connect(path).unwrap();
            stream.set_read_timeout(limit).unwrap();
            stream.set_write_timeout(limit).unwrap();
            Box::new(stream)
        }
    }
}

pub fn counted(text: &[u8]) -> Vec<u8> {
    [&u32::try_from(text.len()).unwrap().to_be_bytes()[..], text].concat()
}

/// The data of INFO and GO.
pub fn info_data(name: &str, items: &[u16]) -> Vec<u8> {
    let mut data = counted(name.as_bytes());
    data.extend_from_slice(&u16::try_from(items.len()).unwrap().to_be_bytes());
    items.iter().for_each(|item| data.extend_from_slice(&item.to_be_bytes()));
    data
}

/// The data of LIST_META_CONTEXT and SET_META_CONTEXT.
pub fn meta_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = counted(name.as_bytes());
    data.extend_from_slice(&u32::try_from(queries.len()).unwrap().to_be_bytes());
    queries.iter().for_each(|query| data.extend(counted(query.as_bytes())));
    data
}

impl Client {
    /// Connects with these flags.
    pub fn greet(mut wire: Box<dyn Wire>, flags: u32) -> Self {
        let mut greeting = [0; 18];
        wire.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting, b"NBDMAGICIHAVEOPT\x00\x03");
        wire.write_all(&flags.to_be_bytes()).unwrap();
        Self { wire, style: Style::Simple, reads: Vec::new() }
    }

    /// Connects with the flags of current clients.
    pub fn new(endpoint: &Endpoint) -> Self {
        Self::greet(connect(endpoint), 3)
    }

    /// A client in the transmission phase of an export. Block status is negotiated if the style supports it.
    pub fn open(endpoint: &Endpoint, name: &str, style: Style) -> Self {
        let mut client = Self::new(endpoint);
        match style {
            Style::Simple => {}
            Style::Structured => assert_eq!(client.ask(OPT_STRUCTURED, &[]).0, ACK),
            Style::Extended => assert_eq!(client.ask(OPT_EXTENDED, &[]).0, ACK),
        }
        if style != Style::Simple {
            assert_eq!(client.ask(OPT_SET_META, &meta_data(name, &["base:allocation"])).0, ACK);
        }
        assert_eq!(client.ask(OPT_GO, &info_data(name, &[])).0, ACK);
        client.style = style;
        client
    }

    pub fn send_option(&mut self, option: u32, data: &[u8]) {
        let mut out = b"IHAVEOPT".to_vec();
        out.extend_from_slice(&option.to_be_bytes());
        out.extend(counted(data));
        self.wire.write_all(&out).unwrap();
    }

    pub fn option_reply(&mut self) -> io::Result<OptionReply> {
        let mut head = [0; 20];
        self.wire.read_exact(&mut head)?;
        assert_eq!(head[..8], 0x0003_e889_0455_65a9_u64.to_be_bytes());
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        let mut data = vec![0; word(16) as usize];
        self.wire.read_exact(&mut data)?;
        Ok(OptionReply { option: word(8), kind: word(12), data })
    }

    /// Sends an option. Returns the type of the last reply, and the replies before it.
    pub fn ask(&mut self, option: u32, data: &[u8]) -> (u32, Vec<OptionReply>) {
        self.send_option(option, data);
        let mut replies = Vec::new();
        loop {
            let reply = self.option_reply().unwrap();
            assert_eq!(reply.option, option);
            if reply.kind == ACK || reply.kind & (1 << 31) != 0 {
                return (reply.kind, replies);
            }
            replies.push(reply);
        }
    }

    /// The head of a request in this connection's style.
    pub fn head(&self, command: u16, flags: u16, cookie: u64, offset: u64, length: u64) -> Vec<u8> {
        let extended = self.style == Style::Extended;
        let magic: u32 = if extended { 0x21e4_1c71 } else { 0x2560_9513 };
        let mut out = magic.to_be_bytes().to_vec();
        out.extend_from_slice(&flags.to_be_bytes());
        out.extend_from_slice(&command.to_be_bytes());
        out.extend_from_slice(&cookie.to_be_bytes());
        out.extend_from_slice(&offset.to_be_bytes());
        if extended {
            out.extend_from_slice(&length.to_be_bytes());
        } else {
            out.extend_from_slice(&u32::try_from(length).unwrap().to_be_bytes());
        }
        out
    }

    /// Sends a request with its payload, if any.
    pub fn send(&mut self, command: u16, flags: u16, cookie: u64, offset: u64, length: u64, payload: &[u8]) {
        let payload_flag = if command == WRITE && self.style == Style::Extended { PAYLOAD_LEN } else { 0 };
        let mut out = self.head(command, flags | payload_flag, cookie, offset, length);
        out.extend_from_slice(payload);
        if command == READ {
            self.reads.push((cookie, u32::try_from(length).unwrap()));
        }
        self.wire.write_all(&out).unwrap();
    }

    fn bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.wire.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn u16(&mut self) -> io::Result<u16> {
        self.bytes().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> io::Result<u32> {
        self.bytes().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> io::Result<u64> {
        self.bytes().map(u64::from_be_bytes)
    }

    /// The next complete reply. The chunks of several replies must not be mixed, which this server never does.
    pub fn reply(&mut self) -> io::Result<Reply> {
        let mut reply = Reply::default();
        loop {
            let magic = self.u32()?;
            if self.style == Style::Simple {
                assert_eq!(magic, 0x6744_6698);
                reply.error = self.u32()?;
                reply.cookie = self.u64()?;
                let index = self.reads.iter().position(|(cookie, _)| *cookie == reply.cookie);
                if let Some((_, length)) = index.map(|index| self.reads.swap_remove(index))
                    && reply.error == 0
                {
                    let mut data = vec![0; length as usize];
                    self.wire.read_exact(&mut data)?;
                    reply.data.push((0, data));
                }
                return Ok(reply);
            }
            assert_eq!(magic, if self.style == Style::Extended { 0x6e8a_278c } else { 0x668e_33ef });
            let (flags, kind) = (self.u16()?, self.u16()?);
            reply.cookie = self.u64()?;
            let length = if self.style == Style::Extended {
                self.u64()?;
                self.u64()?
            } else {
                u64::from(self.u32()?)
            };
            let mut payload = vec![0; usize::try_from(length).unwrap()];
            self.wire.read_exact(&mut payload)?;
            reply.take(kind, &payload);
            if flags & 1 != 0 {
                return Ok(reply);
            }
        }
    }

    /// Sends a request and waits for its reply. No other request may be in flight.
    pub fn call(&mut self, command: u16, flags: u16, offset: u64, length: u64, payload: &[u8]) -> Reply {
        self.send(command, flags, 0x5eed, offset, length, payload);
        let reply = self.reply().unwrap();
        assert_eq!(reply.cookie, 0x5eed);
        reply
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> Reply {
        self.call(WRITE, 0, offset, data.len() as u64, data)
    }

    /// Reads bytes. Holes are filled with zeros.
    pub fn read(&mut self, offset: u64, length: u32) -> Vec<u8> {
        let reply = self.call(READ, 0, offset, u64::from(length), &[]);
        assert_eq!(reply.error, 0, "{}", reply.message);
        reply.content(offset, length)
    }

    /// Whether the server has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        match self.wire.read(&mut [0]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        }
    }
}

impl Reply {
    fn take(&mut self, kind: u16, payload: &[u8]) {
        let word = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_be_bytes(payload[at..at + 8].try_into().unwrap());
        match kind {
            0 => assert!(payload.is_empty()),
            1 => self.data.push((long(0), payload[8..].to_vec())),
            2 => self.holes.push((long(0), word(8))),
            5 => {
                assert_eq!(word(0), 1);
                let all = payload[4..].chunks_exact(8);
                assert!(all.remainder().is_empty());
                self.extents =
                    (0..all.len()).map(|i| (word(4 + 8 * i).into(), word(8 + 8 * i).into())).collect();
            }
            6 => {
                assert_eq!((word(0), word(4) as usize), (1, (payload.len() - 8) / 16));
                self.extents = (0..word(4) as usize).map(|i| (long(8 + 16 * i), long(16 + 16 * i))).collect();
            }
            0x8001 | 0x8002 => {
                self.error = word(0);
                let end = 6 + usize::from(u16::from_be_bytes([payload[4], payload[5]]));
                self.message = String::from_utf8(payload[6..end].to_vec()).unwrap();
                self.at = (kind == 0x8002).then(|| long(end));
            }
            other => panic!("chunk of type {other}"),
        }
    }

    /// The data of a read. Checks that every byte was sent exactly once.
    pub fn content(&self, offset: u64, length: u32) -> Vec<u8> {
        let mut content = vec![0; length as usize];
        let mut told = vec![false; length as usize];
        if let [(0, data)] = &self.data[..]
            && self.holes.is_empty()
            && data.len() == content.len()
        {
            return data.clone();
        }
        let mut tell = |at: u64, length: usize| {
            let at = usize::try_from(at - offset).unwrap();
            told[at..at + length].iter_mut().for_each(|told| assert!(!std::mem::replace(told, true)));
            at..at + length
        };
        for (at, data) in &self.data {
            content[tell(*at, data.len())].copy_from_slice(data);
        }
        for (at, length) in &self.holes {
            tell(*at, *length as usize);
        }
        assert!(told.iter().all(|told| *told), "bytes without an answer");
        content
    }
}
