//! Reads ahead of the consumer in another thread, where reading is expensive: blocks of a dataset are verified.

use std::io::{self, Read};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// The number of bytes that are read at once.
const PIECE: usize = 256 << 10;
/// The most pieces that are read ahead.
const PIECES: usize = 4;

/// A reader that is read by another thread, up to its end or first error.
pub(super) struct Ahead {
    /// The pieces in order. An empty one is the end. `None` while this is dropped.
    read: Option<Receiver<io::Result<Vec<u8>>>>,
    /// Returns the memory of pieces to the thread.
    done: Option<Sender<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
    piece: Vec<u8>,
    at: usize,
}

impl Ahead {
    /// Starts reading.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub(super) fn start(mut from: impl Read + Send + 'static) -> io::Result<Self> {
        let ((told, read), (done, free)) = (channel(), channel::<Vec<u8>>());
        for _ in 0..PIECES {
            // The receiver still exists here.
            let _ = done.send(Vec::new());
        }
        let work = move || {
            for mut piece in free {
                piece.resize(PIECE, 0);
                let next = from.read(&mut piece).map(|len| {
                    piece.truncate(len);
                    piece
                });
                let is_last = next.as_ref().map_or(true, Vec::is_empty);
                if told.send(next).is_err() || is_last {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("read-ahead".to_owned()).spawn(work)?;
        Ok(Self { read: Some(read), done: Some(done), thread: Some(thread), piece: Vec::new(), at: 0 })
    }

    /// The next piece. An empty one is the end.
    fn next(&mut self) -> io::Result<Vec<u8>> {
        // Without the thread, the end was reached before.
        self.read.as_ref().and_then(|read| read.recv().ok()).unwrap_or(Ok(Vec::new()))
    }
}

impl Read for Ahead {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.piece.len() {
            let next = self.next()?;
            let last = std::mem::replace(&mut self.piece, next);
            self.at = 0;
            if let Some(done) = self.done.as_ref().filter(|_| last.capacity() > 0) {
                // At the end the thread is gone and does not receive it.
                let _ = done.send(last);
            }
        }
        let len = buffer.len().min(self.piece.len() - self.at);
        buffer[..len].copy_from_slice(&self.piece[self.at..self.at + len]);
        self.at += len;
        Ok(len)
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        // The thread ends after its present piece. Then nothing uses the reader any more.
        (self.read, self.done) = (None, None);
        if let Some(thread) = self.thread.take() {
            // A panic was reported already.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A reader whose bytes depend on their offset, up to an error or the end. Counts the bytes that were read.
    struct Numbers {
        at: usize,
        end: usize,
        fails: bool,
        read: Arc<AtomicUsize>,
    }

    impl Read for Numbers {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.at == self.end && self.fails {
                return Err(io::ErrorKind::InvalidData.into());
            }
            // Sometimes less than the buffer could hold.
            let len = buffer.len().min(self.end - self.at).min(100_000);
            for (byte, at) in buffer[..len].iter_mut().zip(self.at..) {
                *byte = (at % 251) as u8;
            }
            self.at += len;
            self.read.fetch_add(len, Ordering::Relaxed);
            Ok(len)
        }
    }

    fn numbers(end: usize, fails: bool) -> (Numbers, Arc<AtomicUsize>) {
        let read = Arc::default();
        (Numbers { at: 0, end, fails, read: Arc::clone(&read) }, read)
    }

    #[test]
    fn what_is_read_ahead_is_what_there_is() {
        for end in [0, 1, 100_000, 2_000_003] {
            let mut ahead = Ahead::start(numbers(end, false).0).unwrap();
            let (mut all, mut buffer) = (Vec::new(), [0; 7001]);
            loop {
                let len = ahead.read(&mut buffer).unwrap();
                if len == 0 {
                    break;
                }
                all.extend_from_slice(&buffer[..len]);
            }
            assert!(all.len() == end && all.iter().enumerate().all(|(at, byte)| *byte == (at % 251) as u8));
            assert_eq!(ahead.read(&mut buffer).unwrap(), 0, "the end stays the end");
        }
    }

    #[test]
    fn a_failure_comes_after_what_was_read_before_it() {
        let mut ahead = Ahead::start(numbers(300_000, true).0).unwrap();
        let mut all = vec![0; 300_000];
        ahead.read_exact(&mut all).unwrap();
        assert_eq!(ahead.read(&mut all).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn no_more_is_read_than_there_is_room_for_and_nothing_afterwards() {
        let (from, read) = numbers(usize::MAX, false);
        let mut ahead = Ahead::start(from).unwrap();
        ahead.read_exact(&mut [0; 10]).unwrap();
        drop(ahead);
        let so_far = read.load(Ordering::Relaxed);
        assert!(so_far <= (PIECES + 1) * PIECE, "{so_far}");
        assert_eq!(Arc::strong_count(&read), 1, "the thread has ended");
    }
}
