//! Memory of written blocks that is used again. Getting new memory from the system costs as much as filling it.

use std::sync::Arc;

use parking_lot::Mutex;

use super::overlay::Overlay;

/// The allocator handles shorter blocks well.
pub(super) const LEN_MIN: usize = 64 << 10;

/// Maximal bytes that are kept.
const KEPT_MAX: usize = 32 << 20;

/// Buffers with the length of the blocks written last. They hold no more than layers held at one time. They are kept
/// until the commit, or until the staging writer is finished.
/// what is staged is finished.
#[derive(Default)]
pub(super) struct Spare(Mutex<Buffers>);

#[derive(Default)]
struct Buffers {
    free: Vec<Vec<u8>>,
    /// Blocks of the last written layer that were still in use: its last blocks wait in the pool's buffer for the
    /// store.
    held: Vec<Arc<Vec<u8>>>,
}

impl Spare {
    /// A copy of `data`.
    pub(super) fn copy(&self, data: &[u8]) -> Vec<u8> {
        let spare = if data.len() < LEN_MIN { None } else { self.0.lock().free.pop() };
        match spare {
            Some(mut buffer) if buffer.len() == data.len() => {
                buffer.copy_from_slice(data);
                buffer
            }
            _ => data.to_vec(),
        }
    }

    /// Keeps the memory of a written layer, except what is still in use.
    pub(super) fn keep(&self, layer: Arc<Overlay>) {
        let Ok(layer) = Arc::try_unwrap(layer) else { return };
        let blocks = layer.objects.into_values().flat_map(|change| change.blocks.into_values());
        let (mut free, mut held) = (Vec::new(), Vec::new());
        for block in blocks.filter(|block| block.len() >= LEN_MIN) {
            match Arc::try_unwrap(block) {
                Ok(buffer) => free.push(buffer),
                Err(block) => held.push(block),
            }
        }
        let Some(len) = free.last().map(Vec::len) else { return };
        let mut buffers = self.0.lock();
        let released =
            std::mem::take(&mut buffers.held).into_iter().filter_map(|block| Arc::try_unwrap(block).ok());
        buffers.free.extend(released.chain(free));
        buffers.free.retain(|buffer| buffer.len() == len);
        buffers.free.truncate(KEPT_MAX / len);
        buffers.held = held;
    }

    /// Whether it is empty.
    pub(super) fn is_empty(&self) -> bool {
        let buffers = self.0.lock();
        buffers.free.is_empty() && buffers.held.is_empty()
    }

    /// Returns all memory to the system.
    pub(super) fn clear(&self) {
        *self.0.lock() = Buffers::default();
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
        assert_eq!(spare.0.lock().free.len(), 1);
        assert_eq!(spare.copy(&[4; 512]), [4; 512]);
        let copy = spare.copy(&vec![5; LEN_MIN]);
        assert!(copy == vec![5; LEN_MIN] && copy.as_ptr() == at);
        assert_eq!(*read, vec![2; LEN_MIN]);
        // A block that was in use then, and is not any more, is kept with the next layer.
        drop(read);
        spare.keep(layer([Arc::new(copy)]));
        assert_eq!(spare.0.lock().free.len(), 2);
        spare.clear();
        // Nothing is kept of a layer that is still in use.
        let shown = layer([Arc::new(vec![6; LEN_MIN])]);
        spare.keep(shown.clone());
        assert!(spare.is_empty());
        drop(shown);

        // Blocks of another length from now on.
        spare.keep(layer([Arc::new(vec![7; LEN_MIN])]));
        assert_eq!(spare.copy(&vec![8; 2 * LEN_MIN]), vec![8; 2 * LEN_MIN]);
        spare.keep(layer([Arc::new(vec![7; LEN_MIN]), Arc::new(vec![7; 2 * LEN_MIN])]));
        assert_eq!(spare.0.lock().free.iter().map(Vec::len).collect::<Vec<_>>(), [2 * LEN_MIN]);
        // Unused buffers are kept beside later ones.
        spare.keep(layer([Arc::new(vec![7; 2 * LEN_MIN])]));
        assert_eq!(spare.0.lock().free.len(), 2);
        spare.clear();
        assert!(spare.is_empty());
    }
}
