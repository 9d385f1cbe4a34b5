//! What a server serves: the traits that the storage behind it implements.

use std::io;
use std::sync::Arc;

use crate::identity::Identity;

/// A run of bytes of one kind, as [`Export::extents`] reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Bytes; not zero.
    pub length: u64,
    /// Nothing is allocated for these bytes: writing them may meet a full pool.
    pub hole: bool,
    /// They read as zeroes.
    pub zero: bool,
}

/// A block device. Called from many threads at once, for requests that overlap too: those have no order between them.
///
/// The server checks every range against [`size`](Export::size) first, so that `offset + length` never exceeds it, and
/// never calls a writing method of a [`read_only`](Export::read_only) export. Lengths of reads and writes are bounded by
/// [`Options::max_request`](crate::Options::max_request), those of the other methods only by the size.
///
/// Clients are told that they may use several connections at once: a write that was answered on one is seen by reads
/// and covered by a flush on any other, so all [`Export`]s that [`Exports::open`] returns for one name must share their cache.
///
/// # Errors
/// An error's `raw_os_error` or `kind` decides what the client sees (EPERM, EIO, ENOMEM, EINVAL, ENOSPC or ESHUTDOWN; see
/// `docs/nbd.md`), and its text is sent along to clients that can show it.
pub trait Export: Send + Sync {
    /// Size in bytes, now. A client learns it once, when it connects; after that requests beyond the size that it was told
    /// or beyond the present one are refused. Asked for every request: it must be cheap.
    fn size(&self) -> u64;

    /// The block size that makes for good I/O, in bytes. Requests may be of any length and alignment all the same.
    fn block_size(&self) -> u32;

    /// Whether writing is refused.
    fn read_only(&self) -> bool;

    /// Something to show to a human beside the name.
    fn description(&self) -> Option<String> {
        None
    }

    /// Reads `buf.len()` bytes.
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Writes; need not be durable before [`flush`](Export::flush).
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Makes the range read as zeroes. With `may_trim` it may become a hole; without, later writes to it must not fail for
    /// want of space, as far as the export can promise that at all.
    fn write_zeroes(&self, offset: u64, length: u64, may_trim: bool) -> io::Result<()>;

    /// Whether [`write_zeroes`](Export::write_zeroes) with these arguments takes less time than writing as many bytes of data.
    /// Must itself be quick; `false` is always right.
    fn zeroes_fast(&self, offset: u64, length: u64, may_trim: bool) -> bool {
        let _ = (offset, length, may_trim);
        false
    }

    /// The contents of the range are of no interest any more. A hint: it may be ignored, wholly or at the edges.
    fn trim(&self, offset: u64, length: u64) -> io::Result<()>;

    /// Returns when every write, trim and zeroing that has returned before is durable. Also used after a write with FUA.
    fn flush(&self) -> io::Result<()>;

    /// The range will be read soon. A hint.
    fn cache(&self, offset: u64, length: u64) -> io::Result<()>;

    /// What is allocated and what is zero, from `offset` on, in order and without gaps. It may stop before `length` bytes
    /// (an export bounds the count of extents and the work it does), but reports at least one extent; the last may go beyond.
    fn extents(&self, offset: u64, length: u64) -> io::Result<Vec<Extent>>;
}

/// The exports of a server, by name. Called from many threads at once, each time a client asks: the set may change, and it may
/// depend on who the client is. A client that may not see an export must get the same answers as if there were none of that
/// name.
pub trait Exports: Send + Sync {
    /// The names to show to `client`, which asks for a list. An export need not be listed to be opened.
    ///
    /// # Errors
    /// The client is refused with the error's text.
    fn list(&self, client: &Identity) -> io::Result<Vec<String>>;

    /// Opens the export called `name` for `client`. The name is UTF-8 without NUL of at most 4,096 bytes and otherwise as the client sent it.
    /// Called for questions about an export too, so opening alone must not change anything.
    ///
    /// # Errors
    /// See [`OpenError`].
    fn open(&self, client: &Identity, name: &str) -> Result<Arc<dyn Export>, OpenError>;

    /// The name of the export for `client` if it names none. `None`: there is no such export.
    fn default_export(&self, client: &Identity) -> Option<String> {
        let _ = client;
        None
    }
}

/// Why an export cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is none of that name.
    #[error("no such export")]
    NotFound,
    /// There may be, but this server does not give it out.
    #[error("not allowed: {reason}")]
    Denied {
        /// Why, for the client's eyes.
        reason: String,
    },
    /// Storage failed.
    #[error("opening the export")]
    Io(#[from] io::Error),
}
