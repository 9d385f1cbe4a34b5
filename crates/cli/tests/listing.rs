//! `list` and `get`: rows, columns, orders and sources.

mod common;

use common::Scratch;

fn scratch() -> Scratch {
    let scratch = Scratch::with_pool();
    scratch.ok("create -o compression=zstd tank/a");
    scratch.ok("create -p tank/a/b/c");
    scratch.ok("create -o com.example:owner=alice tank/d");
    scratch.ok("snapshot -r tank/a@two");
    scratch.ok("snapshot tank/a@one");
    scratch.ok("bookmark tank/a@two #mark");
    scratch
}

#[test]
fn datasets_by_name() {
    let scratch = scratch();
    let all = "tank\ntank/a\ntank/a/b\ntank/a/b/c\ntank/d\n";
    assert_eq!(scratch.ok("list -H -o name"), all);
    assert_eq!(scratch.ok("list -Ho name -r tank"), all);
    assert_eq!(scratch.ok("list -H -oname -d1 tank"), "tank\ntank/a\ntank/d\n");
    assert_eq!(scratch.ok("list -d0 -H -oname"), "tank\n");
    assert_eq!(scratch.ok("list -H -o name tank/d tank/a"), "tank/a\ntank/d\n");
}

#[test]
fn columns_are_aligned_as_zfs_aligns_them() {
    let scratch = scratch();
    assert_eq!(
        scratch.ok("list -o name,compression,userrefs,type -t filesystem,snapshot -r tank/a"),
        "NAME            COMPRESS        USERREFS  TYPE\n\
         tank/a          zstd                   -  filesystem\n\
         tank/a@two      -                      0  snapshot\n\
         tank/a@one      -                      0  snapshot\n\
         tank/a/b        zstd                   -  filesystem\n\
         tank/a/b@two    -                      0  snapshot\n\
         tank/a/b/c      zstd                   -  filesystem\n\
         tank/a/b/c@two  -                      0  snapshot\n"
    );
}

#[test]
fn snapshots_oldest_first_and_bookmarks() {
    let scratch = scratch();
    assert_eq!(scratch.ok("list -H -o name -t snapshot tank/a"), "tank/a@two\ntank/a@one\n");
    assert_eq!(
        scratch.ok("list -H -o name -t all -d 1 tank/a"),
        "tank/a\ntank/a@two\ntank/a@one\ntank/a#mark\ntank/a/b\n"
    );
    assert_eq!(scratch.ok("list -H -o name -t bookmark tank/a"), "tank/a#mark\n");
    assert_eq!(scratch.ok("list -H -o name -t snap -s name tank/a"), "tank/a@one\ntank/a@two\n");
    assert_eq!(scratch.ok("list -H -o name -t snap -S createtxg tank/a"), "tank/a@one\ntank/a@two\n");
    assert_eq!(scratch.ok("list -H -o name tank/a@one"), "tank/a@one\n");
    assert_eq!(scratch.ok("list -H -o name,userrefs -t bookmark tank/a"), "tank/a#mark\t-\n");
}

#[test]
fn a_bookmark_is_its_snapshot() {
    let scratch = scratch();
    let of = |name: &str| scratch.ok(&format!("list -Hp -t all -o guid,createtxg,creation {name}"));
    assert_eq!(of("tank/a@two"), of("tank/a#mark"));
    assert_ne!(of("tank/a@one"), of("tank/a#mark"));
}

