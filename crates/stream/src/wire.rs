//! The byte layout of record headers, in either byte order.
//!
//! Offsets are those of `dmu_replay_record_t`, which has the same layout on every OpenZFS platform
//! (`include/sys/zfs_ioctl.h`). Integers are in the sender's byte order. Byte arrays (names, salts, IVs, MACs) are the
//! same in both.

use crate::byte_order::ByteOrder;
use crate::error::Violation;
use crate::features::Features;
use crate::record::{
    Begin, BeginFlags, Crypt, DedupKey, End, Free, FreeObjects, HeaderType, Object, ObjectRange, RECORD_LEN,
    Record, Redact, Spill, ToName, Write, WriteByRef, WriteEmbedded,
};

/// `DMU_BACKUP_MAGIC`.
pub const MAGIC: u64 = 0x2_f5ba_cbac;

/// Offset of the running checksum in every record except BEGIN.
pub(crate) const OFF_CHECKSUM: usize = RECORD_LEN - 32;
const OFF_TYPE: usize = 0;
const OFF_PAYLOAD_LEN: usize = 4;
const OFF_MAGIC: usize = 8;
const OFF_TO_NAME: usize = 56;
const _: () = assert!(OFF_TO_NAME + ToName::MAX_LEN + 1 == RECORD_LEN);

/// A header's bytes, read in one byte order. All offsets are constants within [`RECORD_LEN`].
pub(crate) struct HeaderBytes<'a> {
    bytes: &'a [u8; RECORD_LEN],
    order: ByteOrder,
}

impl<'a> HeaderBytes<'a> {
    pub(crate) fn new(bytes: &'a [u8; RECORD_LEN], order: ByteOrder) -> Self {
        Self { bytes, order }
    }

