//! Sessions of clients with random requests: the limits of their role hold, and the pool stays sound.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::io::{Read, Write};
use std::ops::Range;

use common::{Cut, Link, MIB, Random, TestPool, name};
use snowmelt_dataset::receive::resume_token;
use snowmelt_dataset::send::{SendFlags, SendPlan, Source};
use snowmelt_dataset::{CloneOptions, Kind, Subtree};
use snowmelt_replicate::access::{Access, Role};
use snowmelt_replicate::end::End;
use snowmelt_replicate::request::{Action, Describe, ReceiveRequest, SendRequest};
use snowmelt_stream::features::Features;
use snowmelt_stream::reader::Reader;
use snowmelt_stream::record::{Record, ToName};
use snowmelt_stream::token::ResumeToken;
use snowmelt_stream::writer::Writer;

/// The dataset that the client can reach, and one that it cannot.
const OWN: &str = "back/own";
const OTHER: &str = "back/other";
/// Number of requests in one session.
const STEPS: usize = 16;

/// `SNOWMELT_SEEDS=FIRST..END` chooses other seeds.
fn seeds() -> Range<u64> {
    let text = std::env::var("SNOWMELT_SEEDS").unwrap_or_default();
    text.split_once("..").map_or(0..60, |(first, end)| first.parse().unwrap()..end.parse().unwrap())
}

/// A pool, and streams of it.
fn source() -> (TestPool, Vec<Vec<u8>>) {
    let (pool, mut random) = (TestPool::new("tank"), Random(5));
    pool.filesystem("tank/fs");
    pool.volume("tank/fs/vol", MIB);
    for at in ["1", "2", "3"] {
        pool.write("tank/fs/vol", 0, MIB / 4, &mut random);
        pool.datasets
            .snapshot(&["tank/fs", "tank/fs/vol"].map(|it| name(&format!("{it}@{at}"))), &[])
            .unwrap();
    }
    pool.datasets.clone_snapshot(&name("tank/fs/vol@2"), "tank/fs/clone", &CloneOptions::default()).unwrap();
    pool.snapshot("tank/fs/clone@3");
    let catalog = pool.datasets.catalog();
    let find = |text: &str| catalog.snapshot(&name(text)).unwrap();
    let flags = SendFlags { properties: true, ..SendFlags::default() };
    let single = |to: &str, from: Option<&str>| {
        let from = from.map_or(Source::None, |from| Source::Snapshot(find(from)));
        SendPlan::single(&catalog, &find(to), from, &flags).unwrap()
    };
    let plans = [
        single("tank/fs@1", None),
        single("tank/fs/vol@1", None),
        single("tank/fs/vol@2", Some("tank/fs/vol@1")),
        single("tank/fs/vol@3", Some("tank/fs/vol@2")),
        single("tank/fs@2", Some("tank/fs@1")),
        single("tank/fs/clone@3", Some("tank/fs/vol@2")),
        SendPlan::all_between(
            &catalog,
            Source::Snapshot(find("tank/fs/vol@1")),
            &find("tank/fs/vol@3"),
            &flags,
        )
        .unwrap(),
        SendPlan::replicate(&catalog, &find("tank/fs@3"), None, &flags).unwrap(),
        SendPlan::replicate(&catalog, &find("tank/fs@3"), Some(("1", true)), &flags).unwrap(),
    ];
    let streams = plans.into_iter().map(run).collect();
    (pool, streams)
}

fn run(plan: SendPlan) -> Vec<u8> {
    let mut bytes = Vec::new();
    plan.run(&mut bytes, &|_| {}).unwrap();
    bytes
}

