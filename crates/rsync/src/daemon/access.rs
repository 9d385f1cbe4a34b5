//! The hosts that may connect (`hosts allow`, `hosts deny`).

use std::ffi::{CStr, CString};
use std::net::{IpAddr, Ipv6Addr};

use parking_lot::Mutex;

use super::config::Module;
use super::lookup::leads_to;
use super::peer::Peer;
use crate::filter::matches;

/// An entry of a host list.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Pattern {
    /// Every client.
    All,
    /// A network as an IPv6 address, and the number of leading bits of the 128 that count.
    Network(u128, u32),
    /// A name of the client, or a name that resolves to its address.
    Name(String),
    /// Names of clients, as a pattern with wildcards.
    Names(String),
    /// A netgroup that has names of clients.
    Netgroup(CString),
    /// A word that cannot be the name of a host.
    Nobody,
}

/// The lookups that are allowed.
#[derive(Debug, Clone, Copy)]
pub struct Lookups {
    /// Look up the name of a client from its address.
    pub reverse: bool,
    /// Look up the addresses of names in the list.
    pub forward: bool,
}

/// A list of addresses, networks and names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostList(Vec<Pattern>);

/// The bits of an address. An IPv4 address is mapped to IPv6.
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
        // A mask that is written like an address.
        Err(_) => {
            let mask: IpAddr = len.parse().ok()?;
            let mask = bits(mask) << (128 - own);
            (mask.count_ones() == mask.leading_ones()).then_some(mask.leading_ones())?
        }
    };
    (len <= own).then(|| Pattern::Network(bits(address), 128 - own + len))
}

fn is_wild(byte: u8) -> bool {
    matches!(byte, b'*' | b'?' | b'[' | b']' | b'!' | b'^')
}

/// A pattern for a name, or for a name with wildcards.
fn of_name(word: &str) -> Option<Pattern> {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    match (word.bytes().all(is_of_name), word.bytes().all(|byte| is_of_name(byte) || is_wild(byte))) {
        (true, _) => Some(Pattern::Name(word.to_owned())),
        (_, true) => Some(Pattern::Names(word.to_owned())),
        _ => None,
    }
}

/// A name with letters outside ASCII, in the form of the DNS (IDNA). Some such letters become ASCII characters. A name
/// is rejected if one of them becomes a wildcard or makes it an address.
fn international(word: &str) -> Option<Pattern> {
    let ascii = idna::domain_to_ascii(word).ok()?;
    let wild = |text: &str| text.bytes().filter(|byte| is_wild(*byte)).count();
    let is_name = wild(&ascii) == wild(word) && ascii.parse::<IpAddr>().is_err();
    of_name(&ascii).filter(|_| is_name)
}

impl HostList {
    /// Parses the words of a list.
    ///
    /// # Errors
    /// When a word is not `*`, an address, a network (`10.0.0.0/8`, `10.0.0.0/255.0.0.0`) or a name, which may have
    /// wildcards.
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
        if let Some(group) = word.strip_prefix('@') {
            return CString::new(group).map(Pattern::Netgroup).map_err(|_| wrong());
        }
        if !word.is_ascii() {
            return Ok(international(word).unwrap_or(Pattern::Nobody));
        }
        of_name(&word.to_ascii_lowercase()).ok_or_else(wrong)
    }

    /// Whether the list has netgroups, which must be searched to match a client.
    pub fn has_netgroups(&self) -> bool {
        self.0.iter().any(|it| matches!(it, Pattern::Netgroup(_)))
    }

    /// Whether a client is in the list. `if_unknown` is the result for a name that cannot be looked up.
    pub fn contains(&self, peer: &Peer, lookups: Lookups, if_unknown: bool) -> bool {
        let address = bits(peer.address());
        let name = || lookups.reverse.then(|| peer.name(true).to_ascii_lowercase());
        self.0.iter().any(|pattern| match pattern {
            Pattern::All => true,
            Pattern::Nobody => false,
            Pattern::Network(network, len) => (network ^ address) & mask(*len) == 0,
            Pattern::Name(its) => {
                lookups.forward && leads_to(its, peer.address()).unwrap_or(if_unknown)
                    || name().is_some_and(|name| name == *its)
            }
            Pattern::Names(pattern) => {
                name().is_some_and(|name| matches(pattern.as_bytes(), name.as_bytes()))
            }
            Pattern::Netgroup(group) => name().is_some_and(|name| is_in_netgroup(group, &name)),
        })
    }
}

