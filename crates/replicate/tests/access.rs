//! What a client can reach and do, tested over the protocol.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use common::{Cut, Link, MIB, Random, TestPool, name};
use parking_lot::Mutex;
use snowmelt_dataset::catalog::PropertyKind;
use snowmelt_dataset::property::PeerProperties;
use snowmelt_dataset::receive::{Observer, ReceiveOptions, resume_token};
use snowmelt_dataset::send::{SendFlags, SendPlan, Source};
use snowmelt_dataset::{CloneOptions, Kind, RenameOptions, Subtree};
use snowmelt_replicate::access::{Access, Limits, Role};
use snowmelt_replicate::end::End;
use snowmelt_replicate::plan::{Marks, Options};
use snowmelt_replicate::request::{Action, DatasetInfo, Describe, ReadRequest, ReceiveRequest, SendRequest};
use snowmelt_replicate::sync::{Event, Report, Sync};
use snowmelt_replicate::{Failure, FailureKind};
use snowmelt_stream::features::Features;
use snowmelt_stream::reader::Reader;
use snowmelt_stream::record::{Begin, Record, ToName, WriteByRef};
use snowmelt_stream::token::ResumeToken;
use snowmelt_stream::writer::Writer;

const MARK: &str = "snowmelt-sync_2026-01-02_03:04:05.678";

fn below(root: &str, role: Role) -> Access {
    Access::to_subtree(Subtree::new(root).unwrap(), role)
}

fn open(pool: &TestPool, access: Access) -> Link {
    Link::open_as(pool, &Cut::never(), access).unwrap()
}

/// A pool with `tank/a`, `tank/secret` and `tank/ab`.
///
/// The client may reach `tank/a`. It has a volume, and a clone whose origin is outside. `tank/secret` has a clone whose
/// origin is inside. `tank/ab` only begins with the same letters.
fn tank() -> TestPool {
    let pool = TestPool::new("tank");
    for name in ["tank/a", "tank/ab", "tank/secret"] {
        pool.filesystem(name);
    }
    let mut random = Random(1);
    for name in ["tank/a/vol", "tank/ab/vol", "tank/secret/vol"] {
        pool.volume(name, MIB);
        pool.write(name, 0, MIB, &mut random);
        pool.snapshot(&format!("{name}@1"));
        pool.datasets
            .bookmark(&common::name(&format!("{name}@1")), &common::name(&format!("{name}#m")))
            .unwrap();
    }
    let clone = |from: &str, to: &str| {
        pool.datasets.clone_snapshot(&name(from), to, &CloneOptions::default()).unwrap();
        pool.snapshot(&format!("{to}@c"));
    };
    clone("tank/secret/vol@1", "tank/a/clone");
    clone("tank/a/vol@1", "tank/secret/clone");
    pool
}

fn guid(pool: &TestPool, snapshot: &str) -> u64 {
    pool.datasets.catalog().snapshot(&name(snapshot)).unwrap().record.guid
}

fn describe(peer: &dyn End, root: &str) -> Vec<DatasetInfo> {
    peer.describe(&Describe { root: root.to_owned(), recursive: true, tag: String::new() }).unwrap()
}

/// Reads a whole stream. Returns the error if it broke off.
fn sent(peer: &dyn End, request: &SendRequest) -> Result<Vec<u8>, Failure> {
    let mut source = peer.send(request)?;
    let mut bytes = Vec::new();
    let _ = source.read_to_end(&mut bytes);
    source.finish().map(|()| bytes)
}

fn received(peer: &dyn End, request: &ReceiveRequest, stream: &[u8]) -> Result<Vec<String>, Failure> {
    let mut sink = peer.receive(request)?;
    let _ = sink.write_all(stream);
    sink.finish()
}

fn applied(peer: &dyn End, action: Action) -> Result<(), Failure> {
    peer.apply(&[action]).unwrap().remove(0)
}

/// A full or incremental stream of a snapshot, made without a server.
fn stream(pool: &TestPool, to: &str, from: Option<&str>) -> Vec<u8> {
    let catalog = pool.datasets.catalog();
    let find = |text: &str| catalog.snapshot(&name(text)).unwrap();
    let from = from.map_or(Source::None, |from| Source::Snapshot(find(from)));
    let plan = SendPlan::single(&catalog, &find(to), from, &SendFlags::default()).unwrap();
    let mut bytes = Vec::new();
    plan.run(&mut bytes, &|_| {}).unwrap();
    bytes
}

