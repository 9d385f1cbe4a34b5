//! `policy` and the daemon: rules in TOML and of sanoid, both sides of a replication, hooks, locks, full pools.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use common::rsync::{StockDaemon, own_shell, restored, stock_shell};
use common::{Said, Scratch};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A pool with some datasets, and this policy at its default place.
fn with_policy(policy: &str) -> Scratch {
    let scratch = Scratch::with_pool();
    for line in ["create tank/home", "create tank/home/docs", "create -s -V 1M tank/vm"] {
        scratch.ok(line);
    }
    write(&scratch, policy);
    scratch
}

fn write(scratch: &Scratch, policy: &str) {
    let directory = scratch.path().join("config/snowmelt");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("policy.toml"), policy).unwrap();
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The part after the last `_` in the names of a dataset's snapshots.
fn periods(scratch: &Scratch, dataset: &str) -> Vec<String> {
    let names = scratch.ok(&format!("list -H -t snapshot -o name {dataset}"));
    names.lines().map(|name| name.rsplit(['_', '@']).next().unwrap_or_default().to_owned()).collect()
}

fn actions(document: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = document["actions"].as_array().unwrap();
    all.iter().map(|action| (text(&action["action"]), text(&action["what"]))).collect()
}

/// Takes snapshots by hand with names as the policy gives them, oldest first.
fn take_old(scratch: &Scratch, dataset: &str, period: &str, count: usize) {
    take_old_from(scratch, dataset, period, 1..=count);
}

fn take_old_from(scratch: &Scratch, dataset: &str, period: &str, days: std::ops::RangeInclusive<usize>) {
    for day in days {
        scratch.ok(&format!("snapshot {dataset}@autosnap_2020-01-{day:02}_00:00:00_{period}"));
    }
}

#[test]
fn what_is_due_is_done_once() {
    let scratch = with_policy("[dataset.\"tank/home\"]\nrecursive = true\nhourly = 36\ndaily = 30\n");
    let checked = scratch.ok("policy check");
    assert!(checked.contains("tank/home/docs  yes    yes     30 daily, 36 hourly"), "{checked}");
    let planned = json(&scratch.ok("policy plan --json"));
    assert_eq!(actions(&planned).len(), 4, "{planned}");
    assert_eq!(planned["actions"][0]["reason"], "there is none yet");
    let done = scratch.ok("policy run-once");
    assert_eq!(done.lines().filter(|line| line.starts_with("took tank/home")).count(), 4, "{done}");
    assert_eq!(periods(&scratch, "tank/home/docs"), ["daily", "hourly"]);
    // All datasets were snapshotted at one moment.
    let txgs = scratch.ok("get -H -o value -t snapshot -r createtxg tank/home");
    let txgs: Vec<&str> = txgs.lines().collect();
    assert_eq!((txgs[0], txgs[1]), (txgs[2], txgs[3]), "{txgs:?}");
    assert_eq!(scratch.ok("policy run-once"), "");
    assert_eq!(scratch.ok("policy plan"), "nothing is due\n");
    let status = json(&scratch.ok("policy status --json"));
    assert_eq!(status["datasets"][0]["there"], 1, "{status}");
    assert!(status["datasets"][0]["next"].as_i64() > status["datasets"][0]["newest"].as_i64());
    assert!(scratch.ok("pool history tank").contains("snowmelt snapshot tank/home@autosnap_"));
    scratch.ok("check tank");
}

#[test]
fn only_what_the_rules_are_about_goes() {
    let scratch = with_policy(
        "[dataset.\"tank/home\"]\ncron.old = { at = \"0 0 1 1 *\", keep = 2 }\nprotect = [\"2020-01-02\"]\n",
    );
    take_old(&scratch, "tank/home", "old", 5);
    scratch.ok("snapshot tank/home@by-hand");
    scratch.ok("snapshot tank/home@autosnap_2020-01-01_00:00:00_other");
    scratch.ok("hold mine tank/home@autosnap_2020-01-01_00:00:00_old");
    let done = scratch.ok("policy run-once --json");
    let left = scratch.ok("list -H -t snapshot -o name tank/home");
    let left: Vec<&str> = left.lines().filter_map(|name| name.split('@').nth(1)).collect();
    let expected = [
        "autosnap_2020-01-01_00:00:00_old",
        "autosnap_2020-01-02_00:00:00_old",
        "autosnap_2020-01-04_00:00:00_old",
        "autosnap_2020-01-05_00:00:00_old",
        "by-hand",
        "autosnap_2020-01-01_00:00:00_other",
    ];
    assert_eq!(left, expected, "{done}");
    let done = json(&done);
    assert!(done["actions"][0]["reason"].as_str().unwrap().starts_with("old 3 of 2, "), "{done}");
}

