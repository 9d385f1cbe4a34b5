//! Streams in one pool: sent, delayed, interrupted, resumed and received.

use std::rc::Rc;
use std::sync::atomic::AtomicBool;

use snowmelt_stream::token::ResumeToken;

use super::model::{Content, Filesystem, Model, split};
use super::world::World;
use crate::catalog::Snapshot;
use crate::receive::{Observer, ReceiveOptions, resume_token};
use crate::send::{SendFlags, SendPlan, Source};

/// A send that was begun. It must contain the state of that moment, whatever happens meanwhile.
pub(super) struct HeldSend {
    plan: SendPlan,
    content: Rc<Content>,
    stream: Option<Vec<u8>>,
}

impl HeldSend {
    /// Runs the send.
    pub(super) fn finish(&mut self) -> Result<(), String> {
        if self.stream.is_none() {
            let mut stream = Vec::new();
            self.plan.run(&mut stream, &|_| {}).map_err(|error| format!("a held send: {error}"))?;
            self.stream = Some(stream);
        }
        Ok(())
    }
}

impl World {
    /// Begins a full send that continues later.
    pub(super) fn hold_send(&mut self) -> Result<(), String> {
        let Some(snapshot) = self.any_snapshot() else { return Ok(()) };
        let catalog = self.machine.datasets().catalog();
        let flags = SendFlags { large_blocks: true, embed: true, compressed: true, ..SendFlags::default() };
        let plan = SendPlan::single(&catalog, &snapshot, Source::None, &flags);
        let plan = self.sent(plan)?;
        let content = self.model.content(&snapshot.full_name()).ok_or("a snapshot that the model lacks")?;
        self.journal.push(format!("send {} begins", snapshot.full_name()));
        self.sends.push(HeldSend { plan, content, stream: None });
        Ok(())
    }

    /// Finishes a send that was begun, receives its stream and compares the content.
    pub(super) fn end_send(&mut self) -> Result<(), String> {
        let Some(mut send) = self.sends.pop() else { return self.hold_send() };
        send.finish()?;
        let target = self.name("tank/v");
        let mut after = self.model.clone();
        let received = Filesystem {
            head: (*send.content).clone(),
            snapshots: vec![("held".to_owned(), send.content.clone())],
            origin: None,
        };
        after.filesystems.insert(target.clone(), received);
        let full = format!("{target}@held");
        let stream = send.stream.unwrap_or_default();
        self.receive(&full, &stream, ReceiveOptions::default(), after, Vec::new())
    }

    /// Finishes all delayed sends.
    pub(super) fn finish_sends(&mut self) -> Result<(), String> {
        while !self.sends.is_empty() {
            self.end_send()?;
        }
        Ok(())
    }

    /// Sends a snapshot, in full or from an earlier one, and receives it somewhere, possibly over an existing dataset.
    pub(super) fn replicate(&mut self) -> Result<(), String> {
        let Some(to) = self.any_snapshot() else { return Ok(()) };
        let datasets = self.machine.datasets();
        let catalog = datasets.catalog();
        let dataset = catalog.dataset_by_id(to.id.dataset).map_err(|error| error.to_string())?;
        let earlier: Vec<Snapshot> =
            self.snapshots(&dataset).into_iter().filter(|it| it.id.txg < to.id.txg).collect();
        let from = if self.rng.one_in(3) { None } else { self.rng.pick(&earlier) };
        let source = from.clone().map_or(Source::None, Source::Snapshot);
        let plan = SendPlan::single(&catalog, &to, source, &SendFlags::default());
        let plan = self.sent(plan)?;
        let mut stream = Vec::new();
        let sent = plan.run(&mut stream, &|_| {});
        self.sent(sent)?;
        let copies = match &from {
            None => Vec::new(),
            Some(from) => catalog.snapshots_by_guid(from.record.guid).map_err(|error| error.to_string())?,
        };
        let copies: Vec<Snapshot> =
            copies.into_iter().filter(|copy| copy.id.dataset != to.id.dataset).collect();
        let content = self.model.content(&to.full_name()).ok_or("a snapshot that the model lacks")?;
        let options =
            ReceiveOptions { force: true, resumable: self.rng.one_in(2), ..ReceiveOptions::default() };
        let (target, base) = match self.rng.pick(&copies) {
            Some(copy) => (copy.dataset.clone(), Some(copy.full_name())),
            None if from.is_none() && self.has_room() => (self.new_name("v"), None),
            None => return Ok(()),
        };
        if self.rng.one_in(3) {
            let cut = self.rng.below(stream.len() as u64) as usize;
            stream.truncate(cut);
        }
        let full = format!("{target}@{}", to.record.name);
        let (between, after) = self.as_received(&full, base.as_deref(), content);
        self.receive(&full, &stream, options, after, between)
    }

