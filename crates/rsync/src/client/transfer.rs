//! The client's part after the server's arguments were sent: the negotiation, then the transfer.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use super::{Direction, Told, Wishes};
use crate::error::{Result, RsyncError};
use crate::filter::Filter;
use crate::names::Names;
use crate::options::Options;
use crate::receiver::{Into, Receiver, Terms};
use crate::remote::exchange_versions;
use crate::scan::{Called, View};
use crate::sender::{Sender, SentFile, Summary};
use crate::session::{ABILITIES, Begun, INCREMENTAL, SYMLINK_NAMES, in_version, negotiate};
use crate::source::Source;
use crate::target::Target;
use crate::token::{TokenReader, TokenWriter};
use crate::wire::{MuxReader, MuxWriter, QueueWriter, ReadWire, drain};

/// The timeout that is assumed for the server. This side sends something at least twice in this time.
const SIGNS_OF_LIFE: Duration = Duration::from_secs(30);
/// The most messages that are read in search of a reason after a connection failed.
const LAST_WORDS_MAX: usize = 1000;

/// Agrees on a protocol version over a remote shell. The server already has its arguments. Nothing is read beyond the
/// version.
///
/// # Errors
/// When the connection fails, or there is no rsync at the other end.
pub fn begin_shell(reader: &mut impl Read, writer: &mut impl Write) -> Result<u8> {
    exchange_versions(reader, writer)
}

/// Reads the abilities of the server and negotiates the algorithms. Afterwards `options` holds what both sides support.
fn begin(
    protocol: u8,
    (reader, writer): (&mut impl Read, &mut impl Write),
    options: &mut Options,
) -> Result<Begun> {
    *options = in_version(options, protocol);
    // Before version 30 no compatibility flags were sent.
    let flags = if protocol < 30 { 0 } else { reader.read_varint()?.cast_unsigned() };
    let known = ABILITIES.iter().fold(SYMLINK_NAMES | INCREMENTAL, |all, (_, flag)| all | flag);
    if flags & !known != 0 {
        return Err(RsyncError::protocol(format!(
            "a server that does what it was not asked for ({flags:#x})"
        )));
    }
    let both = ABILITIES.iter().filter(|(_, flag)| flags & flag != 0);
    options.abilities = both.map(|(ability, _)| *ability).collect();
    let chosen = negotiate(protocol, (options, true), reader, writer)?;
    let seed = reader.read_i32()?.cast_unsigned();
    Ok(Begun::new((protocol, options), flags & INCREMENTAL != 0, seed, chosen))
}

/// A writer to the server. Before version 30 clients sent no messages.
fn mux_writer<W: Write>(writer: W, protocol: u8) -> MuxWriter<W> {
    if protocol < 30 { MuxWriter::plain(writer) } else { MuxWriter::new(writer) }
}

/// Receives the files of the server into a target. `name` is the name of the target in messages.
///
/// # Errors
/// When the connection fails, the server violates the protocol or ends early, or there is no space left.
pub fn pull(
    protocol: u8,
    (mut reader, mut writer): (impl Read, impl Write + Send),
    wishes: &Wishes,
    told: &Arc<Told>,
    (target, name): (Box<dyn Target + '_>, &str),
) -> Result<Summary> {
    let mut options = wishes.options(Direction::Pull, protocol);
    let filter = wishes.filter(true)?;
    let before = format!("{name}/");
    let into = Into {
        target,
        path: Vec::new(),
        called: Called::After(&before),
        hidden: &Filter::default(),
        terms: Terms::default(),
    };
    let Begun { agreed, compressor } = begin(protocol, (&mut reader, &mut writer), &mut options)?;
    let tokens = TokenReader::new(compressor)?;
    let mut reader = MuxReader::new(reader).telling(told.clone());
    let (queue, sent) = QueueWriter::new();
    std::thread::scope(|scope| {
        let sending = scope.spawn(move || drain(sent, &mut writer));
        let mut writer = mux_writer(queue, protocol).telling(told.clone());
        writer.set_peer_timeout(Some(SIGNS_OF_LIFE));
        let begun = wishes.send_rules(&mut writer, protocol);
        let result = begun.and_then(|()| {
            let ends = (&mut reader, &mut writer);
            let receiver = Receiver::new(ends, (&options, &filter), agreed, (Names::default(), tokens), into);
            receiver.for_client(told.clone()).run()
        });
        drop(writer);
        // Bytes that could not be sent at the very end do not change the result.
        drop(sending.join());
        result
    })
}

/// Sends the files of a tree to the server.
///
/// # Errors
/// When the connection fails, or the server violates the protocol or ends early.
pub fn push(
    protocol: u8,
    (mut reader, mut writer): (impl Read, impl Write),
    wishes: &Wishes,
    told: &Arc<Told>,
    (source, path, name): (&dyn Source, &[u8], &str),
) -> Result<Summary> {
    let mut options = wishes.options(Direction::Push, protocol);
    let filter = wishes.filter(false)?;
    let before = format!("{name}/");
    let Begun { agreed, compressor } = begin(protocol, (&mut reader, &mut writer), &mut options)?;
    let tokens = TokenWriter::new(compressor, None)?;
    let mut reader = MuxReader::new(reader).telling(told.clone());
    let mut writer = mux_writer(writer, protocol).telling(told.clone());
    writer.limit(wishes.bandwidth);
    writer.set_peer_timeout(Some(SIGNS_OF_LIFE));
    if wishes.delete {
        wishes.send_rules(&mut writer, protocol)?;
    }
    let hidden = Filter::default();
    let view = View {
        source,
        hidden: &hidden,
        called: Called::After(&before),
        munged: false,
        keeps_outward_links: false,
    };
    let mut on_file = |_: SentFile<'_>| {};
    let ends = (&mut reader, &mut writer);
    let sender =
        Sender::new(ends, view, (&options, &filter), agreed, (Names::default(), tokens), &mut on_file);
    // The slash at the end sends the content of the directory without the directory itself.
    let result = sender.for_client(told.clone()).run(&[[path, b"/"].concat()]);
    match result {
        Err(RsyncError::Connection(error)) => {
            Err(last_words(&mut reader).unwrap_or(RsyncError::Connection(error)))
        }
        other => other,
    }
}

/// Reads what the server sent before it stopped taking data. Returns its exit code, if it sent one.
fn last_words<R: Read>(reader: &mut MuxReader<R>) -> Option<RsyncError> {
    for _ in 0..LAST_WORDS_MAX {
        if let Err(error) = reader.next_note() {
            return Some(error.into()).filter(|error| matches!(error, RsyncError::PeerExit { .. }));
        }
    }
    None
}
