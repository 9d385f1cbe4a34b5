//! The frames of the control protocol. Byte tables: `docs/format/host.md`.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::{ControlError, Result};

/// The only protocol version.
pub(super) const VERSION: u32 = 1;
/// The first bytes of a request.
pub(super) const MAGIC: &[u8; 8] = b"SNOWCTRL";
/// Bytes of a request's header.
pub(super) const HEADER_LEN: usize = 16;
/// Maximal length of a request's body: twice Linux's default limit for a command line (`ARG_MAX`, 2 MiB).
pub(super) const BODY_MAX: usize = 4 << 20;
/// Number of descriptors in a request: working directory, stdin, stdout, stderr.
pub(super) const DESCRIPTORS: usize = 4;
/// Bytes of an answer.
pub(super) const ANSWER_LEN: usize = 8;

/// An answer of an owner to a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// The command was accepted and is running.
    Accepted,
    /// The command has ended with this exit status.
    Exit(u8),
    /// The owner is closing, and has not begun the command.
    Closing,
    /// The caller may not use this owner.
    Refused,
    /// The owner uses this version of the protocol, not the caller's.
    Version(u32),
    /// The request is malformed.
    Malformed,
}

impl Answer {
    pub(super) fn encode(self) -> [u8; ANSWER_LEN] {
        let (kind, value) = match self {
            Self::Accepted => (0, 0),
            Self::Exit(code) => (1, u32::from(code)),
            Self::Closing => (2, 0),
            Self::Refused => (3, 0),
            Self::Version(version) => (4, version),
            Self::Malformed => (5, 0u32),
        };
        let [a, b, c, d] = value.to_le_bytes();
        [kind, 0, 0, 0, a, b, c, d]
    }

    pub(super) fn decode(bytes: [u8; ANSWER_LEN]) -> Result<Self> {
        let [kind, _, _, _, a, b, c, d] = bytes;
        let value = u32::from_le_bytes([a, b, c, d]);
        Ok(match kind {
            0 => Self::Accepted,
            1 => Self::Exit(
                u8::try_from(value).map_err(|_| ControlError::Protocol("an impossible exit status"))?,
            ),
            2 => Self::Closing,
            3 => Self::Refused,
            4 => Self::Version(value),
            5 => Self::Malformed,
            _ => return Err(ControlError::Protocol("an unknown answer")),
        })
    }
}

/// The header of a request with a body of `len` bytes, which is at most [`BODY_MAX`].
pub(super) fn encode_header(len: usize) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[12..].copy_from_slice(&(len as u32).to_le_bytes());
    header
}

/// The version and the length of the body; `None` when the bytes are not a request header.
pub(super) fn decode_header(header: [u8; HEADER_LEN]) -> Option<(u32, u32)> {
    let (magic, rest) = header.split_first_chunk::<8>()?;
    let (version, rest) = rest.split_first_chunk::<4>()?;
    let (len, _) = rest.split_first_chunk::<4>()?;
    (magic == MAGIC).then(|| (u32::from_le_bytes(*version), u32::from_le_bytes(*len)))
}

/// The body: arguments, then names and values of variables. A count precedes each list.
///
/// # Errors
/// `TooLong`.
pub(super) fn encode_body(args: &[OsString], env: &[(OsString, OsString)]) -> Result<Vec<u8>> {
    let strings = || args.iter().chain(env.iter().flat_map(|(name, value)| [name, value]));
    let len = strings().fold(8, |len: usize, s| len.saturating_add(s.len()).saturating_add(4));
    if len > BODY_MAX {
        return Err(ControlError::TooLong { len, max: BODY_MAX });
    }
    let mut body = Vec::with_capacity(len);
    body.extend((args.len() as u32).to_le_bytes());
    body.extend((env.len() as u32).to_le_bytes());
    for string in strings() {
        body.extend((string.len() as u32).to_le_bytes());
        body.extend(string.as_bytes());
    }
    Ok(body)
}

/// The arguments and variables of a request.
pub(super) struct Body {
    pub(super) args: Vec<OsString>,
    pub(super) env: Vec<(OsString, OsString)>,
}

/// Decodes a body; `None` when it is malformed or has bytes left over.
pub(super) fn decode_body(body: &[u8]) -> Option<Body> {
    let (counts, mut rest) = body.split_first_chunk::<8>()?;
    let (args, env) = (u32::from_le_bytes(*counts.first_chunk()?), u32::from_le_bytes(*counts.last_chunk()?));
    // No memory is reserved by these counts, so a request must contain the bytes that it makes us allocate.
    let args = (0..args).map(|_| string(&mut rest)).collect::<Option<Vec<_>>>()?;
    let env = (0..env).map(|_| Some((string(&mut rest)?, string(&mut rest)?))).collect::<Option<Vec<_>>>()?;
    rest.is_empty().then_some(Body { args, env })
}

fn string(rest: &mut &[u8]) -> Option<OsString> {
    let (len, tail) = rest.split_first_chunk::<4>()?;
    let (bytes, tail) = tail.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    *rest = tail;
    // A NUL byte cannot be in an argument or a variable of a process.
    (!bytes.contains(&0)).then(|| OsString::from_vec(bytes.to_vec()))
}
