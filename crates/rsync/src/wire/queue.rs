//! Sends without waiting. The thread that sends requests must continue to read while the peer is busy sending.
//! Otherwise both would wait for each other forever.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, Sender, channel};

/// A writer into a queue that another thread sends from. The queue grows with requests that were not sent yet. The
/// caller limits them.
pub struct QueueWriter(Sender<Vec<u8>>);

impl QueueWriter {
    /// The writer, and the other end of the queue for [`drain`].
    pub fn new() -> (Self, Receiver<Vec<u8>>) {
        let (sender, receiver) = channel();
        (Self(sender), receiver)
    }
}

impl Write for QueueWriter {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        // The sending thread has failed, and reports its error.
        self.0.send(data.to_vec()).map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends everything in a queue, until the writer is dropped.
///
/// # Errors
/// When the connection fails.
#[allow(clippy::needless_pass_by_value)] // Dropped at the end, so that the writer notices a failure.
pub fn drain(queue: Receiver<Vec<u8>>, to: &mut impl Write) -> io::Result<()> {
    while let Ok(data) = queue.recv() {
        to.write_all(&data)?;
        // There may be more to send at once.
        for data in queue.try_iter() {
            to.write_all(&data)?;
        }
        to.flush()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_sent_in_order_by_another() {
        let (mut writer, queue) = QueueWriter::new();
        let mut sent = Vec::new();
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| drain(queue, &mut sent));
            for at in 0..1000_u32 {
                writer.write_all(&at.to_le_bytes()).unwrap();
            }
            drop(writer);
            sending.join().unwrap().unwrap();
        });
        let expected: Vec<u8> = (0..1000_u32).flat_map(u32::to_le_bytes).collect();
        assert_eq!(sent, expected);
    }

    #[test]
    fn who_writes_learns_that_nothing_is_sent_any_more() {
        let (mut writer, queue) = QueueWriter::new();
        drop(queue);
        assert!(writer.write_all(b"a").is_err());
    }
}