/// Every failure that a client can get for names below `root`: the request, and the answer without the name of the
/// root.
fn asked_about(peer: &dyn End, root: &str, stream: &[u8]) -> Vec<(&'static str, String)> {
    let at = |rest: &str| format!("{root}{rest}");
    let text = |result: Result<(), Failure>| match result {
        Ok(()) => "done".to_owned(),
        Err(failure) => format!("{:?} {}", failure.kind, failure.message.replace(root, "ROOT")),
    };
    let mut all = Vec::new();
    let found = describe(peer, root).len() + describe(peer, &at("/vol")).len();
    all.push(("describe", found.to_string()));
    let send = |to: String, from: Option<String>| SendRequest { to, from, ..SendRequest::default() };
    let inside = || "tank/a/vol@1".to_owned();
    for (what, request) in [
        ("send", send(at("/vol@1"), None)),
        ("send from", send(inside(), Some(at("/vol@1")))),
        ("send from a bookmark", send(inside(), Some(at("/vol#m")))),
    ] {
        all.push((what, text(sent(peer, &request).map(drop))));
        all.push((what, text(peer.sizes(&[request]).unwrap().remove(0).map(drop))));
    }
    let read = |snapshot: String, since: Option<String>| {
        let remote = peer.read(&ReadRequest { snapshot, since }).unwrap();
        let read = snowmelt_zpl::Objects::dnode(&remote, 1).map(drop);
        read.map_err(|error| Failure::other(snowmelt_replicate::error::chain(&error)))
    };
    all.push(("read", text(read(at("/vol@1"), None))));
    all.push(("read since", text(read(inside(), Some(at("/vol@1"))))));
    for target in [at(""), at("/vol"), at("/new"), at("/vol@2")] {
        let request = ReceiveRequest { target, force: true, ..ReceiveRequest::default() };
        all.push(("receive", text(received(peer, &request, stream).map(drop))));
    }
    let origin = ReceiveRequest {
        target: "tank/a/o".to_owned(),
        origin: Some(at("/vol@1")),
        ..ReceiveRequest::default()
    };
    all.push(("origin", text(received(peer, &origin, stream).map(drop))));
    let tag = || "snowmelt-sync".to_owned();
    let actions = [
        Action::Snapshot { names: vec![format!("tank/a@{MARK}"), at(&format!("@{MARK}"))] },
        Action::DestroySnapshot { name: at("/vol@1") },
        Action::Bookmark { snapshot: at("/vol@1"), bookmark: at("/vol#snowmelt-sync_b") },
        Action::Bookmark { snapshot: inside(), bookmark: at("/vol#snowmelt-sync_b") },
        Action::DestroyBookmark { name: at("/vol#m") },
        Action::Hold { tag: tag(), snapshot: at("/vol@1") },
        Action::Release { tag: tag(), snapshot: at("/vol@1") },
        Action::Rename { from: at("/vol"), to: "tank/a/taken".to_owned() },
        Action::Rename { from: "tank/a/clone".to_owned(), to: at("/given") },
        Action::Rename { from: "tank/a/clone".to_owned(), to: at("/vol") },
        Action::CreateParents { name: at("/x/y") },
        Action::CreateParents { name: at("") },
        Action::AbortReceive { name: at("/vol") },
    ];
    for action in actions {
        all.push(("apply", text(applied(peer, action))));
    }
    all
}

#[test]
fn what_is_outside_of_the_subtree_is_as_if_it_did_not_exist() {
    let pool = tank();
    let before: Vec<_> = ["tank/secret", "tank/ab"].map(|root| pool.content(root)).into();
    let stream = stream(&pool, "tank/a/vol@1", None);
    let link = open(&pool, below("tank/a", Role::Full));
    let missing = asked_about(&link.peer, "tank/none", &stream);
    for root in ["tank/secret", "tank/ab"] {
        assert_eq!(asked_about(&link.peer, root, &stream), missing, "{root}");
    }
    assert!(
        missing.iter().all(|(what, said)| *what == "describe" || said.contains("does not exist")),
        "{missing:?}"
    );
    // The pool itself, and the subtrees outside of the client's.
    assert!(describe(&link.peer, "tank").is_empty());
    link.close();
    assert_eq!(["tank/secret", "tank/ab"].map(|root| pool.content(root)).to_vec(), before);
    assert!(pool.datasets.catalog().dataset("tank/none").is_err());
    assert!(pool.datasets.catalog().snapshot(&name(&format!("tank/a@{MARK}"))).is_err(), "all or none");
}

