//! Packages: `-R`, `-I`, `-p`, `-h` (libzfs's `zfs_receive_package`, `lib/libzfs/libzfs_sendrecv.c`).
//!
//! The nvlist in the outer BEGIN describes every filesystem of the package: its properties, snapshots, holds, and its
//! old place. Renames and destroys are done first, then the inner streams are received in order.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use snowmelt_stream::features::Features;
use snowmelt_stream::nvlist::{NvList, NvValue};
use snowmelt_stream::reader::Reader;
use snowmelt_stream::record::{Begin, HeaderType, Record};

use super::begin::Destination;
use super::pipeline::{Incoming, skip_to_end};
use super::{Naming, Observer, ReceiveEvent, ReceiveOptions, Received};
use crate::catalog::{Catalog, Dataset, DatasetId, PropertyKind, Snapshot, SpaceReader};
use crate::datasets::{Change, Datasets};
use crate::error::{DatasetError, ReceiveError};
use crate::name::Name;
use crate::ops::destroy::DestroyPlan;
use crate::ops::rename::RenameOptions;
use crate::property::{self, Attribute};

/// Limit of properties of one dataset or snapshot that are accepted from an untrusted peer.
const CONFINED_MAX: usize = 1000;

/// One filesystem or volume of a package.
struct Member<'a> {
    /// Its name at the sender.
    name: &'a str,
    /// Guid of the parent's base snapshot; 0 for the topmost one.
    parent_from: u64,
    /// Guid of its origin at the sender; 0 if it is not a clone.
    origin: u64,
    snapshots: BTreeMap<&'a str, u64>,
    properties: Option<&'a NvList>,
    snapshot_properties: Option<&'a NvList>,
    snapshot_holds: Option<&'a NvList>,
    /// Whether it has its own key, if it is encrypted.
    is_encryption_root: bool,
}

/// A package's list of filesystems.
struct Package<'a> {
    /// The topmost filesystem's name at the sender.
    top: String,
    from_snapshot: Option<&'a str>,
    /// Made with `-R`: datasets that are not in it were destroyed at the sender.
    recursive: bool,
    members: Vec<Member<'a>>,
}

impl<'a> Package<'a> {
    fn parse(begin: &Begin, contents: &'a NvList) -> Result<Self, ReceiveError> {
        let bad = |why: &str| ReceiveError::Package { why: why.to_owned() };
        let sent = begin.to_name.as_str().ok_or_else(|| bad("its name is not UTF-8"))?;
        let top = sent.split('@').next().unwrap_or(sent).to_owned();
        let mut members = Vec::new();
        for (_, value) in contents.get_list("fss").into_iter().flat_map(NvList::iter) {
            let NvValue::List(list) = value else {
                return Err(bad("its list of filesystems holds something else"));
            };
            let mut snapshots = BTreeMap::new();
            for (name, guid) in list.get_list("snaps").into_iter().flat_map(NvList::iter) {
                if let NvValue::Uint64(guid) = guid {
                    snapshots.insert(name, *guid);
                }
            }
            members.push(Member {
                name: list.get_str("name").ok_or_else(|| bad("a filesystem of it has no name"))?,
                parent_from: list.get_u64("parentfromsnap").unwrap_or(0),
                origin: list.get_u64("origin").unwrap_or(0),
                snapshots,
                properties: list.get_list("props"),
                snapshot_properties: list.get_list("snapprops"),
                snapshot_holds: list.get_list("snapholds"),
                is_encryption_root: list.contains("is_encroot"),
            });
        }
        Ok(Self {
            top,
            from_snapshot: contents.get_str("fromsnap"),
            recursive: !contents.is_empty() && !contents.contains("not_recursive"),
            members,
        })
    }

