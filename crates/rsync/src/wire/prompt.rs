//! Acknowledges data of a peer at once (`tcp(7)`, `TCP_QUICKACK`).
//!
//! The system delays acknowledgements by 40 ms, to send them together with an answer. Stock rsync writes small messages
//! one after the other and lets the system combine them (Nagle's algorithm). The system then sends the second message
//! only after the first was acknowledged.

use std::io::{self, Read};
use std::os::fd::AsFd;

/// A peer that sends less than this many bytes at once may be delayed.
const SHORT: usize = 4096;

/// A connection whose short messages are acknowledged when they are read. Other connections than TCP are read as usual.
#[derive(Debug)]
pub struct Prompt<S> {
    socket: S,
    is_tcp: bool,
}

impl<S: AsFd> Prompt<S> {
    /// Wraps a connection.
    pub fn new(socket: S) -> Self {
        let is_tcp = rustix::net::sockopt::tcp_quickack(&socket).is_ok();
        Self { socket, is_tcp }
    }

    /// The connection.
    pub fn socket(&self) -> &S {
        &self.socket
    }
}

impl<S: Read + AsFd> Read for Prompt<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.socket.read(buffer)?;
        if self.is_tcp && len < SHORT {
            // This is a hint. Without it, everything only takes longer.
            let _ = rustix::net::sockopt::set_tcp_quickack(&self.socket, true);
        }
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    use super::*;

    /// The time in milliseconds of two small messages that are written one after the other. The best of several
    /// attempts.
    fn two_messages(is_prompt: bool) -> u128 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let receiver = listener.accept().unwrap().0;
        let mut receiver = Prompt { is_tcp: is_prompt, ..Prompt::new(receiver) };
        let mut buffer = [0; 8];
        // The system delays acknowledgements on a connection with answers.
        for _ in 0..20 {
            sender.write_all(b"question").unwrap();
            receiver.read_exact(&mut buffer).unwrap();
            receiver.socket.write_all(b"answer").unwrap();
            sender.read_exact(&mut buffer[..6]).unwrap();
        }
        let times = (0..5).map(|_| {
            let begun = Instant::now();
            for _ in 0..2 {
                sender.write_all(b"message.").unwrap();
            }
            for _ in 0..2 {
                receiver.read_exact(&mut buffer).unwrap();
            }
            let time = begun.elapsed().as_millis();
            receiver.socket.write_all(b"answer").unwrap();
            sender.read_exact(&mut buffer[..6]).unwrap();
            time
        });
        times.min().unwrap()
    }

    #[test]
    fn who_sends_small_messages_is_not_held_up() {
        let (prompt, other) = (two_messages(true), two_messages(false));
        assert!(prompt < 20, "{prompt} ms, {other} ms without");
    }

    #[test]
    fn other_things_are_read_too() {
        let (mut one, other) = UnixStream::pair().unwrap();
        one.write_all(b"content").unwrap();
        let mut prompt = Prompt::new(other);
        assert!(!prompt.is_tcp);
        let mut buffer = [0; 7];
        prompt.read_exact(&mut buffer).unwrap();
        assert_eq!(&buffer, b"content");
    }
}
