//! The operations of a pool's users.

use std::rc::Rc;

use snowmelt_zpl::{DMU_OT_PLAIN_FILE_CONTENTS, NewObject, ObjectsMut, Room, SourceError};

use super::model::{Content, File, Filesystem};
use super::world::{Durable, World};
use super::{FIRST_OBJECT, OBJECTS};
use crate::catalog::{Dataset, Snapshot};
use crate::head::Head;
use crate::name::Name;
use crate::{
    CleanOptions, CloneOptions, CreateOptions, DestroyPlan, RenameOptions, RollbackOptions, StageOptions,
};

const DATASETS: usize = 6;
const SNAPSHOTS: usize = 5;

/// Bytes that a receive accepts as a bonus or spill block: a header without lengths, and data.
pub(crate) fn system_attributes(len: usize, byte: u8) -> Vec<u8> {
    let mut bytes = vec![byte; len];
    bytes[..8].copy_from_slice(&[0x5a, 0x50, 0x2f, 0, 0, 4, 0, 0]);
    bytes
}

fn parse(name: &str) -> Name {
    Name::parse(name).expect("names of the simulation are names")
}

impl World {
    pub(super) fn operate(&mut self) -> Result<(), String> {
        match self.rng.below(100) {
            0..40 => self.write(),
            40..48 => self.sync(),
            48..60 => self.take_snapshots(),
            60..63 => self.create(),
            63..67 => self.clone_one(),
            67..69 => self.promote(),
            69..73 => self.rollback(),
            73..79 => self.destroy_snapshots(),
            79..81 => self.destroy_dataset(),
            81..83 => self.rename(),
            83..88 => self.replicate(),
            88..91 => self.resume(),
            91..93 => self.hold_send(),
            93..94 => self.end_send(),
            94..96 => self.stage(),
            96..97 => self.limit(),
            _ => self.clean(),
        }
    }

    fn all(&self) -> Vec<Dataset> {
        let catalog = self.machine.datasets().catalog();
        let root = catalog.root().expect("the root is there");
        catalog.descendants(root).expect("the datasets can be read")
    }

    pub(super) fn has_room(&self) -> bool {
        self.all().len() < DATASETS
    }

    fn dataset(&mut self) -> Dataset {
        let mut all = self.all();
        all.retain(|dataset| !dataset.record.inconsistent);
        self.rng.pick(&all).expect("there is a root")
    }

    pub(super) fn new_name(&mut self, prefix: &str) -> String {
        let above = self.dataset().name;
        format!("{above}/{}", self.name(prefix))
    }

    pub(super) fn snapshots(&self, dataset: &Dataset) -> Vec<Snapshot> {
        let catalog = self.machine.datasets().catalog();
        catalog.snapshots(dataset).map(|snapshot| snapshot.expect("snapshots can be read")).collect()
    }

    pub(super) fn any_snapshot(&mut self) -> Option<Snapshot> {
        let all: Vec<Snapshot> = self.all().iter().flat_map(|dataset| self.snapshots(dataset)).collect();
        self.rng.pick(&all)
    }

    fn write(&mut self) -> Result<(), String> {
        let dataset = self.dataset();
        let head = self.machine.datasets().open_head(&dataset).map_err(|error| error.to_string())?;
        let mut after = self.model.clone();
        let (what, written) = self.change(&head, &mut after.get(&dataset.name).head);
        drop(head);
        let outcome = self.written(written)?;
        self.done(format!("change {}: {what}", dataset.name), outcome, Vec::new(), after)
    }

    /// Attributes with a new generation, by which a receive distinguishes the file from others with the same number.
    fn attributes_of_a_new_file(&mut self) -> Vec<u8> {
        let mut bytes = system_attributes(24, 0);
        bytes.extend_from_slice(&self.number().to_le_bytes());
        bytes
    }

