//! Tests of the writer.

use super::*;
use crate::error::Violation;
use crate::features::Features;
use crate::record::{Begin, BeginFlags, HeaderType, Object, ToName, Write};
use crate::verify;

fn begin() -> Record {
    Record::Begin(Begin {
        header_type: HeaderType::Substream,
        features: Features::NONE,
        creation_time: 0,
        objset_type: 2,
        flags: BeginFlags::default(),
        to_guid: 5,
        from_guid: 0,
        to_name: ToName::new(b"a@b").unwrap(),
        payload_len: 0,
    })
}

fn object(bonus_len: u32) -> Record {
    Record::Object(Object {
        object: 1,
        object_type: 19,
        bonus_type: 44,
        block_size: 512,
        bonus_len,
        to_guid: 5,
        ..Object::default()
    })
}

const END: Record = Record::End(End { checksum: [9; 4], to_guid: 5 });

#[test]
fn payloads_are_padded_and_checksummed_with_their_padding() {
    for len in 1..=17_usize {
        let mut padded = Writer::new(Vec::new());
        let mut given = Writer::new(Vec::new());
        let bonus = vec![0xab; len];
        let mut whole = bonus.clone();
        whole.resize(len.next_multiple_of(8), 0);
        for (writer, payload) in [(&mut padded, &bonus), (&mut given, &whole)] {
            writer.record(&begin(), &[]).unwrap();
            writer.record(&object(len as u32), payload).unwrap();
            writer.record(&END, &[]).unwrap();
            assert_eq!(writer.bytes_written(), (3 * RECORD_LEN + whole.len()) as u64);
        }
        let bytes = padded.into_inner().unwrap();
        assert_eq!(bytes, given.into_inner().unwrap());
        verify(bytes.as_slice()).unwrap();
    }
}

#[test]
fn a_refused_record_leaves_the_stream_as_it_was() {
    let mut writer = Writer::new(Vec::new());
    writer.record(&begin(), &[]).unwrap();
    let error = writer.record(&object(16), &[0; 9]).unwrap_err();
    assert_eq!(error.violation(), Some(&Violation::PayloadLength { expected: 16, found: 9 }));
    assert!(writer.record(&begin(), &[]).is_err(), "a second BEGIN");
    let write = Write { object: 1, object_type: 19, logical_size: 512, to_guid: 6, ..Write::default() };
    assert!(writer.record(&Record::Write(write), &[0; 512]).is_err(), "no OBJECT, and another guid");
    writer.record(&object(16), &[1; 16]).unwrap();
    writer.record(&END, &[]).unwrap();
    assert!(writer.record(&END, &[]).is_err(), "a second END");
    verify(writer.into_inner().unwrap().as_slice()).unwrap();
}

/// A sink that accepts a few bytes at a time.
struct Slow(Vec<u8>);

impl IoWrite for Slow {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        let n = buf.len().min(1000);
        self.0.extend_from_slice(&buf[..n]);
        Ok(n)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_sink_that_takes_little_gets_everything() {
    let mut slow = Writer::new(Slow(Vec::new()));
    let mut fast = Writer::new(Vec::new());
    for n in 0..6_u64 {
        let write = Write {
            object: 1,
            object_type: 19,
            offset: n * 131_072,
            logical_size: 131_072,
            to_guid: 5,
            ..Write::default()
        };
        let payload = vec![n as u8; 131_072];
        if n == 0 {
            slow.record(&begin(), &[]).unwrap();
            fast.record(&begin(), &[]).unwrap();
            slow.record(&object(0), &[]).unwrap();
            fast.record(&object(0), &[]).unwrap();
        }
        slow.record(&Record::Write(write), &payload).unwrap();
        fast.record(&Record::Write(write), &payload).unwrap();
    }
    slow.record(&END, &[]).unwrap();
    fast.record(&END, &[]).unwrap();
    let fast = fast.into_inner().unwrap();
    assert!(slow.into_inner().unwrap().0 == fast);
    assert_eq!(verify(fast.as_slice()).unwrap().records(), 9);
}

#[test]
fn a_failing_sink_fails_the_record() {
    struct Full;
    impl IoWrite for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Ok(0)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut writer = Writer::new(Full);
    writer.record(&begin(), &[]).unwrap();
    assert!(matches!(writer.flush(), Err(StreamError::Io { offset: 0, .. })));
    let again = writer.flush().unwrap_err().to_string();
    assert_eq!(again, "stream offset 0: an earlier write failed");
}