#[test]
fn a_description_tells_nothing_of_what_is_outside() {
    let pool = tank();
    let link = open(&pool, below("tank/a", Role::Full));
    let found = describe(&link.peer, "tank/a");
    let names: Vec<&str> = found.iter().map(|info| info.name.as_str()).collect();
    assert_eq!(names, ["tank/a", "tank/a/clone", "tank/a/vol"]);
    assert_eq!(found[1].origin, None, "its origin is somebody else's");
    assert!(!found[2].snapshots[0].has_clones, "its clone is somebody else's");
    // A client that destroys the snapshot does not learn a name either.
    let destroyed = applied(&link.peer, Action::DestroySnapshot { name: "tank/a/vol@1".to_owned() });
    assert_eq!(destroyed.unwrap_err().message, "'tank/a/vol@1': dataset is busy");
    // Streams of the clone do not name its origin.
    let clone = SendRequest { to: "tank/a/clone@c".to_owned(), properties: true, ..SendRequest::default() };
    let bytes = sent(&link.peer, &clone).unwrap();
    let origin = guid(&pool, "tank/secret/vol@1");
    let is_origin = |window: &[u8]| window == origin.to_be_bytes() || window == origin.to_le_bytes();
    assert!(!bytes.windows(8).any(is_origin), "the origin's guid");
    let all = SendRequest { intermediate: true, ..clone };
    assert!(sent(&link.peer, &all).is_err(), "what differs from the origin");
    link.close();
    let link = open(&pool, Access::default());
    assert_eq!(describe(&link.peer, "tank").len(), 9);
    link.close();
}

#[test]
fn what_a_client_can_pile_up_is_limited() {
    let pool = tank();
    let limits = Limits { datasets: 5, snapshots: 3, bookmarks: 2, holds: 2, properties: 4 };
    let link = open(&pool, below("tank/a", Role::Full).with_limits(limits));
    // The number of successful actions before one is refused.
    let made = |action: &dyn Fn(usize) -> Action| {
        (0..10)
            .take_while(|at| match applied(&link.peer, action(*at)) {
                Ok(()) => true,
                Err(failure) => {
                    assert!(failure.message.contains("at most"), "{failure:?}");
                    false
                }
            })
            .count()
    };
    let vol = |rest: String| format!("tank/a/vol{rest}");
    assert_eq!(made(&|at| Action::Snapshot { names: vec![vol(format!("@new{at}"))] }), 2);
    let both = ["tank/a/clone@x", "tank/a/clone@y", "tank/a/clone@z"].map(str::to_owned);
    assert!(applied(&link.peer, Action::Snapshot { names: both.to_vec() }).is_err());
    assert_eq!(
        made(&|at| Action::Bookmark { snapshot: vol("@1".into()), bookmark: vol(format!("#new{at}")) }),
        1
    );
    assert_eq!(made(&|at| Action::Hold { tag: format!("t{at}"), snapshot: vol("@1".into()) }), 2);
    // Each of these needs one dataset more than the one before.
    assert_eq!(
        made(&|at| Action::CreateParents {
            name: "tank/a/b/c/d/e".split('/').take(3 + at).collect::<Vec<_>>().join("/")
        }),
        2
    );
    let deeper = Action::Rename { from: "tank/a/clone".into(), to: "tank/a/f/clone".into() };
    assert!(applied(&link.peer, deeper).is_err());
    applied(&link.peer, Action::Rename { from: "tank/a/clone".into(), to: "tank/a/b/clone".into() }).unwrap();
    for target in ["tank/a/vol", "tank/a/more"] {
        let request = ReceiveRequest { target: target.to_owned(), ..ReceiveRequest::default() };
        let failure = received(&link.peer, &request, &stream(&pool, "tank/ab/vol@1", None)).unwrap_err();
        assert!(failure.message.contains("at most"), "{failure:?}");
    }
    let properties = (0..5).map(|at| (format!("a:b{at}"), "x".to_owned())).collect();
    let request = ReceiveRequest { target: "tank/a/vol".to_owned(), properties, ..ReceiveRequest::default() };
    let failure = received(&link.peer, &request, &[]).unwrap_err();
    assert!(failure.message.contains("at most 4 properties"), "{failure:?}");
    link.close();
}

