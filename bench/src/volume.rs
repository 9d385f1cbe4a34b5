//! Streams of volumes: object 1 is the device, object 2 a ZAP that holds its size (OpenZFS `zvol_create_cb`).

use anyhow::{Result, ensure};
use snowmelt_stream::{Features, Object, Record};

use crate::VolumeArgs;
use crate::data::{Source, mix};
use crate::files::microzap;
use crate::out::{Out, VOLUME};

/// `DMU_OT_ZVOL`.
const ZVOL: u32 = 23;
/// `DMU_OT_ZVOL_PROP`.
const ZVOL_PROP: u32 = 24;
/// Object of the data.
const DATA: u64 = 1;
/// Object of the properties.
const PROPERTIES: u64 = 2;

fn features(args: &VolumeArgs) -> Features {
    let mut features = Features::NONE;
    if args.compressed {
        features = features.union(Features::COMPRESSED).union(Features::LZ4);
    }
    if args.block > 128 << 10 {
        features = features.union(Features::LARGE_BLOCKS);
    }
    features
}

fn object(out: &mut Out, object: u64, object_type: u32, block_size: u64) -> Result<()> {
    let record = Record::Object(Object {
        object,
        object_type,
        block_size: u32::try_from(block_size)?,
        dn_slots: 1,
        to_guid: out.guid(),
        ..Object::default()
    });
    out.put(&record, &[])
}

/// Writes the whole volume.
pub fn full(args: &VolumeArgs) -> Result<()> {
    ensure!(args.size.is_multiple_of(args.block), "the size is not a whole number of blocks");
    ensure!(args.every > 0, "--every is at least 1");
    let mut source = Source::new(args.data, args.compressed);
    let mut out = Out::begin(&args.snapshot, 0, VOLUME, features(args))?;
    object(&mut out, DATA, ZVOL, args.block)?;
    for number in (0..args.size / args.block).step_by(usize::try_from(args.every)?) {
        let (payload, compression) = source.block(number, 0, usize::try_from(args.block)?);
        out.block(DATA, ZVOL, number * args.block, args.block, payload, compression)?;
    }
    let zap = microzap(&[("size".to_owned(), args.size)], 512);
    object(&mut out, PROPERTIES, ZVOL_PROP, zap.len() as u64)?;
    out.block(PROPERTIES, ZVOL_PROP, 0, zap.len() as u64, &zap, 0)?;
    out.end()
}

/// New content in `changes` of the blocks, spread over the first `within` bytes (0: over the whole volume). The range
/// is divided into `changes` equal parts. In each part one block changes, a different one for every guid.
pub fn changes(args: &VolumeArgs, changes: u64, within: u64, from: u64) -> Result<()> {
    let range = if within == 0 { args.size } else { within.min(args.size) };
    let written = (range / args.block).div_ceil(args.every);
    ensure!(changes > 0 && changes <= written, "there are {written} blocks to change");
    let mut source = Source::new(args.data, args.compressed);
    let mut out = Out::begin(&args.snapshot, from, VOLUME, features(args))?;
    object(&mut out, DATA, ZVOL, args.block)?;
    let part = written / changes;
    for change in 0..changes {
        let number = (change * part + mix(change ^ args.snapshot.guid.rotate_left(32)) % part) * args.every;
        let (payload, compression) = source.block(number, args.snapshot.guid, usize::try_from(args.block)?);
        out.block(DATA, ZVOL, number * args.block, args.block, payload, compression)?;
    }
    out.end()
}