#[test]
fn a_sanoid_conf_is_followed() {
    let scratch = with_policy("");
    let conf = scratch.path().join("sanoid.conf");
    fs::write(scratch.path().join("sanoid.defaults.conf"), "[template_default]\nmonthly = 0\n").unwrap();
    fs::write(
        &conf,
        "[tank/home]\n  use_template = production\n  recursive = zfs\n[tank/vm]\n  use_template = ignore\n\
         [template_production]\n  hourly = 2\n  daily = 1\n[template_ignore]\n  autosnap = no\n  autoprune = no\n  monitor = no\n",
    )
    .unwrap();
    let conf = conf.display();
    take_old(&scratch, "tank/home", "weekly", 1);
    scratch.ok(&format!("policy run-once --config {conf}"));
    assert_eq!(periods(&scratch, "tank/home"), ["daily", "hourly"]);
    assert_eq!(periods(&scratch, "tank/home/docs"), ["daily", "hourly"]);
    assert_eq!(periods(&scratch, "tank/vm"), [] as [&str; 0]);
    let said = scratch.ok(&format!("policy --monitor-snapshots --config {conf}"));
    assert_eq!(said, "OK: all monitored datasets (tank/home, tank/home/docs) have fresh snapshots\n");
    let health = scratch.ok(&format!("policy --monitor-health --config {conf}"));
    assert!(health.starts_with("OK ZPOOL tank : ONLINE {Size:"), "{health}");
    let capacity = scratch.run(&format!("policy --monitor-capacity --config {conf}"));
    assert!(capacity.out.contains("ZPOOL tank : "), "{capacity:?}");
    fs::write(scratch.path().join("sanoid.conf"), "[tank/gone]\nhourly = x\n").unwrap();
    let wrong = scratch.fails(1, &format!("policy check --config {conf}"));
    assert!(wrong.contains("sanoid.conf:2: [tank/gone]: hourly:"), "{wrong}");
    let unknown = scratch.fails(3, &format!("policy --monitor-snapshots --config {conf}"));
    assert!(unknown.starts_with("UNKNOWN: "), "{unknown}");
}

#[test]
fn monitors_tell_what_is_missing() {
    let scratch = with_policy(
        "[dataset.\"tank/home\"]\nhourly = 1\ncapacity_crit = 1\n[dataset.\"tank/gone\"]\ndaily = 1\n",
    );
    let said = scratch.run("policy --monitor-snapshots");
    let expected = "CRIT: tank/gone does not exist, CRIT: tank/home has no hourly snapshots at all!\n";
    assert_eq!((said.code, said.out.as_str()), (2, expected), "{said:?}");
    write(&scratch, "[dataset.\"gone/x\"]\ndaily = 1\n");
    let said = scratch.run("policy --monitor-health");
    assert_eq!(said.code, 2);
    assert_eq!(said.out, "*** CRITICAL *** CRITICAL ZPOOL {gone} does not exist and/or is not responding!\n");
    let checked = scratch.run("policy check");
    assert_eq!(checked.code, 1);
    assert!(checked.err.contains("cannot open 'gone': no such pool"), "{checked:?}");
}

#[test]
fn both_sides_are_pruned_and_the_base_stays() {
    let scratch = with_policy(
        r#"
        [dataset."tank/home"]
        cron.old = { at = "0 0 1 1 *", keep = 0 }
        autosnap = false
        [job.off]
        source = "tank/home"
        target = "back/home"
        when = "hourly"
        lag_warn = "1h"
        prune_target = { cron.old = { at = "0 0 1 1 *", keep = 2 }, autosnap = false }
        "#,
    );
    scratch.ok("pool create back");
    take_old(&scratch, "tank/home", "old", 4);
    // Nothing is pruned before it is at the target.
    let planned = json(&scratch.ok("policy plan --json"));
    assert_eq!(actions(&planned), [("replicate".to_owned(), "off".to_owned())], "{planned}");
    let waiting = scratch.run("policy --monitor-replication");
    assert_eq!((waiting.code, waiting.out.as_str()), (1, "WARN: job off has not run yet\n"), "{waiting:?}");
    let done = scratch.ok("policy run-once");
    assert!(done.contains("job off: 1 datasets up to date"), "{done}");
    let left = |dataset: &str| scratch.ok(&format!("list -H -t snapshot -o name {dataset}"));
    assert_eq!(left("tank/home"), "tank/home@autosnap_2020-01-04_00:00:00_old\n");
    assert_eq!(left("back/home").lines().count(), 2);
    assert_eq!(scratch.ok("policy --monitor-replication"), "OK: all replication jobs (off) are up to date\n");
    let status = scratch.ok("policy status");
    assert!(status.contains("off  ok     0s      "), "{status}");
    // The next replication is incremental from the snapshot that stayed.
    scratch.ok("snapshot tank/home@autosnap_2020-01-05_00:00:00_old");
    fs::remove_dir_all(scratch.path().join("state")).unwrap();
    let done = json(&scratch.ok("policy run-once --json"));
    assert_eq!(done["actions"][0]["datasets"][0]["snapshot"], "autosnap_2020-01-05_00:00:00_old", "{done}");
    assert_eq!(left("tank/home"), "tank/home@autosnap_2020-01-05_00:00:00_old\n");
    assert_eq!(left("back/home").lines().count(), 2);
    scratch.ok("check tank");
    scratch.ok("check back");
}