#[test]
fn what_a_dataset_is_made_with_does_not_change_later() {
    let (source, target) = (tank(), TestPool::new("back"));
    source.snapshot("tank/ab@1");
    source.snapshot("tank/ab@2");
    let link = open(&target, Access::to_pool(Role::Receive));
    let request = |pairs: &[(&str, &str)]| ReceiveRequest {
        target: "back/ab".to_owned(),
        properties: pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        ..ReceiveRequest::default()
    };
    let made = request(&[("casesensitivity", "sensitive"), ("utf8only", "off")]);
    received(&link.peer, &made, &stream(&source, "tank/ab@1", None)).unwrap();
    let stored = |name: &str| property(&target, "back/ab", PropertyKind::Local, name);
    let before = ["casesensitivity", "utf8only", "normalization", "version"].map(stored);
    let changed = request(&[
        ("casesensitivity", "mixed"),
        ("utf8only", "on"),
        ("normalization", "formD"),
        ("version", "4"),
        ("atime", "off"),
    ]);
    received(&link.peer, &changed, &stream(&source, "tank/ab@2", Some("tank/ab@1"))).unwrap();
    assert_eq!(["casesensitivity", "utf8only", "normalization", "version"].map(stored), before);
    assert!(stored("atime").is_some());
    link.close();
}

#[test]
fn tokens_find_nothing_outside() {
    let pool = tank();
    let token = |to: &str| {
        let token = ResumeToken::new(guid(&pool, to), "tank/a/vol@1");
        SendRequest { token: Some(token.to_string()), ..SendRequest::default() }
    };
    let (inside, outside) = (token("tank/a/vol@1"), token("tank/secret/vol@1"));
    let link = open(&pool, below("tank/a", Role::Send));
    assert!(sent(&link.peer, &inside).is_ok());
    let refused = sent(&link.peer, &outside).unwrap_err();
    assert_eq!(refused.kind, FailureKind::CannotResume);
    assert_eq!(link.peer.sizes(std::slice::from_ref(&outside)).unwrap(), [Err(refused)]);
    link.close();
    let link = open(&pool, Access::default());
    assert!(sent(&link.peer, &outside).is_ok(), "whoever has the whole pool has that too");
    link.close();
}

/// A stream whose data refers to another snapshot.
fn by_reference(stream: &[u8], ref_guid: u64) -> Vec<u8> {
    let mut reader = Reader::new(stream);
    let mut writer = Writer::new(Vec::new());
    let mut payload = Vec::new();
    let mut to_guid = 0;
    while let Some(at) = reader.next(&mut payload).unwrap() {
        match at.record {
            Record::Begin(mut begin) => {
                to_guid = begin.to_guid;
                begin.features = begin.features.union(Features::DEDUP);
                writer.record(&Record::Begin(begin), &payload).unwrap();
            }
            Record::Write(write) if write.object == 1 => {
                let by_ref = WriteByRef {
                    object: write.object,
                    offset: write.offset,
                    length: write.logical_size,
                    to_guid,
                    ref_guid,
                    ref_object: write.object,
                    ref_offset: write.offset,
                    ..WriteByRef::default()
                };
                writer.record(&Record::WriteByRef(by_ref), &[]).unwrap();
            }
            other => writer.record(&other, &payload).unwrap(),
        }
    }
    writer.into_inner().unwrap()
}

#[test]
fn streams_build_on_nothing_outside() {
    let pool = tank();
    let secret = guid(&pool, "tank/secret/vol@1");
    let copying = by_reference(&stream(&pool, "tank/a/vol@1", None), secret);
    let cloning = stream(&pool, "tank/a/clone@c", Some("tank/secret/vol@1"));
    for (access, expected) in [(below("tank/a", Role::Receive), false), (Access::default(), true)] {
        let link = open(&pool, access);
        for (target, stream) in [("tank/a/copied", &copying), ("tank/a/cloned", &cloning)] {
            // A stream that was cut off is kept, so each attempt uses another name.
            let target = format!("{target}-{expected}");
            let request = ReceiveRequest { target: target.clone(), ..ReceiveRequest::default() };
            let done = received(&link.peer, &request, stream);
            // A stream may only refer to data that it contains itself, whoever sends it.
            let expected = expected && !target.contains("copied");
            assert_eq!(done.is_ok(), expected, "{target}: {done:?}");
        }
        link.close();
    }
}

