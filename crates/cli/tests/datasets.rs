//! Creating, renaming, cloning, holding, rolling back and destroying datasets and snapshots.

mod common;

use common::Scratch;

fn scratch() -> Scratch {
    let scratch = Scratch::with_pool();
    scratch.ok("create tank/a");
    for name in ["one", "two", "three", "four"] {
        scratch.ok(&format!("snapshot tank/a@{name}"));
    }
    scratch
}

fn snapshots(scratch: &Scratch) -> String {
    scratch.ok("list -H -o name -t snapshot -r tank").replace('\n', " ")
}

#[test]
fn create_says_why_not() {
    let scratch = scratch();
    for (line, message) in [
        ("create tank/a", "cannot create 'tank/a': dataset already exists\n"),
        ("create tank/x/y", "cannot create 'tank/x/y': parent does not exist\n"),
        ("create nopool/x", "cannot create 'nopool/x': no such pool 'nopool'\n"),
        (
            "create tank/x@y",
            "cannot create 'tank/x@y': '@' is not allowed in the name of a filesystem or volume\n",
        ),
        ("create -o frob=1 tank/x", "cannot create 'tank/x': invalid property 'frob'\n"),
        (
            "create -o encryption=on tank/x",
            "cannot create 'tank/x': encrypted datasets cannot be created, only received as raw streams\n",
        ),
    ] {
        assert_eq!(scratch.fails(1, line), message, "{line}");
    }
    scratch.ok("create -p tank/a");
    assert_eq!(
        scratch.ok("create -pnv tank/x/y"),
        "would create ancestors of tank/x/y\nwould create tank/x/y\n"
    );
    assert_eq!(scratch.ok("create -P -o atime=off tank/z"), "create\ttank/z\nproperty\tatime\toff\n");
    scratch.ok("create -p tank/x/y");
    assert_eq!(scratch.ok("list -Ho name -r tank/x"), "tank/x\ntank/x/y\n");
}

#[test]
fn snapshots_are_taken_together_or_not_at_all() {
    let scratch = scratch();
    scratch.ok("create tank/b");
    assert_eq!(
        scratch.fails(1, "snapshot tank/b@one tank/a@one"),
        "cannot create snapshot 'tank/a@one': dataset already exists\nno snapshots were created\n"
    );
    assert_eq!(
        scratch.fails(1, "snapshot tank/a@one"),
        "cannot create snapshot 'tank/a@one': dataset already exists\n"
    );
    assert_eq!(scratch.ok("list -Ho name -t snapshot tank/b"), "");
    assert_eq!(
        scratch.fails(1, "snapshot tank/b@x tank/b@y"),
        "cannot create snapshot 'tank/b@y': multiple snapshots of same fs not allowed\nno snapshots were created\n"
    );
    scratch.ok("snapshot -r -o com.x:y=z tank@all");
    assert_eq!(
        scratch
            .ok("get -H -o name,value com.x:y -t snapshot -r tank")
            .lines()
            .filter(|l| l.ends_with('z'))
            .count(),
        3
    );
    assert_eq!(
        scratch.fails(2, "snapshot tank/a").lines().next(),
        Some("'tank/a' is not a snapshot: a name with '@' is needed")
    );
}

#[test]
fn destroy_of_snapshots_by_list_and_range() {
    let scratch = scratch();
    assert_eq!(
        scratch.ok("destroy -nv tank/a@one%three"),
        "would destroy tank/a@one\nwould destroy tank/a@two\nwould destroy tank/a@three\nwould reclaim 0B\n"
    );
    assert_eq!(
        scratch.ok("destroy -np tank/a@two,four"),
        "destroy\ttank/a@two\ndestroy\ttank/a@four\nreclaim\t0\n"
    );
    assert_eq!(scratch.ok("destroy -v tank/a@two"), "will destroy tank/a@two\nwill reclaim 0B\n");
    scratch.ok("destroy tank/a@three%");
    assert_eq!(snapshots(&scratch), "tank/a@one ");
    assert_eq!(
        scratch.fails(1, "destroy tank/a@three"),
        "could not find any snapshots to destroy; check snapshot names.\n"
    );
    assert_eq!(scratch.fails(1, "destroy tank/none@x"), "cannot open 'tank/none': dataset does not exist\n");
}

