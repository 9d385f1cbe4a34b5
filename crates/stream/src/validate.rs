//! Rules for one record, given its BEGIN: all rules that need neither the pool nor earlier records.
//!
//! These are the checks of `recv_check_drr_*` in `module/zfs/dmu_recv.c` (OpenZFS after 2.4), and those of 2.1-2.3 in
//! `receive_object` and its neighbours. Here they are made before a payload is read, so that nothing is allocated
//! because of a hostile record. Records of real senders of any age are accepted, even where the newest rules forbid
//! them.

#[cfg(test)]
mod tests;

use crate::compress::Compression;
use crate::error::Violation;
use crate::features::Features;
use crate::record::{
    Begin, BeginFlags, Free, FreeObjects, HeaderType, Object, ObjectRange, Record, Spill, Write, WriteByRef,
    WriteEmbedded,
};

/// Maximum length of BEGIN's payload, in bytes. A package of 100,000 snapshots needs about 10 MiB.
pub const MAX_BEGIN_PAYLOAD: u32 = 64 << 20;
/// Smallest block, and the unit of all block sizes (`SPA_MINBLOCKSIZE`).
pub const MIN_BLOCK: u64 = 512;
/// Largest block without LARGE_BLOCKS (`SPA_OLD_MAXBLOCKSIZE`).
pub const OLD_MAX_BLOCK: u64 = 128 << 10;
/// Largest block of all (`SPA_MAXBLOCKSIZE`).
pub const MAX_BLOCK: u64 = 16 << 20;
/// First object number that cannot exist (`DN_MAX_OBJECT`).
pub const MAX_OBJECT: u64 = 1 << 48;
/// Most slots of a dnode (`DNODE_MAX_SIZE` / 512).
const MAX_SLOTS: u64 = 32;
/// Objects in a dnode block (`DNODES_PER_BLOCK`).
const DNODES_PER_BLOCK: u64 = 32;
/// Number of object types before `DMU_OT_NEWTYPE` (`DMU_OT_NUMTYPES`).
const OBJECT_TYPES: u32 = 54;
/// Number of ways to byteswap an object (`DMU_BSWAP_NUMFUNCS`).
const BYTESWAPS: u32 = 10;
/// Number of checksum algorithms (`ZIO_CHECKSUM_FUNCTIONS`).
const CHECKSUMS: u8 = 15;
/// `DMU_OT_SA`. Its bonus may be empty.
const OT_SA: u32 = 44;
/// `DMU_OTN_UINT64_METADATA`. Its bonus may be empty.
const OTN_UINT64_METADATA: u32 = 0xc3;

/// The parts of BEGIN that decide which contents of later records are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BeginContext {
    /// The stream's features.
    pub features: Features,
    /// The stream's flags.
    pub flags: BeginFlags,
    /// The snapshot's guid.
    pub to_guid: u64,
    /// The guid of the snapshot that the stream is incremental from. 0 if it is full.
    pub from_guid: u64,
}

impl BeginContext {
    /// The context of a BEGIN.
    #[must_use]
    pub fn of(begin: &Begin) -> Self {
        Self {
            features: begin.features,
            flags: begin.flags,
            to_guid: begin.to_guid,
            from_guid: begin.from_guid,
        }
    }

    fn raw(&self) -> bool {
        self.features.contains(Features::RAW)
    }

    fn require(&self, feature: Features, what: &'static str) -> Result<(), Violation> {
        if self.features.contains(feature) {
            Ok(())
        } else {
            Err(Violation::FeatureMissing { what, feature })
        }
    }
}

/// Checks one record's fields against its stream's BEGIN.
///
/// # Errors
/// The first rule that the record breaks.
pub fn validate(record: &Record, context: &BeginContext) -> Result<(), Violation> {
    match record {
        Record::Begin(r) => return begin(r),
        Record::End(_) => {}
        Record::Object(r) => object(r, context)?,
        Record::FreeObjects(r) => free_objects(r)?,
        Record::Write(r) => write(r, context)?,
        Record::Free(r) => free(r)?,
        Record::WriteByRef(r) => write_byref(r, context)?,
        Record::Spill(r) => spill(r, context)?,
        Record::WriteEmbedded(r) => write_embedded(r, context)?,
        Record::ObjectRange(r) => object_range(r, context)?,
        Record::Redact(r) => {
            context.require(Features::REDACTED, "REDACT")?;
            object_number(r.object)?;
            no_overflow("offset + length", r.offset, r.length)?;
        }
    }
    if record.to_guid() != context.to_guid {
        return Err(Violation::ForeignGuid { expected: context.to_guid, found: record.to_guid() });
    }
    Ok(())
}

