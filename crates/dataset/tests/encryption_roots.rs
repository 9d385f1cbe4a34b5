//! Encryption roots: as in the package, and after clones, promotions and renames.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{check, corpus, name, new_pool, receive, receive_from};
use snowmelt_dataset::catalog::PropertyKind;
use snowmelt_dataset::receive::ReceiveOptions;
use snowmelt_dataset::send::{SendFlags, SendPlan};
use snowmelt_dataset::{CloneOptions, CreateOptions, DatasetError, Datasets, RenameOptions};
use snowmelt_stream::nvlist::{NvList, NvValue};
use snowmelt_stream::{HeaderType, Reader, Record, Writer};

fn root(datasets: &Datasets, dataset: &str) -> String {
    let catalog = datasets.catalog();
    let id = catalog.dataset(dataset).unwrap().id;
    catalog.dataset_by_id(catalog.encryption_root(id).unwrap()).unwrap().name
}

/// The root and key location in the error of reading a snapshot.
fn needed(datasets: &Datasets, snapshot: &str) -> (String, String) {
    let catalog = datasets.catalog();
    let objset = catalog.objset(&catalog.snapshot(&name(snapshot)).unwrap());
    match (objset.require_readable(), objset.read(1, 0, &mut [0; 8])) {
        (
            Err(DatasetError::Encrypted { root, location, .. }),
            Err(DatasetError::Encrypted { root: again, location: there, .. }),
        ) if root == again && location == there => (root, location),
        other => panic!("{snapshot}: {other:?}"),
    }
}

fn is_root_in_package(stream: &[u8]) -> Vec<(String, bool)> {
    let (mut reader, mut payload) = (Reader::new(stream), Vec::new());
    reader.next(&mut payload).unwrap().unwrap();
    let contents = NvList::unpack(&payload).unwrap();
    let of = |value: &NvValue| match value {
        NvValue::List(list) => (list.get_str("name").unwrap().to_owned(), list.contains("is_encroot")),
        other => panic!("{other:?}"),
    };
    contents.get_list("fss").unwrap().iter().map(|(_, value)| of(value)).collect()
}

fn send_all(datasets: &Datasets, snapshot: &str) -> Vec<u8> {
    let catalog = datasets.catalog();
    let to = catalog.snapshot(&name(snapshot)).unwrap();
    let flags = SendFlags { replicate: true, raw: true, ..SendFlags::default() };
    let mut out = Vec::new();
    SendPlan::replicate(&catalog, &to, None, &flags).unwrap().run(&mut out, &|_| {}).unwrap();
    out
}

/// A package of `tank/x@s` and its descendants. All are encrypted, and only the topmost is an encryption root.
fn package() -> Vec<u8> {
    let datasets = new_pool();
    receive(&datasets, "tank/x@s", &corpus().join("11-raw/ccmraw-w-full.zstream"), false).unwrap();
    receive(&datasets, "tank/x/kid@s", &corpus().join("15-corrupt/base-w.zstream"), false).unwrap();
    let own = send_all(&datasets, "tank/x@s");
    assert_eq!(
        is_root_in_package(&own),
        [("tank/x".to_owned(), true), ("tank/x/kid".to_owned(), true)],
        "streams of their own bring encryption roots"
    );
    let (mut reader, mut payload) = (Reader::new(&own[..]), Vec::new());
    let mut out = Writer::new(Vec::new());
    while let Some(at) = reader.next(&mut payload).unwrap() {
        let mut record = at.record;
        if let Record::Begin(begin) = &mut record
            && begin.header_type == HeaderType::Compound
        {
            let mut contents = NvList::unpack(&payload).unwrap();
            let Some((_, NvValue::List(all))) = contents.pairs.iter_mut().find(|(name, _)| name == "fss")
            else {
                panic!("no filesystems")
            };
            for (_, value) in &mut all.pairs {
                let NvValue::List(one) = value else { panic!("no list") };
                let inherits = one.get_str("name") == Some("tank/x/kid");
                assert!(!inherits || one.remove("is_encroot"));
                let Some((_, NvValue::List(props))) = one.pairs.iter_mut().find(|(name, _)| name == "props")
                else {
                    panic!("no properties")
                };
                assert!(props.remove("keylocation"));
                if !inherits {
                    props.insert("keylocation", "file:///etc/key");
                }
            }
            payload = contents.pack_xdr();
            begin.payload_len = u32::try_from(payload.len()).unwrap();
        }
        out.record(&record, &payload).unwrap();
    }
    out.into_inner().unwrap()
}