    /// One transaction on a random object.
    fn change(&mut self, head: &Head, content: &mut Content) -> (String, Result<(), SourceError>) {
        let object = FIRST_OBJECT + self.rng.below(OBJECTS);
        let Some(file) = content.get_mut(&object) else {
            let block_size = self.rng.pick(&[512, 1024, 4096]).unwrap_or(512);
            content.insert(object, Rc::new(File { block_size, ..File::default() }));
            let new = NewObject {
                object_type: DMU_OT_PLAIN_FILE_CONTENTS,
                bonus_type: 44,
                block_size,
                slots: 1,
                bonus: self.attributes_of_a_new_file(),
            };
            let made = head.begin(Room::Write(4096)).and_then(|tx| head.create_at(&tx, object, new));
            return (format!("create {object}"), made);
        };
        let (offset, len) = (self.rng.below(12_000), 1 + self.rng.below(5000));
        let file = Rc::make_mut(file);
        match self.rng.below(10) {
            0 => {
                content.remove(&object);
                let gone = head.begin(Room::Free).and_then(|tx| head.destroy(&tx, object));
                (format!("destroy {object}"), gone)
            }
            1 | 2 => {
                let len = if self.rng.one_in(2) { u64::MAX } else { len };
                file.free(offset as usize, usize::try_from(len).unwrap_or(usize::MAX));
                let freed = head.begin(Room::Free).and_then(|tx| head.free(&tx, object, offset, len));
                (format!("free {object} at {offset}"), freed)
            }
            3 => {
                let spill = self.rng.one_in(2).then(|| system_attributes(1024, self.rng.below(256) as u8));
                file.spill.clone_from(&spill);
                let set = head.begin(Room::Write(4096)).and_then(|tx| head.set_spill(&tx, object, spill));
                (format!("spill of {object}"), set)
            }
            _ => {
                let byte = self.rng.below(255) as u8 + 1;
                let noisy = self.rng.one_in(2);
                let mut data = vec![byte; len as usize];
                if noisy {
                    data.iter_mut().for_each(|byte| *byte = self.rng.next() as u8);
                }
                file.write(offset as usize, &data);
                let room = Room::Write(len + 8192);
                let written = head.begin(room).and_then(|tx| head.write(&tx, object, offset, &data));
                (format!("write {object} at {offset}, {len} bytes"), written)
            }
        }
    }

    /// `fsync`.
    fn sync(&mut self) -> Result<(), String> {
        let dataset = self.dataset();
        let head = self.machine.datasets().open_head(&dataset).map_err(|error| error.to_string())?;
        let synced = head.sync();
        drop(head);
        let outcome = self.ended(synced, Durable::Yes)?;
        self.done("sync".to_owned(), outcome, Vec::new(), self.model.clone())
    }

    fn take_snapshots(&mut self) -> Result<(), String> {
        let (dataset, short) = (self.dataset(), self.name("s"));
        let mut targets = vec![dataset.clone()];
        if self.rng.one_in(4) {
            let catalog = self.machine.datasets().catalog();
            targets = catalog.descendants(dataset).map_err(|error| error.to_string())?;
            targets.retain(|dataset| !dataset.record.inconsistent);
        }
        targets.retain(|dataset| self.snapshots(dataset).len() < SNAPSHOTS);
        let names: Vec<String> = targets.iter().map(|to| format!("{}@{short}", to.name)).collect();
        if names.is_empty() {
            return Ok(());
        }
        let mut after = self.model.clone();
        names.iter().for_each(|name| after.snapshot(name));
        let parsed: Vec<Name> = names.iter().map(|name| parse(name)).collect();
        let taken = self.machine.datasets().snapshot(&parsed, &[]);
        let outcome = self.ended(taken, Durable::Yes)?;
        self.done(format!("snapshot {names:?}"), outcome, Vec::new(), after)
    }