#[test]
fn values_and_their_sources() {
    let scratch = scratch();
    assert_eq!(
        scratch.ok("get -H compression,atime,quota,com.example:owner,usedbysnapshots,origin tank/a/b"),
        "tank/a/b\tcompression\tzstd\tinherited from tank/a\n\
         tank/a/b\tatime\ton\tdefault\n\
         tank/a/b\tquota\tnone\tdefault\n\
         tank/a/b\tcom.example:owner\t-\t-\n\
         tank/a/b\tusedbysnapshots\t0B\t-\n\
         tank/a/b\torigin\t-\t-\n"
    );
    scratch.ok("set quota=10G compress=lz4 mountpoint=/srv tank/a");
    assert_eq!(
        scratch.ok("get -Hp -o value,source quota,compression,mountpoint tank/a"),
        "10737418240\tlocal\nlz4\tlocal\n/srv\tlocal\n"
    );
    assert_eq!(scratch.ok("get -H -o value,source mountpoint tank/a/b"), "/srv/b\tinherited from tank/a\n");
    scratch.ok("inherit compression tank/a");
    assert_eq!(scratch.ok("get -H -o value,source compression tank/a"), "on\tdefault\n");
    assert_eq!(scratch.ok("get -s local -H -o property all tank/a"), "quota\nmountpoint\n");
    assert_eq!(
        scratch.ok("get -H -o name,value com.example:owner -t filesystem -r tank"),
        "tank\t-\ntank/a\t-\ntank/a/b\t-\ntank/a/b/c\t-\ntank/d\talice\n"
    );
}

#[test]
fn get_for_people() {
    let scratch = scratch();
    assert_eq!(
        scratch.ok("get atime,compression tank/a"),
        "NAME    PROPERTY     VALUE           SOURCE\n\
         tank/a  atime        on              default\n\
         tank/a  compression  zstd            local\n"
    );
}

#[test]
fn get_all_leaves_out_what_has_no_value() {
    let scratch = scratch();
    let out = scratch.ok("get -Hp -o property,value all tank/a");
    let property = |name: &str| out.lines().find_map(|line| line.strip_prefix(&format!("{name}\t")));
    for missing in
        ["origin", "receive_resume_token", "keystatus", "encryptionroot", "volsize", "name", "clones"]
    {
        assert_eq!(property(missing), None, "{out}");
    }
    for (name, value) in
        [("type", "filesystem"), ("quota", "0"), ("recordsize", "131072"), ("encryption", "off")]
    {
        assert_eq!(property(name), Some(value), "{out}");
    }
    for number in ["guid", "createtxg", "creation", "used", "available", "written"] {
        assert!(property(number).is_some_and(|text| text.parse::<u64>().is_ok()), "{number}: {out}");
    }
    assert!(out.lines().all(|line| line.split('\t').all(|field| !field.is_empty())), "{out}");
    let snapshot = scratch.ok("get -H -o property all tank/a@one");
    let has = |name: &str| snapshot.lines().any(|line| line == name);
    assert!(has("userrefs") && !has("quota") && !has("volsize"), "{snapshot}");
}

#[test]
fn what_syncoid_and_zrepl_ask() {
    let scratch = scratch();
    let out = scratch.ok("get -Hpd 1 -t snapshot guid,creation,createtxg tank/a");
    assert_eq!(out.lines().count(), 6);
    assert!(out.lines().all(|line| line.split('\t').count() == 4), "{out}");
    // A dataset without snapshots is not an error.
    assert_eq!(scratch.ok("get -Hpd 1 -t snapshot guid,creation,createtxg tank/d"), "");
    assert_eq!(scratch.ok("get -H name tank/d"), "tank/d\tname\ttank/d\t-\n");
    assert_eq!(scratch.ok("get -H receive_resume_token tank/d"), "tank/d\treceive_resume_token\t-\t-\n");
    assert_eq!(scratch.ok("get -H -o value -p written@tank/a@two tank/a"), "0\n");
    // syncoid's probes. The first line must not say that the option or the property is unknown.
    assert!(!scratch.run("get -H -t snapshot '' ''").err.starts_with("invalid option"));
    assert!(!scratch.run("get -H createtxg ''").err.starts_with("bad property list"));
    let five = scratch.ok("list -H -p -o name,guid,createtxg,creation,userrefs -r -d 1 -t bookmark,snapshot -s createtxg tank/a");
    assert!(
        five.lines().all(|line| line.split('\t').filter(|field| !field.is_empty()).count() == 5),
        "{five}"
    );
    assert_eq!(five.lines().count(), 3);
}

