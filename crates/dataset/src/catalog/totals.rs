//! Space of a dataset with all its descendants, reservations and quotas: `used`, `usedby*`, `available`.
//!
//! As in ZFS (`dsl_dir_space_available` and `parent_delta` of `module/zfs/dsl_dir.c`), a dataset counts in its parent
//! with the larger of what it uses and what it has reserved.

use std::cell::RefCell;
use std::collections::HashMap;

use super::{Catalog, Dataset, DatasetId, DatasetSpace, PropertyKind, ROOT};
use crate::error::{DatasetError, Quota};

/// Limits of one dataset in bytes; 0 for none. Limits are not inherited, so only those set at the dataset itself count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Settings {
    /// Maximal space of the dataset and all its descendants.
    pub quota: u64,
    /// Maximal space that the dataset's head may refer to.
    pub refquota: u64,
    /// Space that is kept free for the dataset and all its descendants.
    pub reservation: u64,
    /// Space that is kept free for the dataset's head.
    pub refreservation: u64,
}

impl Settings {
    /// Whether no limit is set.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// The limits in a list of properties in canonical text.
    pub(crate) fn among(properties: &[(String, String)]) -> Self {
        let mut limits = Self::default();
        for (name, value) in properties {
            limits.set(name, value);
        }
        limits
    }

    /// Sets a limit from a property. Other properties change nothing. Returns whether the property is a limit.
    pub(crate) fn set(&mut self, property: &str, value: &str) -> bool {
        let Some(limit) = self.get_mut(property) else { return false };
        *limit = value.parse().unwrap_or(0);
        true
    }

    /// The limit of a property, if the property is one.
    pub(crate) fn get_mut(&mut self, property: &str) -> Option<&mut u64> {
        match property {
            "quota" => Some(&mut self.quota),
            "refquota" => Some(&mut self.refquota),
            "reservation" => Some(&mut self.reservation),
            "refreservation" => Some(&mut self.refreservation),
            _ => None,
        }
    }
}

/// Space of a dataset, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// The dataset alone.
    pub own: DatasetSpace,
    /// With all descendants and reservations.
    pub used: u64,
    /// The part of `used` of the descendants and of an unfinished receive into the dataset.
    pub children: u64,
    /// The part of `used` that `refreservation` keeps free.
    pub refreservation: u64,
    /// The part of `used` that is actually stored.
    pub stored: u64,
    /// Logical size of the stored part.
    pub logical: u64,
}

/// Computes space at one moment. The space of each dataset is read only once.
pub struct SpaceReader<'a> {
    catalog: &'a Catalog,
    known: RefCell<HashMap<DatasetId, Totals>>,
}

impl<'a> SpaceReader<'a> {
    /// Uses the state in `catalog`.
    pub fn new(catalog: &'a Catalog) -> Self {
        Self { catalog, known: RefCell::default() }
    }

