//! The life of one connection.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::budget::{Budget, ServerBudget};
use crate::error::ConnectionError;
use crate::event::{self, Client, Event};
use crate::export::Exports;
use crate::handshake::{Agreement, Handshake, Outcome, TlsState};
use crate::identity::{Certificate, Identity};
use crate::listener::Stream;
use crate::options::Options;
use crate::outbox::{Direct, Outbox};
use crate::shutdown::Shutdown;
use crate::tls::{Tls, TlsConfig};
use crate::transmission::Transmission;
use crate::workers::Workers;

/// Time limit for the last bytes of TLS.
const GOOD_BYE: Duration = Duration::from_secs(1);

/// The state that all connections of a server share.
pub(crate) struct Shared {
    pub(crate) exports: Arc<dyn Exports>,
    pub(crate) options: Options,
    pub(crate) budget: ServerBudget,
    pub(crate) shutdown: Shutdown,
    pub(crate) workers: Workers,
}

/// A connection after its negotiation, encrypted or not.
enum Ready {
    Plain(Stream),
    Tls(Box<dyn Duplex>),
}

/// The result of a negotiation.
struct Negotiated {
    ready: Ready,
    agreement: Agreement,
    identity: Identity,
}

trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

/// Serves one client until it disconnects or the server shuts down. Reports events to the log.
pub(crate) async fn serve(shared: &Shared, stream: Stream, peer: String, plain: bool) {
    let log = &shared.options.log;
    let limit = shared.options.handshake_timeout;
    let negotiated = tokio::select! {
        biased;
        () = shared.shutdown.triggered() => Ok(None),
        result = timeout(limit, negotiate(shared, stream, plain)) => {
            result.unwrap_or(Err(ConnectionError::HandshakeTimeout(limit)))
        }
    };
    let Negotiated { ready, agreement, identity } = match negotiated {
        Ok(Some(agreed)) => agreed,
        other => {
            let result = other.map(drop);
            return log.tell(&Event::Left { peer: &peer, why: event::why(&result) });
        }
    };
    let client = Arc::new(Client {
        peer,
        export: agreement.name.clone(),
        size: agreement.size,
        read_only: agreement.read_only,
        encrypted: matches!(ready, Ready::Tls(_)),
        certificate: match identity {
            Identity::Certificate(certificate) => Some(certificate),
            _ => None,
        },
    });
    log.tell(&Event::Connected(&client));
    let result = transmit(shared, ready, &agreement, &client).await;
    log.tell(&Event::Disconnected { client: &client, why: event::why(&result) });
}

/// `None` if the client disconnected.
async fn negotiate(
    shared: &Shared,
    stream: Stream,
    plain: bool,
) -> Result<Option<Negotiated>, ConnectionError> {
    let (state, config) = match &shared.options.tls {
        _ if plain => (TlsState::Off, None),
        Tls::Off => (TlsState::Off, None),
        Tls::Optional(config) => (TlsState::Optional, Some(config)),
        Tls::Required(config) => (TlsState::Required, Some(config)),
    };
    let identity = match &stream {
        Stream::Tcp(_) => Identity::Unknown,
        Stream::Unix(_) => Identity::Local,
    };
    let mut handshake = Handshake::new(&shared.exports, &shared.options, state, identity);
    match stream {
        Stream::Tcp(stream) => {
            negotiate_on(&mut handshake, stream, config, |s| Ready::Plain(Stream::Tcp(s))).await
        }
        Stream::Unix(stream) => {
            negotiate_on(&mut handshake, stream, config, |s| Ready::Plain(Stream::Unix(s))).await
        }
    }
}

async fn negotiate_on<S>(
    handshake: &mut Handshake<'_>,
    mut stream: S,
    config: Option<&TlsConfig>,
    ready: impl FnOnce(S) -> Ready,
) -> Result<Option<Negotiated>, ConnectionError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    handshake.greet(&mut stream).await?;
    match (handshake.haggle(&mut stream).await?, config) {
        (Outcome::Transmit(agreement), _) => {
            let identity = handshake.identity().clone();
            Ok(Some(Negotiated { ready: ready(stream), agreement, identity }))
        }
        (Outcome::Closed, _) => Ok(None),
        (Outcome::StartTls, None) => unreachable!("TLS is agreed on only where it is configured"),
        (Outcome::StartTls, Some(config)) => {
            let mut stream = config.acceptor().accept(stream).await?;
            let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
            let own = certificates.first().map(|own| Identity::Certificate(Certificate::of(own)));
            let identity = own.unwrap_or_else(|| handshake.identity().clone());
            handshake.started_tls(identity.clone());
            match handshake.haggle(&mut stream).await? {
                Outcome::Transmit(agreement) => {
                    Ok(Some(Negotiated { ready: Ready::Tls(Box::new(stream)), agreement, identity }))
                }
                Outcome::Closed => {
                    say_good_bye(&mut stream).await;
                    Ok(None)
                }
                Outcome::StartTls => unreachable!("TLS within TLS is refused"),
            }
        }
    }
}

async fn transmit(
    shared: &Shared,
    ready: Ready,
    agreement: &Agreement,
    client: &Arc<Client>,
) -> Result<(), ConnectionError> {
    let stall = shared.options.stall_timeout;
    match ready {
        Ready::Plain(Stream::Tcp(stream)) => {
            let (read, write) = stream.into_split();
            let outbox = Arc::new(Outbox::new(Some(Direct::Tcp(write)), stall));
            let writer = outbox.write_when_possible();
            run(shared, (agreement, client), read, &outbox, writer).await.0
        }
        Ready::Plain(Stream::Unix(stream)) => {
            let (read, write) = stream.into_split();
            let outbox = Arc::new(Outbox::new(Some(Direct::Unix(write)), stall));
            let writer = outbox.write_when_possible();
            run(shared, (agreement, client), read, &outbox, writer).await.0
        }
        Ready::Tls(stream) => {
            let (read, write) = tokio::io::split(stream);
            let outbox = Arc::new(Outbox::new(None, stall));
            let writer = outbox.write_to(write);
            let (result, mut write) = run(shared, (agreement, client), read, &outbox, writer).await;
            say_good_bye(&mut write).await;
            result
        }
    }
}

/// Reads requests while `writer` writes replies. Returns when both have ended and no request is in flight.
async fn run<R: AsyncRead + Unpin, T>(
    shared: &Shared,
    (agreement, client): (&Agreement, &Arc<Client>),
    read: R,
    outbox: &Arc<Outbox>,
    writer: impl Future<Output = T>,
) -> (Result<(), ConnectionError>, T) {
    let budget = Budget::new(&shared.options, shared.budget.clone());
    let transmission = Transmission {
        agreement,
        client,
        log: &shared.options.log,
        max_request: shared.options.max_request,
        stall: shared.options.stall_timeout,
        budget: &budget,
        outbox,
        workers: &shared.workers,
    };
    let reader = async {
        let result = transmission.read_requests(read, &shared.shutdown).await;
        // earlier requests are answered even if the client has violated the protocol
        budget.idle().await;
        outbox.close();
        result
    };
    let (result, written) = tokio::join!(reader, writer);
    let result = match (result, outbox.failure()) {
        (Ok(()), Some(error)) => Err(error),
        (result, _) => result,
    };
    (result, written)
}

async fn say_good_bye<S: AsyncWrite + Unpin>(stream: &mut S) {
    // the client may be gone, so a failure is ignored
    let _: Result<io::Result<()>, _> = timeout(GOOD_BYE, stream.shutdown()).await;
}
