//! Streams of real OpenZFS, received and sent again: the records must be those of ZFS.

#![allow(clippy::print_stderr)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use snowmelt_pool::{NewPool, Pool, PoolOptions};
use snowmelt_store::MemoryStore;
use snowmelt_stream::features::Features;
use snowmelt_stream::nvlist::{NvList, NvValue};
use snowmelt_stream::reader::Reader;
use snowmelt_stream::record::{Begin, HeaderType, Record};
use snowmelt_stream::token::ResumeToken;

use super::super::plan::{snapshot_base, target};
use super::super::step::{Base, Step, Style};
use super::super::{SendFlags, SendPlan, Source};
use super::compare::{changes, compare, plain, ragged};
use super::model::Model;
use super::testdata;
use super::world::{parse, run};
use crate::catalog::{Catalog, PropertyKind, Snapshot};
use crate::datasets::Datasets;
use crate::name::Name;
use crate::ops::create::CreateOptions;
use crate::receive::{Observer, ReceiveOptions, resume_token};

/// The files of a case by name.
type Files = BTreeMap<String, Vec<u8>>;

/// The valid cases: in the directory named by `SNOWMELT_CORPUS`, otherwise those in the repository.
fn cases() -> Vec<(String, Files)> {
    let bad = |name: &str| name.starts_with("15-");
    let mut found = Vec::new();
    match std::env::var_os("SNOWMELT_CORPUS") {
        Some(dir) => {
            for entry in std::fs::read_dir(dir).expect("the corpus").flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if !entry.path().is_dir() || bad(&name) {
                    continue;
                }
                let mut files = Files::new();
                for file in std::fs::read_dir(entry.path()).expect("a case").flatten() {
                    let short = file.file_name().to_string_lossy().into_owned();
                    if short.ends_with(".zstream") || short.ends_with(".token") || short == "chains.tsv" {
                        files.insert(short, std::fs::read(file.path()).expect("a file of a case"));
                    }
                }
                found.push((name, files));
            }
        }
        None => {
            eprintln!("SNOWMELT_CORPUS is not set: only the repository's own streams are tested");
            for entry in std::fs::read_dir(testdata::root().join("streams")).expect("testdata").flatten() {
                let file = entry.file_name().to_string_lossy().into_owned();
                let Some(name) = file.strip_suffix(".tar.zst") else { continue };
                if !bad(name) {
                    found.push((name.to_owned(), testdata::case(name)));
                }
            }
        }
    }
    assert!(!found.is_empty(), "there are no streams");
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

/// The streams of each chain of a case, in order.
fn chains(files: &Files) -> BTreeMap<String, Vec<String>> {
    let mut chains: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let table = String::from_utf8(files["chains.tsv"].clone()).expect("a table");
    for line in table.lines() {
        let mut fields = line.split('\t');
        if let (Some(chain), Some(stream)) = (fields.next(), fields.next())
            && files.contains_key(stream)
        {
            chains.entry(chain.to_owned()).or_default().push(stream.to_owned());
        }
    }
    chains
}

fn new_pool(name: &str) -> Arc<Datasets> {
    let new = NewPool { name, guid: 7 };
    let pool = Pool::create(Box::new(MemoryStore::new()), &new, PoolOptions::default()).unwrap();
    Datasets::create(pool).unwrap()
}

/// Receives a stream with its own name.
fn receive(datasets: &Datasets, stream: &[u8], label: &str) {
    let begin = begin_of(stream);
    let name = begin.to_name.to_string();
    let dataset = name.split('@').next().unwrap();
    if let Some((above, _)) = dataset.rsplit_once('/')
        && above.contains('/')
    {
        let options = CreateOptions { parents: true, ..CreateOptions::default() };
        datasets.create_filesystem(above, &options).unwrap();
    }
    let (event, cancelled) = (|_| {}, AtomicBool::new(false));
    let observer = Observer { event: &event, cancelled: &cancelled };
    let options = ReceiveOptions { force: true, ..ReceiveOptions::default() };
    datasets.receive(dataset, stream, &options, &observer).unwrap_or_else(|error| panic!("{label}: {error}"));
    remember_redaction(datasets, stream);
}