#[test]
fn the_other_end_of_a_job_is_pruned_where_it_is() {
    let scratch = Scratch::with_pool();
    let home = scratch.path().join("far");
    fs::create_dir_all(home.join("bin")).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_snowmelt"), home.join("bin/snowmelt")).unwrap();
    let rsh = scratch.path().join("rsh");
    let at_home = home.display();
    let script = format!(
        "#!/bin/sh\n[ -e {at_home}/down ] && exit 255\nexport HOME={at_home} XDG_DATA_HOME={at_home}/data XDG_CONFIG_HOME={at_home}/config \
         XDG_RUNTIME_DIR={at_home} PATH={at_home}/bin:/usr/bin:/bin\nexec sh -c \"$2\"\n"
    );
    fs::write(&rsh, script).unwrap();
    fs::set_permissions(&rsh, fs::Permissions::from_mode(0o755)).unwrap();
    let far = |line: &str| {
        let mut command = std::process::Command::new(&rsh);
        command.args(["host", &format!("snowmelt {line}")]).env_clear();
        Said::of(command).out
    };
    far("pool create far");
    let keep = |count| format!("{{ cron.old = {{ at = \"0 0 1 1 *\", keep = {count} }} }}");
    write(
        &scratch,
        &format!(
            "[job.push]\nsource = \"tank/home\"\ntarget = \"host:far/home\"\nwhen = \"hourly\"\nrsh = \"{0}\"\n\
             prune_target = {1}\n[job.pull]\nsource = \"host:far/data\"\ntarget = \"tank/data\"\nwhen = \"hourly\"\n\
             rsh = \"{0}\"\nretries = 0\nprune_source = {2}\nprune_target = {1}\n",
            rsh.display(),
            keep(2),
            keep(0)
        ),
    );
    scratch.ok("create tank/home");
    take_old(&scratch, "tank/home", "old", 4);
    far("create far/data");
    for day in 1..=3 {
        far(&format!("snapshot far/data@autosnap_2020-01-0{day}_00:00:00_old"));
    }
    let done = scratch.ok("policy run-once");
    assert!(done.contains("destroyed host:far/home@autosnap_2020-01-02_00:00:00_old: old 3 of 2"), "{done}");
    assert_eq!(periods(&scratch, "tank/home").len(), 4);
    assert_eq!(far("list -H -t snapshot -o name far/home").lines().count(), 2);
    // The newest common snapshot stays on both sides, although no rule keeps it there.
    assert_eq!(far("list -H -t snapshot -o name far/data"), "far/data@autosnap_2020-01-03_00:00:00_old\n");
    assert_eq!(periods(&scratch, "tank/data").len(), 2);
    // An unreachable end is reported, and nothing that may be needed is destroyed.
    fs::write(home.join("down"), "").unwrap();
    let planned = scratch.run("policy plan");
    assert_eq!(planned.code, 1, "{planned:?}");
    assert!(planned.err.contains("job pull: cannot reach 'host'"), "{planned:?}");
}

