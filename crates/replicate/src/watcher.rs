//! Progress of a sync.

/// Is told about the progress of a sync.
pub trait Watcher {
    /// One name has been dealt with.
    fn item(&mut self) {}

    /// So many bytes there are in all.
    fn expect(&mut self, _bytes: u64) {}

    /// So far it has come, in bytes.
    fn at(&mut self, _bytes: u64) {}

    /// So many bytes have come, or are to go, over: they may be held up.
    fn pass(&mut self, _bytes: usize) {}

    /// Something failed, or was left out on purpose. The rest continues.
    fn failure(&mut self, what: &str);

    /// Whether it is to stop.
    fn is_cancelled(&self) -> bool;
}
