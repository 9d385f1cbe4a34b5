//! Recognising what a file or device contains, before a pool overwrites it.
//!
//! The magic numbers are from the documentation of each format: the kernel's `include/uapi/linux/magic.h` and on-disk
//! format headers, OpenZFS `include/sys/uberblock_impl.h`, the UEFI and LUKS specifications, lvm2's `label.h`.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};

use crate::label;

/// How many bytes are examined. The first ZFS label, with its uberblocks, ends at 256 KiB.
const PROBE_LEN: usize = 1 << 20;

/// A format that is recognised by bytes at an offset.
struct Magic {
    offset: usize,
    bytes: &'static [u8],
    what: &'static str,
}

const fn magic(offset: usize, bytes: &'static [u8], what: &'static str) -> Magic {
    Magic { offset, bytes, what }
}

const MAGICS: &[Magic] = &[
    magic(0x438, &[0x53, 0xef], "an ext2, ext3 or ext4 file system"),
    magic(0, b"XFSB", "an XFS file system"),
    magic(0x10040, b"_BHRfS_M", "a btrfs file system"),
    magic(0, b"LUKS\xba\xbe", "an encrypted LUKS volume"),
    magic(512, b"EFI PART", "a GPT partition table"),
    magic(4096, b"EFI PART", "a GPT partition table"),
    magic(3, b"NTFS    ", "an NTFS file system"),
    magic(3, b"EXFAT   ", "an exFAT file system"),
    magic(54, b"FAT12   ", "a FAT file system"),
    magic(54, b"FAT16   ", "a FAT file system"),
    magic(82, b"FAT32   ", "a FAT file system"),
    magic(1024, &[0x10, 0x20, 0xf5, 0xf2], "an F2FS file system"),
    magic(4086, b"SWAPSPACE2", "a swap area"),
    magic(65526, b"SWAPSPACE2", "a swap area"),
    magic(0x8001, b"CD001", "an ISO 9660 image"),
    magic(0, b"hsqs", "a squashfs image"),
    magic(0, b"QFI\xfb", "a qcow2 image"),
    magic(4096, &[0xfc, 0x4e, 0x2b, 0xa9], "a member of a Linux RAID"),
    magic(0, &[0xfc, 0x4e, 0x2b, 0xa9], "a member of a Linux RAID"),
    magic(4096 + 24, &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca], "a bcache device"),
    magic(4096 + 24, &[0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9], "a bcachefs file system"),
];

/// Returns a text that follows "it holds"; `None` when nothing was recognised.
///
/// A regular file with unknown contents that are not blank counts as data. On a device, unknown contents do not
/// count, because every used disk has them.
pub(crate) fn contents(file: &File) -> io::Result<Option<String>> {
    let head = read_head(file)?;
    if let Some(what) = recognise(&head) {
        return Ok(Some(what));
    }
    let device = file.metadata()?.file_type().is_block_device();
    Ok((!device && head.iter().any(|&b| b != 0)).then(|| "data of a kind that was not recognised".to_owned()))
}

