//! Resume tokens of interrupted receives, and the removal of abandoned ones.

use snowmelt_stream::features::Features;
use snowmelt_stream::nvlist::{NvList, NvValue};
use snowmelt_stream::token::ResumeToken;

use crate::catalog::record::ReceiveState;
use crate::catalog::{Catalog, Dataset, DatasetId, keys};
use crate::datasets::{Change, Datasets};
use crate::error::{DatasetError, ReceiveError};
use crate::ops::free::free_tree;

/// The `receive_resume_token` of a dataset; `None` when nothing can be resumed.
///
/// # Errors
/// When the pool cannot be read.
pub fn resume_token(catalog: &Catalog, id: DatasetId) -> Result<Option<String>, DatasetError> {
    let state = catalog.receive_state(id)?.filter(ReceiveState::can_be_resumed);
    Ok(state.map(|state| token(&state)))
}

/// The token's fields, in ZFS's order (`get_receive_resume_token_stats` of `module/zfs/dsl_dataset.c`).
fn token(state: &ReceiveState) -> String {
    let mut list = NvList::default();
    if state.from_guid != 0 {
        list.insert("fromguid", NvValue::Uint64(state.from_guid));
    }
    list.insert("object", NvValue::Uint64(state.object));
    list.insert("offset", NvValue::Uint64(state.offset));
    list.insert("bytes", NvValue::Uint64(state.bytes));
    list.insert("toguid", NvValue::Uint64(state.to_guid));
    list.insert("toname", NvValue::String(state.to_name.clone().into_bytes()));
    for (feature, key) in [
        (Features::LARGE_BLOCKS, "largeblockok"),
        (Features::EMBED_DATA, "embedok"),
        (Features::COMPRESSED, "compressok"),
        (Features::RAW, "rawok"),
    ] {
        if state.features.contains(feature) {
            list.insert(key, NvValue::Boolean);
        }
    }
    ResumeToken(list).to_string()
}

impl Datasets {
    /// `receive -A`: discards the state of an interrupted receive.
    ///
    /// # Errors
    /// [`ReceiveError::NoPartialState`]; [`ReceiveError::Busy`] while a receive is under way;
    /// [`DatasetError::HasChildren`] when the receive created the dataset, and it has children by now.
    pub fn abort_receive(&self, name: &str) -> Result<(), ReceiveError> {
        let change = self.freeing_change()?;
        let catalog = change.catalog();
        let dataset = catalog.dataset(name)?;
        if self.is_receiving(dataset.id) {
            return Err(ReceiveError::Busy { name: name.to_owned() });
        }
        if catalog.receive_state(dataset.id)?.is_none() {
            return Err(ReceiveError::NoPartialState { name: name.to_owned() });
        }
        change.give_up_receive(&dataset)?;
        change.commit()?;
        Ok(())
    }

    /// Removes the state of receives that a crash interrupted and that cannot be resumed.
    pub(crate) fn remove_abandoned_receives(&self) -> Result<(), DatasetError> {
        let catalog = self.catalog();
        let prefix = [keys::RECEIVE];
        let mut abandoned = Vec::new();
        for item in catalog.meta().range(&prefix, keys::after(&prefix).as_deref()) {
            let (key, entry) = item?;
            if !ReceiveState::decode(&entry.value)?.can_be_resumed() {
                abandoned.push(DatasetId(keys::number(&key, 1)?));
            }
        }
        if abandoned.is_empty() {
            return Ok(());
        }
        let change = self.freeing_change()?;
        for id in abandoned {
            let dataset = change.catalog().dataset_by_id(id)?;
            match change.give_up_receive(&dataset) {
                // It stays until its children are moved or destroyed.
                Err(DatasetError::HasChildren { .. }) => {}
                given_up => given_up?,
            }
        }
        change.commit()
    }
}

impl Change<'_> {
    /// Frees what a receive wrote. A dataset that the receive created is destroyed.
    ///
    /// # Errors
    /// [`DatasetError::HasChildren`] when that would destroy children.
    pub(crate) fn give_up_receive(&self, dataset: &Dataset) -> Result<(), DatasetError> {
        if dataset.record.inconsistent {
            let children = self.catalog().children(dataset)?;
            if !children.is_empty() {
                let children = children.into_iter().map(|child| child.name).collect();
                return Err(DatasetError::HasChildren { name: dataset.name.clone(), children });
            }
            self.destroy_head(dataset)?;
            return self.forget_dataset(dataset);
        }
        self.abandon_receive(dataset)
    }

    /// Frees the tree of a receive into an existing dataset. If the receive created the dataset, the tree is its head,
    /// and is freed with it.
    pub(crate) fn abandon_receive(&self, dataset: &Dataset) -> Result<(), DatasetError> {
        let Some(state) = self.catalog().receive_state(dataset.id)? else { return Ok(()) };
        if state.tree != dataset.record.head {
            free_tree(self.pool(), &self.hold, state.tree, state.base.map_or(0, |base| base.txg))?;
        }
        self.end_receive(dataset.id)
    }

    /// Ends a receive into the dataset, and releases the snapshot that it was based on.
    pub(crate) fn end_receive(&self, id: DatasetId) -> Result<(), DatasetError> {
        let base = self.catalog().receive_state(id)?.and_then(|state| state.base);
        self.delete(&keys::receive(id))?;
        match base {
            Some(base) => self.destroy_if_deferred(base),
            None => Ok(()),
        }
    }
}
