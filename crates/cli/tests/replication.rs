//! Receives real streams, compares the files, and sends streams again.

mod common;

use std::fs;
use std::io::Read;
use std::process::Stdio;

use common::{Scratch, demo};

#[test]
fn real_streams_are_received() {
    let scratch = Scratch::with_pool();
    assert_eq!(
        scratch.receive("receive -nv tank/home", &demo("full.zstream")),
        "would receive full stream of tank/home@monday into tank/home@monday\n"
    );
    assert_eq!(scratch.ok("list -Ho name"), "tank\n");
    let out = scratch.receive("receive -v tank/home", &demo("full.zstream"));
    let mut lines = out.lines();
    assert_eq!(lines.next(), Some("receiving full stream of tank/home@monday into tank/home@monday"));
    assert!(lines.next().is_some_and(|line| line.starts_with("received 130K stream in ")), "{out}");
    scratch.receive("receive tank/home", &demo("incremental.zstream"));
    assert_eq!(scratch.ok("list -Ho name -t snapshot tank/home"), "tank/home@monday\ntank/home@tuesday\n");
    assert_eq!(
        scratch.ok("get -Hpo value guid,creation tank/home@monday"),
        "1809360934604997239\n1795226732\n"
    );
    for day in ["monday", "tuesday"] {
        let truth = fs::read_to_string(demo(&format!("manifest/tank+home@{day}.jsonl"))).unwrap();
        assert_eq!(scratch.ok(&format!("manifest tank/home@{day}")), truth);
    }
}

#[test]
fn refusals_of_streams() {
    let scratch = Scratch::with_home();
    let said = scratch.run_with_input("receive tank/home", &demo("full.zstream"));
    assert_eq!(said.code, 1);
    assert!(said.err.contains("destination"), "{said:?}");
    let said = scratch.run_with_input("receive tank/other", &demo("incremental.zstream"));
    assert_eq!(said.code, 1, "{said:?}");
    let bad = scratch.path().join("bad");
    let mut bytes = fs::read(demo("full.zstream")).unwrap();
    bytes[5000] ^= 1;
    fs::write(&bad, bytes).unwrap();
    let said = scratch.run_with_input("receive tank/bad", &bad);
    assert_eq!(said.code, 1);
    assert!(said.err.starts_with("cannot receive") && said.err.contains("offset"), "{said:?}");
    assert_eq!(scratch.ok("list -Ho name"), "tank\ntank/home\n");
    let said = scratch.run_with_input("receive nopool/x", &demo("full.zstream"));
    assert_eq!((said.code, said.err.as_str()), (1, "cannot open 'nopool/x': dataset does not exist\n"));
    assert!(scratch.ok("check tank").starts_with("tank: no errors"));
}

#[test]
fn what_is_sent_can_be_received() {
    let scratch = Scratch::with_home();
    let full = scratch.to_file("send -Lec tank/home@monday", "full");
    let incremental = scratch.to_file("send -Lec -i @monday tank/home@tuesday", "incremental");
    scratch.receive("receive tank/copy", &full);
    scratch.receive("receive tank/copy", &incremental);
    for day in ["monday", "tuesday"] {
        assert_eq!(
            scratch.ok(&format!("manifest tank/copy@{day}")),
            scratch.ok(&format!("manifest tank/home@{day}"))
        );
        assert_eq!(
            scratch.ok(&format!("get -Ho value guid tank/copy@{day}")),
            scratch.ok(&format!("get -Ho value guid tank/home@{day}"))
        );
    }
    scratch.ok("bookmark tank/home@monday #m");
    scratch.ok("destroy tank/home@monday");
    let from_bookmark = scratch.to_file("send -i #m tank/home@tuesday", "from-bookmark");
    scratch.ok("rollback -r tank/copy@monday");
    scratch.receive("receive tank/copy", &from_bookmark);
    assert_eq!(scratch.ok("manifest tank/copy@tuesday"), scratch.ok("manifest tank/home@tuesday"));
    let package = scratch.to_file("send -R tank/copy@tuesday", "package");
    scratch.ok("create tank/backup");
    scratch.receive("receive -d tank/backup", &scratch.path().join("package"));
    assert!(scratch.run(&format!("stream verify {}", package.display())).out.contains("good"));
    assert_eq!(
        scratch.ok("list -Ho name -t all -r tank/backup"),
        "tank/backup\ntank/backup/copy\ntank/backup/copy@monday\ntank/backup/copy@tuesday\n"
    );
}

