//! Records as text, in the form that `zstream dump` of OpenZFS 2.1 prints (`cmd/zstream/zstream_dump.c`).

use std::fmt;

use crate::nvlist::NvList;
use crate::record::{Begin, Crypt, HeaderType, Record};
use crate::verify::Summary;
use crate::wire::MAGIC;

/// One record as `zstream dump -v` prints it: a line (for BEGIN a paragraph), with its newline.
#[derive(Clone, Copy, Debug)]
pub struct DumpRecord<'a> {
    record: &'a Record,
    payload: &'a [u8],
    verbose: bool,
}

impl Record {
    /// The record as `zstream dump -v` prints it. Only the payload of BEGIN is read.
    #[must_use]
    pub fn dump<'a>(&'a self, payload: &'a [u8]) -> DumpRecord<'a> {
        DumpRecord { record: self, payload, verbose: true }
    }

    /// The record as `zstream dump` without `-v` prints it: only BEGIN and END give output.
    #[must_use]
    pub fn dump_brief<'a>(&'a self, payload: &'a [u8]) -> DumpRecord<'a> {
        DumpRecord { record: self, payload, verbose: false }
    }
}

impl fmt::Display for DumpRecord<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.record {
            Record::Begin(r) => begin(f, r, self.payload, self.verbose),
            Record::End(r) => {
                let [a, b, c, d] = r.checksum;
                writeln!(f, "END checksum = {a:x}/{b:x}/{c:x}/{d:x}")
            }
            _ if !self.verbose => Ok(()),
            record => line(f, record),
        }
    }
}

fn begin(f: &mut fmt::Formatter<'_>, r: &Begin, payload: &[u8], verbose: bool) -> fmt::Result {
    writeln!(f, "BEGIN record")?;
    writeln!(f, "\thdrtype = {}", r.header_type as u8)?;
    writeln!(f, "\tfeatures = {:x}", r.features.0)?;
    writeln!(f, "\tmagic = {MAGIC:x}")?;
    writeln!(f, "\tcreation_time = {:x}", r.creation_time)?;
    writeln!(f, "\ttype = {}", r.objset_type)?;
    writeln!(f, "\tflags = 0x{:x}", r.flags.0)?;
    writeln!(f, "\ttoguid = {:x}", r.to_guid)?;
    writeln!(f, "\tfromguid = {:x}", r.from_guid)?;
    writeln!(f, "\ttoname = {}", r.to_name)?;
    writeln!(f, "\tpayloadlen = {}", r.payload_len)?;
    if verbose {
        writeln!(f)?;
    }
    if payload.is_empty() {
        return Ok(());
    }
    match NvList::unpack(payload) {
        Ok(list) => write!(f, "{list}"),
        Err(e) => writeln!(f, "failed to unpack DRR_BEGIN nvlist: {e}"),
    }
}

