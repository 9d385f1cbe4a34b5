//! Decides where a stream is received, and whether it may be.

use std::sync::Arc;

use snowmelt_pool::{Tree, View};
use snowmelt_stream::features::Features;
use snowmelt_stream::nvlist::NvList;
use snowmelt_stream::record::{Begin, BeginFlags};

use super::{Naming, ReceiveOptions, key_data};
use crate::catalog::record::ReceiveState;
use crate::catalog::{Catalog, Content, Dataset, DatasetId, Kind, Snapshot, SnapshotId, keys};
use crate::datasets::{Change, Datasets};
use crate::error::{DatasetError, ReceiveError};
use crate::name::Name;
use crate::objset::view::blocks_end;

/// Features of a stream that describe its snapshot's content, not how it was sent.
const CONTENT: Features = Features(
    Features::LARGE_BLOCKS.0
        | Features::LARGE_DNODE.0
        | Features::ZSTD.0
        | Features::RAW.0
        | Features::REDACTED.0
        | Features::LONGNAME.0
        | Features::LARGE_MICROZAP.0
        | Features::SA_SPILL.0,
);

/// The names that a stream will get here.
#[derive(Debug, Clone)]
pub(super) struct Destination {
    pub(super) dataset: String,
    pub(super) snapshot: String,
    /// Create missing parents (`-d`, `-e`, and inside packages).
    pub(super) make_parents: bool,
}

impl Destination {
    /// The names from the user's target and the stream.
    pub(super) fn resolve(target: &str, begin: &Begin, naming: Naming) -> Result<Self, ReceiveError> {
        let sent = begin.to_name.as_str().ok_or_else(|| ReceiveError::Package {
            why: format!("the stream names its snapshot {:?}, which is no name", begin.to_name),
        })?;
        let (sent_dataset, sent_snapshot) = sent.split_once('@').ok_or_else(|| ReceiveError::Package {
            why: format!("the stream names '{sent}', which is no snapshot"),
        })?;
        let given = Name::parse(target).map_err(DatasetError::from)?;
        if given.bookmark().is_some() {
            return Err(DatasetError::WrongType { name: target.to_owned() }.into());
        }
        if naming != Naming::Exact && given.snapshot().is_some() {
            return Err(DatasetError::refused(target, "-d and -e take a filesystem, not a snapshot").into());
        }
        let below = match naming {
            Naming::Exact => None,
            Naming::DiscardPool => sent_dataset.split_once('/').map(|(_, rest)| rest),
            Naming::LastComponent => sent_dataset.rsplit('/').next(),
        };
        let dataset = match below {
            Some(below) => format!("{}/{below}", given.dataset()),
            None => given.dataset().to_owned(),
        };
        let snapshot = given.snapshot().unwrap_or(sent_snapshot).to_owned();
        // Both parts are untrusted, so the full name must be checked.
        Name::parse(&format!("{dataset}@{snapshot}")).map_err(DatasetError::from)?;
        Ok(Self { dataset, snapshot, make_parents: naming != Naming::Exact })
    }

    pub(super) fn full(&self) -> String {
        format!("{}@{}", self.dataset, self.snapshot)
    }
}

/// A receive that may write.
pub(super) struct Session<'a> {
    pub(super) datasets: &'a Datasets,
    pub(super) id: DatasetId,
    pub(super) destination: Destination,
    pub(super) begin: Begin,
    pub(super) tree: Arc<Tree>,
    pub(super) base: Option<SnapshotId>,
    pub(super) state: ReceiveState,
    /// Whether the receive continues an earlier one.
    pub(super) resumed: bool,
    /// Full names of the snapshots that the same input contained before: a deduplicated stream may refer to them.
    pub(super) brought: Vec<String>,
    pub(super) kind: Kind,
    /// Guids of the snapshots that a redacted stream is redacted with respect to, as `zfs get -p redact_snaps` shows
    /// them.
    pub(super) redact_snaps: Option<String>,
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.datasets.end_receiving(self.id);
    }
}

impl Session<'_> {
    pub(super) fn is_raw(&self) -> bool {
        self.begin.features.contains(Features::RAW)
    }

    /// Whether SPILL records and the OBJECT flag say exactly which objects have spill blocks.
    pub(super) fn has_spill_flags(&self) -> bool {
        self.begin.flags.contains(BeginFlags::SPILL_BLOCK)
    }
}