    /// The part of a sent name below the topmost filesystem, with its slash.
    fn below<'n>(&self, sent: &'n str) -> Option<&'n str> {
        let rest = sent.strip_prefix(&self.top)?;
        (rest.is_empty() || rest.starts_with('/')).then_some(rest)
    }

    /// The member that a local dataset is a copy of.
    fn matching(&self, snapshots: &[Snapshot]) -> Option<&Member<'a>> {
        let guids: BTreeSet<_> = snapshots.iter().map(|snapshot| snapshot.record.guid).collect();
        self.members.iter().find(|member| member.snapshots.values().any(|guid| guids.contains(guid)))
    }

    fn member(&self, sent_dataset: &str) -> Option<&Member<'a>> {
        self.members.iter().find(|member| member.name == sent_dataset)
    }
}

impl Datasets {
    /// Receives a package whose outer BEGIN was read.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn receive_package<R: Read + Send>(
        &self,
        reader: &mut Reader<R>,
        target: &str,
        begin: &Begin,
        payload: &[u8],
        options: &ReceiveOptions,
        observer: &Observer<'_>,
        received: &mut Received,
    ) -> Result<(), ReceiveError> {
        // A package made only with `-I` has an empty list.
        let contents = match payload {
            [] => NvList::new(),
            packed => NvList::unpack(packed)
                .map_err(|error| ReceiveError::Package { why: format!("its table of contents: {error}") })?,
        };
        let package = Package::parse(begin, &contents)?;
        let top = Destination::resolve(target, begin, options.naming).map(|top| top.dataset)?;
        if let Some(snapshot) = Name::parse(target).map_err(DatasetError::from)?.snapshot()
            && (package.recursive || package.members.len() > 1)
        {
            return Err(ReceiveError::Package {
                why: format!("it holds more than one snapshot, which cannot all be called '{snapshot}'"),
            });
        }
        if options.naming != Naming::Exact && !options.dry_run {
            let change = self.change()?;
            change.create_parents(&top)?;
            change.commit()?;
        }
        if package.recursive && package.from_snapshot.is_some() && !options.dry_run {
            if options.confinement.only_adds {
                return Err(ReceiveError::Package {
                    why: "it renames and destroys what the sender renamed and destroyed, which is not allowed here"
                        .to_owned(),
                });
            }
            self.follow_sender(&package, &top, options.force, observer)?;
        }
        // If the package may only add datasets, the keys of existing ones stay unchanged.
        let settled = match options.confinement.only_adds {
            true => self.ids_below(&top)?,
            false => BTreeSet::new(),
        };
        let mut data = Vec::new();
        while let Some(at) = reader.next(&mut data)? {
            match at.record.clone() {
                Record::Begin(inner) if inner.header_type == HeaderType::Substream => {
                    let incoming = Incoming { begin: inner, payload: std::mem::take(&mut data), at };
                    self.receive_member(
                        reader, &package, &top, target, incoming, options, observer, received,
                    )?;
                }
                Record::End(_) => {}
                other => {
                    return Err(ReceiveError::Package {
                        why: format!("{} between two snapshots", other.kind_name()),
                    });
                }
            }
        }
        if !options.dry_run {
            self.fix_encryption_roots(&package, &top, &settled)?;
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn receive_member<R: Read + Send>(
        &self,
        reader: &mut Reader<R>,
        package: &Package<'_>,
        top: &str,
        target: &str,
        incoming: Incoming,
        options: &ReceiveOptions,
        observer: &Observer<'_>,
        received: &mut Received,
    ) -> Result<(), ReceiveError> {
        let sent = incoming.begin.to_name.to_string();
        let (sent_dataset, sent_snapshot) = sent.split_once('@').ok_or_else(|| ReceiveError::Package {
            why: format!("it names '{sent}', which is no snapshot"),
        })?;
        let below = package.below(sent_dataset).ok_or_else(|| ReceiveError::Package {
            why: format!("'{sent}' is not below '{}'", package.top),
        })?;
        let given = Name::parse(target).map_err(DatasetError::from)?;
        let destination = Destination {
            dataset: format!("{top}{below}"),
            snapshot: given.snapshot().unwrap_or(sent_snapshot).to_owned(),
            make_parents: false,
        };
        let full = Name::parse(&destination.full()).map_err(DatasetError::from)?;
        let guid = incoming.begin.to_guid;
        if let Ok(existing) = self.catalog().snapshot(&full)
            && existing.record.guid == guid
        {
            (observer.event)(ReceiveEvent::Skipped { target: full.to_string() });
            return skip_to_end(reader, observer);
        }
        let mut options = ReceiveOptions { origin: None, ..options.clone() };
        if !below.is_empty() {
            options.leave_to_top();
        }
        self.receive_substream(reader, incoming, destination, &options, observer, received)?;
        if options.dry_run {
            return Ok(());
        }
        match package.member(sent_dataset) {
            Some(member) => self.take_member_records(member, sent_snapshot, &full, &options, observer),
            None => Ok(()),
        }
    }

    /// Applies the properties and holds in a package to a snapshot and its dataset.
    fn take_member_records(
        &self,
        member: &Member<'_>,
        sent_snapshot: &str,
        full: &Name,
        options: &ReceiveOptions,
        observer: &Observer<'_>,
    ) -> Result<(), ReceiveError> {
        let change = self.change()?;
        let catalog = change.catalog();
        let snapshot = catalog.snapshot(full)?;
        if let Some(properties) = member.properties {
            let mut taken = stream_properties(properties, options, observer);
            let id = snapshot.id.dataset;
            let dataset = catalog.dataset_by_id(id)?;
            leave_out_limits(&catalog, &dataset, &mut taken, observer)?;
            leave_out_disabled(&catalog, &dataset, &mut taken, observer)?;
            // The first snapshot creates the dataset. Later ones do not change properties that are fixed at creation.
            let is_made = catalog.snapshots(&dataset).nth(1).is_some();
            let stays = |name: &str| is_made && property::is_made_with(name);
            taken.retain(|(name, _)| !stays(name));
            for old in catalog.stored_properties(id, 0)? {
                let is_gone = options.confinement.takes(&old.name)
                    && !stays(&old.name)
                    && !taken.iter().any(|(name, _)| *name == old.name);
                if old.kind == PropertyKind::Received && is_gone {
                    change.delete(&crate::catalog::keys::property(id, 0, old.kind.code(), &old.name))?;
                }
            }
            for (name, value) in taken {
                change.set_property(id, 0, PropertyKind::Received, &name, &value)?;
            }
        }
        if let Some(properties) = member.snapshot_properties.and_then(|all| all.get_list(sent_snapshot)) {
            for (name, value) in stream_properties(properties, options, observer) {
                let id = snapshot.id;
                change.set_property(id.dataset, id.txg, PropertyKind::Received, &name, &value)?;
            }
        }
        if let Some(holds) = member.snapshot_holds.and_then(|all| all.get_list(sent_snapshot))
            && !options.skip_holds
        {
            for (tag, when) in holds.iter() {
                let when = if let NvValue::Uint64(when) = when { *when } else { 0 };
                change.put_hold(&snapshot, tag, when)?;
            }
        }
        change.commit()?;
        Ok(())
    }

    /// Repeats what the sender did since the package's base: renames, and with `-F` destroys
    /// (`recv_incremental_replication`).
    fn follow_sender(
        &self,
        package: &Package<'_>,
        top: &str,
        force: bool,
        observer: &Observer<'_>,
    ) -> Result<(), ReceiveError> {
        if self.catalog().dataset(top).is_err() {
            return Ok(());
        }
        let mut local = self.everything_below(top)?;
        let mut gone = Vec::new();
        if force {
            self.follow_promotions(package, &local, observer)?;
            local = self.everything_below(top)?;
            gone = missing_at_sender(package, top, &local);
            self.destroy_missing(package, &local, &gone, observer)?;
        }
        self.follow_renames(package, top, &local, |snapshots| package.matching(snapshots), observer)?;
        // Datasets that could not be destroyed because of a descendant, which may have been moved since.
        let catalog = self.catalog();
        gone.retain(|dataset| catalog.dataset_by_id(dataset.id).is_ok());
        self.destroy_all(&catalog, &removable(&catalog, &gone)?, Vec::new(), observer)
    }

    /// A dataset and its descendants, with their snapshots.
    fn everything_below(&self, top: &str) -> Result<Vec<(Dataset, Vec<Snapshot>)>, ReceiveError> {
        let catalog = self.catalog();
        let mut all = Vec::new();
        for dataset in catalog.descendants(catalog.dataset(top)?)? {
            let snapshots = catalog.snapshots(&dataset).collect::<Result<Vec<_>, _>>()?;
            all.push((dataset, snapshots));
        }
        Ok(all)
    }

    /// Promotes clones that are not clones at the sender any more, or have another origin there.
    fn follow_promotions(
        &self,
        package: &Package<'_>,
        local: &[(Dataset, Vec<Snapshot>)],
        observer: &Observer<'_>,
    ) -> Result<(), ReceiveError> {
        for (dataset, snapshots) in local {
            let catalog = self.catalog();
            let (Some(member), Ok(now)) = (package.matching(snapshots), catalog.dataset_by_id(dataset.id))
            else {
                continue;
            };
            let Some(origin) = now.record.origin else { continue };
            let origin = catalog.snapshot_by_id(origin)?;
            let has_moved = member.snapshots.values().any(|guid| *guid == origin.record.guid);
            if member.origin != origin.record.guid && has_moved {
                (observer.event)(ReceiveEvent::Note(format!("promoting {}", now.name)));
                self.promote(&now.name)?;
            }
        }
        Ok(())
    }

    /// Destroys what the sender no longer has: datasets without remaining descendants, and snapshots. All of it or
    /// nothing.
    fn destroy_missing(
        &self,
        package: &Package<'_>,
        local: &[(Dataset, Vec<Snapshot>)],
        gone: &[Dataset],
        observer: &Observer<'_>,
    ) -> Result<(), ReceiveError> {
        let catalog = self.catalog();
        let stays = |dataset: &Dataset| !gone.iter().any(|gone| gone.id == dataset.id);
        let mut snapshots = Vec::new();
        for (dataset, _) in local.iter().filter(|(dataset, _)| stays(dataset)) {
            let now = catalog.snapshots(dataset).collect::<Result<Vec<_>, _>>()?;
            let Some(member) = package.matching(&now) else { continue };
            let has =
                |snapshot: &Snapshot| member.snapshots.values().any(|guid| *guid == snapshot.record.guid);
            snapshots.extend(now.into_iter().filter(|snapshot| !has(snapshot)));
        }
        self.destroy_all(&catalog, &removable(&catalog, gone)?, snapshots, observer)
    }

    fn destroy_all(
        &self,
        catalog: &Catalog,
        datasets: &[Dataset],
        snapshots: Vec<Snapshot>,
        observer: &Observer<'_>,
    ) -> Result<(), ReceiveError> {
        if datasets.is_empty() && snapshots.is_empty() {
            return Ok(());
        }
        let names =
            snapshots.iter().map(Snapshot::full_name).chain(datasets.iter().map(|it| it.name.clone()));
        let names: Vec<_> = names.collect();
        let plan = DestroyPlan::together(catalog, datasets, snapshots)?;
        for name in names {
            (observer.event)(ReceiveEvent::Note(format!("destroying {name}")));
        }
        (observer.event)(ReceiveEvent::Destroying { datasets: plan.datasets.clone() });
        Ok(self.destroy(&plan)?)
    }

    fn follow_renames<'p>(
        &self,
        package: &'p Package<'p>,
        top: &str,
        local: &[(Dataset, Vec<Snapshot>)],
        matching: impl Fn(&[Snapshot]) -> Option<&'p Member<'p>>,
        observer: &Observer<'_>,
    ) -> Result<(), ReceiveError> {
        for (dataset, snapshots) in local {
            // An earlier rename or destroy may have included this one.
            let Ok(now) = self.catalog().dataset_by_id(dataset.id) else { continue };
            let Some(member) = matching(snapshots) else { continue };
            for snapshot in snapshots {
                let sent = member.snapshots.iter().find(|(_, guid)| **guid == snapshot.record.guid);
                if let Some((name, _)) = sent
                    && *name != snapshot.record.name
                {
                    let from = Name::parse(&format!("{}@{}", now.name, snapshot.record.name))
                        .map_err(DatasetError::from)?;
                    let to = Name::parse(&format!("{}@{name}", now.name)).map_err(DatasetError::from)?;
                    self.rename(&from, &to, RenameOptions::default())?;
                }
            }
            let Some(below) = package.below(member.name) else { continue };
            let wanted = format!("{top}{below}");
            if now.name == wanted || now.name == top || member.parent_from == 0 {
                continue;
            }
            (observer.event)(ReceiveEvent::Note(format!("renaming {} to {wanted}", now.name)));
            let from = Name::parse(&now.name).map_err(DatasetError::from)?;
            let to = Name::parse(&wanted).map_err(DatasetError::from)?;
            self.rename(&from, &to, RenameOptions::default())?;
        }
        Ok(())
    }
}

