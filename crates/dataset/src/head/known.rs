//! A cache of facts about objects that were read from the tree: most requests ask for the same few objects.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::objset::Dnode;
use crate::objset::view::VOLUME_PROPERTIES;

/// Maximal slots (512 bytes each) of the cached dnodes. Above this, all are dropped.
const SLOTS_MAX: usize = 4096;

/// Caches what is in the tree. Layers must be checked first: their content is not here.
#[derive(Default)]
pub(super) struct Known(Mutex<State>);

#[derive(Default)]
struct State {
    /// How often entries were dropped.
    epoch: u64,
    objects: HashMap<u64, (Arc<Dnode>, bool)>,
    /// Slots of all cached dnodes.
    slots: usize,
    volume_size: Option<u64>,
}

/// The epoch in which a read of the tree began.
#[derive(Clone, Copy)]
pub(super) struct Begun(u64);

impl Known {
    /// An object's dnode and whether it has a spill block. If it is not cached, the epoch in which the read begins.
    pub(super) fn object(&self, object: u64) -> Result<(Arc<Dnode>, bool), Begun> {
        let state = self.0.lock();
        state.objects.get(&object).cloned().ok_or(Begun(state.epoch))
    }

    pub(super) fn volume_size(&self) -> Result<u64, Begun> {
        let state = self.0.lock();
        state.volume_size.ok_or(Begun(state.epoch))
    }

    /// Caches what was read, unless it may have changed since the read began.
    pub(super) fn learn_object(&self, begun: Begun, object: u64, found: &(Arc<Dnode>, bool)) {
        self.learn(begun, |state| {
            state.forget(object);
            state.slots += usize::from(found.0.slots);
            if state.slots > SLOTS_MAX {
                state.objects.clear();
                state.slots = usize::from(found.0.slots);
            }
            state.objects.insert(object, found.clone());
        });
    }

    pub(super) fn learn_volume_size(&self, begun: Begun, size: u64) {
        self.learn(begun, |state| state.volume_size = Some(size));
    }

    fn learn(&self, begun: Begun, learn: impl FnOnce(&mut State)) {
        let mut state = self.0.lock();
        if state.epoch == begun.0 {
            learn(&mut state);
        }
    }

    /// Drops objects that changed in the tree. Must be called before the layer with the changes is removed.
    pub(super) fn forget(&self, objects: impl Iterator<Item = u64>) {
        let mut state = self.0.lock();
        state.epoch += 1;
        for object in objects {
            state.forget(object);
            if object == VOLUME_PROPERTIES {
                state.volume_size = None;
            }
        }
    }

    /// Drops everything, because the tree was replaced.
    pub(super) fn forget_all(&self) {
        let mut state = self.0.lock();
        *state = State { epoch: state.epoch + 1, ..State::default() };
    }
}

impl State {
    fn forget(&mut self, object: u64) {
        if let Some((dnode, _)) = self.objects.remove(&object) {
            self.slots -= usize::from(dnode.slots);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dnode(slots: u8) -> (Arc<Dnode>, bool) {
        let dnode = Dnode {
            object_type: 19,
            bonus_type: 44,
            checksum: 0,
            compress: 0,
            slots,
            block_size: 512,
            bonus_len: 0,
            raw: None,
            bonus: Vec::new(),
        };
        (Arc::new(dnode), false)
    }

    #[test]
    fn what_was_read_before_a_change_is_not_learned() {
        let known = Known::default();
        let Err(begun) = known.object(7) else { panic!("nothing is known yet") };
        known.forget([8].into_iter());
        known.learn_object(begun, 7, &dnode(1));
        known.learn_volume_size(begun, 512);
        assert!(known.object(7).is_err() && known.volume_size().is_err());

        let Err(begun) = known.object(7) else { panic!("nothing is known yet") };
        known.learn_object(begun, 7, &dnode(2));
        known.learn_volume_size(begun, 512);
        assert_eq!(known.object(7).ok().map(|(dnode, _)| dnode.slots), Some(2));
        known.forget([8].into_iter());
        assert!(known.object(7).is_ok() && known.volume_size().ok() == Some(512));
        known.forget([7, VOLUME_PROPERTIES].into_iter());
        assert!(known.object(7).is_err() && known.volume_size().is_err());
    }

    #[test]
    fn is_bounded() {
        let known = Known::default();
        let learn = |object, slots| {
            let Err(begun) = known.object(object) else { panic!("not read yet") };
            known.learn_object(begun, object, &dnode(slots));
        };
        (0..SLOTS_MAX as u64 / 32).for_each(|object| learn(object, 32));
        assert_eq!(known.0.lock().slots, SLOTS_MAX);
        known.forget([0].into_iter());
        (1000..1032).for_each(|object| learn(object, 1));
        assert_eq!(known.0.lock().slots, SLOTS_MAX);
        learn(2000, 2);
        assert_eq!(known.0.lock().slots, 2);
        assert_eq!(known.0.lock().objects.len(), 1);
    }
}