#[test]
fn sizes_are_told_before_sending() {
    let scratch = Scratch::with_home();
    let out = scratch.ok("send -nvP tank/home@monday");
    let lines: Vec<Vec<&str>> = out.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(lines[0][..2], ["full", "tank/home@monday"]);
    assert_eq!(lines[1][0], "size");
    assert_eq!(lines[0][2], lines[1][1]);
    let real = fs::metadata(scratch.to_file("send tank/home@monday", "s")).unwrap().len();
    assert_eq!(lines[1][1].parse::<u64>().unwrap(), real);
    let out = scratch.ok("send -n -v -P -i tank/home@monday tank/home@tuesday");
    assert!(out.starts_with("incremental\ttank/home@monday\ttank/home@tuesday\t"), "{out}");
    assert!(scratch.ok("send -nv tank/home@monday").contains("total estimated size is "));
    assert_eq!(scratch.ok("send -n tank/home@monday"), "");
    let mut command = scratch.command("send -P tank/home@monday");
    let said = command.stdout(Stdio::piped()).output().unwrap();
    assert!(String::from_utf8(said.stderr).unwrap().starts_with("full\ttank/home@monday\t"));
    assert_eq!(said.stdout.len() as u64, real);
}

#[test]
fn refusals_of_send() {
    let scratch = Scratch::with_home();
    for (line, message) in [
        ("send tank/home@none", "cannot open 'tank/home@none': dataset does not exist\n"),
        ("send tank/none@x", "cannot open 'tank/none@x': dataset does not exist\n"),
        ("send -i @none tank/home@monday", "incremental source (tank/home@none) does not exist\n"),
        (
            "send -X tank/home/x tank/home@monday",
            "Cannot specify dataset exclusion (-X) on a non-recursive send.\n",
        ),
        ("send -t nonsense", "cannot resume send: resume token is corrupt (invalid format)\n"),
    ] {
        assert_eq!(scratch.fails(1, line), message, "{line}");
    }
    assert!(scratch.fails(1, "send -i @tuesday tank/home@monday").contains("not an earlier snapshot"));
    assert!(scratch.fails(2, "send").contains("receive_resume_token"));
}

#[test]
fn a_cut_stream_is_resumed() {
    let scratch = Scratch::with_home();
    let full = scratch.to_file("send tank/home@monday", "full");
    let bytes = fs::read(&full).unwrap();
    let cut = scratch.path().join("cut");
    fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    let said = scratch.run_with_input("receive -s tank/part", &cut);
    assert_eq!(said.code, 1);
    assert!(said.err.contains("Partially received snapshot is saved."), "{said:?}");
    let token = scratch.ok("get -Ho value receive_resume_token tank/part").trim().to_owned();
    assert!(said.err.contains(&token) && token.starts_with("1-"), "{said:?}");
    assert!(scratch.ok(&format!("stream token {token}")).contains("toname = tank/home@monday"));
    assert!(
        scratch.ok(&format!("send -nvt {token}")).starts_with("resume token contents:\nnvlist version: 0\n")
    );
    let said = scratch.run_with_input("receive tank/part", &full);
    assert!(said.err.contains("contains partially-complete state"), "{said:?}");
    let rest = scratch.to_file(&format!("send -t {token}"), "rest");
    scratch.receive("receive -s tank/part", &rest);
    assert_eq!(scratch.ok("manifest tank/part@monday"), scratch.ok("manifest tank/home@monday"));
    assert_eq!(
        scratch.fails(1, "receive -A tank/part"),
        "'tank/part' does not have any resumable receive state to abort\n"
    );
    scratch.run_with_input("receive -s tank/again", &cut);
    scratch.ok("receive -A tank/again");
    // A copy of the snapshot is enough as well.
    scratch.ok("destroy -r tank/part");
    scratch.ok("destroy -r tank/home");
    assert_eq!(
        scratch.fails(255, &format!("send -t {token}")),
        "cannot resume send: 'tank/home@monday' used in the initial send no longer exists\n"
    );
    assert!(scratch.ok("check tank").starts_with("tank: no errors"));
}

#[test]
fn properties_on_receive() {
    let scratch = Scratch::with_home();
    scratch.ok("set com.x:y=z compression=gzip tank/home");
    let package = scratch.to_file("send -p tank/home@monday", "package");
    scratch.receive("receive -o atime=off -x compression tank/copy", &package);
    assert_eq!(
        scratch.ok("get -Ho property,value,source com.x:y,atime,compression tank/copy"),
        "com.x:y\tz\treceived\natime\toff\tlocal\ncompression\ton\tdefault\n"
    );
    assert_eq!(scratch.run_with_input("receive -o a=b -x a tank/no", &package).code, 1);
}

