//! Details of `zfs` and `zpool` commands that tools and scripts rely on.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;

use common::mounting::Mounting;
use common::{Scratch, demo};

fn two_pools() -> Scratch {
    let scratch = Scratch::with_pool();
    scratch.ok("pool create dozer");
    scratch.ok("create tank/a");
    scratch.ok("create dozer/b");
    scratch
}

#[test]
fn one_command_changes_datasets_of_several_pools() {
    let scratch = two_pools();
    scratch.ok("set com.example:x=1 tank/a dozer/b tank");
    assert_eq!(scratch.ok("get -Ho value com.example:x tank/a dozer/b tank"), "1\n1\n1\n");
    // A dataset that does not exist does not stop the change of the others.
    let said = scratch.run("set com.example:x=2 tank/a nopool/x dozer/b");
    assert_eq!((said.code, said.err.as_str()), (1, "cannot open 'nopool/x': dataset does not exist\n"));
    assert_eq!(scratch.ok("get -Ho value com.example:x tank/a dozer/b"), "2\n2\n");
    scratch.ok("inherit com.example:x tank/a dozer/b");
    assert_eq!(scratch.ok("get -Ho name,value com.example:x tank/a dozer/b"), "dozer/b\t-\ntank/a\t1\n");
    scratch.ok("snapshot tank/a@s");
    scratch.ok("snapshot dozer/b@s");
    scratch.ok("hold keep tank/a@s dozer/b@s");
    let holds = scratch.ok("holds -H tank/a@s dozer/b@s");
    assert_eq!(
        holds.lines().map(|line| line.split('\t').next().unwrap()).collect::<Vec<_>>(),
        ["tank/a@s", "dozer/b@s"]
    );
    scratch.ok("release keep tank/a@s dozer/b@s");
    assert_eq!(scratch.ok("holds -H tank/a@s dozer/b@s"), "");
}

#[test]
fn a_missing_bookmark_is_told_in_the_words_that_tools_match() {
    let scratch = two_pools();
    for (line, name) in
        [("get guid tank/a#b", "tank/a#b"), ("list tank/a#b", "tank/a#b"), ("get guid tank/x#b", "tank/x#b")]
    {
        let missing = format!("cannot open '{name}': no such pool or dataset\n");
        assert_eq!(scratch.fails(1, line), missing, "{line}");
    }
}

#[test]
fn counts_of_a_pool_have_no_unit() {
    let scratch = Scratch::with_pool();
    assert_eq!(scratch.ok("pool list -Ho freeing,leaked tank"), "0\t0\n");
}

#[test]
fn the_size_of_a_new_volume_is_rounded_up() {
    let scratch = Scratch::with_pool();
    scratch.ok("create -s -V 100K tank/v");
    scratch.ok("create -s -b 64K -V 1 tank/w");
    assert_eq!(scratch.ok("get -Hpo value volsize tank/v tank/w"), "114688\n65536\n");
}

#[test]
fn create_with_parents_minds_another_type() {
    let scratch = two_pools();
    scratch.ok("create -p tank/a");
    assert_eq!(
        scratch.fails(1, "create -p -V 1M tank/a"),
        "cannot create 'tank/a': dataset already exists\n"
    );
    scratch.ok("create -s -V 1M tank/v");
    scratch.ok("create -p -s -V 1M tank/v");
    assert_eq!(scratch.fails(1, "create -p tank/v"), "cannot create 'tank/v': dataset already exists\n");
}

#[test]
fn options_that_are_given_twice_are_refused() {
    let scratch = Scratch::with_home();
    for (line, why) in [
        ("receive -x atime -x atime tank/x", "property 'atime' specified multiple times"),
        ("receive -o atime=on -o atime=off tank/x", "property 'atime' specified multiple times"),
        ("receive -o atime=on -x atime tank/x", "property 'atime' specified multiple times"),
        ("send -n -i @a -i @a tank/home@b", "only one incremental source can be given"),
    ] {
        let said = scratch.run_with_input(line, &demo("full.zstream"));
        assert_eq!((said.code, said.err.lines().next()), (2, Some(why)), "{line}");
    }
}

#[test]
fn lists_of_snapshots_may_have_empty_names() {
    let scratch = two_pools();
    for name in ["s1", "s2", "s3", "s4"] {
        scratch.ok(&format!("snapshot tank/a@{name}"));
    }
    scratch.ok("destroy tank/a@s1,@,s2,,,,s3,");
    assert_eq!(scratch.ok("list -Ho name -t snapshot tank/a"), "tank/a@s4\n");
    let nothing = "could not find any snapshots to destroy; check snapshot names.\n";
    assert_eq!(scratch.fails(1, "destroy tank/a@,"), nothing);
}