#[test]
#[ignore = "needs rsync"]
fn jobs_go_to_and_from_servers_of_rsync() {
    let scratch = Scratch::with_pool();
    let (home, shell) = (scratch.path(), stock_shell(&scratch));
    for directory in ["source", "copy"] {
        fs::create_dir(home.join(directory)).unwrap();
    }
    fs::write(home.join("source/f"), "one").unwrap();
    fs::write(home.join("source/x.o"), "left out").unwrap();
    fs::write(home.join("copy/superfluous"), "").unwrap();
    for (name, text) in [("secrets", "joe:open sesame\n"), ("password", "open sesame\n")] {
        fs::write(home.join(name), text).unwrap();
        fs::set_permissions(home.join(name), fs::Permissions::from_mode(0o600)).unwrap();
    }
    let at = home.display();
    let daemon = StockDaemon::start(
        &scratch,
        &format!("[m]\npath = {at}/source\nauth users = joe\nsecrets file = {at}/secrets\n"),
    );
    write(
        &scratch,
        &format!(
            "[dataset.\"tank/www\"]\nautosnap = false\ncron.old = {{ at = \"0 0 1 1 *\", keep = 1 }}\n\
             [job.a-pull]\nsource = \"{}\"\ntarget = \"tank/www\"\nwhen = \"yearly\"\npassword_file = \"{at}/password\"\n\
             filter = [\"- *.o\"]\ntimeout = 60\n\
             [job.b-push]\nsource = \"tank/www@\"\ntarget = \"host:rsync:{at}/copy\"\nwhen = \"yearly\"\nrsh = \"{}\"\ndelete = true\n",
            daemon.url("m").replace("rsync://", "rsync://joe@"),
            shell.display()
        ),
    );
    scratch.ok("policy check");
    let planned = json(&scratch.ok("policy plan --json"));
    let run = |name: &str| ("replicate".to_owned(), name.to_owned());
    assert_eq!(actions(&planned), [run("a-pull"), run("b-push")], "{planned}");
    let done = json(&scratch.ok("policy run-once --json"));
    let (pulled, pushed) = (&done["actions"][0], &done["actions"][1]);
    assert!(pulled["snapshot"].as_str().unwrap().starts_with("tank/www@rsync_"), "{done}");
    assert!(pulled["files"] == 1 && pushed["files"] == 1 && pushed["bytes"].as_u64() > Some(0), "{done}");
    assert_eq!(fs::read(home.join("copy/f")).unwrap(), b"one");
    assert!(!home.join("copy/superfluous").exists() && !home.join("copy/x.o").exists());
    let status = json(&scratch.ok("policy status --json"));
    assert!(
        status["jobs"][1]["failure"].is_null() && status["jobs"][1]["behind_seconds"].as_i64() < Some(3600),
        "{status}"
    );
    // For neither of these ends a base is kept.
    take_old(&scratch, "tank/www", "old", 3);
    scratch.ok("policy run-once");
    let old = periods(&scratch, "tank/www").into_iter().filter(|period| period == "old");
    assert_eq!(old.count(), 1);
    // Failures are reported and retried.
    fs::write(home.join("password"), "wrong\n").unwrap();
    fs::remove_dir_all(home.join("state")).unwrap();
    let said = scratch.run("policy run-once");
    assert!(
        said.code == 3 && said.err.contains("job a-pull: ") && said.err.contains("auth failed"),
        "{said:?}"
    );
    scratch.ok("check tank");
}

/// Directories on other machines, with and without snowmelt there.
#[test]
#[ignore = "needs rsync"]
fn jobs_go_to_and_from_directories_elsewhere() {
    let scratch = Scratch::with_pool();
    let home = scratch.path();
    let at = home.display();
    let shells = [stock_shell(&scratch), own_shell(&scratch, "exec sh -c \"$*\"")];
    for (name, shell) in ["rsync", "snowmelt"].into_iter().zip(&shells) {
        let (source, copy) = (home.join(format!("{name}-source")), home.join(format!("{name}-copy")));
        fs::create_dir(&source).unwrap();
        fs::write(source.join("f"), "one").unwrap();
        let own = home.join(format!("{name}-own"));
        fs::create_dir(&own).unwrap();
        fs::write(own.join("f"), "own").unwrap();
        scratch.ok(&format!("import {} tank/{name}-own@one", own.display()));
        let job = format!("when = \"yearly\"\nrsh = \"{}\"\n", shell.display());
        write(
            &scratch,
            &format!(
                "[dataset.\"tank/{name}\"]\nautosnap = false\ncron.old = {{ at = \"0 0 1 1 *\", keep = 1 }}\n\
                 [job.a-{name}]\nsource = \"host:{at}/{name}-source\"\ntarget = \"tank/{name}\"\n{job}\
                 [job.b-{name}]\nsource = \"tank/{name}-own\"\ntarget = \"host:{at}/{name}-copy\"\n{job}"
            ),
        );
        scratch.ok("policy check");
        let done = json(&Said::of(scratch.command("policy run-once --json")).out);
        assert_eq!(actions(&done).len(), 2, "{name}: {done}");
        let pulled = || fs::read(restored(&scratch, &format!("tank/{name}")).join("f")).unwrap();
        assert_eq!(
            (pulled(), fs::read(copy.join("f")).unwrap()),
            (b"one".into(), b"own".into()),
            "{name}: {done}"
        );
        let status = json(&scratch.ok("policy status --json"));
        for job in 0..2 {
            let job = &status["jobs"][job];
            assert!(
                job["failure"].is_null() && job["behind_seconds"].as_i64() < Some(3600),
                "{name}: {status}"
            );
        }
        // Again, with a change.
        fs::write(source.join("f"), "changed").unwrap();
        fs::write(own.join("f"), "also changed").unwrap();
        scratch.ok(&format!("import {} tank/{name}-own@two", own.display()));
        fs::remove_dir_all(home.join("state/snowmelt/policy")).unwrap();
        let done = Said::of(scratch.command("policy run-once"));
        assert_eq!(done.code, 0, "{name}: {done:?}");
        assert_eq!(
            (pulled(), fs::read(copy.join("f")).unwrap()),
            (b"changed".into(), b"also changed".into()),
            "{name}"
        );
    }
    scratch.ok("check tank");
}

