//! The client of a connection: its address, and its name when somebody asks for it.

use std::fmt;
use std::net::IpAddr;
use std::sync::OnceLock;

use super::lookup;

/// What is there instead of a name where clients are not asked for any, or have none (rsyncd.conf(5), "reverse lookup").
const UNDETERMINED: &str = "UNDETERMINED";
const UNKNOWN: &str = "UNKNOWN";

/// A client. It is shown as its address.
#[derive(Debug)]
pub struct Peer {
    address: IpAddr,
    name: OnceLock<String>,
}

impl Peer {
    /// One with this address; of an IPv4 address in IPv6's form, the address itself.
    pub fn new(address: IpAddr) -> Self {
        Self { address: address.to_canonical(), name: OnceLock::new() }
    }

    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Its name, which the address leads to and which leads back. It is looked for once, when it is needed first: that may take
    /// as long as a server of names that the client can choose.
    pub fn name(&self, is_looked_up: bool) -> &str {
        match is_looked_up {
            true => {
                self.name.get_or_init(|| lookup::name_of(self.address).unwrap_or_else(|| UNKNOWN.to_owned()))
            }
            false => UNDETERMINED,
        }
    }

    /// As rsync's lines have it, which others search for who is to be locked out: the name as far as it was needed yet, or else the
    /// address, and the address in parentheses.
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
        // Of addresses for documentation there is no name.
        let name = local.name(true).to_owned();
        assert_eq!(local.both(), format!("{name} (127.0.0.1)"));
        assert!(name == UNKNOWN || lookup::leads_to(&name, local.address()) == Some(true), "{name}");
    }
}