fn begin(r: &Begin) -> Result<(), Violation> {
    let unknown = r.features.unknown();
    if unknown != Features::NONE {
        return Err(Violation::UnknownFeatures { unknown });
    }
    // A sender that cannot send large blocks refuses to send large micro ZAPs (`setup_featureflags` in `dmu_send.c`).
    if r.features.contains(Features::LARGE_MICROZAP) {
        BeginContext::of(r).require(Features::LARGE_BLOCKS, "feature LARGE_MICROZAP")?;
    }
    match r.header_type {
        // File system, volume, other (`DMU_OST_ZFS`, `DMU_OST_ZVOL`, `DMU_OST_OTHER`).
        HeaderType::Substream => range("object set type", u64::from(r.objset_type), 2, 4)?,
        HeaderType::Compound => {}
    }
    range("payload length", u64::from(r.payload_len), 0, u64::from(MAX_BEGIN_PAYLOAD))?;
    aligned("payload length", u64::from(r.payload_len), 4)
}

fn object(r: &Object, context: &BeginContext) -> Result<(), Violation> {
    object_number(r.object)?;
    if r.object_type == 0 {
        return Err(Violation::Unknown { field: "object type", found: 0 });
    }
    object_type("object type", r.object_type)?;
    object_type("bonus type", r.bonus_type)?;
    let may_be_empty = matches!(r.bonus_type, 0 | OT_SA | OTN_UINT64_METADATA);
    if (r.bonus_len == 0 && !may_be_empty) || (r.bonus_len != 0 && r.bonus_type == 0) {
        return Err(Violation::Bonus { bonus_type: r.bonus_type, bonus_len: r.bonus_len });
    }
    checksum_type(r.checksum_type)?;
    compression("compression", r.compress)?;
    block_size("block size", u64::from(r.block_size), context)?;
    let slots = u64::from(r.slots());
    range("dnode slots", slots, 1, MAX_SLOTS)?;
    if slots > 1 {
        context.require(Features::LARGE_DNODE, "dnode of several slots")?;
    }
    range("last slot", r.object + slots - 1, 1, MAX_OBJECT - 1)?;
    // The size of a dnode minus its 64-byte core and the one block pointer that it always has.
    let capacity = slots * 512 - 64 - 128;
    range("bonus length", u64::from(r.bonus_len), 0, capacity)?;
    if r.flags & Object::SPILL != 0 && !context.flags.contains(BeginFlags::SPILL_BLOCK) {
        return Err(Violation::MustBeZero {
            field: "spill flag",
            found: 1,
            when: "when BEGIN lacks SPILL_BLOCK",
        });
    }
    if context.raw() { raw_object(r, capacity) } else { plain_object(r) }
}

fn raw_object(r: &Object, capacity: u64) -> Result<(), Violation> {
    flags(r.flags, Object::SPILL | Object::RAW_BYTESWAP)?;
    if r.indirect_block_shift != 0 {
        range("indirect block shift", u64::from(r.indirect_block_shift), 12, 17)?;
    }
    range("levels", u64::from(r.nlevels), 1, 12)?;
    range("block pointers", u64::from(r.nblkptr), 1, 3)?;
    let pointers = u64::from(r.nblkptr) - 1 + u64::from(r.flags & Object::SPILL != 0);
    let max = capacity.saturating_sub(pointers * 128);
    range("raw bonus length", u64::from(r.raw_bonus_len), u64::from(r.bonus_len), max)?;
    aligned("raw bonus length", u64::from(r.raw_bonus_len), 4)
}

fn plain_object(r: &Object) -> Result<(), Violation> {
    flags(r.flags, Object::SPILL)?;
    for (field, found) in [
        ("raw bonus length", r.raw_bonus_len),
        ("indirect block shift", u32::from(r.indirect_block_shift)),
        ("levels", u32::from(r.nlevels)),
        ("block pointers", u32::from(r.nblkptr)),
    ] {
        zero(field, u64::from(found), "in streams that are not raw")?;
    }
    Ok(())
}

fn free_objects(r: &FreeObjects) -> Result<(), Violation> {
    no_overflow("first object + count", r.first, r.count)
}

fn free(r: &Free) -> Result<(), Violation> {
    object_number(r.object)?;
    if r.length == Free::TO_END { Ok(()) } else { no_overflow("offset + length", r.offset, r.length) }
}

fn write(r: &Write, context: &BeginContext) -> Result<(), Violation> {
    object_number(r.object)?;
    object_type("object type", r.object_type)?;
    checksum_type(r.checksum_type)?;
    block_size("logical size", r.logical_size, context)?;
    no_overflow("offset + logical size", r.offset, r.logical_size)?;
    compression("compression", r.compression)?;
    if context.raw() || r.compression != 0 {
        if !context.raw() {
            context.require(Features::COMPRESSED, "compressed WRITE")?;
        }
        algorithm_feature(r.compression, context)?;
        range("compressed size", r.compressed_size, 1, r.logical_size)?;
        aligned("compressed size", r.compressed_size, 4)
    } else {
        zero("compressed size", r.compressed_size, "when not compressed")
    }
}

fn write_byref(r: &WriteByRef, context: &BeginContext) -> Result<(), Violation> {
    if !context.features.intersects(Features::DEDUP | Features::DEDUPPROPS) {
        context.require(Features::DEDUP, "WRITE_BYREF")?;
    }
    object_number(r.object)?;
    object_number(r.ref_object)?;
    block_size("length", r.length, context)?;
    no_overflow("offset + length", r.offset, r.length)?;
    no_overflow("referenced offset + length", r.ref_offset, r.length)
}