#[test]
fn jobs_with_servers_of_rsync_are_checked() {
    let scratch = with_policy("");
    let end = "source = \"rsync://host/m\"\ntarget = \"tank/www\"\nwhen = \"daily\"\n";
    for (job, why) in [
        (end.to_owned(), ""),
        // A disk that is not there.
        (end.replace("tank/www", "usb/www"), "cannot open 'usb': no such pool"),
        (end.replace("tank/www", "host:back/www"), "the other must be a dataset of this machine"),
        (end.replace("/m", ""), "the module is missing"),
        (end.replace("daily", "after_snapshot"), "are taken elsewhere"),
        (format!("{end}recursive = true\n"), "--recursive is not supported for rsync servers"),
        (format!("{end}filter = [\"nonsense\"]\n"), "Unknown filter rule"),
        (format!("{end}prune_source = {{ hourly = 1 }}\n"), "prune_source: an rsync server has no snapshots"),
        (
            end.replace("rsync://host/m", "tank/home") + "delete = true\n",
            "--delete is only for rsync servers",
        ),
        (end.replace("rsync://host/m", "host:/srv/www"), ""),
        (
            end.replace("rsync://host/m", "host:/srv/www").replace("tank/www", "host:tank/www"),
            "'host:tank/www' must be a dataset of this machine",
        ),
        (
            end.replace("rsync://host/m", "host:/srv/www").replace("tank/www", "other:/srv"),
            "'other:/srv' must be a dataset of this machine",
        ),
        (end.replace("rsync://host/m", "/srv/www"), "'/srv/www' is not a dataset"),
        (
            format!("{}prune_source = {{ hourly = 1 }}\n", end.replace("rsync://host/m", "host:/srv/www")),
            "prune_source: a directory has no snapshots",
        ),
    ] {
        write(&scratch, &format!("[job.x]\n{job}"));
        let said = scratch.run("policy check");
        assert!(said.err.contains(why) && (said.code == 0) == why.is_empty(), "{job}: {said:?}");
    }
}

#[test]
fn nothing_goes_while_a_target_is_not_there() {
    let scratch = with_policy(
        "[dataset.\"tank/home\"]\nautosnap = false\ncron.old = { at = \"0 0 1 1 *\", keep = 1 }\n\
         [job.usb]\nsource = \"tank/home\"\ntarget = \"usb/home\"\nwhen = \"yearly\"\n",
    );
    scratch.ok("pool create usb");
    take_old(&scratch, "tank/home", "old", 1);
    // The copy was made by hand: the policy has no record of it, and there is no bookmark.
    scratch.ok("sync --no-snapshot --identifier=mine tank/home usb/home");
    let bookmarks = scratch.ok("list -H -t bookmark -o name");
    bookmarks.lines().for_each(|name| drop(scratch.ok(&format!("destroy {name}"))));
    let (pool, elsewhere) = (scratch.path().join("data/snowmelt/usb"), scratch.path().join("elsewhere"));
    fs::rename(&pool, &elsewhere).unwrap();
    take_old_from(&scratch, "tank/home", "old", 2..=4);
    let said = scratch.run("policy run-once");
    assert!(said.err.contains("cannot open 'usb'"), "{said:?}");
    assert!(said.out.contains("tank/home: nothing is pruned until job usb has run"), "{said:?}");
    assert_eq!(periods(&scratch, "tank/home").len(), 4);
    // The next run sends the new snapshots, starting from the one that stayed. Then the others are pruned.
    fs::rename(&elsewhere, &pool).unwrap();
    fs::remove_dir_all(scratch.path().join("state")).unwrap();
    scratch.ok("policy run-once");
    assert_eq!((periods(&scratch, "tank/home").len(), periods(&scratch, "usb/home").len()), (1, 4));
}

#[test]
fn a_job_that_fails_is_told_and_tried_again() {
    let scratch = with_policy(
        "[job.off]\nsource = \"tank/home\"\ntarget = \"gone/home\"\nwhen = \"hourly\"\nretry = \"1s\"\n\
         post_replication_script = \"echo $SNOWMELT_JOB $SNOWMELT_STATUS >> said\"\n",
    );
    take_old(&scratch, "tank/home", "old", 1);
    for _ in 0..2 {
        let said = scratch.run("policy run-once");
        assert!(said.err.contains("job off: ") && said.err.contains("gone"), "{said:?}");
        assert_ne!(said.code, 0);
        std::thread::sleep(Duration::from_millis(1100));
    }
    assert_eq!(fs::read_to_string(scratch.path().join("said")).unwrap(), "off 1\noff 1\n");
    let told = scratch.run("policy --monitor-replication");
    assert_eq!(told.code, 2, "{told:?}");
    scratch.ok("pool create gone");
    scratch.ok("policy run-once");
    scratch.ok("policy --monitor-replication");
}

