//! The traits that the storage behind a server implements.

use std::io;
use std::sync::Arc;

use crate::identity::Identity;

/// A run of bytes of one kind, from [`Export::extents`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes; not zero.
    pub length: u64,
    /// Whether no space is allocated for these bytes. Then writing them may fail in a full pool.
    pub hole: bool,
    /// Whether the bytes are read as zeros.
    pub zero: bool,
}

/// A block device. Many threads call it at once, also for overlapping requests, which have no defined order.
///
/// The server checks every range against [`size`](Export::size) first, so `offset + length` never exceeds it. It never
/// calls a writing method of a [`read_only`](Export::read_only) export.
/// [`Options::max_request`](crate::Options::max_request) limits the lengths of reads and writes. Only the size limits
/// the lengths of other methods.
///
/// Clients are informed that they may use several connections at once. A write that was answered on one connection is
/// visible to reads, and covered by a flush, on any other. So all [`Export`]s that [`Exports::open`] returns for one
/// name must share their cache.
///
/// # Errors
/// The `raw_os_error` or `kind` of an error determines the client's error (EPERM, EIO, ENOMEM, EINVAL, ENOSPC or
/// ESHUTDOWN; see `docs/nbd.md`). The text is sent to clients that can show it.
pub trait Export: Send + Sync {
    /// The current size in bytes. A client learns it once, when it connects. Requests beyond that size or beyond the
    /// current one are refused. This is called for every request, so it must be cheap.
    fn size(&self) -> u64;

    /// The preferred block size for I/O, in bytes. Requests may have any length and alignment.
    fn block_size(&self) -> u32;

    /// Whether writes are refused.
    fn read_only(&self) -> bool;

    /// A description for users, in addition to the name.
    fn description(&self) -> Option<String> {
        None
    }

    /// Reads `buf.len()` bytes.
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Writes bytes. They need not be durable before [`flush`](Export::flush).
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Zeroes a range. With `may_trim`, it may become a hole. Without, later writes to it must not fail for lack of
    /// space, if the export can guarantee that.
    fn write_zeroes(&self, offset: u64, length: u64, may_trim: bool) -> io::Result<()>;

    /// Whether [`write_zeroes`](Export::write_zeroes) with these arguments is faster than writing the same amount of
    /// data. This must be quick itself. `false` is always correct.
    fn zeroes_fast(&self, offset: u64, length: u64, may_trim: bool) -> bool {
        let _ = (offset, length, may_trim);
        false
    }

    /// Declares the content of a range as unused. This is a hint, which may be ignored completely or at the edges.
    fn trim(&self, offset: u64, length: u64) -> io::Result<()>;

    /// Returns when all earlier writes, trims and zeroings that have returned are durable. Also called after a write
    /// with FUA.
    fn flush(&self) -> io::Result<()>;

    /// Hints that the range will be read soon.
    fn cache(&self, offset: u64, length: u64) -> io::Result<()>;

    /// The extents from `offset` on, in order and without gaps. They may end before `length` bytes, because an export
    /// limits their number and the work. There is at least one extent. The last one may extend beyond the range.
    fn extents(&self, offset: u64, length: u64) -> io::Result<Vec<Extent>>;
}

/// The exports of a server, by name. Many threads call it at once, for each query of a client. The set may change and
/// may depend on the client's identity. For an export that a client may not see, the answers must be the same as for
/// one that does not exist.
pub trait Exports: Send + Sync {
    /// The names to show in `client`'s list. An export can be opened even if it is not listed.
    ///
    /// # Errors
    /// The client's request is refused with the error's text.
    fn list(&self, client: &Identity) -> io::Result<Vec<String>>;

    /// Opens the export called `name` for `client`. The name is UTF-8 without NUL and has at most 4,096 bytes.
    /// Otherwise it is exactly as the client sent it. This is also called for queries about an export, so it must not
    /// change anything.
    ///
    /// # Errors
    /// See [`OpenError`].
    fn open(&self, client: &Identity, name: &str) -> Result<Arc<dyn Export>, OpenError>;

    /// The name of the export that `client` gets if it gives no name. `None` if there is none.
    fn default_export(&self, client: &Identity) -> Option<String> {
        let _ = client;
        None
    }
}

/// Why an export cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no export with this name.
    #[error("no such export")]
    NotFound,
    /// The export may exist, but the client may not use it.
    #[error("not allowed: {reason}")]
    Denied {
        /// The reason, for the client.
        reason: String,
    },
    /// The storage failed.
    #[error("opening the export")]
    Io(#[from] io::Error),
}
