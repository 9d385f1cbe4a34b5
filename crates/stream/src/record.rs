//! Replay records: the headers of a stream, in host order, without their payloads.
//!
//! Every header has [`RECORD_LEN`] bytes on the wire: type and payload length, then a union whose layout depends on the
//! type. The running checksum is in the last 32 bytes, except in BEGIN. Field names and meanings are those of
//! `dmu_replay_record_t` in `include/sys/zfs_ioctl.h` (OpenZFS 2.3). The byte layout is in [`crate::wire`].

use crate::features::Features;

/// Length of every record header on the wire, in bytes (`sizeof (dmu_replay_record_t)`).
pub const RECORD_LEN: usize = 312;

/// One record header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Start of a stream, or of a package of streams.
    Begin(Begin),
    /// An object's dnode; its bonus buffer is the payload.
    Object(Object),
    /// A range of object numbers that are all free now.
    FreeObjects(FreeObjects),
    /// One block of an object; its data is the payload.
    Write(Write),
    /// A range of an object that is a hole now.
    Free(Free),
    /// End of a stream.
    End(End),
    /// One block with the same data as an earlier block (`zfs send -D`).
    WriteByRef(WriteByRef),
    /// An object's spill block; its data is the payload.
    Spill(Spill),
    /// A block small enough to be embedded in its block pointer; its data is the payload.
    WriteEmbedded(WriteEmbedded),
    /// Encryption parameters of one block of dnodes (raw streams).
    ObjectRange(ObjectRange),
    /// A range of an object that was left out of a redacted stream.
    Redact(Redact),
}

/// The kind of records after a BEGIN record (`drr_headertype_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeaderType {
    /// The records of one snapshot.
    Substream = 1,
    /// A package (`-R`, `-I`, `-p`, `-h`): an END, then whole substreams, then an END of zeros.
    Compound = 2,
}

/// Flags of a BEGIN record (`DRR_FLAG_*`). Receivers ignore unknown flags, so they are kept and not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct BeginFlags(pub u32);

impl BeginFlags {
    /// The dataset is a clone; the stream is incremental from its origin.
    pub const CLONE: Self = Self(1);
    /// The file system was made with `casesensitivity=insensitive`.
    pub const CI_DATA: Self = Self(1 << 1);
    /// A full stream has its FREE and FREEOBJECTS records, so that it can be received as a clone.
    pub const FREERECORDS: Self = Self(1 << 2);
    /// [`Object::SPILL`] and [`Spill::UNMODIFIED`] are meaningful in this stream.
    pub const SPILL_BLOCK: Self = Self(1 << 3);

    /// Whether all flags of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The flags of both.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl std::ops::BitOr for BeginFlags {
    type Output = Self;
    fn bitor(self, rhs: Self) -> Self {
        self.union(rhs)
    }
}

/// The name of the snapshot in a BEGIN record, such as `tank/home@monday`: at most 255 bytes and no NUL.
///
/// It is the sender's name and is not used for anything here. It may hold any bytes, even `..`, or be empty.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct ToName(Box<[u8]>);

impl ToName {
    /// Longest name in bytes (`MAXNAMELEN` less the NUL).
    pub const MAX_LEN: usize = 255;

    /// Creates a name from these bytes. `None` if they are too long or contain a NUL.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        (bytes.len() <= Self::MAX_LEN && !bytes.contains(&0)).then(|| Self(bytes.into()))
    }

    /// The name's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The name, if it is UTF-8.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }
}

impl std::fmt::Display for ToName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl std::fmt::Debug for ToName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

/// `drr_begin`. Payload: a packed nvlist of [`payload_len`](Self::payload_len) bytes, or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    /// Substream or package.
    pub header_type: HeaderType,
    /// The features that a receiver must understand.
    pub features: Features,
    /// Creation time of the snapshot, in seconds since 1970.
    pub creation_time: u64,
    /// `dmu_objset_type_t`: 2 is a file system, 3 a volume, 4 another kind. 0 in packages.
    pub objset_type: u32,
    /// Flags.
    pub flags: BeginFlags,
    /// Guid of the snapshot sent; 0 in packages.
    pub to_guid: u64,
    /// Guid of the snapshot or bookmark that the stream is incremental from. 0 if the stream is full.
    pub from_guid: u64,
    /// Name of the snapshot sent.
    pub to_name: ToName,
    /// Length of the payload in bytes.
    pub payload_len: u32,
}

