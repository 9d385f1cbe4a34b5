//! Which client may use which export: the file of `--clients`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::Deserialize;
use snowmelt_dataset::Name;
use snowmelt_nbd::{Certificate, Identity};

use crate::journal::{Level, ServerLog};

/// The longest file that is read.
const FILE_MAX: u64 = 1 << 20;

/// The rights of a client for an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Access {
    /// To it, the export does not exist.
    None,
    Read,
    Write,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    client: BTreeMap<String, Section>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    fingerprint: Option<String>,
    common_name: Option<String>,
    dns_name: Option<String>,
    #[serde(default)]
    read: Vec<String>,
    #[serde(default)]
    write: Vec<String>,
}

/// A client: the conditions for its certificate, all of which must be met, and the exports that it may use.
#[derive(Debug, Default)]
struct Client {
    fingerprint: Option<[u8; 32]>,
    common_name: Option<String>,
    dns_name: Option<String>,
    read: Vec<String>,
    write: Vec<String>,
}

impl Client {
    fn of(name: &str, section: Section) -> Result<Self, String> {
        let Section { fingerprint, common_name, dns_name, read, write } = section;
        if fingerprint.is_none() && common_name.is_none() && dns_name.is_none() {
            return Err(format!("[client.{name}] needs a fingerprint, a common_name or a dns_name"));
        }
        let fingerprint = fingerprint
            .map(|text| {
                parse_fingerprint(&text).ok_or_else(|| {
                    format!(
                        "[client.{name}] fingerprint '{text}': 64 hexadecimal digits of SHA-256 are needed"
                    )
                })
            })
            .transpose()?;
        if let Some(wrong) = read.iter().chain(&write).find(|export| Name::parse(export).is_err()) {
            return Err(format!("[client.{name}] '{wrong}' is not a valid name of a dataset or snapshot"));
        }
        let dns_name = dns_name.map(|dns_name| dns_name.to_ascii_lowercase());
        Ok(Self { fingerprint, common_name, dns_name, read, write })
    }

    fn is(&self, certificate: &Certificate) -> bool {
        self.fingerprint.is_none_or(|fingerprint| fingerprint == certificate.fingerprint)
            && self.common_name.as_ref().is_none_or(|name| certificate.common_name.as_ref() == Some(name))
            && self.dns_name.as_ref().is_none_or(|name| certificate.dns_names.contains(name))
    }

    fn access(&self, export: &str) -> Access {
        let has = |names: &[String]| names.iter().any(|name| is_at_or_below(export, name));
        if has(&self.write) {
            Access::Write
        } else if has(&self.read) {
            Access::Read
        } else {
            Access::None
        }
    }
}

/// Whether an export is this dataset, below it, or a snapshot of one of those.
pub(super) fn is_at_or_below(export: &str, dataset: &str) -> bool {
    export.strip_prefix(dataset).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
}

/// As openssl prints it ("AB:CD:…"), with or without "sha256:" and colons.
fn parse_fingerprint(text: &str) -> Option<[u8; 32]> {
    let lower = text.to_ascii_lowercase();
    let digits: String = lower.strip_prefix("sha256:").unwrap_or(&lower).split(':').collect();
    if digits.len() != 64 || !digits.is_ascii() {
        return None;
    }
    let mut found = [0; 32];
    for (byte, at) in found.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(digits.get(at..at + 2)?, 16).ok()?;
    }
    Some(found)
}

fn parse(text: &str) -> Result<Vec<Client>, String> {
    let document: Document = toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
    document.client.into_iter().map(|(name, section)| Client::of(&name, section)).collect()
}

/// Identifies a version of a file.
type Stamp = (u64, u64, u64, (i64, i64), (i64, i64));

/// The file, which is read again when it has changed.
#[derive(Debug)]
pub(super) struct Clients {
    path: PathBuf,
    log: ServerLog,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    stamp: Option<Stamp>,
    clients: Vec<Client>,
}

impl Clients {
    /// # Errors
    /// The error in the file.
    pub(super) fn open(path: PathBuf, log: ServerLog) -> Result<Self, String> {
        let (stamp, clients) = read(&path)?;
        Ok(Self { path, log, known: Mutex::new(Known { stamp: Some(stamp), clients }) })
    }

    /// The rights of `identity` for an export, which is a dataset or a snapshot. The rights of several sections are
    /// combined.
    pub(super) fn access(&self, identity: &Identity, export: &str) -> Access {
        let certificate = match identity {
            Identity::Local => return Access::Write,
            Identity::Certificate(certificate) => certificate,
            _ => return Access::None,
        };
        let mut known = self.known.lock();
        self.renew(&mut known);
        let clients = known.clients.iter().filter(|client| client.is(certificate));
        clients.map(|client| client.access(export)).max().unwrap_or(Access::None)
    }