    fn create(&mut self) -> Result<(), String> {
        if !self.has_room() {
            return Ok(());
        }
        let name = self.new_name("d");
        let mut after = self.model.clone();
        after.filesystems.insert(name.clone(), Filesystem::default());
        let created = self.machine.datasets().create_filesystem(&name, &CreateOptions::default());
        let outcome = self.ended(created, Durable::Yes)?;
        self.done(format!("create {name}"), outcome, Vec::new(), after)
    }

    fn clone_one(&mut self) -> Result<(), String> {
        let Some(snapshot) = self.any_snapshot().filter(|_| self.has_room()) else { return Ok(()) };
        let (origin, name) = (snapshot.full_name(), self.new_name("c"));
        let mut after = self.model.clone();
        let content = after.content(&origin).ok_or("a snapshot that the model lacks")?;
        let clone =
            Filesystem { head: (*content).clone(), origin: Some(origin.clone()), ..Filesystem::default() };
        after.filesystems.insert(name.clone(), clone);
        let cloned = self.machine.datasets().clone_snapshot(&parse(&origin), &name, &CloneOptions::default());
        let outcome = self.ended(cloned, Durable::Yes)?;
        self.done(format!("clone {origin} {name}"), outcome, Vec::new(), after)
    }

    fn promote(&mut self) -> Result<(), String> {
        let mut clones = self.all();
        clones.retain(|it| it.record.origin.is_some() && !it.record.inconsistent);
        let Some(clone) = self.rng.pick(&clones) else { return Ok(()) };
        let mut after = self.model.clone();
        after.promote(&clone.name);
        let promoted = self.machine.datasets().promote(&clone.name);
        let outcome = self.ended(promoted, Durable::Yes)?;
        self.done(format!("promote {}", clone.name), outcome, Vec::new(), after)
    }

    fn rollback(&mut self) -> Result<(), String> {
        let Some(snapshot) = self.any_snapshot() else { return Ok(()) };
        let name = snapshot.full_name();
        let options = RollbackOptions { newer: self.rng.one_in(2), clones: false };
        let mut after = self.model.clone();
        // As in ZFS, newer snapshots are destroyed first, in a separate step.
        after.forget_after(&name);
        let between = vec![after.clone()];
        after.rollback(&name);
        let rolled = self.machine.datasets().rollback(&parse(&name), options);
        let outcome = self.ended(rolled, Durable::Yes)?;
        self.done(format!("rollback {name}"), outcome, between, after)
    }

    fn destroy_snapshots(&mut self) -> Result<(), String> {
        let Some(first) = self.any_snapshot() else { return Ok(()) };
        let catalog = self.machine.datasets().catalog();
        let dataset = catalog.dataset_by_id(first.id.dataset).map_err(|error| error.to_string())?;
        let going: Vec<Snapshot> = match self.rng.one_in(3) {
            true => self.snapshots(&dataset).into_iter().skip_while(|it| it.id != first.id).take(3).collect(),
            false => vec![first],
        };
        let names: Vec<String> = going.iter().map(Snapshot::full_name).collect();
        let Ok(plan) = DestroyPlan::snapshots(&catalog, going, false) else { return Ok(()) };
        let mut after = self.model.clone();
        names.iter().for_each(|name| after.destroy_snapshot(name));
        let destroyed = self.machine.datasets().destroy(&plan);
        let outcome = self.ended(destroyed, Durable::Yes)?;
        self.done(format!("destroy {names:?}"), outcome, Vec::new(), after)
    }

    fn destroy_dataset(&mut self) -> Result<(), String> {
        let dataset = self.dataset();
        if dataset.name == "tank" {
            return Ok(());
        }
        let catalog = self.machine.datasets().catalog();
        let clones = self.rng.one_in(3);
        let Ok(plan) = DestroyPlan::dataset(&catalog, &dataset, true, clones) else { return Ok(()) };
        let mut after = self.model.clone();
        for gone in &plan.datasets {
            after.filesystems.remove(&gone.name);
        }
        for gone in &plan.snapshots {
            if after.filesystems.contains_key(&gone.dataset) {
                after.destroy_snapshot(&gone.full_name());
            }
        }
        let destroyed = self.machine.datasets().destroy(&plan);
        let outcome = self.ended(destroyed, Durable::Yes)?;
        self.done(format!("destroy -r {}", dataset.name), outcome, Vec::new(), after)
    }

