//! Digests of the directories of a source. They are equal only if `stat` shows no change in the directory.

use super::scan::{SourceEntry, SourceStat};

/// A digest of a directory or of its entries.
pub(super) type Digest = [u8; 32];

/// Size of an encoded [`SourceStat`] in bytes.
const STAT_LEN: usize = 76;

/// The digest of a list of entries, in their order. `device` is the device of the source's root, whose number may
/// change at a reboot.
pub(super) fn of_entries(entries: &[SourceEntry], device: u64) -> Digest {
    let mut said = Vec::with_capacity(entries.iter().map(|entry| entry.name.len() + STAT_LEN + 1).sum());
    for SourceEntry { name, stat } in entries {
        put_stat(&mut said, stat, device);
        // Names contain no zero byte.
        said.extend_from_slice(name);
        said.push(0);
    }
    *blake3::hash(&said).as_bytes()
}

/// The digest of a directory whose entries have the digest `entries`.
pub(super) fn of_directory(stat: &SourceStat, entries: &Digest, device: u64) -> Digest {
    let mut said = Vec::with_capacity(STAT_LEN + entries.len());
    put_stat(&mut said, stat, device);
    said.extend_from_slice(entries);
    *blake3::hash(&said).as_bytes()
}

/// Encodes all fields except the time of the last read, which is not imported on its own.
fn put_stat(out: &mut Vec<u8>, stat: &SourceStat, root_device: u64) {
    let device = if stat.device == root_device { 0 } else { stat.device };
    let mode = stat.kind.mode_bits() | stat.mode;
    for number in [mode, stat.uid, stat.gid, stat.rdev.0, stat.rdev.1, stat.mtime.nanoseconds] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    for number in [stat.size, stat.links, device, stat.inode] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(&stat.mtime.seconds.to_le_bytes());
    out.extend_from_slice(&stat.ctime.seconds.to_le_bytes());
    out.extend_from_slice(&stat.ctime.nanoseconds.to_le_bytes());
    let born = stat.born.unwrap_or_default();
    out.extend_from_slice(&born.seconds.to_le_bytes());
    out.extend_from_slice(&born.nanoseconds.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use snowmelt_zpl::{FileKind, Timestamp};

    fn entry(name: &str) -> SourceEntry {
        let stat = SourceStat {
            kind: FileKind::File,
            mode: 0o644,
            uid: 1,
            gid: 2,
            size: 3,
            links: 1,
            device: 9,
            inode: 4,
            rdev: (0, 0),
            atime: Timestamp::default(),
            mtime: Timestamp { seconds: 5, nanoseconds: 6 },
            ctime: Timestamp { seconds: 7, nanoseconds: 8 },
            born: None,
        };
        SourceEntry { name: name.into(), stat }
    }

    #[test]
    fn everything_counts_but_the_last_read_and_the_number_of_the_device() {
        let base = of_entries(&[entry("a"), entry("b")], 9);
        assert_ne!(base, of_entries(&[entry("a")], 9));
        assert_ne!(base, of_entries(&[entry("a"), entry("c")], 9));
        assert_ne!(of_entries(&[entry("ab")], 9), of_entries(&[entry("a"), entry("b")], 9));
        let with = |change: fn(&mut SourceStat)| {
            let mut other = [entry("a"), entry("b")];
            change(&mut other[1].stat);
            of_entries(&other, 9)
        };
        for change in [
            (|stat| stat.kind = FileKind::Fifo) as fn(&mut SourceStat),
            |stat| stat.mode = 0o600,
            |stat| stat.uid = 0,
            |stat| stat.gid = 0,
            |stat| stat.size = 0,
            |stat| stat.links = 2,
            |stat| stat.device = 8,
            |stat| stat.inode = 5,
            |stat| stat.rdev = (1, 0),
            |stat| stat.rdev = (0, 1),
            |stat| stat.mtime.seconds = 0,
            |stat| stat.mtime.nanoseconds = 0,
            |stat| stat.ctime.seconds = 0,
            |stat| stat.ctime.nanoseconds = 0,
            |stat| stat.born = Some(Timestamp { seconds: 1, nanoseconds: 0 }),
            |stat| stat.born = Some(Timestamp { seconds: 0, nanoseconds: 1 }),
        ] {
            assert_ne!(base, with(change));
        }
        assert_eq!(base, with(|stat| stat.atime.seconds = 1));
        let mut moved = [entry("a"), entry("b")];
        moved.iter_mut().for_each(|entry| entry.stat.device = 11);
        assert_eq!(base, of_entries(&moved, 11));

        let (mut stat, own) = (entry("").stat, of_directory(&entry("").stat, &base, 9));
        stat.mode = 0o755;
        assert_ne!(own, of_directory(&stat, &base, 9));
        assert_ne!(own, of_directory(&entry("").stat, &[0; 32], 9));
    }
}
