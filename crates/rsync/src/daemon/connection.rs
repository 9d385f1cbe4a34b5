//! One connection, from its greeting to the choice of a module (docs/format/rsync.md, "The daemon").

use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::path::Path;
use std::time::Instant;

use super::access::{HostList, Lookups, is_allowed};
use super::auth::{self, AuthDigest};
use super::bursts::Kind;
use super::config::{Access, Config};
use super::link::Link;
use super::peer::Peer;
use super::serve::connection_number;
use super::{Daemon, Module, proxy};
use crate::error::Result;
use crate::session::{PROTOCOL_MAX, PROTOCOL_MIN};
use crate::wire::ReadWire;

/// The most bytes of a message of the day.
const MOTD_MAX: u64 = 64 << 10;
/// The start of the line before the module name that announces input for the module's first command, and the longest
/// input in bytes.
const EARLY_INPUT: &str = "#early_input=";
const EARLY_INPUT_MAX: usize = 5 << 10;

/// The client's greeting.
struct Greeting {
    protocol: u8,
    digest: Option<AuthDigest>,
}

impl Greeting {
    /// Parses a line such as `@RSYNCD: 31.0 sha512 …`.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("@RSYNCD: ")?.split(' ').filter(|word| !word.is_empty());
        let version = words.next()?;
        let (major, minor) = version.split_once('.').unwrap_or((version, "0"));
        let major: u32 = major.parse().ok()?;
        // To other builds, version 31 of a test build is version 30.
        let major =
            if minor == "0" || major > u32::from(PROTOCOL_MAX) { major } else { major.saturating_sub(1) };
        Some(Self {
            protocol: u8::try_from(major).unwrap_or(u8::MAX).min(PROTOCOL_MAX),
            digest: AuthDigest::choose(words, major),
        })
    }
}

/// The server's first line.
pub(super) fn greeting() -> String {
    format!("@RSYNCD: {PROTOCOL_MAX}.0 {}\n", AuthDigest::names())
}

impl Daemon {
    /// Serves one client.
    ///
    /// # Errors
    /// When the connection fails or the client violates the protocol. The client was told the reason where that was
    /// possible.
    pub fn serve_link(&self, mut link: Link, address: IpAddr) -> Result<()> {
        let config = self.renewed();
        (link.set_timeout)(Some(self.patience))?;
        link.patience.begin(self.greeting_patience(), None);
        let peer =
            Peer::new(if config.proxy_protocol { behind(&config, &mut link, address)? } else { address });
        // Behind a proxy, the client's address is known only now and is counted here. Other connections were counted
        // when they were accepted.
        let most = config.max_connections_per_address;
        let place = config.proxy_protocol.then(|| self.addresses.enter(peer.address(), most));
        if matches!(place, Some(None)) {
            self.say_once(Kind::AddressFull, || {
                format!("{peer}: more than {most} connections of one address")
            });
            link.say(greeting().trim_end())?;
            link.say(&max_connections(most))?;
            link.drain();
            return Ok(());
        }
        self.say(format!("connect from {}", peer.both()));
        let Some(chosen) = self.greet(&config, &mut link, &peer)? else { return Ok(()) };
        let module = &*chosen.module;
        let counted = match self.enter(module) {
            Ok(counted) => counted,
            Err(error) => {
                self.say_of(module, format!("module {}: the lock file cannot be used: {error}", module.name));
                link.say("@ERROR: failed to open lock file")?;
                link.drain();
                return Ok(());
            }
        };
        let Some(counted) = counted else {
            if module.is_disabled {
                link.say("@ERROR: module is disabled")?;
            } else {
                let most = module.max_connections;
                self.say_of(module, format!("max connections ({most}) reached on module {}", module.name));
                link.say(&max_connections(most))?;
            }
            link.drain();
            return Ok(());
        };
        self.serve_module(link, &peer, &chosen, counted);
        Ok(())
    }

