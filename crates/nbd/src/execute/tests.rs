use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use proptest::prelude::*;

use super::*;

/// An export with the given content, extents and failures.
#[derive(Default)]
struct Fake {
    content: Mutex<Vec<u8>>,
    extents: Vec<Extent>,
    fail: Option<io::ErrorKind>,
    panics: bool,
    fast: bool,
    flushes: AtomicU64,
}

impl Fake {
    fn result(&self) -> io::Result<()> {
        assert!(!self.panics, "as the test wants it");
        self.fail.map_or(Ok(()), |kind| Err(io::Error::new(kind, "as the test wants it")))
    }
}

impl Export for Fake {
    fn size(&self) -> u64 {
        self.content.lock().len() as u64
    }
    fn block_size(&self) -> u32 {
        4096
    }
    fn read_only(&self) -> bool {
        false
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.result()?;
        let offset = usize::try_from(offset).unwrap();
        buf.copy_from_slice(&self.content.lock()[offset..offset + buf.len()]);
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.result()?;
        let offset = usize::try_from(offset).unwrap();
        self.content.lock()[offset..offset + data.len()].copy_from_slice(data);
        Ok(())
    }
    fn write_zeroes(&self, offset: u64, length: u64, _may_trim: bool) -> io::Result<()> {
        self.write(offset, &vec![0; usize::try_from(length).unwrap()])
    }
    fn zeroes_fast(&self, _offset: u64, _length: u64, _may_trim: bool) -> bool {
        self.fast
    }
    fn trim(&self, _offset: u64, _length: u64) -> io::Result<()> {
        self.result()
    }
    fn flush(&self) -> io::Result<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn cache(&self, _offset: u64, _length: u64) -> io::Result<()> {
        self.result()
    }
    fn extents(&self, _offset: u64, _length: u64) -> io::Result<Vec<Extent>> {
        self.result()?;
        Ok(self.extents.clone())
    }
}

const RANGE: Range = Range { offset: 0, length: 4096 };

fn data_of(reply: &Reply) -> Vec<u8> {
    let Reply::Read(pieces) = reply else { panic!("{reply:?}") };
    let bytes = |piece: &Piece| match piece {
        Piece::Data(data) => data.bytes().to_vec(),
        Piece::Hole { length, .. } => vec![0; *length as usize],
    };
    pieces.iter().flat_map(bytes).collect()
}

#[test]
fn fua_flushes_after_every_kind_of_write() {
    let fake = Fake { content: vec![1; 8192].into(), ..Fake::default() };
    for fua in [false, true] {
        for (operation, payload) in [
            (Operation::Write { offset: 0, fua }, &[7; 16][..]),
            (Operation::Trim { range: RANGE, fua }, &[]),
            (Operation::WriteZeroes { range: RANGE, may_trim: true, fast: false, fua }, &[]),
        ] {
            let before = fake.flushes.load(Ordering::Relaxed);
            assert_eq!(execute(&fake, Style::Simple, &operation, payload), Reply::Done);
            assert_eq!(fake.flushes.load(Ordering::Relaxed) - before, u64::from(fua), "{operation:?}");
        }
    }
}

#[test]
fn a_fast_zeroing_that_is_slow_changes_nothing() {
    let zero = Operation::WriteZeroes { range: RANGE, may_trim: true, fast: true, fua: false };
    let slow = Fake { content: vec![1; 4096].into(), ..Fake::default() };
    let reply = execute(&slow, Style::Simple, &zero, &[]);
    assert!(matches!(&reply, Reply::Error(error) if error.errno == Errno::NotSup), "{reply:?}");
    assert!(slow.content.lock().iter().all(|&byte| byte == 1));
    let fast = Fake { content: vec![1; 4096].into(), fast: true, ..Fake::default() };
    assert_eq!(execute(&fast, Style::Simple, &zero, &[]), Reply::Done);
    assert!(fast.content.lock().iter().all(|&byte| byte == 0));
}

#[test]
fn hints_that_are_not_supported_succeed_and_others_do_not() {
    let fake = |kind| Fake { fail: Some(kind), ..Fake::default() };
    for operation in [Operation::Trim { range: RANGE, fua: false }, Operation::Cache { range: RANGE }] {
        let unsupported = fake(io::ErrorKind::Unsupported);
        assert_eq!(execute(&unsupported, Style::Simple, &operation, &[]), Reply::Done);
        let full = fake(io::ErrorKind::StorageFull);
        let reply = execute(&full, Style::Simple, &operation, &[]);
        assert!(matches!(&reply, Reply::Error(error) if error.errno == Errno::NoSpc), "{reply:?}");
    }
}

