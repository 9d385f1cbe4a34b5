//! Tests of TLS: what clients may do before and after it begins, and with which certificates.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use common::certificates::{Certificates, Identity};
use common::client::*;
use common::{Memory, Running, Shelf, quick};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use snowmelt_nbd::{ClientCertificates, Endpoint, Listener, Options, Server, Shutdown, Tls, TlsConfig};

const SIZE: u64 = 1 << 20;

fn config(certificates: &Certificates, verify: bool) -> TlsConfig {
    let authorities = certificates.authority.as_bytes();
    let clients =
        if verify { ClientCertificates::Required { authorities } } else { ClientCertificates::NotAsked };
    TlsConfig::from_pem(certificates.server.cert.as_bytes(), certificates.server.key.as_bytes(), clients)
        .unwrap()
}

fn serve(tls: Tls) -> Running {
    Running::tcp(Shelf::default().with("disk", Memory::filled(SIZE)), Options { tls, ..quick() })
}

fn address(server: &Running) -> std::net::SocketAddr {
    match &server.endpoint {
        Endpoint::Tcp(address) => *address,
        other => panic!("{other}"),
    }
}

fn connection(certificates: &Certificates, identity: Option<&Identity>) -> ClientConnection {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(certificates.authority.as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let chain = vec![CertificateDer::from_pem_slice(identity.cert.as_bytes()).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    ClientConnection::new(Arc::new(config), ServerName::try_from("localhost").unwrap()).unwrap()
}

/// An unencrypted client whose socket can be reused for TLS.
struct Clear {
    socket: TcpStream,
    client: Client,
}

impl Clear {
    fn new(server: &Running) -> Self {
        let socket = TcpStream::connect(address(server)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let client = Client::greet(Box::new(socket.try_clone().unwrap()), 3);
        Self { socket, client }
    }

    /// Requests TLS and starts it.
    fn start_tls(
        mut self,
        certificates: &Certificates,
        identity: Option<&Identity>,
    ) -> std::io::Result<Client> {
        assert_eq!(self.client.ask(OPT_STARTTLS, &[]).0, ACK);
        let mut tls = connection(certificates, identity);
        tls.complete_io(&mut self.socket)?;
        self.client.wire = Box::new(StreamOwned::new(tls, self.socket));
        Ok(self.client)
    }
}

fn go(client: &mut Client, name: &str) -> u32 {
    client.ask(OPT_GO, &info_data(name, &[])).0
}

#[test]
fn required_tls_refuses_everything_else_before_it() {
    let certificates = Certificates::new();
    let server = serve(Tls::Required(config(&certificates, false)));
    let mut clear = Clear::new(&server);
    for option in [OPT_LIST, OPT_STRUCTURED, OPT_EXTENDED, 77] {
        assert_eq!(clear.client.ask(option, &[]).0, ERR_TLS_REQD, "{option}");
    }
    for name in ["disk", "nothing"] {
        for option in [OPT_INFO, OPT_GO] {
            assert_eq!(clear.client.ask(option, &info_data(name, &[])), (ERR_TLS_REQD, vec![]));
        }
    }
    let mut client = clear.start_tls(&certificates, None).unwrap();
    assert_eq!(client.ask(OPT_STARTTLS, &[]).0, ERR_INVALID);
    assert_eq!(client.ask(OPT_LIST, &[]).1.len(), 1);
    assert_eq!(go(&mut client, "disk"), ACK);
    let content = server.memory("disk").content();
    assert_eq!(client.read(100, 5000), content[100..5100]);

    let mut abort = Clear::new(&server);
    assert_eq!(abort.client.ask(OPT_ABORT, &[]).0, ACK);
    let mut by_name = Clear::new(&server);
    by_name.client.send_option(OPT_EXPORT_NAME, b"disk");
    assert!(by_name.client.is_closed());
}

#[test]
fn optional_tls_serves_both() {
    let certificates = Certificates::new();
    let server = serve(Tls::Optional(config(&certificates, false)));
    let mut clear = Clear::new(&server);
    assert_eq!(go(&mut clear.client, "disk"), ACK);
    let mut client = Clear::new(&server).start_tls(&certificates, None).unwrap();
    assert_eq!(go(&mut client, "disk"), ACK);
    assert_eq!(client.write(10, b"through TLS").error, 0);
    assert_eq!(clear.client.read(10, 11), b"through TLS");
}

#[test]
fn what_was_agreed_in_the_clear_is_forgotten() {
    let certificates = Certificates::new();
    let server = serve(Tls::Optional(config(&certificates, false)));
    let mut clear = Clear::new(&server);
    assert_eq!(clear.client.ask(OPT_STRUCTURED, &[]).0, ACK);
    assert_eq!(clear.client.ask(OPT_SET_META, &meta_data("disk", &["base:allocation"])).0, ACK);
    let mut client = clear.start_tls(&certificates, None).unwrap();
    assert_eq!(client.ask(OPT_SET_META, &meta_data("disk", &["base:allocation"])).0, ERR_INVALID);
    assert_eq!(go(&mut client, "disk"), ACK);
    // replies are simple again
    assert_eq!(client.read(0, 512).len(), 512);
}

#[test]
fn bytes_in_the_clear_after_starttls_are_not_taken_for_encrypted_ones() {
    let certificates = Certificates::new();
    let server = serve(Tls::Required(config(&certificates, false)));
    let mut socket = TcpStream::connect(address(&server)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut sent = vec![0, 0, 0, 3];
    for (option, data) in [(OPT_STARTTLS, vec![]), (OPT_GO, info_data("disk", &[]))] {
        sent.extend_from_slice(b"IHAVEOPT");
        sent.extend_from_slice(&option.to_be_bytes());
        sent.extend(counted(&data));
    }
    socket.write_all(&sent).unwrap();
    let mut answer = Vec::new();
    // the greeting, the acknowledgement of STARTTLS, possibly a TLS alert, and the end
    let _ = socket.read_to_end(&mut answer);
    assert!(answer.len() >= 38, "{answer:?}");
    assert!(
        !answer[38..].windows(4).any(|word| word == [0x55, 0x65, 0xa9, 0]),
        "a reply to an option: {answer:?}"
    );
    assert!(answer.len() < 60, "{answer:?}");
}

#[test]
fn clients_without_the_right_certificate_are_not_let_in() {
    let certificates = Certificates::new();
    let stranger = Certificates::new();
    let server = serve(Tls::Required(config(&certificates, true)));
    let mut client = Clear::new(&server).start_tls(&certificates, Some(&certificates.client)).unwrap();
    assert_eq!(go(&mut client, "disk"), ACK);
    for identity in [None, Some(&stranger.client)] {
        // in TLS 1.3 the client is informed of it only with the first answer
        let refused = match Clear::new(&server).start_tls(&certificates, identity) {
            Err(_) => true,
            Ok(mut client) => {
                let _ = client.wire.write_all(b"IHAVEOPT\0\0\0\x03\0\0\0\0");
                client.option_reply().is_err()
            }
        };
        assert!(refused);
    }
}

#[test]
fn large_requests_through_tls() {
    let certificates = Certificates::new();
    let server = serve(Tls::Required(config(&certificates, false)));
    let mut client = Clear::new(&server).start_tls(&certificates, None).unwrap();
    assert_eq!(client.ask(OPT_STRUCTURED, &[]).0, ACK);
    assert_eq!(go(&mut client, "disk"), ACK);
    client.style = Style::Structured;
    let data: Vec<u8> = (0..SIZE).map(|i| (i % 253) as u8).collect();
    assert_eq!(client.write(0, &data).error, 0);
    for cookie in 0..16 {
        client.send(READ, 0, cookie, 0, SIZE, &[]);
    }
    for _ in 0..16 {
        assert!(client.reply().unwrap().content(0, SIZE as u32) == data);
    }
    client.send(DISC, 0, 0, 0, 0, &[]);
    // a clean end of TLS is an end of file, not an error
    assert_eq!(client.wire.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_plain_listener_beside_an_encrypted_one() {
    let certificates = Certificates::new();
    let shelf = Arc::new(Shelf::default().with("disk", Memory::new(SIZE)));
    let dir = tempfile::tempdir().unwrap();
    let local = Listener::unix(&dir.path().join("nbd.sock")).unwrap().plain();
    let tcp = Listener::tcp("127.0.0.1:0".parse().unwrap()).unwrap();
    let (local_end, tcp_end) = (local.endpoint().clone(), tcp.endpoint().clone());
    let options = Options { tls: Tls::Required(config(&certificates, true)), ..quick() };
    let server = Server::new(shelf, options).unwrap();
    let shutdown = Shutdown::new();
    let stop = shutdown.clone();
    let thread = std::thread::spawn(move || server.serve(vec![local, tcp], &stop));
    assert_eq!(go(&mut Client::new(&local_end), "disk"), ACK);
    assert_eq!(Client::new(&local_end).ask(OPT_STARTTLS, &[]).0, ERR_POLICY);
    assert_eq!(go(&mut Client::new(&tcp_end), "disk"), ERR_TLS_REQD);
    shutdown.trigger();
    thread.join().unwrap().unwrap();
}

#[test]
fn a_certificate_decides_which_exports_a_client_sees() {
    let certificates = Certificates::new();
    let mut shelf = Shelf::default().with("disk", Memory::new(SIZE)).with("other", Memory::new(SIZE));
    shelf.holders.insert("client".to_owned(), "other".to_owned());
    let options = Options { tls: Tls::Required(config(&certificates, true)), ..quick() };
    let server = Running::tcp(shelf, options);
    let mut client = Clear::new(&server).start_tls(&certificates, Some(&certificates.client)).unwrap();
    let listed = client.ask(OPT_LIST, &[]).1;
    assert!(listed.len() == 1 && listed[0].data.ends_with(b"other"), "{listed:?}");
    let refused = |client: &mut Client, name| client.ask(OPT_INFO, &info_data(name, &[]));
    assert_eq!(refused(&mut client, "disk"), refused(&mut client, "nothing"));
    assert_eq!(go(&mut client, "disk"), ERR_UNKNOWN);
    assert_eq!(go(&mut client, "other"), ACK);
    // the server's own certificate is from the same authority, but is valid only for servers
    assert!(!sees(&server, &certificates, &certificates.server));
}

/// Whether a client with this certificate gets an answer.
fn sees(server: &Running, certificates: &Certificates, identity: &Identity) -> bool {
    let Ok(mut client) = Clear::new(server).start_tls(certificates, Some(identity)) else { return false };
    client.wire.write_all(b"IHAVEOPT\0\0\0\x03\0\0\0\0").is_ok() && client.option_reply().is_ok()
}

#[test]
fn one_machine_cannot_take_all_connections() {
    let options = Options { max_connections_per_machine: 2, ..quick() };
    let server = Running::tcp(Shelf::default().with("disk", Memory::new(SIZE)), options);
    let mut kept: Vec<Client> = (0..2).map(|_| Client::new(&server.endpoint)).collect();
    let mut refused = TcpStream::connect(address(&server)).unwrap();
    refused.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // the connection was closed without a greeting
    assert!(matches!(refused.read(&mut [0; 18]), Ok(0) | Err(_)));
    assert_eq!(go(&mut kept[1], "disk"), ACK);
    assert_eq!(kept[0].ask(OPT_ABORT, &[]).0, ACK);
    assert!(kept[0].is_closed());
    let begun = std::time::Instant::now();
    let is_let_in = || {
        let mut socket = TcpStream::connect(address(&server)).unwrap();
        socket.read_exact(&mut [0; 18]).is_ok()
    };
    while !is_let_in() {
        assert!(begun.elapsed() < Duration::from_secs(20), "the place of a client that left is free again");
        std::thread::sleep(Duration::from_millis(10));
    }
}
