//! `sync`: locally, over a replacement for ssh, with the `zfs` command, interrupted and resumed.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;

use common::remote::{remote, rsh, with_remote};
use common::{Said, Scratch, demo};
use serde_json::Value;

/// Two pools: `tank` with a tree of datasets, and `back` without any.
fn with_two_pools() -> Scratch {
    let scratch = Scratch::with_home();
    scratch.ok("pool create back");
    scratch.ok("create tank/home/docs");
    scratch.ok("create -s -V 1M tank/home/vol");
    scratch
}

/// Incompressible bytes.
fn noise(len: usize) -> Vec<u8> {
    let mut seed = 1u64;
    let byte = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 56) as u8
    };
    std::iter::repeat_with(byte).take(len).collect()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn guids(scratch: &Scratch, root: &str) -> Vec<String> {
    scratch.ok(&format!("get -Hr -t snapshot -o value guid {root}")).lines().map(str::to_owned).collect()
}

#[test]
fn a_tree_goes_over_once_and_then_costs_nothing() {
    let scratch = with_two_pools();
    let first = json(&scratch.ok("sync -r --json tank/home back/x/home"));
    assert_eq!(first["datasets"].as_array().unwrap().len(), 3);
    assert!(first["bytes"].as_u64().unwrap() > 0);
    assert_eq!(guids(&scratch, "tank/home"), guids(&scratch, "back/x/home"));
    assert_eq!(scratch.ok("get -H -o value canmount back/x"), "off\n");
    let second = json(&scratch.ok("sync -r --json tank/home back/x/home"));
    assert_eq!(second["bytes"], 0, "{second}");
    assert!(second["datasets"].as_array().unwrap().iter().all(|dataset| dataset["error"].is_null()));
    // The target has a hold on the snapshot that the next sync needs.
    let snapshots = scratch.ok("list -H -t snapshot,bookmark -o name -r tank back");
    let held: Vec<&str> = snapshots.lines().filter(|name| name.starts_with("back/x/home@")).collect();
    let holds = scratch.ok(&format!("holds -H {}", held.last().unwrap()));
    assert!(holds.contains("snowmelt-sync"), "{holds}");
    scratch.ok("check tank");
    scratch.ok("check back");
}

#[test]
fn the_base_may_be_destroyed_at_the_source() {
    let scratch = with_two_pools();
    scratch.ok("sync tank/home back/home");
    let newest = scratch.ok("list -H -t snapshot -o name tank/home").lines().last().unwrap().to_owned();
    scratch.ok(&format!("destroy {newest}"));
    scratch.ok("snapshot tank/home@later");
    let said = json(&scratch.ok("sync --json tank/home back/home"));
    assert_eq!(said["datasets"][0]["snapshot"], "later", "{said}");
    assert!(scratch.ok("list -H -t snapshot -o name back/home").contains("back/home@later"));
}

#[test]
fn renames_and_clones_are_followed() {
    let scratch = with_two_pools();
    scratch.ok("sync -r tank/home back/home");
    scratch.ok("rename tank/home/docs tank/home/papers");
    let origin = scratch.ok("list -H -t snapshot -o name tank/home/papers").trim().to_owned();
    scratch.ok(&format!("clone {origin} tank/home/a-clone"));
    let said = scratch.run("sync -r --json tank/home back/home");
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.err.contains("was renamed at the source"), "{said:?}");
    assert_eq!(
        scratch.ok("list -H -o name -r back/home"),
        "back/home\nback/home/a-clone\nback/home/papers\nback/home/vol\n"
    );
    let origin = scratch.ok("get -H -o value origin back/home/a-clone");
    assert!(origin.starts_with("back/home/papers@"), "{origin}");
    assert!(json(&said.out)["bytes"].as_u64().unwrap() < 100_000, "{said:?}");
}

#[test]
fn what_would_be_done_is_told_with_its_exact_size() {
    let scratch = with_two_pools();
    let told = json(&scratch.ok("sync -n --json --no-snapshot tank/home back/home"));
    assert_eq!(scratch.ok("list -H -o name back"), "back\n");
    let done = json(&scratch.ok("sync --json --no-snapshot tank/home back/home"));
    assert_eq!(told["bytes"], done["bytes"]);
    let text = scratch.ok("sync -n tank/home/docs back/docs");
    assert_eq!(text, "would take a snapshot of tank/home/docs, and send its changes\n0B in total\n");
}

