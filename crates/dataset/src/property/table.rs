//! The table of properties: `zfs_prop_table` of OpenZFS (`module/zcommon/zfs_prop.c`), in the order of `zfs_prop_t`
//! (`include/sys/fs/zfs.h`), which is the order of `zfs get all`.

use super::index::{self, IndexValue};

/// A set of dataset types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Types(u8);

impl Types {
    /// Filesystems.
    pub const FILESYSTEM: Self = Self(1);
    /// Snapshots of filesystems and volumes.
    pub const SNAPSHOT: Self = Self(2);
    /// Volumes.
    pub const VOLUME: Self = Self(4);
    /// Bookmarks.
    pub const BOOKMARK: Self = Self(8);
    /// Types that can be written.
    pub const FILESYSTEM_VOLUME: Self = Self(1 | 4);
    const FILESYSTEM_SNAPSHOT: Self = Self(1 | 2);
    const SNAPSHOT_VOLUME: Self = Self(2 | 4);
    /// Types that contain data.
    pub const DATASET: Self = Self(1 | 2 | 4);
    /// All types.
    pub const ANY: Self = Self(1 | 2 | 4 | 8);

    /// Whether the two sets have a type in common.
    #[must_use]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The union of the two sets.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Whether and when a property may be set (`zprop_attr_t` in `include/sys/fs/zfs.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// A statistic.
    ReadOnly,
    /// May be set at any time; children do not inherit it.
    Settable,
    /// May be set at any time; children inherit it.
    Inherit,
    /// May be set only when the dataset is created; children created later start with it.
    Once,
    /// May be set only when the dataset is created; children do not get it.
    OnceOwn,
}

/// Which texts are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextRule {
    /// Anything that is not too long.
    Any,
    /// An absolute path, `none` or `legacy`.
    Mountpoint,
    /// `none`, `prompt` or a URI.
    KeyLocation,
    /// `none`: labels are for Solaris only.
    SensitivityLabel,
}

/// The kind of a property's value: how it is parsed, checked and shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number, shown with a suitable unit.
    Number,
    /// A size in bytes. It is shown with a unit even below 1 KiB.
    Bytes,
    /// Bytes; 0 means no limit and must be written as `none`.
    Quota,
    /// Bytes; 0 is shown as `none`.
    Reservation,
    /// Bytes; 0 is shown as `none`; `auto` is allowed for volumes.
    RefReservation,
    /// A count; the largest number is shown as `none`.
    Limit,
    /// Bytes: a power of two in the range of block sizes.
    BlockSize,
    /// Bytes up to the maximal block size.
    SmallBlocks,
    /// Bytes: more than 0, and a multiple of the volume's block size.
    VolumeSize,
    /// A number that is always shown with all digits.
    Identifier,
    /// As `Identifier`; PBKDF2 iterations, 100000 or more.
    Iterations,
    /// A ratio in hundredths.
    Ratio,
    /// Seconds since 1970, shown to the minute.
    Date,
    /// Seconds since 1970, shown to the second.
    DateSeconds,
    /// 0 is `no`, anything else `yes`.
    YesNo,
    /// One of a few words, stored as a number.
    Index(&'static [IndexValue]),
    /// A text.
    Text(TextRule),
}

/// The value if nothing is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultValue {
    /// Nothing: the property is a statistic.
    None,
    /// A number.
    Number(u64),
    /// A text.
    Text(&'static str),
}

/// A native property of ZFS.
#[derive(Debug)]
pub struct Property {
    /// Its name.
    pub name: &'static str,
    /// Header of its column in `zfs list`. The same word in lower case is an alias of the property.
    pub column: &'static str,
    /// The kind of its value.
    pub kind: Kind,
    /// The value if nothing is set.
    pub default: DefaultValue,
    /// Whether and when it may be set.
    pub attribute: Attribute,
    /// The types of dataset that have it.
    pub types: Types,
    /// Description of the valid values.
    pub values: &'static str,
    /// Whether `get all` and usage texts omit it.
    pub hidden: bool,
}

