//! Which machines may connect (`hosts allow`, `hosts deny`).

use std::net::{IpAddr, Ipv6Addr, ToSocketAddrs};

/// One of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Pattern {
    /// Everybody.
    All,
    /// A network, with as many leading bits, of the 128 of an IPv6 address.
    Network(u128, u32),
    /// Any address that a name leads to.
    Name(String),
}

/// A list of addresses, networks and names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostList(Vec<Pattern>);

/// IPv4 addresses as IPv6 has them.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => Ipv6Addr::to_bits(address),
    }
}

fn mask(len: u32) -> u128 {
    u128::MAX.checked_shl(128 - len).unwrap_or(0)
}

fn network(address: IpAddr, len: &str) -> Option<Pattern> {
    let own = if address.is_ipv4() { 32 } else { 128 };
    let len = match len.parse::<u32>() {
        Ok(len) => len,
        // A mask in the form of an address.
        Err(_) => {
            let mask: IpAddr = len.parse().ok()?;
            let mask = bits(mask) << (128 - own);
            (mask.count_ones() == mask.leading_ones()).then_some(mask.leading_ones())?
        }
    };
    (len <= own).then(|| Pattern::Network(bits(address), 128 - own + len))
}

impl HostList {
    /// From words.
    ///
    /// # Errors
    /// When one is none of `*`, an address, a network (`10.0.0.0/8`, `10.0.0.0/255.0.0.0`) and a name without wildcards.
    pub fn parse<'w>(words: impl Iterator<Item = &'w str>) -> Result<Self, String> {
        words.map(Self::pattern).collect::<Result<_, _>>().map(Self)
    }

    fn pattern(word: &str) -> Result<Pattern, String> {
        let wrong = || format!("'{word}' is neither an address nor a network nor a host's name");
        if word == "*" {
            return Ok(Pattern::All);
        }
        if let Ok(address) = word.parse::<IpAddr>() {
            return Ok(Pattern::Network(bits(address), 128));
        }
        if let Some((address, len)) = word.split_once('/') {
            return address.parse().ok().and_then(|address| network(address, len)).ok_or_else(wrong);
        }
        let is_name =
            word.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'));
        if is_name { Ok(Pattern::Name(word.to_owned())) } else { Err(wrong()) }
    }

    /// Whether an address is in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = bits(address);
        self.0.iter().any(|pattern| match pattern {
            Pattern::All => true,
            Pattern::Network(network, len) => (network ^ address) & mask(*len) == 0,
            Pattern::Name(name) => (name.as_str(), 0)
                .to_socket_addrs()
                .is_ok_and(|mut found| found.any(|found| bits(found.ip()) == address)),
        })
    }
}

/// Whether somebody may connect: who is in the first list may, who is in the second may not; who is in neither may unless
/// there is a first one alone.
pub fn is_allowed(address: IpAddr, allow: Option<&HostList>, deny: Option<&HostList>) -> bool {
    match (allow, deny) {
        (Some(allow), _) if allow.contains(address) => true,
        (_, Some(deny)) => !deny.contains(address),
        (Some(_), None) => false,
        (None, None) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> HostList {
        HostList::parse(text.split(' ')).unwrap()
    }

    #[test]
    fn lists_are_as_in_the_manual() {
        let may = |address: &str, allow: Option<&str>, deny: Option<&str>| {
            is_allowed(address.parse().unwrap(), allow.map(list).as_ref(), deny.map(list).as_ref())
        };
        assert!(may("10.1.2.3", Some("10.0.0.0/8"), Some("*")));
        assert!(
            may("10.1.2.3", Some("10.0.0.0/255.0.0.0"), None) && !may("11.1.2.3", Some("10.0.0.0/8"), None)
        );
        assert!(
            !may("11.1.2.3", Some("10.0.0.0/8"), Some("11.0.0.0/8"))
                && may("12.0.0.1", Some("10.0.0.0/8"), Some("11.0.0.0/8"))
        );
        assert!(may("::ffff:10.0.0.1", Some("10.0.0.1"), None) && may("fe80::1", Some("fe80::/10"), None));
        assert!(may("127.0.0.1", None, None) && !may("127.0.0.1", None, Some("127.0.0.1")));
        for bad in ["10.0.0.0/33", "*.example.com", "10.0.0.0/255.0.255.0", "a/b"] {
            assert!(HostList::parse([bad].into_iter()).is_err(), "{bad}");
        }
    }
}
