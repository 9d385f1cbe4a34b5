//! The way to stop a server.

use std::sync::Arc;

use tokio::sync::watch;

/// Stops servers: they accept no more connections, answer the requests in flight and return. Clones are one and the same.
#[derive(Debug, Clone)]
pub struct Shutdown {
    sender: Arc<watch::Sender<bool>>,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}

impl Shutdown {
    /// Not triggered.
    pub fn new() -> Self {
        Self { sender: Arc::new(watch::Sender::new(false)) }
    }

    /// Stops every server that runs with it, now or later. May be called from any thread, and more than once.
    pub fn trigger(&self) {
        self.sender.send_replace(true);
    }

    /// Whether it was triggered.
    pub fn is_triggered(&self) -> bool {
        *self.sender.borrow()
    }

    /// Returns once it is triggered.
    pub(crate) async fn triggered(&self) {
        // the sender lives as long as `self`: waiting cannot fail
        let _ = self.sender.subscribe().wait_for(|&triggered| triggered).await;
    }
}
