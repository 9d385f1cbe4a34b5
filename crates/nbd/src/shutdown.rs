//! The signal that stops a server.

use std::sync::Arc;

use tokio::sync::watch;

/// Stops servers: they accept no more connections, answer the requests in flight and return. Clones share one state.
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
    /// A shutdown that is not triggered.
    pub fn new() -> Self {
        Self { sender: Arc::new(watch::Sender::new(false)) }
    }

    /// Stops every server that uses it, also servers that start later. It may be called from any thread, and
    /// repeatedly.
    pub fn trigger(&self) {
        self.sender.send_replace(true);
    }

    /// Whether it was triggered.
    pub fn is_triggered(&self) -> bool {
        *self.sender.borrow()
    }

    /// Waits until it is triggered.
    pub(crate) async fn triggered(&self) {
        // waiting cannot fail, because the sender lives as long as `self`
        let _ = self.sender.subscribe().wait_for(|&triggered| triggered).await;
    }
}
