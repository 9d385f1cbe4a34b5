//! The negotiation, from the first byte to the choice of an export (proto.md, "Handshake").

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::error::ConnectionError;
use crate::export::{Export, Exports, OpenError};
use crate::identity::Identity;
use crate::options::{MAX_PAYLOAD, Options};
use crate::wire::Style;
use crate::wire::consts::{
    BASE_ALLOCATION, BASE_ALLOCATION_ID, FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, INIT_PASSWD, MAX_STRING,
    OPTS_MAGIC, info, opt, rep, transmission,
};
use crate::wire::option::{InfoRequest, MetaRequest, OptionError, OptionHead, push_reply, string};

/// Maximum size of the data of an option. Valid clients send less. Up to [`SKIPPED_OPTION_DATA`], a client gets an
/// error.
const MAX_OPTION_DATA: u32 = 64 << 10;
const SKIPPED_OPTION_DATA: u32 = 1 << 20;

/// Maximum number of options before the client chooses an export.
const MAX_OPTIONS: u32 = 1024;

/// Replies are sent when they reach this size in bytes.
const REPLY_BATCH: usize = 64 << 10;

/// Whether the connection is or may become encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TlsState {
    Off,
    Optional,
    Required,
    Active,
}

/// What a client and the server agreed on.
pub(crate) struct Agreement {
    pub(crate) export: Arc<dyn Export>,
    /// Name of the export, for the log.
    pub(crate) name: String,
    /// Size as shown to the client.
    pub(crate) size: u64,
    pub(crate) read_only: bool,
    pub(crate) style: Style,
    pub(crate) meta_context: bool,
}

/// How a negotiation ends.
pub(crate) enum Outcome {
    /// The client chose an export.
    Transmit(Agreement),
    /// TLS begins now, and the negotiation continues in it.
    StartTls,
    /// The client ends the negotiation.
    Closed,
}

/// The negotiation of one connection.
pub(crate) struct Handshake<'a> {
    exports: &'a Arc<dyn Exports>,
    options: &'a Options,
    tls: TlsState,
    identity: Identity,
    client: ClientFlags,
    structured: bool,
    extended: bool,
    /// The export for which `base:allocation` was selected.
    meta_context: Option<String>,
    count: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct ClientFlags {
    fixed_newstyle: bool,
    no_zeroes: bool,
}

/// What happens to the connection after an option.
enum Next {
    Go(Agreement),
    StartTls,
    Close,
    More,
}

/// An open export.
struct Opened {
    name: String,
    export: Arc<dyn Export>,
}

/// An error reply to an option.
struct Refusal {
    kind: u32,
    message: String,
}