#[test]
fn hooks_stand_before_and_after() {
    let settings = "pre_snapshot_script = \"echo pre $SANOID_TARGETS $SANOID_TYPES >> said; exit $(cat status)\"\n\
                    post_snapshot_script = \"echo $SANOID_SCRIPT $SANOID_PRE_FAILURE $SNOWMELT_TARGETS >> said\"\n";
    let policy = |more: &str| {
        format!(
            "[template.t]\nhourly = 1\n{settings}{more}\n[dataset.\"tank/home\"]\nuse_template = \
             \"t\"\n[dataset.zoo]\nuse_template = \"t\"\n"
        )
    };
    let scratch = with_policy(&policy("no_inconsistent_snapshot = true"));
    scratch.ok("pool create zoo");
    let (status, said) = (scratch.path().join("status"), scratch.path().join("said"));
    fs::write(&status, "1").unwrap();
    let refused = scratch.run("policy run-once");
    assert!(
        refused.err.contains("pre_snapshot_script") && refused.err.contains("failed with status 1"),
        "{refused:?}"
    );
    assert_eq!(periods(&scratch, "tank/home"), [] as [&str; 0]);
    assert_eq!(fs::read_to_string(&said).unwrap(), "pre tank/home,zoo hourly\n");
    // One hook before and one after, for both pools.
    fs::write(&status, "0").unwrap();
    scratch.ok("policy run-once");
    assert_eq!(
        fs::read_to_string(&said).unwrap(),
        "pre tank/home,zoo hourly\npre tank/home,zoo hourly\npost 0 tank/home,zoo\n"
    );
    assert_eq!((periods(&scratch, "tank/home").len(), periods(&scratch, "zoo").len()), (1, 1));
    // Without the rule, snapshots are taken anyway. The hook after them runs if it is forced.
    fs::remove_file(&said).unwrap();
    fs::write(&status, "1").unwrap();
    write(&scratch, &policy("force_post_snapshot_script = true").replace("hourly = 1", "daily = 1"));
    assert_eq!(scratch.run("policy run-once").code, 3);
    assert_eq!(fs::read_to_string(&said).unwrap(), "pre tank/home,zoo daily\npost 1 tank/home,zoo\n");
    assert_eq!(periods(&scratch, "zoo"), ["hourly", "daily"]);
}

#[test]
fn a_hook_that_hangs_is_ended() {
    let scratch = with_policy(
        "[dataset.\"tank/home\"]\nhourly = 1\npre_snapshot_script = \"sleep 1000\"\nscript_timeout = 1\n",
    );
    let begun = Instant::now();
    let said = scratch.run("policy run-once");
    assert!(said.err.contains("did not finish within 1 s"), "{said:?}");
    assert!(begun.elapsed() < Duration::from_secs(100));
    assert_eq!(periods(&scratch, "tank/home"), ["hourly"]);
}

#[test]
fn pruning_hooks_can_refuse() {
    let scratch = with_policy(
        "[dataset.\"tank/home\"]\nautosnap = false\ncron.old = { at = \"0 0 1 1 *\", keep = 0 }\n\
         pre_pruning_script = \"case $SANOID_SNAPNAME in *01-02*) exit 1;; esac\"\n\
         pruning_script = \"echo $SANOID_SCRIPT $SANOID_TARGET@$SANOID_SNAPNAME >> said\"\n",
    );
    take_old(&scratch, "tank/home", "old", 3);
    let said = scratch.run("policy run-once");
    assert!(said.err.contains("autosnap_2020-01-02_00:00:00_old is kept"), "{said:?}");
    assert_eq!(periods(&scratch, "tank/home").len(), 1);
    assert_eq!(
        fs::read_to_string(scratch.path().join("said")).unwrap(),
        "prune tank/home@autosnap_2020-01-01_00:00:00_old\nprune tank/home@autosnap_2020-01-03_00:00:00_old\n"
    );
}

#[test]
fn pruning_waits_until_the_pool_is_full_enough() {
    let policy = "[dataset.\"tank/home\"]\nautosnap = false\ncron.old = { at = \"0 0 1 1 *\", keep = 0 \
                  }\nprune_defer = 100\n";
    let scratch = with_policy(policy);
    take_old(&scratch, "tank/home", "old", 2);
    let said = scratch.ok("policy run-once");
    assert!(said.contains("tank: 2 snapshots of 1 datasets could be pruned, but only"), "{said}");
    assert_eq!(periods(&scratch, "tank/home").len(), 2);
    write(&scratch, &policy.replace("100", "0"));
    scratch.ok("policy run-once");
    assert_eq!(periods(&scratch, "tank/home").len(), 0);
}

