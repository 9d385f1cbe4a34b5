//! The verified identity of a client.

use std::fmt;

use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};

/// Attribute type 2.5.4.3, "common name" (RFC 5280, appendix A).
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];

/// ASN.1 tags (X.690).
mod tag {
    pub(super) const OBJECT_IDENTIFIER: u8 = 0x06;
    pub(super) const UTF8_STRING: u8 = 0x0c;
    pub(super) const PRINTABLE_STRING: u8 = 0x13;
    pub(super) const IA5_STRING: u8 = 0x16;
    pub(super) const SEQUENCE: u8 = 0x30;
    pub(super) const SET: u8 = 0x31;
}

/// The identity of a client. [`Exports`](crate::Exports) uses it to decide which exports the client may see.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Identity {
    /// It connected to a Unix socket, whose permissions allowed it.
    Local,
    /// It connected over TCP without a verified certificate.
    Unknown,
    /// It has a certificate signed by one of the server's authorities.
    Certificate(Certificate),
}

/// The identity in a verified certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// SHA-256 of the certificate in DER, as `openssl x509 -fingerprint -sha256` prints it.
    pub fingerprint: [u8; 32],
    /// The common name of the subject, if there is exactly one.
    pub common_name: Option<String>,
    /// The DNS names of the subject's alternative names, in lower case.
    pub dns_names: Vec<String>,
}

impl Certificate {
    pub(crate) fn of(der: &CertificateDer<'_>) -> Self {
        // rustls has parsed and verified it. If it cannot be parsed here, it has a fingerprint and no names.
        let parsed = webpki::EndEntityCert::try_from(der).ok();
        Self {
            fingerprint: Sha256::digest(der).into(),
            common_name: parsed.as_ref().and_then(|parsed| common_name(parsed.subject())),
            dns_names: parsed
                .as_ref()
                .map(|parsed| parsed.valid_dns_names().map(str::to_ascii_lowercase).collect())
                .unwrap_or_default(),
        }
    }

    /// The fingerprint in lower-case hexadecimal.
    pub fn fingerprint_text(&self) -> String {
        self.fingerprint.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Display for Certificate {
    /// Prints a name, if there is one, and the fingerprint. The name is quoted, so that it cannot forge a line of a
    /// log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = self.common_name.as_ref().or(self.dns_names.first()) {
            write!(f, "{name:?} ")?;
        }
        write!(f, "sha256:{}", self.fingerprint_text())
    }
}

/// Parses one element of DER: its tag, its content, and the bytes after it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81 | 0x82 => rest
            .split_at_checked(usize::from(first & 0x0f))
            .map(|(bytes, rest)| (bytes.iter().fold(0, |sum, &byte| sum << 8 | usize::from(byte)), rest))?,
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// The elements of a sequence or set, up to the first malformed one.
fn elements(mut der: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let (tag, content, rest) = element(der)?;
        der = rest;
        Some((tag, content))
    })
}

/// The common name in a subject. `subject` is a sequence of sets of pairs (type, value), without its own tag and
/// length. A subject with several common names counts as having none, so that names are unambiguous.
fn common_name(subject: &[u8]) -> Option<String> {
    let sets = elements(subject).filter(|(tag, _)| *tag == tag::SET);
    let pairs = sets.flat_map(|(_, set)| elements(set)).filter(|(tag, _)| *tag == tag::SEQUENCE);
    let mut names = pairs.filter_map(|(_, pair)| {
        let (tag, kind, rest) = element(pair)?;
        let is_name = tag == tag::OBJECT_IDENTIFIER && kind == COMMON_NAME;
        is_name.then(|| element(rest)).flatten()
    });
    let (tag, text, _) = names.next()?;
    let is_text = matches!(tag, tag::UTF8_STRING | tag::PRINTABLE_STRING | tag::IA5_STRING);
    if !is_text || names.next().is_some() {
        return None;
    }
    String::from_utf8(text.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    use super::*;

    fn certificate(names: &[&str], subject: DistinguishedName) -> Certificate {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = subject;
        let made = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        Certificate::of(made.der())
    }

    #[test]
    fn a_certificate_is_known_by_its_names_and_its_fingerprint() {
        let mut subject = DistinguishedName::new();
        subject.push(DnType::OrganizationName, "a company");
        subject.push(DnType::CommonName, "vm host 1");
        let found = certificate(&["VM1.example", "192.0.2.1"], subject);
        assert_eq!(found.common_name.as_deref(), Some("vm host 1"));
        assert_eq!(found.dns_names, ["vm1.example"]);
        assert_eq!(found.to_string(), format!("\"vm host 1\" sha256:{}", found.fingerprint_text()));
        assert_eq!(found.fingerprint_text().len(), 64);
        let without = certificate(&[], DistinguishedName::new());
        assert_eq!((without.common_name, without.dns_names), (None, vec![]));
    }

    #[test]
    fn two_common_names_are_none() {
        let pair = |name: &[u8]| {
            let value = [&[tag::UTF8_STRING, name.len() as u8][..], name].concat();
            let kind = [&[tag::OBJECT_IDENTIFIER, 3][..], &COMMON_NAME].concat();
            let both = [kind, value].concat();
            let sequence = [&[tag::SEQUENCE, both.len() as u8][..], &both].concat();
            [&[tag::SET, sequence.len() as u8][..], &sequence].concat()
        };
        assert_eq!(common_name(&pair(b"a")).as_deref(), Some("a"));
        assert_eq!(common_name(&[pair(b"a"), pair(b"b")].concat()), None);
        assert_eq!(common_name(&pair(b"\xff")), None);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_to_their_end(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            let _ = common_name(&bytes);
        }
    }
}
