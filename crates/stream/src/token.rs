//! Resume tokens: the place where an interrupted receive stopped, in the format of `zfs send -t`.
//!
//! A token is `1-CHECKSUM-LENGTH-DATA`, in hexadecimal. CHECKSUM is the first word of fletcher-4 over the data. LENGTH
//! is the length of the packed nvlist. DATA is that nvlist, compressed with zlib (`get_receive_resume_token_impl` in
//! `module/zfs/dsl_dataset.c`, `zfs_send_resume_token_to_nvlist` in `lib/libzfs/libzfs_sendrecv.c`).

#[cfg(test)]
mod tests;

use std::fmt;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use crate::byte_order::ByteOrder;
use crate::fletcher::Fletcher4;
use crate::nvlist::{NvList, NvValue};

const VERSION: u64 = 1;
/// Maximum length of a token, in bytes. With 10,000 redaction snapshots a token has about 160 kB.
const MAX_LEN: usize = 4 << 20;
/// Longest packed nvlist in a token, in bytes.
const MAX_PACKED: usize = 16 << 20;

/// The contents of a token. Unknown entries are kept.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct ResumeToken(pub NvList);

/// Why a token cannot be used. The messages are worded like those of `zfs`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The token is not four hexadecimal numbers separated by dashes.
    #[error("resume token is corrupt (invalid format)")]
    Format,
    /// A version other than 1.
    #[error("resume token is corrupt (invalid version {0})")]
    Version(u64),
    /// The data is not hexadecimal.
    #[error("resume token is corrupt (payload is not hex-encoded)")]
    NotHex,
    /// The checksum does not match the data.
    #[error("resume token is corrupt (incorrect checksum)")]
    Checksum,
    /// The data does not decompress to the length given.
    #[error("resume token is corrupt (decompression failed)")]
    Decompression,
    /// The data is not a packed nvlist.
    #[error("resume token is corrupt (nvlist_unpack failed)")]
    Nvlist,
    /// A required entry is missing.
    #[error("resume token is corrupt (no {0})")]
    Missing(&'static str),
}

impl ResumeToken {
    /// Parses a token. Blanks around it are ignored.
    ///
    /// # Errors
    /// It is not a token, or is damaged.
    pub fn parse(token: &str) -> Result<Self, TokenError> {
        let token = token.trim();
        if token.len() > MAX_LEN {
            return Err(TokenError::Format);
        }
        let mut parts = token.splitn(4, '-');
        let mut part = || parts.next().ok_or(TokenError::Format);
        let version: u64 = part()?.parse().map_err(|_| TokenError::Format)?;
        let checksum = hex_number(part()?)?;
        let length = hex_number(part()?)?;
        if version != VERSION {
            return Err(TokenError::Version(version));
        }
        let data = hex_bytes(part()?)?;
        let mut fletcher = Fletcher4::new();
        fletcher.update(&data);
        if fletcher.state()[0] != checksum {
            return Err(TokenError::Checksum);
        }
        let packed = inflate(&data, length)?;
        NvList::unpack(&packed).map(Self).map_err(|_| TokenError::Nvlist)
    }

    /// A token for a full send of `to_name` that stopped at the very start.
    #[must_use]
    pub fn new(to_guid: u64, to_name: &str) -> Self {
        let mut list = NvList::new();
        list.insert("object", 0);
        list.insert("offset", 0);
        list.insert("bytes", 0);
        list.insert("toguid", to_guid);
        list.insert("toname", to_name);
        Self(list)
    }

    /// Object to resume in.
    #[must_use]
    pub fn object(&self) -> Option<u64> {
        self.0.get_u64("object")
    }

