//! The bytes of the protocol, without I/O: numbers, options, requests and replies. All integers are big-endian.

pub(crate) mod consts;
pub(crate) mod option;
pub(crate) mod reply;
pub(crate) mod request;

/// How the messages of the transmission phase are framed, as agreed in the negotiation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// Compact requests and simple replies, which every client supports.
    Simple,
    /// Compact requests, and replies in chunks.
    Structured,
    /// Requests and replies with 64-bit lengths, and replies in chunks.
    Extended,
}

/// Parses integers and strings from the beginning of untrusted bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor<'a>(pub(crate) &'a [u8]);

impl<'a> Cursor<'a> {
    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}