/// `drr_object`. Payload: the bonus buffer, padded to 8 bytes unless raw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Object {
    /// Object number.
    pub object: u64,
    /// `dmu_object_type_t` of the object.
    pub object_type: u32,
    /// `dmu_object_type_t` of the bonus buffer.
    pub bonus_type: u32,
    /// Data block size in bytes.
    pub block_size: u32,
    /// Bytes of the bonus buffer in use.
    pub bonus_len: u32,
    /// `enum zio_checksum` of the dnode (0 is inherit).
    pub checksum_type: u8,
    /// `enum zio_compress` of the dnode (0 is inherit).
    pub compress: u8,
    /// Dnode slots of 512 bytes; 0 means 1 (streams of before large dnodes).
    pub dn_slots: u8,
    /// [`Object::SPILL`], [`Object::RAW_BYTESWAP`].
    pub flags: u8,
    /// Length of the payload in raw streams; 0 in others.
    pub raw_bonus_len: u32,
    /// Guid of the snapshot.
    pub to_guid: u64,
    /// log2 of the indirect block size (raw streams only).
    pub indirect_block_shift: u8,
    /// Levels of the block tree (raw streams only).
    pub nlevels: u8,
    /// Block pointers in the dnode (raw streams only).
    pub nblkptr: u8,
    /// Highest block of the object (raw streams only).
    pub max_blkid: u64,
}

impl Object {
    /// The raw bonus buffer is of the other byte order than the stream (`DRR_RAW_BYTESWAP`).
    pub const RAW_BYTESWAP: u8 = 1 << 1;
    /// The object has a spill block (`DRR_OBJECT_SPILL`); see [`BeginFlags::SPILL_BLOCK`].
    pub const SPILL: u8 = 1 << 2;

    /// Number of dnode slots. The 0 of old streams is read as 1.
    #[must_use]
    pub const fn slots(&self) -> u8 {
        if self.dn_slots == 0 { 1 } else { self.dn_slots }
    }
}

/// `drr_freeobjects`. No payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct FreeObjects {
    /// First object number freed.
    pub first: u64,
    /// Number of object numbers.
    pub count: u64,
    /// Guid of the snapshot.
    pub to_guid: u64,
}

/// Encryption parameters, other than the key. All zero except in raw streams.
///
/// They are byte arrays as on the wire, and so the same in both byte orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
pub struct Crypt {
    /// Salt of the key derivation (`ZIO_DATA_SALT_LEN`).
    pub salt: [u8; 8],
    /// Initialisation vector (`ZIO_DATA_IV_LEN`).
    pub iv: [u8; 12],
    /// Message authentication code (`ZIO_DATA_MAC_LEN`).
    pub mac: [u8; 16],
}

/// `ddt_key_t`: the key by which `zfs send -D` compared blocks. Receivers do not need it. It is kept for exact copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
pub struct DedupKey {
    /// Checksum of the block at the sender.
    pub checksum: [u64; 4],
    /// Sizes, compression and encryption of the block at the sender (`ddk_prop`).
    pub prop: u64,
}

/// `drr_write`. Payload: `compressed_size` bytes if `compression` is not 0, otherwise `logical_size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Write {
    /// Object number.
    pub object: u64,
    /// `dmu_object_type_t` of the object.
    pub object_type: u32,
    /// Offset in the object, in bytes.
    pub offset: u64,
    /// Size of the block, in bytes.
    pub logical_size: u64,
    /// Guid of the snapshot.
    pub to_guid: u64,
    /// `enum zio_checksum` of the block at the sender.
    pub checksum_type: u8,
    /// [`Write::CHECKSUM_DEDUP`], [`Write::RAW_BYTESWAP`].
    pub flags: u8,
    /// `enum zio_compress` of the payload; 0 when it is not compressed.
    pub compression: u8,
    /// The sender's deduplication key.
    pub key: DedupKey,
    /// Size of the payload if it is compressed or raw, otherwise 0.
    pub compressed_size: u64,
    /// Encryption parameters (raw streams only).
    pub crypt: Crypt,
}