fn spill(r: &Spill, context: &BeginContext) -> Result<(), Violation> {
    object_number(r.object)?;
    object_type("object type", r.object_type)?;
    range("length", r.length, MIN_BLOCK, MAX_BLOCK)?;
    aligned("length", r.length, MIN_BLOCK)?;
    compression("compression", r.compression)?;
    if context.raw() {
        algorithm_feature(r.compression, context)?;
        range("compressed size", r.compressed_size, 1, r.length)?;
        aligned("compressed size", r.compressed_size, 4)
    } else {
        zero("compressed size", r.compressed_size, "in streams that are not raw")?;
        zero("compression", u64::from(r.compression), "in streams that are not raw")
    }
}

fn write_embedded(r: &WriteEmbedded, context: &BeginContext) -> Result<(), Violation> {
    context.require(Features::EMBED_DATA, "WRITE_EMBEDDED")?;
    if context.raw() {
        return Err(Violation::OutOfPlace { expected: "raw streams have no WRITE_EMBEDDED" });
    }
    object_number(r.object)?;
    block_size("length", r.length, context)?;
    no_overflow("offset + length", r.offset, r.length)?;
    if r.embedded_type != 0 {
        return Err(Violation::Unknown { field: "embedded type", found: u64::from(r.embedded_type) });
    }
    compression("compression", r.compression)?;
    algorithm_feature(r.compression, context)?;
    range("logical size", u64::from(r.lsize), 1, r.length)?;
    let max = u64::from(WriteEmbedded::MAX_PSIZE.min(r.lsize));
    // Off means that nothing is saved, so both sizes are the same.
    let min = if r.compression == Compression::Off.id() { u64::from(r.lsize) } else { 1 };
    range("payload size", u64::from(r.psize), min, max)
}

fn object_range(r: &ObjectRange, context: &BeginContext) -> Result<(), Violation> {
    context.require(Features::RAW, "OBJECT_RANGE")?;
    range("slots", r.count, DNODES_PER_BLOCK, DNODES_PER_BLOCK)?;
    aligned("first object", r.first, DNODES_PER_BLOCK)?;
    range("first object", r.first, 0, MAX_OBJECT - DNODES_PER_BLOCK)
}

fn object_number(object: u64) -> Result<(), Violation> {
    range("object number", object, 1, MAX_OBJECT - 1)
}

/// `DMU_OT_IS_VALID`: an old type by its number, or a new one by its byteswap function.
fn object_type(field: &'static str, found: u32) -> Result<(), Violation> {
    let known = match found {
        0..OBJECT_TYPES => true,
        0x80..=0xff => found & 0x1f < BYTESWAPS,
        _ => false,
    };
    if known { Ok(()) } else { Err(Violation::Unknown { field, found: u64::from(found) }) }
}

fn checksum_type(found: u8) -> Result<(), Violation> {
    if found < CHECKSUMS {
        Ok(())
    } else {
        Err(Violation::Unknown { field: "checksum type", found: found.into() })
    }
}

fn compression(field: &'static str, found: u8) -> Result<(), Violation> {
    match Compression::from_id(found) {
        Some(_) => Ok(()),
        None => Err(Violation::Unknown { field, found: u64::from(found) }),
    }
}

fn algorithm_feature(id: u8, context: &BeginContext) -> Result<(), Violation> {
    match Compression::from_id(id) {
        Some(Compression::Zstd) => context.require(Features::ZSTD, "zstd-compressed payload"),
        Some(Compression::Lz4) => context.require(Features::LZ4, "lz4-compressed payload"),
        _ => Ok(()),
    }
}

fn block_size(field: &'static str, size: u64, context: &BeginContext) -> Result<(), Violation> {
    range(field, size, MIN_BLOCK, MAX_BLOCK)?;
    aligned(field, size, MIN_BLOCK)?;
    if size > OLD_MAX_BLOCK {
        context.require(Features::LARGE_BLOCKS, "block of more than 128 KiB")?;
    }
    Ok(())
}

fn flags(found: u8, known: u8) -> Result<(), Violation> {
    match found & !known {
        0 => Ok(()),
        bits => Err(Violation::Unknown { field: "flags", found: u64::from(bits) }),
    }
}

fn range(field: &'static str, found: u64, min: u64, max: u64) -> Result<(), Violation> {
    if (min..=max).contains(&found) { Ok(()) } else { Err(Violation::Range { field, found, min, max }) }
}

fn aligned(field: &'static str, found: u64, unit: u64) -> Result<(), Violation> {
    if found.is_multiple_of(unit) { Ok(()) } else { Err(Violation::Unaligned { field, found, unit }) }
}

fn zero(field: &'static str, found: u64, when: &'static str) -> Result<(), Violation> {
    if found == 0 { Ok(()) } else { Err(Violation::MustBeZero { field, found, when }) }
}

fn no_overflow(field: &'static str, start: u64, length: u64) -> Result<(), Violation> {
    match start.checked_add(length) {
        Some(_) => Ok(()),
        None => Err(Violation::Overflow { field, start, length }),
    }
}