    /// Space of a dataset with all its descendants.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn totals(&self, dataset: &Dataset) -> Result<Totals, DatasetError> {
        if let Some(known) = self.known.borrow().get(&dataset.id) {
            return Ok(*known);
        }
        // Deepest datasets first, so that a deep tree needs no recursion.
        let all = self.catalog.descendants(dataset.clone())?;
        for below in all.iter().rev() {
            if self.known.borrow().contains_key(&below.id) {
                continue;
            }
            let totals = self.totals_given_children(below)?;
            self.known.borrow_mut().insert(below.id, totals);
        }
        Ok(self.known.borrow().get(&dataset.id).copied().unwrap_or_default())
    }

    fn totals_given_children(&self, dataset: &Dataset) -> Result<Totals, DatasetError> {
        let own = self.catalog.dataset_space(dataset)?;
        // In ZFS this is the space of the hidden child `%recv`.
        let coming = self.catalog.receiving_space(dataset)?;
        let mut below = coming.physical;
        let mut totals = Totals {
            own,
            children: below,
            logical: own.logical_used.saturating_add(coming.logical),
            ..Totals::default()
        };
        for child in self.catalog.children(dataset)? {
            let known = self.known.borrow().get(&child.id).copied().unwrap_or_default();
            let reserved = self.catalog.limits_of(child.id)?.reservation;
            totals.children = totals.children.saturating_add(known.used.max(reserved));
            totals.logical = totals.logical.saturating_add(known.logical);
            below = below.saturating_add(known.stored);
        }
        let reserved = self.catalog.limits_of(dataset.id)?.refreservation;
        totals.refreservation = reserved.saturating_sub(own.written);
        let stored = own.used_by_dataset.saturating_add(own.used_by_snapshots);
        totals.used = stored.saturating_add(totals.refreservation).saturating_add(totals.children);
        totals.stored = stored.saturating_add(below);
        Ok(totals)
    }

    /// Bytes that can still be written to a dataset.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn available(&self, dataset: &Dataset) -> Result<u64, DatasetError> {
        let (totals, limits) = (self.totals(dataset)?, self.catalog.limits_of(dataset.id)?);
        let space = self.available_below(dataset)?.saturating_add(totals.refreservation);
        let refquota = no_limit_if_zero(limits.refquota);
        Ok(space.min(refquota.saturating_sub(totals.own.referenced.physical)))
    }

    /// By how much a dataset and its descendants may still grow, without what its `refreservation` keeps free
    /// (`dsl_dir_space_available`).
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn available_below(&self, dataset: &Dataset) -> Result<u64, DatasetError> {
        let mut path = vec![dataset.clone()];
        while let Some(last) = path.last().filter(|last| last.id != ROOT) {
            path.push(self.catalog.dataset_by_id(last.record.parent)?);
        }
        let mut space = u64::MAX;
        for at in path.iter().rev() {
            let (totals, limits) = (self.totals(at)?, self.catalog.limits_of(at.id)?);
            let mut quota = no_limit_if_zero(limits.quota);
            if at.id == ROOT {
                let free = self.catalog.pool().space()?.free;
                quota = quota.min(totals.stored.saturating_add(free));
            } else {
                space = space.saturating_add(limits.reservation.saturating_sub(totals.used));
            }
            space = space.min(quota.saturating_sub(totals.used));
        }
        Ok(space)
    }

    /// Checks whether a dataset with these limits may be created below `parent`.
    pub(crate) fn check_new(&self, name: &str, parent: &Dataset, new: Settings) -> Result<(), DatasetError> {
        let needed = new.reservation.max(new.refreservation);
        if needed == 0 {
            return Ok(());
        }
        let within = |reserved: u64, quota: u64| quota == 0 || reserved <= quota;
        let available = self.available_below(parent)?;
        if needed > available || !within(needed, new.quota) || !within(new.refreservation, new.refquota) {
            return Err(DatasetError::OutOfSpace { name: name.to_owned(), needed, available });
        }
        Ok(())
    }

    /// Checks whether a dataset's limits may be set to `new` (like `dsl_dir_set_quota_check` and similar functions).
    pub(crate) fn check_settings(&self, dataset: &Dataset, new: Settings) -> Result<(), DatasetError> {
        let (totals, old) = (self.totals(dataset)?, self.catalog.limits_of(dataset.id)?);
        let referenced = totals.own.referenced.physical;
        if new.quota != old.quota && new.quota != 0 && new.quota < totals.used.max(new.reservation) {
            return Err(DatasetError::BelowUse { property: "quota" });
        }
        if new.refquota != old.refquota
            && new.refquota != 0
            && new.refquota < referenced.max(new.refreservation)
        {
            return Err(DatasetError::BelowUse { property: "refquota" });
        }
        let more = totals.used.max(new.reservation).saturating_sub(totals.used.max(old.reservation));
        if more > 0 {
            let parent = self.catalog.dataset_by_id(dataset.record.parent)?;
            if more > self.available_below(&parent)? || (new.quota != 0 && new.reservation > new.quota) {
                return Err(DatasetError::BeyondSpace { property: "reservation" });
            }
        }
        let unique = totals.own.written;
        let more = unique.max(new.refreservation).saturating_sub(unique.max(old.refreservation));
        if more > 0
            && (more > self.available_below(dataset)?
                || (new.refquota != 0 && new.refreservation > new.refquota))
        {
            return Err(DatasetError::BeyondSpace { property: "refreservation" });
        }
        Ok(())
    }
}

impl Catalog {
    /// The limits set at a dataset.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn limits_of(&self, id: DatasetId) -> Result<Settings, DatasetError> {
        let mut limits = Settings::default();
        let mut stored = self.stored_properties(id, 0)?;
        // Values with higher priority come last.
        stored.sort_by_key(|stored| match stored.kind {
            PropertyKind::Received => 0,
            PropertyKind::Inherit => 1,
            PropertyKind::Local => 2,
        });
        for stored in stored {
            limits.set(&stored.name, &stored.value);
        }
        Ok(limits)
    }
}

impl Catalog {
    /// Checks whether a dataset's head may be replaced by one that refers to `bytes`. Up to `overrun` bytes may exceed
    /// `refquota`.
    ///
    /// # Errors
    /// [`DatasetError::QuotaExceeded`].
    pub(crate) fn check_refquota(
        &self,
        dataset: &Dataset,
        bytes: u64,
        overrun: u64,
    ) -> Result<(), DatasetError> {
        let limit = self.limits_of(dataset.id)?.refquota;
        if limit == 0 || bytes <= limit.saturating_add(overrun) {
            return Ok(());
        }
        let name = dataset.name.clone();
        Err(DatasetError::QuotaExceeded { name, quota: Quota::Refquota, limit, used: bytes })
    }
}

fn no_limit_if_zero(quota: u64) -> u64 {
    if quota == 0 { u64::MAX } else { quota }
}
