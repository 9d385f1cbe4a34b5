use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::io::Errno;

use super::*;

const ID: SegmentId = SegmentId(1);

fn temporary() -> Arc<File> {
    Arc::new(tempfile::tempfile().unwrap())
}

/// Writes pieces of these lengths at `offset`: first directly, then the rest through the page cache, as stores do.
/// Returns how many bytes were written directly.
fn write(direct: &Direct, file: &Arc<File>, way: &Arc<Way>, lens: &[usize], offset: u64) -> u64 {
    let bytes: Vec<u8> = (0..lens.iter().sum()).map(|at| (at % 251) as u8).collect();
    let mut rest = &bytes[..];
    let mut pieces = Vec::new();
    for len in lens {
        let (piece, after) = rest.split_at(*len);
        pieces.push(IoSlice::new(piece));
        rest = after;
    }
    let written = direct.write((ID, way), &pieces, offset).unwrap();
    vectored::write_rest_at(file, &pieces, offset, written).unwrap();
    direct.wait_for(ID);
    let mut found = vec![0; bytes.len()];
    file.read_exact_at(&mut found, offset).unwrap();
    assert!(found == bytes, "{lens:?} at {offset}");
    written
}

#[test]
fn long_runs_of_whole_sectors_go_around_the_page_cache() {
    let (direct, file) = (Direct::default(), temporary());
    let way = Way::of(&file);
    let expected = |len: u64| if way.is_open() { len } else { 0 };
    let long = 3 * CHUNK + 5 * ALIGN;
    assert_eq!(write(&direct, &file, &way, &[long], 0), expected(long as u64));
    assert_eq!(write(&direct, &file, &way, &[96, 131_072, 0, 96, 131_072, 40], 8192), expected(262_144));
    let odd: Vec<usize> = (0..900).map(|at| at * 7).collect();
    let len = odd.iter().sum::<usize>() as u64;
    assert_eq!(write(&direct, &file, &way, &odd, 4096), expected(len / 4096 * 4096));
    // Too short, or not aligned.
    assert_eq!(write(&direct, &file, &way, &[LEN_MIN as usize - 1], 0), 0);
    assert_eq!(write(&direct, &file, &way, &[long], 512), 0);
    direct.settle().unwrap();
}

#[test]
fn what_a_system_refuses_goes_through_the_page_cache() {
    let (direct, file) = (Direct::default(), temporary());
    // Writing to this file fails with EINVAL.
    let way = Way::through(&file, File::options().write(true).open("/proc/self/oom_score_adj").unwrap());
    assert_eq!(write(&direct, &file, &way, &[CHUNK], 0), CHUNK as u64);
    assert!(!way.is_open());
    assert_eq!(write(&direct, &file, &way, &[CHUNK], 4096), 0);
    direct.settle().unwrap();
}

#[test]
fn a_failure_is_told_once_by_what_comes_next() {
    let file = temporary();
    // The descriptor is open for reading only, so that writes fail.
    let way = Way::through(&file, File::open("/proc/self/exe").unwrap());
    let bytes = vec![7; CHUNK];
    let pieces = [IoSlice::new(&bytes)];
    let is_it = |error: &io::Error| Errno::from_io_error(error) == Some(Errno::BADF);
    let direct = Direct::default();
    assert_eq!(direct.write((ID, &way), &pieces, 0).unwrap(), CHUNK as u64);
    direct.wait_for(ID);
    assert!(is_it(&direct.settle().unwrap_err()));
    direct.settle().unwrap();
    direct.write((ID, &way), &pieces, 0).unwrap();
    let failed = direct.write((ID, &way), &pieces, CHUNK as u64).unwrap_err();
    assert!(matches!(&failed, Failed::Before(error) if is_it(error)), "{failed:?}");
    let gate = Gate::new(Path::new("/pool"), crate::Access::ReadWrite);
    assert!(matches!(failed.told(&gate, Path::new("/pool")), StoreError::Io { .. }));
    assert!(matches!(gate.check(), Err(StoreError::Poisoned { .. })));
}

#[test]
fn a_run_without_room_is_not_begun() {
    let direct = Direct::default();
    // An offset that no file system supports.
    let file = temporary();
    let way = Way::through(&file, file.try_clone().unwrap());
    let bytes = vec![7; CHUNK];
    let offset = (i64::MAX as u64 - CHUNK as u64) / 4096 * 4096;
    let failed = direct.write((ID, &way), &[IoSlice::new(&bytes)], offset).unwrap_err();
    assert!(matches!(failed, Failed::Now(_)), "{failed:?}");
    direct.settle().unwrap();
}

#[test]
fn what_is_under_way_is_written_before_all_ends() {
    let file = temporary();
    let (direct, way) = (Direct::default(), Way::of(&file));
    if !way.is_open() {
        return;
    }
    let bytes = vec![7; 5 * CHUNK];
    direct.write((ID, &way), &[IoSlice::new(&bytes)], 0).unwrap();
    // Other segments need not wait.
    direct.wait_for(SegmentId(2));
    drop(direct);
    let mut found = vec![0; bytes.len()];
    file.read_exact_at(&mut found, 0).unwrap();
    assert!(found == bytes);
}
