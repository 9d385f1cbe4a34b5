//! Gathers content before it is written. It arrives in pieces of at most 32 KiB. Without this, a block would be changed
//! in several transactions.

use std::io;

/// Pieces that are written end at multiples of this many bytes.
const PIECE: u64 = 256 << 10;

/// Consecutive bytes of a file that are not written yet.
#[derive(Default)]
pub(super) struct Gathered {
    /// Their offset in the file.
    at: u64,
    data: Vec<u8>,
}

impl Gathered {
    /// Adds data at `offset`. `write` is called with pieces and their offsets.
    ///
    /// # Errors
    /// The errors of `write`. The data that it was called with is dropped.
    pub(super) fn take(
        &mut self,
        offset: u64,
        mut data: &[u8],
        mut write: impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        if offset != self.end() {
            self.flush(&mut write)?;
            self.at = offset;
        }
        while !data.is_empty() {
            let room = PIECE - self.end() % PIECE;
            let len = data.len().min(usize::try_from(room).unwrap_or(usize::MAX));
            self.data.extend_from_slice(&data[..len]);
            if len as u64 == room {
                self.flush(&mut write)?;
            }
            data = &data[len..];
        }
        Ok(())
    }

    /// Adds data at the end of a file that does not exist yet.
    pub(super) fn hold(&mut self, data: &[u8]) {
        self.data.extend_from_slice(data);
    }

    /// The data so far, from the start of the file.
    pub(super) fn held(&self) -> &[u8] {
        &self.data
    }

    /// Writes the data.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub(super) fn flush(&mut self, mut write: impl FnMut(u64, &[u8]) -> io::Result<()>) -> io::Result<()> {
        let (at, end) = (self.at, self.end());
        let written = if self.data.is_empty() { Ok(()) } else { write(at, &self.data) };
        self.at = end;
        self.data.clear();
        written
    }

    fn end(&self) -> u64 {
        self.at + self.data.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_is_written_at_once_and_ends_with_blocks() {
        let (mut gathered, mut written) = (Gathered::default(), Vec::new());
        let data = vec![7; 300_000];
        for (offset, len) in [(100, 10), (110, 300_000), (300_110, 5), (900_000, 1), (0, 3)] {
            gathered
                .take(offset, &data[..len], |at, data| {
                    written.push((at, data.len() as u64));
                    Ok(())
                })
                .unwrap();
        }
        gathered
            .flush(|at, data| {
                written.push((at, data.len() as u64));
                Ok(())
            })
            .unwrap();
        assert_eq!(written, [(100, PIECE - 100), (PIECE, 300_115 - PIECE), (900_000, 1), (0, 3)]);
    }

    #[test]
    fn a_failure_is_told_once() {
        let mut gathered = Gathered::default();
        let fails = |_: u64, _: &[u8]| Err(io::ErrorKind::StorageFull.into());
        gathered.take(0, b"abc", fails).unwrap();
        assert!(gathered.take(9, b"d", fails).is_err());
        assert!(gathered.take(9, b"d", |_, _| Ok(())).is_ok());
        assert!(
            gathered
                .flush(|at, data| {
                    assert_eq!((at, data), (9, &b"d"[..]));
                    Ok(())
                })
                .is_ok()
        );
    }
}