impl Write {
    /// The checksum is strong enough for deduplication (`DRR_CHECKSUM_DEDUP`).
    pub const CHECKSUM_DEDUP: u8 = 1;
    /// The raw payload is of the other byte order than the stream (`DRR_RAW_BYTESWAP`).
    pub const RAW_BYTESWAP: u8 = 1 << 1;
}

/// `drr_free`. No payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Free {
    /// Object number.
    pub object: u64,
    /// Offset in the object, in bytes.
    pub offset: u64,
    /// Number of bytes. [`Free::TO_END`] means up to the end.
    pub length: u64,
    /// Guid of the snapshot.
    pub to_guid: u64,
}

impl Free {
    /// A length that means "to the end of the object".
    pub const TO_END: u64 = u64::MAX;
}

/// `drr_end`. No payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct End {
    /// Fletcher-4 of the stream from BEGIN to before END; zero in the END of a package.
    pub checksum: [u64; 4],
    /// Guid of the snapshot; 0 in packages.
    pub to_guid: u64,
}

/// `drr_write_byref`. No payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct WriteByRef {
    /// Object number.
    pub object: u64,
    /// Offset in the object, in bytes.
    pub offset: u64,
    /// Size of the block, in bytes.
    pub length: u64,
    /// Guid of the snapshot.
    pub to_guid: u64,
    /// Guid of the snapshot that has the data.
    pub ref_guid: u64,
    /// Object that has the data.
    pub ref_object: u64,
    /// Offset in that object, in bytes.
    pub ref_offset: u64,
    /// `enum zio_checksum` of the key.
    pub checksum_type: u8,
    /// [`Write::CHECKSUM_DEDUP`].
    pub flags: u8,
    /// The sender's deduplication key.
    pub key: DedupKey,
}

/// `drr_spill`. Payload: `compressed_size` bytes if that is not 0, otherwise `length`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Spill {
    /// Object number.
    pub object: u64,
    /// Size of the spill block, in bytes.
    pub length: u64,
    /// Guid of the snapshot.
    pub to_guid: u64,
    /// [`Spill::UNMODIFIED`], [`Write::RAW_BYTESWAP`].
    pub flags: u8,
    /// `enum zio_compress` of the payload (raw streams only).
    pub compression: u8,
    /// Size of the payload in raw streams, otherwise 0.
    pub compressed_size: u64,
    /// Encryption parameters (raw streams only).
    pub crypt: Crypt,
    /// `dmu_object_type_t` of the spill block (raw streams only).
    pub object_type: u32,
}

impl Spill {
    /// The block has not changed and was sent only for old receivers (`DRR_SPILL_UNMODIFIED`).
    pub const UNMODIFIED: u8 = 1 << 2;
}

/// `drr_write_embedded`. Payload: `psize` bytes, padded to 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct WriteEmbedded {
    /// Object number.
    pub object: u64,
    /// Offset in the object, in bytes.
    pub offset: u64,
    /// Size of the block, in bytes.
    pub length: u64,
    /// Guid of the snapshot.
    pub to_guid: u64,
    /// `enum zio_compress` of the payload.
    pub compression: u8,
    /// `bp_embedded_type_t`: 0 is data.
    pub embedded_type: u8,
    /// Size of the payload after decompression, in bytes. The rest of the block is zero.
    pub lsize: u32,
    /// Size of the payload without its padding, in bytes.
    pub psize: u32,
}

impl WriteEmbedded {
    /// Most bytes a block pointer can embed (`BPE_PAYLOAD_SIZE`).
    pub const MAX_PSIZE: u32 = 112;

    /// The number that OpenZFS uses for a spill block (`DMU_SPILL_BLKID`, dmu.h).
    const SPILL_BLOCK: u64 = u64::MAX - 1;

    /// Whether this is the object's spill block. OpenZFS sends a spill block that is embedded in its pointer in this
    /// record, not in a SPILL record, and loses it when it receives the record (seen in 2.4.4).
    pub fn is_spill(&self) -> bool {
        self.length > 0 && self.offset == self.length.wrapping_mul(Self::SPILL_BLOCK)
    }
}

/// `drr_object_range`. No payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ObjectRange {
    /// First object number of the dnode block.
    pub first: u64,
    /// Number of dnode slots: always a whole dnode block of 32.
    pub count: u64,
    /// Guid of the snapshot.
    pub to_guid: u64,
    /// Encryption parameters of the dnode block.
    pub crypt: Crypt,
    /// [`Write::RAW_BYTESWAP`].
    pub flags: u8,
}

