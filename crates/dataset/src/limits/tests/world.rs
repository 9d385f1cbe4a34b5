//! A pool with random operations of all kinds that change the used space.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use snowmelt_pool::{NewPool, Pool, PoolOptions};
use snowmelt_store::MemoryStore;
use snowmelt_zpl::{DMU_OT_PLAIN_FILE_CONTENTS, NewObject, Objects, ObjectsMut, Room};

use crate::catalog::{Dataset, Snapshot};
use crate::datasets::Datasets;
use crate::error::{DatasetError, ReceiveError};
use crate::head::Head;
use crate::name::Name;
use crate::ops::clone::CloneOptions;
use crate::ops::create::CreateOptions;
use crate::ops::destroy::DestroyPlan;
use crate::ops::rename::RenameOptions;
use crate::ops::rollback::RollbackOptions;
use crate::receive::{Observer, ReceiveOptions};
use crate::send::{SendFlags, SendPlan, Source};
use crate::simulation::system_attributes;
use crate::{CheckOptions, CleanOptions, Staging};

const DATASETS: usize = 8;
const SNAPSHOTS: usize = 6;
const OBJECTS: u64 = 12;

pub(super) struct World {
    store: MemoryStore,
    pub(super) datasets: Arc<Datasets>,
    random: u64,
    names: u64,
}

fn options() -> PoolOptions {
    PoolOptions { node_bytes: 1 << 10, segment_bytes: 64 << 10, ..PoolOptions::default() }
}

