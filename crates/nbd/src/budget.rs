//! Limits for the requests of a connection: places for requests in flight, and memory for their data.
//!
//! A request takes its share before its data is read from the socket. It releases the share when its reply is written
//! to the socket or the connection is closed. Shares are taken in a fixed order (place, connection's memory, server's
//! memory), and nothing that holds a share waits for another one. So requests cannot deadlock.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::options::Options;

/// The unit in bytes in which memory is counted, because counters of permits have 32 bits.
const GRAIN: u64 = 4096;

fn grains(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(GRAIN).max(1)).unwrap_or(u32::MAX)
}

/// The memory for the data of all connections.
#[derive(Debug, Clone)]
pub(crate) struct ServerBudget(Arc<Semaphore>);

impl ServerBudget {
    pub(crate) fn new(options: &Options) -> Self {
        Self(Arc::new(Semaphore::new(grains(options.server_memory) as usize)))
    }
}

/// The budget of one connection.
#[derive(Debug)]
pub(crate) struct Budget {
    places: Arc<Semaphore>,
    place_count: u32,
    memory: Arc<Semaphore>,
    server: ServerBudget,
}

/// A place among the requests in flight.
#[derive(Debug)]
pub(crate) struct Place(#[expect(dead_code, reason = "held for its drop")] OwnedSemaphorePermit);

/// The place and memory of one request. Dropping it releases them.
#[derive(Debug)]
#[expect(dead_code, reason = "held for its drop")]
pub(crate) struct Share {
    place: Place,
    memory: OwnedSemaphorePermit,
    server: OwnedSemaphorePermit,
}

impl Budget {
    pub(crate) fn new(options: &Options, server: ServerBudget) -> Self {
        Self {
            places: Arc::new(Semaphore::new(options.max_in_flight)),
            place_count: u32::try_from(options.max_in_flight).unwrap_or(u32::MAX),
            memory: Arc::new(Semaphore::new(grains(options.connection_memory) as usize)),
            server,
        }
    }

    /// Waits for a place.
    pub(crate) async fn place(&self) -> Place {
        Place(acquire(&self.places, 1).await)
    }

    /// Waits for memory for `bytes` bytes of data, which must not exceed the largest request.
    pub(crate) async fn share(&self, place: Place, bytes: u64) -> Share {
        let memory = acquire(&self.memory, grains(bytes)).await;
        let server = acquire(&self.server.0, grains(bytes)).await;
        Share { place, memory, server }
    }

    /// Waits until no request is in flight. No new request may begin meanwhile.
    pub(crate) async fn idle(&self) {
        drop(acquire(&self.places, self.place_count).await);
    }
}

async fn acquire(semaphore: &Arc<Semaphore>, count: u32) -> OwnedSemaphorePermit {
    // acquiring fails only if the semaphore is closed
    Arc::clone(semaphore).acquire_many_owned(count).await.expect("the semaphore is never closed")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_request_waits_for_memory_and_gets_it_when_another_ends() {
        let options =
            Options { connection_memory: 8 * GRAIN, server_memory: 12 * GRAIN, ..Options::default() };
        let server = ServerBudget::new(&options);
        let (a, b) = (Budget::new(&options, server.clone()), Budget::new(&options, server));
        let first = a.share(a.place().await, 8 * GRAIN).await;
        let soon = Duration::from_millis(20);
        // connection `a` is full, and the server has only 4 units left for connection `b`
        assert!(tokio::time::timeout(soon, a.share(a.place().await, 1)).await.is_err());
        assert!(tokio::time::timeout(soon, b.share(b.place().await, 5 * GRAIN)).await.is_err());
        assert!(tokio::time::timeout(soon, a.idle()).await.is_err());
        drop(first);
        b.share(b.place().await, 8 * GRAIN).await;
        a.idle().await;
    }
}