#[test]
fn holds_keep_snapshots() {
    let scratch = scratch();
    scratch.ok("hold keep:me tank/a@one tank/a@two");
    assert_eq!(
        scratch.fails(1, "hold keep:me tank/a@one"),
        "cannot hold snapshot 'tank/a@one': tag already exists on this dataset\n"
    );
    assert_eq!(
        scratch.fails(1, "destroy tank/a@one,two,three"),
        "cannot destroy snapshot tank/a@one: it's being held. Run 'snowmelt holds -r tank/a@one' to see holders.\n\
         cannot destroy snapshot tank/a@two: it's being held. Run 'snowmelt holds -r tank/a@two' to see holders.\n"
    );
    assert_eq!(snapshots(&scratch), "tank/a@one tank/a@two tank/a@three tank/a@four ");
    let out = scratch.ok("holds -H tank/a@one");
    let fields: Vec<_> = out.trim_end().split('\t').collect();
    assert_eq!(fields[..2], ["tank/a@one", "keep:me"]);
    assert_eq!(fields.len(), 3);
    assert!(
        scratch
            .ok("holds -Hp tank/a@one")
            .trim_end()
            .rsplit('\t')
            .next()
            .is_some_and(|t| t.parse::<u64>().is_ok())
    );
    assert!(scratch.ok("holds tank/a@one").starts_with("NAME        TAG      TIMESTAMP\n"));
    assert_eq!(scratch.ok("holds -H tank/a@three"), "");
    assert_eq!(scratch.ok("list -Ho userrefs tank/a@one"), "1\n");
    scratch.ok("destroy -d tank/a@one");
    assert_eq!(scratch.ok("get -Ho value defer_destroy tank/a@one"), "on\n");
    scratch.ok("release keep:me tank/a@one tank/a@two");
    assert_eq!(snapshots(&scratch), "tank/a@two tank/a@three tank/a@four ");
    assert_eq!(
        scratch.fails(1, "release keep:me tank/a@two"),
        "cannot release hold from snapshot 'tank/a@two': no such tag on this dataset\n"
    );
    assert_eq!(scratch.fails(1, "hold x tank/a"), "'tank/a' is not a snapshot\n");
}

#[test]
fn destroy_of_datasets_tells_what_is_in_the_way() {
    let scratch = scratch();
    scratch.ok("create tank/a/b");
    assert_eq!(
        scratch.fails(1, "destroy tank/a"),
        "cannot destroy 'tank/a': filesystem has children\nuse '-r' to destroy the following datasets:\n\
         tank/a@one\ntank/a@two\ntank/a@three\ntank/a@four\ntank/a/b\n"
    );
    assert_eq!(
        scratch.fails(1, "destroy tank"),
        "cannot destroy 'tank': operation does not apply to pools\n\
         use 'snowmelt destroy -r tank' to destroy all datasets in the pool\n\
         use 'snowmelt pool destroy tank' to destroy the pool itself\n"
    );
    scratch.ok("clone tank/a@two tank/c");
    assert!(
        scratch
            .fails(1, "destroy -r tank/a")
            .contains("use '-R' to destroy the following datasets:\ntank/c\n")
    );
    assert!(scratch.fails(1, "destroy tank/a@two").contains("snapshot has dependent clones"));
    scratch.ok("destroy -R tank/a");
    assert_eq!(scratch.ok("list -Ho name -t all"), "tank\n");
    scratch.ok("create tank/x");
    scratch.ok("snapshot -r tank@s");
    scratch.ok("destroy -r tank");
    assert_eq!(scratch.ok("list -Ho name -t all"), "tank\n");
    assert!(scratch.ok("check tank").starts_with("tank: no errors"));
}

#[test]
fn bookmarks() {
    let scratch = scratch();
    scratch.ok("bookmark tank/a@one tank/a#one");
    scratch.ok("bookmark tank/a#one #copy");
    assert_eq!(
        scratch.fails(1, "bookmark tank/a@two tank/a#one"),
        "cannot create bookmark 'tank/a#one': bookmark exists\n"
    );
    assert_eq!(
        scratch.fails(1, "bookmark tank/a@none #x"),
        "cannot open 'tank/a@none': dataset does not exist\n"
    );
    scratch.ok("destroy tank/a#one");
    assert_eq!(scratch.fails(1, "destroy tank/a#one"), "bookmark 'tank/a#one' does not exist.\n");
    assert_eq!(scratch.ok("list -Ho name -t bookmark tank/a"), "tank/a#copy\n");
}