#[test]
fn mistakes_are_told() {
    let scratch = scratch();
    for (line, first) in [
        ("list -t frob", "invalid type 'frob'"),
        ("list -o frob", "bad property list: invalid property 'frob'"),
        ("list -s frob", "invalid property 'frob'"),
        ("list -d x", "x is not an integer"),
        ("get frob tank", "bad property list: invalid property 'frob'"),
        ("get -o frob all tank", "invalid column name 'frob'"),
        ("get -s frob all tank", "invalid source 'frob'"),
    ] {
        let err = scratch.fails(2, line);
        assert_eq!(err.lines().next(), Some(first), "{line}");
        assert!(err.contains("usage:"), "{err}");
    }
    assert_eq!(scratch.fails(1, "list tank/none"), "cannot open 'tank/none': dataset does not exist\n");
    assert_eq!(
        scratch.fails(1, "get used tank/a@none"),
        "cannot open 'tank/a@none': dataset does not exist\n"
    );
    let said = scratch.run("list -H -o name tank/none tank/d");
    assert_eq!((said.code, said.out.as_str()), (1, "tank/d\n"));
}

#[test]
fn json_in_the_form_of_zfs() {
    let scratch = scratch();
    let json: serde_json::Value =
        serde_json::from_str(&scratch.ok("list -j -p -o name,used -t all -r tank/a")).unwrap();
    assert_eq!(json["output_version"]["command"], "zfs list");
    assert_eq!(json["datasets"]["tank/a"]["type"], "FILESYSTEM");
    assert_eq!(json["datasets"]["tank/a"]["properties"]["used"]["source"]["type"], "NONE");
    assert_eq!(json["datasets"]["tank/a@one"]["snapshot_name"], "one");
    let json: serde_json::Value =
        serde_json::from_str(&scratch.ok("get -j --json-int quota,compression tank/a/b")).unwrap();
    let properties = &json["datasets"]["tank/a/b"]["properties"];
    assert_eq!(properties["quota"]["value"], 0);
    assert_eq!(properties["compression"]["source"]["data"], "tank/a");
}

#[test]
fn set_and_inherit_refuse_as_zfs_does() {
    let scratch = scratch();
    for (line, message) in [
        ("set compression=lz5 tank/a", "cannot set property for 'tank/a': 'compression' must be one of "),
        ("set used=1 tank/a", "cannot set property for 'tank/a': 'used' is readonly\n"),
        (
            "set volsize=1G tank/a",
            "cannot set property for 'tank/a': 'volsize' does not apply to datasets of this type\n",
        ),
        (
            "set recordsize=100K tank/a",
            "cannot set property for 'tank/a': 'recordsize' must be power of 2 from 512B to 16M\n",
        ),
        (
            "set atime=on tank/a@one",
            "cannot set property for 'tank/a@one': this property can not be modified for snapshots\n",
        ),
        ("set atime=on tank/none", "cannot open 'tank/none': dataset does not exist\n"),
        (
            "inherit quota tank/a",
            "'quota' property cannot be inherited\nuse 'snowmelt set quota=none' to clear\n",
        ),
        ("inherit used tank/a", "used property is read-only\n"),
    ] {
        assert!(scratch.fails(1, line).starts_with(message), "{line}");
    }
    scratch.ok("set com.example:x=y tank/a@one");
    assert_eq!(scratch.ok("get -H com.example:x tank/a@one"), "tank/a@one\tcom.example:x\ty\tlocal\n");
    scratch.ok("inherit com.example:x tank/a@one");
    assert_eq!(scratch.ok("get -H -o value com.example:x tank/a@one"), "-\n");
}

#[test]
fn space_of_snapshots_is_the_same_alone_and_in_a_list() {
    let scratch = Scratch::with_home();
    scratch.ok("clone tank/home@tuesday tank/clone");
    for name in ["tank/home@third", "tank/clone@a", "tank/clone@b"] {
        scratch.ok(&format!("snapshot {name}"));
    }
    let columns = "name,used,written,referenced,logicalreferenced";
    let listed = scratch.ok(&format!("list -Hp -r -t snapshot -o {columns} tank"));
    assert_eq!(listed.lines().count(), 5, "{listed}");
    for line in listed.lines() {
        let name = line.split('\t').next().unwrap();
        assert_eq!(scratch.ok(&format!("list -Hp -o {columns} {name}")), format!("{line}\n"));
    }
}
