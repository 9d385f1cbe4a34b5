//! The header in which a proxy gives the address of its client (`proxy protocol`; HAProxy's PROXY protocol, versions 1
//! and 2).

use std::io::{self, Read};
use std::net::IpAddr;

use ppp::{HeaderResult, v1, v2};

/// Length of the fixed part of version 2, which ends with the length of the rest.
const BEGINNING: usize = v2::PROTOCOL_PREFIX.len() + 4;
/// The longest line of version 1.
const LINE_MAX: usize = 107;
/// The longest rest in version 2: addresses and further fields.
const REST_MAX: usize = 4096;

fn wrong(what: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_string())
}

/// Reads a header, and nothing beyond it. Returns the address of the client behind the proxy. `None` if the connection
/// is the proxy's own, or the header has no IP address.
///
/// # Errors
/// `InvalidData` when there is no valid header.
pub fn read(from: &mut impl Read) -> io::Result<Option<IpAddr>> {
    // No header is shorter: "PROXY UNKNOWN\r\n" of version 1 has 15 bytes.
    let mut header = vec![0; v1::PROTOCOL_PREFIX.len()];
    from.read_exact(&mut header)?;
    if header == v1::PROTOCOL_PREFIX.as_bytes() {
        while !header.ends_with(b"\n") {
            if header.len() == LINE_MAX {
                return Err(wrong("a line of the proxy that is too long"));
            }
            read_more(from, &mut header, 1)?;
        }
    } else if v2::PROTOCOL_PREFIX.starts_with(&header) {
        let left = BEGINNING - header.len();
        read_more(from, &mut header, left)?;
        let rest = usize::from(u16::from_be_bytes([header[BEGINNING - 2], header[BEGINNING - 1]]));
        if rest > REST_MAX {
            return Err(wrong("a header of the proxy that is too long"));
        }
        read_more(from, &mut header, rest)?;
        // Other address families are accepted without an address.
        let (version, family) = (header[BEGINNING - 4] >> 4, header[BEGINNING - 3] >> 4);
        if version == 2 && !matches!(family, 0..=2) {
            return Ok(None);
        }
    } else {
        return Err(wrong("no header of a proxy"));
    }
    address(&header)
}

fn read_more(from: &mut impl Read, header: &mut Vec<u8>, count: usize) -> io::Result<()> {
    let begin = header.len();
    header.resize(begin + count, 0);
    from.read_exact(&mut header[begin..])
}

fn address(header: &[u8]) -> io::Result<Option<IpAddr>> {
    match HeaderResult::parse(header) {
        HeaderResult::V1(parsed) => match parsed.map_err(wrong)?.addresses {
            v1::Addresses::Tcp4(it) => Ok(Some(it.source_address.into())),
            v1::Addresses::Tcp6(it) => Ok(Some(it.source_address.into())),
            v1::Addresses::Unknown => Ok(None),
        },
        HeaderResult::V2(parsed) => {
            let parsed = parsed.map_err(wrong)?;
            match (parsed.command, parsed.addresses) {
                (v2::Command::Local, _) | (_, v2::Addresses::Unspecified) => Ok(None),
                (_, v2::Addresses::IPv4(it)) => Ok(Some(it.source_address.into())),
                (_, v2::Addresses::IPv6(it)) => Ok(Some(it.source_address.into())),
                // The client is a Unix socket, not a host.
                (_, v2::Addresses::Unix(_)) => Ok(None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(header: &[u8]) -> io::Result<(Option<IpAddr>, Vec<u8>)> {
        let bytes = [header, b"@RSYNCD: 32.0\n"].concat();
        let mut from = bytes.as_slice();
        Ok((read(&mut from)?, from.to_vec()))
    }

    #[test]
    fn headers_tell_who_is_behind() {
        let address = |text: &str| Some(text.parse::<IpAddr>().unwrap());
        let v2 = |command: u8, family: u8, rest: &[u8]| {
            let len = u16::try_from(rest.len()).unwrap().to_be_bytes();
            [v2::PROTOCOL_PREFIX, &[0x20 | command, family], &len, rest].concat()
        };
        let four = [&[10, 1, 2, 3, 10, 0, 0, 1][..], &[0xc0, 0, 3, 105]].concat();
        let with_more = [&four[..], &[4, 0, 2, b'h', b'i']].concat();
        for (header, expected) in [
            (b"PROXY TCP4 10.1.2.3 10.0.0.1 49152 873\r\n".to_vec(), address("10.1.2.3")),
            (b"PROXY TCP6 fe80::1 ::1 49152 873\r\n".to_vec(), address("fe80::1")),
            (b"PROXY UNKNOWN\r\n".to_vec(), None),
            (v2(1, 0x11, &four), address("10.1.2.3")),
            (v2(1, 0x11, &with_more), address("10.1.2.3")),
            (v2(0, 0, &[]), None),
            // Clients on the proxy's own machine, and unknown ones.
            (v2(1, 0x31, &[0; 216]), None),
            (v2(1, 0x31, &[0; 4]), None),
            (v2(1, 0x71, &four), None),
        ] {
            let (found, rest) = after(&header).unwrap();
            assert_eq!((found, rest.as_slice()), (expected, &b"@RSYNCD: 32.0\n"[..]), "{header:?}");
        }
        let long = [b"PROXY TCP4 ".as_slice(), &[b'1'; 200]].concat();
        for wrong in [
            b"@RSYNCD: 32.0\n".to_vec(),
            b"PROXY TCP4 10.1.2.300 10.0.0.1 1 2\r\n".to_vec(),
            b"PROXYTCP4 1.1.1.1 10.0.0.1 1 2\r\n".to_vec(),
            long,
            v2(1, 0x11, &four[..7]),
            v2(1, 0x11, &[0; REST_MAX + 1]),
            v2(3, 0x11, &four),
        ] {
            assert!(after(&wrong).is_err(), "{wrong:?}");
        }
        assert!(read(&mut &b"PROXY TCP4 1.1"[..]).is_err());
    }
}
