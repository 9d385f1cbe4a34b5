//! Tests of file content: holes, sizes, block sizes.

#![allow(clippy::unwrap_used)]

#[path = "common/fsck.rs"]
mod fsck;
#[path = "common/writing.rs"]
mod writing;

use snowmelt_zpl::{NewKind, Objects, WriteOptions};
use writing::*;

fn block_size(objects: &impl Objects, object: u64) -> u32 {
    objects.dnode(object).unwrap().unwrap().block_size
}

#[test]
fn what_was_cut_off_is_zero_when_it_comes_back() {
    let (objects, fs) = plain();
    for size in [10u64, 511, 512, 513, 100_000, 131_072, 131_073, 300_000] {
        let f = file(&fs, &format!("f{size}"));
        fs.write(f, 0, &vec![9; 400_000], &at(11)).unwrap();
        fs.truncate(f, size, &at(12)).unwrap();
        fs.truncate(f, 350_000, &at(13)).unwrap();
        let got = content(&objects, f);
        assert!(got[..size as usize].iter().all(|byte| *byte == 9));
        assert!(got[size as usize..].iter().all(|byte| *byte == 0), "{size}");
        fs.truncate(f, 0, &at(14)).unwrap();
        assert_eq!(fs.next_extent(f, 0).unwrap(), None);
        assert_eq!(fs.attributes(f).unwrap().mtime.seconds, 14);
    }
    fsck::check(&objects.snapshot());
}

#[test]
fn holes_and_zeros() {
    let (objects, fs) = plain();
    let f = file(&fs, "f");
    fs.write(f, 0, &vec![1; 500_000], &at(11)).unwrap();
    fs.punch_hole(f, 100_000, 200_000, &at(12)).unwrap();
    assert_eq!(fs.attributes(f).unwrap().size, 500_000);
    assert_eq!(fs.next_extent(f, 131_072).unwrap(), Some((262_144, 500_000)));
    fs.punch_hole(f, 600_000, 10, &at(13)).unwrap();
    assert_eq!(fs.attributes(f).unwrap().mtime.seconds, 12);
    fs.punch_hole(f, 450_000, u64::MAX, &at(13)).unwrap();
    fs.zero_range(f, 0, 10, true, &at(14)).unwrap();
    fs.zero_range(f, 490_000, 100_000, true, &at(15)).unwrap();
    assert_eq!(fs.attributes(f).unwrap().size, 500_000);
    fs.zero_range(f, 490_000, 100_000, false, &at(16)).unwrap();
    let mut expected = vec![1; 590_000];
    for range in [0..10, 100_000..300_000, 450_000..590_000] {
        expected[range].fill(0);
    }
    assert!(content(&objects, f) == expected);
    fs.allocate(f, 0, 700_000, true, &at(17)).unwrap();
    assert_eq!(fs.attributes(f).unwrap().size, 590_000);
    fs.allocate(f, 0, 700_000, false, &at(17)).unwrap();
    assert_eq!(fs.attributes(f).unwrap().size, 700_000);
    assert_eq!(errno(fs.allocate(f, 1 << 62, 1 << 62, false, &at(18))), EFBIG);
    assert_eq!(errno(fs.zero_range(f, u64::MAX, 1, false, &at(18))), EFBIG);
    fsck::check(&objects.snapshot());
}

#[test]
fn record_size_matters_when_a_file_grows() {
    let (objects, fs) = plain();
    let small = file(&fs, "small");
    fs.write(small, 0, &vec![1; 100_000], &at(11)).unwrap();
    assert_eq!(block_size(&objects, small), 100_352);
    // The block is now larger than the record size and not a power of two. It grows to one.
    fs.set_options(WriteOptions { record_size: 4096, ..fs.options() }).unwrap();
    fs.write(small, 100_000, &vec![2; 1000], &at(12)).unwrap();
    assert_eq!(block_size(&objects, small), 101_376);
    fs.write(small, 101_000, &vec![3; 100_000], &at(13)).unwrap();
    assert_eq!(block_size(&objects, small), 131_072);
    let expected = [vec![1; 100_000], vec![2; 1000], vec![3; 100_000]].concat();
    assert!(content(&objects, small) == expected);
    let new = file(&fs, "new");
    fs.write(new, 0, &vec![1; 10_000], &at(11)).unwrap();
    assert_eq!(block_size(&objects, new), 4096);
    // The block size stays, even if only the first block is left.
    fs.set_options(WriteOptions { record_size: 1 << 20, ..fs.options() }).unwrap();
    fs.truncate(new, 5000, &at(14)).unwrap();
    fs.write(new, 5000, &[2; 100], &at(14)).unwrap();
    assert_eq!(block_size(&objects, new), 4096);
    let large = file(&fs, "large");
    fs.write(large, 0, &vec![1; 10 << 20], &at(15)).unwrap();
    assert_eq!(block_size(&objects, large), 1 << 20);
    for bad in [0, 500, 1000, 32 << 20] {
        assert!(fs.set_options(WriteOptions { record_size: bad, ..fs.options() }).is_err());
    }
    fsck::check(&objects.snapshot());
}

#[test]
fn only_files_have_content() {
    let (_, fs) = plain();
    let dir = directory(&fs, "dir");
    let fifo = create(&fs, fs.root(), "fifo", NewKind::Fifo);
    for (object, expected) in [(dir, EISDIR), (fifo, EINVAL), (999, ENOENT)] {
        assert_eq!(errno(fs.read(object, 0, &mut [0])), expected);
        assert_eq!(errno(fs.write(object, 0, b"x", &at(1))), expected);
        assert_eq!(errno(fs.truncate(object, 0, &at(1))), expected);
        assert_eq!(errno(fs.punch_hole(object, 0, 1, &at(1))), expected);
    }
}

#[test]
fn reads_and_writes_at_the_edges() {
    let (objects, fs) = plain();
    let f = file(&fs, "f");
    assert_eq!(fs.write(f, 5, b"", &at(11)).unwrap(), 0);
    let untouched = fs.attributes(f).unwrap();
    assert_eq!((untouched.size, untouched.mtime.seconds), (0, 10));
    assert_eq!(fs.append(f, b"0123456789", &at(12)).unwrap(), (0, 10));
    let mut buf = [0xff; 8];
    assert_eq!(fs.read(f, 6, &mut buf).unwrap(), 4);
    assert_eq!(buf, *b"6789\xff\xff\xff\xff");
    assert_eq!(fs.read(f, 10, &mut buf).unwrap(), 0);
    assert_eq!(fs.read(f, u64::MAX, &mut buf).unwrap(), 0);
    // This write needs more than one transaction.
    let long: Vec<u8> = (0..9_000_001u32).map(|n| (n % 251) as u8).collect();
    assert_eq!(fs.write(f, 3, &long, &at(13)).unwrap(), long.len());
    let got = content(&objects, f);
    assert!(got[..3] == *b"012" && got[3..] == long[..]);
    fsck::check(&objects.snapshot());
}
