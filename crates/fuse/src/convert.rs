//! Between the kernel's words and the filesystem's.

use std::time::{Duration, SystemTime};

use fuser::{Errno, FileAttr, FileType, INodeNo};
use snowmelt_fs::vfs::{Stat, VfsError};
use snowmelt_zpl::{FileKind, Timestamp};

/// `S_IFMT` and its values (`include/uapi/linux/stat.h`).
const S_IFMT: u32 = 0o170_000;

pub(crate) fn errno(error: &VfsError) -> Errno {
    Errno::from_i32(error.errno())
}

pub(crate) fn system_time(time: Timestamp) -> SystemTime {
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = match time.seconds {
        0.. => SystemTime::UNIX_EPOCH.checked_add(seconds),
        _ => SystemTime::UNIX_EPOCH.checked_sub(seconds),
    };
    let nanoseconds = Duration::from_nanos(time.nanoseconds.into());
    whole.and_then(|whole| whole.checked_add(nanoseconds)).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// `None` where it is not known.
pub(crate) fn file_type(kind: FileKind) -> Option<FileType> {
    Some(match kind {
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::Directory => FileType::Directory,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::File => FileType::RegularFile,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Socket => FileType::Socket,
        FileKind::Unknown => return None,
    })
}

/// The type of a node that `mknod` is to make.
pub(crate) fn kind_of_mode(mode: u32) -> FileKind {
    FileKind::from_type_bits(((mode & S_IFMT) >> 12) as u8)
}

/// As the kernel has device numbers on the wire: `new_encode_dev` of `include/linux/kdev_t.h`.
pub(crate) fn encode_device(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | major << 8 | (minor & !0xff) << 12
}

/// The inverse: major and minor number.
pub(crate) fn decode_device(device: u32) -> (u32, u32) {
    ((device & 0xf_ff00) >> 8, device & 0xff | device >> 12 & 0xf_ff00)
}

pub(crate) fn file_attr(stat: &Stat) -> FileAttr {
    let attributes = &stat.attributes;
    FileAttr {
        ino: INodeNo(stat.ino),
        size: attributes.size,
        blocks: stat.blocks,
        atime: system_time(attributes.atime),
        mtime: system_time(attributes.mtime),
        ctime: system_time(attributes.ctime),
        crtime: system_time(attributes.crtime),
        kind: file_type(attributes.kind()).unwrap_or(FileType::RegularFile),
        perm: (attributes.mode & 0o7777) as u16,
        nlink: u32::try_from(attributes.links).unwrap_or(u32::MAX),
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: attributes.rdev.map_or(0, |(major, minor)| encode_device(major, minor)),
        blksize: stat.block_size,
        flags: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_are_told() {
        // 1.5 seconds before 1970 are second -2 and half a second on.
        let time = system_time(Timestamp { seconds: -2, nanoseconds: 500_000_000 });
        assert_eq!(SystemTime::UNIX_EPOCH.duration_since(time).unwrap(), Duration::from_millis(1500));
    }

    #[test]
    fn devices_survive() {
        for (major, minor) in [(1, 3), (8, 17), (0xfff, 0xf_ffff), (259, 0x4_0001)] {
            assert_eq!(decode_device(encode_device(major, minor)), (major, minor));
        }
        assert_eq!(encode_device(8, 1), 0x801);
    }

    #[test]
    fn kinds_come_from_modes() {
        assert_eq!(kind_of_mode(0o100_644), FileKind::File);
        assert_eq!(kind_of_mode(0o060_600), FileKind::BlockDevice);
        assert_eq!(kind_of_mode(0o644), FileKind::Unknown);
    }
}