/// The datasets without remaining descendants.
fn removable(catalog: &Catalog, gone: &[Dataset]) -> Result<Vec<Dataset>, ReceiveError> {
    let stays = |dataset: &Dataset| !gone.iter().any(|gone| gone.id == dataset.id);
    let mut removable = Vec::new();
    for dataset in gone {
        if !catalog.descendants(dataset.clone())?.iter().any(stays) {
            removable.push(dataset.clone());
        }
    }
    Ok(removable)
}

/// The local datasets that the sender no longer has, and their descendants that were never replicated.
fn missing_at_sender(package: &Package<'_>, top: &str, local: &[(Dataset, Vec<Snapshot>)]) -> Vec<Dataset> {
    let mut gone: Vec<Dataset> = Vec::new();
    // Parents come first.
    for (dataset, snapshots) in local {
        let is_below = |above: &Dataset| dataset.name.starts_with(&format!("{}/", above.name));
        let is_gone = match snapshots.is_empty() {
            true => gone.iter().any(is_below),
            false => dataset.name != top && package.matching(snapshots).is_none(),
        };
        if is_gone {
            gone.push(dataset.clone());
        }
    }
    gone
}

impl Datasets {
    /// The ids of a dataset and its descendants, if they exist.
    fn ids_below(&self, top: &str) -> Result<BTreeSet<DatasetId>, ReceiveError> {
        let catalog = self.catalog();
        let Ok(dataset) = catalog.dataset(top) else { return Ok(BTreeSet::new()) };
        Ok(catalog.descendants(dataset)?.iter().map(|dataset| dataset.id).collect())
    }