fn line(f: &mut fmt::Formatter<'_>, record: &Record) -> fmt::Result {
    let payload_size = record.payload_len();
    match record {
        Record::Begin(_) | Record::End(_) => Ok(()),
        Record::Object(r) => writeln!(
            f,
            "OBJECT object = {} type = {} bonustype = {} blksz = {} bonuslen = {} dn_slots = {} raw_bonuslen = {} \
             flags = {} maxblkid = {} indblkshift = {} nlevels = {} nblkptr = {}",
            r.object,
            r.object_type,
            r.bonus_type,
            r.block_size,
            r.bonus_len,
            r.dn_slots,
            r.raw_bonus_len,
            r.flags,
            r.max_blkid,
            r.indirect_block_shift,
            r.nlevels,
            r.nblkptr
        ),
        Record::FreeObjects(r) => writeln!(f, "FREEOBJECTS firstobj = {} numobjs = {}", r.first, r.count),
        Record::Write(r) => writeln!(
            f,
            "WRITE object = {} type = {} checksum type = {} compression type = {} flags = {} offset = {} \
             logical_size = {} compressed_size = {} payload_size = {payload_size} props = {:x} {}",
            r.object,
            r.object_type,
            r.checksum_type,
            r.compression,
            r.flags,
            r.offset,
            r.logical_size,
            r.compressed_size,
            r.key.prop,
            DumpCrypt(&r.crypt)
        ),
        Record::WriteByRef(r) => writeln!(
            f,
            "WRITE_BYREF object = {} checksum type = {} props = {:x} offset = {} length = {} toguid = {:x} \
             refguid = {:x} refobject = {} refoffset = {}",
            r.object,
            r.checksum_type,
            r.key.prop,
            r.offset,
            r.length,
            r.to_guid,
            r.ref_guid,
            r.ref_object,
            r.ref_offset
        ),
        // A length to the end is printed as -1.
        Record::Free(r) => {
            writeln!(
                f,
                "FREE object = {} offset = {} length = {}",
                r.object,
                r.offset,
                r.length.cast_signed()
            )
        }
        Record::Spill(r) => writeln!(
            f,
            "SPILL block for object = {} length = {} flags = {} compression type = {} compressed_size = {} \
             payload_size = {payload_size} {}",
            r.object,
            r.length,
            r.flags,
            r.compression,
            r.compressed_size,
            DumpCrypt(&r.crypt)
        ),
        Record::WriteEmbedded(r) => writeln!(
            f,
            "WRITE_EMBEDDED object = {} offset = {} length = {} toguid = {:x} comp = {} etype = {} lsize = {} \
             psize = {}",
            r.object, r.offset, r.length, r.to_guid, r.compression, r.embedded_type, r.lsize, r.psize
        ),
        Record::ObjectRange(r) => writeln!(
            f,
            "OBJECT_RANGE firstobj = {} numslots = {} flags = {} {}",
            r.first,
            r.count,
            r.flags,
            DumpCrypt(&r.crypt)
        ),
        Record::Redact(r) => {
            writeln!(f, "REDACT object = {} offset = {} length = {}", r.object, r.offset, r.length)
        }
    }
}

struct DumpCrypt<'a>(&'a Crypt);

impl fmt::Display for DumpCrypt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex =
            |f: &mut fmt::Formatter<'_>, bytes: &[u8]| bytes.iter().try_for_each(|b| write!(f, "{b:02x}"));
        f.write_str("salt = ")?;
        hex(f, &self.0.salt)?;
        f.write_str(" iv = ")?;
        hex(f, &self.0.iv)?;
        f.write_str(" mac = ")?;
        hex(f, &self.0.mac)
    }
}

impl fmt::Display for Summary {
    /// The summary that `zstream dump` prints at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // By `drr_type`, in the order of the original. OBJECT_RANGE and REDACT are only in the totals.
        const ORDER: [u32; 9] = [0, 5, 1, 2, 3, 6, 8, 4, 7];
        writeln!(f, "SUMMARY:")?;
        for kind in ORDER {
            let name = Record::kind_name_of(kind).unwrap_or_default();
            let count =
                usize::try_from(kind).ok().and_then(|k| self.kinds.get(k)).copied().unwrap_or_default();
            writeln!(f, "\tTotal DRR_{name} records = {} ({} bytes)", count.records, count.payload)?;
        }
        let (records, payload) = (self.records(), self.payload());
        let headers = records * crate::record::RECORD_LEN as u64;
        writeln!(f, "\tTotal records = {records}")?;
        writeln!(f, "\tTotal payload size = {payload} (0x{payload:x})")?;
        writeln!(f, "\tTotal header overhead = {headers} (0x{headers:x})")?;
        writeln!(f, "\tTotal stream length = {0} (0x{0:x})", headers + payload)
    }
}

impl HeaderType {
    /// `substream` or `compound`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Substream => "substream",
            Self::Compound => "compound",
        }
    }
}