#[test]
fn one_run_at_a_time_does_a_job() {
    let scratch = with_policy(
        "[job.off]\nsource = \"tank/home\"\ntarget = \"back/home\"\nwhen = \"hourly\"\nscript_timeout = 0\n\
         pre_replication_script = \"touch began; while [ ! -e go ]; do sleep 0.05; done\"\n",
    );
    scratch.ok("pool create back");
    take_old(&scratch, "tank/home", "old", 1);
    let mut first = scratch.command("policy run-once").stdout(Stdio::null()).spawn().unwrap();
    until(|| scratch.path().join("began").exists());
    // The first run has begun, so the job is not due. Without its state file it would be due, but the other run has it.
    fs::remove_file(scratch.path().join("state/snowmelt/policy/off.json")).unwrap();
    let second = scratch.ok("policy run-once");
    assert_eq!(second, "job off is already running\n");
    fs::write(scratch.path().join("go"), "").unwrap();
    assert!(first.wait().unwrap().success());
    assert_eq!(periods(&scratch, "back/home"), ["old"]);
}

#[test]
fn an_interrupted_run_ends_cleanly() {
    let scratch = with_policy(
        "[dataset.\"tank/home\"]\nhourly = 1\nscript_timeout = 0\nno_inconsistent_snapshot = true\n\
         pre_snapshot_script = \"touch began; sleep 1000\"\n",
    );
    let mut run = scratch.command("policy run-once").stderr(Stdio::null()).spawn().unwrap();
    until(|| scratch.path().join("began").exists());
    signal(&run, Signal::TERM);
    assert_eq!(run.wait().unwrap().code(), Some(1));
    assert_eq!(periods(&scratch, "tank/home"), [] as [&str; 0]);
    scratch.ok("check tank");
}

fn until(mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing happened");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn the_daemon_does_what_is_due() {
    let scratch = with_policy(
        "[dataset.\"tank/home\"]\nhourly = 2\n[job.off]\nsource = \"tank/home\"\ntarget = \"back/home\"\nwhen = \
         \"after_snapshot\"\n",
    );
    scratch.ok("pool create back");
    let mut daemon = scratch.command("serve").stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(daemon.stderr.take().unwrap()).lines();
    let mut await_line = |part: &str| {
        log.by_ref()
            .map(|line| line.unwrap())
            .find(|line| line.contains(part))
            .unwrap_or_else(|| panic!("no {part}"))
    };
    await_line("following ");
    await_line("took tank/home@autosnap_");
    await_line("job off: 1 datasets up to date");
    assert_eq!(periods(&scratch, "back/home"), ["hourly"]);
    // Other processes can work meanwhile.
    scratch.ok("create tank/other");
    write(&scratch, "[dataset.tank]\nnonsense = 1\n");
    signal(&daemon, Signal::HUP);
    await_line("the policy is unchanged");
    write(&scratch, "[dataset.\"tank/other\"]\ndaily = 2\n");
    signal(&daemon, Signal::HUP);
    await_line("took tank/other@autosnap_");
    signal(&daemon, Signal::TERM);
    assert_eq!(daemon.wait().unwrap().code(), Some(0));
    scratch.ok("check tank");
    let missing = Said::of(scratch.command("serve --config nowhere.toml"));
    assert_eq!(missing.code, 1);
    assert!(missing.err.contains("cannot read") && missing.err.contains("nowhere.toml"), "{missing:?}");
}

#[test]
#[ignore = "needs systemd-analyze: .ci/run clients"]
fn units_are_as_systemd_wants_them() {
    let scratch = Scratch::new();
    for (directory, count) in [("packaging", 9), ("packaging/user", 3)] {
        let units = units(&scratch, directory);
        assert_eq!(units.len(), count, "{units:?}");
        let mut verify = std::process::Command::new("systemd-analyze");
        if directory.ends_with("user") {
            verify.arg("--user").env("XDG_RUNTIME_DIR", scratch.path());
        }
        let said = verify.args(["verify", "--man=no"]).args(&units).output().unwrap();
        let told = String::from_utf8_lossy(&said.stderr);
        // Messages about units of the machine itself do not matter.
        assert!(said.status.success() && !told.contains("snowmelt"), "{told}");
    }
}

/// The units in a directory of the repository, changed to use the tested program.
fn units(scratch: &Scratch, directory: &str) -> Vec<PathBuf> {
    let from = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(directory);
    let to = scratch.path().join(directory);
    fs::create_dir_all(&to).unwrap();
    let mut units = Vec::new();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "service" || extension == "timer") {
            let unit = to.join(path.file_name().unwrap());
            let content = fs::read_to_string(&path).unwrap();
            fs::write(&unit, content.replace("/usr/bin/snowmelt", env!("CARGO_BIN_EXE_snowmelt"))).unwrap();
            units.push(unit);
        }
    }
    units
}