    /// Makes keys inherited as at the sender (`recv_fix_encryption_hierarchy`), because each stream alone creates an
    /// encryption root. The `settled` datasets do not change.
    fn fix_encryption_roots(
        &self,
        package: &Package<'_>,
        top: &str,
        settled: &BTreeSet<DatasetId>,
    ) -> Result<(), ReceiveError> {
        let catalog = self.catalog();
        let Ok(dataset) = catalog.dataset(top) else { return Ok(()) };
        let local = if package.recursive { catalog.descendants(dataset)? } else { vec![dataset] };
        let encrypted = |dataset: &Dataset| dataset.record.content.features.contains(Features::RAW);
        let change = self.change()?;
        // Parents come before children, so their encryption roots are final by then.
        for dataset in local.iter().filter(|dataset| encrypted(dataset) && !settled.contains(&dataset.id)) {
            let snapshots = catalog.snapshots(dataset).collect::<Result<Vec<_>, _>>()?;
            let Some(member) = package.matching(&snapshots) else { continue };
            let now = change.catalog();
            let is_root = now.encryption_root(dataset.id)? == dataset.id;
            if member.is_encryption_root && !is_root && dataset.record.origin.is_none() {
                change.split_encryption_root(&local, dataset)?;
            } else if !member.is_encryption_root && is_root && dataset.name != top {
                let parent = now.dataset_by_id(dataset.record.parent)?;
                // If the parent is not encrypted (its stream was left out), the dataset keeps its own key.
                if encrypted(&parent) {
                    change.set_encryption_root(dataset.id, now.encryption_root(parent.id)?)?;
                }
            }
        }
        change.commit()?;
        Ok(())
    }
}