/// Whether a host is in a netgroup of this machine (nsswitch.conf(5)).
#[allow(unsafe_code)]
fn is_in_netgroup(group: &CStr, host: &str) -> bool {
    unsafe extern "C" {
        fn innetgr(
            group: *const libc::c_char,
            host: *const libc::c_char,
            user: *const libc::c_char,
            domain: *const libc::c_char,
        ) -> libc::c_int;
    }
    // The C library searches a netgroup with a state that belongs to the whole process.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let Ok(host) = CString::new(host) else { return false };
    let _one = ONE_AT_A_TIME.lock();
    // SAFETY: the strings end with a zero byte and live until the call returns. Null matches any user and domain.
    unsafe { innetgr(group.as_ptr(), host.as_ptr(), std::ptr::null(), std::ptr::null()) == 1 }
}

/// Whether a client may use a module. A client in `hosts allow` may. A client in `hosts deny` may not. A client in
/// neither list may, unless `hosts allow` is the only list.
pub fn is_allowed(peer: &Peer, module: &Module) -> bool {
    let lookups = Lookups { reverse: module.reverse_lookup, forward: module.forward_lookup };
    match (&module.hosts_allow, &module.hosts_deny) {
        (Some(allow), _) if allow.contains(peer, lookups, false) => true,
        // A denied client does not get in because a name server does not answer.
        (_, Some(deny)) => !deny.contains(peer, lookups, true),
        (Some(_), None) => false,
        (None, None) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may(address: &str, allow: Option<&str>, deny: Option<&str>) -> bool {
        let lists = [("allow", allow), ("deny", deny)];
        let lists =
            lists.map(|(which, list)| list.map_or(String::new(), |list| format!("hosts {which} = {list}\n")));
        let text = format!("[m]\npath = /m\n{}", lists.concat());
        let config = crate::daemon::Config::parse(&text, std::path::Path::new("rsyncd.conf")).unwrap();
        is_allowed(&Peer::new(address.parse().unwrap()), &config.modules[0])
    }

    #[test]
    fn lists_are_as_in_the_manual() {
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
        assert!(!may("10.0.0.1", Some("@no-such-netgroup"), None));
        // A name that does not resolve allows nobody and denies everybody.
        assert!(!may("10.0.0.1", Some("nowhere.invalid"), None));
        assert!(!may("10.0.0.1", None, Some("nowhere.invalid")));
        for bad in ["10.0.0.0/33", "10.0.0.0/255.0.255.0", "a/b", "%x"] {
            assert!(HostList::parse([bad].into_iter()).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_with_other_letters_are_those_of_the_dns() {
        let pattern = |word: &str| HostList::pattern(word).unwrap();
        let name = |text: &str| Pattern::Name(text.to_owned());
        assert_eq!(pattern("čičku.example"), name("xn--iku-eqab.example"));
        assert_eq!(pattern("c\u{30c}ic\u{30c}ku.example"), name("xn--iku-eqab.example"));
        assert_eq!(pattern("ＬｏｃａｌＨｏｓｔ"), name("localhost"));
        assert_eq!(pattern("*.čičku.example"), Pattern::Names("*.xn--iku-eqab.example".to_owned()));
        for nobody in ["＊", "＊.example", "*.＊", "127.0.0.0／8", "１２７.0.0.1", "\u{200b}.example＠"]
        {
            assert_eq!(pattern(nobody), Pattern::Nobody, "{nobody}");
        }
    }

    #[test]
    fn names_are_asked_for() {
        let peer = Peer::new("127.0.0.1".parse().unwrap());
        let list = |text: &str| HostList::parse(text.split(' ')).unwrap();
        let (reverse, forward) =
            (Lookups { reverse: true, forward: false }, Lookups { reverse: false, forward: true });
        assert!(list("10.0.0.1 LOCALhost").contains(&peer, forward, false));
        assert!(!list("localhost *.example.org").contains(
            &peer,
            Lookups { reverse: false, forward: false },
            false
        ));
        let name = peer.name(true).to_owned();
        let begin = name.get(..1).unwrap();
        assert!(list(&format!("*.example.org {begin}*")).contains(&peer, reverse, false));
        assert!(!list("*.example.org").contains(&peer, reverse, false));
    }
}