impl Property {
    const fn readonly(
        name: &'static str,
        column: &'static str,
        kind: Kind,
        types: Types,
        values: &'static str,
    ) -> Self {
        let (default, attribute) = (DefaultValue::None, Attribute::ReadOnly);
        Self { name, column, kind, default, attribute, types, values, hidden: false }
    }

    const fn index(
        name: &'static str,
        column: &'static str,
        table: &'static [IndexValue],
        default: u64,
        attribute: Attribute,
        types: Types,
        values: &'static str,
    ) -> Self {
        Self::number(name, column, Kind::Index(table), default, attribute, types, values)
    }

    const fn number(
        name: &'static str,
        column: &'static str,
        kind: Kind,
        default: u64,
        attribute: Attribute,
        types: Types,
        values: &'static str,
    ) -> Self {
        let default = DefaultValue::Number(default);
        Self { name, column, kind, default, attribute, types, values, hidden: false }
    }

    const fn text(
        name: &'static str,
        column: &'static str,
        rule: TextRule,
        default: &'static str,
        attribute: Attribute,
        types: Types,
        values: &'static str,
    ) -> Self {
        let (kind, default) = (Kind::Text(rule), DefaultValue::Text(default));
        Self { name, column, kind, default, attribute, types, values, hidden: false }
    }

    const fn hidden(mut self) -> Self {
        self.hidden = true;
        self
    }

    /// A count that exists only after a limit was set somewhere; until then it is shown as `none`.
    const fn counted(mut self) -> Self {
        self.default = DefaultValue::Number(u64::MAX);
        self
    }

    /// Whether datasets of these types have the property.
    #[must_use]
    pub const fn applies_to(&self, types: Types) -> bool {
        self.types.intersects(types)
    }

    /// Whether children get it from their parents, permanently or when they are created.
    #[must_use]
    pub const fn is_inheritable(&self) -> bool {
        matches!(self.attribute, Attribute::Inherit | Attribute::Once)
    }

    /// Whether it can be set only when a dataset is created.
    #[must_use]
    pub const fn is_set_once(&self) -> bool {
        matches!(self.attribute, Attribute::Once | Attribute::OnceOwn)
    }

    /// Whether it cannot be set on an existing dataset.
    #[must_use]
    pub const fn is_readonly(&self) -> bool {
        matches!(self.attribute, Attribute::ReadOnly | Attribute::Once | Attribute::OnceOwn)
    }

    /// Whether its column is right-aligned: numbers that are not shown as words.
    #[must_use]
    pub const fn aligns_right(&self) -> bool {
        !matches!(self.kind, Kind::Index(_) | Kind::Text(_) | Kind::Date | Kind::DateSeconds | Kind::YesNo)
    }

    /// Minimal width of its column: that of the header, of any index value, or of a short number.
    #[must_use]
    pub fn width(&self) -> usize {
        let values = match self.kind {
            Kind::Index(table) => table.iter().map(|value| value.name.len()).max().unwrap_or(0),
            Kind::YesNo => 3,
            Kind::Text(_) => 0,
            _ => 5,
        };
        self.column.len().max(values)
    }
}

/// Every property, in the order of `get all`.
pub fn all() -> impl Iterator<Item = &'static Property> {
    TABLE.iter()
}

/// The property with this name, or with this column header in lower case (`avail`, `compress`, `rdonly`, `lrefer`, …).
#[must_use]
pub fn find(name: &str) -> Option<&'static Property> {
    let by_column = |p: &&Property| {
        p.column.len() == name.len()
            && p.column.bytes().zip(name.bytes()).all(|(c, n)| c.to_ascii_lowercase() == n)
    };
    TABLE.iter().find(|p| p.name == name).or_else(|| TABLE.iter().find(by_column))
}

