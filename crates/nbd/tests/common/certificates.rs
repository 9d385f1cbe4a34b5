//! A certificate authority, and its certificates for a server and a client.

use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

/// A certificate and its key, in PEM.
pub struct Identity {
    pub cert: String,
    pub key: String,
}

/// An authority's certificate, and the certificates that it has issued, in PEM.
pub struct Certificates {
    pub authority: String,
    pub server: Identity,
    pub client: Identity,
}

impl Certificates {
    /// Creates the certificates. That of the server is for `localhost` and 127.0.0.1.
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, "an authority for tests");
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let identity = |names: &[&str], usage| {
            let mut params =
                CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
                    .unwrap();
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.extended_key_usages = vec![usage];
            params.distinguished_name.push(DnType::CommonName, names[0]);
            let key = KeyPair::generate().unwrap();
            Identity { cert: params.signed_by(&key, &authority).unwrap().pem(), key: key.serialize_pem() }
        };
        Self {
            server: identity(&["localhost", "127.0.0.1"], ExtendedKeyUsagePurpose::ServerAuth),
            client: identity(&["client"], ExtendedKeyUsagePurpose::ClientAuth),
            authority: authority.pem(),
        }
    }

    /// Writes the files with the names that libnbd and qemu use.
    pub fn write_to(&self, dir: &Path) {
        for (name, text) in [
            ("ca-cert.pem", &self.authority),
            ("server-cert.pem", &self.server.cert),
            ("server-key.pem", &self.server.key),
            ("client-cert.pem", &self.client.cert),
            ("client-key.pem", &self.client.key),
        ] {
            std::fs::write(dir.join(name), text).unwrap();
        }
    }
}