/// The number of common components of two names, counted from the pool.
fn shared_components(a: &str, b: &str) -> usize {
    let b = b.split('@').next().unwrap_or(b);
    a.split('/').zip(b.split('/')).take_while(|(a, b)| a == b).count()
}

impl Datasets {
    /// Checks a stream against the pool, and creates the tree for it.
    pub(super) fn begin_session(
        &self,
        begin: &Begin,
        payload: &[u8],
        destination: Destination,
        options: &ReceiveOptions,
    ) -> Result<Session<'_>, ReceiveError> {
        let kind = Kind::from_objset_type(begin.objset_type).ok_or_else(|| ReceiveError::Unsupported {
            what: format!("object sets of type {} are not replicated", begin.objset_type),
        })?;
        let payload = match payload {
            [] => None,
            bytes => Some(
                NvList::unpack(bytes)
                    .map_err(|error| ReceiveError::Package { why: format!("BEGIN's payload: {error}") })?,
            ),
        };
        let change = self.change()?;
        let catalog = change.catalog();
        if Name::parse_dataset(&destination.dataset).map_err(DatasetError::from)?.pool()
            != catalog.pool_name()
        {
            return Err(DatasetError::NoPool { name: destination.dataset }.into());
        }
        catalog.require_features_of_stream(&destination.full(), begin.features, options.resumable)?;
        catalog.require_features_of(&destination.full(), &options.properties)?;
        let existing = match catalog.dataset(&destination.dataset) {
            Ok(dataset) => Some(dataset),
            Err(DatasetError::NotFound { .. }) => None,
            Err(other) => return Err(other.into()),
        };
        if let Some(dataset) = &existing {
            if !self.begin_receiving(dataset.id) {
                return Err(ReceiveError::Busy { name: dataset.name.clone() });
            }
            let session = change.begin_existing(dataset, begin, payload.as_ref(), destination, options, kind);
            return session.inspect_err(|_| self.end_receiving(dataset.id));
        }
        if begin.features.contains(Features::RESUMING) {
            return Err(ReceiveError::Resume { why: format!("'{}' does not exist", destination.dataset) });
        }
        let session = change.begin_new(begin, payload.as_ref(), destination, options, kind)?;
        Ok(session)
    }
}

