//! The end of a receive: the tree becomes head and snapshot, or is removed.

use std::sync::Arc;

use snowmelt_pool::Tree;
use snowmelt_stream::features::Features;
use snowmelt_zpl::Filesystem;

use super::ReceiveOptions;
use super::begin::Session;
use super::begin::check_unmodified;
use super::pipeline::Place;
use crate::catalog::properties::CAME_WITH_STREAM;
use crate::catalog::{Catalog, Dataset, Kind, PropertyKind, SnapshotId, keys};
use crate::datasets::Change;
use crate::error::{DatasetError, ReceiveError};
use crate::name::Name;
use crate::objset::types::ZVOL;
use crate::objset::{Dnode, Objset, ObjsetKey};
use crate::ops::free::free_tree;
use crate::ops::snapshot::SnapshotIdentity;
use crate::property;

/// By how many bytes a received head may exceed `refquota`. A sender at its `refquota` may have exceeded it by one
/// transaction, and its data may take more space here. As in `dsl_dataset_clone_swap_check_impl` of ZFS:
/// `DMU_MAX_ACCESS`, multiplied by the space that a byte may take there.
const REFQUOTA_OVERRUN: u64 = (64 << 20) * 24;

impl Session<'_> {
    /// Creates the head and the snapshot in one txg, and waits until they are durable.
    pub(super) fn finish(&self, options: &ReceiveOptions, end: Place) -> Result<(), ReceiveError> {
        self.check_content(end)?;
        self.datasets.sync_change(|change| self.make_visible(change, options))
    }

    fn make_visible(&self, change: &Change<'_>, options: &ReceiveOptions) -> Result<(), ReceiveError> {
        let catalog = change.catalog();
        let mut dataset = catalog.dataset_by_id(self.id)?;
        // Everything is checked before anything is changed, because changes made before an error would stay.
        catalog.check_refquota(&dataset, self.tree.stats().physical, REFQUOTA_OVERRUN)?;
        self.check_kind(&catalog, &dataset)?;
        self.check_name(&catalog, &dataset)?;
        if dataset.record.head != self.tree.id() {
            if let Some(base) = self.base {
                self.check_base(&catalog, &dataset, base, options)?;
            }
            change.replace_head(&mut dataset, &self.tree, self.base)?;
        }
        dataset.record.kind = self.kind;
        dataset.record.inconsistent = false;
        dataset.record.content = self.state.content;
        if !self.state.key_data.is_empty() {
            change.put(&keys::key_data(self.id, 0), &self.state.key_data)?;
        }
        if self.base.is_none() {
            // It is another dataset with the same name, with its own key if it is encrypted.
            change.delete(&keys::key_root(self.id))?;
        }
        change.put_dataset(self.id, &dataset.record)?;
        let identity = SnapshotIdentity {
            name: self.destination.snapshot.clone(),
            guid: self.begin.to_guid,
            creation: self.begin.creation_time,
        };
        let snapshot = change.take_snapshot(&mut dataset, identity)?;
        let kind = PropertyKind::Received;
        change.set_property(snapshot.dataset, snapshot.txg, kind, CAME_WITH_STREAM, "on")?;
        if let Some(guids) = &self.redact_snaps {
            change.set_property(snapshot.dataset, snapshot.txg, kind, "redact_snaps", guids)?;
        }
        change.end_receive(self.id)?;
        let is_settable = |name: &&str| self.base.is_none() || !property::is_made_with(name);
        for (property, value) in options.properties.iter().filter(|(name, _)| is_settable(&name.as_str())) {
            change.set_property(self.id, 0, PropertyKind::Local, property, value)?;
        }
        for property in options.exclude.iter().filter(|name| is_settable(&name.as_str())) {
            // A local value stays: it has priority over the value in the stream.
            let own = change.catalog().own_property(self.id, 0, property)?;
            if !matches!(own, Some((_, PropertyKind::Local))) {
                change.inherit_property(self.id, 0, property, false)?;
            }
        }
        Ok(())
    }

    /// Checks the name again: another snapshot may have got it meanwhile. A snapshot that will be destroyed does not
    /// count.
    fn check_name(&self, catalog: &Catalog, dataset: &Dataset) -> Result<(), ReceiveError> {
        let full = format!("{}@{}", dataset.name, self.destination.snapshot);
        match catalog.snapshot(&Name::parse(&full).map_err(DatasetError::from)?) {
            Err(DatasetError::NotFound { .. }) => Ok(()),
            Err(other) => Err(other.into()),
            Ok(found) if found.id.txg > self.base.map_or(0, |base| base.txg) => Ok(()),
            Ok(_) => Err(ReceiveError::SnapshotExists { name: full }),
        }
    }

    /// Checks that a volume does not replace a filesystem with children.
    fn check_kind(&self, catalog: &Catalog, dataset: &Dataset) -> Result<(), DatasetError> {
        if self.kind == Kind::Filesystem {
            return Ok(());
        }
        let children: Vec<_> = catalog.children(dataset)?.into_iter().map(|child| child.name).collect();
        match children.is_empty() {
            true => Ok(()),
            false => Err(DatasetError::HasChildren { name: dataset.name.clone(), children }),
        }
    }

    /// Checks the base again, because the dataset may have been changed meanwhile.
    fn check_base(
        &self,
        catalog: &Catalog,
        dataset: &Dataset,
        base: SnapshotId,
        options: &ReceiveOptions,
    ) -> Result<(), ReceiveError> {
        let newest = match options.force {
            // Newer snapshots are destroyed, but the base may have moved to a promoted clone.
            true => {
                catalog.snapshots(dataset).find(|it| it.as_ref().is_ok_and(|it| it.id == base)).transpose()?
            }
            false => catalog.newest_snapshot(dataset)?.filter(|newest| newest.id == base),
        };
        let base = newest.ok_or_else(|| ReceiveError::NotNewest { name: dataset.name.clone() })?;
        if options.force { Ok(()) } else { check_unmodified(catalog, dataset, &base) }
    }

    /// Checks the content: what no mount could show is not made visible.
    fn check_content(&self, end: Place) -> Result<(), ReceiveError> {
        if self.is_raw() || self.state.content.features.contains(Features::RAW) {
            return Ok(());
        }
        let name = self.destination.full();
        let refuse = |why: String| ReceiveError::Record {
            index: end.index,
            kind: "END",
            offset: end.offset,
            why: format!("what the stream makes is no {why}"),
        };
        let objset =
            Objset::new(self.datasets.pool().clone(), self.tree.view(), &name, self.kind, self.state.content);
        match self.kind {
            Kind::Filesystem => {
                Filesystem::open(objset).map_err(|error| refuse(format!("filesystem: {error}")))?;
            }
            Kind::Volume => {
                let entry = self.tree.get(&ObjsetKey::Dnode { object: 1 }.encode())?;
                let dnode = entry.map(|entry| Dnode::decode(&entry.value)).transpose()?;
                if dnode.is_none_or(|dnode| dnode.object_type != ZVOL) {
                    return Err(refuse("volume: object 1 holds no volume data".to_owned()));
                }
                objset.volume_size().map_err(|error| refuse(format!("volume: {error}")))?;
            }
        }
        Ok(())
    }

    /// After an error: keeps what can be resumed, and removes everything else.
    pub(super) fn abandon(&mut self) -> Result<(), ReceiveError> {
        if self.state.can_be_resumed() {
            self.datasets.pool().commit()?;
            return Ok(());
        }
        let change = self.datasets.freeing_change()?;
        let dataset = change.catalog().dataset_by_id(self.id)?;
        change.give_up_receive(&dataset)?;
        change.commit()?;
        Ok(())
    }
}