/// A pool with data of others, in which the client already has some of the source's snapshots.
fn target(source: &TestPool, streams: &[Vec<u8>]) -> TestPool {
    let (pool, mut random) = (TestPool::new("back"), Random(9));
    for dataset in [OWN, OTHER] {
        pool.filesystem(dataset);
        pool.volume(&format!("{dataset}/mine"), MIB);
        pool.write(&format!("{dataset}/mine"), 0, MIB / 4, &mut random);
        for at in ["1", "2"] {
            pool.snapshot(&format!("{dataset}/mine@{at}"));
        }
    }
    pool.datasets.hold("keep", &[name("back/own/mine@1")]).unwrap();
    let link = Link::open_as(&pool, &Cut::never(), Access::default()).unwrap();
    for dataset in [OWN, OTHER] {
        receive(&link, &format!("{dataset}/vol"), &streams[1], false);
    }
    link.close();
    assert_eq!(source.content("tank/fs/vol")[1], pool.content("back/own/vol")[1]);
    pool
}

fn receive(link: &Link, target: &str, stream: &[u8], force: bool) {
    let request = ReceiveRequest { target: target.to_owned(), force, ..ReceiveRequest::default() };
    let Ok(mut sink) = link.peer.receive(&request) else { return };
    let _ = sink.write_all(stream);
    let _ = sink.finish();
}

struct Client<'a> {
    random: Random,
    source: &'a TestPool,
    streams: &'a [Vec<u8>],
    target: &'a TestPool,
}

impl Client<'_> {
    fn pick<'t, T: ?Sized>(&mut self, all: &[&'t T]) -> &'t T {
        all[self.random.below(all.len() as u64) as usize]
    }

    fn dataset(&mut self) -> String {
        let root = self.pick(&[OWN, OWN, OWN, OWN, OTHER, "back", "back/ow", "tank"]);
        format!(
            "{root}{}",
            self.pick(&["", "/vol", "/vol", "/mine", "/new", "/new/vol", "/new/clone", "/../other"])
        )
    }

    fn snapshot(&mut self) -> String {
        let at = self.pick(&["1", "1", "2", "3", "new", "snowmelt-sync_x", "snowmelt-sync_y"]);
        format!("{}@{at}", self.dataset())
    }

    /// One of the source's streams, or the rest of a partly received one, unchanged or changed.
    fn stream(&mut self) -> Vec<u8> {
        let mut stream = self.streams[self.random.below(self.streams.len() as u64) as usize].clone();
        if self.random.below(2) == 0
            && let Some(rest) = self.rest()
        {
            stream = rest;
        }
        if self.random.below(2) == 0 {
            stream = self.otherwise(&stream);
        }
        match self.random.below(4) {
            0 => stream.truncate(self.random.below(stream.len() as u64) as usize),
            1 => {
                let at = self.random.below(stream.len() as u64) as usize;
                stream[at] ^= 1 << self.random.below(8);
            }
            _ => {}
        }
        stream
    }

    /// The rest of the stream for a partly received dataset.
    fn rest(&mut self) -> Option<Vec<u8>> {
        let catalog = self.target.datasets.catalog();
        let all = catalog.descendants(catalog.dataset(OWN).ok()?).ok()?;
        let token = all.iter().find_map(|dataset| resume_token(&catalog, dataset.id).ok()?)?;
        let token = ResumeToken::parse(&token).ok()?;
        SendPlan::resume_in(&self.source.datasets.catalog(), None, &token).ok().map(run)
    }

    /// A stream with a changed BEGIN and valid checksums.
    fn otherwise(&mut self, stream: &[u8]) -> Vec<u8> {
        let guid = |pool: &TestPool, text: &str| {
            pool.datasets.catalog().snapshot(&name(text)).map_or(0, |found| found.record.guid)
        };
        let guids = [guid(self.target, "back/own/mine@2"), guid(self.target, "back/other/mine@2"), 0];
        let how = self.random.below(6);
        let sent = format!("tank/fs/vol@{}", self.pick(&["1", "2", "mine", "../x", "", "new"]));
        let other = guids[self.random.below(3) as usize];
        let (mut reader, mut writer, mut payload) =
            (Reader::new(stream), Writer::new(Vec::new()), Vec::new());
        while let Ok(Some(at)) = reader.next(&mut payload) {
            let mut record = at.record;
            if let Record::Begin(begin) = &mut record {
                match how {
                    0 => begin.to_name = ToName::new(sent.as_bytes()).unwrap(),
                    1 => {
                        let other = [Kind::Filesystem, Kind::Volume].map(Kind::objset_type);
                        begin.objset_type = other[usize::from(begin.objset_type == other[0])];
                    }
                    2 => begin.from_guid = other,
                    3 => begin.to_guid = other,
                    4 => begin.features = Features(begin.features.0 ^ Features::RESUMING.0),
                    _ => begin.creation_time = u64::MAX,
                }
            }
            if writer.record(&record, &payload).is_err() {
                break;
            }
        }
        writer.into_inner().unwrap_or_default()
    }

    fn action(&mut self) -> Action {
        let tag = self.pick(&["keep", "snowmelt-sync", "snowmelt-sync:x"]).to_owned();
        match self.random.below(10) {
            0 => Action::Snapshot { names: vec![self.snapshot()] },
            1 | 2 => Action::DestroySnapshot { name: self.snapshot() },
            3 => Action::Bookmark { snapshot: self.snapshot(), bookmark: self.snapshot().replace('@', "#") },
            4 => Action::DestroyBookmark { name: self.snapshot().replace('@', "#") },
            5 => Action::Hold { tag, snapshot: self.snapshot() },
            6 => Action::Release { tag, snapshot: self.snapshot() },
            7 => match self.random.below(3) {
                0 => Action::Rename { from: self.snapshot(), to: self.snapshot() },
                _ => Action::Rename { from: self.dataset(), to: self.dataset() },
            },
            8 => Action::CreateParents { name: self.dataset() },
            _ => Action::AbortReceive { name: self.dataset() },
        }
    }

    fn step(&mut self, link: &Link) {
        match self.random.below(8) {
            0 => {
                let root = self.dataset();
                let _ = link.peer.describe(&Describe { root, recursive: true, tag: "keep".to_owned() });
            }
            1 => {
                let request = SendRequest { to: self.snapshot(), raw: true, ..SendRequest::default() };
                if let Ok(mut source) = link.peer.send(&request) {
                    let _ = source.read_to_end(&mut Vec::new());
                    let _ = source.finish();
                }
            }
            2..5 => {
                let target = if self.random.below(6) == 0 { self.snapshot() } else { self.dataset() };
                let (force, stream) = (self.random.below(3) == 0, self.stream());
                receive(link, &target, &stream, force);
            }
            _ => {
                let actions: Vec<Action> = (0..4).map(|_| self.action()).collect();
                let _ = link.peer.apply(&actions);
            }
        }
    }
}