/// One sync. Returns its report and its notes.
fn sync(
    source: (&TestPool, &str, Access),
    target: (&TestPool, &str, Access),
    stamp: &str,
    options: Options,
) -> (Report, Vec<String>) {
    let (from, to) = (open(source.0, source.2), open(target.0, target.2));
    let notes = Mutex::new(Vec::new());
    let observer = |event: Event<'_>| {
        if let Event::Note(note) = event {
            notes.lock().push(note.to_owned());
        }
    };
    let report = Sync {
        source: &from.peer,
        source_root: source.1,
        target: &to.peer,
        target_root: target.1,
        recursive: true,
        is_excluded: &|_| false,
        snapshot: Some(format!("snowmelt-sync_2026-01-0{stamp}_03:04:05.678")),
        marks: Marks::new(None, "there", true),
        history: "snowmelt sync".to_owned(),
        options,
        jobs: 2,
        limit: None,
        tell_sizes: true,
        observer: &observer,
        cancelled: &AtomicBool::new(false),
    }
    .run()
    .unwrap();
    from.close();
    to.close();
    (report, notes.into_inner())
}

fn failures(report: &Report) -> Vec<String> {
    report.datasets.iter().filter_map(|one| one.failure.clone()).map(|failure| failure.message).collect()
}

fn snapshots(pool: &TestPool, dataset: &str) -> Vec<String> {
    let catalog = pool.datasets.catalog();
    let dataset = catalog.dataset(dataset).unwrap();
    let all = catalog.snapshots(&dataset).map(|snapshot| snapshot.unwrap().record.name);
    all.collect()
}

/// A source with a volume, and a pool for copies.
fn two_pools() -> (TestPool, TestPool, Random) {
    let (source, mut random) = (TestPool::new("tank"), Random(7));
    source.filesystem("tank/web");
    source.volume("tank/web/vol", MIB);
    source.write("tank/web/vol", 0, MIB, &mut random);
    let target = TestPool::new("back");
    target.filesystem("back/hosts");
    (source, target, random)
}

#[test]
fn a_sync_works_with_a_key_for_each_side() {
    for role in [Role::Receive, Role::Append] {
        let (source, target, mut random) = two_pools();
        // The first sync creates the root of the subtree that the target's key reaches.
        let from = || (&source, "tank/web", below("tank/web", Role::Send));
        let to = || (&target, "back/hosts/web", below("back/hosts/web", role));
        for stamp in ["1", "2", "3"] {
            source.write("tank/web/vol", 0, 64 << 10, &mut random);
            let (report, notes) = sync(from(), to(), stamp, Options::default());
            assert_eq!(failures(&report), [""; 0], "{role:?}");
            let kept =
                notes.iter().filter(|note| note.contains("older snapshots of this sync are kept")).count();
            assert_eq!(
                (notes.len(), kept),
                if role == Role::Append && stamp != "1" { (1, 1) } else { (0, 0) },
                "{notes:?}"
            );
        }
        assert_eq!(snapshots(&source, "tank/web/vol").len(), 1);
        assert_eq!(snapshots(&target, "back/hosts/web/vol").len(), if role == Role::Append { 3 } else { 1 });
        let history: Vec<String> =
            target.datasets.catalog().history().unwrap().into_iter().map(|(_, line)| line).collect();
        assert!(history.iter().any(|line| line == "sync client: snowmelt sync"), "{history:?}");
    }
}

#[test]
fn append_only_loses_nothing_that_is_there() {
    let (source, target, mut random) = two_pools();
    let from = || (&source, "tank/web", below("tank/web", Role::Send));
    let to = |role| (&target, "back/hosts/web", below("back/hosts/web", role));
    sync(from(), to(Role::Append), "1", Options::default());
    target.snapshot("back/hosts/web/vol@mine");
    target.datasets.hold("keep", &[name("back/hosts/web/vol@mine")]).unwrap();
    source.write("tank/web/vol", 0, 64 << 10, &mut random);
    let force = Options { force: true, ..Options::default() };
    let (report, _) = sync(from(), to(Role::Append), "2", force.clone());
    assert!(failures(&report).iter().any(|why| why.contains("--append-only")), "{report:?}");
    assert!(snapshots(&target, "back/hosts/web/vol").contains(&"mine".to_owned()));
    let link = open(&target, below("back/hosts/web", Role::Append));
    let vol = || "back/hosts/web/vol".to_owned();
    let mark = format!("{}@{}", vol(), snapshots(&target, "back/hosts/web/vol")[0]);
    for action in [
        Action::DestroySnapshot { name: mark },
        Action::Release { tag: "keep".to_owned(), snapshot: format!("{}@mine", vol()) },
        Action::Rename { from: vol(), to: "back/hosts/web/other".to_owned() },
        Action::Snapshot { names: vec![format!("{}@{MARK}", vol())] },
    ] {
        assert_eq!(applied(&link.peer, action).unwrap_err().kind, FailureKind::NotAllowed);
    }
    assert_eq!(
        sent(&link.peer, &SendRequest { to: format!("{}@mine", vol()), ..SendRequest::default() })
            .unwrap_err()
            .kind,
        FailureKind::NotAllowed
    );
    link.close();
}