impl Change<'_> {
    /// Replaces the old head by a tree. Snapshots newer than the base are destroyed, as the user requested. That
    /// nothing holds them is checked again.
    pub(crate) fn replace_head(
        &self,
        dataset: &mut Dataset,
        tree: &Arc<Tree>,
        base: Option<SnapshotId>,
    ) -> Result<(), ReceiveError> {
        let catalog = self.catalog();
        let base_txg = base.map_or(0, |base| base.txg);
        let mut newer = catalog.snapshots_after(dataset, base_txg).collect::<Result<Vec<_>, _>>()?;
        for snapshot in &newer {
            if !catalog.holds(snapshot.id)?.is_empty() {
                return Err(DatasetError::Held { name: snapshot.full_name() }.into());
            }
            if !catalog.clones(snapshot.id)?.is_empty() {
                return Err(DatasetError::Busy { name: snapshot.full_name() }.into());
            }
        }
        while let Some(snapshot) = newer.pop() {
            self.destroy_snapshot(snapshot.id)?;
        }
        let floor =
            if base.is_some() { base_txg } else { dataset.record.origin.map_or(0, |origin| origin.txg) };
        free_tree(self.pool(), &self.hold, dataset.record.head, floor)?;
        if base.is_none()
            && let Some(origin) = dataset.record.origin.take()
        {
            self.delete(&keys::clone(origin.dataset, origin.txg, dataset.id))?;
        }
        dataset.record.head = tree.id();
        self.datasets.replace_head(dataset.id, tree.clone())?;
        Ok(())
    }
}
