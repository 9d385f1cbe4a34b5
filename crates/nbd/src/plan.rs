//! Decides from the head of a request what to do with it: run it, refuse it, or end the connection. The payload is not
//! read yet. All checks that proto.md requires are done here, so that an export gets only valid calls.

use crate::errno::Errno;
use crate::options::MAX_PAYLOAD;
use crate::wire::consts::{BASE_ALLOCATION_ID, cmd};
use crate::wire::reply::ReplyError;
use crate::wire::request::RequestHead;
use crate::wire::{Cursor, Style};

/// The limits for requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) style: Style,
    /// The export's size for this client.
    pub(crate) size: u64,
    pub(crate) read_only: bool,
    /// Whether `base:allocation` was agreed on.
    pub(crate) meta_context: bool,
    pub(crate) max_request: u32,
}

/// A range of an export, within its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// A valid request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// `whole` means that the reply must be in one piece.
    Read {
        offset: u64,
        length: u32,
        whole: bool,
    },
    /// The payload is the data.
    Write {
        offset: u64,
        fua: bool,
    },
    Flush,
    Trim {
        range: Range,
        fua: bool,
    },
    Cache {
        range: Range,
    },
    WriteZeroes {
        range: Range,
        may_trim: bool,
        fast: bool,
        fua: bool,
    },
    /// `one` means that the reply has only one extent.
    Status {
        range: Range,
        one: bool,
    },
    /// The payload contains the contexts and the length; see [`filtered_status`].
    FilteredStatus {
        offset: u64,
        one: bool,
    },
}

/// The decision about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Read `payload` bytes, then run it.
    Run { operation: Operation, payload: u32 },
    /// Read and discard `payload` bytes, then answer with the error.
    Refuse { error: ReplyError, payload: u32 },
    /// The client disconnects.
    Disconnect,
    /// The payload cannot be skipped, so the connection ends.
    GiveUp(&'static str),
}

/// Maximum payload of `NBD_CMD_BLOCK_STATUS`: its effect length and a number for each context. There is only one
/// context, and a client that repeats it is refused, so longer payloads need not be read.
const MAX_FILTER: u32 = 8 + 4 * 16;

type Checked = Result<Operation, ReplyError>;

impl Limits {
    /// Decides about a request.
    pub(crate) fn plan(&self, head: &RequestHead) -> Plan {
        if head.command == cmd::DISC {
            return Plan::Disconnect;
        }
        let has_payload = match self.style {
            Style::Extended => head.flags & cmd::FLAG_PAYLOAD_LEN != 0,
            Style::Simple | Style::Structured => head.command == cmd::WRITE,
        };
        let payload = if has_payload { head.length } else { 0 };
        let Some(payload) = u32::try_from(payload).ok().filter(|&payload| payload <= MAX_PAYLOAD) else {
            return Plan::GiveUp("a payload is larger than any may be");
        };
        match self.operation(head, has_payload) {
            Ok(operation) => Plan::Run { operation, payload },
            Err(error) => Plan::Refuse { error, payload },
        }
    }

    fn operation(&self, head: &RequestHead, has_payload: bool) -> Checked {
        self.check_flags(head, has_payload)?;
        let fua = head.flags & cmd::FLAG_FUA != 0;
        let RequestHead { offset, length, .. } = *head;
        match head.command {
            cmd::READ => self.read(head),
            cmd::WRITE => {
                self.check_writable()?;
                if !has_payload {
                    return Err(invalid("a write without its payload"));
                }
                if length > u64::from(self.max_request) {
                    return Err(invalid("the write is longer than the server's largest request"));
                }
                self.range(head, Errno::NoSpc)?;
                Ok(Operation::Write { offset, fua })
            }
            cmd::FLUSH if offset != 0 || length != 0 => Err(invalid("a flush has neither offset nor length")),
            cmd::FLUSH => Ok(Operation::Flush),
            cmd::TRIM => {
                self.check_writable()?;
                Ok(Operation::Trim { range: self.range(head, Errno::Inval)?, fua })
            }
            cmd::CACHE => Ok(Operation::Cache { range: self.range(head, Errno::Inval)? }),
            cmd::WRITE_ZEROES => {
                self.check_writable()?;
                Ok(Operation::WriteZeroes {
                    range: self.range(head, Errno::NoSpc)?,
                    may_trim: head.flags & cmd::FLAG_NO_HOLE == 0,
                    fast: head.flags & cmd::FLAG_FAST_ZERO != 0,
                    fua,
                })
            }
            cmd::BLOCK_STATUS => self.status(head, has_payload),
            _ => Err(invalid("unknown command")),
        }
    }

