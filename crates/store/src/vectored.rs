//! Writing several pieces with one system call.

use std::fs::File;
use std::io::{self, IoSlice};

use rustix::io::{Errno, pwritev};

/// Maximum number of pieces in one call (`IOV_MAX` of Linux).
const PIECES_MAX: usize = 1024;

/// Returns the total length of all pieces in bytes.
pub(crate) fn len(pieces: &[IoSlice<'_>]) -> u64 {
    pieces.iter().map(|piece| piece.len() as u64).sum()
}

/// Writes all pieces in order, as one run that starts at `offset` of the file. The first `done` bytes of the run are
/// skipped: they have been written already.
pub(crate) fn write_rest_at(file: &File, pieces: &[IoSlice<'_>], offset: u64, done: u64) -> io::Result<()> {
    let mut pieces = pieces.to_vec();
    let mut left = &mut pieces[..];
    let mut offset = offset + done;
    // Removes empty pieces at the front. A write of only empty pieces would return 0, which looks like a failure.
    IoSlice::advance_slices(&mut left, usize::try_from(done).map_err(io::Error::other)?);
    while !left.is_empty() {
        let now = left.len().min(PIECES_MAX);
        match pwritev(file, &left[..now], offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                offset += written as u64;
                IoSlice::advance_slices(&mut left, written);
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_more_pieces_than_a_call_takes() {
        let file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..5000u32).map(|n| n as u8).collect();
        let pieces: Vec<IoSlice<'_>> =
            bytes.chunks(2).flat_map(|two| [IoSlice::new(&[]), IoSlice::new(two)]).collect();
        write_rest_at(&file, &pieces, 7, 0).unwrap();
        let mut found = vec![0; bytes.len()];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut found, 7).unwrap();
        assert_eq!(found, bytes);
        assert_eq!(len(&pieces), 5000);
        assert_eq!(file.metadata().unwrap().len(), 5007);
        write_rest_at(&file, &[IoSlice::new(&[])], 0, 0).unwrap();
        let other = tempfile::tempfile().unwrap();
        write_rest_at(&other, &pieces, 0, 4001).unwrap();
        std::os::unix::fs::FileExt::read_exact_at(&other, &mut found, 0).unwrap();
        assert_eq!((&found[..4001], &found[4001..]), (&[0; 4001][..], &bytes[4001..]));
    }
}