/// systemd's rating of how much a service may do: 10 means everything.
#[test]
#[ignore = "needs systemd-analyze: .ci/run clients"]
fn services_may_do_little_else() {
    let scratch = Scratch::new();
    for unit in units(&scratch, "packaging") {
        let name = unit.file_name().unwrap().to_str().unwrap();
        let limit = match name {
            _ if name.ends_with(".timer") => continue,
            // Its mounts must be visible to all processes, so it has no mount namespace of its own.
            "snowmelt-mounts.service" => "50",
            _ => "30",
        };
        let mut analyze = std::process::Command::new("systemd-analyze");
        analyze.args(["security", "--offline=yes", "--threshold", limit]).arg(&unit);
        let said = analyze.output().unwrap();
        assert!(said.status.success(), "{name}: {}", String::from_utf8_lossy(&said.stdout));
    }
}

/// Under systemd: priorities in the journal, names before the output of hooks, and reports to the service manager.
#[test]
fn a_service_tells_systemd_how_it_is() {
    let scratch = with_policy(
        "[dataset.\"tank/home\"]\nhourly = 2\npre_snapshot_script = \"echo \
         freezing\"\n[dataset.\"tank/gone\"]\nhourly = 1\n",
    );
    let journal = scratch.path().join("journal");
    let file = fs::File::create(&journal).unwrap();
    let found = file.metadata().unwrap();
    let socket = std::os::unix::net::UnixDatagram::bind(scratch.path().join("notify")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut daemon = scratch
        .command("serve")
        .env("JOURNAL_STREAM", format!("{}:{}", found.dev(), found.ino()))
        .env("NOTIFY_SOCKET", scratch.path().join("notify"))
        .env("WATCHDOG_USEC", "400000")
        .stderr(file)
        .spawn()
        .unwrap();
    let await_message = |part: &str| {
        let mut bytes = [0; 4096];
        loop {
            let length = socket.recv(&mut bytes).unwrap_or_else(|error| panic!("no {part}: {error}"));
            if String::from_utf8_lossy(&bytes[..length]).contains(part) {
                return;
            }
        }
    };
    await_message("READY=1");
    await_message("STATUS=no job is running; next check at ");
    await_message("WATCHDOG=1");
    await_message("WATCHDOG=1");
    write(&scratch, "nonsense = 1\n");
    signal(&daemon, Signal::HUP);
    await_message("RELOADING=1\nMONOTONIC_USEC=");
    await_message("READY=1");
    signal(&daemon, Signal::TERM);
    await_message("STOPPING=1");
    assert_eq!(daemon.wait().unwrap().code(), Some(0));
    let said = fs::read_to_string(&journal).unwrap();
    let has = |start: &str| said.lines().any(|line| line.starts_with(start));
    for start in [
        "<6>following ",
        "<6>pre_snapshot_script: freezing",
        "<6>took tank/home@autosnap_",
        "<4>warning: dataset 'tank/gone' does not exist",
        "<3>the policy is unchanged",
    ] {
        assert!(has(start), "{start}: {said}");
    }
    assert!(said.lines().all(|line| line.starts_with('<')), "{said}");
}

#[test]
fn what_does_not_exist_is_told_and_the_rest_is_done() {
    let scratch = with_policy(
        "[dataset.\"tank/home\"]\nhourly = 1\n[dataset.\"tank/gone\"]\nhourly = 1\n[dataset.\"tank/copy\"]\nautosnap = false\n\
         [job.off]\nsource = \"tank/home\"\ntarget = \"tank/copy\"\nwhen = \"0 0 1 1 *\"\n",
    );
    let warning = "warning: dataset 'tank/gone' does not exist: [dataset.\"tank/gone\"] in ";
    let told = |said: &Said| {
        // There is no warning for 'tank/copy', because a job will create it.
        assert!(said.err.starts_with(warning) && said.err.lines().count() == 1, "{said:?}");
        assert!(said.err.trim_end().ends_with("config/snowmelt/policy.toml"), "{said:?}");
    };
    for (line, code) in [("check", 1), ("plan", 1), ("status", 1), ("run-once", 3), ("run-once", 3)] {
        let said = scratch.run(&format!("policy {line}"));
        assert_eq!(said.code, code, "{line}: {said:?}");
        told(&said);
    }
    assert_eq!(periods(&scratch, "tank/home").iter().filter(|period| *period == "hourly").count(), 1);
    let conf = scratch.path().join("sanoid.conf");
    fs::write(&conf, "[tank/gone]\nhourly = 1\n").unwrap();
    let said = scratch.run(&format!("policy run-once --config {}", conf.display()));
    assert!(said.code == 3 && said.err.contains("does not exist: [tank/gone] in /"), "{said:?}");
    // If the source of a job is missing, the job fails.
    write(&scratch, "[job.off]\nsource = \"tank/gone\"\ntarget = \"tank/copy2\"\nwhen = \"hourly\"\n");
    let said = scratch.run("policy run-once");
    assert!(said.code == 1 && said.err.contains("tank/gone"), "{said:?}");
}
