//! The values of index properties, and their numbers on disk and in streams (`module/zcommon/zfs_prop.c`,
//! `zfs_prop_init`).

const fn v(name: &'static str, number: u64) -> IndexValue {
    IndexValue { name, number }
}

/// One value of an index property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexValue {
    /// The word for users.
    pub name: &'static str,
    /// The number on disk and in streams.
    pub number: u64,
}

impl IndexValue {
    /// The first word for a number. If several words have the same number, this is the one that is shown.
    #[must_use]
    pub fn name_in(table: &[Self], number: u64) -> Option<&'static str> {
        table.iter().find(|value| value.number == number).map(|value| value.name)
    }

    /// The number for a word.
    #[must_use]
    pub fn number_in(table: &[Self], name: &str) -> Option<u64> {
        table.iter().find(|value| value.name == name).map(|value| value.number)
    }
}

/// `on` and `off`.
pub(super) const BOOLEAN: &[IndexValue] = &[v("off", 0), v("on", 1)];

/// `enum zio_checksum` in `include/sys/zio.h`.
pub(super) const CHECKSUM: &[IndexValue] = &[
    v("on", 1),
    v("off", 2),
    v("fletcher2", 6),
    v("fletcher4", 7),
    v("sha256", 8),
    v("noparity", 10),
    v("sha512", 11),
    v("skein", 12),
    v("edonr", 13),
    v("blake3", 14),
];

/// Like the checksum; bit 8 (`ZIO_CHECKSUM_VERIFY`) also requires a comparison of the bytes.
pub(super) const DEDUP: &[IndexValue] = &[
    v("on", 1),
    v("off", 2),
    v("verify", 257),
    v("sha256", 8),
    v("sha256,verify", 264),
    v("sha512", 11),
    v("sha512,verify", 267),
    v("skein", 12),
    v("skein,verify", 268),
    v("edonr,verify", 269),
    v("blake3", 14),
    v("blake3,verify", 270),
];

/// `enum zio_compress` in `include/sys/zio_compress.h`. A zstd level is above the algorithm's seven bits
/// (`ZIO_COMPRESS_RAW`); the fast levels are counted from 103 (`enum zio_zstd_levels`).
pub(super) const COMPRESSION: &[IndexValue] = &[
    v("on", 1),
    v("off", 2),
    v("lzjb", 3),
    v("gzip", 10),
    v("gzip-1", 5),
    v("gzip-2", 6),
    v("gzip-3", 7),
    v("gzip-4", 8),
    v("gzip-5", 9),
    v("gzip-6", 10),
    v("gzip-7", 11),
    v("gzip-8", 12),
    v("gzip-9", 13),
    v("zle", 14),
    v("lz4", 15),
    v("zstd", 16),
    v("zstd-fast", 13200),
    v("zstd-1", 144),
    v("zstd-2", 272),
    v("zstd-3", 400),
    v("zstd-4", 528),
    v("zstd-5", 656),
    v("zstd-6", 784),
    v("zstd-7", 912),
    v("zstd-8", 1040),
    v("zstd-9", 1168),
    v("zstd-10", 1296),
    v("zstd-11", 1424),
    v("zstd-12", 1552),
    v("zstd-13", 1680),
    v("zstd-14", 1808),
    v("zstd-15", 1936),
    v("zstd-16", 2064),
    v("zstd-17", 2192),
    v("zstd-18", 2320),
    v("zstd-19", 2448),
    v("zstd-fast-1", 13200),
    v("zstd-fast-2", 13328),
    v("zstd-fast-3", 13456),
    v("zstd-fast-4", 13584),
    v("zstd-fast-5", 13712),
    v("zstd-fast-6", 13840),
    v("zstd-fast-7", 13968),
    v("zstd-fast-8", 14096),
    v("zstd-fast-9", 14224),
    v("zstd-fast-10", 14352),
    v("zstd-fast-20", 14480),
    v("zstd-fast-30", 14608),
    v("zstd-fast-40", 14736),
    v("zstd-fast-50", 14864),
    v("zstd-fast-60", 14992),
    v("zstd-fast-70", 15120),
    v("zstd-fast-80", 15248),
    v("zstd-fast-90", 15376),
    v("zstd-fast-100", 15504),
    v("zstd-fast-500", 15632),
    v("zstd-fast-1000", 15760),
];

/// `enum zio_encrypt` in `include/sys/fs/zfs.h`.
pub(super) const ENCRYPTION: &[IndexValue] = &[
    v("on", 1),
    v("off", 2),
    v("aes-128-ccm", 3),
    v("aes-192-ccm", 4),
    v("aes-256-ccm", 5),
    v("aes-128-gcm", 6),
    v("aes-192-gcm", 7),
    v("aes-256-gcm", 8),
];