#[test]
fn the_key_of_what_has_none_has_no_place() {
    let scratch = two_pools();
    assert_eq!(
        scratch.fails(1, "set keylocation=prompt tank/a"),
        "cannot set property for 'tank/a': keylocation may only be set on encryption roots\n"
    );
    scratch.ok("set keylocation=none tank/a");
}

#[test]
fn zfs_cuts_a_long_list_of_clones() {
    let scratch = two_pools();
    scratch.ok("snapshot tank/a@s");
    let long = "x".repeat(200);
    for number in 10..31 {
        scratch.ok(&format!("clone tank/a@s tank/{long}{number}"));
    }
    assert_eq!(scratch.ok("zfs list -Ho clones tank/a@s").len(), 4096);
    assert_eq!(scratch.ok("list -Ho clones tank/a@s").split(',').count(), 21);
    assert!(scratch.ok("zfs list -jo clones tank/a@s").contains(&format!("tank/{long}30")));
}

#[test]
fn a_clone_has_bookmarks_of_its_history() {
    let scratch = two_pools();
    scratch.ok("snapshot tank/a@early");
    scratch.ok("snapshot tank/a@origin");
    scratch.ok("snapshot tank/a@late");
    scratch.ok("clone tank/a@origin tank/c");
    scratch.ok("bookmark tank/a@early tank/c#early");
    scratch.ok("bookmark tank/a@origin tank/c#origin");
    assert_eq!(
        scratch.fails(1, "bookmark tank/a@late tank/c#late"),
        "cannot create bookmark 'tank/c#late': source is not an ancestor of the new bookmark's dataset\n"
    );
    let guids = scratch.ok("get -Hpo value guid tank/a@early tank/c#early");
    let guids: Vec<_> = guids.lines().collect();
    assert_eq!(guids[0], guids[1]);
    // An incremental stream from a bookmark, whether or not its snapshot still exists.
    scratch.ok("snapshot tank/c@1");
    let first = scratch.to_file("send -i #origin tank/c@1", "one.zstream");
    scratch.receive("receive tank/copy", &scratch.to_file("send tank/a@origin", "origin.zstream"));
    scratch.receive("receive tank/copy", &first);
}

#[test]
fn diff_wants_the_earlier_snapshot_first() {
    let scratch = Scratch::with_home();
    let names = scratch.ok("list -Ho name -t snapshot tank/home");
    let names: Vec<_> = names.lines().collect();
    assert!(!scratch.ok(&format!("diff {} {}", names[0], names[1])).is_empty());
    let refused = scratch.fails(1, &format!("diff {} {}", names[1], names[0]));
    assert_eq!(refused, format!("'{}' is not an earlier snapshot from the same fs\n", names[1]));
}

#[test]
fn diff_names_files_where_they_would_be_mounted() {
    let scratch = Scratch::with_home();
    let names = scratch.ok("list -Ho name -t snapshot tank/home");
    let names: Vec<_> = names.lines().collect();
    let diff = format!("diff -H {} {}", names[0], names[1]);
    assert!(
        scratch.ok(&diff).lines().all(|line| line.split('\t').nth(1).unwrap().starts_with("/tank/home/"))
    );
    scratch.ok("set mountpoint=/srv/home tank/home");
    assert!(scratch.ok(&diff).lines().all(|line| line.split('\t').nth(1).unwrap().starts_with("/srv/home/")));
    scratch.ok("set mountpoint=none tank/home");
    assert!(
        scratch.ok(&diff).lines().all(|line| line.split('\t').nth(1).unwrap().starts_with("/tank/home/"))
    );
}

#[test]
fn a_mistyped_target_of_receive_is_not_made() {
    let scratch = Scratch::with_home();
    let newest = scratch.ok("list -Ho name -t snapshot tank/home").lines().last().unwrap().to_owned();
    let plain = scratch.to_file(&format!("send {newest}"), "plain.zstream");
    let package = scratch.to_file(&format!("send -R {newest}"), "package.zstream");
    let before = scratch.ok("list -Ho name");
    for option in ["-d", "-e", "-nd", "-ne"] {
        for stream in [&plain, &package] {
            let said = scratch.run_with_input(&format!("receive {option} tank/mistyped"), stream);
            assert_eq!(
                (said.code, said.err.as_str()),
                (1, "cannot receive: specified fs (tank/mistyped) does not exist\n"),
                "{option}"
            );
        }
    }
    assert_eq!(scratch.ok("list -Ho name"), before);
    scratch.ok("create tank/there");
    scratch.receive("receive -d tank/there", &plain);
    scratch.ok("create tank/here");
    scratch.receive("receive -e tank/here", &package);
    assert!(scratch.ok("list -Ho name").contains("tank/there/home\n"));
    assert!(scratch.ok("list -Ho name").contains("tank/here/home\n"));
}