/// A stream with a changed BEGIN.
fn begun_otherwise(stream: &[u8], change: impl Fn(&mut Begin)) -> Vec<u8> {
    let (mut reader, mut writer, mut payload) = (Reader::new(stream), Writer::new(Vec::new()), Vec::new());
    while let Some(at) = reader.next(&mut payload).unwrap() {
        let mut record = at.record;
        if let Record::Begin(begin) = &mut record {
            change(begin);
        }
        writer.record(&record, &payload).unwrap();
    }
    writer.into_inner().unwrap()
}

/// The rest of a stream that was partly received into a dataset of `target`.
fn rest(source: &TestPool, target: &TestPool, dataset: &str) -> Vec<u8> {
    let catalog = target.datasets.catalog();
    let token = resume_token(&catalog, catalog.dataset(dataset).unwrap().id).unwrap().unwrap();
    let plan =
        SendPlan::resume_in(&source.datasets.catalog(), None, &ResumeToken::parse(&token).unwrap()).unwrap();
    let mut bytes = Vec::new();
    plan.run(&mut bytes, &|_| {}).unwrap();
    bytes
}

/// Another client may continue a receive. It chooses the whole beginning of the stream anew.
#[test]
fn a_receive_that_goes_on_replaces_nothing() {
    let (source, target, mut random) = two_pools();
    source.snapshot("tank/web/vol@1");
    source.write("tank/web/vol", 0, MIB, &mut random);
    source.snapshot("tank/web/vol@2");
    let link = open(&target, below("back/hosts", Role::Append));
    let into = |target: &str| ReceiveRequest { target: target.to_owned(), ..ReceiveRequest::default() };
    received(&link.peer, &into("back/hosts/vol"), &stream(&source, "tank/web/vol@1", None)).unwrap();
    let before = target.content("back/hosts");
    let increment = stream(&source, "tank/web/vol@2", Some("tank/web/vol@1"));
    received(&link.peer, &into("back/hosts/vol"), &increment[..increment.len() * 3 / 4]).unwrap_err();
    let rest_of_it = rest(&source, &target, "back/hosts/vol");
    let named = begun_otherwise(&rest_of_it, |begin| begin.to_name = ToName::new(b"tank/web/vol@1").unwrap());
    let filesystem = Kind::Filesystem.objset_type();
    let of_another_kind = begun_otherwise(&rest_of_it, |begin| begin.objset_type = filesystem);
    for bad in [named, of_another_kind] {
        received(&link.peer, &into("back/hosts/vol"), &bad).unwrap_err();
        assert_eq!(target.content("back/hosts"), before);
    }
    received(&link.peer, &into("back/hosts/vol@1"), &rest_of_it).unwrap_err();
    assert_eq!(target.content("back/hosts"), before);

    // Another user began a receive with force over a volume without snapshots.
    target.volume("back/hosts/own", MIB);
    target.write("back/hosts/own", 0, MIB, &mut random);
    let full = stream(&source, "tank/web/vol@2", None);
    let local = ReceiveOptions { force: true, resumable: true, ..ReceiveOptions::default() };
    let observer = Observer { event: &|_| {}, cancelled: &AtomicBool::new(false) };
    let half = &full[..full.len() * 3 / 4];
    target.datasets.receive("back/hosts/own", half, &local, &observer).unwrap_err();
    target.snapshot("back/hosts/own@kept");
    let refused =
        received(&link.peer, &into("back/hosts/own"), &rest(&source, &target, "back/hosts/own")).unwrap_err();
    assert!(refused.message.contains("exists"), "{refused:?}");
    assert_eq!(snapshots(&target, "back/hosts/own"), ["kept"]);

    received(&link.peer, &into("back/hosts/vol"), &rest_of_it).unwrap();
    assert_eq!(snapshots(&target, "back/hosts/vol"), ["1", "2"]);
    link.close();
    target.check("receives that went on");
}