/// Operations may be refused because of the current state, but must not fail because something is broken.
fn allowed<T>(outcome: Result<T, DatasetError>) -> bool {
    match outcome {
        Ok(_) => true,
        Err(DatasetError::Pool(_) | DatasetError::Corrupt { .. } | DatasetError::Encrypted { .. }) => {
            panic!("{:?}", outcome.err())
        }
        Err(_) => false,
    }
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let store = MemoryStore::new();
        let new = NewPool { name: "tank", guid: 1 };
        let pool = Pool::create(Box::new(store.clone()), &new, options()).unwrap();
        let datasets = Datasets::create(pool).unwrap();
        // A quota, so that the table of limits is used for everything.
        let quota = vec![("quota".to_owned(), (1u64 << 50).to_string())];
        datasets.set_properties(&Name::parse("tank").unwrap(), &quota).unwrap();
        Self { store, datasets, random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), names: 0 }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound.max(1)
    }

    fn name(&mut self, prefix: &str) -> String {
        self.names += 1;
        format!("{prefix}{}", self.names)
    }

    fn all(&self) -> Vec<Dataset> {
        let catalog = self.datasets.catalog();
        catalog.descendants(catalog.root().unwrap()).unwrap()
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        let at = self.below(from.len() as u64);
        from.get(usize::try_from(at).unwrap()).cloned()
    }

    fn dataset(&mut self) -> Dataset {
        let all = self.all();
        self.pick(&all).unwrap()
    }

    fn snapshots(&self, dataset: &Dataset) -> Vec<Snapshot> {
        self.datasets.catalog().snapshots(dataset).map(Result::unwrap).collect()
    }

    fn snapshot(&mut self) -> Option<Snapshot> {
        let all: Vec<Snapshot> = self.all().iter().flat_map(|dataset| self.snapshots(dataset)).collect();
        self.pick(&all)
    }

    /// Runs one random operation, and returns its description.
    pub(super) fn step(&mut self) -> String {
        match self.below(100) {
            0..45 => self.write(),
            45..60 => self.take_snapshot(),
            60..63 => self.create(),
            63..67 => self.clone_one(),
            67..70 => self.promote(),
            70..74 => self.rollback(),
            74..84 => self.destroy_snapshots(),
            84..86 => self.destroy_dataset(),
            86..89 => self.rename(),
            89..93 => self.replicate(),
            93..95 => self.stage(),
            95..97 => self.limit(),
            97 => {
                let report = self.datasets.clean(&CleanOptions::default()).unwrap();
                format!("clean: {report:?}")
            }
            98 => {
                self.datasets.pool().commit().unwrap();
                "commit".to_owned()
            }
            _ => self.reopen(),
        }
    }

    fn write(&mut self) -> String {
        let dataset = self.dataset();
        let Ok(head) = self.datasets.open_head(&dataset) else {
            assert!(dataset.record.inconsistent);
            return format!("{}: half received", dataset.name);
        };
        let what = self.change_content(&head);
        format!("{}: {what}", dataset.name)
    }

    fn change_content(&mut self, head: &Head) -> String {
        // Above the objects of a new filesystem.
        let object = 1000 + self.below(OBJECTS);
        let there = Objects::dnode(head, object).unwrap().is_some();
        let how = self.below(8);
        if !there {
            let block_size = [512, 1024, 4096][usize::try_from(self.below(3)).unwrap()];
            let tx = head.begin(Room::Write(4096)).unwrap();
            let new = NewObject {
                object_type: DMU_OT_PLAIN_FILE_CONTENTS,
                bonus_type: 44,
                block_size,
                slots: 1,
                bonus: system_attributes(8, 0),
            };
            head.create_at(&tx, object, new).unwrap();
            return format!("create {object}");
        }
        let (offset, len) = (self.below(20_000), 1 + self.below(6000));
        match how {
            0 => {
                let tx = head.begin(Room::Free).unwrap();
                head.destroy(&tx, object).unwrap();
                format!("destroy {object}")
            }
            1 | 2 => {
                let tx = head.begin(Room::Free).unwrap();
                let len = if how == 1 { u64::MAX } else { len };
                head.free(&tx, object, offset, len).unwrap();
                format!("free {object} at {offset}")
            }
            3 => {
                let tx = head.begin(Room::Write(4096)).unwrap();
                let spill = (self.below(2) == 0).then(|| system_attributes(1024, 7));
                head.set_spill(&tx, object, spill).unwrap();
                format!("spill of {object}")
            }
            _ => {
                let byte = self.below(256);
                let data: Vec<u8> = match self.below(3) {
                    // Such a block is embedded in its pointer.
                    0 => vec![u8::try_from(byte).unwrap(); usize::try_from(len).unwrap()],
                    _ => (0..len).map(|_| u8::try_from(self.below(256)).unwrap()).collect(),
                };
                let tx = head.begin(Room::Write(len + 8192)).unwrap();
                head.write(&tx, object, offset, &data).unwrap();
                format!("write {object} at {offset}, {len} bytes")
            }
        }
    }

    fn take_snapshot(&mut self) -> String {
        let (dataset, short) = (self.dataset(), self.name("s"));
        let mut targets = vec![dataset.clone()];
        if self.below(4) == 0 {
            targets = self.datasets.catalog().descendants(dataset).unwrap();
        }
        targets.retain(|dataset| self.snapshots(dataset).len() < SNAPSHOTS);
        let names: Vec<Name> =
            targets.iter().map(|to| Name::parse(&format!("{}@{short}", to.name)).unwrap()).collect();
        if !names.is_empty() {
            allowed(self.datasets.snapshot(&names, &[]));
        }
        format!("snapshot {names:?}")
    }

    fn create(&mut self) -> String {
        let (dataset, short) = (self.dataset(), self.name("d"));
        if self.all().len() >= DATASETS {
            return "create: there are enough".to_owned();
        }
        let name = format!("{}/{short}", dataset.name);
        allowed(self.datasets.create_filesystem(&name, &CreateOptions::default()));
        format!("create {name}")
    }

    fn clone_one(&mut self) -> String {
        let Some(snapshot) = self.snapshot() else { return "clone: nothing".to_owned() };
        if self.all().len() >= DATASETS {
            return "clone: there are enough".to_owned();
        }
        let (dataset, short) = (self.dataset(), self.name("c"));
        let name = format!("{}/{short}", dataset.name);
        let from = Name::parse(&snapshot.full_name()).unwrap();
        allowed(self.datasets.clone_snapshot(&from, &name, &CloneOptions::default()));
        format!("clone {from} {name}")
    }

    fn promote(&mut self) -> String {
        let clones: Vec<Dataset> = self.all().into_iter().filter(|it| it.record.origin.is_some()).collect();
        let Some(clone) = self.pick(&clones) else { return "promote: nothing".to_owned() };
        format!("promote {}: {}", clone.name, allowed(self.datasets.promote(&clone.name)))
    }

    fn rollback(&mut self) -> String {
        let Some(snapshot) = self.snapshot() else { return "rollback: nothing".to_owned() };
        let name = Name::parse(&snapshot.full_name()).unwrap();
        let options = RollbackOptions { newer: self.below(2) == 0, clones: false };
        format!("rollback {name} {options:?}: {}", allowed(self.datasets.rollback(&name, options)))
    }

    fn destroy_snapshots(&mut self) -> String {
        let Some(first) = self.snapshot() else { return "destroy: nothing".to_owned() };
        let catalog = self.datasets.catalog();
        let dataset = catalog.dataset_by_id(first.id.dataset).unwrap();
        let all = self.snapshots(&dataset);
        let going: Vec<Snapshot> = match self.below(3) {
            0 => all.into_iter().skip_while(|it| it.id != first.id).take(3).collect(),
            _ => vec![first],
        };
        let names: Vec<String> = going.iter().map(Snapshot::full_name).collect();
        let Ok(plan) = DestroyPlan::snapshots(&catalog, going, false) else {
            return format!("destroy {names:?}: refused");
        };
        self.datasets.pool().commit().unwrap();
        let before = catalog.dataset_space(&dataset).unwrap().used_by_snapshots;
        if allowed(self.datasets.destroy(&plan)) {
            let after = self.datasets.catalog().dataset_space(&dataset).unwrap().used_by_snapshots;
            assert!(after <= before, "destroying snapshots frees");
        }
        format!("destroy {names:?}")
    }

    fn destroy_dataset(&mut self) -> String {
        let dataset = self.dataset();
        if dataset.name == "tank" {
            return "destroy: not tank".to_owned();
        }
        let catalog = self.datasets.catalog();
        let Ok(plan) = DestroyPlan::dataset(&catalog, &dataset, true, self.below(3) == 0) else {
            return format!("destroy {}: refused", dataset.name);
        };
        format!("destroy {}: {}", dataset.name, allowed(self.datasets.destroy(&plan)))
    }

    fn rename(&mut self) -> String {
        let (dataset, above, short) = (self.dataset(), self.dataset(), self.name("r"));
        let (from, to) = (dataset.name, format!("{}/{short}", above.name));
        let renamed = self.datasets.rename(
            &Name::parse(&from).unwrap(),
            &Name::parse(&to).unwrap(),
            RenameOptions::default(),
        );
        format!("rename {from} {to}: {}", allowed(renamed))
    }

    /// Sends a snapshot, in full or from an earlier one, and receives it somewhere, possibly over an existing dataset.
    fn replicate(&mut self) -> String {
        let Some(to) = self.snapshot() else { return "send: nothing".to_owned() };
        let catalog = self.datasets.catalog();
        let all = self.snapshots(&catalog.dataset_by_id(to.id.dataset).unwrap());
        let earlier: Vec<Snapshot> = all.into_iter().filter(|it| it.id.txg < to.id.txg).collect();
        let from = if self.below(3) == 0 { None } else { self.pick(&earlier) };
        let source = from.clone().map_or(Source::None, Source::Snapshot);
        let plan = SendPlan::single(&catalog, &to, source, &SendFlags::default()).unwrap();
        let mut stream = Vec::new();
        plan.run(&mut stream, &|_| {}).unwrap();
        // An incremental stream can only be received where its base is: in a copy.
        let copies = from.as_ref().map_or(Vec::new(), |from| {
            let copies = catalog.snapshots_by_guid(from.record.guid).unwrap();
            copies.into_iter().filter(|copy| copy.id.dataset != to.id.dataset).collect()
        });
        let target = match self.pick(&copies) {
            Some(copy) => copy.dataset,
            None if self.all().len() < DATASETS => format!("{}/{}", self.dataset().name, self.name("v")),
            None => return "receive: there are enough".to_owned(),
        };
        if self.below(4) == 0 {
            // An interrupted stream.
            stream.truncate(stream.len() / 2);
        }
        let options =
            ReceiveOptions { force: true, resumable: self.below(3) == 0, ..ReceiveOptions::default() };
        let observer = Observer { event: &|_| {}, cancelled: &AtomicBool::new(false) };
        let received = self.datasets.receive(&target, &stream[..], &options, &observer);
        if let Err(ReceiveError::Dataset(error)) = received {
            allowed::<()>(Err(error));
        }
        format!("receive {} from {:?} into {target}", to.full_name(), from.map(|from| from.full_name()))
    }

    /// An import: a snapshot that is created in addition to the head.
    fn stage(&mut self) -> String {
        let (dataset, short) = (self.dataset(), self.name("i"));
        let datasets = self.datasets.clone();
        let options = crate::StageOptions { force: true, ..crate::StageOptions::default() };
        let first = crate::new_filesystem_objects;
        let staging: Staging<'_> = match datasets.stage(&dataset.name, dataset.record.kind, first, &options) {
            Ok(staging) => staging,
            Err(error) => return format!("stage {}: {error}", dataset.name),
        };
        for _ in 0..4 {
            self.change_content(staging.head());
        }
        if self.below(3) == 0 {
            drop(staging);
            return format!("stage {}: given up", dataset.name);
        }
        staging.finish(&short, &[]).unwrap();
        format!("stage {}@{short}", dataset.name)
    }

    fn limit(&mut self) -> String {
        let dataset = self.dataset();
        let property = ["reservation", "refreservation", "refquota"][usize::try_from(self.below(3)).unwrap()];
        let value = if self.below(2) == 0 { 0 } else { self.below(1 << 20) };
        let set = [(property.to_owned(), value.to_string())];
        if property == "refquota" && value != 0 {
            return "limit: not this one".to_owned();
        }
        let set = self.datasets.set_properties(&Name::parse(&dataset.name).unwrap(), &set);
        format!("set {property}={value} {}: {}", dataset.name, allowed(set))
    }

    fn reopen(&mut self) -> String {
        self.datasets.pool().commit().unwrap();
        let store = self.store.snapshot();
        let pool = Pool::open(Box::new(store.clone()), options()).unwrap();
        self.store = store;
        self.datasets = Datasets::open(pool).unwrap();
        "reopen".to_owned()
    }

    pub(super) fn check(&self, when: &str) {
        let mut faults = Vec::new();
        let mut report =
            |finding: crate::Finding| faults.push(format!("{}: {}", finding.place, finding.what));
        self.datasets.check(CheckOptions { data: true }, &mut report).unwrap();
        assert!(faults.is_empty(), "{when}:\n{}", faults.join("\n"));
    }
}