#[test]
fn datasets_are_left_out_with_all_below() {
    let scratch = with_two_pools();
    scratch.ok("create tank/home/docs/below");
    scratch.ok("sync -r --exclude docs --exclude v?l tank/home back/home");
    assert_eq!(scratch.ok("list -H -o name -r back/home"), "back/home\n");
}

#[test]
fn diverged_targets_are_kept_unless_forced() {
    let scratch = with_two_pools();
    scratch.ok("sync tank/home back/home");
    scratch.ok("snapshot back/home@mine");
    // There is nothing to send, so the foreign snapshot does not matter.
    scratch.ok("sync tank/home back/home");
    scratch.ok("snapshot tank/home@next");
    let refused = scratch.fails(1, "sync tank/home back/home");
    for part in ["back/home@mine", "--force", "cannot sync 'tank/home' to 'back/home'"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    assert!(scratch.ok("list -H -t snapshot -o name back/home").contains("@mine"));
    scratch.ok("sync --force tank/home back/home");
    let now = scratch.ok("list -H -t snapshot -o name back/home");
    assert!(now.contains("@next") && !now.contains("@mine"), "{now}");
    scratch.ok("snapshot tank/home@later");
    scratch.ok("sync tank/home back/home");
    scratch.ok("rollback -r tank/home@next");
    let said = scratch.run("sync --force tank/home back/home");
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{said:?}");
    // A dataset that is not a copy is never overwritten.
    scratch.ok("create back/other");
    scratch.ok("snapshot back/other@1");
    for flags in ["", "--force"] {
        let refused = scratch.fails(1, &format!("sync {flags} tank/home back/other"));
        assert!(refused.contains("no snapshot in common"), "{refused}");
    }
}

#[test]
fn one_that_fails_does_not_stop_the_others() {
    let scratch = with_two_pools();
    scratch.ok("sync -r tank/home back/home");
    scratch.ok("snapshot back/home/docs@mine");
    scratch.ok("snapshot -r tank/home@next");
    let said = scratch.run("sync -r tank/home back/home");
    assert_eq!(said.code, 3, "{said:?}");
    assert!(said.err.contains("'tank/home/docs'") && !said.err.contains("'tank/home/vol'"), "{said:?}");
    assert!(scratch.ok("list -H -t snapshot -o name back/home/vol").contains("@next"));
}

#[test]
fn pools_of_other_machines_are_reached() {
    let scratch = with_two_pools();
    let rsh = with_remote(&scratch);
    let rsh = rsh.display();
    scratch.ok(&format!("sync -r -e {rsh} tank/home host:far/home"));
    assert_eq!(remote(&scratch, "list -H -o name -r far/home"), "far/home\nfar/home/docs\nfar/home/vol\n");
    scratch.ok(&format!("sync -r -e {rsh} host:far/home back/again"));
    assert_eq!(guids(&scratch, "tank/home"), guids(&scratch, "back/again"));
    for line in ["list -H -o name back", "pool list -H -o name"] {
        scratch.ok(line);
    }
    let missing = scratch.fails(1, &format!("sync -e {rsh} tank/home host:gone/home"));
    assert!(missing.contains("cannot open 'gone': no such pool"), "{missing}");
    let absent = scratch.fails(1, &format!("sync -e {rsh} --remote-command nothing tank/home host:far/x"));
    assert!(absent.contains("'nothing' is not in its PATH"), "{absent}");
    let unreachable = scratch.fails(1, &format!("sync -e {rsh} tank/home elsewhere:far/x"));
    assert!(unreachable.contains("could not connect"), "{unreachable}");
}

#[test]
fn a_login_script_that_talks_is_told() {
    let scratch = with_two_pools();
    with_remote(&scratch);
    let talks = rsh(&scratch, "talks", "echo Welcome to this machine;");
    let said = scratch.fails(1, &format!("sync -e {} tank/home host:far/x", talks.display()));
    assert!(said.contains("it said \"Welcome to this"), "{said}");
}

#[test]
fn a_link_that_breaks_off_costs_only_what_was_under_way() {
    let scratch = with_two_pools();
    let rsh_all = with_remote(&scratch);
    let source = scratch.path().join("big");
    fs::create_dir(&source).unwrap();
    for (number, data) in noise(12 << 20).chunks(2 << 20).enumerate() {
        fs::write(source.join(number.to_string()), data).unwrap();
    }
    scratch.ok("import big tank/big@1");
    let whole = json(&scratch.ok("sync -n --json tank/big back/big"))["bytes"].as_u64().unwrap();
    let sent = scratch.path().join("sent");
    let cut = rsh(
        &scratch,
        "cut",
        &format!("dd bs=64k count=3000000 iflag=count_bytes status=none | tee -a {} |", sent.display()),
    );
    let mut runs = 0;
    while scratch.run(&format!("sync --retries 0 -e {} tank/big host:far/big", cut.display())).code != 0 {
        runs += 1;
        assert!(runs < 30, "no progress");
    }
    assert!(runs >= 4, "{runs}");
    let over = fs::metadata(&sent).unwrap().len() - whole;
    // The bytes in flight when the connection broke, and the greetings.
    assert!(over < (runs + 1) * 1_500_000, "{over} bytes twice in {runs} runs");
    scratch.ok(&format!("sync -e {} host:far/big back/big", rsh_all.display()));
    assert_eq!(scratch.ok("manifest tank/big@1"), scratch.ok("manifest back/big@1"));
    assert!(remote(&scratch, "check far").contains("no errors"));
    // A single run does the same: the connection breaks once, and it connects again.
    let broken = scratch.path().join("broken");
    let filter = format!(
        "[ -e {0} ] || {{ touch {0}; dd bs=64k count=3000000 iflag=count_bytes status=none | sh -c \"$2\"; exit; }};",
        broken.display()
    );
    let once = rsh(&scratch, "once", &filter);
    let again = scratch.run(&format!("sync -e {} tank/big host:far/again", once.display()));
    assert_eq!(again.code, 0, "{again:?}");
    assert!(again.err.contains("trying again in 1 s"), "{again:?}");
}

#[test]
fn a_pool_is_not_exported_in_the_middle() {
    let scratch = with_two_pools();
    fs::create_dir(scratch.path().join("disk")).unwrap();
    scratch.ok("pool create away disk/away");
    fs::write(scratch.path().join("image"), noise(4 << 20)).unwrap();
    scratch.ok("import image tank/image@1");
    let mut sync = scratch.command("sync --bwlimit 2M tank/image away/image").spawn().unwrap();
    while scratch.ok("list -H -o name -r away") != "away\naway/image\n" {
        assert!(sync.try_wait().unwrap().is_none(), "it was too fast");
    }
    let refused = scratch.fails(1, "pool export away");
    assert!(refused.contains("pool is busy"), "{refused}");
    assert!(sync.wait().unwrap().success());
    scratch.ok("pool export away");
    let gone = scratch.fails(1, "sync tank/image away/image");
    for part in ["cannot open 'away': no such pool", "pool import"] {
        assert!(gone.contains(part), "{gone}");
    }
}

#[test]
#[ignore = "FUSE"]
fn a_mounted_target_follows_and_keeps_what_was_written_there() {
    let scratch = with_two_pools();
    scratch.ok("sync tank/home back/home");
    fs::create_dir(scratch.path().join("mnt")).unwrap();
    let mounted = scratch.run("mount back/home mnt");
    assert_eq!(mounted.code, 0, "{mounted:?}");
    fs::create_dir(scratch.path().join("new")).unwrap();
    fs::write(scratch.path().join("new/text"), "new").unwrap();
    scratch.ok("import -F new tank/home");
    scratch.ok("sync tank/home back/home");
    assert_eq!(fs::read_to_string(scratch.path().join("mnt/text")).unwrap(), "new");
    fs::write(scratch.path().join("mnt/mine"), "mine").unwrap();
    scratch.ok("snapshot tank/home@next");
    let refused = scratch.run("sync tank/home back/home");
    assert!(refused.code == 1 && refused.err.contains("has been modified"), "{refused:?}");
    assert_eq!(fs::read_to_string(scratch.path().join("mnt/mine")).unwrap(), "mine");
    scratch.ok("sync --force tank/home back/home");
    assert!(!scratch.path().join("mnt/mine").exists());
    scratch.ok("unmount back/home");
}

#[test]
fn zfs_is_reached_through_its_command() {
    let scratch = with_two_pools();
    scratch.ok("shims bin");
    let with_zfs = |line: &str| {
        let mut command = scratch.command(line);
        command.env("PATH", scratch.path().join("bin"));
        let said = Said::of(command);
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{line}: {said:?}");
        said.out
    };
    with_zfs("sync -r tank/home zfs:back/home");
    assert_eq!(guids(&scratch, "tank/home"), guids(&scratch, "back/home"));
    let second = json(&with_zfs("sync -r --json tank/home zfs:back/home"));
    assert_eq!(second["bytes"], 0, "{second}");
    with_zfs("sync -r zfs:back/home tank/again");
    assert_eq!(guids(&scratch, "tank/home"), guids(&scratch, "tank/again"));
    let told = json(&with_zfs("sync -n --json zfs:tank/home back/told"));
    assert!(told["bytes"].as_u64().unwrap() > 0);
}

#[test]
fn directories_images_and_streams_are_sources() {
    let scratch = with_two_pools();
    fs::create_dir(scratch.path().join("dir")).unwrap();
    fs::write(scratch.path().join("dir/file"), "text").unwrap();
    scratch.ok("sync ./dir tank/dir");
    scratch.ok("sync ./dir tank/dir");
    assert_eq!(scratch.ok("cat tank/dir:file"), "text");
    fs::write(scratch.path().join("disk.img"), vec![7; 1 << 20]).unwrap();
    scratch.ok("sync disk.img tank/disk");
    assert_eq!(scratch.ok("get -H -o value type tank/disk"), "volume\n");
    fs::copy(demo("full.zstream"), scratch.path().join("full.zstream")).unwrap();
    scratch.ok("sync full.zstream tank/from-file");
    assert_eq!(scratch.ok("get -H -o value type tank/from-file"), "filesystem\n");
    let said = scratch.run_with_input("sync - tank/from-input", &demo("full.zstream"));
    assert_eq!(said.code, 0, "{said:?}");
}

#[test]
fn what_cannot_be_synced_is_told() {
    let scratch = with_two_pools();
    for (line, why) in [
        ("sync tank/home tank/home", "source and target are the same"),
        ("sync tank/gone back/x", "cannot open 'tank/gone': dataset does not exist"),
        ("sync nopool/x back/x", "cannot open 'nopool': no such pool"),
        ("sync tank/home@1 back/x", "not a snapshot: all"),
        ("sync host:./srv back/x", "must be absolute"),
        ("sync -r . host:far/x", "-r is only for datasets"),
        ("sync -r tank/home -", "a tree of datasets needs a dataset or directory"),
        ("sync - -", "one of them must be a dataset"),
        ("sync tank/home -- -oProxyCommand=x:far/x", "this is not a valid host name"),
        ("sync tank/home host:far/a..b/../c", "parent reference"),
        ("sync ./gone host:far/x", "cannot sync './gone': No such file"),
        ("sync --identifier 2x tank/home back/x", "it must begin with a letter"),
        ("sync --no-snapshot tank/home/docs back/x", "has no snapshot to send"),
    ] {
        let said = scratch.run(line);
        assert!(said.code == 1 || said.code == 2, "{line}: {said:?}");
        assert!(said.err.contains(why), "{line}: {said:?}");
    }
}

#[test]
fn a_directory_is_kept_up_to_date_from_another_machine() {
    let scratch = with_two_pools();
    let rsh = with_remote(&scratch);
    let rsh = rsh.display();
    scratch.ok(&format!("sync -e {rsh} --compress=9 tank/home host:far/home"));
    scratch.ok(&format!("sync -e {rsh} host:far/home ./copy"));
    let newest = scratch.ok("list -H -t snapshot -o name tank/home").lines().last().unwrap().to_owned();
    scratch.ok(&format!("restore {newest} ./fresh"));
    let files = |name: &str| {
        let mut command = std::process::Command::new("find");
        command.args([name, "-not", "-path", "*/.snowmelt-sync*", "-printf", "%P %m %s %T@ %l\n"]);
        let said = Said::of({
            command.current_dir(scratch.path());
            command
        });
        let mut lines: Vec<String> = said.out.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert!(files("copy").len() > 3);
    assert_eq!(files("copy"), files("fresh"));
    let again = json(&scratch.ok(&format!("sync --json -e {rsh} host:far/home ./copy")));
    assert_eq!(again["bytes"], 0, "{again}");
    // Both pools have recorded the command in their history.
    assert!(scratch.ok("pool history tank").contains("snowmelt sync -e"));
    assert!(remote(&scratch, "pool history far").contains("snowmelt sync -e"));
}

#[test]
fn where_there_is_no_pool_a_directory_may_be_meant() {
    let scratch = Scratch::with_pool();
    std::fs::create_dir(scratch.path().join("src")).unwrap();
    for (line, hint) in
        [("src src2", "./src2"), ("tank/a src2/deep", "./src2/deep"), ("nowhere tank/a", "./nowhere")]
    {
        let said = scratch.fails(1, &format!("sync {line}"));
        assert!(said.contains("no such pool") && said.trim_end().ends_with(hint), "{line}: {said}");
    }
}