#[test]
fn packages_say_who_inherits() {
    let package = package();
    let datasets = new_pool();
    datasets.create_filesystem("tank/below", &CreateOptions::default()).unwrap();
    for top in ["tank/y", "tank/below/z"] {
        receive_from(&datasets, top, &package[..], &ReceiveOptions::default()).unwrap();
        assert_eq!([root(&datasets, top), root(&datasets, &format!("{top}/kid"))], [top, top]);
        let expected = (top.to_owned(), "file:///etc/key".to_owned());
        assert_eq!(needed(&datasets, &format!("{top}@s")), expected);
        assert_eq!(needed(&datasets, &format!("{top}/kid@s")), expected);
        let sent = is_root_in_package(&send_all(&datasets, &format!("{top}@s")));
        assert_eq!(sent, [(top.to_owned(), true), (format!("{top}/kid"), false)]);
    }
    let rename = |from: &str, to: &str| datasets.rename(&name(from), &name(to), RenameOptions::default());
    // A root can be moved with the datasets that inherit from it. Those cannot be moved away from it.
    rename("tank/y", "tank/below/y").unwrap();
    assert_eq!(needed(&datasets, "tank/below/y/kid@s").0, "tank/below/y");
    for to in ["tank/kid", "tank/below/z/other"] {
        let refused = rename("tank/below/y/kid", to).unwrap_err().to_string();
        assert!(refused.ends_with("cannot move encrypted child outside of its encryption root"), "{refused}");
    }
    rename("tank/below/y/kid", "tank/below/y/child").unwrap();
    check(&datasets, "renames");
}

#[test]
fn clones_have_the_key_of_their_origin() {
    let datasets = new_pool();
    receive_from(&datasets, "tank/y", &package()[..], &ReceiveOptions::default()).unwrap();
    datasets.clone_snapshot(&name("tank/y@s"), "tank/clone", &CloneOptions::default()).unwrap();
    datasets.clone_snapshot(&name("tank/y/kid@s"), "tank/kid", &CloneOptions::default()).unwrap();
    for dataset in ["tank/clone", "tank/kid"] {
        assert_eq!(root(&datasets, dataset), "tank/y");
    }
    // The clone of a dataset that is not a root does not become a root.
    datasets.promote("tank/kid").unwrap();
    for dataset in ["tank/y", "tank/y/kid", "tank/kid", "tank/clone"] {
        assert_eq!(root(&datasets, dataset), "tank/y");
    }
    datasets.promote("tank/clone").unwrap();
    for dataset in ["tank/y", "tank/y/kid", "tank/kid", "tank/clone"] {
        assert_eq!(root(&datasets, dataset), "tank/clone");
    }
    assert_eq!(needed(&datasets, "tank/kid@s").1, "file:///etc/key");
    let old = datasets.catalog().dataset("tank/y").unwrap().id;
    let left = datasets.catalog().stored_property(old, 0, PropertyKind::Received, "keylocation").unwrap();
    assert_eq!(left, None);
    check(&datasets, "promotions");
}

/// Streams of real ZFS: a tree before and after its key was changed.
#[test]
fn a_real_tree_has_one_root() {
    let case = corpus().join("11-raw");
    let full = case.join("tree-w-R.zstream");
    // It is too large for the repository.
    if !full.exists() {
        assert!(std::env::var_os("SNOWMELT_CORPUS").is_none(), "the corpus has no {}", full.display());
        return;
    }
    let datasets = new_pool();
    receive(&datasets, "tank/t", &full, false).unwrap();
    let check_all = |at: &str, location: &str| {
        for dataset in ["tank/t", "tank/t/kid", "tank/t/vol"] {
            let expected = ("tank/t".to_owned(), location.to_owned());
            assert_eq!(needed(&datasets, &format!("{dataset}@{at}")), expected, "{dataset}");
        }
    };
    check_all("c", "file:///tmp/gcmraw.key");
    receive(&datasets, "tank/t", &case.join("tree-w-R-after-change-key.zstream"), false).unwrap();
    check_all("d", "file:///tmp/new.key");
    let sent = is_root_in_package(&send_all(&datasets, "tank/t@d"));
    assert_eq!(sent.iter().filter(|(_, is_root)| *is_root).count(), 1, "{sent:?}");
    check(&datasets, "a real tree");
}
