//! Comparing the `stat` data of a file on disk with its attributes in a snapshot.

use rustix::fs::Stat;
use snowmelt_zpl::{Attributes, FileKind, Timestamp};

/// A time in nanoseconds since 1970.
pub(crate) type Stamp = i128;

pub(crate) fn mtime(stat: &Stat) -> Timestamp {
    #[allow(clippy::unnecessary_cast)]
    Timestamp { seconds: stat.st_mtime as i64, nanoseconds: u32::try_from(stat.st_mtime_nsec).unwrap_or(0) }
}

pub(crate) fn ctime(stat: &Stat) -> Stamp {
    i128::from(stat.st_ctime) * 1_000_000_000 + i128::from(stat.st_ctime_nsec)
}

pub(crate) fn is_kind(stat: &Stat, attributes: &Attributes) -> bool {
    stat.st_mode & 0o170_000 == attributes.kind().mode_bits()
}

/// Whether a file has the type, size and mtime of a file in a snapshot.
pub(crate) fn is_like(stat: &Stat, attributes: &Attributes) -> bool {
    let is_sized = attributes.kind() != FileKind::File || u64::try_from(stat.st_size) == Ok(attributes.size);
    let is_timed = attributes.kind() == FileKind::Directory || mtime(stat) == attributes.mtime;
    is_kind(stat, attributes) && is_sized && is_timed
}

/// Like [`is_like`]. In addition, the file must have been written before `distrusted`, so that it is certainly on disk.
pub(crate) fn holds(stat: &Stat, attributes: &Attributes, distrusted: Option<Stamp>) -> bool {
    is_like(stat, attributes) && distrusted.is_none_or(|begun| ctime(stat) < begun)
}