/// `drr_redact`. No payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Redact {
    /// Object number.
    pub object: u64,
    /// Offset in the object, in bytes.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// Guid of the snapshot.
    pub to_guid: u64,
}

const fn round_up_8(n: u64) -> u64 {
    n.saturating_add(7) & !7
}

impl Record {
    /// Number of record types (`DRR_NUMTYPES`).
    pub const KINDS: usize = 11;

    /// Bytes of payload that follow this header on the wire, including padding.
    #[must_use]
    pub fn payload_len(&self) -> u64 {
        match self {
            Self::Begin(b) => u64::from(b.payload_len),
            Self::Object(o) if o.raw_bonus_len != 0 => u64::from(o.raw_bonus_len),
            Self::Object(o) => round_up_8(u64::from(o.bonus_len)),
            Self::Write(w) if w.compression != 0 => w.compressed_size,
            Self::Write(w) => w.logical_size,
            Self::Spill(s) if s.compressed_size != 0 => s.compressed_size,
            Self::Spill(s) => s.length,
            Self::WriteEmbedded(e) => round_up_8(u64::from(e.psize)),
            _ => 0,
        }
    }

    /// Bytes of payload without padding: see [`payload_len`](Self::payload_len).
    #[must_use]
    pub fn content_len(&self) -> u64 {
        match self {
            Self::Object(o) if o.raw_bonus_len == 0 => u64::from(o.bonus_len),
            Self::WriteEmbedded(e) => u64::from(e.psize),
            _ => self.payload_len(),
        }
    }

    /// The record type as OpenZFS prints it, without its `DRR_` prefix.
    #[must_use]
    pub fn kind_name(&self) -> &'static str {
        Self::kind_name_of(self.kind()).unwrap_or("")
    }

    /// `drr_type`.
    #[must_use]
    pub const fn kind(&self) -> u32 {
        match self {
            Self::Begin(_) => 0,
            Self::Object(_) => 1,
            Self::FreeObjects(_) => 2,
            Self::Write(_) => 3,
            Self::Free(_) => 4,
            Self::End(_) => 5,
            Self::WriteByRef(_) => 6,
            Self::Spill(_) => 7,
            Self::WriteEmbedded(_) => 8,
            Self::ObjectRange(_) => 9,
            Self::Redact(_) => 10,
        }
    }

    /// The name of a `drr_type`, or `None` when there is no such type.
    #[must_use]
    pub fn kind_name_of(kind: u32) -> Option<&'static str> {
        const NAMES: [&str; Record::KINDS] = [
            "BEGIN",
            "OBJECT",
            "FREEOBJECTS",
            "WRITE",
            "FREE",
            "END",
            "WRITE_BYREF",
            "SPILL",
            "WRITE_EMBEDDED",
            "OBJECT_RANGE",
            "REDACT",
        ];
        usize::try_from(kind).ok().and_then(|k| NAMES.get(k)).copied()
    }

    /// The guid in the record of the snapshot that it belongs to.
    #[must_use]
    pub const fn to_guid(&self) -> u64 {
        match self {
            Self::Begin(r) => r.to_guid,
            Self::Object(r) => r.to_guid,
            Self::FreeObjects(r) => r.to_guid,
            Self::Write(r) => r.to_guid,
            Self::Free(r) => r.to_guid,
            Self::End(r) => r.to_guid,
            Self::WriteByRef(r) => r.to_guid,
            Self::Spill(r) => r.to_guid,
            Self::WriteEmbedded(r) => r.to_guid,
            Self::ObjectRange(r) => r.to_guid,
            Self::Redact(r) => r.to_guid,
        }
    }

    /// The object that the record is about, if it is about one.
    #[must_use]
    pub const fn object(&self) -> Option<u64> {
        match self {
            Self::Object(r) => Some(r.object),
            Self::Write(r) => Some(r.object),
            Self::Free(r) => Some(r.object),
            Self::WriteByRef(r) => Some(r.object),
            Self::Spill(r) => Some(r.object),
            Self::WriteEmbedded(r) => Some(r.object),
            Self::Redact(r) => Some(r.object),
            _ => None,
        }
    }
}
