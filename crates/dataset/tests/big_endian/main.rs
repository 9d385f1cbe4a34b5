//! Streams of machines of the other byte order: their content is stored and sent as if it had come from a little-endian
//! machine.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../common/mod.rs"]
mod common;
mod turn;

use std::collections::BTreeMap;
use std::path::Path;

use common::{check, corpus, digest, listing, new_pool, receive_from};
use snowmelt_dataset::objset::{Dnode, ObjsetKey};
use snowmelt_dataset::receive::ReceiveOptions;
use snowmelt_dataset::send::{SendFlags, SendPlan, Source};
use snowmelt_dataset::{Datasets, Kind, Objset, Snapshot};
use snowmelt_fs::manifest::{manifest, manifest_volume};
use snowmelt_fs::{ObjectReader, volume_info};
use snowmelt_stream::{ByteOrder, Features, Reader, Record};
use snowmelt_zpl::memory::{MemoryObject, MemoryObjects};
use snowmelt_zpl::zap::Zap;
use snowmelt_zpl::{Cursor, Filesystem};
use turn::{Attributes, to_big_endian, zap_fields};

/// The chains of a case. Clones come after their possible origins.
fn steps(case: &Path) -> Vec<(String, String)> {
    let Ok(text) = std::fs::read_to_string(case.join("chains.tsv")) else { return Vec::new() };
    let steps = text.lines().filter_map(|line| {
        let mut fields = line.split('\t');
        let (chain, stream) = (fields.next()?, fields.next()?);
        let found = stream.ends_with(".zstream") && case.join(stream).exists();
        found.then(|| (chain.to_owned(), stream.to_owned()))
    });
    let (clones, others): (Vec<_>, Vec<_>) = steps.partition(|(chain, _)| chain == "cl");
    others.into_iter().chain(clones).collect()
}

fn is_raw(objset: &Objset) -> bool {
    objset.content().features.contains(Features::RAW)
}

fn manifest_of(objset: &Objset) -> Vec<u8> {
    let mut out = Vec::new();
    if objset.kind() == Kind::Volume {
        let info = volume_info(objset).unwrap();
        let reader = ObjectReader::new(objset, info.object, info.size);
        manifest_volume(reader, info.size, info.block_size.into(), &mut out).unwrap();
    } else {
        manifest(&Filesystem::open(objset.clone()).unwrap(), &mut out).unwrap();
    }
    out
}

/// The records of a plain or raw send.
fn sent(datasets: &Datasets, to: &Snapshot, from: Option<&Snapshot>, raw: bool) -> Vec<(Record, Vec<u8>)> {
    let flags = SendFlags { large_blocks: true, raw, ..SendFlags::default() };
    let from = from.map_or(Source::None, |from| Source::Snapshot(from.clone()));
    let plan = SendPlan::single(&datasets.catalog(), to, from, &flags).unwrap();
    let mut out = Vec::new();
    plan.run(&mut out, &|_| {}).unwrap();
    let mut reader = Reader::new(&out[..]);
    let (mut records, mut payload) = (Vec::new(), Vec::new());
    while let Some(at) = reader.next(&mut payload).unwrap() {
        let mut record = at.record;
        if let Record::End(end) = &mut record {
            // Attributes differ, and so does the checksum of the stream.
            end.checksum = [0; 4];
        }
        records.push((record, payload.clone()));
    }
    records
}

/// Compares the streams of a snapshot from two datasets. That of `twin` is entirely little-endian. The attributes of
/// the other one are as a big-endian machine wrote them.
fn same_sent(what: &str, twin: &[(Record, Vec<u8>)], turned: &[(Record, Vec<u8>)], sa: Option<&Attributes>) {
    for (index, ((ours, plain), (theirs, big))) in twin.iter().zip(turned).enumerate() {
        assert_eq!(ours, theirs, "{what}, record {index}");
        let mut plain = plain.clone();
        match ours {
            Record::Object(object) if object.bonus_type == 44 && object.raw_bonus_len == 0 => {
                sa.unwrap().turn(&mut plain[..object.bonus_len as usize]);
            }
            Record::Spill(spill) if spill.compressed_size == 0 => sa.unwrap().turn(&mut plain),
            _ => {}
        }
        assert!(plain == *big, "{what}, payload of record {index}: {ours:?}");
    }
    assert_eq!(twin.len(), turned.len(), "{what}");
}

