//! Reads the receiver's requests.

use std::io::{Read, Write};

use super::Sender;
use crate::error::{Result, RsyncError};
use crate::wire::{Ndx, ReadWire, WriteWire};

/// The greatest number of an attribute in a request.
const REQUESTED_MAX: u32 = 1 << 16;
/// The longest name in a request, in bytes.
const NAME_MAX: usize = 4096;

/// The bits of a request.
pub(super) mod item {
    pub const XATTRS: u16 = 1 << 8;
    pub const BASIS_FOLLOWS: u16 = 1 << 11;
    pub const NAME_FOLLOWS: u16 = 1 << 12;
    pub const NEW: u16 = 1 << 13;
    pub const LOCAL_CHANGE: u16 = 1 << 14;
    pub const TRANSFER: u16 = 1 << 15;
}

/// The basis is the receiver's own file of that name (`FNAMECMP_FNAME`).
pub(super) const BASIS_ITSELF: u8 = 0x80;

/// A request.
pub(super) struct Request {
    pub(super) index: u32,
    pub(super) flags: u16,
    pub(super) basis: u8,
    pub(super) name: Vec<u8>,
    pub(super) xattrs: Vec<u32>,
}

impl<R: Read, W: Write> Sender<'_, R, W> {
    fn wait(&mut self) -> Result<()> {
        if !self.reader.has_buffered() {
            self.writer.flush()?;
        }
        Ok(())
    }

    /// Reads the next request. `None` at the end of a list or phase.
    pub(super) fn next_request(&mut self) -> Result<Option<Request>> {
        loop {
            self.wait()?;
            match self.requests.read(self.reader)? {
                Ndx::Done => return Ok(None),
                Ndx::DelStats => {
                    // The counts are sent back to the other process of the receiver.
                    self.answers.write(Ndx::DelStats, self.writer)?;
                    for _ in 0..5 {
                        let count = self.reader.read_varint()?;
                        self.writer.write_varint(count.cast_unsigned())?;
                    }
                }
                Ndx::File(index) => {
                    let request = self.request(index)?;
                    // Before version 30, such a request is a sign of life.
                    let is_nothing =
                        self.agreed.protocol < 30 && (index, request.flags) == (self.next_index, item::NEW);
                    if !is_nothing {
                        return Ok(Some(request));
                    }
                    self.writer.keep_alive()?;
                }
                other => return Err(RsyncError::protocol(format!("a request of {other:?}"))),
            }
        }
    }

    fn request(&mut self, index: u32) -> Result<Request> {
        // Before version 29 requests were for content only.
        let flags = if self.agreed.protocol < 29 { item::TRANSFER } else { self.reader.read_u16()? };
        let mut request = Request { index, flags, basis: BASIS_ITSELF, name: Vec::new(), xattrs: Vec::new() };
        if flags & item::BASIS_FOLLOWS != 0 {
            request.basis = self.reader.read_u8()?;
        }
        if flags & item::NAME_FOLLOWS != 0 {
            request.name = self.reader.read_vstring(NAME_MAX)?;
        }
        if self.asks_xattrs(flags) {
            let mut number = 0_u32;
            loop {
                let by = self.reader.read_varint()?.cast_unsigned();
                if by == 0 {
                    break;
                }
                number = number.saturating_add(by);
                if number > REQUESTED_MAX {
                    return Err(RsyncError::protocol(format!("a request of attribute {number}")));
                }
                request.xattrs.push(number);
            }
        }
        Ok(request)
    }

    pub(super) fn asks_xattrs(&self, flags: u16) -> bool {
        let local = item::NAME_FOLLOWS | item::LOCAL_CHANGE;
        self.options.xattrs
            && !self.options.dry_run
            && flags & item::XATTRS != 0
            && !(self.agreed.xattr_shortcut && flags & local == local)
    }
}
