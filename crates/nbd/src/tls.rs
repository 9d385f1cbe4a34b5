//! TLS: certificates, and whether connections are encrypted.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

use crate::error::TlsError;

/// Whether connections are encrypted (proto.md, "TLS support": NOTLS, SELECTIVETLS with no export that requires it,
/// FORCEDTLS).
#[derive(Debug, Clone, Default)]
pub enum Tls {
    /// Never.
    #[default]
    Off,
    /// If the client requests it.
    Optional(TlsConfig),
    /// Always. Without TLS, a client gets no information.
    Required(TlsConfig),
}

/// Which clients are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientCertificates<'a> {
    /// All clients. No certificate is requested.
    NotAsked,
    /// Clients with a certificate from one of these authorities.
    Required {
        /// One or more certificates in PEM.
        authorities: &'a [u8],
    },
}

/// A server's certificate and key, and its requirements for clients. Clones share them.
#[derive(Clone)]
pub struct TlsConfig {
    server: Arc<ServerConfig>,
}

impl fmt::Debug for TlsConfig {
    /// Does not show the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConfig").finish_non_exhaustive()
    }
}

impl TlsConfig {
    /// Creates the configuration for TLS 1.2 and 1.3. `chain` contains the server's certificate and the intermediate
    /// certificates, in PEM. `key` is its key, in PEM (PKCS #8, PKCS #1 or SEC1).
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn from_pem(chain: &[u8], key: &[u8], clients: ClientCertificates<'_>) -> Result<Self, TlsError> {
        let chain = certificates("server certificate", chain)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| TlsError::Pem { what: "server key", reason: error.to_string() })?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let builder = match clients {
            ClientCertificates::NotAsked => builder.with_no_client_auth(),
            ClientCertificates::Required { authorities } => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates("client authority", authorities)? {
                    roots.add(certificate)?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                    .build()
                    .map_err(|error| TlsError::Verifier { reason: error.to_string() })?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        Ok(Self { server: Arc::new(builder.with_single_cert(chain, key)?) })
    }

    /// Reads the files of a directory with the names that qemu, libnbd and nbdkit use: `server-cert.pem`,
    /// `server-key.pem`, and `ca-cert.pem`. With `verify_clients`, only clients with a certificate from that authority
    /// are accepted.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn from_directory(directory: &Path, verify_clients: bool) -> Result<Self, TlsError> {
        let read = |name: &str| {
            let path = directory.join(name);
            std::fs::read(&path).map_err(|source: io::Error| TlsError::File { path, source })
        };
        let (chain, key) = (read("server-cert.pem")?, read("server-key.pem")?);
        if verify_clients {
            let authorities = read("ca-cert.pem")?;
            Self::from_pem(&chain, &key, ClientCertificates::Required { authorities: &authorities })
        } else {
            Self::from_pem(&chain, &key, ClientCertificates::NotAsked)
        }
    }

    pub(crate) fn acceptor(&self) -> tokio_rustls::TlsAcceptor {
        tokio_rustls::TlsAcceptor::from(Arc::clone(&self.server))
    }
}

fn certificates(what: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| TlsError::Pem { what, reason: error.to_string() })?;
    if found.is_empty() { Err(TlsError::Empty { what }) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    #[test]
    fn takes_certificates_from_a_directory() {
        let (cert, key) = identity();
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [("server-cert.pem", &cert), ("server-key.pem", &key)] {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        TlsConfig::from_directory(dir.path(), false).unwrap();
        match TlsConfig::from_directory(dir.path(), true) {
            Err(TlsError::File { path, .. }) => assert_eq!(path, dir.path().join("ca-cert.pem")),
            other => panic!("{other:?}"),
        }
        std::fs::write(dir.path().join("ca-cert.pem"), &cert).unwrap();
        let config = TlsConfig::from_directory(dir.path(), true).unwrap();
        assert!(!format!("{config:?}").contains("PRIVATE"));
    }

    #[test]
    fn says_what_is_wrong() {
        let (cert, key) = identity();
        let (_, other_key) = identity();
        let ask = |cert: &str, key: &str| {
            TlsConfig::from_pem(cert.as_bytes(), key.as_bytes(), ClientCertificates::NotAsked).map(drop)
        };
        assert!(matches!(ask("", &key), Err(TlsError::Empty { what: "server certificate" })));
        assert!(matches!(ask(&cert, "nothing"), Err(TlsError::Pem { what: "server key", .. })));
        assert!(matches!(ask(&cert, &other_key), Err(TlsError::Rustls(_))));
        let none = ClientCertificates::Required { authorities: b"" };
        let result = TlsConfig::from_pem(cert.as_bytes(), key.as_bytes(), none).map(drop);
        assert!(matches!(result, Err(TlsError::Empty { what: "client authority" })));
    }
}