impl<'a> Change<'a> {
    /// Begins a stream for a dataset that does not exist yet.
    fn begin_new(
        self,
        begin: &Begin,
        payload: Option<&NvList>,
        destination: Destination,
        options: &ReceiveOptions,
        kind: Kind,
    ) -> Result<Session<'a>, ReceiveError> {
        let origin = self.find_origin(begin, &destination, options)?;
        if begin.from_guid != 0 && origin.is_none() {
            return Err(ReceiveError::NoDestination { name: destination.dataset });
        }
        let raw_key = raw_key(begin, payload, &destination)?;
        if let Some(origin) = &origin {
            check_raw_lineage(&self.catalog(), begin, origin, &destination, raw_key.as_ref())?;
        }
        if destination.make_parents {
            self.create_parents(&destination.dataset)?;
        }
        let mut dataset =
            self.create_dataset(&destination.dataset, kind, origin.as_ref().map(|origin| origin.id))?;
        dataset.record.inconsistent = true;
        let content = content_of(begin, origin.as_ref().map(|origin| origin.record.content));
        dataset.record.content = content;
        self.put_dataset(dataset.id, &dataset.record)?;
        if let Some(origin) = &origin {
            self.reset_head(&dataset, origin)?;
            if content.features.contains(Features::RAW) {
                self.set_encryption_root(dataset.id, self.catalog().encryption_root(origin.id.dataset)?)?;
            }
        }
        let tree = self.pool().tree(dataset.record.head)?;
        let state =
            new_state(begin, tree.id(), origin.as_ref().map(|origin| origin.id), content, options, raw_key);
        self.put(&keys::receive(dataset.id), &state.encode())?;
        self.datasets.begin_receiving(dataset.id);
        Ok(Session {
            datasets: self.datasets,
            id: dataset.id,
            destination,
            begin: begin.clone(),
            tree,
            base: state.base,
            state,
            resumed: false,
            brought: Vec::new(),
            kind,
            redact_snaps: redact_snaps(payload),
        })
    }

    /// Begins a stream for an existing dataset.
    fn begin_existing(
        self,
        dataset: &Dataset,
        begin: &Begin,
        payload: Option<&NvList>,
        destination: Destination,
        options: &ReceiveOptions,
        kind: Kind,
    ) -> Result<Session<'a>, ReceiveError> {
        let catalog = self.catalog();
        if begin.features.contains(Features::RESUMING) {
            return self.resume_session(dataset, begin, payload, destination, options, kind);
        }
        if catalog.receive_state(dataset.id)?.is_some() {
            return Err(ReceiveError::PartialState { name: dataset.name.clone() });
        }
        catalog.check_snapshot_is_new(&destination.full())?;
        if dataset.record.kind != kind && begin.from_guid != 0 {
            return Err(DatasetError::WrongType { name: dataset.name.clone() }.into());
        }
        let base = if begin.from_guid == 0 {
            self.check_full_over(dataset, options)?;
            None
        } else {
            Some(self.find_base(dataset, begin, options)?)
        };
        let raw_key = raw_key(begin, payload, &destination)?;
        if let Some(base) = &base {
            check_raw_lineage(&catalog, begin, base, &destination, raw_key.as_ref())?;
        }
        let content = content_of(begin, base.as_ref().map(|base| base.record.content));
        let tree = self.pool().create_tree(&self.hold)?;
        if let Some(base) = &base {
            tree.reset(&self.hold, base.record.root.clone(), base.record.stats)?;
            let deadlist = self.pool().create_tree(&self.hold)?.id();
            tree.set_sharing(&self.hold, base.id.txg, Some(deadlist))?;
        }
        let state = new_state(begin, tree.id(), base.as_ref().map(|base| base.id), content, options, raw_key);
        self.put(&keys::receive(dataset.id), &state.encode())?;
        Ok(Session {
            datasets: self.datasets,
            id: dataset.id,
            destination,
            begin: begin.clone(),
            tree,
            base: state.base,
            state,
            resumed: false,
            brought: Vec::new(),
            kind,
            redact_snaps: redact_snaps(payload),
        })
    }

    /// Checks a full stream for an existing dataset: it may replace the dataset only with force, and only if that has
    /// no snapshots.
    fn check_full_over(&self, dataset: &Dataset, options: &ReceiveOptions) -> Result<(), ReceiveError> {
        if !options.force {
            return Err(ReceiveError::DestinationExists { name: dataset.name.clone() });
        }
        if let Some(snapshot) = self.catalog().newest_snapshot(dataset)? {
            return Err(ReceiveError::DestinationHasSnapshots { snapshot: snapshot.full_name() });
        }
        Ok(())
    }

    /// The base of an incremental stream: the dataset's snapshot with its guid, or a later one with the same content.
    fn find_base(
        &self,
        dataset: &Dataset,
        begin: &Begin,
        options: &ReceiveOptions,
    ) -> Result<Snapshot, ReceiveError> {
        let catalog = self.catalog();
        let newest = catalog.newest_snapshot(dataset)?;
        let base = catalog
            .snapshots_by_guid(begin.from_guid)?
            .into_iter()
            .find(|snapshot| snapshot.id.dataset == dataset.id)
            .ok_or_else(|| ReceiveError::NotNewest { name: dataset.name.clone() })?;
        if !options.force {
            // Later snapshots with the same content are allowed: the stream then continues from the newest of them
            // (`dsl_dataset_modified_since_snap` in module/zfs/dsl_dataset.c).
            let newest = newest.filter(|newest| newest.id != base.id);
            if let Some(newest) = &newest {
                let (old, new) = (catalog.objset(&base), catalog.objset(newest));
                if View::diff(old.view(), new.view(), &[]).next().transpose()?.is_some() {
                    return Err(ReceiveError::NotNewest { name: dataset.name.clone() });
                }
            }
            let base = newest.unwrap_or(base);
            check_unmodified(&catalog, dataset, &base)?;
            return Ok(base);
        }
        for newer in catalog.snapshots_after(dataset, base.id.txg) {
            let newer = newer?;
            if !catalog.holds(newer.id)?.is_empty() {
                return Err(DatasetError::Held { name: newer.full_name() }.into());
            }
            if let Some(clone) = catalog.clones(newer.id)?.first() {
                let clones = vec![clone.name.clone()];
                return Err(DatasetError::HasClones { name: newer.full_name(), clones }.into());
            }
        }
        Ok(base)
    }

    /// The origin for an incremental stream that creates a dataset.
    fn find_origin(
        &self,
        begin: &Begin,
        destination: &Destination,
        options: &ReceiveOptions,
    ) -> Result<Option<Snapshot>, ReceiveError> {
        let catalog = self.catalog();
        let within = options.confinement.within.as_ref();
        if let Some(origin) = &options.origin {
            let origin = Name::parse(origin).map_err(DatasetError::from)?;
            if within.is_some_and(|subtree| !subtree.contains(origin.dataset())) {
                return Err(DatasetError::NotFound { name: origin.to_string() }.into());
            }
            let origin = catalog.snapshot(&origin)?;
            if begin.from_guid != 0 && origin.record.guid != begin.from_guid {
                return Err(ReceiveError::NoOrigin { name: destination.full(), guid: begin.from_guid });
            }
            return Ok(Some(origin));
        }
        if begin.from_guid == 0 {
            return Ok(None);
        }
        // If there are several copies of the origin, the one nearest to the clone is used. A package that is received
        // beside its source contains its own copy, as with ZFS.
        let full = destination.full();
        let distance = |found: &Snapshot| std::cmp::Reverse(shared_components(&found.dataset, &full));
        let found = catalog.snapshots_by_guid_in(within, begin.from_guid)?.into_iter().min_by_key(distance);
        if found.is_none() && begin.flags.contains(BeginFlags::CLONE) {
            return Err(ReceiveError::NoOrigin { name: destination.full(), guid: begin.from_guid });
        }
        Ok(found.filter(|_| begin.flags.contains(BeginFlags::CLONE)))
    }

    /// Continues an earlier receive. The sender may be another one, so everything is checked again.
    fn resume_session(
        self,
        dataset: &Dataset,
        begin: &Begin,
        payload: Option<&NvList>,
        destination: Destination,
        options: &ReceiveOptions,
        kind: Kind,
    ) -> Result<Session<'a>, ReceiveError> {
        let refuse = |why: String| Err(ReceiveError::Resume { why });
        let Some(mut state) = self.catalog().receive_state(dataset.id)? else {
            return refuse(format!("'{}' has no partially received state", dataset.name));
        };
        let number = |key: &str| payload.and_then(|payload| payload.get_u64(key));
        let (Some(object), Some(offset)) = (number("resume_object"), number("resume_offset")) else {
            return refuse("it does not say where it starts".to_owned());
        };
        if (begin.to_guid, begin.from_guid) != (state.to_guid, state.from_guid) {
            return refuse(format!(
                "it is another snapshot's (guid {:#x}, not {:#x})",
                begin.to_guid, state.to_guid
            ));
        }
        if (object, offset) != (state.object, state.offset) {
            return refuse(format!(
                "it starts at object {object} offset {offset}, and what is here ends at object {} offset {}",
                state.object, state.offset
            ));
        }
        let how = Features::RESUMING.union(Features::SA_SPILL);
        if begin.features.difference(how) != state.features.difference(how) {
            return refuse(format!(
                "it was sent with other options ({} instead of {})",
                begin.features, state.features
            ));
        }
        self.catalog().check_snapshot_is_new(&destination.full())?;
        let replaces_all = state.base.is_none() && !dataset.record.inconsistent;
        if replaces_all {
            self.check_full_over(dataset, options)?;
        } else if dataset.record.kind != kind {
            return Err(DatasetError::WrongType { name: dataset.name.clone() }.into());
        }
        state.resumable = true;
        let tree = self.pool().tree(state.tree)?;
        self.put(&keys::receive(dataset.id), &state.encode())?;
        Ok(Session {
            datasets: self.datasets,
            id: dataset.id,
            destination,
            begin: begin.clone(),
            tree,
            base: state.base,
            state,
            resumed: true,
            brought: Vec::new(),
            kind,
            redact_snaps: redact_snaps(payload),
        })
    }
}

