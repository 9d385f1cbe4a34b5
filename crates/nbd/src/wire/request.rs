//! The heads of requests.

use super::consts::{EXTENDED_REQUEST_MAGIC, REQUEST_MAGIC};
use super::{Cursor, Style};

/// The head of a request, in any style.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestHead {
    pub(crate) flags: u16,
    /// A `NBD_CMD_*`, known or not.
    pub(crate) command: u16,
    /// The client's identifier of the request, which the reply contains.
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    /// Length of the payload or of the effect.
    pub(crate) length: u64,
}

/// The length of the longer head.
pub(crate) const MAX_REQUEST_HEAD: usize = 32;

impl RequestHead {
    /// Length of a head in this style, in bytes.
    pub(crate) const fn len(style: Style) -> usize {
        match style {
            Style::Simple | Style::Structured => 28,
            Style::Extended => 32,
        }
    }

    /// `None` if it is too short or its magic number is wrong. Then the next request cannot be found.
    pub(crate) fn parse(style: Style, bytes: &[u8]) -> Option<Self> {
        let mut cursor = Cursor(bytes);
        let magic = cursor.u32()?;
        let (flags, command, cookie, offset) = (cursor.u16()?, cursor.u16()?, cursor.u64()?, cursor.u64()?);
        let (expected, length) = match style {
            Style::Simple | Style::Structured => (REQUEST_MAGIC, u64::from(cursor.u32()?)),
            Style::Extended => (EXTENDED_REQUEST_MAGIC, cursor.u64()?),
        };
        (magic == expected).then_some(Self { flags, command, cookie, offset, length })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_styles() {
        let mut compact = Vec::new();
        compact.extend_from_slice(&[0x25, 0x60, 0x95, 0x13, 0, 1, 0, 6]);
        compact.extend_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 1, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        let head = RequestHead {
            flags: 1,
            command: 6,
            cookie: 0x0102_0304_0506_0708,
            offset: 1 << 32,
            length: u64::from(u32::MAX),
        };
        assert_eq!(compact.len(), RequestHead::len(Style::Simple));
        assert_eq!(RequestHead::parse(Style::Structured, &compact), Some(head));
        let mut extended = compact[..24].to_vec();
        extended[..4].copy_from_slice(&[0x21, 0xe4, 0x1c, 0x71]);
        extended.extend_from_slice(&(1u64 << 40).to_be_bytes());
        assert_eq!(extended.len(), RequestHead::len(Style::Extended));
        assert_eq!(
            RequestHead::parse(Style::Extended, &extended),
            Some(RequestHead { length: 1 << 40, ..head })
        );
        assert_eq!(RequestHead::parse(Style::Extended, &compact), None);
        assert_eq!(RequestHead::parse(Style::Simple, &extended), None);
    }
}