fn read_head(file: &File) -> io::Result<Vec<u8>> {
    let mut head = vec![0; PROBE_LEN];
    let mut len = 0;
    while len < head.len() {
        match file.read_at(&mut head[len..], len as u64) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    head.truncate(len);
    Ok(head)
}

fn recognise(head: &[u8]) -> Option<String> {
    if let Some(pool) = snowmelt_pool(head) {
        return Some(pool);
    }
    if is_zfs(head) {
        return Some("a ZFS pool".to_owned());
    }
    if is_lvm(head) {
        return Some("an LVM physical volume".to_owned());
    }
    let known = MAGICS.iter().find(|m| head.get(m.offset..m.offset + m.bytes.len()) == Some(m.bytes));
    if let Some(known) = known {
        return Some(known.what.to_owned());
    }
    is_mbr(head).then(|| "an MBR partition table".to_owned())
}

fn snowmelt_pool(head: &[u8]) -> Option<String> {
    // Examine both copies of the label: the first one may be overwritten.
    let copies = [0, 960 << 10];
    copies.into_iter().find_map(|offset| {
        let page = head.get(offset..offset + label::LABEL_LEN)?;
        if !page.starts_with(label::MAGIC) {
            return None;
        }
        Some(match label::Label::decode(page) {
            Ok(label) => format!("the pool '{}'", label.pool.name),
            Err(_) => "a snowmelt pool with a damaged label".to_owned(),
        })
    })
}

/// Whether the ring of the first label (128 to 256 KiB) has a ZFS uberblock, in either byte order.
fn is_zfs(head: &[u8]) -> bool {
    const UBERBLOCK_MAGIC: u64 = 0x00ba_b10c;
    let ring = head.get(128 << 10..256 << 10).unwrap_or_default();
    ring.chunks_exact(1024).filter_map(|slot| slot.first_chunk::<8>()).any(|bytes| {
        u64::from_le_bytes(*bytes) == UBERBLOCK_MAGIC || u64::from_be_bytes(*bytes) == UBERBLOCK_MAGIC
    })
}

/// Whether one of the first four sectors has an LVM label.
fn is_lvm(head: &[u8]) -> bool {
    head.chunks_exact(512)
        .take(4)
        .any(|sector| sector.starts_with(b"LABELONE") && sector.get(24..32) == Some(b"LVM2 001"))
}

/// Whether there is an MBR: the boot signature, valid boot flags, and at least one entry in use. The signature alone
/// is found in boot sectors of all kinds.
fn is_mbr(head: &[u8]) -> bool {
    let Some(entries) = head.get(446..510) else { return false };
    head.get(510..512) == Some(&[0x55, 0xaa])
        && entries.chunks_exact(16).all(|e| matches!(e.first(), Some(0 | 0x80)))
        && entries.chunks_exact(16).any(|e| e.get(4).is_some_and(|&kind| kind != 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn probe(build: impl FnOnce(&mut Vec<u8>)) -> Option<String> {
        let mut image = vec![0; 2 << 20];
        build(&mut image);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&image).unwrap();
        contents(&file).unwrap()
    }

    fn put(image: &mut [u8], offset: usize, bytes: &[u8]) {
        image[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    #[test]
    fn blank_is_nothing() {
        assert_eq!(probe(|_| {}), None);
        assert_eq!(contents(&tempfile::tempfile().unwrap()).unwrap(), None);
    }

    #[test]
    fn every_magic_is_recognised() {
        for magic in MAGICS {
            assert_eq!(probe(|i| put(i, magic.offset, magic.bytes)).as_deref(), Some(magic.what));
        }
    }

    #[test]
    fn tables_and_pools_are_recognised() {
        let mbr = |i: &mut Vec<u8>| {
            put(i, 446 + 4, &[0x83]);
            put(i, 510, &[0x55, 0xaa]);
        };
        assert_eq!(probe(mbr).unwrap(), "an MBR partition table");
        let zfs = |i: &mut Vec<u8>| put(i, (128 << 10) + 7 * 1024, &0x00ba_b10c_u64.to_be_bytes());
        assert_eq!(probe(zfs).unwrap(), "a ZFS pool");
        let lvm = |i: &mut Vec<u8>| {
            put(i, 512, b"LABELONE");
            put(i, 512 + 24, b"LVM2 001");
        };
        assert_eq!(probe(lvm).unwrap(), "an LVM physical volume");
        assert_eq!(
            probe(|i| put(i, 960 << 10, label::MAGIC)).unwrap(),
            "a snowmelt pool with a damaged label"
        );
    }

    #[test]
    fn unknown_bytes_in_a_file_are_somebodys() {
        assert!(probe(|i| put(i, 5000, b"Dear diary")).unwrap().contains("not recognised"));
        let mut short = tempfile::tempfile().unwrap();
        short.write_all(b"x").unwrap();
        assert!(contents(&short).unwrap().is_some());
    }

    #[test]
    fn real_mkfs_is_recognised() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(16 << 20).unwrap();
        let made = std::process::Command::new("/sbin/mkfs.ext4").arg("-q").arg(file.path()).status();
        // Without mkfs, only the table test above covers this.
        if made.is_ok_and(|status| status.success()) {
            assert!(contents(file.as_file()).unwrap().unwrap().contains("ext4"));
        }
    }
}