/// A new snapshot gets the name of the one that is still being received.
#[test]
fn a_receive_takes_no_name_that_was_given_meanwhile() {
    let (source, target, mut random) = two_pools();
    source.snapshot("tank/web/vol@1");
    source.write("tank/web/vol", 0, MIB, &mut random);
    source.snapshot("tank/web/vol@2");
    let link = open(&target, below("back/hosts", Role::Append));
    let request = ReceiveRequest { target: "back/hosts/vol".to_owned(), ..ReceiveRequest::default() };
    received(&link.peer, &request, &stream(&source, "tank/web/vol@1", None)).unwrap();
    let increment = stream(&source, "tank/web/vol@2", Some("tank/web/vol@1"));
    let (begin, end) = increment.split_at(increment.len() / 2);
    let mut sink = link.peer.receive(&request).unwrap();
    sink.write_all(begin).unwrap();
    while !target.datasets.is_receiving(target.datasets.catalog().dataset("back/hosts/vol").unwrap().id) {
        std::thread::yield_now();
    }
    let (old, new) = (name("back/hosts/vol@1"), name("back/hosts/vol@2"));
    target.datasets.rename(&old, &new, RenameOptions::default()).unwrap();
    let before = target.content("back/hosts/vol");
    sink.write_all(end).unwrap();
    assert!(sink.finish().unwrap_err().message.contains("already exists"));
    assert_eq!(target.content("back/hosts/vol"), before);
    link.close();
    target.check("a receive of a name that is taken");
}

/// Datasets below a partly received dataset are not lost when its receive is given up.
#[test]
fn a_receive_that_is_given_up_takes_nothing_below_with_it() {
    let (source, target, _) = two_pools();
    source.snapshot("tank/web@1");
    source.snapshot("tank/web/vol@1");
    let link = open(&target, below("back/hosts", Role::Append));
    let into = |target: &str| ReceiveRequest { target: target.to_owned(), ..ReceiveRequest::default() };
    let full = stream(&source, "tank/web@1", None);
    received(&link.peer, &into("back/hosts/web"), &full[..full.len() / 2]).unwrap_err();
    received(&link.peer, &into("back/hosts/web/vol"), &stream(&source, "tank/web/vol@1", None)).unwrap();
    let refused =
        applied(&link.peer, Action::AbortReceive { name: "back/hosts/web".to_owned() }).unwrap_err();
    assert!(refused.message.contains("back/hosts/web/vol"), "{refused:?}");
    assert_eq!(snapshots(&target, "back/hosts/web/vol"), ["1"]);
    target.check("a receive that was not given up");
    received(&link.peer, &into("back/hosts/web"), &rest(&source, &target, "back/hosts/web")).unwrap();
    assert_eq!(snapshots(&target, "back/hosts/web"), ["1"]);
    link.close();
    target.check("a receive that went on above another dataset");
}

#[test]
fn a_source_is_only_read() {
    let pool = tank();
    pool.snapshot(&format!("tank/a/vol@{MARK}"));
    let link = open(&pool, below("tank/a", Role::Send));
    let stream = stream(&pool, "tank/a/vol@1", None);
    let receive = ReceiveRequest { target: "tank/a/new".to_owned(), ..ReceiveRequest::default() };
    assert_eq!(received(&link.peer, &receive, &stream).unwrap_err().kind, FailureKind::NotAllowed);
    for action in [
        Action::Rename { from: "tank/a/vol".to_owned(), to: "tank/a/gone".to_owned() },
        Action::CreateParents { name: "tank/a/x".to_owned() },
        Action::DestroySnapshot { name: "tank/a/vol@1".to_owned() },
        Action::DestroyBookmark { name: "tank/a/vol#m".to_owned() },
        // The newest snapshot: the next sync needs it.
        Action::DestroySnapshot { name: format!("tank/a/vol@{MARK}") },
    ] {
        assert_eq!(applied(&link.peer, action).unwrap_err().kind, FailureKind::NotAllowed);
    }
    link.close();
}

