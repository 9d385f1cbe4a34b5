//! The arguments of a request after its header: words in the machine's byte order, and names that end with a zero.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// `struct fuse_in_header`, bytes.
const HEADER: usize = 40;

/// Where a request is read, and how far.
#[derive(Debug)]
pub(super) struct Args<'a> {
    rest: &'a [u8],
}

/// The header of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) opcode: u32,
    pub(super) unique: u64,
    pub(super) node: u64,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl<'a> Args<'a> {
    /// Splits a request as it was read. `None` if it is not one.
    pub(super) fn of(request: &'a [u8]) -> Option<(Header, Self)> {
        let (header, rest) = request.split_at_checked(HEADER)?;
        let mut words = Args { rest: header };
        let length = words.u32()?;
        if usize::try_from(length).ok()? != request.len() {
            return None;
        }
        let (opcode, unique, node) = (words.u32()?, words.u64()?, words.u64()?);
        let (uid, gid) = (words.u32()?, words.u32()?);
        Some((Header { opcode, unique, node, uid, gid }, Self { rest }))
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        Some(u32::from_ne_bytes(self.take(4)?.try_into().ok()?))
    }

    pub(super) fn i32(&mut self) -> Option<i32> {
        Some(i32::from_ne_bytes(self.take(4)?.try_into().ok()?))
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        Some(u64::from_ne_bytes(self.take(8)?.try_into().ok()?))
    }

    pub(super) fn i64(&mut self) -> Option<i64> {
        Some(i64::from_ne_bytes(self.take(8)?.try_into().ok()?))
    }

    /// Words that do not matter here.
    pub(super) fn skip(&mut self, bytes: usize) -> Option<()> {
        self.take(bytes).map(|_| ())
    }

    /// A name and the zero after it.
    pub(super) fn name(&mut self) -> Option<&'a OsStr> {
        let end = self.rest.iter().position(|byte| *byte == 0)?;
        let name = self.take(end)?;
        self.take(1)?;
        Some(OsStr::from_bytes(name))
    }

    /// So many bytes.
    pub(super) fn bytes(&mut self, length: u32) -> Option<&'a [u8]> {
        self.take(usize::try_from(length).ok()?)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn request(body: &[u8]) -> Vec<u8> {
        let mut bytes = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(12_u32.to_ne_bytes());
        bytes.extend(77_u64.to_ne_bytes());
        bytes.extend(34_u64.to_ne_bytes());
        bytes.extend([1000_u32, 100, 4242, 0].map(u32::to_ne_bytes).concat());
        bytes.extend(body);
        bytes
    }

    #[test]
    fn requests_are_split() {
        let mut body = 5_u64.to_ne_bytes().to_vec();
        body.extend(b"old\0new\0rest");
        let bytes = request(&body);
        let (header, mut args) = Args::of(&bytes).unwrap();
        assert_eq!(header, Header { opcode: 12, unique: 77, node: 34, uid: 1000, gid: 100 });
        assert_eq!(args.u64(), Some(5));
        assert_eq!((args.name(), args.name()), (Some(OsStr::new("old")), Some(OsStr::new("new"))));
        assert_eq!((args.name(), args.bytes(4), args.u32()), (None, Some(&b"rest"[..]), None));
    }

    #[test]
    fn what_is_cut_off_is_no_request() {
        let bytes = request(b"name\0");
        assert!(Args::of(&bytes[..HEADER - 1]).is_none());
        assert!(Args::of(&bytes[..bytes.len() - 1]).is_none());
    }
}