fn new_state(
    begin: &Begin,
    tree: snowmelt_pool::TreeId,
    base: Option<SnapshotId>,
    content: Content,
    options: &ReceiveOptions,
    raw_key: Option<Vec<u8>>,
) -> ReceiveState {
    ReceiveState {
        resumable: options.resumable,
        tree,
        base,
        to_guid: begin.to_guid,
        from_guid: begin.from_guid,
        to_name: begin.to_name.to_string(),
        features: begin.features,
        object: 0,
        offset: 0,
        bytes: 0,
        content,
        key_data: raw_key.unwrap_or_default(),
    }
}

fn content_of(begin: &Begin, base: Option<Content>) -> Content {
    let own = Features(begin.features.0 & CONTENT.0);
    let inherited = base.map_or(Features::NONE, |base| base.features.difference(Features::REDACTED));
    Content { features: own.union(inherited), case_insensitive: begin.flags.contains(BeginFlags::CI_DATA) }
}

/// The snapshots that a redacted stream names (`BEGINNV_REDACT_SNAPS`).
fn redact_snaps(payload: Option<&NvList>) -> Option<String> {
    let guids = payload?.get_u64_array("redact_snaps")?;
    let guids: Vec<String> = guids.iter().map(u64::to_string).collect();
    Some(guids.join(","))
}