/// Stores the snapshots that a redacted snapshot is redacted with respect to.
fn remember_redaction(datasets: &Datasets, stream: &[u8]) {
    let mut payload = Vec::new();
    let Some(Record::Begin(begin)) =
        Reader::new(stream).next(&mut payload).unwrap().map(|first| first.record)
    else {
        return;
    };
    if begin.features.contains(Features::REDACTED) {
        let list = NvList::unpack(&payload).unwrap();
        let guids: Vec<String> =
            list.get_u64_array("redact_snaps").unwrap().iter().map(u64::to_string).collect();
        let id = find(&datasets.catalog(), begin.to_guid).unwrap().id;
        let change = datasets.change().unwrap();
        change
            .set_property(id.dataset, id.txg, PropertyKind::Received, "redact_snaps", &guids.join(","))
            .unwrap();
        change.commit().unwrap();
    }
}

/// Receives a part of a stream, and keeps it so that it can be resumed.
fn receive_part(datasets: &Datasets, stream: &[u8]) {
    let dataset = begin_of(stream).to_name.to_string();
    let (event, cancelled) = (|_| {}, AtomicBool::new(false));
    let observer = Observer { event: &event, cancelled: &cancelled };
    let options = ReceiveOptions { resumable: true, force: true, ..ReceiveOptions::default() };
    let dataset = dataset.split('@').next().unwrap();
    datasets.receive(dataset, stream, &options, &observer).expect_err("the stream is cut");
}

fn begin_of(stream: &[u8]) -> Begin {
    match Reader::new(stream).next(&mut Vec::new()).unwrap().map(|first| first.record) {
        Some(Record::Begin(begin)) => begin,
        other => panic!("{other:?} where a stream begins"),
    }
}

fn find(catalog: &Catalog, guid: u64) -> Option<Snapshot> {
    catalog.snapshots_by_guid(guid).unwrap().into_iter().next()
}

/// The step that sends the stream of `begin` again.
fn again(catalog: &Catalog, begin: &Begin) -> Step {
    let to = find(catalog, begin.to_guid).expect("the snapshot received");
    let base = match begin.from_guid {
        0 => Base::Empty,
        guid => {
            let from = find(catalog, guid).expect("the base");
            snapshot_base(catalog, &from, &from, to.id.dataset).unwrap()
        }
    };
    let target = target(catalog, &to).unwrap();
    Step { target, base, style: Style::from(begin.features), resume: None, saved: false }
}

fn check_begin(label: &str, ours: &Begin, theirs: &Begin) {
    let without = |begin: &Begin| Begin {
        features: begin.features.difference(Features::EMBED_DATA),
        payload_len: 0,
        ..begin.clone()
    };
    assert_eq!(without(ours), without(theirs), "{label}");
}

fn check_substream(datasets: &Datasets, copy: &Datasets, label: &str, stream: &[u8]) {
    let theirs = parse(stream);
    let begin = begin_of(stream);
    let step = again(&datasets.catalog(), &begin);
    let plan = SendPlan::of(vec![step.clone()], None);
    let sent = run(&plan).unwrap_or_else(|error| panic!("{label}: {error}"));
    let ours = parse(&sent);
    check_begin(label, &begin_of(&sent), &begin);
    for (_, packed) in begins(&sent) {
        // XDR in units of 8 bytes: the only encoding that machines of both byte orders can read.
        assert!(packed.first().is_none_or(|encoding| *encoding == 1) && packed.len() % 8 == 0, "{label}");
    }
    if begin.from_guid == 0 {
        compare(label, &plain(&ours), &plain(&theirs));
    } else {
        let ragged = ragged(&theirs);
        compare(label, &changes(&ours, &ragged), &changes(&theirs, &ragged));
    }
    let size: u64 = plan.estimate().unwrap().iter().map(|step| step.size).sum();
    assert_eq!(size, sent.len() as u64, "{label}: the estimate is not exact");
    // Our stream can be received like that of ZFS.
    receive(copy, &sent, label);
    let copied = again(&copy.catalog(), &begin);
    assert!(Model::of(&copied) == Model::of(&step), "{label}: the copy differs");
}

