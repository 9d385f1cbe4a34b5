//! Limits for each address of clients: connections at a time, and login attempts.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Failed logins of an address without a delay: anybody may mistype a password.
const FREE_FAILURES: u32 = 3;
/// The delay of the next attempt after that, and the longest delay. Each failure doubles the delay.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(4);
/// Attempts of one address wait for one another. An attempt that would wait longer than this is refused.
const QUEUE_MAX: Duration = Duration::from_secs(10);
/// The time after which failures are forgotten.
const FORGET: Duration = Duration::from_secs(300);
/// The most addresses whose failures are remembered.
const REMEMBERED_MAX: usize = 4096;

/// What counts as one address. For IPv6 it is the network of 64 bits that a client has for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Whose(u128);

impl From<IpAddr> for Whose {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self(address.to_ipv6_mapped().to_bits()),
            IpAddr::V6(address) => Self(address.to_bits() >> 64 << 64),
        }
    }
}

/// The number of connections of each address.
#[derive(Debug, Clone, Default)]
pub struct Addresses(Arc<Mutex<HashMap<Whose, usize>>>);

impl Addresses {
    /// Counts a connection for as long as the returned value lives. `None` if the address has `most` connections
    /// already. 0 is no limit.
    pub fn enter(&self, address: IpAddr, most: usize) -> Option<AddressPlace> {
        let whose = address.into();
        let mut counts = self.0.lock();
        let count = counts.entry(whose).or_default();
        if most > 0 && *count >= most {
            return None;
        }
        *count += 1;
        Some(AddressPlace { addresses: self.clone(), whose })
    }
}

/// A connection that counts for its address.
#[derive(Debug)]
pub struct AddressPlace {
    addresses: Addresses,
    whose: Whose,
}

impl Drop for AddressPlace {
    fn drop(&mut self) {
        let mut counts = self.addresses.0.lock();
        if let Some(count) = counts.get_mut(&self.whose) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.whose);
            }
        }
    }
}

/// The failed logins of each address.
#[derive(Debug, Default)]
pub struct Logins(Mutex<HashMap<Whose, Failures>>);

#[derive(Debug)]
struct Failures {
    count: u32,
    last: Instant,
    /// The earliest time at which the next attempt is answered.
    next: Instant,
}

impl Failures {
    fn wait(&self) -> Duration {
        match self.count.checked_sub(FREE_FAILURES) {
            None => Duration::ZERO,
            Some(more) => FIRST_WAIT.saturating_mul(1 << more.min(16)).min(LONGEST_WAIT),
        }
    }
}

impl Logins {
    /// The time that an attempt waits before it is checked, whether it is right or wrong. A client that disconnects
    /// early therefore learns nothing. `None` if too many attempts wait already.
    pub fn wait(&self, address: IpAddr, now: Instant) -> Option<Duration> {
        let mut all = self.0.lock();
        let Some(failures) = all.get_mut(&address.into()) else { return Some(Duration::ZERO) };
        if now.duration_since(failures.last) > FORGET {
            all.remove(&address.into());
            return Some(Duration::ZERO);
        }
        let answered = failures.next.max(now) + failures.wait();
        let wait = answered - now;
        (wait <= QUEUE_MAX).then(|| {
            failures.next = answered;
            wait
        })
    }

    /// Records a failure.
    pub fn failed(&self, address: IpAddr, now: Instant) {
        let mut all = self.0.lock();
        if all.len() >= REMEMBERED_MAX {
            all.retain(|_, failures| now.duration_since(failures.last) <= FORGET);
        }
        if all.len() >= REMEMBERED_MAX
            && let Some(oldest) =
                all.iter().min_by_key(|(_, failures)| failures.last).map(|(whose, _)| *whose)
        {
            all.remove(&oldest);
        }
        let failures = all.entry(address.into()).or_insert(Failures { count: 0, last: now, next: now });
        failures.count += 1;
        failures.last = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn each_address_has_so_many_connections() {
        let addresses = Addresses::default();
        let (one, other) = (address("192.0.2.1"), address("192.0.2.2"));
        let places: Vec<_> = (0..2).map(|_| addresses.enter(one, 2).unwrap()).collect();
        assert!(
            addresses.enter(one, 2).is_none() && addresses.enter(address("::ffff:192.0.2.1"), 2).is_none()
        );
        assert!(addresses.enter(other, 2).is_some() && addresses.enter(one, 0).is_some());
        drop(places);
        assert!(addresses.enter(one, 2).is_some() && addresses.0.lock().is_empty());
        // A client with an IPv6 network has all addresses in it.
        let _place = addresses.enter(address("2001:db8::1"), 1).unwrap();
        assert!(addresses.enter(address("2001:db8::2:1"), 1).is_none());
        assert!(addresses.enter(address("2001:db8:0:1::1"), 1).is_some());
    }

    #[test]
    fn wrong_passwords_cost_time() {
        let (logins, who, begin) = (Logins::default(), address("192.0.2.1"), Instant::now());
        let mut now = begin;
        let mut tries = 0;
        // Each attempt follows as soon as the last one was answered.
        while now - begin < Duration::from_secs(60) {
            now += logins.wait(who, now).unwrap() + Duration::from_millis(1);
            logins.failed(who, now);
            tries += 1;
        }
        assert!((10..30).contains(&tries), "{tries}");
        // The limit is the same for attempts at the same time.
        let at_once = (0..100).filter(|_| logins.wait(who, now).is_some()).count();
        assert_eq!(at_once, (QUEUE_MAX.as_secs() / LONGEST_WAIT.as_secs()) as usize);
        assert_eq!(logins.wait(address("192.0.2.2"), now), Some(Duration::ZERO));
        assert_eq!(logins.wait(who, now + FORGET + LONGEST_WAIT), Some(Duration::ZERO));
    }

    #[test]
    fn few_addresses_are_remembered() {
        let (logins, begin) = (Logins::default(), Instant::now());
        for number in 0..REMEMBERED_MAX as u32 + 10 {
            let now = begin + Duration::from_millis(number.into());
            logins.failed(IpAddr::V4(number.into()), now);
        }
        assert_eq!(logins.0.lock().len(), REMEMBERED_MAX);
    }
}