fn snapshots(datasets: &Datasets, dataset: &str) -> Vec<Snapshot> {
    let catalog = datasets.catalog();
    catalog.snapshots(&catalog.dataset(dataset).unwrap()).map(Result::unwrap).collect()
}

/// Compares all snapshots of two pools, and returns their number.
fn same_everywhere(
    what: &str,
    twin: &Datasets,
    turned: &Datasets,
    truth: &BTreeMap<u64, Vec<u8>>,
) -> [usize; 2] {
    let names = |datasets: &Datasets| {
        let catalog = datasets.catalog();
        let all = catalog.descendants(catalog.root().unwrap()).unwrap();
        all.into_iter().map(|dataset| dataset.name).collect::<Vec<_>>()
    };
    assert_eq!(names(twin), names(turned), "{what}");
    let (mut count, mut true_ones) = (0, 0);
    for dataset in names(twin) {
        let (ours, theirs) = (snapshots(twin, &dataset), snapshots(turned, &dataset));
        assert_eq!(ours.len(), theirs.len(), "{what} {dataset}");
        for (index, (a, b)) in ours.iter().zip(&theirs).enumerate() {
            let what = format!("{what} {}", a.full_name());
            assert_eq!((&a.record.name, a.record.guid), (&b.record.name, b.record.guid), "{what}");
            let (plain, big) = (twin.catalog().objset(a), turned.catalog().objset(b));
            let raw = is_raw(&plain);
            if !raw && !plain.content().features.contains(Features::REDACTED) {
                let made = manifest_of(&big);
                assert!(made == manifest_of(&plain), "{what}");
                true_ones += usize::from(truth.get(&a.record.guid).is_some_and(|truth| *truth == made));
            }
            let sa = if raw { None } else { Attributes::of(&plain) };
            let from = index.checked_sub(1);
            let ours = sent(twin, a, from.map(|from| &ours[from]), raw);
            same_sent(&what, &ours, &sent(turned, b, from.map(|from| &theirs[from]), raw), sa.as_ref());
            count += 1;
        }
    }
    [count, true_ones]
}

fn truth(case: &Path) -> BTreeMap<u64, Vec<u8>> {
    let Ok(table) = std::fs::read_to_string(case.join("snapshots.tsv")) else { return BTreeMap::new() };
    table
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split('\t').collect();
            Some((fields[0].parse().ok()?, std::fs::read(case.join(fields.get(3)?)).ok()?))
        })
        .collect()
}