#[test]
fn a_panic_is_an_io_error() {
    let fake = Fake { panics: true, content: vec![0; 4096].into(), ..Fake::default() };
    let read = Operation::Read { offset: 0, length: 512, whole: false };
    let reply = execute(&fake, Style::Structured, &read, &[]);
    assert!(matches!(&reply, Reply::Error(error) if error.errno == Errno::Io), "{reply:?}");
}

#[test]
fn a_read_says_where_it_failed() {
    let fake = Fake { fail: Some(io::ErrorKind::Other), content: vec![0; 4096].into(), ..Fake::default() };
    let read = Operation::Read { offset: 1024, length: 512, whole: true };
    let at = |style| match execute(&fake, style, &read, &[]) {
        Reply::Error(error) => (error.errno, error.at),
        other => panic!("{other:?}"),
    };
    assert_eq!(at(Style::Structured), (Errno::Io, Some(1024)));
    assert_eq!(at(Style::Simple), (Errno::Io, None));
}

#[test]
fn zeroes_are_not_sent_unless_they_must_be() {
    let length = 256 << 10;
    let mut content = vec![0; length];
    content[200 << 10] = 9;
    let extents = vec![
        Extent { length: 100 << 10, hole: true, zero: true },
        Extent { length: 100 << 10, hole: false, zero: false },
    ];
    let fake = Fake { content: content.clone().into(), extents, ..Fake::default() };
    let read = |length, whole| Operation::Read { offset: 0, length, whole };
    let count = u32::try_from(length).unwrap();
    let split = execute(&fake, Style::Structured, &read(count, false), &[]);
    assert_eq!(data_of(&split), content);
    let Reply::Read(pieces) = &split else { panic!("{split:?}") };
    assert!(matches!(pieces[..], [Piece::Hole { offset: 0, .. }, Piece::Data(_)]), "{pieces:?}");
    let whole = execute(&fake, Style::Structured, &read(count, true), &[]);
    assert!(matches!(&whole, Reply::Read(pieces) if matches!(pieces[..], [Piece::Data(_)])));
    assert_eq!(data_of(&whole), content);
    let small = execute(&fake, Style::Structured, &read(4096, false), &[]);
    assert_eq!(small, Reply::Read(vec![Piece::Hole { offset: 0, length: 4096 }]));
}

#[test]
fn no_extents_become_one() {
    let fake = Fake { content: vec![0; 4096].into(), ..Fake::default() };
    let status = Operation::Status { range: RANGE, one: false };
    let expected = vec![Extent { length: 4096, hole: false, zero: false }];
    assert_eq!(execute(&fake, Style::Structured, &status, &[]), Reply::Status(expected));
}

fn any_extents() -> impl Strategy<Value = Vec<Extent>> {
    let extent = (prop_oneof![0u64..70_000, any::<u64>()], any::<bool>(), any::<bool>());
    proptest::collection::vec(extent.prop_map(|(length, hole, zero)| Extent { length, hole, zero }), 0..20)
}

proptest! {
    #[test]
    fn extents_stay_within_the_request(found in any_extents(), length in 1u64..200_000, count in 1usize..5) {
        let total: u128 = found.iter().map(|e| u128::from(e.length)).sum();
        let extents = within(found, length, count);
        prop_assert!(!extents.is_empty() && extents.len() <= count);
        prop_assert!(extents.iter().all(|e| e.length > 0));
        prop_assert!(extents.windows(2).all(|w| (w[0].hole, w[0].zero) != (w[1].hole, w[1].zero)));
        let sum: u64 = extents.iter().map(|e| e.length).sum();
        prop_assert!(sum <= length);
        prop_assert!(extents.len() == count || u128::from(sum) == total.min(u128::from(length)) || total == 0);
    }

    /// A split read returns the content for any extents that the export reports, as long as zero extents are zero.
    #[test]
    fn split_reads_give_the_content(found in any_extents(), offset in 0u32..1000, length in 1u32..300_000) {
        let mut content = vec![0xa5; 400_000];
        let mut at = u64::from(offset);
        for extent in &found {
            let end = at.saturating_add(extent.length).min(content.len() as u64);
            if extent.zero {
                content[usize::try_from(at).unwrap()..usize::try_from(end).unwrap()].fill(0);
            }
            at = end;
        }
        let fake = Fake { content: content.clone().into(), extents: found, ..Fake::default() };
        let read = Operation::Read { offset: u64::from(offset), length, whole: false };
        let reply = execute(&fake, Style::Extended, &read, &[]);
        prop_assert!(data_of(&reply) == content[offset as usize..(offset + length) as usize]);
    }
}