#[test]
fn streams_of_zfs_come_out_as_they_went_in() {
    let mut checked = 0;
    for (case, files) in cases() {
        for (chain, streams) in chains(&files) {
            let first = begin_of(&files[&streams[0]]).to_name.to_string();
            let pool = first.split(['/', '@']).next().unwrap().to_owned();
            let (datasets, copy) = (new_pool(&pool), new_pool(&pool));
            // A chain may begin with a clone. Its origin is in another chain.
            let from = begin_of(&files[&streams[0]]).from_guid;
            let origin = files.iter().filter(|(name, _)| from != 0 && name.ends_with(".zstream"));
            if let Some((name, origin)) =
                origin.into_iter().find(|(_, stream)| begin_of(stream).to_guid == from)
            {
                receive(&datasets, origin, name);
                receive(&copy, origin, name);
            }
            // Resumed streams have a test of their own.
            for name in streams.into_iter().take_while(|name| !name.starts_with("cut-")) {
                let label = format!("{case} {chain} {name}");
                let stream = &files[&name];
                let begin = begin_of(stream);
                receive(&datasets, stream, &label);
                if begin.header_type == HeaderType::Substream {
                    check_substream(&datasets, &copy, &label, stream);
                    checked += 1;
                } else {
                    receive(&copy, stream, &label);
                }
            }
        }
    }
    assert!(checked > 10, "only {checked} streams were there to check");
}

/// `a` as a set of pairs, including nested lists.
fn sorted(list: &NvList) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    for (name, value) in list.iter() {
        match value {
            NvValue::List(list) => {
                out.insert(format!("{name}/"), String::new());
                for (below, value) in sorted(list) {
                    out.insert(format!("{name}/{below}"), value);
                }
            }
            value => drop(out.insert(name.to_owned(), format!("{value:?}"))),
        }
    }
    out
}

fn begins(stream: &[u8]) -> Vec<(Begin, Vec<u8>)> {
    parse(stream)
        .into_iter()
        .filter_map(|(record, payload)| match record {
            Record::Begin(begin) => Some((Begin { payload_len: 0, ..begin }, payload)),
            _ => None,
        })
        .collect()
}

/// A received package is sent as the same package, except for guids that belong to datasets and not to snapshots, and
/// the order of filesystems in ZFS's list.
#[test]
fn packages_of_zfs_come_out_as_they_went_in() {
    let (_, files) = cases().into_iter().find(|(case, _)| case.starts_with("09-")).expect("case 09");
    let datasets = new_pool("tank");
    let flags = SendFlags { replicate: true, ..SendFlags::default() };
    let plan = |to: &str, from: Option<(&str, bool)>, flags: &SendFlags| {
        let catalog = datasets.catalog();
        let to = catalog.snapshot(&Name::parse(to).unwrap()).unwrap();
        SendPlan::replicate(&catalog, &to, from, flags).unwrap()
    };
    let check = |label: &str, ours: SendPlan, theirs: &[u8]| {
        let (ours, theirs) = (begins(&run(&ours).unwrap()), begins(theirs));
        assert_eq!(ours[0].0, theirs[0].0, "{label}");
        let lists = [&ours[0].1, &theirs[0].1].map(|packed| NvList::unpack(packed).unwrap());
        let filesystems = lists.each_ref().map(|list| {
            let fss = list.get_list("fss").unwrap();
            let by_name = fss.iter().map(|(_, value)| match value {
                NvValue::List(fs) => (fs.get_str("name").unwrap().to_owned(), sorted(fs)),
                other => panic!("{other:?}"),
            });
            by_name.collect::<BTreeMap<_, _>>()
        });
        assert_eq!(filesystems[0], filesystems[1], "{label}");
        let heads = lists.map(|mut list| {
            list.remove("fss");
            list
        });
        assert_eq!(heads[0], heads[1], "{label}");
        let by_guid = |begins: &[(Begin, Vec<u8>)]| {
            begins[1..].iter().map(|(begin, _)| (begin.to_guid, begin.clone())).collect::<BTreeMap<_, _>>()
        };
        assert_eq!(by_guid(&ours), by_guid(&theirs), "{label}");
    };
    if let Some(stream) = files.get("R-h-r2.zstream") {
        receive(&datasets, stream, "R-h-r2");
        check("R-h-r2", plan("tank/tree@r2", None, &SendFlags { holds: true, ..flags.clone() }), stream);
    }
    if let Some(stream) = files.get("R-r2.zstream") {
        check("R-r2", plan("tank/tree@r2", None, &flags), stream);
    }
    if let Some(stream) = files.get("p-alpha-r2.zstream") {
        let catalog = datasets.catalog();
        let to = catalog.snapshot(&Name::parse("tank/tree/alpha@r2").unwrap()).unwrap();
        let flags = SendFlags { properties: true, ..SendFlags::default() };
        check("p-alpha-r2", SendPlan::single(&catalog, &to, Source::None, &flags).unwrap(), stream);
    }
    if let Some(stream) = files.get("R-I-r2-r4.zstream") {
        receive(&datasets, stream, "R-I-r2-r4");
        check("R-I-r2-r4", plan("tank/tree@r4", Some(("r2", true)), &flags), stream);
    }
    if let Some(stream) = files.get("R-i-r2-r4.zstream") {
        check("R-i-r2-r4", plan("tank/tree@r4", Some(("r2", false)), &flags), stream);
    }
}