    /// Reads the file again if it is another one. While it is wrong, no client that needs it sees anything.
    fn renew(&self, known: &mut Known) {
        let stamp = std::fs::metadata(&self.path).ok().map(|found| stamp(&found));
        if stamp == known.stamp {
            return;
        }
        let text = match read(&self.path) {
            Ok((stamp, clients)) => {
                *known = Known { stamp: Some(stamp), clients };
                return self.log.line(Level::Info, &format!("reloaded {}", self.path.display()));
            }
            Err(text) => text,
        };
        *known = Known { stamp, clients: Vec::new() };
        self.log
            .line(Level::Error, &format!("{text}\nuntil the file is corrected, no client can use an export"));
    }
}

fn stamp(found: &std::fs::Metadata) -> Stamp {
    let modified = (found.mtime(), found.mtime_nsec());
    (found.dev(), found.ino(), found.len(), modified, (found.ctime(), found.ctime_nsec()))
}

fn read(path: &Path) -> Result<(Stamp, Vec<Client>), String> {
    let shown = path.display();
    let cannot = |error: std::io::Error| format!("cannot read '{shown}': {error}");
    let file = File::open(path).map_err(cannot)?;
    let found = file.metadata().map_err(cannot)?;
    let mut text = String::new();
    file.take(FILE_MAX).read_to_string(&mut text).map_err(cannot)?;
    let clients = parse(&text).map_err(|why| format!("'{shown}': {why}"))?;
    Ok((stamp(&found), clients))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        [client.host]
        common_name = "host"
        dns_name = "Host.example"
        write = ["tank/vm1"]
        read = ["tank", "other/vm@monday"]
        [client."any host"]
        common_name = "host"
        write = ["tank/shared"]
        [client.pinned]
        fingerprint = "SHA256:ABABABABABABABABABABABABABABABAB:abababababababababababababababab"
        read = ["tank/vm2"]
    "#;

    fn certificate(fingerprint: u8, common_name: &str, dns_names: &[&str]) -> Identity {
        let dns_names = dns_names.iter().map(|name| (*name).to_owned()).collect();
        Identity::Certificate(Certificate {
            fingerprint: [fingerprint; 32],
            common_name: Some(common_name.to_owned()),
            dns_names,
        })
    }

    fn log() -> ServerLog {
        ServerLog::new(File::options().write(true).open("/dev/null").unwrap(), false, Level::Info)
    }

    #[test]
    fn a_client_has_what_its_sections_give_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("clients.toml");
        std::fs::write(&path, TEXT).unwrap();
        let clients = Clients::open(path.clone(), log()).unwrap();
        let (full, half) = (certificate(1, "host", &["host.example"]), certificate(1, "host", &[]));
        for (identity, export, access) in [
            (&full, "tank/vm1", Access::Write),
            (&full, "tank/vm1@a", Access::Write),
            (&full, "tank/vm10", Access::Read),
            (&full, "tankard", Access::None),
            (&full, "other/vm@monday", Access::Read),
            (&full, "other/vm", Access::None),
            (&full, "tank/shared/a", Access::Write),
            (&half, "tank/shared", Access::Write),
            (&half, "tank/vm1", Access::None),
            (&certificate(0xab, "x", &[]), "tank/vm2", Access::Read),
            (&certificate(1, "stranger", &[]), "tank/vm2", Access::None),
            (&Identity::Unknown, "tank/vm2", Access::None),
            (&Identity::Local, "tank/vm2", Access::Write),
        ] {
            assert_eq!(clients.access(identity, export), access, "{identity:?} {export}");
        }
        // A removed right ends with the next check, and an invalid file gives no rights to anyone.
        std::fs::write(&path, "[client.host]\ncommon_name = \"host\"\nread = [\"tank/vm1\"]\n").unwrap();
        assert_eq!(clients.access(&half, "tank/vm1"), Access::Read);
        std::fs::write(&path, "[client.host]\ncommon_nam = \"host\"\n").unwrap();
        assert_eq!(clients.access(&half, "tank/vm1"), Access::None);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(clients.access(&half, "tank/vm1"), Access::None);
        std::fs::write(&path, "[client.host]\ncommon_name = \"host\"\nread = [\"tank/vm1\"]\n").unwrap();
        assert_eq!(clients.access(&half, "tank/vm1"), Access::Read);
    }

    #[test]
    fn says_what_is_wrong_with_a_file() {
        for (text, part) in [
            ("[client.a]\nread = [\"tank\"]", "needs a fingerprint"),
            ("[client.a]\nfingerprint = \"12\"", "64 hexadecimal digits"),
            ("[client.a]\ncommon_name = \"a\"\nread = [\"tank//x\"]", "is not a valid name"),
            ("[client.a]\ncn = \"a\"", "cn"),
            ("client = 3", "client"),
        ] {
            let said = parse(text).unwrap_err();
            assert!(said.contains(part), "{text}: {said}");
        }
        assert_eq!(parse_fingerprint(&"é".repeat(32)), None);
    }
}