#[test]
fn rollback_clone_promote_rename() {
    let scratch = scratch();
    scratch.ok("bookmark tank/a@four #four");
    assert_eq!(
        scratch.fails(1, "rollback tank/a@two"),
        "cannot rollback to 'tank/a@two': more recent snapshots or bookmarks exist\n\
         use '-r' to force deletion of the following snapshots and bookmarks:\n\
         tank/a@three\ntank/a@four\ntank/a#four\n"
    );
    scratch.ok("rollback -r tank/a@two");
    assert_eq!(scratch.ok("list -Ho name -t all -r tank/a"), "tank/a\ntank/a@one\ntank/a@two\n");
    scratch.ok("clone -o atime=off tank/a@one tank/c");
    assert_eq!(scratch.ok("get -Ho value origin,atime tank/c"), "tank/a@one\noff\n");
    assert_eq!(scratch.ok("get -Ho value clones tank/a@one"), "tank/c\n");
    assert_eq!(
        scratch.fails(1, "clone tank/a@one tank/c"),
        "cannot create 'tank/c': dataset already exists\n"
    );
    assert_eq!(scratch.fails(1, "promote tank/a"), "cannot promote 'tank/a': not a cloned filesystem\n");
    scratch.ok("promote tank/c");
    assert_eq!(snapshots(&scratch), "tank/a@two tank/c@one ");
    scratch.ok("rename tank/c tank/renamed");
    scratch.ok("rename tank/renamed@one @uno");
    assert_eq!(snapshots(&scratch), "tank/a@two tank/renamed@uno ");
    assert_eq!(
        scratch.fails(1, "rename tank/a tank/renamed"),
        "cannot rename to 'tank/renamed': dataset already exists\n"
    );
    assert_eq!(
        scratch.fails(1, "rename tank/none tank/x"),
        "cannot open 'tank/none': dataset does not exist\n"
    );
    scratch.ok("rename -p tank/a tank/deep/er/a");
    assert_eq!(
        scratch.ok("list -Ho name -t filesystem -r tank/deep"),
        "tank/deep\ntank/deep/er\ntank/deep/er/a\n"
    );
    assert!(scratch.ok("check tank").starts_with("tank: no errors"));
}

#[test]
fn volumes_are_made_resized_and_sent() {
    let scratch = Scratch::with_pool();
    scratch.ok("create -V 64M tank/v");
    assert_eq!(
        scratch.ok("get -Hpo value volsize,volblocksize,type,refreservation tank/v"),
        format!("{}\n16384\nvolume\n{}\n", 64 << 20, (64 << 20) + (7 + 4 + 1) * 2 * 131_072)
    );
    scratch.ok("set volsize=128M tank/v");
    assert_eq!(
        scratch.ok("get -Hpo value volsize,refreservation tank/v"),
        format!("{}\n{}\n", 128 << 20, (128 << 20) + (7 + 8 + 1) * 2 * 131_072)
    );
    scratch.ok("create -s -V 10T -b 64K tank/sparse");
    assert_eq!(
        scratch.ok("get -Ho value volsize,volblocksize,refreservation tank/sparse"),
        "10T\n64K\nnone\n"
    );
    // The same output as ZFS 2.1.
    assert_eq!(scratch.ok("get -Ho value,source volblocksize tank/v"), "16K\tdefault\n");
    assert_eq!(scratch.ok("get -Ho value,source volblocksize tank/sparse"), "64K\t-\n");
    for (line, message) in [
        ("create -V 1P tank/x", "cannot create 'tank/x': out of space\n"),
        (
            "create -s -V 1G -b 3K tank/x",
            "cannot create 'tank/x': 'volblocksize' must be power of 2 from 512B to 16M\n",
        ),
        ("create tank/v/x", "cannot create 'tank/v/x': parent is not a filesystem\n"),
        (
            "set volsize=100K tank/v",
            "cannot set property for 'tank/v': 'volsize' must be a multiple of volume block size (16K)\n",
        ),
    ] {
        assert_eq!(scratch.fails(1, line), message, "{line}");
    }
    scratch.ok("snapshot tank/sparse@a");
    let stream = scratch.to_file("send tank/sparse@a", "sparse.zstream");
    scratch.receive("receive tank/copy", &stream);
    assert_eq!(scratch.ok("get -Ho value volsize,volblocksize tank/copy"), "10T\n64K\n");
    scratch.ok("check tank");
}
