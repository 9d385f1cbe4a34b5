//! The number of TCP connections of each machine, so that no machine can use all connections.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;

/// Connections by source address.
#[derive(Debug, Clone)]
pub(crate) struct Peers {
    counts: Arc<Mutex<HashMap<IpAddr, usize>>>,
    max: usize,
}

/// One connection. It is counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    counts: Arc<Mutex<HashMap<IpAddr, usize>>>,
    source: Option<IpAddr>,
}

impl Peers {
    pub(crate) fn new(max: usize) -> Self {
        Self { counts: Arc::default(), max }
    }

    /// Counts a connection. `None` if there are too many from its source. Connections to a Unix socket have no source
    /// and no limit of their own.
    pub(crate) fn seat(&self, source: Option<IpAddr>) -> Option<Seat> {
        let source = source.map(network);
        if let Some(source) = source {
            let mut counts = self.counts.lock();
            let count = counts.entry(source).or_default();
            if *count >= self.max {
                return None;
            }
            *count += 1;
        }
        Some(Seat { counts: Arc::clone(&self.counts), source })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let Some(source) = self.source else { return };
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&source);
            }
        }
    }
}

/// The network of an address. A machine with IPv6 can use all addresses of a 64-bit network.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_its_share_and_no_more() {
        let peers = Peers::new(2);
        let address = |text: &str| Some(text.parse().unwrap());
        let first = peers.seat(address("192.0.2.1"));
        let second = peers.seat(address("::ffff:192.0.2.1"));
        assert!(first.is_some() && second.is_some());
        assert!(peers.seat(address("192.0.2.1")).is_none());
        assert!(peers.seat(address("192.0.2.2")).is_some(), "another machine");
        assert!((0..5).all(|_| peers.seat(None).is_some()), "a Unix socket");
        let v6 = [peers.seat(address("2001:db8::1")), peers.seat(address("2001:db8::2:1"))];
        assert!(v6.iter().all(Option::is_some) && peers.seat(address("2001:db8::3")).is_none());
        drop(second);
        assert!(peers.seat(address("192.0.2.1")).is_some());
        drop((first, v6));
        assert!(peers.counts.lock().is_empty());
    }
}