    /// Offset in that object to resume at.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        self.0.get_u64("offset")
    }

    /// Bytes of the stream received so far, without the header of BEGIN.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        self.0.get_u64("bytes")
    }

    /// Guid of the snapshot being received.
    #[must_use]
    pub fn to_guid(&self) -> Option<u64> {
        self.0.get_u64("toguid")
    }

    /// Guid of the base, if the stream is incremental.
    #[must_use]
    pub fn from_guid(&self) -> Option<u64> {
        self.0.get_u64("fromguid")
    }

    /// The sender's name of the snapshot.
    #[must_use]
    pub fn to_name(&self) -> Option<&str> {
        self.0.get_str("toname")
    }

    /// Large blocks were sent (`-L`).
    #[must_use]
    pub fn large_block_ok(&self) -> bool {
        self.0.contains("largeblockok")
    }

    /// Embedded blocks were sent (`-e`).
    #[must_use]
    pub fn embed_ok(&self) -> bool {
        self.0.contains("embedok")
    }

    /// Compressed blocks were sent (`-c`).
    #[must_use]
    pub fn compress_ok(&self) -> bool {
        self.0.contains("compressok")
    }

    /// The stream was raw (`-w`).
    #[must_use]
    pub fn raw_ok(&self) -> bool {
        self.0.contains("rawok")
    }

    /// The stream was of a partially received dataset (`-S`).
    #[must_use]
    pub fn saved_ok(&self) -> bool {
        self.0.contains("savedok")
    }

    /// Guids of the snapshots that the stream is redacted by.
    #[must_use]
    pub fn redact_snaps(&self) -> Option<&[u64]> {
        self.0.get_u64_array("redact_snaps")
    }

    /// Guids of the snapshots of the redaction bookmark that the stream is incremental from.
    #[must_use]
    pub fn book_redact_snaps(&self) -> Option<&[u64]> {
        self.0.get_u64_array("book_redact_snaps")
    }

    /// The entries that `zfs send -t` requires: object, offset, bytes, guid and name of the target.
    ///
    /// # Errors
    /// One of them is missing.
    pub fn required(&self) -> Result<(u64, u64, u64, u64, &str), TokenError> {
        Ok((
            self.object().ok_or(TokenError::Missing("object"))?,
            self.offset().ok_or(TokenError::Missing("offset"))?,
            self.bytes().ok_or(TokenError::Missing("bytes"))?,
            self.to_guid().ok_or(TokenError::Missing("toguid"))?,
            self.to_name().ok_or(TokenError::Missing("toname"))?,
        ))
    }

    /// Adds a flag such as `compressok`.
    pub fn set_flag(&mut self, name: &str) {
        self.0.insert(name, NvValue::Boolean);
    }
}

impl fmt::Display for ResumeToken {
    /// The token, in the form that a real `zfs send -t` accepts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let packed = self.0.pack_native(ByteOrder::Little);
        let data = deflate(&packed).ok_or(fmt::Error)?;
        let mut fletcher = Fletcher4::new();
        fletcher.update(&data);
        write!(f, "{VERSION}-{:x}-{:x}-", fletcher.state()[0], packed.len())?;
        data.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl std::str::FromStr for ResumeToken {
    type Err = TokenError;
    fn from_str(s: &str) -> Result<Self, TokenError> {
        Self::parse(s)
    }
}

fn hex_number(text: &str) -> Result<u64, TokenError> {
    // `from_str_radix` would also accept a sign.
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(TokenError::Format);
    }
    u64::from_str_radix(text, 16).map_err(|_| TokenError::Format)
}

fn hex_bytes(text: &str) -> Result<Vec<u8>, TokenError> {
    let digit =
        |b: u8| char::from(b).to_digit(16).and_then(|d| u8::try_from(d).ok()).ok_or(TokenError::NotHex);
    let (pairs, odd) = text.as_bytes().as_chunks::<2>();
    if !odd.is_empty() {
        return Err(TokenError::NotHex);
    }
    pairs.iter().map(|[high, low]| Ok(digit(*high)? << 4 | digit(*low)?)).collect()
}

fn inflate(data: &[u8], length: u64) -> Result<Vec<u8>, TokenError> {
    let length =
        usize::try_from(length).ok().filter(|n| *n <= MAX_PACKED).ok_or(TokenError::Decompression)?;
    // Deflate expands one byte to at most 1032. A greater length is false, and nothing is allocated for it.
    if length > data.len().saturating_mul(1032) {
        return Err(TokenError::Decompression);
    }
    let mut out = vec![0; length];
    let mut inflate = Decompress::new(true);
    match inflate.decompress(data, &mut out, FlushDecompress::Finish) {
        Ok(Status::StreamEnd) if inflate.total_out() == length as u64 => Ok(out),
        _ => Err(TokenError::Decompression),
    }
}

fn deflate(packed: &[u8]) -> Option<Vec<u8>> {
    // Level 6, as in OpenZFS. The buffer also has space for data that does not compress.
    let mut out = vec![0; packed.len() + packed.len() / 8 + 64];
    let mut deflate = Compress::new(Compression::new(6), true);
    match deflate.compress(packed, &mut out, FlushCompress::Finish) {
        Ok(Status::StreamEnd) => {
            out.truncate(usize::try_from(deflate.total_out()).ok()?);
            Some(out)
        }
        _ => None,
    }
}