/// `zfs_keyformat_t` in `include/sys/fs/zfs.h`.
pub(super) const KEY_FORMAT: &[IndexValue] = &[v("none", 0), v("raw", 1), v("hex", 2), v("passphrase", 3)];

/// `zfs_keystatus_t` in `include/sys/fs/zfs.h`.
pub(super) const KEY_STATUS: &[IndexValue] = &[v("none", 0), v("unavailable", 1), v("available", 2)];

/// `ZFS_SNAPDIR_*` in `include/sys/zfs_ioctl.h`.
pub(super) const SNAPDIR: &[IndexValue] = &[v("hidden", 0), v("visible", 1), v("disabled", 2)];

/// `ZFS_SNAPDEV_*` in `include/sys/zfs_ioctl.h`.
pub(super) const SNAPDEV: &[IndexValue] = &[v("hidden", 0), v("visible", 1)];

/// `ZFS_ACL_*` in `include/sys/zfs_acl.h`.
pub(super) const ACL_MODE: &[IndexValue] =
    &[v("discard", 0), v("groupmask", 2), v("passthrough", 3), v("restricted", 4)];

/// `ZFS_ACLTYPE_*` in `include/sys/zfs_ioctl.h`, with the names of releases before 2.1.
pub(super) const ACL_TYPE: &[IndexValue] =
    &[v("off", 0), v("posix", 1), v("nfsv4", 2), v("disabled", 0), v("noacl", 0), v("posixacl", 1)];

/// `ZFS_ACL_*` in `include/sys/zfs_acl.h`.
pub(super) const ACL_INHERIT: &[IndexValue] = &[
    v("discard", 0),
    v("noallow", 1),
    v("restricted", 4),
    v("passthrough", 3),
    v("secure", 4),
    v("passthrough-x", 5),
];

/// `zfs_case_t` in `include/sys/zfs_ioctl.h`.
pub(super) const CASE: &[IndexValue] = &[v("sensitive", 0), v("insensitive", 1), v("mixed", 2)];

/// The number itself.
pub(super) const COPIES: &[IndexValue] = &[v("1", 1), v("2", 2), v("3", 3)];

/// `U8_TEXTPREP_NF*` in `include/sys/u8_textprep.h`.
pub(super) const NORMALIZATION: &[IndexValue] =
    &[v("none", 0x0), v("formD", 0x10), v("formKC", 0x60), v("formC", 0x50), v("formKD", 0x20)];

/// Versions of the ZPL.
pub(super) const VERSION: &[IndexValue] =
    &[v("1", 1), v("2", 2), v("3", 3), v("4", 4), v("5", 5), v("current", 5)];

/// `zfs_logbias_op_t` in `include/sys/fs/zfs.h`.
pub(super) const LOGBIAS: &[IndexValue] = &[v("latency", 0), v("throughput", 1)];

/// `zfs_canmount_type_t` in `include/sys/fs/zfs.h`.
pub(super) const CANMOUNT: &[IndexValue] = &[v("off", 0), v("on", 1), v("noauto", 2)];

/// `zfs_cache_type_t` and `zfs_prefetch_type_t` in `include/sys/fs/zfs.h`.
pub(super) const CACHE: &[IndexValue] = &[v("none", 0), v("metadata", 1), v("all", 2)];

/// `zfs_sync_type_t` in `include/sys/fs/zfs.h`.
pub(super) const SYNC: &[IndexValue] = &[v("standard", 0), v("always", 1), v("disabled", 2)];

/// `zfs_xattr_type_t` in `include/sys/fs/zfs.h`; `on` means `sa` since 2.3.
pub(super) const XATTR: &[IndexValue] = &[v("off", 0), v("sa", 2), v("on", 2), v("dir", 1)];

/// `zfs_dnsize_type_t` in `include/sys/fs/zfs.h`.
pub(super) const DNODE_SIZE: &[IndexValue] = &[
    v("legacy", 0),
    v("auto", 1),
    v("1k", 1024),
    v("2k", 2048),
    v("4k", 4096),
    v("8k", 8192),
    v("16k", 16384),
];

/// `zfs_redundant_metadata_type_t` in `include/sys/fs/zfs.h`.
pub(super) const REDUNDANT_METADATA: &[IndexValue] = &[v("all", 0), v("most", 1), v("some", 2), v("none", 3)];

/// `zfs_volmode_t` in `include/sys/fs/zfs.h`.
pub(super) const VOLMODE: &[IndexValue] =
    &[v("default", 0), v("full", 1), v("geom", 1), v("dev", 2), v("none", 3)];

/// `zfs_direct_t` in `include/sys/fs/zfs.h`.
pub(super) const DIRECT: &[IndexValue] = &[v("disabled", 0), v("standard", 1), v("always", 2)];
