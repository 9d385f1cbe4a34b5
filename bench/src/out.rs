//! Writing streams to standard output, and the records that every stream has.

use std::fs::File;
use std::io::{Write as _, stdout};

use anyhow::{Context as _, Result, anyhow};
use snowmelt_stream::{Begin, BeginFlags, End, Features, HeaderType, Record, ToName, Write, Writer};

use crate::SnapshotArgs;

/// `dmu_objset_type_t` of a filesystem.
pub const FILESYSTEM: u32 = 2;
/// `dmu_objset_type_t` of a volume.
pub const VOLUME: u32 = 3;
/// Creation time of all snapshots. It is fixed, so that the time of a run has no effect.
const CREATION: u64 = 1_800_000_000;

/// A stream that is written to standard output.
pub struct Out {
    writer: Writer<File>,
    guid: u64,
}

impl Out {
    /// Begins the stream of a snapshot, in full if `from` is 0.
    pub fn begin(snapshot: &SnapshotArgs, from: u64, objset_type: u32, features: Features) -> Result<Self> {
        // the raw descriptor: `Stdout` would copy everything once more, line by line
        let sink = File::from(std::os::fd::AsFd::as_fd(&stdout()).try_clone_to_owned()?);
        let mut out = Self { writer: Writer::new(sink), guid: snapshot.guid };
        let to_name =
            ToName::new(snapshot.name.as_bytes()).ok_or_else(|| anyhow!("{} is no name", snapshot.name))?;
        out.put(
            &Record::Begin(Begin {
                header_type: HeaderType::Substream,
                features,
                creation_time: CREATION,
                objset_type,
                flags: BeginFlags::FREERECORDS.union(BeginFlags::SPILL_BLOCK),
                to_guid: snapshot.guid,
                from_guid: from,
                to_name,
                payload_len: 0,
            }),
            &[],
        )?;
        Ok(out)
    }

    /// Guid of the snapshot. Every record contains it.
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// Writes a record.
    pub fn put(&mut self, record: &Record, payload: &[u8]) -> Result<()> {
        self.writer.record(record, payload).context("writing the stream")
    }

    /// Writes one block of an object.
    pub fn block(
        &mut self,
        object: u64,
        object_type: u32,
        offset: u64,
        size: u64,
        payload: &[u8],
        compression: u8,
    ) -> Result<()> {
        let record = Record::Write(Write {
            object,
            object_type,
            offset,
            logical_size: size,
            to_guid: self.guid,
            compression,
            compressed_size: if compression == 0 { 0 } else { payload.len() as u64 },
            ..Write::default()
        });
        self.put(&record, payload)
    }

    /// Writes END.
    pub fn end(mut self) -> Result<()> {
        self.put(&Record::End(End { checksum: [0; 4], to_guid: self.guid }), &[])?;
        self.writer.into_inner()?.flush()?;
        Ok(())
    }
}

/// A stream without changes.
pub fn empty(snapshot: &SnapshotArgs, from: u64, volume: bool) -> Result<()> {
    let (kind, features) = if volume { (VOLUME, Features::NONE) } else { (FILESYSTEM, Features::SA_SPILL) };
    Out::begin(snapshot, from, kind, features)?.end()
}