#[rustfmt::skip]
static TABLE: [Property; 100] = [
    Property::readonly("type", "TYPE", Kind::Text(TextRule::Any), Types::ANY, "filesystem | volume | snapshot | bookmark"),
    Property::readonly("creation", "CREATION", Kind::Date, Types::ANY, "<date>"),
    Property::readonly("used", "USED", Kind::Bytes, Types::DATASET, "<size>"),
    Property::readonly("available", "AVAIL", Kind::Bytes, Types::FILESYSTEM_VOLUME, "<size>"),
    Property::readonly("referenced", "REFER", Kind::Bytes, Types::ANY, "<size>"),
    Property::readonly("compressratio", "RATIO", Kind::Ratio, Types::ANY, "<1.00x or higher if compressed>"),
    Property::readonly("mounted", "MOUNTED", Kind::YesNo, Types::FILESYSTEM, "yes | no"),
    Property::readonly("origin", "ORIGIN", Kind::Text(TextRule::Any), Types::FILESYSTEM_VOLUME, "<snapshot>"),
    Property::number("quota", "QUOTA", Kind::Quota, 0, Attribute::Settable, Types::FILESYSTEM, "<size> | none"),
    Property::number("reservation", "RESERV", Kind::Reservation, 0, Attribute::Settable, Types::FILESYSTEM_VOLUME, "<size> | none"),
    Property::number("volsize", "VOLSIZE", Kind::VolumeSize, 0, Attribute::Settable, Types::SNAPSHOT_VOLUME, "<size>"),
    Property::number("volblocksize", "VOLBLOCK", Kind::BlockSize, 16384, Attribute::Once, Types::VOLUME, "512 to 16M, power of 2"),
    Property::number("recordsize", "RECSIZE", Kind::BlockSize, 131072, Attribute::Inherit, Types::FILESYSTEM, "512 to 16M, power of 2"),
    Property::text("mountpoint", "MOUNTPOINT", TextRule::Mountpoint, "/", Attribute::Inherit, Types::FILESYSTEM, "<path> | legacy | none"),
    Property::text("sharenfs", "SHARENFS", TextRule::Any, "off", Attribute::Inherit, Types::FILESYSTEM, "on | off | NFS share options"),
    Property::index("checksum", "CHECKSUM", index::CHECKSUM, 1, Attribute::Inherit, Types::FILESYSTEM_VOLUME, "on | off | fletcher2 | fletcher4 | sha256 | sha512 | skein | edonr | blake3"),
    Property::index("compression", "COMPRESS", index::COMPRESSION, 1, Attribute::Inherit, Types::FILESYSTEM_VOLUME, "on | off | lzjb | gzip | gzip-[1-9] | zle | lz4 | zstd | zstd-[1-19] | zstd-fast | zstd-fast-[1-10,20,30,40,50,60,70,80,90,100,500,1000]"),
    Property::index("atime", "ATIME", index::BOOLEAN, 1, Attribute::Inherit, Types::FILESYSTEM, "on | off"),
    Property::index("devices", "DEVICES", index::BOOLEAN, 1, Attribute::Inherit, Types::FILESYSTEM_SNAPSHOT, "on | off"),
    Property::index("exec", "EXEC", index::BOOLEAN, 1, Attribute::Inherit, Types::FILESYSTEM_SNAPSHOT, "on | off"),
    Property::index("setuid", "SETUID", index::BOOLEAN, 1, Attribute::Inherit, Types::FILESYSTEM_SNAPSHOT, "on | off"),
    Property::index("readonly", "RDONLY", index::BOOLEAN, 0, Attribute::Inherit, Types::FILESYSTEM_VOLUME, "on | off"),
    Property::index("zoned", "ZONED", index::BOOLEAN, 0, Attribute::Inherit, Types::FILESYSTEM, "on | off"),
    Property::index("snapdir", "SNAPDIR", index::SNAPDIR, 0, Attribute::Inherit, Types::FILESYSTEM, "disabled | hidden | visible"),
    Property::index("aclmode", "ACLMODE", index::ACL_MODE, 0, Attribute::Inherit, Types::FILESYSTEM, "discard | groupmask | passthrough | restricted"),
    Property::index("aclinherit", "ACLINHERIT", index::ACL_INHERIT, 4, Attribute::Inherit, Types::FILESYSTEM, "discard | noallow | restricted | passthrough | passthrough-x"),
    Property::readonly("createtxg", "CREATETXG", Kind::Identifier, Types::ANY, "<uint64>"),
    Property::readonly("name", "NAME", Kind::Text(TextRule::Any), Types::ANY, "").hidden(),
    Property::index("canmount", "CANMOUNT", index::CANMOUNT, 1, Attribute::Settable, Types::FILESYSTEM, "on | off | noauto"),
    Property::index("xattr", "XATTR", index::XATTR, 2, Attribute::Inherit, Types::FILESYSTEM_SNAPSHOT, "on | off | dir | sa"),
    Property::readonly("numclones", "NUMCLONES", Kind::Number, Types::SNAPSHOT, "").hidden(),
    Property::index("copies", "COPIES", index::COPIES, 1, Attribute::Inherit, Types::FILESYSTEM_VOLUME, "1 | 2 | 3"),
    Property::index("version", "VERSION", index::VERSION, 5, Attribute::Settable, Types::FILESYSTEM_SNAPSHOT, "1 | 2 | 3 | 4 | 5 | current"),
    Property::index("utf8only", "UTF8ONLY", index::BOOLEAN, 0, Attribute::Once, Types::FILESYSTEM_SNAPSHOT, "on | off"),
    Property::index("normalization", "NORMALIZATION", index::NORMALIZATION, 0, Attribute::Once, Types::FILESYSTEM_SNAPSHOT, "none | formC | formD | formKC | formKD"),
    Property::index("casesensitivity", "CASE", index::CASE, 0, Attribute::Once, Types::FILESYSTEM_SNAPSHOT, "sensitive | insensitive | mixed"),
    Property::index("vscan", "VSCAN", index::BOOLEAN, 0, Attribute::Inherit, Types::FILESYSTEM, "on | off"),
    Property::index("nbmand", "NBMAND", index::BOOLEAN, 0, Attribute::Inherit, Types::FILESYSTEM_SNAPSHOT, "on | off"),
    Property::text("sharesmb", "SHARESMB", TextRule::Any, "off", Attribute::Inherit, Types::FILESYSTEM, "on | off | SMB share options"),
    Property::number("refquota", "REFQUOTA", Kind::Quota, 0, Attribute::Settable, Types::FILESYSTEM, "<size> | none"),
    Property::number("refreservation", "REFRESERV", Kind::RefReservation, 0, Attribute::Settable, Types::FILESYSTEM_VOLUME, "<size> | none"),
    Property::readonly("guid", "GUID", Kind::Identifier, Types::ANY, "<uint64>"),
    Property::index("primarycache", "PRIMARYCACHE", index::CACHE, 2, Attribute::Inherit, Types::DATASET, "all | none | metadata"),
    Property::index("secondarycache", "SECONDARYCACHE", index::CACHE, 2, Attribute::Inherit, Types::DATASET, "all | none | metadata"),
    Property::readonly("usedbysnapshots", "USEDSNAP", Kind::Bytes, Types::FILESYSTEM_VOLUME, "<size>"),
    Property::readonly("usedbydataset", "USEDDS", Kind::Bytes, Types::FILESYSTEM_VOLUME, "<size>"),
    Property::readonly("usedbychildren", "USEDCHILD", Kind::Bytes, Types::FILESYSTEM_VOLUME, "<size>"),
    Property::readonly("usedbyrefreservation", "USEDREFRESERV", Kind::Bytes, Types::FILESYSTEM_VOLUME, "<size>"),
    Property::readonly("defer_destroy", "DEFER_DESTROY", Kind::Index(index::BOOLEAN), Types::SNAPSHOT, "yes | no"),
    Property::readonly("userrefs", "USERREFS", Kind::Number, Types::SNAPSHOT, "<count>"),
    Property::index("logbias", "LOGBIAS", index::LOGBIAS, 0, Attribute::Inherit, Types::FILESYSTEM_VOLUME, "latency | throughput"),
    Property::readonly("objsetid", "OBJSETID", Kind::Identifier, Types::DATASET, "<uint64>"),
    Property::index("dedup", "DEDUP", index::DEDUP, 2, Attribute::Inherit, Types::FILESYSTEM_VOLUME, "on | off | verify | sha256[,verify] | sha512[,verify] | skein[,verify] | edonr,verify | blake3[,verify]"),
    Property::text("mlslabel", "MLSLABEL", TextRule::SensitivityLabel, "none", Attribute::Inherit, Types::DATASET, "<sensitivity label>"),
    Property::index("sync", "SYNC", index::SYNC, 0, Attribute::Inherit, Types::FILESYSTEM_VOLUME, "standard | always | disabled"),
    Property::index("dnodesize", "DNSIZE", index::DNODE_SIZE, 0, Attribute::Inherit, Types::FILESYSTEM, "legacy | auto | 1k | 2k | 4k | 8k | 16k"),
    Property::readonly("refcompressratio", "REFRATIO", Kind::Ratio, Types::DATASET, "<1.00x or higher if compressed>"),
    Property::readonly("written", "WRITTEN", Kind::Number, Types::DATASET, "<size>"),
    Property::readonly("clones", "CLONES", Kind::Text(TextRule::Any), Types::SNAPSHOT, "<dataset>[,...]"),
    Property::readonly("logicalused", "LUSED", Kind::Number, Types::FILESYSTEM_VOLUME, "<size>"),
    Property::readonly("logicalreferenced", "LREFER", Kind::Number, Types::ANY, "<size>"),
    Property::index("volmode", "VOLMODE", index::VOLMODE, 0, Attribute::Inherit, Types::FILESYSTEM_VOLUME, "default | full | geom | dev | none"),
    Property::number("filesystem_limit", "FSLIMIT", Kind::Limit, u64::MAX, Attribute::Settable, Types::FILESYSTEM, "<count> | none"),
    Property::number("snapshot_limit", "SSLIMIT", Kind::Limit, u64::MAX, Attribute::Settable, Types::FILESYSTEM_VOLUME, "<count> | none"),
    Property::readonly("filesystem_count", "FSCOUNT", Kind::Limit, Types::FILESYSTEM, "<count>").counted(),
    Property::readonly("snapshot_count", "SSCOUNT", Kind::Limit, Types::FILESYSTEM_VOLUME, "<count>").counted(),
    Property::index("snapdev", "SNAPDEV", index::SNAPDEV, 0, Attribute::Inherit, Types::FILESYSTEM_VOLUME, "hidden | visible"),
    Property::index("acltype", "ACLTYPE", index::ACL_TYPE, 0, Attribute::Inherit, Types::FILESYSTEM_SNAPSHOT, "off | nfsv4 | posix"),
    Property::text("context", "CONTEXT", TextRule::Any, "none", Attribute::Settable, Types::DATASET, "<selinux context>"),
    Property::text("fscontext", "FSCONTEXT", TextRule::Any, "none", Attribute::Settable, Types::DATASET, "<selinux fscontext>"),
    Property::text("defcontext", "DEFCONTEXT", TextRule::Any, "none", Attribute::Settable, Types::DATASET, "<selinux defcontext>"),
    Property::text("rootcontext", "ROOTCONTEXT", TextRule::Any, "none", Attribute::Settable, Types::DATASET, "<selinux rootcontext>"),
    Property::index("relatime", "RELATIME", index::BOOLEAN, 1, Attribute::Inherit, Types::FILESYSTEM, "on | off"),
    Property::index("redundant_metadata", "REDUND_MD", index::REDUNDANT_METADATA, 0, Attribute::Inherit, Types::FILESYSTEM_VOLUME, "all | most | some | none"),
    Property::index("overlay", "OVERLAY", index::BOOLEAN, 1, Attribute::Inherit, Types::FILESYSTEM, "on | off"),
    Property::readonly("prevsnap", "PREVSNAP", Kind::Text(TextRule::Any), Types::FILESYSTEM_VOLUME, "").hidden(),
    Property::readonly("receive_resume_token", "RESUMETOK", Kind::Text(TextRule::Any), Types::FILESYSTEM_VOLUME, "<string token>"),
    Property::index("encryption", "ENCRYPTION", index::ENCRYPTION, 2, Attribute::Once, Types::DATASET, "on | off | aes-128-ccm | aes-192-ccm | aes-256-ccm | aes-128-gcm | aes-192-gcm | aes-256-gcm"),
    Property::text("keylocation", "KEYLOCATION", TextRule::KeyLocation, "none", Attribute::Settable, Types::FILESYSTEM_VOLUME, "prompt | <file URI> | <https URL> | <http URL>"),
    Property::index("keyformat", "KEYFORMAT", index::KEY_FORMAT, 0, Attribute::OnceOwn, Types::FILESYSTEM_VOLUME, "none | raw | hex | passphrase"),
    Property::number("pbkdf2iters", "PBKDF2ITERS", Kind::Iterations, 0, Attribute::OnceOwn, Types::FILESYSTEM_VOLUME, "<iters>"),
    Property::readonly("encryptionroot", "ENCROOT", Kind::Text(TextRule::Any), Types::DATASET, "<filesystem | volume>"),
    Property::readonly("keystatus", "KEYSTATUS", Kind::Index(index::KEY_STATUS), Types::DATASET, "none | unavailable | available"),
    Property::number("special_small_blocks", "SPECIAL_SMALL_BLOCKS", Kind::SmallBlocks, 0, Attribute::Inherit, Types::FILESYSTEM_VOLUME, "0 to 16M"),
    Property::readonly("ivsetguid", "IVSETGUID", Kind::Identifier, Types::ANY, "").hidden(),
    Property::readonly("redacted", "REDACTED", Kind::Number, Types::DATASET, "").hidden(),
    Property::readonly("redact_snaps", "RSNAPS", Kind::Text(TextRule::Any), Types::ANY, "<snapshot>[,...]"),
    Property::readonly("snapshots_changed", "SNAPSHOTS_CHANGED", Kind::DateSeconds, Types::FILESYSTEM_VOLUME, "<date>"),
    Property::index("prefetch", "PREFETCH", index::CACHE, 2, Attribute::Inherit, Types::DATASET, "none | metadata | all"),
    Property::index("volthreading", "VOLTHREAD", index::BOOLEAN, 1, Attribute::Settable, Types::VOLUME, "on | off"),
    Property::index("direct", "DIRECT", index::DIRECT, 1, Attribute::Inherit, Types::FILESYSTEM, "disabled | standard | always"),
    Property::index("longname", "LONGNAME", index::BOOLEAN, 0, Attribute::Inherit, Types::FILESYSTEM, "on | off"),
    Property::number("defaultuserquota", "DEFAULTUSERQUOTA", Kind::Number, 0, Attribute::Settable, Types::FILESYSTEM_SNAPSHOT, "<size> | none"),
    Property::number("defaultgroupquota", "DEFAULTGROUPQUOTA", Kind::Number, 0, Attribute::Settable, Types::FILESYSTEM_SNAPSHOT, "<size> | none"),
    Property::number("defaultprojectquota", "DEFAULTPROJECTQUOTA", Kind::Number, 0, Attribute::Settable, Types::FILESYSTEM_SNAPSHOT, "<size> | none"),
    Property::number("defaultuserobjquota", "DEFAULTUSEROBJQUOTA", Kind::Number, 0, Attribute::Settable, Types::FILESYSTEM_SNAPSHOT, "<size> | none"),
    Property::number("defaultgroupobjquota", "DEFAULTGROUPOBJQUOTA", Kind::Number, 0, Attribute::Settable, Types::FILESYSTEM_SNAPSHOT, "<size> | none"),
    Property::number("defaultprojectobjquota", "DEFAULTPROJECTOBJQUOTA", Kind::Number, 0, Attribute::Settable, Types::FILESYSTEM_SNAPSHOT, "<size> | none"),
    Property::readonly("snapshots_changed_nsecs", "SNAPSHOTS_CHANGED_NSECS", Kind::Identifier, Types::FILESYSTEM_VOLUME, "<nsec>"),
    Property::number("zoned_uid", "ZONED_UID", Kind::Number, 0, Attribute::Inherit, Types::FILESYSTEM, "<uid> | none"),
];
