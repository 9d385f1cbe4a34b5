//! The server side of a connection without threads, for the fuzz target: accepts the frames of a client up to the
//! first violation of the protocol.

use std::io::Read;

use super::WireError;
use super::connection::Shared;
use super::frame::{Kind, read_frame, read_hello};
use super::sender::Sender;
use crate::request::Request;

/// Takes any bytes for those of a client.
pub fn client(mut input: &[u8]) {
    let input: &mut dyn Read = &mut input;
    let _ = read_hello(input);
    let (shared, (sender, thread)) = (Shared::default(), Sender::nowhere());
    let (mut payload, mut piece) = (Vec::new(), [0; 512]);
    let mut channels = Vec::new();
    while let Ok(Some(header)) = read_frame(input, &mut payload) {
        let done = match header.kind {
            Kind::Open => shared.admit(header.channel, &sender).map(|channel| {
                if let Ok(request) = serde_json::from_slice::<Request>(&payload) {
                    let again = serde_json::to_vec(&request).and_then(|text| serde_json::from_slice(&text));
                    assert_eq!(again.ok(), Some(request));
                }
                channels.push(channel);
            }),
            _ => shared.deliver(header, &mut payload),
        };
        if done.is_err() {
            break;
        }
    }
    shared.lose(WireError::Closed);
    sender.close();
    for channel in channels {
        let mut incoming = channel.incoming();
        while incoming.read(&mut piece).is_ok_and(|len| len > 0) {}
    }
    // A thread that is just ending looks like a leak to a check at this moment.
    let _ = thread.join();
}