/// Uses the tokens that ZFS made for interrupted streams: our stream must be that of ZFS. Our own receiver, interrupted
/// at any point, must also be able to get the rest.
#[test]
fn resumed_streams_of_zfs_come_out_as_they_went_in() {
    let Some((_, files)) = cases()
        .into_iter()
        .find(|(case, files)| case.starts_with("10-") && files.contains_key("full.zstream"))
    else {
        eprintln!("case 10 is not whole: nothing is tested");
        return;
    };
    let source = new_pool("tank");
    receive(&source, &files["full.zstream"], "full");
    receive(&source, &files["inc.zstream"], "inc");
    let source_lec = new_pool("tank");
    receive(&source_lec, &files["full-Lec.zstream"], "full-Lec");
    for (cut, stream, source) in [
        ("cut-early", "full", &source),
        ("cut-half", "full", &source),
        ("cut-late", "full", &source),
        ("cut-end", "full", &source),
        ("cut-Lec", "full-Lec", &source_lec),
        ("cut-inc", "inc", &source),
    ] {
        let token = String::from_utf8(files[&format!("{cut}.token")].clone()).unwrap();
        let plan = SendPlan::resume(&source.catalog(), &ResumeToken::parse(&token).unwrap()).unwrap();
        let (sent, theirs) = (run(&plan).unwrap(), &files[&format!("{cut}.zstream")]);
        check_begin(cut, &begin_of(&sent), &begin_of(theirs));
        if stream == "inc" {
            compare(
                cut,
                &changes(&parse(&sent), &BTreeSet::new()),
                &changes(&parse(theirs), &BTreeSet::new()),
            );
        } else {
            compare(cut, &plain(&parse(&sent)), &plain(&parse(theirs)));
        }

        // The same with our receiver, interrupted at several points of our stream.
        let whole = &files[&format!("{stream}.zstream")];
        for part in [3, 7, 9] {
            let copy = new_pool("tank");
            if stream == "inc" {
                receive(&copy, &files["full.zstream"], "full");
            }
            receive_part(&copy, &whole[..whole.len() / 10 * part]);
            let catalog = copy.catalog();
            let dataset = catalog.dataset("tank/resume").unwrap();
            let token = resume_token(&catalog, dataset.id).unwrap().expect("something was kept");
            // The kept state can itself be sent, and resumed elsewhere.
            if stream != "inc" {
                let elsewhere = new_pool("tank");
                receive_part(&elsewhere, &run(&SendPlan::saved(&catalog, &dataset).unwrap()).unwrap());
                let state =
                    elsewhere.catalog().receive_state(elsewhere.catalog().dataset("tank/resume").unwrap().id);
                assert_eq!(state.unwrap().map(|state| state.to_guid), Some(begin_of(whole).to_guid));
            }
            let plan = SendPlan::resume(&source.catalog(), &ResumeToken::parse(&token).unwrap()).unwrap();
            receive(&copy, &run(&plan).unwrap(), cut);
            let begin = begin_of(whole);
            let (copied, original) = (again(&copy.catalog(), &begin), again(&source.catalog(), &begin));
            assert!(Model::of(&copied) == Model::of(&original), "{cut} {part}: the copy differs");
        }
    }
}
