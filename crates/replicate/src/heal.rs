//! Healing: the damaged blocks of one copy are asked of another one (docs/format/sync.md, "Healing").
//!
//! The damaged side sends the names of its damaged blocks. The other side sends those that it has. The damaged side
//! accepts only blocks that are identical to the original. Nothing else is transferred, and neither side trusts the
//! other.

use std::collections::BTreeSet;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::sync::Arc;

use snowmelt_dataset::{BlockName, Datasets};
use snowmelt_pool::{BLOCK_MAX, Prepared};

use crate::end::{End, Peer};
use crate::error::Failure;
use crate::request::{Answer, Describe, Request};
use crate::wire::Channel;

/// Bytes of a block's name: guid of the snapshot, object, block.
const NAME_LEN: usize = 24;
/// Bytes before a block: its name, lsize, psize, compression, zeros.
const HEADER_LEN: usize = NAME_LEN + 16;
/// In place of a block's number: the spill block.
const SPILL: u64 = u64::MAX;
/// Maximum number of snapshots in a request, so that it fits into a message.
const SNAPSHOTS_MAX: usize = 150_000;

/// Damaged blocks that the other side may name; it names at most 100,000.
const WANTED_MAX: usize = 1_000_000;

/// What healing came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Healed {
    /// Blocks that were damaged and are well.
    pub blocks: u64,
    /// Their stored bytes.
    pub bytes: u64,
    /// Blocks that are damaged still.
    pub damaged: u64,
}

fn encode_name(name: &BlockName) -> [u8; NAME_LEN] {
    let mut out = [0; NAME_LEN];
    out[..8].copy_from_slice(&name.snapshot.to_le_bytes());
    out[8..16].copy_from_slice(&name.object.to_le_bytes());
    out[16..].copy_from_slice(&name.blkid.unwrap_or(SPILL).to_le_bytes());
    out
}

fn decode_name(bytes: &[u8; NAME_LEN]) -> BlockName {
    let [a, b, c] = [0, 8, 16].map(|at| {
        let mut number = [0; 8];
        number.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(number)
    });
    BlockName { snapshot: a, object: b, blkid: Some(c).filter(|blkid| *blkid != SPILL) }
}

/// Fills `buf`; `false` at the end of the stream, which may only come before it.
fn fill(input: &mut impl Read, buf: &mut [u8]) -> Result<bool, Failure> {
    let mut done = 0;
    while done < buf.len() {
        match input.read(&mut buf[done..]) {
            Ok(0) if done == 0 => return Ok(false),
            Ok(0) => return Err(Failure::lost("a block was cut off")),
            Ok(more) => done += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(lost(error)),
        }
    }
    Ok(true)
}

fn lost(error: io::Error) -> Failure {
    Failure::lost(error.to_string())
}

fn write_block(out: &mut impl Write, name: &BlockName, block: &Prepared) -> io::Result<()> {
    let mut header = [0; HEADER_LEN];
    header[..NAME_LEN].copy_from_slice(&encode_name(name));
    header[NAME_LEN..NAME_LEN + 4].copy_from_slice(&block.lsize().to_le_bytes());
    let psize = u32::try_from(block.psize()).unwrap_or(u32::MAX);
    header[NAME_LEN + 4..NAME_LEN + 8].copy_from_slice(&psize.to_le_bytes());
    header[NAME_LEN + 8] = block.compression();
    out.write_all(&header)?;
    out.write_all(block.payload())
}

/// The next block of a stream. Its name and its bytes are not verified here.
fn read_block(input: &mut impl Read) -> Result<Option<(BlockName, Prepared)>, Failure> {
    let mut header = [0; HEADER_LEN];
    if !fill(input, &mut header)? {
        return Ok(None);
    }
    let (name, sizes) = header.split_first_chunk::<NAME_LEN>().ok_or_else(|| Failure::other("no name"))?;
    let [l0, l1, l2, l3, p0, p1, p2, p3, compression, ..] = *sizes else {
        return Err(Failure::other("a block without sizes"));
    };
    let (lsize, psize) = (u32::from_le_bytes([l0, l1, l2, l3]), u32::from_le_bytes([p0, p1, p2, p3]));
    if !(1..=BLOCK_MAX).contains(&lsize) || !(1..=BLOCK_MAX).contains(&psize) {
        return Err(Failure::other(format!("a block of {lsize} bytes in {psize}")));
    }
    // Memory is allocated for the bytes that have arrived, not for the announced length.
    let mut payload = Vec::new();
    input.by_ref().take(psize.into()).read_to_end(&mut payload).map_err(lost)?;
    if payload.len() < psize as usize {
        return Err(Failure::lost("a block was cut off"));
    }
    Ok(Some((decode_name(name), Prepared::stored(payload, lsize, compression))))
}

/// Sends the names of the damaged blocks.
pub(crate) fn serve_wanted(
    datasets: &Datasets,
    dataset: &str,
    snapshots: Vec<u64>,
    channel: &Arc<Channel>,
) -> Result<Answer, Failure> {
    let wanted = datasets.wanted(dataset, &snapshots.into_iter().collect::<BTreeSet<_>>())?;
    let mut out = BufWriter::new(channel.outgoing());
    for name in &wanted.blocks {
        out.write_all(&encode_name(name)).map_err(lost)?;
    }
    let out = out.into_inner().map_err(|error| lost(error.into_error()))?;
    out.finish().map_err(|error| Failure::lost(error.to_string()))?;
    Ok(Answer::Wanted { others: wanted.others })
}

