//! The client of a connection: its address, and its name on demand.

use std::fmt;
use std::net::IpAddr;
use std::sync::OnceLock;

use super::lookup;

/// The texts for a client whose name is not looked up, and for one that has none (rsyncd.conf(5), "reverse lookup").
const UNDETERMINED: &str = "UNDETERMINED";
const UNKNOWN: &str = "UNKNOWN";

/// A client. It is displayed as its address.
#[derive(Debug)]
pub struct Peer {
    address: IpAddr,
    name: OnceLock<String>,
}

impl Peer {
    /// A client with this address. An IPv4 address in IPv6 form becomes IPv4.
    pub fn new(address: IpAddr) -> Self {
        Self { address: address.to_canonical(), name: OnceLock::new() }
    }

    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The name of the client, which its address resolves to and which resolves back. It is looked up once, when it is
    /// first needed. That may take long, because the client can choose the name server.
    pub fn name(&self, is_looked_up: bool) -> &str {
        match is_looked_up {
            true => {
                self.name.get_or_init(|| lookup::name_of(self.address).unwrap_or_else(|| UNKNOWN.to_owned()))
            }
            false => UNDETERMINED,
        }
    }

    /// The client as in rsync's log lines: the name, then the address in parentheses. The address stands for a name
    /// that was not looked up yet. Programs that block clients search for such lines.
    pub fn both(&self) -> String {
        let address = self.address.to_string();
        format!("{} ({address})", self.name.get().unwrap_or(&address))
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_machine() {
        let local = Peer::new("::ffff:127.0.0.1".parse().unwrap());
        assert_eq!(
            (local.to_string().as_str(), local.both().as_str()),
            ("127.0.0.1", "127.0.0.1 (127.0.0.1)")
        );
        assert_eq!(local.name(false), UNDETERMINED);
        // Addresses for documentation have no name.
        let name = local.name(true).to_owned();
        assert_eq!(local.both(), format!("{name} (127.0.0.1)"));
        assert!(name == UNKNOWN || lookup::leads_to(&name, local.address()) == Some(true), "{name}");
    }
}