impl Change<'_> {
    /// Makes a dataset an encryption root, also for its descendants that had the same root as it.
    fn split_encryption_root(&self, all: &[Dataset], dataset: &Dataset) -> Result<(), ReceiveError> {
        let catalog = self.catalog();
        let old = catalog.encryption_root(dataset.id)?;
        let inside = format!("{}/", dataset.name);
        for below in all.iter().filter(|below| below.name.starts_with(&inside)) {
            if catalog.encryption_root(below.id)? == old {
                self.set_encryption_root(below.id, dataset.id)?;
            }
        }
        self.set_encryption_root(dataset.id, dataset.id)?;
        Ok(())
    }
}

/// Removes quotas and reservations that `set` would refuse for the dataset, with a note.
fn leave_out_limits(
    catalog: &Catalog,
    dataset: &Dataset,
    taken: &mut Vec<(String, String)>,
    observer: &Observer<'_>,
) -> Result<(), DatasetError> {
    let mut limits = catalog.limits_of(dataset.id)?;
    let mut refused = Vec::new();
    for (name, value) in taken.iter() {
        let mut altered = limits;
        // A local value has priority over a received one.
        let is_set = catalog.stored_property(dataset.id, 0, PropertyKind::Local, name)?.is_some();
        if is_set || !altered.set(name, value) {
            continue;
        }
        match SpaceReader::new(catalog).check_settings(dataset, altered) {
            Ok(()) => limits = altered,
            Err(error @ (DatasetError::BelowUse { .. } | DatasetError::BeyondSpace { .. })) => {
                (observer.event)(ReceiveEvent::Note(format!("property {name} is not taken: {error}")));
                refused.push(name.clone());
            }
            Err(other) => return Err(other),
        }
    }
    taken.retain(|(name, _)| !refused.contains(name));
    Ok(())
}

