//! Memory of blocks that have been written, to be filled again. To the system fresh memory costs as much as filling it.

use std::sync::Arc;

use parking_lot::Mutex;

use super::overlay::Overlay;

/// Shorter blocks come from the allocator's own lists.
pub(super) const LEN_MIN: usize = 64 << 10;

/// Buffers of one length: that of the blocks written last. Only what a layer held is ever here, until the commit.
#[derive(Default)]
pub(super) struct Spare(Mutex<Vec<Vec<u8>>>);

impl Spare {
    /// A copy of `data`.
    pub(super) fn copy(&self, data: &[u8]) -> Vec<u8> {
        let spare = if data.len() < LEN_MIN { None } else { self.0.lock().pop() };
        match spare {
            Some(mut buffer) if buffer.len() == data.len() => {
                buffer.copy_from_slice(data);
                buffer
            }
            _ => data.to_vec(),
        }
    }

    /// Keeps the memory of a layer that has been written, as far as nobody reads from it.
    pub(super) fn keep(&self, layer: Arc<Overlay>) {
        let Ok(layer) = Arc::try_unwrap(layer) else { return };
        let blocks = layer.objects.into_values().flat_map(|change| change.blocks.into_values());
        let buffers = blocks.filter_map(|block| Arc::try_unwrap(block).ok());
        let mut kept: Vec<Vec<u8>> = buffers.filter(|buffer| buffer.len() >= LEN_MIN).collect();
        if let Some(len) = kept.last().map(Vec::len) {
            kept.retain(|buffer| buffer.len() == len);
            *self.0.lock() = kept;
        }
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Gives all back to the system.
    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head::overlay::ObjectChange;

    fn layer(blocks: impl IntoIterator<Item = Arc<Vec<u8>>>) -> Arc<Overlay> {
        let blocks = blocks.into_iter().enumerate().map(|(blkid, data)| (blkid as u64, data)).collect();
        let change = ObjectChange { blocks, ..ObjectChange::default() };
        Arc::new(Overlay { objects: [(7, change)].into(), bytes: 0 })
    }

    #[test]
    fn only_what_nobody_reads_is_filled_again() {
        let spare = Spare::default();
        let (free, read) = (Arc::new(vec![1; LEN_MIN]), Arc::new(vec![2; LEN_MIN]));
        let at = free.as_ptr();
        spare.keep(layer([free, read.clone(), Arc::new(vec![3; 512])]));
        assert_eq!(spare.0.lock().len(), 1);
        assert_eq!(spare.copy(&[4; 512]), [4; 512]);
        let copy = spare.copy(&vec![5; LEN_MIN]);
        assert!(copy == vec![5; LEN_MIN] && copy.as_ptr() == at);
        assert_eq!(*read, vec![2; LEN_MIN]);
        // A layer that is still being read gives nothing.
        let shown = layer([Arc::new(vec![6; LEN_MIN])]);
        spare.keep(shown.clone());
        assert!(spare.is_empty());
        drop(shown);

        // Blocks of another length from now on.
        spare.keep(layer([Arc::new(vec![7; LEN_MIN])]));
        assert_eq!(spare.copy(&vec![8; 2 * LEN_MIN]), vec![8; 2 * LEN_MIN]);
        spare.keep(layer([Arc::new(vec![7; LEN_MIN]), Arc::new(vec![7; 2 * LEN_MIN])]));
        assert_eq!(spare.0.lock().iter().map(Vec::len).collect::<Vec<_>>(), [2 * LEN_MIN]);
        spare.clear();
        assert!(spare.is_empty());
    }
}