    /// The byte order of a stream that begins with `bytes`, if it is a stream.
    pub(crate) fn detect(bytes: &[u8; RECORD_LEN]) -> Result<ByteOrder, u64> {
        let magic = HeaderBytes::new(bytes, ByteOrder::Little).u64(OFF_MAGIC);
        match magic {
            MAGIC => Ok(ByteOrder::Little),
            m if m.swap_bytes() == MAGIC => Ok(ByteOrder::Big),
            m => Err(m),
        }
    }

    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&self.bytes[at..at + N]);
        out
    }

    fn u8(&self, at: usize) -> u8 {
        self.bytes[at]
    }

    fn u32(&self, at: usize) -> u32 {
        match self.order {
            ByteOrder::Little => u32::from_le_bytes(self.array(at)),
            ByteOrder::Big => u32::from_be_bytes(self.array(at)),
        }
    }

    fn u64(&self, at: usize) -> u64 {
        match self.order {
            ByteOrder::Little => u64::from_le_bytes(self.array(at)),
            ByteOrder::Big => u64::from_be_bytes(self.array(at)),
        }
    }

    fn words(&self, at: usize) -> [u64; 4] {
        [self.u64(at), self.u64(at + 8), self.u64(at + 16), self.u64(at + 24)]
    }

    fn crypt(&self, at: usize) -> Crypt {
        Crypt { salt: self.array(at), iv: self.array(at + 8), mac: self.array(at + 20) }
    }

    fn key(&self, at: usize) -> DedupKey {
        DedupKey { checksum: self.words(at), prop: self.u64(at + 32) }
    }

    pub(crate) fn kind(&self) -> u32 {
        self.u32(OFF_TYPE)
    }

    pub(crate) fn checksum(&self) -> [u64; 4] {
        self.words(OFF_CHECKSUM)
    }

    /// Decodes the record. Its values are not checked yet: see [`crate::validate`].
    pub(crate) fn decode(&self) -> Result<Record, Violation> {
        Ok(match self.kind() {
            0 => Record::Begin(self.begin()?),
            1 => Record::Object(self.object()),
            2 => Record::FreeObjects(FreeObjects {
                first: self.u64(8),
                count: self.u64(16),
                to_guid: self.u64(24),
            }),
            3 => Record::Write(self.write()),
            4 => Record::Free(Free {
                object: self.u64(8),
                offset: self.u64(16),
                length: self.u64(24),
                to_guid: self.u64(32),
            }),
            5 => Record::End(End { checksum: self.words(8), to_guid: self.u64(40) }),
            6 => Record::WriteByRef(self.write_byref()),
            7 => Record::Spill(Spill {
                object: self.u64(8),
                length: self.u64(16),
                to_guid: self.u64(24),
                flags: self.u8(32),
                compression: self.u8(33),
                compressed_size: self.u64(40),
                crypt: self.crypt(48),
                object_type: self.u32(84),
            }),
            8 => Record::WriteEmbedded(WriteEmbedded {
                object: self.u64(8),
                offset: self.u64(16),
                length: self.u64(24),
                to_guid: self.u64(32),
                compression: self.u8(40),
                embedded_type: self.u8(41),
                lsize: self.u32(48),
                psize: self.u32(52),
            }),
            9 => Record::ObjectRange(ObjectRange {
                first: self.u64(8),
                count: self.u64(16),
                to_guid: self.u64(24),
                crypt: self.crypt(32),
                flags: self.u8(68),
            }),
            10 => Record::Redact(Redact {
                object: self.u64(8),
                offset: self.u64(16),
                length: self.u64(24),
                to_guid: self.u64(32),
            }),
            kind => return Err(Violation::UnknownKind { kind }),
        })
    }

    fn begin(&self) -> Result<Begin, Violation> {
        let magic = self.u64(OFF_MAGIC);
        if magic != MAGIC {
            return Err(Violation::Magic { found: magic });
        }
        let version = self.u64(16);
        let header_type = match version & 3 {
            1 => HeaderType::Substream,
            2 => HeaderType::Compound,
            found => return Err(Violation::HeaderType { found }),
        };
        let name = &self.bytes[OFF_TO_NAME..];
        let len = name.iter().position(|&b| b == 0).ok_or(Violation::NameUnterminated)?;
        let to_name = ToName::new(&name[..len]).ok_or(Violation::NameUnterminated)?;
        Ok(Begin {
            header_type,
            features: Features(version >> 2),
            creation_time: self.u64(24),
            objset_type: self.u32(32),
            flags: BeginFlags(self.u32(36)),
            to_guid: self.u64(40),
            from_guid: self.u64(48),
            to_name,
            payload_len: self.u32(OFF_PAYLOAD_LEN),
        })
    }

    fn object(&self) -> Object {
        Object {
            object: self.u64(8),
            object_type: self.u32(16),
            bonus_type: self.u32(20),
            block_size: self.u32(24),
            bonus_len: self.u32(28),
            checksum_type: self.u8(32),
            compress: self.u8(33),
            dn_slots: self.u8(34),
            flags: self.u8(35),
            raw_bonus_len: self.u32(36),
            to_guid: self.u64(40),
            indirect_block_shift: self.u8(48),
            nlevels: self.u8(49),
            nblkptr: self.u8(50),
            max_blkid: self.u64(56),
        }
    }

    fn write(&self) -> Write {
        Write {
            object: self.u64(8),
            object_type: self.u32(16),
            offset: self.u64(24),
            logical_size: self.u64(32),
            to_guid: self.u64(40),
            checksum_type: self.u8(48),
            flags: self.u8(49),
            compression: self.u8(50),
            key: self.key(56),
            compressed_size: self.u64(96),
            crypt: self.crypt(104),
        }
    }

    fn write_byref(&self) -> WriteByRef {
        WriteByRef {
            object: self.u64(8),
            offset: self.u64(16),
            length: self.u64(24),
            to_guid: self.u64(32),
            ref_guid: self.u64(40),
            ref_object: self.u64(48),
            ref_offset: self.u64(56),
            checksum_type: self.u8(64),
            flags: self.u8(65),
            key: self.key(72),
        }
    }
}

/// A header being written in one byte order.
pub(crate) struct HeaderMut {
    bytes: [u8; RECORD_LEN],
    order: ByteOrder,
}