    fn check_flags(&self, head: &RequestHead, has_payload: bool) -> Result<(), ReplyError> {
        let allowed = match head.command {
            cmd::READ if self.style != Style::Simple => cmd::FLAG_DF,
            cmd::WRITE if self.style == Style::Extended => cmd::FLAG_PAYLOAD_LEN,
            cmd::WRITE_ZEROES => cmd::FLAG_NO_HOLE | cmd::FLAG_FAST_ZERO,
            cmd::BLOCK_STATUS if self.style == Style::Extended => cmd::FLAG_REQ_ONE | cmd::FLAG_PAYLOAD_LEN,
            cmd::BLOCK_STATUS => cmd::FLAG_REQ_ONE,
            _ => 0,
        };
        // some clients set FUA on all commands, which is allowed
        if head.flags & !(allowed | cmd::FLAG_FUA) == 0 {
            Ok(())
        } else if has_payload && head.flags & !(allowed | cmd::FLAG_FUA) == cmd::FLAG_PAYLOAD_LEN {
            Err(invalid("this command takes no payload"))
        } else {
            Err(invalid("a flag that this command does not have"))
        }
    }

    fn check_writable(&self) -> Result<(), ReplyError> {
        if self.read_only { Err(ReplyError::new(Errno::Perm, "the export is read only")) } else { Ok(()) }
    }

    fn range(&self, head: &RequestHead, beyond: Errno) -> Result<Range, ReplyError> {
        match head.offset.checked_add(head.length) {
            Some(end) if end <= self.size => Ok(Range { offset: head.offset, length: head.length }),
            _ => Err(ReplyError::new(beyond, "beyond the end of the export")),
        }
    }

    fn read(&self, head: &RequestHead) -> Checked {
        let range = self.range(head, Errno::Inval)?;
        let length = u32::try_from(range.length).ok().filter(|&length| length <= self.max_request);
        match (length, self.style) {
            (Some(length), style) => {
                let whole = style == Style::Simple || head.flags & cmd::FLAG_DF != 0;
                Ok(Operation::Read { offset: range.offset, length, whole })
            }
            // EOVERFLOW is newer than clients that only support simple replies
            (None, Style::Simple) => Err(invalid("the read is longer than the server's largest request")),
            (None, _) => {
                Err(ReplyError::new(Errno::Overflow, "the read is longer than the server's largest request"))
            }
        }
    }

    fn status(&self, head: &RequestHead, has_payload: bool) -> Checked {
        if !self.meta_context {
            return Err(invalid("block status without a metadata context agreed on"));
        }
        let one = head.flags & cmd::FLAG_REQ_ONE != 0;
        if has_payload {
            if head.length > u64::from(MAX_FILTER) {
                return Err(invalid("too many metadata contexts"));
            }
            return Ok(Operation::FilteredStatus { offset: head.offset, one });
        }
        let range = self.range(head, Errno::Inval)?;
        if range.length == 0 {
            Err(invalid("block status of nothing"))
        } else {
            Ok(Operation::Status { range, one })
        }
    }

    /// Converts an [`Operation::FilteredStatus`] and its payload to an [`Operation::Status`].
    pub(crate) fn filtered_status(&self, offset: u64, one: bool, payload: &[u8]) -> Checked {
        let mut cursor = Cursor(payload);
        let short = || invalid("the payload is not a length and numbers of contexts");
        let length = cursor.u64().ok_or_else(short)?;
        // exactly one context can be requested: with none there is nothing to answer, and two are a repetition
        if cursor.u32().ok_or_else(short)? != BASE_ALLOCATION_ID || !cursor.is_empty() {
            return Err(invalid("unknown or repeated metadata context"));
        }
        let flags = if one { cmd::FLAG_REQ_ONE } else { 0 };
        self.status(&RequestHead { flags, command: cmd::BLOCK_STATUS, cookie: 0, offset, length }, false)
    }
}

fn invalid(message: &'static str) -> ReplyError {
    ReplyError::new(Errno::Inval, message)
}

#[cfg(test)]
mod tests;