/// Leaves out properties that need a feature which is disabled in the pool, with a note.
fn leave_out_disabled(
    catalog: &Catalog,
    dataset: &Dataset,
    taken: &mut Vec<(String, String)>,
    observer: &Observer<'_>,
) -> Result<(), DatasetError> {
    let mut kept = Vec::new();
    for pair in std::mem::take(taken) {
        match catalog.require_features_of(&dataset.name, std::slice::from_ref(&pair)) {
            Ok(()) => kept.push(pair),
            Err(error @ DatasetError::FeatureDisabled { .. }) => {
                (observer.event)(ReceiveEvent::Note(format!("property {} is not taken: {error}", pair.0)));
            }
            Err(other) => return Err(other),
        }
    }
    *taken = kept;
    Ok(())
}

/// The accepted properties of a stream, as canonical text. Properties that this build does not know are skipped with a
/// note, as an older ZFS does.
fn stream_properties(
    properties: &NvList,
    options: &ReceiveOptions,
    observer: &Observer<'_>,
) -> Vec<(String, String)> {
    let mut taken = Vec::new();
    for (name, value) in properties.iter() {
        let value = match value {
            NvValue::List(list) => list.get("value"),
            plain => Some(plain),
        };
        let value = match value {
            Some(NvValue::Uint64(number)) => property::Value::Number(*number),
            Some(NvValue::String(text)) => property::Value::Text(String::from_utf8_lossy(text).into_owned()),
            _ => continue,
        };
        // A statistic, which no sender should send.
        let is_statistic = property::find(name).is_some_and(|known| known.attribute == Attribute::ReadOnly);
        if is_statistic || options.exclude.iter().any(|excluded| excluded == name) {
            continue;
        }
        let is_too_many = options.confinement.properties.is_some() && taken.len() >= CONFINED_MAX;
        if is_too_many || !options.confinement.takes(name) {
            (observer.event)(ReceiveEvent::PropertyLeftOut { name: name.to_owned() });
            continue;
        }
        match property::Value::from_stream(name, value) {
            Ok(assignment) => {
                taken.push(assignment.to_stored());
            }
            Err(error) => {
                (observer.event)(ReceiveEvent::Note(format!("property {name} is not taken: {error}")))
            }
        }
    }
    taken
}