    /// Greets the client until it has chosen a module that it may use. `None` when there is nothing more to do.
    fn greet<'c>(&self, config: &'c Config, link: &mut Link, peer: &Peer) -> Result<Option<Chosen<'c>>> {
        if !link.is_greeted {
            link.say(greeting().trim_end())?;
        }
        let Some(greeting) = Greeting::parse(&link.line()?) else {
            link.say("@ERROR: protocol startup error")?;
            return Ok(None);
        };
        if greeting.protocol < PROTOCOL_MIN {
            let message = format!(
                "@ERROR: protocol version mismatch -- {} is older than {PROTOCOL_MIN}, the oldest spoken here",
                greeting.protocol
            );
            link.say(&message)?;
            return Ok(None);
        }
        if let Some(motd) = config.motd_file.as_deref().and_then(read_motd) {
            link.writer.write_all(&motd)?;
        }
        let mut name = link.line()?;
        let mut early_input = Vec::new();
        if let Some(len) = name.strip_prefix(EARLY_INPUT) {
            let Some(len) = len.parse().ok().filter(|len| (1..=EARLY_INPUT_MAX).contains(len)) else {
                link.say("@ERROR: invalid early_input length")?;
                return Ok(None);
            };
            early_input = link.reader.read_bytes(len, EARLY_INPUT_MAX)?;
            name = link.line()?;
        }
        if name.is_empty() || name == "#list" {
            return self.list(config, link, peer).map(|()| None);
        }
        if name.starts_with('#') {
            link.say(&format!("@ERROR: Unknown command '{name}'"))?;
            return Ok(None);
        }
        let Some(module) = config.module(name.as_bytes()) else {
            self.say(format!("unknown module '{}' tried from {}", name.escape_default(), peer.both()));
            link.say(&format!("@ERROR: Unknown module '{name}'"))?;
            return Ok(None);
        };
        let Some(mut chosen) = self.module_for(link, module, peer, None)? else { return Ok(None) };
        if !is_allowed(peer, &chosen) {
            let who = peer.both();
            self.say(format!("rsync denied on module {name} from {who}"));
            // The answer does not reveal a module that is not listed.
            let message = match module.list {
                true => format!("@ERROR: access denied to {name} from {who}"),
                false => format!("@ERROR: Unknown module '{name}'"),
            };
            link.say(&message)?;
            return Ok(None);
        }
        self.say_of(&chosen, format!("rsync allowed access on module {name} from {}", peer.both()));
        let (mut user, mut access) = (String::new(), None);
        if !module.auth_users.is_empty() {
            let Some(found) = self.log_in(link, &chosen, peer, greeting.digest)? else { return Ok(None) };
            (user, access) = found;
        }
        if let Cow::Owned(_) = chosen {
            let again = self.module_for(link, module, peer, Some(&user))?;
            chosen = match again {
                Some(again) => again,
                None => return Ok(None),
            };
        }
        Ok(Some(Chosen { module: chosen, user, access, protocol: greeting.protocol, early_input }))
    }

    /// The module with the variables of the connection. The user's name is a variable only after the login.
    fn module_for<'c>(
        &self,
        link: &mut Link,
        module: &'c Module,
        peer: &Peer,
        user: Option<&str>,
    ) -> Result<Option<Cow<'c, Module>>> {
        let look = |name: &str| match name {
            "RSYNC_MODULE_NAME" => Some(module.name.clone()),
            "RSYNC_HOST_ADDR" => Some(peer.to_string()),
            "RSYNC_HOST_NAME" => Some(peer.name(module.reverse_lookup).to_owned()),
            "RSYNC_USER_NAME" => user.map(str::to_owned),
            "RSYNC_PID" => Some(connection_number()),
            _ => None,
        };
        match module.for_connection(&look) {
            None => Ok(Some(Cow::Borrowed(module))),
            Some(Ok(made)) => Ok(Some(Cow::Owned(made))),
            Some(Err(what)) => {
                self.say(format!("module {} from {}: {what}", module.name, peer.both()));
                link.say(&format!("@ERROR: module {} cannot be used", module.name))?;
                Ok(None)
            }
        }
    }

    /// Lets the client prove that it knows a password. `None` if the login failed and the client was told so.
    fn log_in(
        &self,
        link: &mut Link,
        module: &Module,
        peer: &Peer,
        digest: Option<AuthDigest>,
    ) -> Result<Option<(String, Option<Access>)>> {
        let name = &module.name;
        let digest = digest.ok_or("no digest in common".to_owned());
        let digest = digest.and_then(|digest| match (&module.unknown_digest, module.auth_digest) {
            (Some(unknown), _) => Err(format!("there is no 'auth digest' {unknown}")),
            (None, Some(least)) if !digest.is_at_least(least) => {
                Err(format!("its digest {} is weaker than {}", digest.name(), least.name()))
            }
            _ => Ok(digest),
        });
        let has_least = module.auth_digest.is_some() || module.unknown_digest.is_some();
        if let (Err(reason), true) = (&digest, has_least) {
            // With a weak digest, an observer of the answer could guess the password. So no challenge is sent.
            self.say(format!("auth failed on module {name} from {}: {reason}", peer.both()));
            link.say(&format!("@ERROR: auth failed on module {name}"))?;
            return Ok(None);
        }
        let challenge = auth::challenge()?;
        link.say(&format!("@RSYNCD: AUTHREQD {challenge}"))?;
        // The user may have to type a password.
        link.patience.begin(self.patience, None);
        let answer = link.line()?;
        let address = peer.address();
        let Some(wait) = self.logins.wait(address, Instant::now()) else {
            self.say(format!("auth failed on module {name} from {}: too many failures before", peer.both()));
            link.say(&format!("@ERROR: auth failed on module {name}"))?;
            return Ok(None);
        };
        std::thread::sleep(wait);
        match digest.and_then(|digest| auth::check(module, digest, &challenge, &answer, &self.names)) {
            Ok(found) => Ok(Some(found)),
            Err(reason) => {
                self.logins.failed(address, Instant::now());
                let user = answer.split(' ').next().unwrap_or_default().escape_default();
                self.say(format!("auth failed on module {name} from {} for {user}: {reason}", peer.both()));
                link.say(&format!("@ERROR: auth failed on module {name}"))?;
                Ok(None)
            }
        }
    }

    fn list(&self, config: &Config, link: &mut Link, peer: &Peer) -> Result<()> {
        self.say(format!("module-list request from {}", peer.both()));
        for module in config.modules.iter().filter(|module| module.list) {
            // A client that started the server through a remote shell has no address.
            if peer.address().is_unspecified() || is_allowed(peer, module) {
                link.say(&format!("{:<15}\t{}", module.name, module.comment))?;
            }
        }
        Ok(link.say("@RSYNCD: EXIT")?)
    }
}

