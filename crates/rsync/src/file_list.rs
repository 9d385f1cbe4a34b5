//! The list of `--files-from`. When it is at the receiver, its content is sent to the sender (docs/format/rsync.md,
//! "Setup").

use std::io::{Read, Write};

use crate::error::{ExitCode, Result, RsyncError};
use crate::wire::MuxWriter;

/// The most bytes of a list.
pub(crate) const FILES_FROM_MAX: u64 = 256 << 20;
/// The number of bytes that are read at once.
const CHUNK: usize = 64 << 10;
/// The first version that sends the list inside messages.
const IN_MESSAGES: u8 = 31;

/// Whether this byte ends a name.
pub(crate) fn is_end(byte: u8, by_lines: bool) -> bool {
    byte == 0 || by_lines && matches!(byte, b'\n' | b'\r')
}

/// The error for a list that cannot be used.
pub(crate) fn not_opened(shown: &str, why: &str) -> RsyncError {
    RsyncError::refused(ExitCode::Stream, format!("failed to open files-from file {shown}: {why}"))
}

/// Whether the list is sent outside of messages.
pub(crate) fn is_between_messages(protocol: u8) -> bool {
    protocol < IN_MESSAGES
}

/// Sends the names of a list, each with a zero byte at its end, and a further zero byte after the last. The sender
/// ignores comments in the list.
///
/// # Errors
/// When the list cannot be read or is too long, or the connection fails.
pub(crate) fn forward<W: Write>(
    list: impl Read,
    by_lines: bool,
    protocol: u8,
    to: &mut MuxWriter<W>,
) -> Result<()> {
    let mut list = list.take(FILES_FROM_MAX + 1);
    let mut send = |names: &[u8]| match is_between_messages(protocol) {
        true => to.write_between(names),
        false => to.write_all(names),
    };
    let (mut buffer, mut names) = (vec![0; CHUNK], Vec::with_capacity(CHUNK));
    let mut is_between = true;
    loop {
        let len = match list.read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => len,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(not_opened("", &crate::scan::error_text(&error))),
        };
        if list.limit() == 0 {
            return Err(not_opened("", "it is longer than 256 MiB"));
        }
        names.clear();
        for byte in &buffer[..len] {
            let is_end = is_end(*byte, by_lines);
            if !(is_end && is_between) {
                names.push(if is_end { 0 } else { *byte });
            }
            is_between = is_end;
        }
        send(&names)?;
    }
    send(if is_between { b"\0" } else { b"\0\0" })?;
    Ok(to.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::MuxReader;

    #[test]
    fn names_are_sent_as_they_are_read() {
        for (text, by_lines, expected) in [
            (&b""[..], true, &b"\0"[..]),
            (b"a\r\n\nb c\n", true, b"a\0b c\0\0"),
            (b"\n\na\0b", true, b"a\0b\0\0"),
            (b"a\nb\0\0c", false, b"a\nb\0c\0\0"),
        ] {
            for protocol in [30, 31] {
                let mut sent = Vec::new();
                let mut writer = MuxWriter::new(&mut sent);
                writer.write_all(b"before").unwrap();
                forward(text, by_lines, protocol, &mut writer).unwrap();
                writer.write_all(b"after").unwrap();
                writer.flush().unwrap();
                let mut reader = MuxReader::new(sent.as_slice());
                let (mut before, mut names, mut after) = ([0; 6], vec![0; expected.len()], [0; 5]);
                reader.read_exact(&mut before).unwrap();
                if is_between_messages(protocol) {
                    reader.read_between(&mut names).unwrap();
                } else {
                    reader.read_exact(&mut names).unwrap();
                }
                reader.read_exact(&mut after).unwrap();
                assert_eq!((names.as_slice(), &before, &after), (expected, b"before", b"after"), "{text:?}");
            }
        }
    }
}