#[test]
fn streams_by_themselves() {
    let scratch = Scratch::new();
    let full = demo("full.zstream");
    let said = scratch.ok(&format!("stream verify {}", full.display()));
    assert!(said.starts_with("full  tank/home@monday  guid 1809360934604997239\n"), "{said}");
    let json: serde_json::Value =
        serde_json::from_str(&scratch.ok(&format!("stream verify -j {}", full.display()))).unwrap();
    assert_eq!(json["bytes"], fs::metadata(&full).unwrap().len());
    assert_eq!(json["snapshots"][0]["name"], "tank/home@monday");
    let said = scratch.receive("stream dump", &full);
    assert!(said.starts_with("BEGIN record\n") && said.contains("SUMMARY:\n"), "{said}");
    assert!(scratch.receive("stream dump -v", &full).contains("OBJECT object = 1 "));
    let bad = scratch.path().join("bad");
    fs::write(&bad, &fs::read(&full).unwrap()[..1000]).unwrap();
    let said = scratch.run("stream verify bad");
    assert_eq!(said.code, 1);
    assert!(said.err.starts_with("bad: "), "{said:?}");
    assert!(scratch.fails(1, "stream verify none").starts_with("cannot open none: "));
    assert_eq!(scratch.fails(1, "stream token 1-2-3"), "resume token is corrupt (invalid format)\n");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let scratch = Scratch::with_home();
    let mut child = scratch
        .command("stream dump -d")
        .stdin(fs::File::open(demo("full.zstream")).unwrap())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn snapshots_of_nothing_new_are_no_obstacle() {
    let scratch = Scratch::with_pool();
    scratch.receive("receive tank/home", &demo("full.zstream"));
    scratch.ok("snapshot tank/home@mine");
    let said = scratch.receive("receive -v tank/home", &demo("incremental.zstream"));
    assert!(said.contains("receiving incremental stream"), "{said}");
    let names = scratch.ok("list -Ho name -t snapshot tank/home");
    assert_eq!(names.lines().nth(1), Some("tank/home@mine"), "{names}");
    assert_eq!(names.lines().count(), 3, "{names}");
    // Only an identical snapshot counts.
    scratch.receive("receive tank/other", &demo("full.zstream"));
    std::fs::create_dir(scratch.path().join("mine")).unwrap();
    scratch.ok("import -F mine tank/other@mine");
    let said = scratch.run_with_input("receive tank/other", &demo("incremental.zstream"));
    assert_eq!(said.code, 1);
    assert!(
        said.err.contains("most recent snapshot of tank/other does not\nmatch incremental source"),
        "{said:?}"
    );
    assert!(scratch.ok("check tank").contains("tank: no errors"));
}

/// `-o` with a package: the datasets below inherit what can be inherited. The other properties are set only at the top.
#[test]
fn properties_on_receive_of_a_package() {
    let scratch = Scratch::with_home();
    scratch.ok("create tank/home/below");
    scratch.ok("snapshot -r tank/home@all");
    let package = scratch.to_file("send -R tank/home@all", "package");
    scratch.receive("receive -o atime=off -o user:tag=x -o quota=1G -o mountpoint=/copy tank/copy", &package);
    let shown = scratch.ok("get -Ho value,source atime,user:tag,quota,mountpoint tank/copy");
    assert_eq!(shown, "off\tlocal\nx\tlocal\n1G\tlocal\n/copy\tlocal\n");
    let shown = scratch.ok("get -Ho value,source atime,user:tag,quota,mountpoint tank/copy/below");
    let from = "inherited from tank/copy";
    assert_eq!(shown, format!("off\t{from}\nx\t{from}\nnone\tdefault\n/copy/below\t{from}\n"));
}

/// A full stream onto a dataset with the same data: `-o origin=` shares its blocks.
#[test]
fn blocks_of_a_full_stream_are_shared_with_the_origin() {
    let scratch = Scratch::with_home();
    let full = scratch.to_file("send -Lec tank/home@tuesday", "full");
    scratch.receive("receive -o origin=tank/home@tuesday tank/same", &full);
    scratch.receive("receive -o origin=tank/home@monday tank/later", &full);
    scratch.receive("receive tank/whole", &full);
    let number = |line: &str| scratch.ok(line).trim().parse::<u64>().unwrap();
    let whole = number("get -Hpo value used tank/whole");
    for name in ["same", "later"] {
        let used = number(&format!("get -Hpo value used tank/{name}"));
        assert!(used < whole / 2, "{name}: {used} of {whole}");
        assert_eq!(
            scratch.ok(&format!("manifest tank/{name}@tuesday")),
            scratch.ok("manifest tank/home@tuesday")
        );
    }
    assert!(scratch.ok("check tank").starts_with("tank: no errors"));
}

/// OpenZFS sends a spill block that is embedded in its pointer as a WRITE_EMBEDDED record. Here these are the targets
/// of long symbolic links.
#[test]
fn an_embedded_spill_block_of_zfs_is_received() {
    let scratch = Scratch::with_pool();
    let stream = demo("../single/embedded-spill.zstream");
    scratch.receive("receive tank/x", &stream);
    let shown = scratch.ok("manifest tank/x@one");
    for (name, target) in
        [("long", "z".repeat(530)), ("short", "y".repeat(60)), ("longer", "x1y2z3".repeat(100))]
    {
        let line = shown.lines().find(|line| line.contains(&format!("\"path\":\"{name}\""))).unwrap();
        assert!(line.contains(&format!("\"target\":\"{target}\"")), "{line}");
    }
    // snowmelt sends it as a spill block, so that ZFS receives it too.
    let sent = scratch.to_file("send -e -c tank/x@one", "sent");
    let sent = sent.display();
    assert!(scratch.ok(&format!("stream dump -v {sent}")).matches("SPILL block").count() >= 2);
    scratch.receive("receive tank/y", &scratch.path().join("sent"));
    assert_eq!(scratch.ok("manifest tank/y@one"), shown);
    assert!(scratch.ok("check tank").contains("no errors"));
}