fn max_connections(most: usize) -> String {
    format!("@ERROR: max connections ({most}) reached -- try again later")
}

/// The address of the client behind a proxy.
///
/// # Errors
/// When this proxy is not trusted, or its header is wrong.
fn behind(config: &Config, link: &mut Link, address: IpAddr) -> Result<IpAddr> {
    let lookups = Lookups { reverse: false, forward: true };
    let is_trusted = |hosts: &HostList| hosts.contains(&Peer::new(address), lookups, false);
    if !config.proxy_protocol_hosts.as_ref().is_some_and(is_trusted) {
        let what = "proxy protocol rejected: not one of the 'proxy protocol hosts'";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what).into());
    }
    Ok(proxy::read(&mut link.reader)?.unwrap_or(address))
}

/// A module that the client may use.
pub(super) struct Chosen<'c> {
    pub(super) module: Cow<'c, Module>,
    /// The name of the user that logged in.
    pub(super) user: String,
    /// The access of the user, if the module does not decide it.
    pub(super) access: Option<Access>,
    pub(super) protocol: u8,
    /// The input for the first command (`--early-input`).
    pub(super) early_input: Vec<u8>,
}

fn read_motd(path: &Path) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    super::trusted::open(path).ok()?.take(MOTD_MAX).read_to_end(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_tell_the_version() {
        let protocol = |line: &str| Greeting::parse(line).map(|greeting| greeting.protocol);
        assert_eq!(protocol("@RSYNCD: 0.1"), Some(0));
        assert_eq!(protocol("@RSYNCD: 31.0 sha512 md5"), Some(31));
        assert_eq!(protocol("@RSYNCD: 31.14 md5"), Some(30));
        assert_eq!(protocol("@RSYNCD: 99.0"), Some(PROTOCOL_MAX));
        assert_eq!(protocol("@RSYNCD: 29"), Some(29));
        assert_eq!(protocol("GET / HTTP/1.0"), None);
        assert_eq!(protocol("@RSYNCD: x"), None);
    }
}