    fn rename(&mut self) -> Result<(), String> {
        let from = self.dataset().name;
        let to = self.new_name("r");
        if from == "tank" {
            return Ok(());
        }
        let mut after = self.model.clone();
        after.rename(&from, &to);
        let renamed = self.machine.datasets().rename(&parse(&from), &parse(&to), RenameOptions::default());
        let outcome = self.ended(renamed, Durable::Yes)?;
        self.done(format!("rename {from} {to}"), outcome, Vec::new(), after)
    }

    /// An import: a snapshot that is created in addition to the head, while other operations run.
    fn stage(&mut self) -> Result<(), String> {
        let (dataset, short) = (self.dataset(), self.name("i"));
        let datasets = self.machine.datasets();
        let options = StageOptions { force: self.rng.one_in(2), ..StageOptions::default() };
        let kind = dataset.record.kind;
        let staging = match datasets.stage(&dataset.name, kind, crate::new_filesystem_objects, &options) {
            Ok(staging) => staging,
            Err(error) => {
                let outcome = self.received::<()>(Err(error))?;
                return self.done(format!("stage {}", dataset.name), outcome, Vec::new(), self.model.clone());
            }
        };
        let filesystem = self.model.get(&dataset.name);
        let newest = filesystem.snapshots.last().map(|(_, content)| content.clone());
        let origin = filesystem.origin.clone();
        let base = newest.or_else(|| origin.and_then(|origin| self.model.content(&origin)));
        let mut content = base.map(|base| (*base).clone()).unwrap_or_default();
        let mut changed = Ok(());
        for _ in 0..4 {
            if changed.is_ok() {
                changed = self.change(staging.head(), &mut content).1;
            }
            if self.rng.one_in(3) && !self.broken {
                self.operate()?;
            }
        }
        let given_up = self.rng.one_in(4);
        if self.broken || changed.is_err() || given_up {
            drop(staging);
            if self.broken {
                return Ok(());
            }
            let outcome = self.written(changed)?;
            let what = format!("stage {}@{short}: given up", dataset.name);
            return self.done(what, outcome, Vec::new(), self.model.clone());
        }
        // It may have been renamed.
        let dataset = datasets.catalog().dataset_by_id(staging.id()).map_err(|error| error.to_string())?;
        let full = format!("{}@{short}", dataset.name);
        let mut after = self.model.clone();
        after.get(&dataset.name).head = content;
        after.snapshot(&full);
        let staged = staging.finish(&short, &[]);
        let error = staged.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let outcome = self.received(staged)?;
        self.done(format!("stage {full} {error}"), outcome, Vec::new(), after)
    }

    fn limit(&mut self) -> Result<(), String> {
        let name = self.dataset().name;
        let property = self.rng.pick(&["reservation", "refreservation", "refquota"]).unwrap_or("refquota");
        let value = if self.rng.one_in(2) { 0 } else { self.rng.below(1 << 17) };
        let set = [(property.to_owned(), value.to_string())];
        let set = self.machine.datasets().set_properties(&parse(&name), &set);
        let outcome = self.ended(set, Durable::Yes)?;
        self.done(format!("set {property}={value} {name}"), outcome, Vec::new(), self.model.clone())
    }

    fn clean(&mut self) -> Result<(), String> {
        let cleaned = self.machine.datasets().clean(&CleanOptions::default());
        let outcome = self.ended(cleaned, Durable::NotYet)?;
        self.done("clean".to_owned(), outcome, Vec::new(), self.model.clone())
    }
}