    /// Resumes or abandons an interrupted receive.
    pub(super) fn resume(&mut self) -> Result<(), String> {
        let datasets = self.machine.datasets();
        let catalog = datasets.catalog();
        let text = |error: crate::DatasetError| error.to_string();
        let mut waiting = Vec::new();
        for dataset in catalog.descendants(catalog.root().map_err(text)?).map_err(text)? {
            if let Some(token) = resume_token(&catalog, dataset.id).map_err(text)? {
                waiting.push((dataset, token));
            }
        }
        let Some((dataset, token)) = self.rng.pick(&waiting) else { return self.replicate() };
        let token = ResumeToken::parse(&token).map_err(|error| error.to_string())?;
        let plan = match SendPlan::resume(&catalog, &token) {
            Ok(plan) if !self.rng.one_in(8) => plan,
            _ => return self.give_up(&dataset.name),
        };
        let mut stream = Vec::new();
        let sent = plan.run(&mut stream, &|_| {});
        self.sent(sent)?;
        if self.rng.one_in(3) {
            let cut = self.rng.below(stream.len() as u64) as usize;
            stream.truncate(cut);
        }
        let source = plan.snapshots().next().ok_or("a token of nothing")?.to_owned();
        let content = self.model.content(&source).ok_or("a token of a snapshot that the model lacks")?;
        let state = catalog.receive_state(dataset.id).map_err(text)?.ok_or("a token without a state")?;
        let base = state.base.map(|base| catalog.snapshot_by_id(base)).transpose().map_err(text)?;
        let base = base.map(|base| base.full_name());
        let full = format!("{}@{}", dataset.name, split(&source).1);
        let (between, after) = self.as_received(&full, base.as_deref(), content);
        let options = ReceiveOptions { force: true, resumable: true, ..ReceiveOptions::default() };
        self.receive(&full, &stream, options, after, between)
    }

    fn give_up(&mut self, name: &str) -> Result<(), String> {
        let aborted = self.machine.datasets().abort_receive(name);
        let outcome = self.received(aborted)?;
        self.done(format!("abort the receive into {name}"), outcome, Vec::new(), self.model.clone())
    }

    /// The state of the pool after a snapshot was received over its base, and the states that may be seen before.
    fn as_received(&self, full: &str, base: Option<&str>, content: Rc<Content>) -> (Vec<Model>, Model) {
        let (name, short) = split(full);
        let (mut after, mut between) = (self.model.clone(), Vec::new());
        match base {
            Some(base) => {
                after.forget_after(base);
                between.push(after.clone());
                after.rollback(base);
                between.push(after.clone());
            }
            None => drop(after.filesystems.insert(name.to_owned(), Filesystem::default())),
        }
        let filesystem = after.get(name);
        filesystem.head = (*content).clone();
        filesystem.snapshots.push((short.to_owned(), content));
        (between, after)
    }

    fn receive(
        &mut self,
        full: &str,
        stream: &[u8],
        options: ReceiveOptions,
        after: Model,
        between: Vec<Model>,
    ) -> Result<(), String> {
        let observer = Observer { event: &|_| {}, cancelled: &AtomicBool::new(false) };
        let received = self.machine.datasets().receive(full, stream, &options, &observer);
        let error = received.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let outcome = self.received(received)?;
        self.done(format!("receive {full} {error}"), outcome, between, after)
    }
}