#[test]
fn chains_of_big_endian_streams_hold_the_same() {
    let mut compared = [0, 0];
    for case in std::fs::read_dir(corpus()).unwrap() {
        let case = case.unwrap().path();
        let short = case.file_name().unwrap().to_string_lossy().into_owned();
        // Interrupted streams, damaged ones, and the largest.
        if ["10-resume", "14-large", "15-corrupt"].contains(&short.as_str()) {
            continue;
        }
        let (twin, turned) = (new_pool(), new_pool());
        let redacted = ("redacted".to_owned(), "redacted-Lec.zstream".to_owned());
        let redacted = case.join(&redacted.1).exists().then_some(redacted);
        for (chain, stream) in redacted.into_iter().chain(steps(&case)) {
            let (what, target) = (format!("{short}/{stream}"), format!("tank/{chain}"));
            let bytes = std::fs::read(case.join(&stream)).unwrap();
            let options = ReceiveOptions { force: true, ..ReceiveOptions::default() };
            receive_from(&twin, &target, &bytes[..], &options).unwrap();
            let big = to_big_endian(&bytes, &twin);
            assert!(big != bytes, "{what}");
            receive_from(&turned, &target, &big[..], &options)
                .unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        check(&turned, &short);
        let [count, true_ones] = same_everywhere(&short, &twin, &turned, &truth(&case));
        compared = [compared[0] + count, compared[1] + true_ones];
    }
    assert!(compared[0] >= 40 && compared[1] >= 20, "only {compared:?} snapshots were compared");
}

/// Another reader confirms that the streams of these tests are those of a big-endian machine: it reads their ZAPs
/// without swapping.
#[test]
fn turned_zaps_read_the_same() {
    let (mut micro, mut fat) = (0, 0);
    for (case, stream) in [
        ("05-names", "full.zstream"),
        ("06-xattr", "dir-legacy-full.zstream"),
        ("07-special", "full.zstream"),
        ("13-quota-names", "n1-full.zstream"),
    ] {
        let file = corpus().join(case).join(stream);
        let Ok(bytes) = std::fs::read(&file) else { continue };
        let twin = new_pool();
        receive_from(&twin, "tank/x", &bytes[..], &ReceiveOptions::default()).unwrap();
        let objset = twin.catalog().objset(&snapshots(&twin, "tank/x")[0]);
        for object in objset.objects(0).map(Result::unwrap) {
            let Ok(zap) = Zap::open(&objset, object) else { continue };
            let mut big = MemoryObject { dnode: zpl_dnode(&objset, object), ..Default::default() };
            let size = u64::from(big.dnode.block_size);
            for blkid in 0..=objset.last_block(object).unwrap().unwrap() {
                let mut block = vec![0; size as usize];
                objset.read(object, blkid * size, &mut block).unwrap();
                for (at, len) in zap_fields(&block) {
                    block[at..at + len].reverse();
                }
                big.write(blkid * size, &block);
            }
            let big = MemoryObjects { objects: [(object, big)].into() };
            let turned = Zap::open(&big, object).unwrap();
            assert_eq!(turned.count(), zap.count(), "{case} object {object}");
            let entries = zap.entries(Cursor::START).map(Result::unwrap);
            assert!(entries.eq(turned.entries(Cursor::START).map(Result::unwrap)), "{case} object {object}");
            *(if zap.is_micro() { &mut micro } else { &mut fat }) += 1;
        }
    }
    assert!(micro > 10 && fat > 0, "{micro} micro and {fat} fat ZAPs were read");
}

fn zpl_dnode(objset: &Objset, object: u64) -> snowmelt_zpl::Dnode {
    snowmelt_zpl::Objects::dnode(objset, object).unwrap().unwrap()
}

/// The raw blocks of a big-endian machine: they are marked as of the other byte order in every stream sent from here.
#[test]
fn raw_blocks_of_the_other_order_say_so() {
    let mut out = snowmelt_stream::Writer::with_order(Vec::new(), ByteOrder::Big);
    let bytes = std::fs::read(corpus().join("11-raw").join("ccmraw-w-full.zstream")).unwrap();
    let (mut reader, mut payload) = (Reader::new(&bytes[..]), Vec::new());
    while let Some(at) = reader.next(&mut payload).unwrap() {
        out.record(&at.record, &payload).unwrap();
    }
    let datasets = new_pool();
    let big = out.into_inner().unwrap();
    receive_from(&datasets, "tank/x", &big[..], &ReceiveOptions::default()).unwrap();
    let snapshot = snapshots(&datasets, "tank/x").remove(0);
    let objset = datasets.catalog().objset(&snapshot);
    for item in objset.view().range(&[], None) {
        let (key, entry) = item.unwrap();
        if let ObjsetKey::Dnode { object } = ObjsetKey::decode(&key).unwrap() {
            let raw = Dnode::decode(&entry.value).unwrap().raw.unwrap();
            assert_ne!(raw.flags & snowmelt_stream::Object::RAW_BYTESWAP, 0, "object {object}");
        }
    }
    let (mut seen, swapped) = (0, snowmelt_stream::Write::RAW_BYTESWAP);
    for (record, _) in sent(&datasets, &snapshot, None, true) {
        let flags = match record {
            Record::Object(object) => object.flags,
            Record::Write(write) => write.flags,
            Record::Spill(spill) => spill.flags,
            Record::ObjectRange(range) => range.flags,
            _ => continue,
        };
        assert_ne!(flags & swapped, 0, "{record:?}");
        seen += 1;
    }
    assert!(seen > 20, "only {seen} records");
}

#[test]
fn a_package_of_the_other_order_is_unpacked() {
    let case = corpus().join("09-replicate");
    let mut packages = 0;
    for entry in std::fs::read_dir(&case).unwrap() {
        let file = entry.unwrap().path();
        let stream = file.file_name().unwrap().to_string_lossy().into_owned();
        if !stream.ends_with(".zstream") {
            continue;
        }
        let bytes = std::fs::read(&file).unwrap();
        let (twin, turned) = (new_pool(), new_pool());
        let options = ReceiveOptions::default();
        // Incremental streams are in the chains.
        if receive_from(&twin, "tank/x", &bytes[..], &options).is_err() {
            continue;
        }
        receive_from(&turned, "tank/x", &to_big_endian(&bytes, &twin)[..], &options).unwrap();
        let [count, _] = same_everywhere(&stream, &twin, &turned, &BTreeMap::new());
        let properties = |datasets: &Datasets| {
            let catalog = datasets.catalog();
            let all = catalog.descendants(catalog.root().unwrap()).unwrap();
            all.iter()
                .map(|dataset| format!("{:?}", catalog.stored_properties(dataset.id, 0)))
                .collect::<Vec<_>>()
        };
        assert_eq!(properties(&twin), properties(&turned), "{stream}");
        packages += usize::from(count > 1);
    }
    assert!(packages > 0, "no package was found");
}

/// Streams from before OpenZFS 0.6.4: the records have no checksums, and END has that of everything.
#[test]
fn streams_without_record_checksums_are_received() {
    for order in [ByteOrder::Little, ByteOrder::Big] {
        let (twin, old) = (new_pool(), new_pool());
        for file in ["full-0.zstream", "inc-0-1.zstream"] {
            let bytes = std::fs::read(corpus().join("01-basic").join(file)).unwrap();
            receive_from(&twin, "tank/x", &bytes[..], &ReceiveOptions::default()).unwrap();
            let bytes = if order == ByteOrder::Big { to_big_endian(&bytes, &twin) } else { bytes };
            let stripped = without_record_checksums(&bytes, order);
            let (mut reader, mut payload) = (Reader::new(&stripped[..]), Vec::new());
            while reader.next(&mut payload).unwrap().is_some() {}
            assert!(!reader.has_record_checksums());
            receive_from(&old, "tank/x", &stripped[..], &ReceiveOptions::default()).unwrap();
            // With one wrong byte, the whole stream is refused at END.
            let mut damaged = stripped;
            let middle = damaged.len() / 2;
            damaged[middle] ^= 1;
            let before = listing(&old);
            receive_from(&old, "tank/y", &damaged[..], &ReceiveOptions::default()).unwrap_err();
            assert_eq!(listing(&old), before);
        }
        check(&old, "streams of old");
        match order {
            ByteOrder::Big => assert_eq!(same_everywhere("old", &twin, &old, &BTreeMap::new())[0], 2),
            ByteOrder::Little => {
                for snapshot in snapshots(&twin, "tank/x") {
                    let full = snapshot.full_name();
                    assert_eq!(digest(&twin, &full), digest(&old, &full));
                }
            }
        }
    }
}

/// Clears the checksums of all records, and corrects that of END.
fn without_record_checksums(stream: &[u8], order: ByteOrder) -> Vec<u8> {
    const LEN: usize = 312;
    let mut places = Vec::new();
    let (mut reader, mut payload) = (Reader::new(stream), Vec::new());
    while let Some(at) = reader.next(&mut payload).unwrap() {
        places.push((at.offset as usize, at.record));
    }
    let mut out = stream.to_vec();
    for (at, record) in &places {
        if !matches!(record, Record::Begin(_)) {
            out[at + LEN - 32..at + LEN].fill(0);
        }
    }
    let (end, _) = places.last().unwrap();
    let mut sum = snowmelt_stream::Fletcher4::new();
    sum.update_in(order, &out[..*end]);
    for (index, word) in sum.state().into_iter().enumerate() {
        let word = if order == ByteOrder::Big { word.to_be_bytes() } else { word.to_le_bytes() };
        out[end + 8 + index * 8..end + 16 + index * 8].copy_from_slice(&word);
    }
    out
}