fn property(pool: &TestPool, dataset: &str, kind: PropertyKind, property: &str) -> Option<String> {
    let catalog = pool.datasets.catalog();
    catalog.stored_property(catalog.dataset(dataset).unwrap().id, 0, kind, property).unwrap()
}

#[test]
fn properties_of_a_peer_stay_within_its_dataset() {
    let (source, target, mut random) = two_pools();
    let set = |pool: &TestPool, dataset: &str, pairs: &[(&str, &str)]| {
        let pairs: Vec<(String, String)> =
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        pool.datasets.set_properties(&name(dataset), &pairs).unwrap();
    };
    set(
        &source,
        "tank/web",
        &[("mountpoint", "/etc/cron.d"), ("setuid", "on"), ("atime", "off"), ("a:b", "c")],
    );
    let asked = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let options = Options {
        properties: true,
        set: vec![asked("canmount", "on"), asked("compression", "off")],
        exclude: vec!["quota".to_owned(), "recordsize".to_owned()],
        ..Options::default()
    };
    let from = || (&source, "tank/web", Access::default());
    let to = |access| (&target, "back/hosts/web", access);
    let (report, notes) = sync(from(), to(below("back/hosts/web", Role::Receive)), "1", options.clone());
    assert_eq!(failures(&report), [""; 0]);
    let told: Vec<&String> = notes.iter().filter(|note| note.contains("does not take")).collect();
    // Each note occurs once, although two datasets were received.
    assert_eq!(told.len(), 2, "{notes:?}");
    assert!(told.iter().any(|note| note.contains("canmount, mountpoint, setuid")), "{told:?}");
    let (local, got) = (PropertyKind::Local, PropertyKind::Received);
    let here = |kind, name: &str| property(&target, "back/hosts/web", kind, name);
    for name in ["mountpoint", "setuid", "canmount"] {
        assert_eq!((here(local, name), here(got, name)), (None, None), "{name}");
    }
    assert_eq!(here(got, "atime").as_deref(), Some("off"));
    assert_eq!(here(got, "a:b").as_deref(), Some("c"));
    assert_eq!(here(local, "compression").as_deref(), Some("off"));
    // Properties that were set here stay, whatever the client leaves out.
    set(&target, "back/hosts/web", &[("quota", "1073741824")]);
    source.write("tank/web/vol", 0, 64 << 10, &mut random);
    source.snapshot("tank/web@more");
    sync(from(), to(below("back/hosts/web", Role::Receive)), "2", options.clone());
    assert_eq!(here(local, "quota").as_deref(), Some("1073741824"));
    // The command line of the server may allow more.
    source.snapshot("tank/web@again");
    let all = Access::default().with_properties(PeerProperties::with(["mountpoint"]).unwrap());
    sync(from(), to(all), "3", options);
    assert_eq!(here(got, "mountpoint").as_deref(), Some("/etc/cron.d"));
    assert_eq!(here(got, "setuid"), None);
}

#[test]
fn histories_take_short_lines_and_not_too_many() {
    let pool = tank();
    let link = open(&pool, below("tank/a", Role::Append));
    let forged = format!("2026-01-01 zpool destroy\n\x1b[31m{}", "x".repeat(100_000));
    let note = || Action::Note { line: forged.clone() };
    let results = link.peer.apply(&[(); 10].map(|()| note())).unwrap();
    assert!(results.iter().all(Result::is_ok));
    link.close();
    let history = pool.datasets.catalog().history().unwrap();
    let lines: Vec<&String> =
        history.iter().map(|(_, line)| line).filter(|line| line.contains("destroy")).collect();
    assert_eq!(lines.len(), 10);
    assert!(lines.iter().all(|line| line.starts_with("sync client: ") && line.len() < 1200));
    assert!(!lines.iter().any(|line| line.contains(char::is_control)));
}

#[test]
fn a_client_shares_nothing_with_another_one() {
    // Two clients at once, each with its own key.
    let pool = Arc::new(tank());
    let (one, two) =
        (open(&pool, below("tank/a", Role::Full)), open(&pool, below("tank/secret", Role::Full)));
    assert_eq!(describe(&one.peer, "tank/a").len(), 3);
    assert_eq!(describe(&two.peer, "tank/secret").len(), 3);
    assert!(describe(&one.peer, "tank/secret").is_empty() && describe(&two.peer, "tank/a").is_empty());
    one.close();
    two.close();
}