#[test]
fn what_a_role_promises_holds_in_any_session() {
    let (source, streams) = source();
    let mut grown = 0;
    for seed in seeds() {
        let target = target(&source, &streams);
        let role = [Role::Append, Role::Receive, Role::Send, Role::Full][seed as usize % 4];
        let (own, other) = (target.content(OWN), target.content(OTHER));
        let random = Random((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut client = Client { random, source: &source, streams: &streams, target: &target };
        for _ in 0..2 {
            let access = Access::to_subtree(Subtree::new(OWN).unwrap(), role);
            let link = Link::open_as(&target, &Cut::never(), access).unwrap();
            (0..STEPS).for_each(|_| client.step(&link));
            link.close();
        }
        let what = format!("seed {seed}, {role:?}");
        assert_eq!(target.content(OTHER), other, "{what}: what is out of reach");
        let now = target.content(OWN);
        grown += usize::from(now.len() > own.len());
        if role == Role::Append {
            let lost: Vec<_> = own.iter().filter(|line| !now.contains(line)).collect();
            assert!(lost.is_empty(), "{what} lost {lost:#?} of {now:#?}");
        }
        if role == Role::Send {
            let is_mark = |line: &&String| line.contains("@snowmelt-sync_");
            let stays: Vec<_> = now.iter().filter(|line| !is_mark(line)).cloned().collect();
            assert_eq!(stays, own, "{what}");
        }
        target.check(&what);
    }
    assert!(grown > seeds().count() / 8, "hardly anything was received");
}