impl Refusal {
    fn new(kind: u32, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

impl From<OptionError> for Refusal {
    fn from(error: OptionError) -> Self {
        Self::new(rep::ERR_INVALID, error.to_string())
    }
}

impl<'a> Handshake<'a> {
    pub(crate) fn new(
        exports: &'a Arc<dyn Exports>,
        options: &'a Options,
        tls: TlsState,
        identity: Identity,
    ) -> Self {
        let client = ClientFlags::default();
        Self {
            exports,
            options,
            tls,
            identity,
            client,
            structured: false,
            extended: false,
            meta_context: None,
            count: 0,
        }
    }

    /// Exchanges the first bytes of both sides.
    pub(crate) async fn greet<S>(&mut self, stream: &mut S) -> Result<(), ConnectionError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut greeting = INIT_PASSWD.to_be_bytes().to_vec();
        greeting.extend_from_slice(&OPTS_MAGIC.to_be_bytes());
        greeting.extend_from_slice(&(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
        stream.write_all(&greeting).await?;
        stream.flush().await?;
        let flags = stream.read_u32().await?;
        if flags & !u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES) != 0 {
            return Err(ConnectionError::Protocol("unknown client flags"));
        }
        self.client = ClientFlags {
            fixed_newstyle: flags & u32::from(FLAG_FIXED_NEWSTYLE) != 0,
            no_zeroes: flags & u32::from(FLAG_NO_ZEROES) != 0,
        };
        Ok(())
    }

    /// Continues after the start of TLS. Everything agreed before is void, because an attacker may have sent it.
    pub(crate) fn started_tls(&mut self, identity: Identity) {
        self.tls = TlsState::Active;
        self.identity = identity;
        self.structured = false;
        self.extended = false;
        self.meta_context = None;
    }

    /// The identity of the client.
    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Answers options until one ends the negotiation. It reads no byte after that option. So bytes that a client sent
    /// unencrypted after its request for TLS are never treated as encrypted ones.
    pub(crate) async fn haggle<S>(&mut self, stream: &mut S) -> Result<Outcome, ConnectionError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        loop {
            self.count += 1;
            if self.count > MAX_OPTIONS {
                return Err(ConnectionError::Protocol("too many options"));
            }
            let mut head = [0; OptionHead::LEN];
            stream.read_exact(&mut head).await?;
            let head = OptionHead::parse(head)
                .ok_or(ConnectionError::Protocol("an option has a wrong magic number"))?;
            if !self.client.fixed_newstyle && head.option != opt::EXPORT_NAME {
                return Err(ConnectionError::Protocol("an option from a client without fixed newstyle"));
            }
            let mut out = Vec::new();
            let next = match self.data(stream, head.length).await? {
                Some(data) => self.answer(stream, head.option, &data, &mut out).await?,
                None if head.option == opt::EXPORT_NAME => {
                    return Err(ConnectionError::Protocol("the name of an export is too long"));
                }
                None => {
                    push_reply(&mut out, head.option, rep::ERR_TOO_BIG, &[b"the option's data is too long"]);
                    Next::More
                }
            };
            stream.write_all(&out).await?;
            stream.flush().await?;
            match next {
                Next::Go(agreement) => return Ok(Outcome::Transmit(agreement)),
                Next::StartTls => return Ok(Outcome::StartTls),
                Next::Close => return Ok(Outcome::Closed),
                Next::More => {}
            }
        }
    }

    /// The data of an option. `None` if it was too large and was skipped.
    async fn data<S: AsyncRead + Unpin>(
        &self,
        stream: &mut S,
        length: u32,
    ) -> Result<Option<Vec<u8>>, ConnectionError> {
        if length > SKIPPED_OPTION_DATA {
            return Err(ConnectionError::Protocol("an option's data is larger than any may be"));
        }
        if length > MAX_OPTION_DATA {
            tokio::io::copy(&mut stream.take(u64::from(length)), &mut tokio::io::sink()).await?;
            return Ok(None);
        }
        let mut data = vec![0; length as usize];
        stream.read_exact(&mut data).await?;
        Ok(Some(data))
    }

    async fn answer<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        option: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Next, ConnectionError> {
        if option == opt::EXPORT_NAME {
            return self.export_name(data, out).await;
        }
        let result = match option {
            opt::ABORT => {
                push_reply(out, option, rep::ACK, &[]);
                return Ok(Next::Close);
            }
            opt::STARTTLS => self.start_tls(data),
            _ if self.tls == TlsState::Required => {
                Err(Refusal::new(rep::ERR_TLS_REQD, "this server needs TLS to be started first"))
            }
            opt::LIST => self.list(stream, data, out).await?,
            opt::INFO | opt::GO => self.info(option, data, out).await,
            opt::STRUCTURED_REPLY => self.structured_reply(data),
            opt::EXTENDED_HEADERS => no_data(data).map(|()| {
                self.extended = true;
                Next::More
            }),
            opt::LIST_META_CONTEXT => self.list_meta_context(data, out).await,
            opt::SET_META_CONTEXT => self.set_meta_context(data, out).await,
            _ => Err(Refusal::new(rep::ERR_UNSUP, "unknown option")),
        };
        match result {
            Ok(next) => {
                push_reply(out, option, rep::ACK, &[]);
                Ok(next)
            }
            Err(refusal) => {
                tracing::debug!(option, kind = refusal.kind & 0xffff, message = %refusal.message, "option refused");
                let message = &refusal.message[..refusal.message.floor_char_boundary(MAX_STRING)];
                push_reply(out, option, refusal.kind, &[message.as_bytes()]);
                Ok(Next::More)
            }
        }
    }

    fn start_tls(&self, data: &[u8]) -> Result<Next, Refusal> {
        no_data(data)?;
        match self.tls {
            TlsState::Off => Err(Refusal::new(rep::ERR_POLICY, "this server has no TLS here")),
            TlsState::Active => Err(Refusal::new(rep::ERR_INVALID, "TLS has been started already")),
            TlsState::Optional | TlsState::Required => Ok(Next::StartTls),
        }
    }

    fn structured_reply(&mut self, data: &[u8]) -> Result<Next, Refusal> {
        no_data(data)?;
        if self.extended {
            return Err(Refusal::new(rep::ERR_EXT_HEADER_REQD, "extended headers were agreed on already"));
        }
        self.structured = true;
        Ok(Next::More)
    }

    async fn list<S: AsyncWrite + Unpin>(
        &self,
        stream: &mut S,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Result<Next, Refusal>, ConnectionError> {
        if let Err(refusal) = no_data(data) {
            return Ok(Err(refusal));
        }
        let (exports, client) = (Arc::clone(self.exports), self.identity.clone());
        let names = match blocking(move || exports.list(&client)).await {
            Some(Ok(names)) => names,
            Some(Err(error)) => {
                tracing::warn!(%error, "listing the exports");
                return Ok(Err(Refusal::new(rep::ERR_POLICY, format!("listing the exports: {error}"))));
            }
            None => return Ok(Err(Refusal::new(rep::ERR_SHUTDOWN, "internal error"))),
        };
        for name in names.iter().filter(|name| string(name.as_bytes()).is_ok()) {
            let length = u32::try_from(name.len()).expect("strings are short");
            push_reply(out, opt::LIST, rep::SERVER, &[&length.to_be_bytes(), name.as_bytes()]);
            if out.len() >= REPLY_BATCH {
                stream.write_all(out).await?;
                out.clear();
            }
        }
        Ok(Ok(Next::More))
    }

    /// Handles an option that has no error reply. A failure ends the connection.
    async fn export_name(&self, data: &[u8], out: &mut Vec<u8>) -> Result<Next, ConnectionError> {
        if self.tls == TlsState::Required {
            return Err(ConnectionError::Refused("TLS is required".to_owned()));
        }
        if self.extended {
            return Err(ConnectionError::Protocol("an export by name only, with extended headers"));
        }
        let name =
            string(data).map_err(|_| ConnectionError::Protocol("the name of an export is not a string"))?;
        let opened = self.open(name).await.map_err(|refusal| ConnectionError::Refused(refusal.message))?;
        let agreement = self.agree(opened);
        out.extend_from_slice(&agreement.size.to_be_bytes());
        out.extend_from_slice(&agreement.transmission_flags().to_be_bytes());
        if !self.client.no_zeroes {
            out.extend_from_slice(&[0; 124]);
        }
        Ok(Next::Go(agreement))
    }

    async fn info(&self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Result<Next, Refusal> {
        let request = InfoRequest::parse(data)?;
        let opened = self.open(request.name).await?;
        let asked = |item| request.items.contains(&item);
        if asked(info::NAME) || opened.name != request.name {
            push_reply(out, option, rep::INFO, &[&info::NAME.to_be_bytes(), opened.name.as_bytes()]);
        }
        if asked(info::DESCRIPTION)
            && let Some(text) = opened.export.description().filter(|text| string(text.as_bytes()).is_ok())
        {
            push_reply(out, option, rep::INFO, &[&info::DESCRIPTION.to_be_bytes(), text.as_bytes()]);
        }
        if asked(info::BLOCK_SIZE) {
            let preferred = preferred_block_size(opened.export.block_size(), self.options.max_request);
            let sizes = [1u32, preferred, self.options.max_request].map(u32::to_be_bytes);
            push_reply(out, option, rep::INFO, &[&info::BLOCK_SIZE.to_be_bytes(), sizes.as_flattened()]);
        }
        let agreement = self.agree(opened);
        let flags = agreement.transmission_flags();
        let parts: [&[u8]; 3] =
            [&info::EXPORT.to_be_bytes(), &agreement.size.to_be_bytes(), &flags.to_be_bytes()];
        push_reply(out, option, rep::INFO, &parts);
        Ok(if option == opt::GO { Next::Go(agreement) } else { Next::More })
    }

    fn agree(&self, opened: Opened) -> Agreement {
        let style = match (self.extended, self.structured) {
            (true, _) => Style::Extended,
            (false, true) => Style::Structured,
            (false, false) => Style::Simple,
        };
        Agreement {
            size: opened.export.size(),
            read_only: opened.export.read_only(),
            style,
            meta_context: self.meta_context.as_ref() == Some(&opened.name),
            name: opened.name,
            export: opened.export,
        }
    }

    fn need_chunks(&self) -> Result<(), Refusal> {
        if self.structured || self.extended {
            Ok(())
        } else {
            Err(Refusal::new(rep::ERR_INVALID, "structured replies must be agreed on first"))
        }
    }

    async fn list_meta_context(&self, data: &[u8], out: &mut Vec<u8>) -> Result<Next, Refusal> {
        self.need_chunks()?;
        let request = MetaRequest::parse(data)?;
        self.open(request.name).await?;
        if request.queries == 0 || request.allocation || request.all_base {
            // the number has no meaning in a list
            push_meta_context(out, opt::LIST_META_CONTEXT, 0);
        }
        Ok(Next::More)
    }

    async fn set_meta_context(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<Next, Refusal> {
        // the earlier selection is dropped even if this fails
        self.meta_context = None;
        self.need_chunks()?;
        let request = MetaRequest::parse(data)?;
        let opened = self.open(request.name).await?;
        if request.allocation {
            push_meta_context(out, opt::SET_META_CONTEXT, BASE_ALLOCATION_ID);
            self.meta_context = Some(opened.name);
        }
        Ok(Next::More)
    }

    /// Opens an export. An empty name means the default one.
    async fn open(&self, name: &str) -> Result<Opened, Refusal> {
        let unknown = |message: &str| Refusal::new(rep::ERR_UNKNOWN, message);
        let (exports, client, name) = (Arc::clone(self.exports), self.identity.clone(), name.to_owned());
        let open = move || {
            let name = if name.is_empty() { exports.default_export(&client)? } else { name };
            Some(exports.open(&client, &name).map(|export| Opened { name, export }))
        };
        match blocking(open).await {
            Some(Some(Ok(opened))) => Ok(opened),
            Some(None) => Err(unknown("there is no default export")),
            Some(Some(Err(error @ OpenError::NotFound))) => Err(unknown(&error.to_string())),
            Some(Some(Err(error @ OpenError::Denied { .. }))) => {
                Err(Refusal::new(rep::ERR_POLICY, error.to_string()))
            }
            Some(Some(Err(OpenError::Io(error)))) => {
                tracing::warn!(%error, "opening an export");
                Err(unknown(&format!("opening the export: {error}")))
            }
            None => Err(Refusal::new(rep::ERR_SHUTDOWN, "internal error")),
        }
    }
}

impl Agreement {
    fn transmission_flags(&self) -> u16 {
        use transmission as t;
        let mut flags = t::HAS_FLAGS | t::SEND_FLUSH | t::SEND_FUA | t::SEND_CACHE | t::CAN_MULTI_CONN;
        flags |= if self.read_only {
            t::READ_ONLY
        } else {
            t::SEND_TRIM | t::SEND_WRITE_ZEROES | t::SEND_FAST_ZERO
        };
        if self.style != Style::Simple {
            flags |= t::SEND_DF;
        }
        if self.style == Style::Extended && self.meta_context {
            flags |= t::BLOCK_STATUS_PAYLOAD;
        }
        flags
    }
}

fn no_data(data: &[u8]) -> Result<(), Refusal> {
    if data.is_empty() { Ok(()) } else { Err(Refusal::new(rep::ERR_INVALID, "this option has no data")) }
}

fn push_meta_context(out: &mut Vec<u8>, option: u32, id: u32) {
    push_reply(out, option, rep::META_CONTEXT, &[&id.to_be_bytes(), BASE_ALLOCATION.as_bytes()]);
}

/// A valid preferred block size: a power of two from 512 to the largest request.
fn preferred_block_size(wanted: u32, max_request: u32) -> u32 {
    let largest = 1 << max_request.clamp(512, MAX_PAYLOAD).ilog2();
    wanted.clamp(512, largest).next_power_of_two()
}

/// Runs storage code on a thread that may block. `None` if it panicked.
async fn blocking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(call)
        .await
        .inspect_err(|error| tracing::error!(%error, "an export panicked"))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preferred_block_sizes_are_what_the_protocol_allows() {
        for (wanted, max_request, expected) in [
            (0, MAX_PAYLOAD, 512),
            (512, MAX_PAYLOAD, 512),
            (16 << 10, MAX_PAYLOAD, 16 << 10),
            (12 << 10, MAX_PAYLOAD, 16 << 10),
            (u32::MAX, MAX_PAYLOAD, MAX_PAYLOAD),
            (1 << 20, 100_000, 65_536),
        ] {
            assert_eq!(preferred_block_size(wanted, max_request), expected, "{wanted}");
        }
    }
}