/// Sends the requested blocks that exist here.
pub(crate) fn serve_blocks(
    datasets: &Datasets,
    dataset: &str,
    channel: &Arc<Channel>,
) -> Result<Answer, Failure> {
    let mut input = BufReader::new(channel.incoming());
    let mut out = BufWriter::new(channel.outgoing());
    let mut name = [0; NAME_LEN];
    while fill(&mut input, &mut name)? {
        let name = decode_name(&name);
        if let Some(block) = datasets.stored_block(dataset, &name)? {
            write_block(&mut out, &name, &block).map_err(lost)?;
        }
    }
    let out = out.into_inner().map_err(|error| lost(error.into_error()))?;
    out.finish().map_err(|error| Failure::lost(error.to_string()))?;
    Ok(Answer::Done)
}

/// Takes blocks.
pub(crate) fn serve_mend(
    datasets: &Datasets,
    dataset: &str,
    channel: &Arc<Channel>,
) -> Result<Answer, Failure> {
    let mut healing = datasets.healing(dataset)?;
    let mut input = BufReader::new(channel.incoming());
    let mut unfit = 0;
    while let Some((name, block)) = read_block(&mut input)? {
        unfit += u64::from(!healing.offer(&name, block)?);
    }
    let report = healing.finish()?;
    Ok(Answer::Mended { blocks: report.blocks, bytes: report.bytes, unfit })
}

/// Repairs damaged blocks of `target` and its snapshots with the blocks that `source` has of the same snapshots. Each
/// is a pool and the full name of a dataset in it.
///
/// # Errors
/// When a side cannot be reached, or a dataset does not exist. Completed repairs are kept.
pub fn heal(source: (&Peer, &str), target: (&Peer, &str)) -> Result<Healed, Failure> {
    let confused = || Failure::other("the other side answered a different request");
    let what = Describe { root: source.1.to_owned(), recursive: false, tag: String::new() };
    let described = source.0.describe(&what)?;
    let Some(described) = described.first() else {
        return Err(Failure::other(format!("'{}' does not exist", source.1)));
    };
    let snapshots =
        described.snapshots.iter().rev().map(|snapshot| snapshot.guid).take(SNAPSHOTS_MAX).collect();
    let call = target.0.begin(&Request::Wanted { dataset: target.1.to_owned(), snapshots })?;
    let mut input = BufReader::new(call.channel().incoming());
    let mut names = Vec::new();
    let mut name = [0; NAME_LEN];
    // Why it broke off is in the result.
    while fill(&mut input, &mut name).unwrap_or(false) {
        if names.len() == WANTED_MAX {
            return Err(Failure::other(format!(
                "the other side names more than {WANTED_MAX} damaged blocks"
            )));
        }
        names.push(name);
    }
    let Answer::Wanted { others } = call.channel().result()? else { return Err(confused()) };
    let mut healed = Healed { damaged: others + names.len() as u64, ..Healed::default() };
    if names.is_empty() {
        return Ok(healed);
    }
    let asked = source.0.begin(&Request::Blocks { dataset: source.1.to_owned() })?;
    let given = target.0.begin(&Request::Mend { dataset: target.1.to_owned() })?;
    let relayed = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut out = BufWriter::new(asked.channel().outgoing());
            // If it is interrupted, the result has the reason.
            let sent = names.iter().try_for_each(|name| out.write_all(name));
            if sent.is_ok()
                && let Ok(out) = out.into_inner()
            {
                let _ = out.finish();
            }
        });
        let mut out = given.channel().outgoing();
        let copied = io::copy(&mut asked.channel().incoming(), &mut out);
        let ended = asked.channel().result();
        // Complete blocks are used, even if the rest failed.
        let _ = out.finish();
        ended.and_then(|_| copied.map_err(lost))
    });
    let Answer::Mended { blocks, bytes, .. } = given.channel().result()? else { return Err(confused()) };
    relayed?;
    (healed.blocks, healed.bytes) = (blocks, bytes);
    healed.damaged = healed.damaged.saturating_sub(blocks);
    Ok(healed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_out_as_they_went_in() {
        let names = [
            BlockName { snapshot: 1, object: 2, blkid: Some(3) },
            BlockName { snapshot: u64::MAX, object: 5, blkid: None },
        ];
        let mut stream = Vec::new();
        for name in &names {
            assert_eq!(decode_name(&encode_name(name)), *name);
            write_block(&mut stream, name, &Prepared::stored(vec![7; 300], 512, 15)).unwrap();
        }
        let mut input = &stream[..];
        for name in &names {
            let (read, block) = read_block(&mut input).unwrap().unwrap();
            assert_eq!((read, block.lsize(), block.compression()), (*name, 512, 15));
            assert_eq!(block.payload()[..], [7; 300]);
        }
        assert!(read_block(&mut input).unwrap().is_none());
        for cut in [1, HEADER_LEN - 1, HEADER_LEN, HEADER_LEN + 299] {
            assert!(read_block(&mut &stream[..cut]).is_err(), "cut at {cut}");
        }
        for at in [NAME_LEN + 3, NAME_LEN + 7] {
            let mut bad = stream.clone();
            bad[at] = 0xff;
            assert!(read_block(&mut &bad[..]).is_err(), "sizes of 4 GiB");
        }
    }
}