#[test]
fn a_filesystem_is_sent_as_it_is_now() {
    let scratch = Scratch::with_home();
    let names = scratch.ok("list -Ho name -t snapshot tank/home");
    let names: Vec<_> = names.lines().collect();
    let full = scratch.to_file("send tank/home", "full.zstream");
    scratch.receive("receive tank/copy", &full);
    assert_eq!(scratch.ok("list -Ho name -t snapshot tank/copy"), "tank/copy@--head--\n");
    assert_eq!(
        scratch.ok("manifest tank/copy@--head--"),
        scratch.ok(&format!("manifest {}", names[names.len() - 1]))
    );
    let first = scratch.to_file(&format!("send {}", names[0]), "first.zstream");
    scratch.receive("receive tank/other", &first);
    let short = names[0].split('@').nth(1).unwrap();
    let rest = scratch.to_file(&format!("send -i @{short} tank/home"), "rest.zstream");
    scratch.receive("receive tank/other", &rest);
    assert_eq!(scratch.ok("manifest tank/other@--head--"), scratch.ok("manifest tank/copy@--head--"));
    assert_eq!(scratch.run("send -R tank/home").code, 2);
}

/// The sender destroyed filesystems with clones, and volumes. The copy destroys all of them, or nothing.
#[test]
fn a_forced_receive_of_a_package_destroys_all_or_nothing() {
    let scratch = Scratch::with_pool();
    for line in [
        "create tank/src",
        "create tank/src/fs",
        "snapshot tank/src/fs@fsnap",
        "clone tank/src/fs@fsnap tank/src/clone",
        "create -s -V 1M tank/src/vol",
        "snapshot tank/src/vol@v",
        "clone tank/src/vol@v tank/src/vclone",
        "create tank/src/kept",
        "snapshot -r tank/src@one",
    ] {
        scratch.ok(line);
    }
    scratch.receive("receive tank/dst", &scratch.to_file("send -R tank/src@one", "one.zstream"));
    for line in ["destroy -R tank/src/fs", "destroy -R tank/src/vol", "snapshot -r tank/src@two"] {
        scratch.ok(line);
    }
    let stream = scratch.to_file("send -R -I @one tank/src@two", "two.zstream");
    // One of them cannot be destroyed, so none is.
    scratch.ok("hold keep tank/dst/clone@one");
    let before = scratch.ok("list -Hro name -t all tank/dst");
    let said = scratch.run_with_input("receive -F tank/dst", &stream);
    assert_eq!(said.code, 1, "{said:?}");
    assert_eq!(scratch.ok("list -Hro name -t all tank/dst"), before);
    scratch.ok("release keep tank/dst/clone@one");
    let said = scratch.run_with_input("receive -F tank/dst", &stream);
    assert!(said.code == 0 && said.err.contains("destroying tank/dst/clone\n"), "{said:?}");
    assert_eq!(scratch.ok("list -Hro name tank/dst"), "tank/dst\ntank/dst/kept\n");
    scratch.ok("check tank");
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn what_was_written_a_moment_ago_is_in_a_diff_and_in_a_stream() {
    let world = Mounting::new(Scratch::with_pool());
    let scratch = &world.scratch;
    scratch.ok("create tank/fs");
    scratch.ok("mount tank/fs mnt");
    scratch.ok("snapshot tank/fs@one");
    fs::write(world.dir().join("new"), b"content").unwrap();
    let path = world.dir().join("new").canonicalize().unwrap();
    assert!(scratch.ok("diff -H tank/fs@one").contains(&format!("+\t{}\n", path.display())));
    fs::write(world.dir().join("newer"), b"more").unwrap();
    scratch.receive("receive tank/copy", &scratch.to_file("send tank/fs", "head.zstream"));
    assert_eq!(scratch.ok("cat tank/copy:newer"), "more");
    // A path stands for the filesystem that is mounted there.
    assert_eq!(
        scratch.ok(&format!("list -Ho name {}", world.dir().canonicalize().unwrap().display())),
        "tank/fs\n"
    );
    assert_eq!(scratch.ok(&format!("get -Ho name type {}", path.display())), "tank/fs\n");
    let outside = scratch.path().canonicalize().unwrap();
    let refused = format!("cannot open '{}': not a ZFS filesystem\n", outside.display());
    assert_eq!(scratch.fails(1, &format!("list {}", outside.display())), refused);
    scratch.ok("unmount tank/fs");
    world.wait_until_closed();
}

#[test]
fn a_stream_brings_its_own_version() {
    let scratch = two_pools();
    scratch.ok("snapshot tank/a@s");
    let stream = scratch.to_file("send tank/a@s", "version.zstream");
    let said = scratch.run_with_input("receive -o version=1 tank/copy", &stream);
    assert_eq!(
        (said.code, said.err.as_str()),
        (1, "cannot receive into 'tank/copy': property 'version' cannot be set on receive\n")
    );
}

#[test]
fn what_a_stream_is_written_in_is_not_excluded() {
    let scratch = two_pools();
    scratch.ok("snapshot tank/a@s");
    let stream = scratch.to_file("send tank/a@s", "exclude.zstream");
    for name in ["version", "normalization", "volsize"] {
        let said = scratch.run_with_input(&format!("receive -x {name} tank/copy"), &stream);
        let refused = format!("cannot receive into 'tank/copy': property '{name}' cannot be excluded\n");
        assert_eq!((said.code, said.err), (1, refused));
    }
    let said = scratch.run_with_input("receive -o volsize=1G tank/copy", &stream);
    assert_eq!(said.code, 1, "{said:?}");
    assert_eq!(scratch.run_with_input("receive -x encryption -x mountpoint tank/copy", &stream).code, 0);
}

#[test]
fn versions_are_shown_and_stay() {
    let scratch = two_pools();
    assert!(scratch.ok("zfs upgrade").ends_with("All filesystems have it.\n"));
    assert!(scratch.ok("zfs upgrade -v").contains(" 5   "));
    let all = "0 filesystems upgraded\n4 filesystems already at this version\n";
    assert_eq!(scratch.ok("zfs upgrade -a"), all);
    assert_eq!(scratch.run("zfs upgrade tank/x").code, 1);
    assert!(scratch.ok("zpool upgrade -v").contains("Snapshot properties"));
    assert!(scratch.ok("zpool upgrade").starts_with("This system supports ZFS pool feature flags.\n"));
    assert_eq!(scratch.fails(1, "zpool upgrade nopool"), "cannot open 'nopool': no such pool\n");
    assert_eq!(
        scratch.fails(1, "create -o version=1 tank/old"),
        "cannot create 'tank/old': a new filesystem always has version 5\n"
    );
    scratch.ok("create -o version=5 tank/new");
    scratch.ok("snapshot tank/new@s");
    assert!(scratch.fails(1, "clone -o version=4 tank/new@s tank/clone").contains("always has version 5"));
}

#[test]
fn accounting_of_users_has_no_value_and_is_not_set() {
    let scratch = two_pools();
    assert_eq!(
        scratch.ok("get -H userused@root,groupquota@0 tank/a"),
        "tank/a\tuserused@root\t-\t-\ntank/a\tgroupquota@0\t-\t-\n"
    );
    assert_eq!(scratch.ok("list -Ho name,userused@root tank/a"), "tank/a\t-\n");
    assert!(scratch.fails(1, "set userquota@root=1G tank/a").contains("are not supported"));
    assert_eq!(scratch.run("get userused@ tank/a").code, 2);
}

#[test]
fn options_end_at_the_first_word_where_posix_is_asked_for() {
    let scratch = two_pools();
    assert_eq!(scratch.run("zfs get all tank -H").code, 0);
    let mut command = scratch.command("zfs get all tank -H");
    let said = common::Said::of({
        command.env("POSIXLY_CORRECT", "1");
        command
    });
    assert_eq!(said.code, 1, "{said:?}");
}

#[test]
fn verbs_of_properties_print_which_there_are() {
    let scratch = two_pools();
    let table = scratch.fails(2, "zfs inherit");
    assert!(table.contains("\n\tmountpoint ") && !table.contains("\n\tquota "), "{table}");
    assert!(!scratch.fails(2, "zfs list -x").contains("PROPERTY"));
}

#[test]
fn create_tells_of_ancestors_and_pools_take_old_versions() {
    let scratch = two_pools();
    assert_eq!(scratch.ok("create -P -p tank/new"), "create_ancestors\ttank/new\ncreate\ttank/new\n");
    scratch.ok("pool create -o version=28 old");
    assert!(scratch.fails(1, "pool create -o version=29 newer").contains("is not a valid pool property"));
}

#[test]
fn an_excluded_property_that_was_set_here_stays() {
    let scratch = two_pools();
    scratch.ok("set com.example:x=theirs com.example:y=theirs tank/a");
    scratch.ok("snapshot tank/a@1");
    scratch
        .receive("receive -x com.example:x dozer/copy", &scratch.to_file("send -p tank/a@1", "one.zstream"));
    assert_eq!(scratch.ok("get -Ho value com.example:x,com.example:y dozer/copy"), "-\ntheirs\n");
    scratch.ok("set com.example:x=ours dozer/copy");
    scratch.ok("snapshot tank/a@2");
    let next = scratch.to_file("send -p -i @1 tank/a@2", "two.zstream");
    scratch.receive("receive -F -x com.example:x -x com.example:y dozer/copy", &next);
    assert_eq!(
        scratch.ok("get -Ho value,source com.example:x,com.example:y dozer/copy"),
        "ours\tlocal\n-\t-\n"
    );
}