impl HeaderMut {
    /// The record's bytes, with zeros in the place of the running checksum.
    pub(crate) fn encode(record: &Record, order: ByteOrder) -> Self {
        let mut h = Self { bytes: [0; RECORD_LEN], order };
        h.u32(OFF_TYPE, record.kind());
        match record {
            Record::Begin(r) => h.begin(r),
            Record::Object(r) => h.object(r),
            Record::FreeObjects(r) => h.u64s(8, &[r.first, r.count, r.to_guid]),
            Record::Write(r) => h.write(r),
            Record::Free(r) => h.u64s(8, &[r.object, r.offset, r.length, r.to_guid]),
            Record::End(r) => {
                h.u64s(8, &r.checksum);
                h.u64s(40, &[r.to_guid]);
            }
            Record::WriteByRef(r) => h.write_byref(r),
            Record::Spill(r) => {
                h.u64s(8, &[r.object, r.length, r.to_guid]);
                h.put(32, &[r.flags, r.compression]);
                h.u64s(40, &[r.compressed_size]);
                h.crypt(48, &r.crypt);
                h.u32(84, r.object_type);
            }
            Record::WriteEmbedded(r) => {
                h.u64s(8, &[r.object, r.offset, r.length, r.to_guid]);
                h.put(40, &[r.compression, r.embedded_type]);
                h.u32(48, r.lsize);
                h.u32(52, r.psize);
            }
            Record::ObjectRange(r) => {
                h.u64s(8, &[r.first, r.count, r.to_guid]);
                h.crypt(32, &r.crypt);
                h.put(68, &[r.flags]);
            }
            Record::Redact(r) => h.u64s(8, &[r.object, r.offset, r.length, r.to_guid]),
        }
        h
    }

    pub(crate) fn bytes(&self) -> &[u8; RECORD_LEN] {
        &self.bytes
    }

    pub(crate) fn set_checksum(&mut self, words: &[u64; 4]) {
        self.u64s(OFF_CHECKSUM, words);
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn u32(&mut self, at: usize, v: u32) {
        match self.order {
            ByteOrder::Little => self.put(at, &v.to_le_bytes()),
            ByteOrder::Big => self.put(at, &v.to_be_bytes()),
        }
    }

    fn u64s(&mut self, at: usize, values: &[u64]) {
        for (i, v) in values.iter().enumerate() {
            match self.order {
                ByteOrder::Little => self.put(at + 8 * i, &v.to_le_bytes()),
                ByteOrder::Big => self.put(at + 8 * i, &v.to_be_bytes()),
            }
        }
    }

    fn crypt(&mut self, at: usize, c: &Crypt) {
        self.put(at, &c.salt);
        self.put(at + 8, &c.iv);
        self.put(at + 20, &c.mac);
    }

    fn key(&mut self, at: usize, k: &DedupKey) {
        self.u64s(at, &k.checksum);
        self.u64s(at + 32, &[k.prop]);
    }

    fn begin(&mut self, r: &Begin) {
        self.u32(OFF_PAYLOAD_LEN, r.payload_len);
        self.u64s(OFF_MAGIC, &[MAGIC, r.header_type as u64 | r.features.0 << 2, r.creation_time]);
        self.u32(32, r.objset_type);
        self.u32(36, r.flags.0);
        self.u64s(40, &[r.to_guid, r.from_guid]);
        self.put(OFF_TO_NAME, r.to_name.as_bytes());
    }

    fn object(&mut self, r: &Object) {
        self.u64s(8, &[r.object]);
        self.u32(16, r.object_type);
        self.u32(20, r.bonus_type);
        self.u32(24, r.block_size);
        self.u32(28, r.bonus_len);
        self.put(32, &[r.checksum_type, r.compress, r.dn_slots, r.flags]);
        self.u32(36, r.raw_bonus_len);
        self.u64s(40, &[r.to_guid]);
        self.put(48, &[r.indirect_block_shift, r.nlevels, r.nblkptr]);
        self.u64s(56, &[r.max_blkid]);
    }

    fn write(&mut self, r: &Write) {
        self.u64s(8, &[r.object]);
        self.u32(16, r.object_type);
        self.u64s(24, &[r.offset, r.logical_size, r.to_guid]);
        self.put(48, &[r.checksum_type, r.flags, r.compression]);
        self.key(56, &r.key);
        self.u64s(96, &[r.compressed_size]);
        self.crypt(104, &r.crypt);
    }

    fn write_byref(&mut self, r: &WriteByRef) {
        self.u64s(8, &[r.object, r.offset, r.length, r.to_guid, r.ref_guid, r.ref_object, r.ref_offset]);
        self.put(64, &[r.checksum_type, r.flags]);
        self.key(72, &r.key);
    }
}