/// The key data of a raw stream, which is required.
fn raw_key(
    begin: &Begin,
    payload: Option<&NvList>,
    destination: &Destination,
) -> Result<Option<Vec<u8>>, ReceiveError> {
    if !begin.features.contains(Features::RAW) {
        return Ok(None);
    }
    key_data::extract(payload)
        .map(Some)
        .map_err(|why| ReceiveError::Raw { name: destination.full(), why: why.to_owned() })
}

/// Checks that a raw stream follows a raw one, and a plain stream a plain one. A raw incremental stream must start from
/// exactly the blocks of the base (its IV set); otherwise nothing after it could ever be decrypted.
fn check_raw_lineage(
    catalog: &crate::catalog::Catalog,
    begin: &Begin,
    base: &Snapshot,
    destination: &Destination,
    raw_key: Option<&Vec<u8>>,
) -> Result<(), ReceiveError> {
    let base_is_raw = base.record.content.features.contains(Features::RAW);
    let refuse = |why: String| Err(ReceiveError::Raw { name: destination.full(), why });
    match (base_is_raw, raw_key) {
        (false, None) => Ok(()),
        (true, None) => refuse(format!("{} is raw encrypted, this stream is not", base.full_name())),
        (false, Some(_)) => refuse(format!("{} is not raw encrypted, this stream is", base.full_name())),
        (true, Some(key)) => {
            let have = catalog.key_data(base.id.dataset, base.id.txg)?;
            let have = have.and_then(|packed| key_data::ivset_guid(&packed)).unwrap_or(0);
            let want = key_data::from_ivset_guid(key).unwrap_or(0);
            if have != 0 && want != 0 && have != want {
                return refuse(format!(
                    "IV set guid mismatch: the stream starts from {want:#x}, {} is {have:#x}. The base was rewritten \
                     here or there; receive a full stream into a new dataset",
                    base.full_name()
                ));
            }
            let _ = begin;
            Ok(())
        }
    }
}

impl Catalog {
    /// Checks that the snapshot does not exist: a receive never replaces a snapshot.
    pub(super) fn check_snapshot_is_new(&self, full: &str) -> Result<(), ReceiveError> {
        match self.snapshot(&Name::parse(full).map_err(DatasetError::from)?) {
            Err(DatasetError::NotFound { .. }) => Ok(()),
            Err(other) => Err(other.into()),
            Ok(_) => Err(ReceiveError::SnapshotExists { name: full.to_owned() }),
        }
    }
}

/// The first key after all data of an object.
pub(super) fn data_end(object: u64) -> Vec<u8> {
    blocks_end(object)
}

/// Checks that a head does not differ from its snapshot `base`: otherwise changes would be overwritten.
pub(crate) fn check_unmodified(
    catalog: &Catalog,
    dataset: &Dataset,
    base: &Snapshot,
) -> Result<(), ReceiveError> {
    let (head, old) = (catalog.head(dataset)?, catalog.objset(base));
    match View::diff(old.view(), head.view(), &[]).next().transpose()? {
        Some(_) => Err(ReceiveError::Modified { name: dataset.name.clone() }),
        None => Ok(()),
    }
}
